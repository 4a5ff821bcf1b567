// The legend: the classes with their colours and shares, each of which can be hidden.

import { byId } from "./status.js";

const MID_GREY = 128; // what the colours of the legend are blended with

const entries = () => document.querySelectorAll("#classes li");

// Lists classes; setVisible(numbers, visible) is called for a class that is switched.
export function listClasses(classes, setVisible) {
  byId("classes").classList.toggle("many", classes.length > 24);
  byId("classes").replaceChildren(
    ...classes.map(({ name }, i) => {
      const entry = document.createElement("li");
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.checked = true;
      box.addEventListener("change", () => { setVisible([i], box.checked); });
      const text = document.createElement("span");
      text.textContent = name;
      const share = document.createElement("span");
      share.className = "share";
      label.append(box, text, share);
      entry.append(label);
      entry.classList.add("absent");
      return entry;
    }),
  );
}

// Gives the legend the colours that the classes have in the picture: blended with grey.
export function colourLegend(classes, opacity) {
  document.querySelectorAll("#classes input").forEach((box, i) => {
    const blended = classes[i].drawn.map((part) => Math.round(opacity * part + (1 - opacity) * MID_GREY));
    box.style.setProperty("--colour", `rgb(${blended.join(" ")})`);
  });
}

export function markVisible(i, visible) {
  const entry = entries()[i];
  entry.classList.toggle("off", !visible);
  entry.querySelector("input").checked = visible;
}

export function showShares(labels) {
  const counts = new Uint32Array(256);
  for (const label of labels) counts[label]++;
  entries().forEach((entry, i) => {
    const share = (100 * counts[i]) / labels.length;
    entry.classList.toggle("absent", counts[i] === 0);
    entry.querySelector(".share").textContent = counts[i] ? `${share < 0.1 ? "<0.1" : share.toFixed(1)} %` : "";
  });
}

export function clearShares() {
  for (const entry of entries()) {
    entry.classList.add("absent");
    entry.querySelector(".share").textContent = "";
  }
}
