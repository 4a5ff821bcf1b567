"""Label the frames of a video with an exported ONNX file, without torch and streamseg: numpy, onnxruntime, PIL.

    streamseg export model.onnx --video
    python examples/label_frames.py model.onnx OUT FRAME...

The frames are pictures of one video, in order. The labels of each are written to the folder OUT, as a PNG with a
palette whose pixels are class numbers. For unrelated pictures use a file that was exported without --video.
"""

import json
import sys
from collections import deque
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

STAGES = (1, 2, 3, 4)


def main(model: str, out: str, *names: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    description = json.loads(session.get_modelmeta().custom_metadata_map["streamseg"])
    inputs = {port.name: port.shape for port in session.get_inputs()}
    outputs = [port.name for port in session.get_outputs()]
    palette = [part for colour in description["classes"]["colours"] for part in colour]
    # contexts of the earlier frames in the window: the whole state of the stream
    contexts = deque(maxlen=max(0, description["window"] - 1))

    for name in names:
        with Image.open(name) as picture:
            full = picture.convert("RGB")
        height, width = description["size"] or (full.height, full.width)
        feed = {"frame": np.asarray(full.resize((width, height)))[None]}  # (1, H, W, 3), uint8
        for stage in STAGES:
            if f"past{stage}" in inputs:
                empty = np.zeros(inputs[f"past{stage}"], np.float32)
                feed[f"past{stage}"] = sum((context[stage - 1] for context in contexts), empty)
        if "weight" in inputs:
            feed["weight"] = np.array([len(contexts)], np.float32)
        found = dict(zip(outputs, session.run(outputs, feed), strict=True))
        if "past1" in inputs:
            contexts.append([found[f"context{stage}"] for stage in STAGES])
        labels = Image.fromarray(found["labels"][0]).resize(full.size, Image.Resampling.NEAREST)
        labels.putpalette(palette)
        labels.save(Path(out) / f"{Path(name).stem}-labels.png")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
