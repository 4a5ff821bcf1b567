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
  const [model, binary] = await fetchAll(
    { address: about.model, what: "The network", headers: token ? { Authorization: `Bearer ${token}` } : {} },
    { address: `${about.library}/ort-wasm-simd-threaded.wasm`, what: "The library" },
  );
  const threads = self.crossOriginIsolated ? Math.min(8, navigator.hardwareConcurrency) : 1;
  await use("ort.wasm.min.mjs", "wasm", model, threads, binary);
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

async function use(file, provider, model, threads, binary) {
  library = await import(`${about.library}/${file}`);
  library.env.wasm.numThreads = threads;
  if (binary) library.env.wasm.wasmBinary = binary.buffer;
  library.env.logLevel = "error";
  session = await library.InferenceSession.create(model, { executionProviders: [provider], logSeverityLevel: 3 });
}

// The bytes of several files; how many of all are there is told as they come.
async function fetchAll(...files) {
  const answers = await Promise.all(
    files.map(async ({ address, what, headers }) => {
      const answer = await fetch(address, { headers });
      if (!answer.ok) throw new Error(`${what} could not be fetched: the server answered ${answer.status}.`);
      return answer;
    }),
  );
  const total = answers.reduce((sum, answer) => sum + Number(answer.headers.get("Content-Length")), 0);
  let bytes = 0;
  const read = async (answer) => {
    const parts = [];
    const reader = answer.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      bytes += value.length;
      if (bytes < total) self.postMessage({ progress: { bytes, total } });
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  };
  const found = await Promise.all(answers.map(read));
  self.postMessage({ progress: { bytes: total, total } });
  return found;
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
