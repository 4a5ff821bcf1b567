"""Make the pictures of the documents, in docs/, from the samples, the bundled weights and docs/measured/.

    python docs/pictures.py [NAME...]          all pictures, or those named, such as drive.gif
    python docs/pictures.py drive.gif VIDEO    the same with a video at the beginning, such as a drive on a motorway
    python docs/pictures.py video-slice.png VIDEO    one row of a video over time, instead of one of a still picture
    python docs/pictures.py measure MACHINE    first measure docs/measured/latency.json; MACHINE describes the hardware

docs/measured/README.md has the command behind each file of docs/measured/. benchmarks/video.py plots the effect of the
window. All pictures have a white background, so that they can be read on light and dark pages, and the colours for
colour-blind readers of M. Okabe and K. Ito.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor
from torch.nn import functional as F

import streamseg
from streamseg.classes import Colour
from streamseg.draw import blended_classes
from streamseg.evaluate import paper, plot
from streamseg.evaluate.slice import SliceRecorder, write_slice
from streamseg.io.files import written_whole
from streamseg.io.images import to_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "examples"))

import demo  # noqa: E402 (a script in a folder that is not a package)

DOCS = ROOT / "docs"
MEASURED = DOCS / "measured"
SAMPLES = sorted((ROOT / "samples").glob("*.jpg"))
DRIVE = [sample for sample in SAMPLES if sample.stem.startswith("suburb-")]
DASHCAM = sorted((ROOT / "samples" / "dashcam").glob("*.jpg"))
SHOWN = [*SAMPLES[:3], *DASHCAM]
"""The pictures of overlays.jpg: fewer suburbs, so that the file is small."""
ALPHA = 0.5
"""Opacity of the classes in the pictures."""
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#6A6A6A"
BACKGROUND = {"facecolor": "white", "edgecolor": "none", "pad": 1}
WINDOW = 4
"""Window of the pictures."""


def draw_drive(
    path: Path,
    pictures: Sequence[Path] = (*DRIVE[::2], *DASHCAM),
    frames: int = 5,
    size: tuple[int, int] = (720, 1280),
    clip: Path | None = None,
) -> None:
    """Write a drive as a GIF of half the size: frames left of a moving line, labels to its right.

    Args:
        pictures: What the demo's virtual camera films, each for a number of frames.
        clip: A video that comes first: every third of its frames, as many as for three pictures.
    """
    model, classes = streamseg.load()
    fast, drawn = streamseg.accelerate(model), streamseg.bright_colours(classes)
    scenes = [list(demo.drive([picture], frames, size)) for picture in pictures]
    if clip:
        scenes.insert(0, [fit(frame, size) for frame in islice(streamseg.read_frames(clip), 0, 9 * frames, 3)])
    labelled = [pair for scene in scenes for pair in streamseg.label_frames(fast, scene, WINDOW)]
    half = (size[1] // 2, size[0] // 2)
    legend = class_legend(drawn, half[0], 6, half[0] // 46)
    shown = []
    for i, (frame, labels) in enumerate(labelled):
        line = round(half[0] * (0.5 + 0.34 * math.sin(2 * math.pi * i / len(labelled))))
        # without the fine texture of roads, the GIF is small
        smooth = to_frame(to_image(frame).filter(ImageFilter.MedianFilter(5)).resize(half))
        colours = streamseg.overlay(smooth, labels[1::2, 1::2], drawn, ALPHA, borders=True)
        view = Image.new("RGB", (half[0], half[1] + legend.height), "white")
        view.paste(to_image(wipe(smooth, colours, line)))
        view.paste(legend, (0, half[1]))
        shown.append(view)
    write_gif(path, shown, blended_classes(drawn, ALPHA).colours, seconds=0.1)


def draw_slice(
    path: Path, clip: Path | None = None, frames: int = 150, size: tuple[int, int] = (360, 640), height: float = 0.6
) -> None:
    """Draw one row of a video over time, with its labels frame by frame and with --steady low.

    Args:
        clip: A video; by default the demo's virtual camera films a sample.
        frames: How many frames, at most.
        height: The place of the row, from 0 at the top to 1.
    """
    model, classes = streamseg.load()
    fast = streamseg.accelerate(model)
    scene = streamseg.read_frames(clip) if clip else demo.drive(DRIVE[:1], frames, size)
    shown = [fit(frame, size) for frame in islice(scene, frames)]
    recorder = SliceRecorder(round(height * size[0]))
    alone, steady = (
        streamseg.label_frames(fast, shown, streamseg.LastFrames(1, steady=how)) for how in (0.0, streamseg.STEADY_LOW)
    )
    for (frame, labels), (_, steadier) in zip(alone, steady, strict=True):
        recorder.add(frame, steadier, labels)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "slice.png")
        write_slice(plain, recorder.result(), classes, "--steady low")
        rows = Image.open(plain).convert("RGB")
    bright = streamseg.bright_colours(classes)
    legend = class_legend(bright, rows.width, 6, rows.width // 46, alpha=1.0)
    drawn = Image.new("RGB", (rows.width, rows.height + legend.height), "white")
    drawn.paste(rows)
    drawn.paste(legend, (0, rows.height))
    with written_whole(path) as temporary:
        palette = palette_with(bright.colours, rows)
        drawn.quantize(palette=palette, dither=Image.Dither.NONE).save(temporary, format="PNG", optimize=True)


def fit(frame: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a frame (3, H, W) at another size."""
    return F.interpolate(frame[None].float(), size, mode="bilinear", antialias=True)[0].round().byte()


def wipe(left: Tensor, right: Tensor, line: int) -> Tensor:
    """Return one picture (3, H, W) left of a column, another to its right, and a white line between them."""
    both = right.clone()
    both[:, :, :line] = left[:, :, :line]
    both[:, :, line - 1 : line + 1] = 255
    return both


def write_gif(path: Path, pictures: Sequence[Image.Image], kept: Sequence[Colour], seconds: float) -> None:
    """Write an endless GIF with one palette of 64 colours, so that nothing flickers; it has the colours in `kept`."""
    width, height = pictures[0].size
    some = pictures[:: -(-len(pictures) // 16)]
    together = Image.new("RGB", (width, height * len(some)))
    for i, picture in enumerate(some):
        together.paste(picture, (0, i * height))
    palette = palette_with(kept, together)
    first, *rest = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    with written_whole(path) as temporary:
        # optimize=True makes unchanged pixels transparent, which breaks runs up: a fifth larger
        first.save(temporary, save_all=True, append_images=rest, duration=round(1000 * seconds), loop=0, optimize=False)


def palette_with(kept: Sequence[Colour], picture: Image.Image) -> Image.Image:
    """Return a palette of 64 colours for a picture, among them the colours in `kept`, as quantize takes it."""
    found = picture.quantize(64 - len(kept), kmeans=1).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*chain.from_iterable(kept), *found][: 3 * 64])
    return palette


def draw_overlays(path: Path, pictures: Sequence[Path] = SHOWN, width: int = 640) -> None:
    """Draw the overlays of some samples in two columns, with a legend at the end."""
    model, classes = streamseg.load()
    fast, colours = streamseg.accelerate(model), streamseg.bright_colours(classes)
    gap, height = width // 64, width * 9 // 16
    columns, rows = 2, -(-(len(pictures) + 1) // 2)
    sheet = Image.new("RGB", (columns * (width + gap) + gap, rows * (height + gap) + gap), "white")
    places = [(gap + i % 2 * (width + gap), gap + i // 2 * (height + gap)) for i in range(columns * rows)]
    for picture, (left, top) in zip(pictures, places, strict=False):
        frame = streamseg.read_image(picture)
        ((_, labels),) = streamseg.label_frames(fast, [frame])
        drawn = to_image(streamseg.overlay(frame, labels, colours, ALPHA, borders=True))
        # samples are a little wider or higher than 16 : 9, and are cropped
        scale = max(width / drawn.width, height / drawn.height)
        drawn = drawn.resize((math.ceil(drawn.width * scale), math.ceil(drawn.height * scale)))
        x, y = (drawn.width - width) // 2, (drawn.height - height) // 2
        sheet.paste(drawn.crop((x, y, x + width, y + height)), (left, top))
    legend = class_legend(colours, width, 2, width // 22)
    left, top = places[len(pictures)]
    sheet.paste(legend, (left, top + (height - legend.height) // 2))
    with written_whole(path) as temporary:
        sheet.save(temporary, quality=78, optimize=True, progressive=True)


def class_legend(classes: streamseg.Classes, width: int, columns: int, size: int, alpha: float = ALPHA) -> Image.Image:
    """Return a legend of the classes as they look in the pictures, in columns, dark on white; size: of the font."""
    rows, colours = -(-len(classes) // columns), blended_classes(classes, alpha).colours
    line = round(1.6 * size)
    # drawn large and then reduced: small text would be placed on whole pixels
    panel = Image.new("RGB", (4 * width, 4 * (rows * line + size)), "white")
    pen, font = ImageDraw.Draw(panel), ImageFont.load_default(4 * size)
    for i, (name, colour) in enumerate(zip(classes.names, colours, strict=True)):
        x, y = 4 * (size // 2 + i // rows * width // columns), 4 * (size // 2 + i % rows * line + line // 2)
        # with an outline, for white classes
        pen.rectangle((x, y - 2 * size, x + 4 * size, y + 2 * size), colour, outline="#a0a4aa", width=4)
        pen.text((x + 6 * size, y), name, "black", font, anchor="lm")
    return panel.reduce(4)


def draw_classes(path: Path, measured: Path = MEASURED / "classes.json") -> None:
    """Plot the IoU of each class as a bar, best first."""
    row = json.loads(measured.read_text(encoding="utf-8"))
    names = sorted(row["iou"], key=row["iou"].get)
    figure, axes = single_plot(10, 5.6)
    axes.barh(names, [row["iou"][name] for name in names], color=BLUE)
    for place, name in enumerate(names):
        axes.text(row["iou"][name] + 1, place, f"{row['iou'][name]:.1f}", va="center", fontsize=14, bbox=BACKGROUND)
    axes.axvline(row["miou"], color=VERMILION, linestyle="--", linewidth=2)
    axes.text(row["miou"] - 1, 0, f"mean {row['miou']:.1f}", ha="right", va="center", fontsize=15, color=VERMILION)
    axes.set_xlim(0, 107)
    axes.set_xlabel("IoU on CamVid's val, %", fontsize=15)
    axes.grid(axis="y", visible=False)
    plot.save_figure(figure, path)


def draw_speed_accuracy(path: Path, measured: Path = MEASURED / "baselines.json") -> None:
    """Plot the measured speed of every network whose accuracy the paper has against that accuracy."""
    networks = json.loads(measured.read_text(encoding="utf-8"))["networks"]
    speeds = {each["network"]: {timing["way"]: timing["fps"] for timing in each["timings"]} for each in networks}
    printed = [row for row in paper.CITYSCAPES_TABLE.rows if "miou_val" in row.printed and row.network in speeds]
    figure, axes = single_plot(10, 6)
    for row in printed:
        compiled, miou = speeds[row.network]["torch.compile"], row.printed["miou_val"]
        fast = speeds[row.network].get("fast, fp16")
        colour = GREY if fast is None else VERMILION
        write = partial(axes.annotate, xy=(compiled, miou), textcoords="offset points", fontsize=15, color=colour)
        axes.plot(compiled, miou, "o", color=colour, markersize=11)
        if row.network == "fanet18":  # another network is to its left
            write(row.name, xytext=(0, -12), ha="center", va="top")
        else:
            write(row.name, xytext=(-12, 0), ha="right", va="center")
        if fast is not None:
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2, "shrinkA": 8, "shrinkB": 10}
            axes.annotate("", (fast, miou), (compiled, miou), arrowprops=arrow)
            axes.plot(fast, miou, "*", color=colour, markersize=22)
            write(f"our fast form: {fast:,.0f}", xy=(fast, miou), xytext=(0, -14), ha="center", va="top")
    axes.set_xlim(0, 1.2 * max(speed for ways in speeds.values() for speed in ways.values()))
    axes.margins(y=0.12)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    label = "frames a second on one H200, frame to labels, 1024 x 2048\n(dots: each compiled by torch.compile)"
    axes.set_xlabel(label, fontsize=15)
    axes.set_ylabel("mIoU on Cityscapes val, %,\nas the paper prints it", fontsize=15)
    plot.save_figure(figure, path)


def draw_baselines(
    path: Path,
    speeds: Path = MEASURED / "baselines.json",
    fast_forms: Path = MEASURED / "fanetplus-speed.json",
    mious: Path = MEASURED / "ablations.json",
) -> None:
    """Plot time against accuracy of the networks that were trained alike, on the training streets and on another."""
    trained = json.loads(mious.read_text(encoding="utf-8"))
    compiled, fast = (
        {each["network"]: each for each in json.loads(file.read_text(encoding="utf-8"))["networks"]}
        for file in (speeds, fast_forms)
    )
    figure = plot.new_figure(10, 6.4)
    figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
    titles = {
        "val": "CamVid's val:\nthe streets of the training",
        "0001TP": "CamVid's 0001TP: at dusk,\nleft out of the training",
    }
    for column, (part, title) in enumerate(titles.items(), 1):
        axes = style_axes(figure.add_subplot(1, 2, column))
        for name in compiled.keys() & trained.keys():
            x, y = time_of(compiled[name], "torch.compile"), fmean(trained[name][part]["miou"])
            colour, gmacs = VERMILION if name.startswith("fanet") else GREY, compiled[name]["gmacs"]
            axes.scatter(x, y, s=4 * gmacs, color=colour, alpha=0.8)
            if name not in fast:
                gap = 4 + math.sqrt(gmacs)  # a little more than the radius of the dot
                offset = {"ha": "left", "va": "center", "textcoords": "offset points"}
                lower = name in (
                    ("shelfnet18",) if part == "val" else ("swiftnet18", "erfnet")
                )  # others are in its place
                axes.annotate(paper.NAMES[name], (x, y), (gap, -10 * lower), fontsize=12, color=colour, **offset)
        for name, colour in (("fanet", VERMILION), ("fanetplus", BLUE)):
            depths = ("18", "34")
            times = [time_of(fast[f"{name}{depth}"], "fast, fp16") for depth in depths]
            accuracies = [fmean(trained[f"{name}{depth}"][part]["miou"]) for depth in depths]
            label = "FANet+-18, -34" if name == "fanetplus" else "FANet-18, -34"
            axes.plot(times, accuracies, "*-", color=colour, markersize=16, linewidth=1, label=label)
        axes.set_xlim(0, 3.4)
        axes.margins(y=0.12)
        axes.set_title(title, fontsize=15)
        axes.set_ylabel("mIoU, %", fontsize=15)
        axes.legend(fontsize=12, loc=(0.03, 0.3))
    figure.supxlabel(
        "ms a frame on one H200, frame to labels, 1024 x 2048\n"
        "(dots: compiled by torch.compile, their area the GMACs; stars: fast forms)",
        fontsize=14,
    )
    plot.save_figure(figure, path)


def time_of(network: dict[str, Any], way: str) -> float:
    """Return the median milliseconds of a network in the JSON of `streamseg benchmark`."""
    return next(timing["median"] for timing in network["timings"] if timing["way"] == way)


def measure_latency(
    machine: str, path: Path = MEASURED / "latency.json", frames: int = 60, size: tuple[int, int] = (360, 640)
) -> None:
    """Label a video of 20 seconds on the CPU, in fp32 and in int8, and write the latency of each frame in ms."""
    found: dict[str, object] = {"machine": machine, "torch": torch.__version__, "size": size}
    with tempfile.TemporaryDirectory() as folder:
        clip, report = Path(folder, "drive.mp4"), Path(folder, "drive.jsonl")
        streamseg.write_frames(clip, demo.drive(DRIVE, frames, size), 15)
        for precision in ("fp32", "int8"):
            options = ("--precision", precision, "--device", "cpu", "--quiet", "--json", str(report))
            demo.run("segment", str(clip), str(Path(folder, "labelled.mp4")), *options)
            lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
            found[precision] = [round(line["latency_ms"], 1) for line in lines[:-1]]
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")


def draw_latency(path: Path, measured: Path = MEASURED / "latency.json") -> None:
    """Plot the latency of each frame of a stream, in fp32 and in int8."""
    found = json.loads(measured.read_text(encoding="utf-8"))
    height, width = found["size"]
    figure, axes = single_plot(10, 5)
    for precision, colour in (("fp32", BLUE), ("int8", VERMILION)):
        times = found[precision]
        label = f"{precision}: median {median(times):.0f} ms"
        axes.plot(range(1, len(times) + 1), times, color=colour, linewidth=2, label=label)
    # the one frame that takes far longer is only named: the axis would flatten all others
    top, slowest = 2.5 * median(found["fp32"]), max(found["int8"])
    number = found["int8"].index(slowest) + 1
    axes.text(
        number + 4, 0.93 * top, f"frame {number}: {slowest:,.0f} ms, for int8's ranges", color=VERMILION, fontsize=14
    )
    axes.set_ylim(0, top)
    axes.set_xlim(0, len(found["fp32"]))
    axes.set_xlabel(f"frame of the stream, {height} x {width}", fontsize=15)
    axes.set_ylabel("latency, ms", fontsize=15)
    axes.set_title(f"FANet-18 on {found['machine']}", fontsize=16)
    axes.legend(fontsize=15, loc="upper right")
    plot.save_figure(figure, path)


def draw_training(path: Path, measured: Path = MEASURED / "training.jsonl") -> None:
    """Plot loss and learning rate of a run."""
    lines = [json.loads(line) for line in measured.read_text(encoding="utf-8").splitlines()]
    figure = plot.new_figure(10, 4.6)
    figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
    for place, (entry, title, colour) in enumerate((("loss", "loss", BLUE), ("rate", "learning rate", VERMILION)), 1):
        axes = style_axes(figure.add_subplot(1, 2, place))
        axes.plot([line["step"] for line in lines], [line[entry] for line in lines], color=colour, linewidth=2.5)
        axes.set_ylim(0)
        axes.set_title(title, fontsize=16)
        axes.set_xlabel("iteration", fontsize=15)
    plot.save_figure(figure, path)


def single_plot(width: float, height: float) -> "tuple[Figure, Axes]":
    """Return a figure of a size in inches with one plot, whose text can be read at a width of 700 pixels."""
    figure = plot.new_figure(width, height)
    figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
    return figure, style_axes(figure.add_subplot())


def style_axes(axes: "Axes") -> "Axes":
    axes.tick_params(labelsize=14)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def to_image(frame: Tensor) -> Image.Image:
    return Image.fromarray(frame.permute(1, 2, 0).numpy())


PICTURES: dict[str, Callable[[Path], None]] = {
    "drive.gif": draw_drive,
    "overlays.jpg": draw_overlays,
    "classes.png": draw_classes,
    "speed-accuracy.png": draw_speed_accuracy,
    "baselines.png": draw_baselines,
    "latency.png": draw_latency,
    "training.png": draw_training,
    "video-slice.png": draw_slice,
}
WITH_CLIP: dict[str, Callable[..., None]] = {"drive.gif": draw_drive, "video-slice.png": draw_slice}
"""Pictures that may be made of a video."""

if __name__ == "__main__":
    names = sys.argv[1:]
    if names[:1] == ["measure"] and len(names) == 2:
        measure_latency(names[1])
        names = ["latency.png"]
    clip = Path(names.pop()) if len(names) == 2 and names[0] in WITH_CLIP and names[1] not in PICTURES else None
    if not {*names} <= {*PICTURES} or (clip and not clip.is_file()):
        sys.exit(f"{__doc__}\nThe pictures: {', '.join(PICTURES)}")
    for name in names or PICTURES:
        WITH_CLIP[name](DOCS / name, clip=clip) if clip else PICTURES[name](DOCS / name)
        print(f"docs/{name}: {(DOCS / name).stat().st_size // 1000} kB", flush=True)
