"""The command line: a verb is a function, its options are its signature.

Heavy imports happen inside the verbs, so that help is instant.
"""

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import streamseg
from streamseg.config import RECIPES, TrainConfig

if TYPE_CHECKING:
    import torch

    from streamseg.archive import Orders
    from streamseg.pipeline import Labeller, Outcome, Pipeline
    from streamseg.runtime import Exported
    from streamseg.stream import Policy

CLUSTER = re.compile(r"local|auto|(ray://)?[\w.-]+:\d+")
"""What the address of a Ray cluster looks like."""

DataFolder = Annotated[Path, tyro.conf.arg(metavar="DIR")]


def optional(metavar: str, default: str) -> Any:
    """How the help shows an option that may be left out."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


Device = Annotated[str, optional("NAME", "a GPU if there is one")]


def segment(
    names: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE... [OUT]")],
    /,
    *,
    weights: Annotated[Path | None, optional("FILE", "those that ship")] = None,
    overlay: bool = True,
    labels: bool = False,
    confidence: bool = False,
    side_by_side: bool = False,
    legend: bool = False,
    classes: str = "",
    alpha: float = 0.5,
    json: Annotated[Path | None, optional("FILE", "none is written")] = None,
    show: bool = False,
    window: Annotated[int | None, optional("FRAMES", "what the weights were trained with")] = None,
    half_life: Annotated[float | None, optional("SECONDS", "the exact window")] = None,
    cut: Annotated[float | None, optional("DISTANCE", "off")] = None,
    deadline: Annotated[float | None, optional("MS", "none")] = None,
    size: Annotated[str, optional("HEIGHTxWIDTH", "the frames' own, up to 1024 x 2048 pixels")] = "",
    tile: bool = False,
    raw_size: Annotated[str, optional("HEIGHTxWIDTH", "none")] = "",
    rate: Annotated[float | None, optional("FPS", "25")] = None,
    device: Device = "",
    precision: Annotated[str, optional("{fp32,fp16,bf16,int8}", "fp16 on a GPU, fp32 on the CPU")] = "",
    trust: bool = False,
    ray: Annotated[str, optional("[ADDRESS]", "off; without ADDRESS this machine alone")] = "",
) -> None:
    """Label every pixel of pictures, videos, cameras and streams, and write them under the colours of their classes.

    Args:
        names: What to label: pictures, a folder, a pattern ('*.jpg'), a list (.txt), a video, numbered pictures
            (frame_%04d.png), an http or rtsp address, a camera (0), or - for raw frames on standard input. Behind it,
            where to write: a picture or a video, a folder, numbered pictures, or - for raw labels on standard output;
            without it, NAME-overlay.png or .mp4 in this folder.
        weights: A checkpoint, or a file that export wrote (.onnx, .xml, .pt2).
        overlay: Write the overlay: a picture, or a video.
        labels: Write the labels too: NAME-labels.png, indexed, or NAME-labels.mkv, lossless; a pixel is its class.
        confidence: Write how sure the network is too, 0 to 255: NAME-confidence.png or .mkv, lossless.
        side_by_side: Put the frame itself beside the overlay.
        legend: Name the colours.
        classes: Highlight these alone, such as road,car.
        alpha: Share of the colours in the overlay, 0 to 1.
        json: A file for a line of JSON a frame: shares of the classes, latency, age of the mask, size it was seen at.
        show: Show the overlay of one source in a window, of pictures the last until it is closed; q closes it.
        window: How many frames of a video the network looks at; more than 1 is for networks trained so.
        half_life: Instead of a window, let the past fade by half in so many seconds, whatever frames were dropped.
        cut: Forget the past at a change of scene: where contexts differ by more than this.
        deadline: See frames smaller if need be, so that labels come within so many milliseconds.
        size: See frames at this size; labels have the frames' own all the same.
        tile: See large pictures whole, tile by tile, instead of smaller.
        raw_size: The size of raw frames on standard input: RGB, 8 bits.
        rate: Frames a second of numbered pictures and raw frames.
        device: cuda or cpu.
        precision: What the network computes in; int8 is more than twice as fast on a CPU, with nearly the same labels.
        trust: Open a .pt2 file, which is a program and can do whatever it likes.
        ray: Spread videos over a Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT. Into OUT go labels and
            statistics of each video, and an overlay with --overlay; started again, it goes on where it ended.
    """
    from contextlib import ExitStack
    from json import dumps
    from time import monotonic

    from streamseg import latency, runtime
    from streamseg.files import written_whole
    from streamseg.images import allow_large_pictures
    from streamseg.layers import check_choice
    from streamseg.pipeline import Pipeline, Style
    from streamseg.results import Results, check_records, plan
    from streamseg.show import Window
    from streamseg.sources import Capture, search
    from streamseg.stream import check_positive

    given, out = (names[:-1], names[-1]) if len(names) > 1 else (names, "")
    raw = out == "-"
    if precision:
        check_choice("precision", precision, ("fp32", "fp16", "bf16", "int8"))
    if tile and (confidence or (window or 1) > 1 or half_life or deadline or size):
        raise ValueError(
            "--tile sees single pictures at full size: leave out --confidence, --window, --half-life, --deadline and "
            "--size."
        )
    if tile:
        allow_large_pictures()
    for option, number in (("deadline", deadline), ("cut", cut)):
        if number is not None:
            check_positive(option, number)
    policy = pick_policy(window, half_life)

    def labeller_and_style() -> tuple["Labeller", Style]:
        labeller = open_labeller(
            weights,
            pick_device(device or runtime.usual_device(weights)),
            policy,
            cut=cut,
            size=parse_size("--size", size),
            tile=tile,
            deadline=deadline,
            precision=precision,
            confidence=confidence,
            trust=trust,
        )
        only = tuple(find_class(name, labeller.classes.names) for name in classes.split(",") if name.strip())
        return labeller, Style(alpha, only, legend, side_by_side)

    if ray:
        if json or show or tile or raw or deadline is not None or raw_size or rate or not out:
            raise ValueError(
                "--ray reads videos and writes a folder, which comes last: leave out --json, --show, --tile, "
                "--deadline, --raw-size, --rate and -."
            )
        from streamseg.archive import Orders

        labeller, style = labeller_and_style()  # as each worker will have it: what is wrong is told at once
        path = weights and weights.absolute()
        orders = Orders(path, labeller.window, precision, cut, labeller.size, overlay, labels, confidence, style, trust)
        segment_archive(given, out, orders, ray, gpus=(device or runtime.usual_device(weights)) != "cpu")
        return
    sources, missing = search(given, raw_size=parse_size("--raw-size", raw_size), rate=rate)
    if not sources:
        raise missing[0]
    results = plan(sources, out, overlay=overlay, labels=labels, confidence=confidence, missing=len(missing))
    if not (overlay or labels or confidence or json or raw or show):
        raise ValueError("There is nothing to write with --no-overlay alone: add --labels, --confidence or --json.")
    if show and len(sources) > 1:
        raise ValueError(f"--show has one window, and there are {len(sources)} sources: give one, or leave it out.")
    if json:
        check_records(json, sources, results)
    labeller, style = labeller_and_style()

    words = sys.stderr if raw else sys.stdout
    meter = latency.Meter()
    last = monotonic()

    def wrote(capture: Capture, shares: list[float], places: Results) -> None:
        if places.are_pictures and places.paths:
            clear_line()
            print(f"{capture.name}: {describe_shares(labeller.classes.names, shares)}", file=words)
            print("  " + "  ".join(map(str, places.of(capture).paths)), file=words)

    def watch() -> None:
        nonlocal last
        if sys.stderr.isatty() and monotonic() - last > 0.25:
            last = monotonic()
            told = latency.line(meter.summary(), pipeline.total)
            print(f"\r\x1b[K{told}", end="", file=sys.stderr, flush=True)

    screen = Window("streamseg") if show else None
    with ExitStack() as files:
        records = files.enter_context(files.enter_context(written_whole(json)).open("w")) if json else None
        pipeline = Pipeline(
            list(zip(sources, results, strict=True)),
            labeller,
            style,
            meter,
            deadline=None if deadline is None else deadline / 1000,
            records=records,
            raw=sys.stdout.buffer if raw else None,
            window=screen,
            say=complain,
            wrote=wrote,
            watch=watch,
        )
        outcome = pipeline.run()
        summary = meter.summary()
        problems = [*map(str, missing), *outcome.problems]
        if not outcome.frames and problems:
            fail(problems[0])
        if records:
            records.write(dumps({"summary": latency.to_json(summary)}) + "\n")

    clear_line()
    for line in report(pipeline, outcome, deadline):
        print(line, file=words)
    if outcome.frames > 1:
        print(latency.render(summary), file=words)
    for problem in problems:
        complain(problem)
    if outcome.signal:
        complain(f"Stopped after {outcome.frames} frames: what was written holds those.")
    if screen and outcome.frames and not outcome.signal and not any(source.moving for source in sources):
        screen.wait()  # pictures would be gone before anybody saw them
    if outcome.signal or problems:
        sys.exit(128 + outcome.signal if outcome.signal else 1)


def open_labeller(
    weights: Path | None,
    place: "torch.device",
    policy: "Policy | None",
    *,
    cut: float | None,
    size: tuple[int, int] | None,
    tile: bool,
    deadline: float | None,
    precision: str,
    confidence: bool,
    trust: bool,
) -> "Labeller":
    """A network, and how it is to see frames; a ValueError says what it cannot do, if that is asked for."""
    from streamseg import checkpoint, fast, runtime
    from streamseg.pipeline import Labeller
    from streamseg.stream import LastFrames, check_window

    model, classes, trained = runtime.open_weights(weights, place, trust=trust)
    if isinstance(model, runtime.Exported):
        check_exported(
            model, policy, size=size, tile=tile, deadline=deadline, precision=precision, confidence=confidence
        )
        trained = trained if model.manifest.state else 1
        size = model.manifest.size or size
    elif tile:
        checkpoint.only_fanet(model, "--tile")
    engine = fast.engine_for(model, place, precision, plain=tile)
    policy = policy or LastFrames(1 if tile else trained)
    check_window(engine, policy)
    return Labeller(engine, classes, policy, cut, size, tile, confidence)


def segment_archive(names: Sequence[str], out: str, orders: "Orders", address: str, *, gpus: bool) -> None:
    """Label videos on a Ray cluster, and tell how far it is and how it went. Exit status 1 if any had a problem."""
    from time import monotonic

    from streamseg import archive

    last = monotonic()

    def progress(report: archive.Report) -> None:
        nonlocal last
        terminal = sys.stderr.isatty()
        if monotonic() - last > (0.25 if terminal else 60):
            last = monotonic()
            start, end = ("\r\x1b[K", "") if terminal else ("", "\n")
            print(f"{start}{archive.line(report)}", end=end, file=sys.stderr, flush=True)

    report = archive.segment_archive(names, out, orders, address, gpus=gpus, progress=progress)
    clear_line()
    print(archive.line(report))
    print(out)
    for problem in report.problems.values():
        complain(problem)
    if report.problems:
        sys.exit(1)


def check_exported(
    file: "Exported",
    policy: "Policy | None",
    *,
    size: tuple[int, int] | None = None,
    tile: bool = False,
    deadline: float | None = None,
    precision: str = "",
    confidence: bool = False,
) -> None:
    """Raise a ValueError that says what an exported file cannot do, if that is asked for."""
    from streamseg.stream import LastFrames

    path, fixed = file.path, file.manifest.size
    if tile:
        raise ValueError(f"--tile needs the network itself, and {path} is an exported file: give a checkpoint.")
    if precision:
        raise ValueError(f"{path} computes in what it was exported in: leave out --precision.")
    if confidence and not file.manifest.confidence:
        raise ValueError(f"{path} gives no confidence: leave out --confidence, or export it with --confidence.")
    if fixed and size not in (None, fixed):
        raise ValueError(f"{path} takes frames of {fixed[0]} x {fixed[1]} alone: leave out --size.")
    if fixed and deadline is not None:
        raise ValueError(f"{path} takes frames of one size: leave out --deadline, or export it without --size.")
    if not file.manifest.state and policy not in (None, LastFrames(1)):
        raise ValueError(f"{path} looks at single frames: leave out the window, or export it with --video.")


def report(pipeline: "Pipeline", outcome: "Outcome", deadline: float | None) -> Iterator[str]:
    """What a run wrote and saw, in lines."""
    for stream in pipeline.streams:
        if stream.written and not stream.results.are_pictures:
            yield f"{stream.source.name}: {'  '.join(map(str, stream.results.paths))}"
    if outcome.frames > 1:
        yield f"\nall frames: {describe_shares(pipeline.labeller.classes.names, outcome.shares)}"
        yield f"seen at {outcome.size[0]} x {outcome.size[1]}\n"
        if deadline is not None:
            yield f"{describe_deadline(deadline, outcome)}\n"


def clear_line() -> None:
    """Take the line that tells how far it is off the terminal."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def pick_policy(window: int | None, half_life: float | None) -> "Policy | None":
    """What is remembered of a video: the last frames, or a past that fades in time; None where nothing was said."""
    from streamseg.stream import FadingInTime, LastFrames

    if window is not None and half_life is not None:
        raise ValueError("Give --window or --half-life, not both.")
    if half_life is not None:
        return FadingInTime(half_life)
    return None if window is None else LastFrames(window)


def parse_size(option: str, text: str) -> tuple[int, int] | None:
    """A height and width from "HEIGHTxWIDTH"; None from nothing."""
    if not text:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isascii() and side.isdecimal() and 32 <= int(side) <= 65536 for side in sides):
        raise ValueError(f"{option} is {text!r:.80}; expected a height and a width from 32 up, such as 720x1280.")
    return int(sides[0]), int(sides[1])


def find_class(name: str, names: tuple[str, ...]) -> int:
    """The number of a class by its name, in small letters or large."""
    for number, known in enumerate(names):
        if known.lower() == name.strip().lower():
            return number
    raise ValueError(f"No class is called {name.strip()!r:.80}; there are {', '.join(names)}.")


def describe_shares(names: tuple[str, ...], shares: list[float]) -> str:
    """The largest classes of a frame and their shares of it."""
    largest = sorted(zip(shares, names, strict=True), reverse=True)[:5]
    return ", ".join(f"{name} {share:.0%}" for share, name in largest if share > 0.005)


def describe_deadline(milliseconds: float, outcome: "Outcome") -> str:
    """How many frames held a deadline, and how small they had to be seen for it."""
    late, (height, width) = outcome.late / outcome.frames, outcome.smallest
    told = f"deadline of {milliseconds:g} ms"
    if outcome.out_of_reach > 0.01 * outcome.frames:
        return (
            f"{told} could not be held: {100 * late:.1f} % of the frames were late, though seen as small as "
            f"{height} x {width}, the least; give a longer one, a smaller --size or a faster --device"
        )
    return f"{told} held by {100 - 100 * late:.1f} % of the frames, the smallest of them seen at {height} x {width}"


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


def pack(
    names: Annotated[tuple[str, str], tyro.conf.arg(metavar="DATASET OUT")],
    /,
    *,
    data: DataFolder,
    splits: Annotated[tuple[str, ...], optional("SPLIT ...", "all")] = (),
    megabytes: float = 256.0,
) -> None:
    """Pack a data set into a few large tar files, which train and evaluate take as --data, on a disk or in a store.

    Args:
        names: cityscapes, camvid, coco-stuff, ade20k, or folder for one's own; and the folder to write to.
        data: The data set's folder.
        splits: The parts to pack.
        megabytes: The size of a file.
    """
    import torch

    from streamseg import shards
    from streamseg.datasets import DATASETS
    from streamseg.layers import check_choice
    from streamseg.stream import check_positive

    dataset, out = names[0], Path(names[1])
    check_choice("dataset", dataset, tuple(DATASETS))
    check_positive("megabytes", megabytes)
    found = shards.pack(
        dataset, data, out, splits, megabytes=megabytes, threads=torch.get_num_threads(), progress=show_progress
    )
    print(f"{out}: {', '.join(f'{count:,} frames of {split}' for split, count in found.items())}")


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
    window: Annotated[int | None, optional("FRAMES", "single frames, in any order")] = None,
    half_life: Annotated[float | None, optional("SECONDS", "the exact window")] = None,
    json: Annotated[Path | None, optional("FILE", "none is written")] = None,
    plots: Annotated[Path | None, optional("DIR", "none are written")] = None,
    device: Device = "",
    precision: Annotated[str, optional("{fp32,fp16,bf16,int8}", "fp32, operator by operator")] = "",
    trust: bool = False,
    ray: Annotated[str, optional("[ADDRESS]", "off; without ADDRESS this machine alone")] = "",
) -> None:
    """Measure a network on a data set: mIoU and more, at full size.

    Args:
        weights: A checkpoint, or a file that export wrote (.onnx, .xml, .pt2).
        data: The data set's folder.
        dataset: cityscapes, camvid, coco-stuff, ade20k, or folder for one's own.
        split: The part of the data set to measure on.
        only: Measure on the frames alone whose file name starts so: a recording that training left out.
        scales: Sizes to look at each image in; their answers are averaged.
        flip: Look at each image's mirror image too.
        window: Look at sequences in order, at so many frames of them at a time, and measure how steady the labels are
            and how long a frame takes; 1 is the network for images.
        half_life: Instead of a window, let the past fade by half in so many seconds.
        json: A file for the figures.
        plots: A folder for confusion.png and worst.png.
        device: cuda or cpu.
        precision: Measure the network's fast form in this: fp16 or bf16 on a GPU, fp32 or int8 on the CPU.
        trust: Open a .pt2 file, which is a program and can do whatever it likes.
        ray: Spread the frames over a Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT.
    """
    from itertools import zip_longest
    from json import dumps

    import torch

    from streamseg import evaluate as evaluation, evaluate_video as video, plot, runtime
    from streamseg.datasets import DATASETS
    from streamseg.files import check_place, written_whole
    from streamseg.layers import check_choice
    from streamseg.shards import open_dataset

    check_choice("dataset", dataset, tuple(DATASETS))
    policy = pick_policy(window, half_life)
    if policy and ray:
        raise ValueError("--window and --half-life time each frame, for which it must have no rival: leave out --ray.")
    if policy and (flip or scales != (1.0,)):
        raise ValueError("--window and --half-life see each frame once, as it is: leave out --scales and --flip.")
    if json:
        check_place(json)
    if plots:
        plot.new_figure(1, 1)  # fails now, and not after the work, where the library is missing
        if plots.exists() and not plots.is_dir():
            raise NotADirectoryError(f"{plots} is a file: give a folder for the plots.")
    place = pick_device(device or runtime.usual_device(weights))
    frames = open_dataset(dataset, data.absolute() if ray and data.exists() else data, split)
    frames = replace(frames, pairs=tuple(pair for pair in frames.pairs if pair.image.name.startswith(only)))
    model, classes, _ = runtime.open_weights(weights, place, trust=trust)
    for number, (ours, theirs) in enumerate(zip_longest(classes.names, frames.classes.names, fillvalue="not there")):
        if ours != theirs:
            raise ValueError(
                f"The network was trained for other classes than those of {data}: class {number} is {ours} in the one "
                f"and {theirs} in the other."
            )
    if isinstance(model, runtime.Exported):
        check_exported(model, policy, precision=precision)
    engine = evaluation.engine_of(model, place, frames, precision=precision, scales=scales, flip=flip)
    threads = torch.get_num_threads()
    if policy:
        steady = video.evaluate_video(engine, frames, policy, threads=threads, progress=show_progress)
        table, told = video.render_video(steady), video.video_to_json(steady)
    else:
        if ray:
            result = evaluation.evaluate_on_cluster(
                frames,
                weights and weights.absolute(),
                ray,
                precision=precision,
                scales=scales,
                flip=flip,
                trust=trust,
                gpus=(device or runtime.usual_device(weights)) != "cpu",
                progress=show_progress,
            )
        else:
            result = evaluation.evaluate(engine, frames, threads=threads, progress=show_progress)
        table, told = evaluation.render(result), evaluation.to_json(result)
    print(table)
    if json:
        with written_whole(json) as temporary:
            temporary.write_text(dumps(told, indent=2) + "\n")
        print(json)
    if plots:
        if policy:
            video.write_video_plots(plots, steady, engine, frames, policy)
        else:
            evaluation.write_plots(plots, result, engine, frames)
        print(f"{plots / 'confusion.png'}  {plots / 'worst.png'}")


def export(
    names: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="[WEIGHTS] OUT")],
    /,
    *,
    to: Annotated[str, optional("{onnx,openvino,torch,aotinductor}", "by the suffix")] = "",
    size: Annotated[str, optional("HEIGHTxWIDTH", "any size")] = "",
    confidence: bool = False,
    video: bool = False,
    int8: bool = False,
    pictures: Annotated[str | None, optional("DIR", "the samples")] = None,
    device: Device = "",
) -> None:
    """Write a network as a file for another runtime, which is then compared with it; one that disagrees is not kept.

    Args:
        names: A checkpoint, without which it is the one that ships; and the file to write: .onnx, .xml (OpenVINO),
            .pt2 (torch.export, or with --to an AOTInductor package).
        to: What to write.
        size: The size of the frames that it takes, which makes it faster.
        confidence: Give how sure the network is as well.
        video: Carry the state of a stream: four matrices in, four out.
        int8: Compute in bytes for the most part (ONNX), calibrated with half of the pictures, compared on the others.
        pictures: A folder, a video or the like, to compare on; for --int8 like what is to come, to calibrate with too.
        device: What aotinductor compiles for: cuda or cpu.
    """
    from streamseg import checkpoint, export as exporter

    if not names:
        raise ValueError("There is nothing to write: give OUT, such as model.onnx.")
    if len(names) > 2:
        raise ValueError(f"{len(names)} names are too many: give a checkpoint, if not the one that ships, and OUT.")
    *given, out = names
    weights = given[0] if given else checkpoint.SHIPPED
    kind = exporter.pick_kind(out, to)
    if int8 and pictures is None:
        raise ValueError("--int8 is calibrated with pictures like those to come: give them with --pictures DIR.")
    network, classes = checkpoint.load(weights)
    model = checkpoint.only_fanet(network, "export")
    description = checkpoint.describe(weights)
    agreement = exporter.export_model(
        model.to(pick_device(device if kind == "aotinductor" else "cpu")),
        classes,
        out,
        to=kind,
        size=parse_size("--size", size),
        confidence=confidence,
        video=video,
        int8=int8,
        pictures=pictures,
        window=description.window,
        source=description.source,
    )
    print(exporter.render(out, agreement))


def serve(
    weights: Annotated[Path | None, optional("[WEIGHTS]", "those that ship")] = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: Annotated[str, optional("TEXT", "that of STREAMSEG_TOKEN, or none")] = "",
    window: Annotated[int | None, optional("FRAMES", "what the weights were trained with")] = None,
    queue: int = 32,
    batch: int = 8,
    megabytes: float = 32.0,
    megapixels: float = 32.0,
    seconds: float = 30.0,
    device: Device = "",
    precision: Annotated[str, optional("{fp32,fp16,bf16,int8}", "fp16 on a GPU, fp32 on the CPU")] = "",
    trust: bool = False,
) -> None:
    """Serve a network to other programs, over HTTP and WebSockets, and to people, as a page. Ctrl-C ends it.

    Args:
        weights: A checkpoint, or a file that export wrote (.onnx, .xml, .pt2).
        host: The address to listen at; this machine alone reaches 127.0.0.1, and everybody 0.0.0.0.
        port: The port to listen at; 0 for any that is free.
        token: What clients must know, sent as Authorization: Bearer TEXT.
        window: How many frames of a stream the network looks at.
        queue: How many pictures may be received, waited with or labelled at a time; more are told to come again.
        batch: The most frames of several clients that the network sees at once.
        megabytes: The largest picture, as a file.
        megapixels: The largest picture, in millions of pixels.
        seconds: How long a picture may take to arrive, and to be labelled.
        device: cuda or cpu.
        precision: What the network computes in; int8 is more than twice as fast on a CPU, with nearly the same labels.
        trust: Open a .pt2 file, which is a program and can do whatever it likes.
    """
    from importlib.util import find_spec

    from streamseg import checkpoint, fast, runtime
    from streamseg.images import allow_large_pictures
    from streamseg.layers import check_count
    from streamseg.stream import LastFrames, check_positive, check_window

    for module in ("fastapi", "uvicorn", "websockets"):
        if find_spec(module) is None:
            raise ImportError(f"serve needs {module}: pip install 'streamseg[serve]'")

    from streamseg import serve as server

    for option, number in (("queue", queue), ("batch", batch)):
        check_count(option, number)
    for option, amount in (("megabytes", megabytes), ("megapixels", megapixels), ("seconds", seconds)):
        check_positive(option, amount)
    token = token or os.environ.get("STREAMSEG_TOKEN", "")
    if token and not server.TOKEN.fullmatch(token):
        raise ValueError("The token holds other characters than letters, digits and . _ ~ + -: choose another.")
    listening = server.listen(host, port)
    place = pick_device(device or runtime.usual_device(weights))
    model, classes, trained = runtime.open_weights(weights, place, trust=trust)
    if isinstance(model, runtime.Exported):
        check_exported(model, None if window is None else LastFrames(window), precision=precision)
        trained = trained if model.manifest.state else 1
    engine = fast.engine_for(model, place, precision)
    frames = trained if window is None else window
    check_window(engine, LastFrames(frames))
    allow_large_pictures()  # what is sent has limits of its own
    limits = server.Limits(round(megabytes * 2**20), round(megapixels * 1e6), seconds, queue)
    desk = server.Desk(server.Served(engine, classes, frames, weights or checkpoint.SHIPPED), limits, token, batch)
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{listening.getsockname()[1]} serves {desk.served.weights.name}. Ctrl-C ends it.", flush=True)
    if not (token or server.is_private(listening)):
        complain("Whoever reaches this machine can use the server: give --token to choose who.")
    caught = server.run(desk, listening)
    if caught:
        sys.exit(128 + caught)


def reproduce(
    table: Annotated[str, tyro.conf.arg(metavar="TABLE")],
    /,
    *,
    runs: Annotated[Path | None, optional("DIR", "no accuracy")] = None,
    data: Annotated[Path | None, optional("DIR", "no accuracy")] = None,
    dataset: str = "camvid",
    split: str = "val",
    only: str = "",
    speed: Annotated[str, optional("{yes,no}", "yes on a GPU, no on the CPU")] = "",
    compiled: bool = False,
    out: Annotated[Path | None, optional("DIR", "none are written")] = None,
    device: Device = "",
) -> None:
    """Measure again what the paper prints, and show both side by side.

    Args:
        table: I (cost of the attention), II (its key channels), III (its kinds), reduction (its place and kind; a
            figure), IV (Cityscapes), V (CamVid, COCO-Stuff), VI (video), or all.
        runs: A folder of trained networks, RUN/weights.safetensors, to measure the accuracy of; what each is, it says.
        data: The data set's folder, to measure them on.
        dataset: cityscapes, camvid, coco-stuff, ade20k, or folder for one's own.
        split: The part of the data set to measure on.
        only: Measure on the frames alone whose file name starts so: a recording that training left out.
        speed: Whether to measure speed: the network alone as in the paper, and from frame to labels.
        compiled: Compile each network for the way from frame to labels, which takes minutes.
        out: A folder for each table as Markdown, JSON and a plot.
        device: cuda or cpu.
    """
    import platform

    import torch

    from streamseg import paper, plot, reproduce as reproduction
    from streamseg.datasets import DATASETS
    from streamseg.layers import check_choice

    check_choice("table", table, (*paper.TABLES, "all"))
    check_choice("dataset", dataset, tuple(DATASETS))
    if speed:
        check_choice("speed", speed, ("yes", "no"))
    if (runs is None) != (data is None):
        raise ValueError("Accuracy needs both: --runs DIR, networks that were trained, and --data DIR, a data set.")
    if out:
        plot.new_figure(1, 1)  # fails now, and not after the work, where the library is missing
        if out.exists() and not out.is_dir():
            raise NotADirectoryError(f"{out} is a file: give a folder for the tables.")
    place = pick_device(device)
    threads = torch.get_num_threads()
    judge = None
    if runs and data:
        try:
            frames = DATASETS[dataset](data, split)
        except FileNotFoundError as error:
            source = paper.DOWNLOADS.get(dataset)
            raise FileNotFoundError(f"{error} It is {source}." if source else str(error)) from None
        frames = replace(frames, pairs=tuple(pair for pair in frames.pairs if pair.image.name.startswith(only)))
        judge = reproduction.Judge(reproduction.find_runs(runs), frames, place, threads)
    timed = speed == "yes" or (not speed and place.type == "cuda")
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else f"{threads} cores of {platform.machine()}"
    words = [f"Here: {name}, torch {torch.__version__}; the paper: a Titan X."] if timed else []
    for part in [part for name, parts in paper.TABLES.items() if table in (name, "all") for part in parts]:
        results = reproduction.reproduce(
            part, place, timed=timed, compiled=compiled, judge=judge, progress=show_progress
        )
        judged = [judge.describe()] if judge and any("miou" in result.found for result in results) else []
        print(reproduction.render(part, results, [*words, *judged]))
        if out:
            print("  ".join(map(str, reproduction.write(out, part, results, [*words, *judged]))), end="\n\n")


def benchmark(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[MODEL ...]")] = (
        "fanet18",
        "fanet34",
    ),
    /,
    *,
    size: Annotated[str, optional("HEIGHTxWIDTH", "1024x2048 on a GPU, 512x1024 on the CPU")] = "",
    batch: int = 1,
    compiled: bool = False,
    seconds: float = 3.0,
    profile: bool = False,
    json: Annotated[Path | None, optional("FILE", "none is written")] = None,
    plot: Annotated[Path | None, optional("FILE", "none is drawn")] = None,
    device: Device = "",
    precision: Annotated[str, optional("{fp16,bf16,fp32,int8}", "fp16 on a GPU, fp32 on the CPU")] = "",
    trust: bool = False,
) -> None:
    """Measure how long networks take from a frame to its labels, and what they cost.

    Args:
        models: Names of networks, with random weights and 19 classes, checkpoints, or files that export wrote (.onnx,
            .xml, .pt2). fanet18, fanet34, and the rivals segnet, enet, icnet, erfnet, bisenet18, shelfnet18,
            swiftnet18, fcn16s, fcn8s, deeplab.
        size: Height and width of the frames.
        batch: Frames at a time.
        compiled: Measure torch.compile too, which takes a minute for each network.
        seconds: How long to measure each network.
        profile: Name the ten most expensive kernels or operators.
        json: A file for the figures.
        plot: A PNG for the median times.
        device: cuda or cpu; with a .onnx or .xml file it is cpu unless told otherwise.
        precision: What the fast and the plain way compute in; a file has its own.
        trust: Open a .pt2 file, which is a program and can do whatever it likes.
    """
    from dataclasses import asdict
    from json import dumps

    from streamseg import benchmark as costs, plot as plots, runtime
    from streamseg.files import check_place, written_whole
    from streamseg.layers import check_count
    from streamseg.stream import check_positive

    check_count("batch", batch)
    check_positive("seconds", seconds)
    # one device for all, or their times could not be compared
    usual = "cpu" if any(runtime.usual_device(Path(name)) for name in models) else ""
    place = pick_device(device or usual)
    seen = parse_size("--size", size) or ((1024, 2048) if place.type == "cuda" else (512, 1024))
    if json:
        check_place(json)
    if plot:
        plots.new_figure(1, 1)  # fails now, and not after the work, where the library is missing
        check_place(plot)
    found = []
    for number, name in enumerate(models):
        show_progress(number, len(models))
        found.append(
            costs.measure(name, seen, batch, place, precision, compiled=compiled, seconds=seconds, trust=trust)
        )
    clear_line()
    machine = costs.describe_machine(place)
    print(costs.render(found, seen, batch, machine))
    if profile:
        for name in models:
            print(f"\n{name}: the ten that take most, ms a frame")
            spent = costs.profile(name, seen, place, precision)
            for kernel, taken in spent:
                print(f"{taken:10.4f}  {kernel:.100}")
            if not spent:
                print(f"{'-':>10}")
    if json:
        entry = {"machine": machine, "size": seen, "batch": batch, "networks": [asdict(cost) for cost in found]}
        with written_whole(json) as temporary:
            temporary.write_text(dumps(entry, indent=2) + "\n")
    if plot:
        costs.draw(plot, found, seen, machine)


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


def complain(sentence: str) -> None:
    """Print a complaint as one line, whatever is in it."""
    line = "".join(letter if letter.isprintable() else " " for letter in sentence)
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}streamseg: {' '.join(line.split())}", file=sys.stderr)


class Complaints(logging.Handler):
    """Prints what the package has to say."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def fail(sentence: str) -> None:
    """Complain, and exit with status 2."""
    complain(sentence)
    sys.exit(2)


def names_first(arguments: Sequence[str], verb: Callable[..., None] = segment) -> list[str]:
    """The command line of a verb with its names before its options; behind one of them tyro takes no name."""
    if "--" in arguments:
        return list(arguments)
    switches = {name for name, parameter in signature(verb).parameters.items() if parameter.annotation is bool}
    names, options = [], []
    left = iter(arguments)
    for argument in left:
        if argument == "-" or not argument.startswith("-"):
            names.append(argument)
            continue
        options.append(argument)
        option = argument.removeprefix("--").removeprefix("no-").replace("-", "_")
        if argument.startswith("--") and "=" not in argument and option not in switches:
            options += islice(left, 1)  # its value
    return [*names, *options]


def complete_ray(arguments: Sequence[str]) -> list[str]:
    """The command line with all that --ray stands for: this machine, if no address follows; labels, and no overlay."""
    completed = list(arguments)
    if "--ray" in arguments:
        place = completed.index("--ray") + 1
        if not CLUSTER.fullmatch("".join(completed[place : place + 1])):
            completed.insert(place, "local")
    asked = any(argument.partition("=")[0] == "--ray" for argument in arguments)
    if asked and arguments[0] == "segment":
        for option, usual in (("overlay", "--no-overlay"), ("labels", "--labels")):
            if not {f"--{option}", f"--no-{option}"} & {*arguments}:
                completed.append(usual)
    return completed


def main() -> None:
    """Run the command line. Exit status: 0 done, 1 a check found errors, 2 wrong input, 128 + n stopped by signal n."""
    warnings.filterwarnings("ignore", module="PIL")  # of damaged pictures, which get a sentence
    for name in ("stdout", "stderr"):  # one that was closed is as good as one that nobody reads
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (until the end)
    for stream in (sys.stdout, sys.stderr):  # a terminal or file that lacks a letter gets a question mark
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    logger = logging.getLogger("streamseg")
    logger.addHandler(Complaints())
    logger.setLevel(logging.INFO)
    arguments = sys.argv[1:]
    if arguments[:1] in (["segment"], ["evaluate"]):
        arguments = complete_ray(arguments)
    for verb in (segment, export, pack, serve):  # whose names may stand behind options
        if arguments[:1] == [verb.__name__]:
            arguments = [verb.__name__, *names_first(arguments[1:], verb)]
    if arguments == ["--version"]:
        print(f"streamseg {streamseg.__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            {
                "segment": segment,
                "train": train,
                "evaluate": evaluate,
                "check": check,
                "pack": pack,
                "reproduce": reproduce,
                "benchmark": benchmark,
                "export": export,
                "serve": serve,
            },
            prog="streamseg",
            description="Real-time semantic segmentation of images and video. The version: streamseg --version",
            args=arguments,
        )
    except BrokenPipeError:  # what reads our output has seen enough, and needs nothing that is left for it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ValueError, OSError, ImportError) as error:
        fail(str(error))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        fail("There is not enough memory for pictures of this size: make them smaller, or give --device cpu.")
    except KeyboardInterrupt:
        sys.exit(130)
