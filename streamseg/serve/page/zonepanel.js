// The panel of zones: draw them on the picture, see what is in them, open and save files of them.

import { fetchJson } from "./api.js";
import { downloadFile, plainName } from "./downloads.js";
import { caption, currentTool, element, scaleOf, setTool, show } from "./layer.js";
import { byId, showMessage } from "./status.js";
import { measure, toFractions } from "./zones.js";

const HINT = "Click the corners of the zone. Enter, or a click on the first corner, closes it; Backspace takes a corner back; Escape ends. With the keyboard: arrows and space.";
const CLOSE = 0.02; // of the picture: how near to the first corner a click closes a zone

// page: { info, source, shown, changed } as functions; changed is called when the zones are other ones.
export class ZonePanel {
  constructor(page) {
    this.page = page;
    this.content = {}; // as in a file of zones: { zone: [...], lane: [...] }
    this.drawn = false; // whether they are the visitor's, not the server's
    this.draft = [];
    byId("zone-kind").addEventListener("change", () => { byId("zone-classes-text").textContent = byId("zone-kind").value === "lane" ? "Drivable" : "Classes"; });
    this.tool = {
      text: HINT,
      point: (x, y, dragging) => { if (!dragging) this.addPoint(x, y); },
      hover: (x, y) => this.showDraft([x, y]),
      finish: () => this.close(),
      back: () => { this.draft.pop(); this.showDraft(); },
      cancel: () => this.stop(),
      leave: () => {
        this.draft = [];
        this.showDraft();
        byId("zone-draw").setAttribute("aria-pressed", "false");
        byId("zone-draw").textContent = "Draw zone";
      },
    };
  }

  list() {
    return [...(this.content.zone ?? []), ...(this.content.lane ?? [])];
  }

  listClasses(names) {
    byId("zone-classes").replaceChildren(...names.map((name) => new Option(name, name)));
  }

  toggle() {
    if (currentTool() === this.tool) this.stop();
    else this.start();
  }

  start() {
    if (!this.page.source()) throw new Error("Open a picture or a video first, to draw the zone on.");
    if (!byId("zone-classes").selectedOptions.length) {
      byId("zone-classes").focus();
      throw new Error("Choose the classes to watch first, then draw the zone.");
    }
    setTool(this.tool);
    byId("zone-draw").setAttribute("aria-pressed", "true");
    byId("zone-draw").textContent = "Stop drawing";
    showMessage(HINT);
  }

  stop() {
    setTool(null);
    showMessage("");
  }

  addPoint(x, y) {
    const [first, last] = [this.draft[0], this.draft.at(-1)];
    if (this.draft.length > 2 && Math.hypot(x - first[0], y - first[1]) < CLOSE) return this.close();
    const point = [x, y].map((number) => Number(number.toFixed(4)));
    if (last && last[0] === point[0] && last[1] === point[1]) return; // the second click of two
    this.draft.push(point);
    this.showDraft();
  }

  async close() {
    const chosen = [...byId("zone-classes").selectedOptions].map(({ value }) => value);
    const isLane = byId("zone-kind").value === "lane";
    const name = byId("zone-name").value.trim() || this.freeName(isLane ? "lane" : "zone");
    const area = { name, points: [...this.draft], [isLane ? "drivable" : "classes"]: chosen };
    try {
      await this.set(this.withArea(this.content, area));
      byId("zone-name").value = "";
      this.stop();
    } catch (error) {
      showMessage(error.message.replace("The file of zones: ", ""), true); // its corners stay, to be corrected
    }
  }

  withArea(content, area) {
    const kind = area.drivable ? "lane" : "zone";
    return { ...content, [kind]: [...(content[kind] ?? []), area] };
  }

  freeName(kind) {
    const names = this.list().map(({ name }) => name);
    let number = 1;
    while (names.includes(`${kind} ${number}`)) number++;
    return `${kind} ${number}`;
  }

  // Takes zones, as the content of a file or as its text, if the server finds nothing wrong with them.
  async set(content) {
    const text = typeof content === "string" ? content : JSON.stringify(content);
    const isEmpty = typeof content !== "string" && !(content.zone?.length || content.lane?.length);
    this.content = isEmpty ? {} : await fetchJson("zones", { method: "POST", body: text });
    this.drawn = true;
    this.update();
    this.page.changed();
  }

  async remove(name) {
    const without = (areas) => (areas ?? []).filter((area) => area.name !== name);
    const kept = { zone: without(this.content.zone), lane: without(this.content.lane) };
    await this.set(Object.fromEntries(Object.entries(kept).filter(([, areas]) => areas.length)));
  }

  download() {
    downloadFile(new Blob([JSON.stringify(this.content, null, 1)], { type: "application/json" }), "zones.json");
  }

  // Saves the zones into the data folder of the server.
  async save() {
    const { served, name } = this.page.source() ?? { name: "zones" };
    const address = `zones/${encodeURIComponent(plainName(served ?? name))}`;
    const { saved } = await fetchJson(address, { method: "PUT", body: JSON.stringify(this.content) });
    showMessage(`Saved ${saved} in the data folder of the server.`);
  }

  // Shows the zones with what the frame on the page has in them.
  update() {
    const source = this.page.source(), shown = this.page.shown(), names = this.page.info().classes.map(({ name }) => name);
    this.readings = this.list().map((area) => {
      const points = source ? toFractions(area, source.width, source.height) : area.points;
      const { width, height } = shown?.canvas ?? {};
      const reading = shown ? measure(area, points, shown.labels, width, height, names) : { shares: {}, active: [] };
      return { area, points, ...reading, text: describe(area, reading) };
    });
    show("zones", source ? this.readings.flatMap(drawReading) : []);
    byId("zone-list").replaceChildren(...this.readings.map((reading) => this.entry(reading)));
    byId("zone-files").hidden = !this.readings.length;
  }

  entry({ area, text, shares, active, problem }) {
    const entry = document.createElement("li");
    const name = document.createElement("span"), state = document.createElement("span"), remove = document.createElement("button");
    name.textContent = area.name;
    state.textContent = text || describeShares(Object.keys(shares), shares); // also of classes that are not there
    state.className = "share";
    entry.classList.toggle("on", Boolean(active.length || problem));
    remove.type = "button";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove ${area.name}`);
    remove.addEventListener("click", () => this.remove(area.name));
    entry.append(name, state, remove);
    return entry;
  }

  showDraft(next) {
    const [width, height] = scaleOf();
    const points = [...this.draft, ...(next && this.draft.length ? [next] : [])].map(([x, y]) => [x * width, y * height]);
    const corners = this.draft.map(([x, y]) => element("circle", { cx: x * width, cy: y * height, r: 6 }));
    show("draft", [element("polyline", { points: points.join(" ") }), ...corners]);
  }

  // The zones on a canvas, for overlays that are saved.
  paint(context) {
    const { width, height } = context.canvas, size = Math.max(11, Math.round(height / 45));
    context.lineWidth = Math.max(1, Math.round(Math.min(width, height) / 250));
    context.font = `600 ${size}px system-ui, sans-serif`;
    context.textBaseline = "bottom";
    for (const { area, points, active, text } of this.readings ?? []) {
      context.strokeStyle = active.length ? "#ff4020" : "#ffffff";
      context.beginPath();
      points.forEach(([x, y]) => context.lineTo(x * width, y * height));
      context.closePath();
      context.stroke();
      const [x, y] = above(points);
      const words = `${area.name} ${text}`.trim(), room = context.measureText(words).width;
      const left = Math.min(Math.max(0, x * width - room / 2), width - room), low = Math.max(size + 2, y * height - 2);
      context.fillStyle = "#0c0f14c0";
      context.fillRect(left - 3, low - size - 2, room + 6, size + 4);
      context.fillStyle = "#ffffff";
      context.fillText(words, left, low);
    }
  }
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;
}

function describe(area, { shares, active, free, problem }) {
  if (problem) return problem;
  if (free !== undefined) return `${percent(free)} free`;
  return describeShares(active, shares);
}

function describeShares(names, shares) {
  return names.map((name) => `${name} ${percent(shares[name])}`).join(", ");
}

// Returns the place above the middle of a polygon.
function above(points) {
  return [points.reduce((sum, [x]) => sum + x, 0) / points.length, Math.min(...points.map(([, y]) => y))];
}

function drawReading({ area, points, active, text }) {
  const [width, height] = scaleOf();
  const corners = points.map(([x, y]) => [x * width, y * height]);
  const [x, y] = above(corners);
  const className = active.length ? "zone on" : "zone";
  return [
    element("polygon", { points: corners.join(" "), class: className }),
    caption(`${area.name} ${text}`.trim(), x, y - 6, className),
  ];
}
