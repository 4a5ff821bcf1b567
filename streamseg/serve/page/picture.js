// Colours over a picture: the mask of its classes, with a line between them.

const NO_CLASS = 255; // label of pixels without a class

export const maskCanvas = document.createElement("canvas");

export function parseColour(code) {
  return [1, 3, 5].map((i) => parseInt(code.slice(i, i + 2), 16));
}

// Draws the mask of labels on its canvas; hidden classes and pixels without a class are transparent.
export function drawMask({ canvas, labels }, classes, hiddenClasses) {
  maskCanvas.width = canvas.width;
  maskCanvas.height = canvas.height;
  const context = maskCanvas.getContext("2d");
  const pixels = context.createImageData(maskCanvas.width, maskCanvas.height);
  const colours = new Uint32Array(256);
  const bytes = new Uint8Array(colours.buffer);
  classes.forEach(({ drawn }, i) => { if (!hiddenClasses.has(i)) bytes.set([...drawn, 255], 4 * i); });
  const words = new Uint32Array(pixels.data.buffer);
  for (let i = 0; i < words.length; i++) words[i] = colours[labels[i]];
  drawBorders(words, labels, canvas.width);
  context.putImageData(pixels, 0, 0);
}

// Draws a line of one pixel between the classes where streamseg.overlay does: hidden classes count as one.
function drawBorders(words, labels, width) {
  const visible = (i) => (words[i] ? labels[i] : NO_CLASS);
  for (let i = 0; i < words.length; i++) {
    const right = (i + 1) % width ? i + 1 : i, below = i + width < words.length ? i + width : i;
    if (visible(i) !== visible(right) || visible(i) !== visible(below)) words[i] = 0xffffffff;
  }
}

// Draws a picture with the mask, except for a share of its width at the left.
export function drawOverlay(context, picture, share, opacity) {
  const { width, height } = context.canvas;
  const from = Math.round(share * width);
  context.drawImage(picture, 0, 0, width, height);
  context.save();
  context.beginPath();
  context.rect(from, 0, width - from, height);
  context.clip();
  context.globalAlpha = opacity;
  context.imageSmoothingEnabled = false;
  context.drawImage(maskCanvas, 0, 0, width, height);
  context.restore();
}
