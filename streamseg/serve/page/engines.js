// Two ways to the labels of a frame, alike: begin() forgets all frames before, label(canvas, still) gives bytes.

import { through } from "./png.js";

const LEAST = 65; // pixels a side that a network for any size takes

// The network of the server, over a WebSocket, which keeps the state of the stream.
export class ServerEngine {
  constructor(token) {
    this.protocols = ["streamseg", ...(token ? [`bearer.${token}`] : [])];
    this.where = "on the server";
  }

  async begin() {
    this.end();
    const address = new URL("stream", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    this.line = new Line(address, this.protocols);
    await this.line.opened;
  }

  async label(canvas, still) {
    // a picture without loss, so that labels are the same wherever they are computed; frames of a video quickly
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, still ? "image/png" : "image/jpeg", 0.92));
    const bytes = await blob.arrayBuffer();
    const { line } = this;
    for (;;) {
      line.socket.send(bytes);
      const told = JSON.parse(await line.next());
      if (!told.error) return through(new DecompressionStream("deflate"), await line.next());
      if (told.status !== 503) throw new Error(told.error);
      await new Promise((resolve) => setTimeout(resolve, 1000 * (told.again ?? 1)));
    }
  }

  end() {
    this.line?.socket.close();
  }
}

// A WebSocket whose messages are waited for one by one.
class Line {
  constructor(address, protocols) {
    this.socket = new WebSocket(address, protocols);
    this.socket.binaryType = "arraybuffer";
    this.messages = [];
    this.wake = () => {};
    const put = (message) => { this.messages.push(message); this.wake(); };
    this.socket.onmessage = ({ data }) => put(data);
    this.socket.onclose = () => put(null);
    this.opened = new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onerror = () => {
        const error = new Error("The server cannot be reached, or has no room for another stream.");
        reject(Object.assign(error, { refused: true })); // why, no browser tells
      };
    });
  }

  async next() {
    while (!this.messages.length) await new Promise((resolve) => { this.wake = resolve; });
    if (this.messages[0] === null) throw new Error("The server has closed the stream.");
    return this.messages.shift();
  }
}

// The network in a worker of this page; nothing leaves the computer.
export class BrowserEngine {
  static async open(about, token, progress) {
    const engine = new BrowserEngine(progress);
    engine.size = about.size;
    engine.where = await engine.ask({ open: about, token });
    return engine;
  }

  constructor(progress) {
    this.waiting = []; // who asked, in order; the worker answers in order
    this.worker = new Worker("worker.js", { type: "module" });
    this.worker.onmessage = ({ data }) => {
      if ("progress" in data) progress(data.progress);
      else if ("error" in data) this.waiting.shift().reject(new Error(data.error));
      else this.waiting.shift().resolve(data.done);
    };
    this.worker.onerror = (event) => {
      this.waiting.shift()?.reject(new Error(event.message || "The worker of this page failed."));
    };
  }

  ask(message, moved = []) {
    return new Promise((resolve, reject) => {
      this.waiting.push({ resolve, reject });
      this.worker.postMessage(message, moved);
    });
  }

  async begin() {
    await this.ask({ begin: true });
  }

  async label(canvas) {
    const { width, height } = canvas;
    const [tall, wide] = this.size ?? [Math.max(LEAST, height), Math.max(LEAST, width)];
    const same = tall === height && wide === width;
    const seen = same ? canvas : new OffscreenCanvas(wide, tall);
    const context = seen.getContext("2d", { willReadFrequently: true });
    if (!same) context.drawImage(canvas, 0, 0, wide, tall);
    const { data } = context.getImageData(0, 0, wide, tall);
    const labels = await this.ask({ pixels: data, height: tall, width: wide }, [data.buffer]);
    return same ? labels : resize(labels, wide, tall, width, height);
  }

  end() {}
}

// Labels at another size, each from the pixel that it lies on.
export function resize(labels, width, height, wide, tall) {
  const found = new Uint8Array(wide * tall);
  for (let y = 0; y < tall; y++) {
    const row = Math.floor(((y + 0.5) * height) / tall) * width;
    for (let x = 0; x < wide; x++) found[y * wide + x] = labels[row + Math.floor(((x + 0.5) * width) / wide)];
  }
  return found;
}
