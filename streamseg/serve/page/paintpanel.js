// Correct labels: give a region another class, or paint with a brush, and save the picture with its labels.

import { currentTool, element, scaleOf, setTool, show } from "./layer.js";
import { connect } from "./regions.js";
import { byId, showMessage } from "./status.js";

const NO_CLASS = 255;
const UNDO_STEPS = 20;
const HINTS = {
  fill: "Click a region to give it the chosen class. Escape ends. With the keyboard: arrows and space.",
  brush: "Drag over the picture to paint the chosen class. Escape ends. With the keyboard: arrows and space.",
};

// Gives the region at a pixel another label; returns whether anything changed.
export function fillRegion(labels, width, x, y, label) {
  const { component } = connect(labels, width), number = component[y * width + x];
  if (labels[y * width + x] === label) return false;
  for (let i = 0; i < labels.length; i++) if (component[i] === number) labels[i] = label;
  return true;
}

// Gives the pixels within a distance of a line another label.
export function paintLine(labels, width, [x1, y1], [x2, y2], radius, label) {
  const height = labels.length / width, along = [x2 - x1, y2 - y1], length = along[0] ** 2 + along[1] ** 2;
  const first = (a, b, most) => Math.max(0, Math.floor(Math.min(a, b) - radius)), last = (a, b, most) => Math.min(most - 1, Math.ceil(Math.max(a, b) + radius));
  for (let y = first(y1, y2); y <= last(y1, y2, height); y++) {
    for (let x = first(x1, x2); x <= last(x1, x2, width); x++) {
      const [right, down] = [x + 0.5 - x1, y + 0.5 - y1];
      const share = length ? Math.min(Math.max((right * along[0] + down * along[1]) / length, 0), 1) : 0;
      if ((right - share * along[0]) ** 2 + (down - share * along[1]) ** 2 <= radius ** 2) labels[y * width + x] = label;
    }
  }
}

// page: { info, shown, redraw, freeze } as functions; freeze makes a frame of a video a picture.
export class PaintPanel {
  constructor(page) {
    this.page = page;
    this.reset();
    this.tool = {
      point: (x, y, dragging) => this.point(x, y, dragging),
      hover: (x, y) => this.showBrush(x, y),
      back: () => this.undo(),
      cancel: () => this.stop(),
      leave: () => {
        show("draft", []);
        byId("paint").setAttribute("aria-pressed", "false");
        byId("paint").textContent = "Correct labels";
        byId("paint-tools").hidden = true;
      },
    };
    byId("paint-undo").addEventListener("click", () => this.undo());
    for (const id of ["paint-fill", "paint-brush"]) byId(id).addEventListener("change", () => this.showHint());
  }

  // Forgets the corrections; called for each new picture.
  reset() {
    this.steps = []; // labels before each correction
    this.edited = false; // whether there are corrections that are not saved
    if (this.tool && currentTool() === this.tool) this.stop();
  }

  listClasses(names) {
    byId("paint-class").replaceChildren(...names.map((name, i) => new Option(name, i)), new Option("no class", NO_CLASS));
  }

  isBrush() {
    return byId("paint-brush").checked;
  }

  async start() {
    await this.page.freeze();
    setTool(this.tool);
    byId("paint").setAttribute("aria-pressed", "true");
    byId("paint").textContent = "Stop correcting";
    byId("paint-tools").hidden = false;
    this.showHint();
  }

  stop() {
    setTool(null);
    showMessage("");
  }

  showHint() {
    byId("brush-size-row").hidden = !this.isBrush();
    showMessage(HINTS[this.isBrush() ? "brush" : "fill"]);
  }

  radius() {
    return (Number(byId("brush-size").value) / 200) * this.page.shown().canvas.width;
  }

  point(x, y, dragging) {
    const shown = this.page.shown();
    if (!shown) return;
    const { canvas: { width, height }, labels } = shown, label = Number(byId("paint-class").value);
    const place = [x * width, y * height];
    if (this.isBrush()) {
      if (!dragging) this.keep(labels);
      paintLine(labels, width, dragging && this.last ? this.last : place, place, this.radius(), label);
      this.last = place;
      this.showBrush(x, y);
    } else {
      const pixel = [Math.min(width - 1, Math.floor(place[0])), Math.min(height - 1, Math.floor(place[1]))];
      if (dragging || labels[pixel[1] * width + pixel[0]] === label) return;
      this.keep(labels);
      fillRegion(labels, width, ...pixel, label);
    }
    this.changed();
  }

  keep(labels) {
    this.steps.push(labels.slice());
    if (this.steps.length > UNDO_STEPS) this.steps.shift();
  }

  undo() {
    const before = this.steps.pop();
    if (!before) return;
    this.page.shown().labels.set(before);
    this.changed();
  }

  changed() {
    this.edited = true;
    byId("paint-undo").disabled = !this.steps.length;
    this.page.redraw();
  }

  showBrush(x, y) {
    if (!this.isBrush() || !this.page.shown()) return;
    const [width, height] = scaleOf();
    const radius = (this.radius() / this.page.shown().canvas.width) * width;
    show("draft", [element("circle", { cx: x * width, cy: y * height, r: Math.max(2, radius), class: "brush" })]);
  }
}
