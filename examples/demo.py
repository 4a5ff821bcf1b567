"""What `make demo` runs: the weights that ship, over the samples and a video that a virtual camera takes of one."""

import sys
from pathlib import Path

import streamseg
from streamseg import cli

OUT = Path("out/demo")
CLIP = OUT / "drive.mp4"


def pan(picture: Path, frames: int = 30, size: tuple[int, int] = (360, 640)):
    """Frames of a camera that moves over a picture from the left to the right."""
    whole = streamseg.read_image(picture)[:, ::2, ::2]
    height, width = size
    top, path = whole.shape[1] - height, whole.shape[2] - width
    for i in range(frames):
        left = round(path * i / (frames - 1))
        yield whole[:, top : top + height, left : left + width].contiguous()


def run(*arguments: str) -> None:
    """Run a command, and show it."""
    print(f"\n$ streamseg {' '.join(arguments)}")
    sys.argv = ["streamseg", *arguments]
    cli.main()


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    streamseg.write_frames(CLIP, pan(Path("samples/suburb-3.jpg")), 15)
    run("segment", "samples", str(OUT), "--legend")
    run("segment", str(CLIP), str(OUT / "drive-labelled.mp4"), "--legend")
    print(f"\nOpen the overlays in {OUT}. With a picture, a video or the camera of yours:")
    print("  .venv/bin/streamseg segment photo.jpg")
    print("  .venv/bin/streamseg segment video.mp4 labelled.mp4")
    print("  .venv/bin/streamseg segment 0 --show")
