// Labels as an indexed PNG, like those of the server: each pixel is the number of its class.

export async function encodeLabels(labels, width, height, colours) {
  const rows = new Uint8Array(height * (width + 1)); // each row begins with a 0: no filter
  for (let y = 0; y < height; y++) rows.set(labels.subarray(y * width, (y + 1) * width), y * (width + 1) + 1);
  const palette = new Uint8Array(3 * 256);
  colours.forEach(([red, green, blue], i) => palette.set([red, green, blue], 3 * i));
  const head = new Uint8Array(13);
  const fields = new DataView(head.buffer);
  fields.setUint32(0, width);
  fields.setUint32(4, height);
  head.set([8, 3], 8); // 8 bits, indexed
  const data = await pipeThrough(new CompressionStream("deflate"), rows);
  const signature = new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
  const parts = [chunk("IHDR", head), chunk("PLTE", palette), chunk("IDAT", data), chunk("IEND", new Uint8Array())];
  return new Blob([signature, ...parts], { type: "image/png" });
}

// Compresses or decompresses bytes with a stream.
export async function pipeThrough(stream, bytes) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

function chunk(name, data) {
  const bytes = new Uint8Array(12 + data.length);
  const fields = new DataView(bytes.buffer);
  fields.setUint32(0, data.length);
  bytes.set(new TextEncoder().encode(name), 4);
  bytes.set(data, 8);
  fields.setUint32(8 + data.length, checksum(bytes.subarray(4, 8 + data.length)));
  return bytes;
}

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

function checksum(bytes) {
  let crc = ~0;
  for (const byte of bytes) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}
