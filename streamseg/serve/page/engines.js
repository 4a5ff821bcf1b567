// The two engines: on the server and in the browser. reset() forgets earlier frames; label(canvas, still) returns the
// labels, one byte per pixel; close() ends the engine's connection.

import { pipeThrough } from "./png.js";

// The network on the server, through a WebSocket; the server keeps the state of the stream.
export class ServerEngine {
  constructor(token) {
    this.protocols = ["streamseg", ...(token ? [`bearer.${token}`] : [])];
    this.description = "on the server";
  }

  async reset() {
    this.close();
    const address = new URL("stream", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    this.socket = new MessageSocket(address, this.protocols);
    await this.socket.opened;
  }

  async label(canvas, still) {
    const { socket } = this; // not a later one: after a reset its answers are for other frames
    // pictures lossless, so that both engines get the same pixels; frames of a video small
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, still ? "image/png" : "image/jpeg", 0.92));
    const bytes = await blob.arrayBuffer();
    for (;;) {
      socket.send(bytes);
      const answer = JSON.parse(await socket.nextMessage());
      if (!answer.error) return pipeThrough(new DecompressionStream("deflate"), await socket.nextMessage());
      if (answer.status !== 503) throw new Error(answer.error);
      await new Promise((resolve) => setTimeout(resolve, 1000 * (answer.again ?? 1)));
    }
  }

  close() {
    this.socket?.close();
  }
}

// A WebSocket whose messages are awaited one by one.
class MessageSocket {
  constructor(address, protocols) {
    this.socket = new WebSocket(address, protocols);
    this.socket.binaryType = "arraybuffer";
    this.messages = [];
    this.wake = () => {};
    const add = (message) => { this.messages.push(message); this.wake(); };
    this.socket.onmessage = ({ data }) => add(data);
    this.socket.onclose = () => add(null);
    this.opened = new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onerror = () => {
        const error = new Error("Cannot connect to the server, or too many streams are open.");
        reject(Object.assign(error, { rejected: true })); // browsers do not say why
      };
    });
  }

  send(message) {
    this.socket.send(message);
  }

  close() {
    this.socket.close();
  }

  async nextMessage() {
    while (!this.messages.length) await new Promise((resolve) => { this.wake = resolve; });
    if (this.messages[0] === null) throw new Error("The server has closed the stream.");
    return this.messages.shift();
  }
}

// The network in a web worker of this page; no frame leaves the computer.
export class BrowserEngine {
  static async open(model, token, onProgress) {
    const engine = new BrowserEngine(onProgress);
    engine.size = model.size;
    engine.minSide = model.min_side; // smallest input, in pixels per side, of a network for any size
    engine.description = await engine.request({ open: model, token });
    return engine;
  }

  constructor(onProgress) {
    this.pending = []; // requests; the worker answers them in order
    this.worker = new Worker("worker.js", { type: "module" });
    this.worker.onmessage = ({ data }) => {
      if ("progress" in data) onProgress(data.progress);
      else if ("error" in data) this.pending.shift().reject(new Error(data.error));
      else this.pending.shift().resolve(data.result);
    };
    this.worker.onerror = (event) => {
      this.pending.shift()?.reject(new Error(event.message || "The web worker of this page failed."));
    };
  }

  request(message, transfer = []) {
    return new Promise((resolve, reject) => {
      this.pending.push({ resolve, reject });
      this.worker.postMessage(message, transfer);
    });
  }

  async reset() {
    await this.request({ reset: true });
  }

  async label(canvas, still, seconds = performance.now() / 1000) {
    const { width, height } = canvas;
    const [inputHeight, inputWidth] = this.size ?? [height, width].map((side) => Math.max(this.minSide, side));
    const same = inputHeight === height && inputWidth === width;
    const input = same ? canvas : new OffscreenCanvas(inputWidth, inputHeight);
    const context = input.getContext("2d", { willReadFrequently: true });
    if (!same) context.drawImage(canvas, 0, 0, inputWidth, inputHeight);
    const { data } = context.getImageData(0, 0, inputWidth, inputHeight);
    const labels = await this.request({ pixels: data, height: inputHeight, width: inputWidth, seconds }, [data.buffer]);
    return same ? labels : resize(labels, inputWidth, inputHeight, width, height);
  }

  close() {}
}

// Resizes labels, each new pixel from the nearest old one.
export function resize(labels, width, height, newWidth, newHeight) {
  const resized = new Uint8Array(newWidth * newHeight);
  for (let y = 0; y < newHeight; y++) {
    const row = Math.floor(((y + 0.5) * height) / newHeight) * width;
    for (let x = 0; x < newWidth; x++) {
      resized[y * newWidth + x] = labels[row + Math.floor(((x + 0.5) * width) / newWidth)];
    }
  }
  return resized;
}
