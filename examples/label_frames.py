"""Label the frames of a video with an exported ONNX file, without torch and streamseg: numpy, onnxruntime, PIL.

    streamseg export model.onnx --video                                  # or with --size 720x1280 --steady low
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

FRAMES_PER_SECOND = 25
MIRRORS = FRAMES_PER_SECOND > 7  # not where frames are more than 0.15 s apart


def main(model: str, out: str, *names: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    description = json.loads(session.get_modelmeta().custom_metadata_map["streamseg"])
    inputs = {port.name: port.shape for port in session.get_inputs()}
    outputs = [port.name for port in session.get_outputs()]
    palette = [part for colour in description["classes"]["colours"] for part in colour]
    # of the stages with attention: four, or two of a FANet+
    stages = [int(name.removeprefix("context")) for name in outputs if name.startswith("context")]
    # contexts of the earlier frames in the window and, with --steady, what the frame before has left: the whole state
    contexts = deque(maxlen=max(0, description["window"] - 1))
    before = None

    for number, name in enumerate(names):
        with Image.open(name) as picture:
            full = picture.convert("RGB")
        height, width = description["size"] or (full.height, full.width)
        feed = {"frame": np.asarray(full.resize((width, height)))[None]}  # (1, H, W, 3), uint8
        for i, stage in enumerate(stages):
            empty = np.zeros(inputs[f"past{stage}"], np.float32)
            feed[f"past{stage}"] = sum((context[i] for context in contexts), empty)
        if "weight" in inputs:
            feed["weight"] = np.array([len(contexts)], np.float32)
        if "past_luma" in inputs:
            for part, kind in (("luma", np.float32), ("scores", np.float32), ("labels", np.uint8)):
                feed[f"past_{part}"] = np.zeros(inputs[f"past_{part}"], kind) if before is None else before[part]
            # 0 for the first frame; less than 1 where frames are more than 0.1 s apart
            feed["past_share"] = np.array([0 if before is None else min(1, 0.1 * FRAMES_PER_SECOND)], np.float32)
        if "mirrored" in inputs:
            feed["mirrored"] = np.array([number % 2 if MIRRORS else 0], np.float32)
        found = dict(zip(outputs, session.run(outputs, feed), strict=True))
        contexts.append([found[f"context{stage}"] for stage in stages])
        before = found
        labels = Image.fromarray(found["labels"][0]).resize(full.size, Image.Resampling.NEAREST)
        labels.putpalette(palette)
        labels.save(Path(out) / f"{Path(name).stem}-labels.png")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
