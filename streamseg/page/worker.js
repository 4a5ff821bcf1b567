// The network by onnxruntime-web: on the GPU where there is one and it gives the CPU's labels, or else on the CPU.

let session, library, about;
let past = []; // the contexts of the frames in the window before the next one, oldest first

let last = Promise.resolve(); // one after the other, in order

self.onmessage = ({ data }) => {
  last = last.then(() => answer(data));
};

async function answer(data) {
  try {
    if (data.open) self.postMessage({ done: await open(data.open, data.token) });
    else if (data.begin) { past = []; self.postMessage({ done: true }); }
    else {
      const labels = await label(data.pixels, data.height, data.width);
      self.postMessage({ done: labels }, [labels.buffer]);
    }
  } catch (error) {
    self.postMessage({ error: String(error?.message ?? error) });
  }
}

async function open(given, token) {
  about = given;
  const model = await fetchModel(token);
  const threads = self.crossOriginIsolated ? Math.min(8, navigator.hardwareConcurrency) : 1;
  await use("ort.wasm.min.mjs", "wasm", model, threads);
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  if (adapter && !adapter.info?.isFallbackAdapter) {
    const cpu = { session, library };
    try {
      const expected = await tryOut();
      await use("ort.webgpu.min.mjs", "webgpu", model, 1);
      const found = await tryOut();
      const same = expected.reduce((sum, label, i) => sum + (label === found[i]), 0) / expected.length;
      if (same < 0.995) throw new Error(`Only ${same} of the labels are the same.`);
      await cpu.session.release();
      return "in this browser, WebGPU";
    } catch (error) {
      console.warn("WebGPU is not used:", error);
      ({ session, library } = cpu);
    }
  }
  return `in this browser, ${threads} thread${threads > 1 ? "s" : ""}`;
}

async function use(file, provider, model, threads) {
  library = await import(`${about.library}/${file}`);
  library.env.wasm.numThreads = threads;
  library.env.logLevel = "error";
  session = await library.InferenceSession.create(model, { executionProviders: [provider], logSeverityLevel: 3 });
}

async function fetchModel(token) {
  const answer = await fetch(about.model, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  if (!answer.ok) throw new Error(`The network could not be fetched: the server answered ${answer.status}.`);
  const total = Number(answer.headers.get("Content-Length"));
  const parts = [];
  let length = 0;
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    length += value.length;
    self.postMessage({ progress: length / total });
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

// The labels of a small picture of all kinds of colours and edges.
async function tryOut() {
  const [height, width] = about.size ?? [96, 128];
  const pixels = new Uint8ClampedArray(4 * height * width);
  for (let i = 0; i < height * width; i++) {
    const x = i % width, y = Math.floor(i / width);
    pixels.set([(5 * x) & 255, (7 * y) & 255, ((x >> 4) ^ (y >> 4)) & 1 ? 220 : 30], 4 * i);
  }
  const labels = await label(pixels, height, width);
  past = [];
  return labels;
}

// Labels of the next frame, with what the frames before it left; see docs/deploy.md.
async function label(pixels, height, width) {
  const rgb = new Uint8Array(3 * height * width);
  for (let from = 0, to = 0; from < pixels.length; from += 4) {
    rgb[to++] = pixels[from];
    rgb[to++] = pixels[from + 1];
    rgb[to++] = pixels[from + 2];
  }
  const given = { frame: new library.Tensor("uint8", rgb, [1, height, width, 3]) };
  about.state.forEach(([keys, channels], stage) => {
    const sum = new Float32Array(keys * channels);
    for (const contexts of past) contexts[stage].forEach((value, i) => { sum[i] += value; });
    given[`past${stage + 1}`] = new library.Tensor("float32", sum, [1, keys, channels]);
  });
  if (about.averages && about.state.length) given.weight = new library.Tensor("float32", [past.length], [1]);
  const found = await session.run(given);
  if (about.state.length) {
    past.push(await Promise.all(about.state.map((_, stage) => found[`context${stage + 1}`].getData())));
    past = past.slice(Math.max(0, past.length - (about.window - 1)));
  }
  return new Uint8Array(await found.labels.getData());
}
