// The first screen's pictures to start with: samples, and the sources that the server reads.

import { byId } from "./status.js";

const WIDTH = 320; // of a thumbnail, in pixels; it is shown at half of that

// Shows a button with a picture for each; actions: { openSample, openSource }, called with a name.
export function showThumbnails({ samples, sources }, token, { openSample, openSource }) {
  const query = token ? `?token=${encodeURIComponent(token)}` : "";
  byId("thumbnails").replaceChildren(
    ...sources.map((name) => thumbnail(`streams/${name}.jpg${query}`, `live: ${name}`, () => openSource(name))),
    ...samples.map((name) => thumbnail(`samples/${name}?width=${WIDTH}`, name.replace(/\.[^.]*$/, "").replaceAll("-", " "), () => openSample(name))),
  );
}

function thumbnail(address, name, open) {
  const button = document.createElement("button"), picture = document.createElement("img"), text = document.createElement("span");
  button.type = "button";
  picture.src = address;
  picture.alt = "";
  picture.loading = "lazy";
  text.textContent = name;
  button.append(picture, text);
  button.addEventListener("click", open);
  return button;
}
