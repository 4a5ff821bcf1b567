"""Label the frames of a video by an exported ONNX file, without torch and without streamseg: numpy, onnxruntime, PIL.

    streamseg export model.onnx --video
    python examples/label_frames.py model.onnx OUT FRAME...

The frames are pictures of one video, in their order. Each one's labels go to the folder OUT, as a PNG whose pixels are
the numbers of their classes, shown in their colours. Single pictures, which have nothing to do with each other, are for
a file exported without --video.
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
    about = json.loads(session.get_modelmeta().custom_metadata_map["streamseg"])
    inputs = {port.name: port.shape for port in session.get_inputs()}
    outputs = [port.name for port in session.get_outputs()]
    palette = [part for colour in about["classes"]["colours"] for part in colour]
    # what the earlier frames in the window left: the state of the stream, all that there is
    contexts = deque(maxlen=max(0, about["window"] - 1))

    for name in names:
        with Image.open(name) as picture:
            full = picture.convert("RGB")
        height, width = about["size"] or (full.height, full.width)
        given = {"frame": np.asarray(full.resize((width, height)))[None]}  # (1, H, W, 3), uint8
        for stage in STAGES:
            if f"past{stage}" in inputs:
                empty = np.zeros(inputs[f"past{stage}"], np.float32)
                given[f"past{stage}"] = sum((context[stage - 1] for context in contexts), empty)
        if "weight" in inputs:
            given["weight"] = np.array([len(contexts)], np.float32)
        found = dict(zip(outputs, session.run(outputs, given), strict=True))
        if "past1" in inputs:
            contexts.append([found[f"context{stage}"] for stage in STAGES])
        labels = Image.fromarray(found["labels"][0]).resize(full.size, Image.Resampling.NEAREST)
        labels.putpalette(palette)
        labels.save(Path(out) / f"{Path(name).stem}-labels.png")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
