// The page: a picture, a video or the camera comes in, an engine labels its frames, and they are shown.

import { BrowserEngine, ServerEngine, resize } from "./engines.js";
import { encodeLabels } from "./png.js";
import { ask, at, knownToken, say, sayBusy } from "./talk.js";

const view = at("view").getContext("2d");
const video = at("video");
const mask = document.createElement("canvas");
const frames = [0, 1].map(() => document.createElement("canvas")); // one is shown while the other is labelled

const MEGAPIXEL = 1e6;
const STILL = 0.8, MOVING = 0.25; // megapixels, unless told otherwise
const NONE = 255; // the label of pixels of no class

let info, engine;
let source = null; // { still, picture or video, width, height, name }
let shown = null; // { canvas, labels } of the last frame
let hidden = new Set();
let turn = 0; // which run is the present one; others end by themselves
let samples = 0;

const engines = new Map(); // by place, those of the server by token too
let loading = null; // what is told while an engine is opened in the browser

async function open() {
  info = await ask("info");
  at("about").textContent = `${info.weights.replace(/\.[^.]*$/, "")} · ${info.classes.length} classes`;
  at("sample").hidden = !info.samples.length;
  for (const entry of info.classes) {
    entry.rgb = [1, 3, 5].map((i) => parseInt(entry.colour.slice(i, i + 2), 16));
  }
  listClasses();
}

// An engine for the place that is chosen, opened once.
async function pickEngine() {
  const place = chosenPlace(), key = place === "server" ? `server ${knownToken()}` : place;
  if (!engines.has(key)) engines.set(key, place === "server" ? new ServerEngine(knownToken()) : openInBrowser());
  if (place === "browser" && loading) sayBusy(...loading); // which another run may have begun
  try {
    return await engines.get(key);
  } catch (error) {
    engines.delete(key);
    throw error;
  }
}

async function openInBrowser() {
  const tell = (...words) => {
    loading = words;
    if (chosenPlace() === "browser") sayBusy(...loading);
  };
  try {
    tell("The server gets the network ready for this browser, which takes up to a minute the first time …");
    const about = await ask("browser");
    about.library = new URL(about.library, location.href).href;
    return await BrowserEngine.open(about, knownToken(), ({ bytes, total }) => {
      if (bytes < total) tell(`Loading the network and its library, ${Math.ceil(total / 1e6)} MB …`, bytes / total);
      else tell("Compiling the network for this browser …");
    });
  } finally {
    loading = null;
  }
}

function chosenPlace() {
  return document.querySelector("[name=place]:checked").value;
}

// Sources

async function take(file) {
  if (file.type.startsWith("video/")) return takeVideo(URL.createObjectURL(file), file.name);
  try {
    await takePicture(file, file.name);
  } catch {
    // what the browser takes for no picture may be a video without a type
    await takeVideo(URL.createObjectURL(file), file.name);
  }
}

async function takePicture(blob, name) {
  const picture = await createImageBitmap(blob, { imageOrientation: "from-image" });
  await begin({ still: true, picture, width: picture.width, height: picture.height, name });
}

async function takeVideo(address, name) {
  await play(() => { video.src = address; }, name);
}

async function takeCamera() {
  if (!navigator.mediaDevices) throw new Error("Browsers lend the camera to https:// and localhost pages alone.");
  const wanted = { video: { facingMode: "environment", width: { ideal: 1280 } } };
  const stream = await navigator.mediaDevices.getUserMedia(wanted).catch((error) => {
    throw new Error(`There is no camera for this page (${error.message || error.name}).`);
  });
  await play(() => { video.srcObject = stream; }, "camera");
}

async function takeSample() {
  const name = info.samples[samples++ % info.samples.length];
  await takePicture(await (await fetch(`samples/${name}`)).blob(), name);
}

function stopVideo() {
  video.pause();
  video.srcObject?.getTracks().forEach((track) => track.stop());
  if (video.src) URL.revokeObjectURL(video.src);
  video.srcObject = null;
  video.removeAttribute("src");
}

async function play(load, name) {
  stopVideo();
  load();
  await new Promise((resolve, reject) => {
    video.onloadeddata = resolve;
    video.onerror = () => reject(new Error(`${name} is nothing that this browser can show: try a JPEG, PNG or MP4.`));
  });
  await video.play();
  await begin({ still: false, video, width: video.videoWidth, height: video.videoHeight, name });
}

async function begin(next) {
  if (next.still) stopVideo();
  source = next;
  at("drop").hidden = true;
  at("figure").hidden = at("facts").hidden = at("again").hidden = false;
  const focused = document.activeElement; // which a move takes the focus from
  at("again").append(at("open"), at("camera"), at("sample"));
  focused.focus({ preventScroll: true });
  at("player").hidden = source.still || Boolean(video.srcObject);
  showPlain();
  await run();
}

// From frames to labels

async function run() {
  if (!source) return;
  const mine = ++turn;
  at("privacy").textContent = "";
  if (at("message").classList.contains("bad")) say("");
  try {
    const next = await playUntil(pickEngine(), mine);
    if (mine !== turn) return;
    engine?.end();
    engine = next;
    await engine.begin();
    if (mine !== turn) return;
    if (source.still) sayBusy("Labelling the picture …");
    else say("");
    at("where").textContent = engine.where;
    if (engine instanceof BrowserEngine) at("privacy").textContent = "Nothing leaves this computer.";
    const times = [];
    for (let number = 0; mine === turn; number++) {
      if (!source.still) await nextFrame();
      const canvas = grab(frames[number % 2]);
      const start = performance.now();
      const labels = await engine.label(canvas, source.still);
      if (mine !== turn) return;
      const now = performance.now();
      times.push(now);
      if (times.length > 20) times.shift();
      shown = { canvas, labels };
      paint();
      tell(now - start, times);
      if (source.still) { say(""); return; }
    }
  } catch (error) {
    if (mine !== turn) return;
    if (error.refused && await tokenHasChanged()) return run();
    say(error.message, true);
  }
}

// Whether the server, which refused a stream, did so for a token that is right no longer; it is asked for, then.
async function tokenHasChanged() {
  const before = knownToken();
  await ask("info").catch(() => {}); // a server that is away has been told of
  return knownToken() !== before;
}

// What comes of waiting; a video is shown as it is meanwhile.
async function playUntil(waiting, mine) {
  let over = false;
  const end = () => { over = true; };
  waiting.then(end, end);
  await Promise.race([waiting, nextFrame()]); // an engine that is there shows its own frames
  while (!over && !source.still && mine === turn) {
    showPlain();
    await nextFrame();
  }
  return waiting;
}

function nextFrame() {
  if (!("requestVideoFrameCallback" in video) || video.paused) {
    return new Promise((resolve) => setTimeout(resolve, video.paused ? 100 : 15));
  }
  // a hidden page or a pause gives no frames
  return Promise.race([
    new Promise((resolve) => video.requestVideoFrameCallback(resolve)),
    new Promise((resolve) => setTimeout(resolve, 250)),
  ]);
}

function grab(canvas) {
  const most = MEGAPIXEL * (Number(at("detail").value) || (source.still ? STILL : MOVING));
  const scale = Math.min(1, Math.sqrt(Math.min(most, info.limits.pixels) / (source.width * source.height)));
  canvas.width = Math.max(1, Math.round(source.width * scale));
  canvas.height = Math.max(1, Math.round(source.height * scale));
  const context = canvas.getContext("2d", { willReadFrequently: true, alpha: false });
  context.imageSmoothingQuality = "high";
  context.drawImage(source.picture ?? source.video, 0, 0, canvas.width, canvas.height);
  return canvas;
}

// What is seen

function paintMask() {
  const { canvas, labels } = shown;
  mask.width = canvas.width;
  mask.height = canvas.height;
  const context = mask.getContext("2d");
  const pixels = context.createImageData(mask.width, mask.height);
  const colours = new Uint32Array(256); // no class has none
  const bytes = new Uint8Array(colours.buffer);
  info.classes.forEach(({ rgb }, i) => { if (!hidden.has(i)) bytes.set([...rgb, 255], 4 * i); });
  const words = new Uint32Array(pixels.data.buffer);
  for (let i = 0; i < words.length; i++) words[i] = colours[labels[i]];
  context.putImageData(pixels, 0, 0);
}

function fitView({ width, height }) {
  if (view.canvas.width !== width || view.canvas.height !== height) {
    view.canvas.width = width;
    view.canvas.height = height;
    at("frame").style.setProperty("--ratio", width / height);
  }
}

// The source as it is, while it has no labels.
function showPlain() {
  const canvas = grab(frames[0]);
  shown = null;
  fitView(canvas);
  view.drawImage(canvas, 0, 0);
  at("save-overlay").disabled = at("save-labels").disabled = true;
  at("under").hidden = true;
  for (const fact of ["latency", "rate", "seen", "where"]) at(fact).textContent = "–";
  for (const entry of document.querySelectorAll("#classes li")) {
    entry.classList.add("absent");
    entry.querySelector(".share").textContent = "";
  }
}

function paint() {
  if (!shown) return;
  paintMask();
  fitView(shown.canvas);
  draw(view, shown.canvas, at("split").value / 100);
  at("save-overlay").disabled = at("save-labels").disabled = false;
}

// A picture under its colours, but for a share at its left.
function draw(context, picture, plain) {
  const { width, height } = context.canvas;
  const from = Math.round(plain * width);
  context.drawImage(picture, 0, 0, width, height);
  context.save();
  context.beginPath();
  context.rect(from, 0, width - from, height);
  context.clip();
  context.globalAlpha = at("opacity").value / 100;
  context.imageSmoothingEnabled = false;
  context.drawImage(mask, 0, 0, width, height);
  context.restore();
}

function tell(taken, times) {
  const { canvas, labels } = shown;
  const span = times.at(-1) - times[0];
  at("latency").textContent = taken < 1000 ? `${Math.round(taken)} ms` : `${(taken / 1000).toFixed(1)} s`;
  at("rate").textContent = span ? `${((1000 * (times.length - 1)) / span).toFixed(1)} fps` : "–";
  at("seen").textContent = `${canvas.width} × ${canvas.height}`;
  if (document.activeElement !== at("time")) at("time").value = video.currentTime / (video.duration || 1);
  const counts = new Uint32Array(256);
  for (const label of labels) counts[label]++;
  document.querySelectorAll("#classes li").forEach((entry, i) => {
    const share = (100 * counts[i]) / labels.length;
    entry.classList.toggle("absent", counts[i] === 0);
    entry.querySelector(".share").textContent = counts[i] ? `${share < 0.1 ? "<0.1" : share.toFixed(1)} %` : "";
  });
}

function listClasses() {
  at("classes").classList.toggle("many", info.classes.length > 24);
  at("classes").replaceChildren(
    ...info.classes.map(({ name, colour }, i) => {
      const entry = document.createElement("li");
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.checked = true;
      box.style.setProperty("--colour", colour);
      box.addEventListener("change", () => { toggle([i], box.checked); });
      const words = document.createElement("span");
      words.textContent = name;
      const share = document.createElement("span");
      share.className = "share";
      label.append(box, words, share);
      entry.append(label);
      entry.classList.add("absent");
      return entry;
    }),
  );
}

function toggle(numbers, on) {
  const entries = document.querySelectorAll("#classes li");
  for (const i of numbers) {
    if (on) hidden.delete(i);
    else hidden.add(i);
    entries[i].classList.toggle("off", !on);
    entries[i].querySelector("input").checked = on;
  }
  paint();
}

function nameUnder(event) {
  const told = at("under");
  if (!shown) return;
  const { canvas, labels } = shown;
  const box = at("frame").getBoundingClientRect();
  const x = Math.floor(((event.clientX - box.left) / box.width) * canvas.width);
  const y = Math.floor(((event.clientY - box.top) / box.height) * canvas.height);
  const label = labels[y * canvas.width + x] ?? NONE;
  told.hidden = label === NONE;
  told.textContent = info.classes[label]?.name ?? "";
}

// Files

// Overlay and labels have the size of the picture itself; of a video, the size that it is seen at.
function fullSize() {
  return source.still ? [source.width, source.height] : [shown.canvas.width, shown.canvas.height];
}

function save(blob, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${source.name.replace(/\.[^.]*$/, "")}-${kind}.png`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function saveOverlay() {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = fullSize();
  draw(canvas.getContext("2d"), source.picture ?? shown.canvas, 0);
  canvas.toBlob((blob) => save(blob, "overlay"), "image/png");
}

async function saveLabels() {
  const { canvas, labels } = shown;
  const [width, height] = fullSize();
  const full = resize(labels, canvas.width, canvas.height, width, height);
  save(await encodeLabels(full, width, height, info.classes.map(({ rgb }) => rgb)), "labels");
}

// What people do

// Runs something of theirs; what goes wrong is told in a sentence.
const guard = (work) => async (event) => {
  try {
    await work(event);
  } catch (error) {
    say(error.message, true);
  }
};

at("open").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", guard(async () => {
  const [file] = at("file").files;
  at("file").value = "";
  if (file) await take(file);
}));
at("camera").addEventListener("click", guard(takeCamera));
at("sample").addEventListener("click", guard(takeSample));
at("opacity").addEventListener("input", () => {
  at("opacity-told").textContent = `${at("opacity").value} %`;
  paint();
});
at("split").addEventListener("input", () => {
  at("frame").style.setProperty("--split", `${at("split").value}%`);
  paint();
});
at("detail").addEventListener("change", run);
document.querySelectorAll("[name=place]").forEach((choice) => choice.addEventListener("change", run));
at("all").addEventListener("click", () => toggle(info.classes.keys(), true));
at("none").addEventListener("click", () => toggle(info.classes.keys(), false));
at("save-overlay").addEventListener("click", saveOverlay);
at("save-labels").addEventListener("click", guard(saveLabels));
at("frame").addEventListener("pointermove", nameUnder);
at("frame").addEventListener("pointerleave", () => { at("under").hidden = true; });
at("play").addEventListener("click", () => (video.paused ? video.play() : video.pause()));
for (const event of ["play", "pause"]) {
  video.addEventListener(event, () => { at("play").textContent = video.paused ? "Play" : "Pause"; });
}
at("time").addEventListener("input", () => { video.currentTime = at("time").value * video.duration; });
document.addEventListener("keydown", (event) => {
  const busy = event.target.closest("button, input, select, a, dialog");
  if (event.key === " " && !busy && !at("player").hidden) {
    event.preventDefault();
    at("play").click();
  }
});

const stage = document.querySelector(".stage");
for (const event of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(event, (move) => {
    move.preventDefault();
    stage.classList.toggle("over", event === "dragover");
  });
}
document.addEventListener("drop", guard(async (event) => {
  const [file] = event.dataTransfer.files;
  if (file) await take(file);
}));
document.addEventListener("paste", guard(async (event) => {
  const [file] = event.clipboardData.files;
  if (file) await take(file);
}));

guard(open)();
