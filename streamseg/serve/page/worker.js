// The network in onnxruntime-web: on the GPU if there is one and its labels agree with the CPU's, otherwise on the CPU.

let session, library;
let description; // of the network, from the server; see BrowserModel in browser.py
let past = []; // contexts of the earlier frames in the window, oldest first
let before = null; // what the last frame leaves to the next one, if the network keeps labels steady

let last = Promise.resolve(); // the latest request; requests are answered in order

self.onmessage = ({ data }) => {
  last = last.then(() => answer(data));
};

async function answer(data) {
  try {
    if (data.open) self.postMessage({ result: await open(data.open, data.token) });
    else if (data.reset) { forget(); self.postMessage({ result: true }); }
    else {
      const labels = await label(data.pixels, data.height, data.width, data.seconds);
      self.postMessage({ result: labels }, [labels.buffer]);
    }
  } catch (error) {
    self.postMessage({ error: String(error?.message ?? error) });
  }
}

// Opens the network, and returns where it runs, in words.
async function open(given, token) {
  description = given;
  const [network, binary] = await fetchAll(
    { address: description.model, name: "The network", headers: token ? { Authorization: `Bearer ${token}` } : {} },
    { address: `${description.library}/ort-wasm-simd-threaded.wasm`, name: "onnxruntime-web" },
  );
  const threads = self.crossOriginIsolated ? Math.min(8, navigator.hardwareConcurrency) : 1;
  await openSession("ort.wasm.min.mjs", "wasm", network, threads, binary);
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  if (adapter && !adapter.info?.isFallbackAdapter) {
    const cpu = { session, library };
    try {
      const expected = await labelTestPicture();
      await openSession("ort.webgpu.min.mjs", "webgpu", network, 1);
      const found = await labelTestPicture();
      const same = expected.reduce((sum, label, i) => sum + (label === found[i]), 0) / expected.length;
      if (same < 0.995) throw new Error(`Only ${same} of its labels are those of the CPU.`);
      await cpu.session.release();
      return "in this browser, WebGPU";
    } catch (error) {
      console.warn("WebGPU is not used:", error);
      ({ session, library } = cpu);
    }
  }
  return `in this browser, ${threads} thread${threads > 1 ? "s" : ""}`;
}

async function openSession(file, provider, network, threads, binary) {
  library = await import(`${description.library}/${file}`);
  library.env.wasm.numThreads = threads;
  if (binary) library.env.wasm.wasmBinary = binary.buffer;
  library.env.logLevel = "error";
  session = await library.InferenceSession.create(network, { executionProviders: [provider], logSeverityLevel: 3 });
}

// Downloads several files, and reports the progress of all together.
async function fetchAll(...files) {
  const responses = await Promise.all(
    files.map(async ({ address, name, headers }) => {
      const response = await fetch(address, { headers });
      if (!response.ok) throw new Error(`${name} could not be downloaded: the server answered ${response.status}.`);
      return response;
    }),
  );
  const total = responses.reduce((sum, response) => sum + Number(response.headers.get("Content-Length")), 0);
  let bytes = 0;
  const read = async (response) => {
    const parts = [];
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      bytes += value.length;
      if (bytes < total) self.postMessage({ progress: { bytes, total } });
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  };
  const contents = await Promise.all(responses.map(read));
  self.postMessage({ progress: { bytes: total, total } });
  return contents;
}

// Returns the labels of a small picture with many colours and edges.
async function labelTestPicture() {
  const [height, width] = description.size ?? [96, 128];
  const pixels = new Uint8ClampedArray(4 * height * width);
  for (let i = 0; i < height * width; i++) {
    const x = i % width, y = Math.floor(i / width);
    pixels.set([(5 * x) & 255, (7 * y) & 255, ((x >> 4) ^ (y >> 4)) & 1 ? 220 : 30], 4 * i);
  }
  const labels = await label(pixels, height, width, 0);
  forget();
  return labels;
}

// Forgets the earlier frames.
function forget() {
  past = [];
  before = null;
}

// Returns the labels of the next frame of a stream; the inputs and outputs are described in docs/deploy.md.
async function label(pixels, height, width, seconds) {
  const rgb = new Uint8Array(3 * height * width);
  for (let from = 0, to = 0; from < pixels.length; from += 4) {
    rgb[to++] = pixels[from];
    rgb[to++] = pixels[from + 1];
    rgb[to++] = pixels[from + 2];
  }
  const inputs = { frame: new library.Tensor("uint8", rgb, [1, height, width, 3]) };
  description.state.forEach(([keys, channels], stage) => {
    const sum = new Float32Array(keys * channels);
    for (const contexts of past) contexts[stage].forEach((value, i) => { sum[i] += value; });
    inputs[`past${stage + 1}`] = new library.Tensor("float32", sum, [1, keys, channels]);
  });
  if (description.averages && description.state.length) inputs.weight = new library.Tensor("float32", [past.length], [1]);
  const steady = description.steady && timeFrame(seconds);
  if (steady) Object.assign(inputs, steadyInputs(steady));
  const outputs = await session.run(inputs);
  if (steady?.keeps) before = await keep(steady, outputs);
  if (description.state.length) {
    past.push(await Promise.all(description.state.map((_, stage) => outputs[`context${stage + 1}`].getData())));
    past = past.slice(Math.max(0, past.length - (description.window - 1)));
  }
  return new Uint8Array(await outputs.labels.getData());
}

// How the next frame depends on the one before, by the times of both, as for the server's streams (stream/state.py).
function timeFrame(seconds) {
  const { keeps, usual_gap, longest_mirrored, gap_decay } = description.steady;
  if (!before) return { keeps, seconds, longest: 0, share: 0, mirrored: 0 };
  const gap = Math.max(0, seconds - before.seconds); // a clock may go back
  const longest = Math.max(gap, gap_decay * before.longest + (1 - gap_decay) * gap);
  const share = Math.min(1, usual_gap / Math.max(gap, 1e-6));
  return { keeps, seconds, longest, share, mirrored: longest <= longest_mirrored ? 1 - before.mirrored : 0 };
}

function steadyInputs({ share, mirrored }) {
  const inputs = { past_share: new library.Tensor("float32", [share], [1]) };
  for (const [name, shape] of Object.entries(description.steady.inputs)) {
    const [type, Numbers] = name === "past_labels" ? ["uint8", Uint8Array] : ["float32", Float32Array];
    const values = before?.[name] ?? new Numbers(shape.reduce((product, side) => product * side));
    inputs[name] = new library.Tensor(type, values, shape);
  }
  if (description.steady.takes_mirrored) inputs.mirrored = new library.Tensor("float32", [mirrored], [1]);
  return inputs;
}

async function keep({ seconds, longest, mirrored }, outputs) {
  const [past_luma, past_scores, past_labels] = await Promise.all(
    ["luma", "scores", "labels"].map(async (name) => (await outputs[name].getData()).slice()),
  );
  return { seconds, longest, mirrored, past_luma, past_scores, past_labels };
}
