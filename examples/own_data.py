"""Make thirty labelled pictures to try training on your own data: python examples/own_data.py mine

They are cut from the samples and labelled by the bundled weights, with three joined classes: enough to try each
command, and too easy to tell anything about accuracy.
"""

import sys
from pathlib import Path

import torch

import streamseg
from streamseg.io.images import write_image, write_labels

SAMPLES = Path(__file__).parent.parent / "samples"
CLASSES = streamseg.Classes(("street", "traffic", "rest"), ((128, 64, 128), (220, 20, 60), (70, 130, 90)))
JOINED = {"Road": 0, "LaneMarking": 0, "Pavement": 0, "Car": 1, "Pedestrian": 1, "Bicyclist": 1}
"""Class of each class of the bundled weights; all others are the rest."""


def make(folder: Path, count: int = 30, size: tuple[int, int] = (360, 480)) -> None:
    """Write classes.txt, images/ and labels/."""
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    lines = (f"{name} #{bytes(colour).hex()}" for name, colour in zip(CLASSES.names, CLASSES.colours, strict=True))
    (folder / "classes.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    network, classes = streamseg.load()
    table = torch.tensor([JOINED.get(name, 2) for name in classes.names])
    pictures = sorted(SAMPLES.glob("*.jpg"))
    random = torch.Generator().manual_seed(0)
    height, width = size
    for i in range(count):
        whole = streamseg.read_image(pictures[i % len(pictures)])
        small = whole[:, ::2, ::2] if min(whole.shape[1:]) > 2 * height else whole
        top, left = (
            int(torch.randint(side - part + 1, (), generator=random))
            for side, part in zip(small.shape[1:], size, strict=True)
        )
        frame = small[:, top : top + height, left : left + width].contiguous()
        write_image(folder / "images" / f"{i:02}.jpg", frame)
        write_labels(folder / "labels" / f"{i:02}.png", table[streamseg.segment(frame, network).long()], CLASSES)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
    print(sys.argv[1])
