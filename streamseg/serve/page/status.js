// Messages to the user, and progress with a bar.

export const byId = (id) => document.getElementById(id);

let timer; // counts the seconds of a task of unknown length

export function showMessage(text, isError = false) {
  clearInterval(timer);
  byId("busy").hidden = true;
  // an unchanged text is not set again: screen readers would repeat it
  if (byId("message").textContent !== text) byId("message").textContent = text;
  byId("message").classList.toggle("error", isError);
}

// Shows a message with a bar: the share that is done or, if it is unknown, the seconds so far.
export function showProgress(text, share) {
  const known = share !== undefined;
  if (!known && !byId("busy").hidden && byId("message").textContent === text) return; // its timer is running
  showMessage(text);
  byId("busy").hidden = false;
  if (known) {
    byId("bar").value = share;
    byId("bar-value").textContent = `${Math.floor(100 * share)} %`;
    return;
  }
  byId("bar").removeAttribute("value");
  byId("bar-value").textContent = "";
  const start = performance.now();
  timer = setInterval(() => {
    byId("bar-value").textContent = `${Math.round((performance.now() - start) / 1000)} s`;
  }, 1000);
}
