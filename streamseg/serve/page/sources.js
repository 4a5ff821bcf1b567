// What can be labelled: pictures, videos, the camera, samples, and sources that the server reads.

import { currentToken } from "./api.js";
import { byId, showMessage } from "./status.js";

export const video = byId("video");

let show = async () => {}; // receives what was opened: { still, picture or video, width, height, name, blob, sample, served }

export function onOpened(handler) {
  show = handler;
}

export async function openFile(file) {
  if (file.type.startsWith("video/")) return openVideo(URL.createObjectURL(file), file.name);
  try {
    await openPicture(file, file.name);
  } catch {
    // not a picture: it may be a video without a media type
    await openVideo(URL.createObjectURL(file), file.name);
  }
}

async function openPicture(blob, name, more = {}) {
  const picture = await createImageBitmap(blob, { imageOrientation: "from-image" });
  await show({ still: true, picture, width: picture.width, height: picture.height, name, blob, ...more });
}

async function openVideo(address, name) {
  await playVideo(() => { video.src = address; }, name);
}

export async function openCamera() {
  if (!navigator.mediaDevices) throw new Error("Browsers allow the camera only on https:// and localhost pages.");
  const constraints = { video: { facingMode: "environment", width: { ideal: 1280 } } };
  const stream = await navigator.mediaDevices.getUserMedia(constraints).catch((error) => {
    throw new Error(`The camera could not be opened (${error.message || error.name}).`);
  });
  stream.getVideoTracks()[0].addEventListener("ended", () => {
    if (video.srcObject === stream) showMessage("The camera was disconnected: connect it and open it again.", true);
  });
  await playVideo(() => { video.srcObject = stream; }, "camera");
}

export async function openSample(name) {
  await openPicture(await (await fetch(`samples/${name}`)).blob(), name, { sample: name });
}

// A frame of a source that the server reads.
export async function openServed(name) {
  const headers = currentToken() ? { Authorization: `Bearer ${currentToken()}` } : {};
  const response = await fetch(`streams/${name}.jpg`, { headers });
  if (!response.ok) throw new Error((await response.json()).error);
  await openPicture(await response.blob(), name, { served: name });
}

export function stopVideo() {
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
  await show({ still: false, video, width: video.videoWidth, height: video.videoHeight, name });
}
