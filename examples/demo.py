"""What `make demo` runs: the whole road, from picture files to labelled picture files, over the samples."""

from pathlib import Path

import torch

import streamseg
from streamseg.cli import segment

pictures = sorted(Path("samples").glob("*.jpg"))
out = Path("out/demo")
out.mkdir(parents=True, exist_ok=True)

print("No trained weights ship yet. This network is untrained: every step is real, the labels mean nothing.\n")
torch.manual_seed(0)
model = streamseg.fanet18(classes=11)
with torch.no_grad():
    for picture in pictures[:2] * 10:
        model(streamseg.read_image(picture)[None, :, ::2, ::2])  # batch norm gets to know real pictures, no more
weights = out / "untrained.safetensors"
streamseg.save(model, streamseg.CAMVID, weights, source="untrained, made by examples/demo.py")

for picture in pictures:
    segment(picture, out, weights=weights)
print(f"\nOpen the overlays in {out}. The same by hand, with a picture of yours:")
print(f"  .venv/bin/streamseg segment IMAGE --weights {weights}")
