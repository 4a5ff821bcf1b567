// The page: open a picture, a video or the camera, label its frames with an engine, and show them.

import { currentToken, fetchJson } from "./api.js";
import { BrowserEngine, ServerEngine, resize } from "./engines.js";
import { encodeLabels } from "./png.js";
import { byId, showMessage, showProgress } from "./status.js";

const view = byId("view").getContext("2d");
const video = byId("video");
const maskCanvas = document.createElement("canvas");
const frameCanvases = [0, 1].map(() => document.createElement("canvas")); // one is shown while the other is labelled

const MEGAPIXEL = 1e6;
const PICTURE_MEGAPIXELS = 0.8, VIDEO_MEGAPIXELS = 0.25; // of the automatic resolution
const NO_CLASS = 255; // label of pixels without a class
const MID_GREY = 128; // what the colours of the legend are blended with

let info, engine;
let source = null; // { still, picture or video, width, height, name }
let shown = null; // { canvas, labels } of the frame on the page, if it is labelled
const hiddenClasses = new Set();
let latestRun = 0; // number of the latest labelSource(); earlier ones stop by themselves
let samplesShown = 0;

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
  listClasses();
  colourLegend();
}

function parseColour(code) {
  return [1, 3, 5].map((i) => parseInt(code.slice(i, i + 2), 16));
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

async function openFile(file) {
  if (file.type.startsWith("video/")) return openVideo(URL.createObjectURL(file), file.name);
  try {
    await openPicture(file, file.name);
  } catch {
    // not a picture: it may be a video without a media type
    await openVideo(URL.createObjectURL(file), file.name);
  }
}

async function openPicture(blob, name) {
  const picture = await createImageBitmap(blob, { imageOrientation: "from-image" });
  await showSource({ still: true, picture, width: picture.width, height: picture.height, name });
}

async function openVideo(address, name) {
  await playVideo(() => { video.src = address; }, name);
}

async function openCamera() {
  if (!navigator.mediaDevices) throw new Error("Browsers allow the camera only on https:// and localhost pages.");
  const constraints = { video: { facingMode: "environment", width: { ideal: 1280 } } };
  const stream = await navigator.mediaDevices.getUserMedia(constraints).catch((error) => {
    throw new Error(`The camera could not be opened (${error.message || error.name}).`);
  });
  await playVideo(() => { video.srcObject = stream; }, "camera");
}

async function openSample() {
  const name = info.samples[samplesShown++ % info.samples.length];
  await openPicture(await (await fetch(`samples/${name}`)).blob(), name);
}

function stopVideo() {
  video.pause();
  video.srcObject?.getTracks().forEach((track) => track.stop());
  if (video.src) URL.revokeObjectURL(video.src);
  video.srcObject = null;
  video.removeAttribute("src");
}

async function playVideo(load, name) {
  stopVideo();
  load();
  await new Promise((resolve, reject) => {
    video.onloadeddata = resolve;
    video.onerror = () => reject(new Error(`This browser cannot open ${name}: try a JPEG, PNG or MP4.`));
  });
  await video.play();
  await showSource({ still: false, video, width: video.videoWidth, height: video.videoHeight, name });
}

async function showSource(next) {
  if (next.still) stopVideo();
  source = next;
  byId("drop").hidden = true;
  byId("figure").hidden = byId("facts").hidden = byId("source-buttons").hidden = false;
  const focused = document.activeElement; // moving a button takes its focus away
  byId("source-buttons").append(byId("open"), byId("camera"), byId("sample"));
  focused.focus({ preventScroll: true });
  byId("player").hidden = source.still || Boolean(video.srcObject);
  showUnlabelled();
  await labelSource();
}

// Labelling

async function labelSource() {
  if (!source) return;
  const thisRun = ++latestRun;
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

function drawMask() {
  const { canvas, labels } = shown;
  maskCanvas.width = canvas.width;
  maskCanvas.height = canvas.height;
  const context = maskCanvas.getContext("2d");
  const pixels = context.createImageData(maskCanvas.width, maskCanvas.height);
  const colours = new Uint32Array(256); // transparent for hidden classes and NO_CLASS
  const bytes = new Uint8Array(colours.buffer);
  info.classes.forEach(({ drawn }, i) => { if (!hiddenClasses.has(i)) bytes.set([...drawn, 255], 4 * i); });
  const words = new Uint32Array(pixels.data.buffer);
  for (let i = 0; i < words.length; i++) words[i] = colours[labels[i]];
  drawBorders(words, labels, canvas.width);
  context.putImageData(pixels, 0, 0);
}

// Draws a line of one pixel between the classes where streamseg.overlay does: hidden classes count as one.
function drawBorders(words, labels, width) {
  const visible = (i) => (words[i] ? labels[i] : NO_CLASS);
  for (let i = 0; i < words.length; i++) {
    const right = (i + 1) % width ? i + 1 : i, below = i + width < words.length ? i + width : i;
    if (visible(i) !== visible(right) || visible(i) !== visible(below)) words[i] = 0xffffffff;
  }
}

function resizeView({ width, height }) {
  if (view.canvas.width !== width || view.canvas.height !== height) {
    view.canvas.width = width;
    view.canvas.height = height;
    byId("frame").style.setProperty("--ratio", width / height);
  }
}

// Shows the source without labels.
function showUnlabelled() {
  const canvas = copyFrame(frameCanvases[0]);
  shown = null;
  resizeView(canvas);
  view.drawImage(canvas, 0, 0);
  byId("save-overlay").disabled = byId("save-labels").disabled = true;
  byId("class-name").hidden = true;
  for (const fact of ["latency", "rate", "resolution", "where"]) byId(fact).textContent = "–";
  for (const entry of document.querySelectorAll("#classes li")) {
    entry.classList.add("absent");
    entry.querySelector(".share").textContent = "";
  }
}

function redraw() {
  if (!shown) return;
  drawMask();
  resizeView(shown.canvas);
  drawOverlay(view, shown.canvas, byId("split").value / 100);
  byId("save-overlay").disabled = byId("save-labels").disabled = false;
}

// Draws a picture with its classes in colour, except for a share of its width at the left.
function drawOverlay(context, picture, share) {
  const { width, height } = context.canvas;
  const from = Math.round(share * width);
  context.drawImage(picture, 0, 0, width, height);
  context.save();
  context.beginPath();
  context.rect(from, 0, width - from, height);
  context.clip();
  context.globalAlpha = byId("opacity").value / 100;
  context.imageSmoothingEnabled = false;
  context.drawImage(maskCanvas, 0, 0, width, height);
  context.restore();
}

function showFacts(latency, times) {
  const { canvas, labels } = shown;
  const span = times.at(-1) - times[0];
  byId("latency").textContent = latency < 1000 ? `${Math.round(latency)} ms` : `${(latency / 1000).toFixed(1)} s`;
  byId("rate").textContent = span ? `${((1000 * (times.length - 1)) / span).toFixed(1)} fps` : "–";
  byId("resolution").textContent = `${canvas.width} × ${canvas.height}`;
  if (document.activeElement !== byId("time")) byId("time").value = video.currentTime / (video.duration || 1);
  const counts = new Uint32Array(256);
  for (const label of labels) counts[label]++;
  document.querySelectorAll("#classes li").forEach((entry, i) => {
    const share = (100 * counts[i]) / labels.length;
    entry.classList.toggle("absent", counts[i] === 0);
    entry.querySelector(".share").textContent = counts[i] ? `${share < 0.1 ? "<0.1" : share.toFixed(1)} %` : "";
  });
}

function listClasses() {
  byId("classes").classList.toggle("many", info.classes.length > 24);
  byId("classes").replaceChildren(
    ...info.classes.map(({ name }, i) => {
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
function colourLegend() {
  const opacity = byId("opacity").value / 100;
  document.querySelectorAll("#classes input").forEach((box, i) => {
    const blended = info.classes[i].drawn.map((part) => Math.round(opacity * part + (1 - opacity) * MID_GREY));
    box.style.setProperty("--colour", `rgb(${blended.join(" ")})`);
  });
}

function setVisible(numbers, visible) {
  const entries = document.querySelectorAll("#classes li");
  for (const i of numbers) {
    if (visible) hiddenClasses.delete(i);
    else hiddenClasses.add(i);
    entries[i].classList.toggle("off", !visible);
    entries[i].querySelector("input").checked = visible;
  }
  redraw();
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
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${source.name.replace(/\.[^.]*$/, "")}-${kind}.png`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function saveOverlay() {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = outputSize();
  drawOverlay(canvas.getContext("2d"), source.picture ?? shown.canvas, 0);
  canvas.toBlob((blob) => download(blob, "overlay"), "image/png");
}

async function saveLabels() {
  const { canvas, labels } = shown;
  const [width, height] = outputSize();
  const full = resize(labels, canvas.width, canvas.height, width, height);
  download(await encodeLabels(full, width, height, info.classes.map(({ rgb }) => rgb)), "labels");
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

byId("open").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", reportErrors(async () => {
  const [file] = byId("file").files;
  byId("file").value = "";
  if (file) await openFile(file);
}));
byId("camera").addEventListener("click", reportErrors(openCamera));
byId("sample").addEventListener("click", reportErrors(openSample));
byId("opacity").addEventListener("input", () => {
  byId("opacity-value").textContent = `${byId("opacity").value} %`;
  colourLegend();
  redraw();
});
byId("split").addEventListener("input", () => {
  byId("frame").style.setProperty("--split", `${byId("split").value}%`);
  redraw();
});
byId("resolution-choice").addEventListener("change", labelSource);
document.querySelectorAll("[name=place]").forEach((choice) => choice.addEventListener("change", labelSource));
byId("all").addEventListener("click", () => setVisible(info.classes.keys(), true));
byId("none").addEventListener("click", () => setVisible(info.classes.keys(), false));
byId("save-overlay").addEventListener("click", saveOverlay);
byId("save-labels").addEventListener("click", reportErrors(saveLabels));
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
  if (file) await openFile(file);
}));
document.addEventListener("paste", reportErrors(async (event) => {
  const [file] = event.clipboardData.files;
  if (file) await openFile(file);
}));

reportErrors(loadInfo)();
