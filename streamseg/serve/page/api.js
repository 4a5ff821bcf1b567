// Requests to the server, and the token that it may require.

import { byId } from "./status.js";

let token = sessionStorage.getItem("token") ?? "";
export const currentToken = () => token;

let dialog = null; // the open token dialog, a promise: one for all requests that wait for it

// Returns the JSON at an address of the server; asks for the token until it is right. request: { method, body }.
export async function fetchJson(path, request = {}) {
  for (;;) {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const response = await fetch(path, { ...request, headers }).catch(() => {
      throw new Error("Cannot connect to the server: is it still running?");
    });
    if (response.status !== 401) {
      const data = await response.json();
      if (!response.ok) throw new Error(data.error);
      return data;
    }
    dialog ??= askForToken(token ? "Wrong token: check it and try again." : "");
    await dialog.finally(() => { dialog = null; });
  }
}

async function askForToken(problem) {
  do {
    byId("token-error").textContent = problem;
    byId("token").setAttribute("aria-invalid", String(Boolean(problem)));
    byId("token-dialog").showModal();
    byId("token").select();
    await new Promise((resolve) => byId("token-dialog").addEventListener("close", resolve, { once: true }));
    token = byId("token").value.trim();
    // a header cannot contain other characters
    problem = "A token contains only letters, digits and . _ ~ + -: check it and try again.";
  } while (!/^[A-Za-z0-9._~+-]*$/.test(token));
  sessionStorage.setItem("token", token);
}
