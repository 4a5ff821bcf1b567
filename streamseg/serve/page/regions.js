// Connected regions of labels, as in streamseg/regions: pixels of one class that share edges.

const NO_CLASS = 255;
export const MIN_AREA = 64; // smaller regions are left out, as by default in streamseg.find_regions

// Returns the number of each pixel's region, from 0 on in the order of their first pixels, and how many there are.
export function connect(labels, width) {
  const parent = new Int32Array(labels.length);
  const root = (i) => {
    while (parent[i] !== i) i = parent[i] = parent[parent[i]];
    return i;
  };
  for (let i = 0; i < labels.length; i++) {
    const left = i % width && labels[i - 1] === labels[i], above = i >= width && labels[i - width] === labels[i];
    parent[i] = left ? root(i - 1) : i;
    if (above) {
      const one = root(i), other = root(i - width);
      parent[Math.max(one, other)] = Math.min(one, other);
    }
  }
  let count = 0;
  const component = parent; // a root comes before its pixels, so its entry can become the number
  for (let i = 0; i < labels.length; i++) component[i] = parent[i] === i ? -1 - count++ : parent[i];
  for (let i = 0; i < labels.length; i++) component[i] = component[i] < 0 ? -1 - component[i] : component[component[i]];
  return { component, count };
}

// Returns the regions of visible classes: { label, area, box: [left, top, right, bottom], x, y, number }.
export function findRegions(labels, width, isVisible = () => true, minArea = MIN_AREA) {
  const { component, count } = connect(labels, width);
  const found = Array.from({ length: count }, (_, number) => (
    { number, label: NO_CLASS, area: 0, box: [Infinity, Infinity, 0, 0], x: 0, y: 0 }));
  for (let i = 0; i < labels.length; i++) {
    const region = found[component[i]], x = i % width, y = (i - x) / width;
    region.label = labels[i];
    region.area++;
    region.x += x + 0.5;
    region.y += y + 0.5;
    if (x < region.box[0]) region.box[0] = x;
    if (y < region.box[1]) region.box[1] = y;
    if (x >= region.box[2]) region.box[2] = x + 1;
    if (y >= region.box[3]) region.box[3] = y + 1;
  }
  const regions = found.filter(({ label, area }) => label !== NO_CLASS && area >= minArea && isVisible(label));
  for (const region of regions) {
    region.x /= region.area;
    region.y /= region.area;
  }
  return { component, regions };
}

const SAME = 0.2; // the least IoU of a region with itself in the frame before, as in streamseg.RegionTracker

// Gives regions numbers that last from frame to frame, by their overlap with those of the same class in the last frame.
export class RegionTracker {
  constructor() {
    this.reset();
  }

  reset() {
    this.last = null; // { component, regions } of the frame before
    this.next = 1;
  }

  update(found) {
    const { last } = this;
    if (last?.component.length === found.component.length) {
      const before = new Map(last.regions.map((region) => [region.number, region]));
      const now = new Map(found.regions.map((region) => [region.number, region]));
      const shared = new Map();
      const base = found.component.length;
      for (let i = 0; i < base; i++) {
        const pair = last.component[i] * base + found.component[i];
        shared.set(pair, (shared.get(pair) ?? 0) + 1);
      }
      const pairs = [];
      for (const [pair, pixels] of shared) {
        const old = before.get(Math.floor(pair / base)), region = now.get(pair % base);
        const iou = old && region && old.label === region.label ? pixels / (old.area + region.area - pixels) : 0;
        if (iou >= SAME) pairs.push([iou, old, region]);
      }
      pairs.sort(([one], [other]) => other - one);
      const taken = new Set();
      for (const [, old, region] of pairs) {
        if (region.id || taken.has(old.id)) continue;
        region.id = old.id;
        taken.add(old.id);
      }
    }
    for (const region of found.regions) region.id ??= this.next++;
    this.last = found;
    return found.regions;
  }
}
