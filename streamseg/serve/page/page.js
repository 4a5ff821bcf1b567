// The page: open a picture, a video or the camera, label its frames with an engine, and show them.

import { currentToken, fetchJson } from "./api.js";
import { checkName, downloadFile, pictureFile, plainName } from "./downloads.js";
import { BrowserEngine, ServerEngine, resize } from "./engines.js";
import { fit } from "./layer.js";
import { clearShares, colourLegend, listClasses, markVisible, showShares } from "./legend.js";
import { SettingsLink } from "./link.js";
import { PaintPanel } from "./paintpanel.js";
import { drawMask, drawOverlay, parseColour } from "./picture.js";
import { encodeLabels } from "./png.js";
import { RegionPanel } from "./regionpanel.js";
import { onOpened, openCamera, openFile, openSample, openServed, stopVideo, video } from "./sources.js";
import { byId, showMessage, showProgress } from "./status.js";
import { showThumbnails } from "./thumbnails.js";
import { ZonePanel } from "./zonepanel.js";

const view = byId("view").getContext("2d");
const frameCanvases = [0, 1].map(() => document.createElement("canvas")); // one is shown while the other is labelled

const MEGAPIXEL = 1e6;
const PICTURE_MEGAPIXELS = 0.8, VIDEO_MEGAPIXELS = 0.25; // of the automatic resolution
const NO_CLASS = 255; // label of pixels without a class

let info, engine;
let source = null; // { still, picture or video, width, height, name, blob, sample }
let shown = null; // { canvas, labels } of the frame on the page, if it is labelled
const hiddenClasses = new Set();
let latestRun = 0; // number of the latest labelSource(); earlier ones stop by themselves

const page = {
  info: () => info,
  source: () => source,
  shown: () => shown,
  hiddenClasses: () => hiddenClasses,
  place: chosenPlace,
  changed: () => link.update(),
  redraw: () => { redraw(); showShares(shown.labels); },
  freeze: freezeVideo,
  setVisible,
  showSettings,
  openSample,
  openServed: openWithZones,
};
const zonePanel = new ZonePanel(page), regionPanel = new RegionPanel(page), paintPanel = new PaintPanel(page);
const link = new SettingsLink(page, zonePanel);

const engines = new Map(); // by place, those of the server also by token
let opening = null; // the progress of opening the browser engine: [text, share]

async function loadInfo() {
  info = await fetchJson("info");
  byId("about").textContent = `${info.weights.replace(/\.[^.]*$/, "")} · ${info.classes.length} classes`;
  byId("sample").hidden = !info.samples.length;
  info.classes.forEach((entry, i) => {
    entry.rgb = parseColour(entry.colour);
    entry.drawn = parseColour(info.drawn[i]);
  });
  const names = info.classes.map(({ name }) => name);
  listClasses(info.classes, setVisible);
  zonePanel.listClasses(names);
  paintPanel.listClasses(names);
  for (const id of ["paint-save", "zone-save"]) byId(id).hidden = !info.saves;
  colourLegend(info.classes, byId("opacity").value / 100);
  showThumbnails(info, currentToken(), { openSample: reportErrors(openSample), openSource: reportErrors(openWithZones) });
  zonePanel.content = await fetchJson("zones");
  zonePanel.update();
  await link.apply();
}

// Returns the engine for the chosen place, opened once.
async function getEngine() {
  const place = chosenPlace(), key = place === "server" ? `server ${currentToken()}` : place;
  if (!engines.has(key)) engines.set(key, place === "server" ? new ServerEngine(currentToken()) : openBrowserEngine());
  if (place === "browser" && opening) showProgress(...opening); // an earlier run may have started it
  try {
    return await engines.get(key);
  } catch (error) {
    engines.delete(key);
    throw error;
  }
}

async function openBrowserEngine() {
  const report = (...progress) => {
    opening = progress;
    if (chosenPlace() === "browser") showProgress(...opening);
  };
  try {
    report("The server is exporting the network for this browser: up to a minute, the first time only …");
    const model = await fetchJson("browser");
    model.library = new URL(model.library, location.href).href;
    return await BrowserEngine.open(model, currentToken(), ({ bytes, total }) => {
      if (bytes < total) report(`Downloading the network and onnxruntime-web, ${Math.ceil(total / 1e6)} MB …`, bytes / total);
      else report("Compiling the network for this browser …");
    });
  } finally {
    opening = null;
  }
}

function chosenPlace() {
  return document.querySelector("[name=place]:checked").value;
}

// Sources

// Asks before corrections that are not saved are lost; returns whether to go on.
function mayDiscard() {
  return !paintPanel.edited || confirm("The corrections of this picture are not saved. Discard them?");
}

// The visitor's camera with the network in this browser: no frame leaves the computer.
async function openCameraHere() {
  document.querySelector("[name=place][value=browser]").checked = true;
  await openCamera();
}

async function nextSample() {
  await openSample(info.samples[(info.samples.indexOf(source?.sample) + 1) % info.samples.length]);
}

// A frame of a source that the server reads, with its zones.
async function openWithZones(name) {
  const zones = await fetchJson(`zones?name=${name}`);
  if (!zonePanel.drawn) zonePanel.content = zones;
  await openServed(name);
}

// Makes the frame of a video that is shown a picture.
async function freezeVideo() {
  if (!source) throw new Error("Open a picture or a video first.");
  if (source.still) return;
  const name = video.srcObject ? new Date().toISOString().slice(0, 19) : video.currentTime.toFixed(2);
  const picture = await createImageBitmap(video);
  await showSource({ still: true, picture, width: picture.width, height: picture.height, name: plainName(`${plainName(source.name)}-${name}`) });
}

async function showSource(next) {
  if (next.still) stopVideo();
  source = next;
  regionPanel.reset();
  byId("save-name").value = plainName(source.name);
  byId("drop").hidden = true;
  byId("figure").hidden = byId("facts").hidden = byId("source-buttons").hidden = false;
  const focused = document.activeElement; // moving a button takes its focus away
  byId("source-buttons").append(byId("open"), byId("camera"), byId("sample"));
  byId("panels").hidden = false;
  focused.focus({ preventScroll: true });
  byId("player").hidden = source.still || Boolean(video.srcObject);
  showUnlabelled();
  link.update();
  await labelSource();
}

// Labelling

async function labelSource() {
  if (!source) return;
  const thisRun = ++latestRun;
  paintPanel.reset();
  byId("privacy").textContent = "";
  if (byId("message").classList.contains("error")) showMessage("");
  try {
    const next = await showUnlabelledUntil(getEngine(), thisRun);
    if (thisRun !== latestRun) return;
    engine?.close();
    engine = next;
    await engine.reset();
    if (thisRun !== latestRun) return;
    if (source.still) showProgress("Labelling the picture …");
    else showMessage("");
    byId("where").textContent = engine.description;
    if (engine instanceof BrowserEngine) byId("privacy").textContent = "Nothing leaves this computer.";
    const times = [];
    for (let number = 0; thisRun === latestRun; number++) {
      if (!source.still) await nextFrame();
      if (thisRun !== latestRun) return; // two runs must not wait for the answers of one stream
      const canvas = copyFrame(frameCanvases[number % 2]);
      const start = performance.now();
      const labels = await engine.label(canvas, source.still);
      if (thisRun !== latestRun) return;
      const now = performance.now();
      times.push(now);
      if (times.length > 20) times.shift();
      shown = { canvas, labels };
      redraw();
      showFacts(now - start, times);
      if (source.still) { showMessage(""); return; }
    }
  } catch (error) {
    if (thisRun !== latestRun) return;
    if (error.rejected && await tokenHasChanged()) return labelSource();
    showMessage(error.message, true);
  }
}

// After a rejected stream: asks for the token again if it is no longer valid, and returns whether it has changed.
async function tokenHasChanged() {
  const before = currentToken();
  await fetchJson("info").catch(() => {}); // that the server cannot be reached is reported already
  return currentToken() !== before;
}

// Waits for a promise, and shows a video without labels meanwhile.
async function showUnlabelledUntil(promise, thisRun) {
  let settled = false;
  const settle = () => { settled = true; };
  promise.then(settle, settle);
  await Promise.race([promise, nextFrame()]); // an engine that is open already draws the first frame
  while (!settled && !source.still && thisRun === latestRun) {
    showUnlabelled();
    await nextFrame();
  }
  return promise;
}

function nextFrame() {
  if (!("requestVideoFrameCallback" in video) || video.paused) {
    return new Promise((resolve) => setTimeout(resolve, video.paused ? 100 : 15));
  }
  // a hidden page or a paused video gives no frames
  return Promise.race([
    new Promise((resolve) => video.requestVideoFrameCallback(resolve)),
    new Promise((resolve) => setTimeout(resolve, 250)),
  ]);
}

// Draws the current frame of the source on a canvas, at the chosen resolution.
function copyFrame(canvas) {
  const maxPixels = MEGAPIXEL * (Number(byId("resolution-choice").value) || (source.still ? PICTURE_MEGAPIXELS : VIDEO_MEGAPIXELS));
  const scale = Math.min(1, Math.sqrt(Math.min(maxPixels, info.limits.pixels) / (source.width * source.height)));
  canvas.width = Math.max(1, Math.round(source.width * scale));
  canvas.height = Math.max(1, Math.round(source.height * scale));
  const context = canvas.getContext("2d", { willReadFrequently: true, alpha: false });
  context.imageSmoothingQuality = "high";
  context.drawImage(source.picture ?? source.video, 0, 0, canvas.width, canvas.height);
  return canvas;
}

// Drawing

function resizeView({ width, height }) {
  if (view.canvas.width !== width || view.canvas.height !== height) {
    view.canvas.width = width;
    view.canvas.height = height;
    byId("frame").style.setProperty("--ratio", width / height);
    fit(width, height);
  }
}

// Shows the source without labels.
function showUnlabelled() {
  const canvas = copyFrame(frameCanvases[0]);
  shown = null;
  resizeView(canvas);
  view.drawImage(canvas, 0, 0);
  setLabelled(false);
  byId("class-name").hidden = true;
  for (const fact of ["latency", "rate", "resolution", "where"]) byId(fact).textContent = "–";
  clearShares();
  zonePanel.update();
  regionPanel.update();
}

function setLabelled(labelled) {
  for (const id of ["save-overlay", "save-labels", "paint", "paint-save", "paint-download"]) byId(id).disabled = !labelled;
}

function redraw() {
  if (!shown) return;
  drawMask(shown, info.classes, hiddenClasses);
  resizeView(shown.canvas);
  drawOverlay(view, shown.canvas, byId("split").value / 100, byId("opacity").value / 100);
  setLabelled(true);
  zonePanel.update();
  regionPanel.update();
}

function showFacts(latency, times) {
  const { canvas, labels } = shown;
  const span = times.at(-1) - times[0];
  byId("latency").textContent = latency < 1000 ? `${Math.round(latency)} ms` : `${(latency / 1000).toFixed(1)} s`;
  byId("rate").textContent = span ? `${((1000 * (times.length - 1)) / span).toFixed(1)} fps` : "–";
  byId("resolution").textContent = `${canvas.width} × ${canvas.height}`;
  if (document.activeElement !== byId("time")) byId("time").value = video.currentTime / (video.duration || 1);
  showShares(labels);
}

function setVisible(numbers, visible) {
  for (const i of numbers) {
    if (visible) hiddenClasses.delete(i);
    else hiddenClasses.add(i);
    markVisible(i, visible);
  }
  redraw();
  link.update();
}

// Shows the name of the class under the pointer.
function showClassName(event) {
  if (!shown) return;
  const { canvas, labels } = shown;
  const box = byId("frame").getBoundingClientRect();
  const x = Math.floor(((event.clientX - box.left) / box.width) * canvas.width);
  const y = Math.floor(((event.clientY - box.top) / box.height) * canvas.height);
  const label = labels[y * canvas.width + x] ?? NO_CLASS;
  byId("class-name").hidden = label === NO_CLASS;
  byId("class-name").textContent = info.classes[label]?.name ?? "";
}

// Downloads

// Overlay and labels have the size of the picture; those of a video, the size at which it is labelled.
function outputSize() {
  return source.still ? [source.width, source.height] : [shown.canvas.width, shown.canvas.height];
}

function download(blob, kind) {
  downloadFile(blob, `${source.name.replace(/\.[^.]*$/, "")}-${kind}.png`);
}

function saveOverlay() {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = outputSize();
  const context = canvas.getContext("2d");
  drawOverlay(context, source.picture ?? shown.canvas, 0, byId("opacity").value / 100);
  zonePanel.paint(context);
  canvas.toBlob((blob) => download(blob, "overlay"), "image/png");
}

async function labelFile() {
  const { canvas, labels } = shown;
  const [width, height] = outputSize();
  const full = resize(labels, canvas.width, canvas.height, width, height);
  return encodeLabels(full, width, height, info.classes.map(({ rgb }) => rgb));
}

async function saveLabels() {
  download(await labelFile(), "labels");
  paintPanel.edited = false;
}

// Saves the picture with its labels into the data folder of the server.
async function saveIntoFolder() {
  const body = new FormData();
  body.append("picture", await pictureFile(source));
  body.append("labels", await labelFile());
  body.append("classes", JSON.stringify(info.classes.map(({ name }) => name)));
  const name = checkName(byId("save-name").value.trim());
  const { saved } = await fetchJson(`data/${encodeURIComponent(name)}`, { method: "PUT", body });
  paintPanel.edited = false;
  showMessage(`Saved ${saved.join(" and ")} in the data folder of the server.`);
}

function showSettings() {
  byId("opacity-value").textContent = `${byId("opacity").value} %`;
  byId("frame").style.setProperty("--split", `${byId("split").value}%`);
  colourLegend(info.classes, byId("opacity").value / 100);
  redraw();
}

// Events

// Wraps an event handler: errors are shown on the page.
const reportErrors = (handler) => async (event) => {
  try {
    await handler(event);
  } catch (error) {
    showMessage(error.message, true);
  }
};

// Lets a control label the source anew, which discards corrections: without consent it takes its value back.
const relabel = (control) => {
  let before = control.value;
  control.addEventListener("focus", () => { before = control.value; });
  control.addEventListener("change", () => {
    if (mayDiscard()) {
      link.update();
      return labelSource();
    }
    if (control.type === "radio") document.querySelector(`[name=${control.name}]:not(:checked)`).checked = true;
    else control.value = before;
  });
};

const onClick = (id, handler) => byId(id).addEventListener("click", reportErrors(handler));

onClick("open", () => { if (mayDiscard()) byId("file").click(); });
byId("file").addEventListener("change", reportErrors(async () => {
  const [file] = byId("file").files;
  byId("file").value = "";
  if (file) await openFile(file);
}));
onClick("camera", async () => { if (mayDiscard()) await openCamera(); });
onClick("camera-here", openCameraHere);
onClick("sample", async () => { if (mayDiscard()) await nextSample(); });
for (const id of ["opacity", "split"]) byId(id).addEventListener("input", showSettings);
for (const id of ["opacity", "split", "show-regions"]) byId(id).addEventListener("change", () => link.update());
byId("show-regions").addEventListener("change", () => { regionPanel.reset(); regionPanel.update(); });
for (const control of [byId("resolution-choice"), ...document.querySelectorAll("[name=place]")]) relabel(control);
byId("all").addEventListener("click", () => setVisible(info.classes.keys(), true));
byId("none").addEventListener("click", () => setVisible(info.classes.keys(), false));
onClick("save-overlay", saveOverlay);
for (const id of ["save-labels", "paint-download"]) onClick(id, saveLabels);
onClick("paint", async () => { await (byId("paint").getAttribute("aria-pressed") === "true" ? paintPanel.stop() : paintPanel.start()); });
onClick("paint-save", saveIntoFolder);
onClick("zone-draw", () => zonePanel.toggle());
onClick("zone-open", () => byId("zone-file").click());
byId("zone-file").addEventListener("change", reportErrors(async () => {
  const [file] = byId("zone-file").files;
  byId("zone-file").value = "";
  if (file) await zonePanel.set(await file.text());
}));
onClick("zone-download", () => zonePanel.download());
onClick("zone-save", () => zonePanel.save());
onClick("copy-link", () => link.copy());
addEventListener("hashchange", reportErrors(() => link.apply()));
addEventListener("beforeunload", (event) => { if (paintPanel.edited) event.preventDefault(); });
byId("frame").addEventListener("pointermove", showClassName);
byId("frame").addEventListener("pointerleave", () => { byId("class-name").hidden = true; });
byId("play").addEventListener("click", () => (video.paused ? video.play() : video.pause()));
for (const event of ["play", "pause"]) {
  video.addEventListener(event, () => { byId("play").textContent = video.paused ? "Play" : "Pause"; });
}
byId("time").addEventListener("input", () => { video.currentTime = byId("time").value * video.duration; });
document.addEventListener("keydown", (event) => {
  const control = event.target.closest("button, input, select, a, dialog");
  if (event.key === " " && !control && !byId("player").hidden) {
    event.preventDefault();
    byId("play").click();
  }
});

const stage = document.querySelector(".stage");
for (const event of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(event, (drag) => {
    drag.preventDefault();
    stage.classList.toggle("over", event === "dragover");
  });
}
document.addEventListener("drop", reportErrors(async (event) => {
  const [file] = event.dataTransfer.files;
  if (file && mayDiscard()) await openFile(file);
}));
document.addEventListener("paste", reportErrors(async (event) => {
  const [file] = event.clipboardData.files;
  if (file && mayDiscard()) await openFile(file);
}));

onOpened(showSource);
reportErrors(loadInfo)();
