// Files for the visitor, and the picture of a source as a file.

const FORMATS = ["image/png", "image/jpeg", "image/webp"]; // that the server reads

export function downloadFile(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// Returns a name without suffix and with the characters that the server allows.
export function plainName(name) {
  const plain = name.replace(/\.(?:png|jpe?g|webp|gif|bmp|tiff?|avif|svg|mp4|mov|mkv|webm|avi)$/i, "").replace(/[^A-Za-z0-9._-]+/g, "-");
  return plain.replace(/^\.+|\.+$/g, "").slice(0, 100) || "picture";
}

// Returns a name; an error if the server would not take it.
export function checkName(name) {
  if (plainName(`${name}.png`) === name) return name;
  throw new Error(`"${name}" cannot be a name here: give up to 100 letters, digits, -, _ and dots.`);
}

// Returns the picture of a source as the file that was opened, or as a PNG.
export async function pictureFile({ blob, picture, width, height }) {
  if (blob && FORMATS.includes(blob.type)) return blob;
  const canvas = new OffscreenCanvas(width, height);
  canvas.getContext("2d").drawImage(picture, 0, 0);
  return canvas.convertToBlob({ type: "image/png" });
}
