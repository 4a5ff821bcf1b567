// Label a picture by a server of streamseg, with nothing but Node 18 or newer: node segment.mjs http://localhost:8000 street.jpg
//
// Prints the share of each class, and writes street-labels.png beside the picture. The token, if the server has one, is in
// the variable STREAMSEG_TOKEN. The server describes itself at /openapi.json. In a browser, label() works as it is,
// on pages of the server itself, with a File instead of the bytes.

import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";

const TRIES = 5;

/** Send a picture, and return the answer in a media type: image/png, image/jpeg or application/json. */
async function label(server, picture, mediaType, token) {
  const headers = { Accept: mediaType, "Content-Type": "application/octet-stream" };
  if (token) headers.Authorization = `Bearer ${token}`;
  for (let i = 0; i < TRIES; i++) {
    const response = await fetch(`${server}/segment`, { method: "POST", headers, body: picture }).catch((error) => {
      throw new Error(`${server} cannot be reached (${error.cause?.message ?? error.message}): start it with streamseg serve.`);
    });
    if (response.ok) return response;
    // each other error says in a sentence what is wrong
    if (response.status !== 503) throw new Error(`${response.status}: ${(await response.json()).error}`);
    const seconds = Number(response.headers.get("Retry-After") ?? 1); // the queue is full
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }
  throw new Error(`The server was busy ${TRIES} times: try again later.`);
}

if (process.argv.length !== 4 || !existsSync(process.argv[3])) {
  console.error("Give the address of a server and a picture: node segment.mjs http://localhost:8000 street.jpg");
  process.exit(1);
}
const [server, path] = [process.argv[2].replace(/\/$/, ""), process.argv[3]];
const token = process.env.STREAMSEG_TOKEN;
const picture = await readFile(path);
try {
  const found = await (await label(server, picture, "application/json", token)).json();
  for (const { name, share } of found.classes.sort((a, b) => b.share - a.share)) {
    if (share) console.log(`${name} ${(100 * share).toFixed(1)}%`);
  }
  const labels = await (await label(server, picture, "image/png", token)).arrayBuffer();
  await writeFile(path.replace(/\.\w+$/, "") + "-labels.png", Buffer.from(labels));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
