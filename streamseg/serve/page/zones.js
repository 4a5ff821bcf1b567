// Zones and lanes in frames of a size, measured as in streamseg/regions, but without debounce.

// Returns the points of a zone as fractions of the frame. Points in pixels are of frames of the source's own size.
export function toFractions(area, width, height) {
  const numbers = [...area.points, ...(area.image ?? [])].flat();
  const inFractions = area.units ? area.units === "fractions" : numbers.every((number) => number >= 0 && number <= 1);
  return inFractions ? area.points : area.points.map(([x, y]) => [x / width, y / height]);
}

// Returns which pixels have their centre inside of a ring of points [x, y], in pixels.
export function rasterise(ring, width, height) {
  const inside = new Uint8Array(width * height);
  const limit = (number, most) => Math.min(Math.max(Math.ceil(number - 0.5), 0), most);
  ring.forEach((point, i) => {
    const [[x1, y1], [x2, y2]] = [point, ring[(i + 1) % ring.length]].sort(([, a], [, b]) => a - b);
    for (let row = limit(y1, height); row < limit(y2, height); row++) {
      const column = limit(x1 + ((row + 0.5 - y1) * (x2 - x1)) / (y2 - y1), width);
      for (let x = column; x < width; x++) inside[row * width + x] ^= 1;
    }
  });
  return inside;
}

const PRESENT = 0.01, ROW_SHARE = 0.5; // the defaults of a file of zones
const IGNORE = 255; // the label of pixels without a class

// Returns what a frame has in a zone: { shares: {name: share}, active: [name], free, problem }; free is of a lane, the
// share of its rows that are free, from its lower end.
export function measure(area, points, labels, width, height, names) {
  if (points.flat().some((number) => !(number >= 0 && number <= 1))) {
    return { shares: {}, active: [], problem: "reaches out of the frame" };
  }
  const inside = rasterise(points.map(([x, y]) => [x * width, y * height]), width, height);
  const numbers = (area.classes ?? area.drivable).map((name) => (
    names.findIndex((known) => known.toLowerCase() === name.trim().toLowerCase())));
  if (area.drivable) return { shares: {}, active: [], free: freeShare(inside, labels, width, numbers, area.row_share ?? ROW_SHARE) };
  const counts = new Uint32Array(256);
  let pixels = 0;
  for (let i = 0; i < inside.length; i++) {
    if (inside[i] && labels[i] !== IGNORE) { // what a mask hides does not count
      counts[labels[i]]++;
      pixels++;
    }
  }
  const shares = Object.fromEntries(numbers.map((number) => [names[number], pixels ? counts[number] / pixels : 0]));
  const active = Object.keys(shares).filter((name) => shares[name] >= (area.present ?? PRESENT));
  return { shares, active };
}

function freeShare(inside, labels, width, drivable, rowShare) {
  const rows = [];
  for (let start = 0; start < inside.length; start += width) {
    let wide = 0, seen = 0, free = 0;
    for (let i = start; i < start + width; i++) {
      if (inside[i]) {
        wide++;
        if (labels[i] !== IGNORE) seen++;
        if (drivable.includes(labels[i])) free++;
      }
    }
    rows.push({ wide, seen, free });
  }
  const first = rows.findIndex(({ wide }) => wide), last = rows.findLastIndex(({ wide }) => wide);
  let row = last;
  while (row >= first && rows[row].free >= rowShare * rows[row].seen) row--;
  return (last - row) / (last - first + 1);
}
