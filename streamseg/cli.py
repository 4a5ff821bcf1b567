"""The command line: a verb is a function, its options are its signature.

Heavy imports happen inside the verbs, so that help is instant.
"""

import os
import sys
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import streamseg
from streamseg.config import RECIPES, TrainConfig

if TYPE_CHECKING:
    import torch

DataFolder = Annotated[Path, tyro.conf.arg(metavar="DIR")]


def optional(metavar: str, default: str) -> Any:
    """How the help shows an option that may be left out."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


Device = Annotated[str, optional("NAME", "a GPU if there is one")]


def segment(
    image: Annotated[Path, tyro.conf.arg(metavar="IMAGE")],
    out: Annotated[Path | None, optional("[OUT]", "NAME-overlay.png in this folder")] = None,
    /,
    *,
    weights: Annotated[Path | None, optional("FILE", "those that ship")] = None,
) -> None:
    """Label every pixel of a picture: writes it under the colours of its classes, and the labels beside it.

    Args:
        image: The picture: PNG, JPEG, WebP, TIFF, ...
        out: The overlay to write, or a folder for it. The labels, an indexed PNG, go beside it as NAME-labels.png.
        weights: A checkpoint.
    """
    import torch

    from streamseg import checkpoint, draw, images
    from streamseg.files import check_place, written_whole

    out = out or Path()
    if out.is_dir():
        out = out / f"{image.stem}-overlay.png"
    labels_out = out.with_name(f"{out.stem.removesuffix('-overlay')}-labels.png")
    images.check_suffix(out)
    for path in (out, labels_out):
        check_place(path)
        if path.exists() and image.exists() and path.samefile(image):
            raise ValueError(f"{path} is the picture itself: give another name to write to.")

    frame = images.read_image(image)
    model, classes = checkpoint.load(weights)
    with torch.inference_mode():
        labels = model(frame[None])[0].argmax(dim=0)
    with written_whole(out) as overlay_file, written_whole(labels_out) as labels_file:
        images.write_image(overlay_file, draw.overlay(frame, labels, classes))
        images.write_labels(labels_file, labels, classes)

    shares = labels.flatten().bincount(minlength=len(classes)) / labels.numel()
    largest = [f"{classes.names[i]} {shares[i]:.0%}" for i in shares.argsort(descending=True)[:5] if shares[i] > 0.005]
    print(f"{image}: {', '.join(largest)}")
    print(f"  {out}  {labels_out}")


def check(
    dataset: Annotated[str, tyro.conf.arg(metavar="DATASET")],
    /,
    *,
    data: DataFolder,
    sheet: Annotated[Path | None, optional("FILE", "none is written")] = None,
) -> None:
    """Look for all that would make training on a data set go wrong. Exit status 1 if anything would.

    Args:
        dataset: cityscapes, camvid, coco-stuff, ade20k, or folder for one's own.
        data: The data set's folder.
        sheet: A PNG to write some frames to, with their labels drawn over.
    """
    import streamseg.check as doctor
    from streamseg.files import check_place
    from streamseg.images import check_suffix

    if sheet:
        check_suffix(sheet)
        check_place(sheet)
    report = doctor.check(dataset, data)
    print(doctor.render(report))
    if sheet and report.samples:
        doctor.write_contact_sheet(sheet, report)
        print(sheet)
    if report.errors:
        sys.exit(1)


@dataclass(frozen=True)
class TrainRun:
    """A recipe, any part of which an option can change, and what to run it on."""

    config: TrainConfig
    data: DataFolder
    """The data set's folder."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """The folder for weights, log, curves and state; a stopped run goes on from there."""
    resume: bool = False
    """Go on with the run in the out folder."""
    initial: str = "imagenet"
    """What the weights start from: imagenet, nothing, or the path of a checkpoint."""
    encoder_weights: Annotated[Path | None, optional("FILE", "downloaded once")] = None
    """A file of ImageNet weights for the encoder, safetensors or torch."""
    tensorboard: bool = False
    """Write TensorBoard files too."""
    device: Device = ""
    """cuda or cpu."""


def recipes() -> Any:
    """A subcommand for each recipe, whose options begin as the recipe says."""
    runs = {name: TrainRun(recipe.config, tyro.MISSING, tyro.MISSING) for name, recipe in RECIPES.items()}
    about = {name: recipe.about for name, recipe in RECIPES.items()}
    return tyro.extras.subcommand_type_from_defaults(runs, about, prefix_names=False)


def train(run: Annotated[recipes(), tyro.conf.OmitArgPrefixes]) -> None:  # type: ignore[valid-type] # made at run time
    """Train a network by a recipe."""
    import torch

    from streamseg import train as training

    device = pick_device(run.device)
    try:
        weights = training.train(
            run.config,
            run.data,
            run.out,
            device=device,
            initial=run.initial,
            encoder_weights=run.encoder_weights,
            resume=run.resume,
            tensorboard=run.tensorboard,
            compiled=device.type == "cuda",
            threads=torch.get_num_threads(),
        )
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        batch, (height, width) = run.config.batch, run.config.crop
        smaller = f"--batch {batch // 2}" if batch > 1 else f"--crop {height // 2} {width // 2}"
        raise ValueError(
            f"The memory of the {device.type} does not hold a batch of {batch} crops of {height} x {width}: "
            f"try {smaller}; what was saved is still there."
        ) from None
    if int(os.environ.get("RANK", "0")) == 0:
        print(weights)


def evaluate(
    weights: Annotated[Path | None, optional("[WEIGHTS]", "those that ship")] = None,
    /,
    *,
    data: DataFolder,
    dataset: str,
    split: str = "val",
    only: str = "",
    scales: tuple[float, ...] = (1.0,),
    flip: bool = False,
    json: Annotated[Path | None, optional("FILE", "none is written")] = None,
    plots: Annotated[Path | None, optional("DIR", "none are written")] = None,
    device: Device = "",
) -> None:
    """Measure a network on a data set: mIoU and more, at full size.

    Args:
        weights: A checkpoint.
        data: The data set's folder.
        dataset: cityscapes, camvid, coco-stuff, ade20k, or folder for one's own.
        split: The part of the data set to measure on.
        only: Measure on the frames alone whose file name starts so: a recording that training left out.
        scales: Sizes to look at each image in; their answers are averaged.
        flip: Look at each image's mirror image too.
        json: A file for the figures.
        plots: A folder for confusion.png and worst.png.
        device: cuda or cpu.
    """
    from itertools import zip_longest
    from json import dumps

    import torch

    from streamseg import checkpoint, evaluate as evaluation, plot
    from streamseg.datasets import DATASETS
    from streamseg.files import check_place, written_whole
    from streamseg.layers import check_choice

    check_choice("dataset", dataset, tuple(DATASETS))
    if json:
        check_place(json)
    if plots:
        plot.new_figure(1, 1)  # fails now, and not after the work, where the library is missing
        if plots.exists() and not plots.is_dir():
            raise NotADirectoryError(f"{plots} is a file: give a folder for the plots.")
    place = pick_device(device)
    frames = DATASETS[dataset](data, split)
    frames = replace(frames, pairs=tuple(pair for pair in frames.pairs if pair.image.name.startswith(only)))
    model, classes = checkpoint.load(weights)
    for number, (ours, theirs) in enumerate(zip_longest(classes.names, frames.classes.names, fillvalue="not there")):
        if ours != theirs:
            raise ValueError(
                f"The network was trained for other classes than those of {data}: class {number} is {ours} in the one "
                f"and {theirs} in the other."
            )
    model = model.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
    result = evaluation.evaluate(
        model, frames, place, scales=scales, flip=flip, threads=torch.get_num_threads(), progress=show_progress
    )
    print(evaluation.render(result))
    if json:
        with written_whole(json) as temporary:
            temporary.write_text(dumps(evaluation.to_json(result), indent=2) + "\n")
        print(json)
    if plots:
        evaluation.write_plots(plots, result, model, frames, place, scales=scales, flip=flip)
        print(f"{plots / 'confusion.png'}  {plots / 'worst.png'}")


def pick_device(name: str) -> "torch.device":
    """The device of a name, or the best that there is."""
    import torch

    if not name:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":  # of the processes that torchrun starts, each has a GPU of its own
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"{name!r} is no device: give cuda or cpu.") from None
    if device.type not in ("cuda", "cpu"):
        raise ValueError(f"{name!r} is no device to compute on here: give cuda or cpu.")
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise ValueError(f"There is no GPU for --device {name}: leave the option out, or give cpu.")
    return device


def show_progress(done: int, total: int) -> None:
    """One line that counts, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full: Python's, or torch's of a GPU or of the CPU."""
    torchs = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return torchs or isinstance(error, MemoryError)


def fail(sentence: str) -> None:
    """Print a complaint as one line, whatever is in it, and exit with status 2."""
    line = "".join(letter if letter.isprintable() else " " for letter in sentence)
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}streamseg: {' '.join(line.split())}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Run the command line. Exit status: 0 done, 1 a check found errors, 2 wrong input, 128 + n stopped by signal n."""
    for stream in (sys.stdout, sys.stderr):  # a terminal or file that lacks a letter gets a question mark
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if sys.argv[1:] == ["--version"]:
        print(f"streamseg {streamseg.__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"segment": segment, "train": train, "evaluate": evaluate, "check": check},
            prog="streamseg",
            description="Real-time semantic segmentation of images and video. The version: streamseg --version",
        )
    except BrokenPipeError:  # what reads our output has seen enough
        os._exit(0)
    except (ValueError, OSError, ImportError) as error:
        fail(str(error))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        fail("There is not enough memory for pictures of this size: make them smaller, or give --device cpu.")
    except KeyboardInterrupt:
        sys.exit(130)
