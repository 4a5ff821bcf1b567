"""The demo of `make demo`: label the samples, and a video of them from a virtual camera, with the bundled weights."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

import streamseg
from streamseg import cli

OUT = Path("out/demo")
CLIP = OUT / "drive.mp4"


def drive(pictures: list[Path], frames: int = 12, size: tuple[int, int] = (360, 640)) -> Iterator[Tensor]:
    """Yield frames of a virtual camera that zooms into one picture after the other, as if it drove down the road."""
    for picture in pictures:
        whole = crop_to_ratio(streamseg.read_image(picture), size[1] / size[0])[None].float()
        for i in range(frames):
            height, width = (round(side / (1 + 0.4 * i / frames)) for side in whole.shape[2:])
            top, left = (whole.shape[2] - height) // 2, (whole.shape[3] - width) // 2
            view = whole[:, :, top : top + height, left : left + width]
            yield F.interpolate(view, size, mode="bilinear", antialias=True)[0].round().byte()


def crop_to_ratio(frame: Tensor, ratio: float) -> Tensor:
    """Return the middle of a frame (3, H, W), with a ratio of width to height."""
    _, height, width = frame.shape
    rows, columns = min(height, round(width / ratio)), min(width, round(height * ratio))
    top, left = (height - rows) // 2, (width - columns) // 2
    return frame[:, top : top + rows, left : left + columns]


def run(*arguments: str) -> None:
    """Print and run a command."""
    print(f"$ streamseg {' '.join(arguments)}", flush=True)
    sys.argv = ["streamseg", *arguments]
    cli.main()


def print_reports(reports: dict[str, Path]) -> None:
    """Print the shares of the classes and the latency of each run, from its JSON lines."""
    runs = [[json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in reports.values()]
    frames, summaries = [run[:-1] for run in runs], [run[-1]["summary"] for run in runs]
    shares = {
        name: [sum(frame["shares"].get(name, 0) for frame in run) / len(run) for run in frames]
        for name in sorted({name for run in frames for frame in run for name in frame["shares"]})
    }
    print("\n" + f"{'share of the pixels':24}" + "".join(f"{name:>12}" for name in reports))
    for name, found in sorted(shares.items(), key=lambda row: -sum(row[1])):
        if max(found) > 0.0005:
            print(f"{name:24}" + "".join(f"{100 * share:>10.1f} %" for share in found))
    print("\n" + f"{'frames':24}" + "".join(f"{len(run):>12}" for run in frames))
    for name in ("p50", "p95"):
        row = "".join(f"{summary['latency_ms'][name]:>9.0f} ms" for summary in summaries)
        print(f"{f'latency, {name}':24}{row}")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    print(f"A virtual camera films five of the samples: {CLIP}", flush=True)
    streamseg.write_frames(CLIP, drive(sorted(Path("samples").glob("suburb-*.jpg"))), 15)
    labelled, reports = OUT / "drive-labelled.mp4", {"pictures": OUT / "pictures.jsonl", "video": OUT / "drive.jsonl"}
    run("segment", "samples", "samples/dashcam", str(OUT), "--legend", "--quiet", "--json", str(reports["pictures"]))
    run("segment", str(CLIP), str(labelled), "--legend", "--quiet", "--json", str(reports["video"]))
    print_reports(reports)
    print(f"\n{OUT}/*-overlay.png are the pictures with the colours of their classes, and")
    print(f"{labelled} is the video. Try next:\n")
    print("  .venv/bin/streamseg segment samples/city-traffic.jpg --classes car,road --side-by-side")
    print(f"  .venv/bin/streamseg segment {CLIP} faster.mp4 --precision int8")
    print("  .venv/bin/streamseg segment 0 --show   # a camera; or your own picture, folder or video")
    print("  .venv/bin/streamseg --help")
