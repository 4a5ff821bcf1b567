// The list of regions, with their numbers on the picture.

import { caption, element, scaleOf, show } from "./layer.js";
import { RegionTracker, findRegions } from "./regions.js";
import { byId } from "./status.js";

const MOST = 40; // regions that are listed and numbered, the largest ones
const LEAST = 0.004; // of the picture: smaller regions get no number on it

export class RegionPanel {
  // page: { info, shown, hiddenClasses } as functions
  constructor(page) {
    this.page = page;
    this.tracker = new RegionTracker();
    this.marked = null; // the number of the region that is outlined
  }

  reset() {
    this.tracker.reset();
    this.marked = null;
  }

  // Shows the regions of the frame on the page, if they are wanted.
  update() {
    const shown = this.page.shown(), wanted = byId("show-regions").checked && shown;
    byId("region-list").hidden = !wanted;
    if (!wanted) {
      this.regions = [];
      show("regions", []);
      return;
    }
    const { canvas, labels } = shown, hidden = this.page.hiddenClasses();
    this.regions = this.tracker.update(findRegions(labels, canvas.width, (label) => !hidden.has(label)));
    const largest = [...this.regions].sort((one, other) => other.area - one.area).slice(0, MOST);
    byId("region-count").textContent = `${this.regions.length}`;
    byId("region-list").replaceChildren(...largest.map((region) => this.entry(region, region.area / labels.length)));
    this.draw(largest.filter(({ area }) => area >= LEAST * labels.length));
  }

  name({ label, id }) {
    return `${this.page.info().classes[label].name} ${id}`;
  }

  entry(region, share) {
    const entry = document.createElement("li"), button = document.createElement("button"), text = document.createElement("span");
    button.type = "button";
    button.setAttribute("aria-pressed", String(region.id === this.marked));
    button.textContent = this.name(region);
    text.className = "share";
    text.textContent = `${share < 0.001 ? "<0.1" : (100 * share).toFixed(1)} %`;
    button.append(text);
    button.addEventListener("click", () => {
      this.marked = this.marked === region.id ? null : region.id;
      this.update();
    });
    entry.append(button);
    return entry;
  }

  draw(regions) {
    const { canvas } = this.page.shown(), scale = scaleOf()[0] / canvas.width;
    const marked = this.regions.find(({ id }) => id === this.marked);
    const box = marked?.box.map((side) => side * scale);
    show("regions", [
      ...regions.map((region) => caption(this.name(region), region.x * scale, region.y * scale, "region")),
      ...(box ? [element("rect", { x: box[0], y: box[1], width: box[2] - box[0], height: box[3] - box[1] })] : []),
    ]);
  }
}
