// The layer over the picture: zones, regions and what is being drawn, and the pointer and keyboard of tools.

import { byId } from "./status.js";

const SVG = "http://www.w3.org/2000/svg";
const STEP = 0.01; // of the picture, for each press of an arrow key

const layer = byId("layer");
let tool = null; // { point(x, y, dragging), finish(), back(), cancel(), text }
let cross = null; // [x, y] of the keyboard's cursor

export function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// Shows elements of one kind, in the place of those that were there; coordinates are of a picture 1000 wide.
export function show(kind, elements) {
  byId(`layer-${kind}`).replaceChildren(...elements);
}

export function fit(width, height) {
  layer.setAttribute("viewBox", `0 0 1000 ${(1000 * height) / width}`);
}

export const scaleOf = () => [1000, Number(layer.getAttribute("viewBox").split(" ")[3])];

const largeText = matchMedia("(max-width: 56rem)"); // as in page.css

// Returns a text with a dark edge, in the middle above a point, within the picture.
export function caption(text, x, y, className) {
  const [width, height] = scaleOf();
  const half = Math.min(text.length * (largeText.matches ? 9 : 5.5), width / 2);
  const place = { x: Math.min(Math.max(x, half), width - half), y: Math.min(Math.max(y, 22), height - 6) };
  return element("text", { ...place, class: className }, text);
}

// Lets a tool have the pointer and the keys, or none.
export function setTool(next) {
  tool?.leave?.();
  tool = next;
  layer.classList.toggle("active", Boolean(tool));
  byId("frame").classList.toggle("tool", Boolean(tool));
  layer.setAttribute("tabindex", tool ? "0" : "-1");
  layer.setAttribute("aria-label", tool?.text ?? "");
  moveCross(null);
  if (!tool) {
    layer.blur();
    return;
  }
  layer.focus({ preventScroll: true });
  byId("frame").scrollIntoView({ block: "nearest" });
}

export const currentTool = () => tool;

function moveCross(next) {
  cross = next;
  const [width, height] = scaleOf();
  const lines = cross ? [
    element("path", { d: `M${cross[0] * width - 14} ${cross[1] * height}h28M${cross[0] * width} ${cross[1] * height - 14}v28` }),
  ] : [];
  show("cross", lines);
}

function place(event) {
  const box = layer.getBoundingClientRect();
  const limit = (number) => Math.min(Math.max(number, 0), 1);
  return [limit((event.clientX - box.left) / box.width), limit((event.clientY - box.top) / box.height)];
}

layer.addEventListener("pointerdown", (event) => {
  if (!tool || event.button) return;
  event.preventDefault();
  layer.focus({ preventScroll: true });
  layer.setPointerCapture(event.pointerId);
  moveCross(null);
  tool.point(...place(event), false);
});
layer.addEventListener("pointermove", (event) => {
  if (!tool) return;
  if (event.buttons & 1) tool.point(...place(event), true);
  else tool.hover?.(...place(event));
});
layer.addEventListener("dblclick", () => tool?.finish?.());
layer.addEventListener("keydown", (event) => {
  if (!tool) return;
  const far = event.shiftKey ? 10 * STEP : STEP;
  const moves = { ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, -far], ArrowDown: [0, far] };
  const actions = {
    " ": () => tool.point(...(cross ?? [0.5, 0.5]), false),
    Enter: () => tool.finish?.(),
    Backspace: () => tool.back?.(),
    Escape: () => tool.cancel?.(),
  };
  if (event.key in moves) {
    const [x, y] = cross ?? [0.5, 0.5], [right, down] = moves[event.key];
    moveCross([Math.min(Math.max(x + right, 0), 1), Math.min(Math.max(y + down, 0), 1)]);
    tool.hover?.(...cross);
  } else if (event.key in actions) actions[event.key]();
  else return;
  event.preventDefault();
  event.stopPropagation();
});
