"""What docs/segment.md says of tiles and scene cuts, measured: python benchmarks/stream.py tiles | cuts CAMVID.

tiles  labels of the sample pictures seen tile by tile, beside those of the whole picture, by margin
cuts   distances of contexts between neighbouring frames of CamVid's train and val, and between its recordings
"""

import sys
from itertools import pairwise, product
from pathlib import Path

import torch

import streamseg
from streamseg.datasets import Pair
from streamseg.model import Context
from streamseg.stream import context_distance, fit, label_frame

SAMPLES = Path(__file__).parent.parent / "samples"


def tiles() -> None:
    model, _ = streamseg.load()
    print(f"{'margin':>8}{'least agreement, %':>20}")
    frames = [streamseg.read_image(path)[:, :1024, :1920] for path in sorted(SAMPLES.glob("suburb-*.jpg"))]
    whole = [label_frame(model, frame)[0] for frame in frames]
    for margin in (0, 64, 128, 192, 256, 448):
        tiled = [streamseg.label_tiled(model, frame, tile=(512, 512), margin=margin)[0] for frame in frames]
        agreement = min((a == b).float().mean().item() for a, b in zip(tiled, whole, strict=True))
        print(f"{margin:8}{100 * agreement:20.3f}")


def cuts(data: Path) -> None:
    model, _ = streamseg.load()

    def context(pair: Pair) -> Context:
        with torch.inference_mode():
            return model.features(fit(streamseg.read_image(pair.image)[None], (360, 480)))[1]

    recordings: dict[str, list] = {}
    for split in ("train", "val"):
        for pair in streamseg.camvid(data, split).pairs:
            recordings.setdefault(f"{split} {pair.image.name[:6]}", []).append(context(pair))
    for name, contexts in recordings.items():
        far = torch.cat([context_distance(a, b) for a, b in pairwise(contexts)])
        print(f"{name}: neighbours, {len(far)} pairs: median {far.median():.3f}, max {far.max():.3f}")
    drives = [(name, contexts[:: max(1, len(contexts) // 20)]) for name, contexts in recordings.items()]
    for (one, some), (other, more) in product(drives, drives):
        if one[-6:] < other[-6:]:
            far = torch.cat([context_distance(a, b) for a, b in product(some, more)])
            print(f"{one} and {other}, {len(far)} pairs: min {far.min():.3f}, median {far.median():.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["cuts"]:
        cuts(Path(sys.argv[2]))
    else:
        tiles()
