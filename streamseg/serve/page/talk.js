// Talking to people and to the server: messages, how far something is, questions, and the token that they take.

export const at = (id) => document.getElementById(id);

let token = sessionStorage.getItem("token") ?? "";
export const knownToken = () => token;

let asking = null; // the dialog, of which there is one however many questions wait for it
let clock; // counts the seconds of something whose end nobody knows

export function say(text, bad = false) {
  clearInterval(clock);
  at("busy").hidden = true;
  if (at("message").textContent !== text) at("message").textContent = text; // else it would be read out again
  at("message").classList.toggle("bad", bad);
}

// Says what is going on, with a bar: the share of it that is done or, where that is not known, the seconds so far.
export function sayBusy(text, share) {
  const known = share !== undefined;
  if (!known && !at("busy").hidden && at("message").textContent === text) return; // its clock is running
  say(text);
  at("busy").hidden = false;
  if (known) {
    at("bar").value = share;
    at("bar-told").textContent = `${Math.floor(100 * share)} %`;
    return;
  }
  at("bar").removeAttribute("value");
  at("bar-told").textContent = "";
  const start = performance.now();
  clock = setInterval(() => { at("bar-told").textContent = `${Math.round((performance.now() - start) / 1000)} s`; }, 1000);
}

// What the server answers to a question; who lacks the right token is asked for it, as often as it takes.
export async function ask(path) {
  for (;;) {
    const answer = await fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {} }).catch(() => {
      throw new Error("The server cannot be reached: is it still running?");
    });
    if (answer.status !== 401) {
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error);
      return told;
    }
    asking ??= askForToken(token ? "The server refuses this token: check it, and try again." : "");
    await asking.finally(() => { asking = null; });
  }
}

async function askForToken(complaint) {
  do {
    at("token-wrong").textContent = complaint;
    at("token").setAttribute("aria-invalid", String(Boolean(complaint)));
    at("ask").showModal();
    at("token").select();
    await new Promise((resolve) => at("ask").addEventListener("close", resolve, { once: true }));
    token = at("token").value.trim();
    // no header could carry another
    complaint = "A token has letters, digits and . _ ~ + - alone: check it, and try again.";
  } while (!/^[A-Za-z0-9._~+-]*$/.test(token));
  sessionStorage.setItem("token", token);
}
