// The link to the settings: the address of the page with them in its fragment.

import { applyFragment, toFragment } from "./permalink.js";
import { byId, showMessage } from "./status.js";

function check(selector) {
  const box = document.querySelector(selector);
  if (box) box.checked = true;
  return Boolean(box);
}

// Sets a slider or a choice; returns whether it has the value.
function fillIn(id, value) {
  const before = byId(id).value;
  byId(id).value = value;
  if (byId(id).value === value) return true;
  byId(id).value = before;
  return false;
}

export class SettingsLink {
  // page: { info, source, place, hiddenClasses, setVisible, showSettings, openSample, openServed } as functions
  constructor(page, zonePanel) {
    this.page = page;
    this.zonePanel = zonePanel;
    this.applying = false; // while settings are taken from the address, it is not changed
  }

  // Changes the address to the settings that are not as by default.
  update() {
    const { page, zonePanel } = this, info = page.info(), source = page.source();
    if (!info || this.applying) return;
    const unlessDefault = (id, value) => (byId(id).value === value ? "" : byId(id).value);
    const fragment = toFragment({
      place: page.place() === "server" ? "" : page.place(),
      opacity: unlessDefault("opacity", byId("opacity").defaultValue),
      split: unlessDefault("split", "0"),
      resolution: byId("resolution-choice").value,
      regions: byId("show-regions").checked ? "1" : "",
      hide: [...page.hiddenClasses()].map((i) => info.classes[i].name),
      sample: source?.sample,
      source: source?.served,
      zones: zonePanel.drawn && zonePanel.list().length ? JSON.stringify(zonePanel.content) : "",
    });
    history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
  }

  setters() {
    const { page } = this, info = page.info();
    return {
      place: (value) => check(`[name=place][value="${CSS.escape(value)}"]`),
      opacity: (value) => fillIn("opacity", value),
      split: (value) => fillIn("split", value),
      resolution: (value) => fillIn("resolution-choice", value),
      regions: (value) => value === "1" && check("#show-regions"),
      hide: (name) => {
        const number = info.classes.findIndex((entry) => entry.name === name);
        if (number >= 0) page.setVisible([number], false);
        return number >= 0;
      },
      sample: (name) => info.samples.includes(name),
      source: (name) => info.sources.includes(name),
      zones: () => true, // checked by the server
    };
  }

  // Takes the settings of the address; what is unknown here is left out, and named.
  async apply() {
    if (!location.hash) return;
    const { page } = this, info = page.info(), { hash } = location, entries = new URLSearchParams(hash.slice(1));
    let problem = "";
    this.applying = true;
    try {
      const unknown = applyFragment(hash, this.setters());
      if (unknown.length) problem = `This link has settings that are unknown here: ${unknown.join(", ")}.`;
      page.showSettings();
      if (entries.has("zones")) {
        await this.zonePanel.set(entries.get("zones")).catch((error) => {
          problem = `The zones of this link are not used: ${error.message}`;
        });
      }
      if (info.sources.includes(entries.get("source"))) await page.openServed(entries.get("source"));
      else if (info.samples.includes(entries.get("sample"))) await page.openSample(entries.get("sample"));
    } finally {
      this.applying = false;
    }
    this.update();
    if (problem) showMessage(problem, true);
  }

  async copy() {
    this.update();
    await navigator.clipboard.writeText(location.href).catch(() => {
      throw new Error("This browser does not let pages copy: the link is in its address bar.");
    });
    showMessage("Link copied: it has the settings, the zones and the sample, but no picture of yours.");
  }
}
