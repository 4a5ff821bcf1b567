"""The verbs evaluate and reproduce: how accurate a network is, and the tables of the paper."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from cyclopts import Parameter

from streamseg.class_table import Translation, open_table_of
from streamseg.cli.masks import check_mask_file, read_mask_option
from streamseg.cli.messages import (
    check_figures,
    loading,
    open_messages,
    pick_progress,
    print_error,
    write_figures,
)
from streamseg.cli.options import (
    DATASET_NAMES,
    PRECISION_NAMES,
    Dataset,
    Device,
    Json,
    Quiet,
    Ray,
    Weights,
    check_data,
    check_exported,
    check_folder,
    check_weights,
    default_device,
    option,
    parse_steady,
    pick_device,
    pick_policy,
    set_key_interval,
    weights_on_cluster,
)
from streamseg.cli.video_measuring import check_video_options, evaluate_unlabelled
from streamseg.evaluate.paper import DOWNLOADS, TABLES

if TYPE_CHECKING:
    import torch

    from streamseg.data import datasets
    from streamseg.engine.engine import Engine
    from streamseg.evaluate.reproduce import RunEvaluator
    from streamseg.stream.state import Policy


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The options of evaluate."""

    data: Annotated[Path | None, option("DIR", "required, unless there is a --video")] = None
    """The folder of the data set."""
    dataset: Annotated[str, option("NAME", "required, unless there is a --video", DATASET_NAMES)] = ""
    """cityscapes, camvid, comma10k, coco-stuff, ade20k, or folder for your own data."""
    video: Annotated[str, option("FILE", "none")] = ""
    """Instead of a data set, a video without labels, also as numbered pictures (frame_%04d.png) or a folder of frames:
    measure how steady its labels are along the motion. segment keeps them steady by default: --steady low."""
    slice: Annotated[Path | None, option("FILE", "none")] = None
    """A picture for one row of the video over time, with its labels."""
    row: Annotated[int | None, option("ROW", "the middle")] = None
    """The row of the slice, from 0 at the top."""
    split: str = "val"
    """The split to measure on."""
    only: Annotated[str, option("NAME", "all frames")] = ""
    """Measure only frames whose file name starts with this, such as a recording that training left out, or devices of
    comma10k; several with commas between them."""
    scales: Annotated[tuple[float, ...], Parameter(metavar="FLOAT ...", show_default="1.0", consume_multiple=True)] = (
        1.0,
    )
    """Scales at which to run each image; the scores are averaged."""
    flip: bool = False
    """Average the scores with those of the mirrored image."""
    window: Annotated[int | None, option("FRAMES", "single frames, in any order")] = None
    """Run sequences in order with this window, and measure temporal consistency and latency too; 1 is the network for
    images."""
    half_life: Annotated[float | None, option("SECONDS", "the exact window")] = None
    """Instead of a window, let the past decay by half in this time."""
    steady: Annotated[str, option("HOW", "off")] = ""
    """With --window, --half-life or --video, keep labels steady: low, high, or a margin by which a new class must
    win."""
    mask: Annotated[str, option("FILE", "none")] = ""
    """A picture whose black pixels are ignored by the network and in all figures; with --video also bonnet, for the
    own car as the network finds it in the first frames."""
    class_table: Annotated[str, option("TABLE", "what is known of the network's classes")] = ""
    """How the network's classes count as labels of the data set: street, or a file of "class, colour, DATA SET, ..."
    lines; FILE:COLUMN names the column of the data set."""
    json: Json = None
    """A file for the figures; - for standard output."""
    plots: Annotated[Path | None, option("DIR", "none are written")] = None
    """A folder for confusion.png and worst.png."""
    device: Device = ""
    """cuda or cpu."""
    precision: Annotated[str, option(default="fp32, eager", choices=PRECISION_NAMES)] = ""
    """Measure the fast form of the network in this precision: fp16 or bf16 on a GPU, fp32 or int8 on the CPU."""
    trust: bool = False
    """Allow a .pt2 file, which is a program and can run any code."""
    ray: Ray = ""
    """Distribute the frames over a Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT."""
    quiet: Quiet = False
    """Print only warnings and errors."""


EVALUATE_DEFAULTS = EvaluateOptions()


def evaluate(
    weights: Weights = None,
    /,
    *,
    options: Annotated[EvaluateOptions, Parameter(name="*")] = EVALUATE_DEFAULTS,
) -> int:
    """Measure a network on a data set: mIoU and more; or how steady it is on a video.

    Args:
        weights: A name that streamseg weights lists, hf:USER/NAME, a checkpoint, or a file of export: .onnx, .xml or
            .pt2.

    Examples:
        streamseg evaluate --dataset camvid --data CamVid --split val
        streamseg evaluate run/weights.safetensors --dataset folder --data mine
        streamseg evaluate --dataset camvid --data CamVid --window 1 --plots plots
        streamseg evaluate --video drive.mp4 --steady 0.5 --slice drive.png
    """
    check_video_options(options, EVALUATE_DEFAULTS)
    check_weights(weights)
    check_figures(options.json)
    if options.video:
        return evaluate_unlabelled(weights, options)
    return evaluate_labelled(weights, options, require_data(options))


def require_data(options: EvaluateOptions) -> Path:
    """Return the folder of the data set; raise an error if it is not given, or missing."""
    if not (options.data and options.dataset):
        needed = {"--data DIR": options.data, "--dataset NAME": options.dataset}
        missing = " and ".join(name for name, given in needed.items() if not given)
        raise ValueError(f"streamseg evaluate needs {missing}, or --video FILE: see streamseg evaluate --help.")
    check_data(options.dataset, options.data)
    return options.data


def evaluate_labelled(weights: Path | None, options: EvaluateOptions, folder: Path) -> int:
    """Measure a network on a data set."""
    check_folder(options.plots, "plots")
    check_mask_file(options.mask, bonnet=False)
    table = open_table_of(options.class_table, options.dataset) if options.class_table else None
    with loading(options.quiet):
        from streamseg.data.shards import open_dataset
        from streamseg.engine import runtime
        from streamseg.evaluate import plot
        from streamseg.evaluate.engines import open_evaluation_engine
        from streamseg.evaluate.translate import describe_translation, translate_dataset

    policy = pick_policy(options.window, options.half_life, parse_steady(options.steady))
    check_combination(options, policy)
    if options.plots:
        plot.new_figure(1, 1)  # fails here rather than after the work, if the library is missing
    device = pick_device(options.device or default_device(weights))
    data = folder.absolute() if options.ray and folder.exists() else folder
    frames = keep_frames(open_dataset(options.dataset, data, options.split), options.only)
    engine, classes = open_evaluation_engine(
        weights,
        device,
        frames,
        precision=options.precision,
        scales=options.scales,
        flip=options.flip,
        trust=options.trust,
    )
    translation, frames = translate_dataset(classes, frames, table)
    policy = set_key_interval(engine, policy) or method_policy(engine, options)
    if isinstance(engine, runtime.ExportedEngine):
        steady = parse_steady(options.steady)
        check_exported(engine, policy, precision=options.precision, steady=steady, mask=bool(options.mask))
    if not options.quiet and (sentence := describe_translation(translation, options.dataset)):
        print_error(f"{sentence}.")
    if policy:
        evaluate_sequences(engine, frames, translation, policy, options)
    else:
        evaluate_frames(engine, frames, translation, weights, options)
    return 0


def check_combination(options: EvaluateOptions, policy: "Policy | None") -> None:
    """Raise an error if options of evaluate do not go together."""
    if parse_steady(options.steady) and not policy:
        raise ValueError("--steady is for frames in order: give --window or --half-life too.")
    if options.mask and (options.ray or options.flip or options.scales != (1.0,)):
        raise ValueError("--mask is for one run of each frame on this machine: leave out --ray, --scales and --flip.")
    if policy and options.ray:
        raise ValueError("--window and --half-life time each frame, so nothing else may run: leave out --ray.")
    if policy and (options.flip or options.scales != (1.0,)):
        raise ValueError("--window and --half-life run each frame once: leave out --scales and --flip.")


def method_policy(engine: "Engine", options: EvaluateOptions) -> "Policy | None":
    """Return the policy for a video method without --window, which runs in order with its own key interval."""
    from streamseg.engine.engine import VideoEngine
    from streamseg.stream.state import LastFrames

    if not isinstance(engine, VideoEngine):
        return None
    if options.ray:
        raise ValueError(f"{engine.model.name} runs frames in order, where each is timed: leave out --ray.")
    return LastFrames(1)


def keep_frames(frames: "datasets.Dataset", only: str) -> "datasets.Dataset":
    """Return a data set with only the frames of some names: starts of file names, or devices, separated by commas."""
    from streamseg.data.datasets import pairs_by_name

    if not only:
        return frames
    found = pairs_by_name(frames, only) or {only: set()}
    for name, pairs in found.items():
        if not pairs:
            raise ValueError(
                f"No frame of {frames.name} {frames.split} has a name that begins with --only {name!r:.80}."
            )
    kept = {pair for pairs in found.values() for pair in pairs}
    return replace(frames, pairs=tuple(pair for pair in frames.pairs if pair in kept))


def evaluate_sequences(
    engine: "Engine",
    frames: "datasets.Dataset",
    translation: Translation,
    policy: "Policy",
    options: EvaluateOptions,
) -> None:
    """Run sequences in order, and print the accuracy, the temporal consistency and the latency."""
    import torch

    from streamseg.engine.engine import VideoEngine
    from streamseg.evaluate import video, video_methods

    messages, progress = open_messages(options.quiet, options.json), pick_progress(options.quiet)
    label_of = translation.label_of
    mask = read_mask_option(options.mask)
    found = video.evaluate_video(
        engine, frames, policy, threads=torch.get_num_threads(), progress=progress, label_of=label_of, mask=mask
    )
    print(video.format_video_evaluation(found), file=messages)
    figures = video.video_evaluation_to_json(found) | translation_to_json(translation) | data_to_json(options)
    if isinstance(engine, VideoEngine) and engine.model.interval is not None:
        scores = video_methods.evaluate_distances(
            engine.model, frames, engine.model.interval, threads=torch.get_num_threads(), label_of=label_of, mask=mask
        )
        print(video_methods.format_distances(scores), file=messages)
        figures["miou_by_distance"] = [None if math.isnan(miou) else miou for miou in scores.mious]
    write_figures(options.json, figures, messages)
    if options.plots:
        video.write_video_plots(options.plots, found, engine, frames, policy, label_of, mask)
        print_plots(options.plots, messages)


def evaluate_frames(
    engine: "Engine",
    frames: "datasets.Dataset",
    translation: Translation,
    weights: Path | None,
    options: EvaluateOptions,
) -> None:
    """Run single frames, here or on a cluster, and print the accuracy."""
    import torch

    from streamseg.evaluate import images

    messages, progress = open_messages(options.quiet, options.json), pick_progress(options.quiet)
    label_of, mask = translation.label_of, read_mask_option(options.mask)
    if options.ray:
        found = images.evaluate_on_cluster(
            frames,
            weights_on_cluster(weights),
            options.ray,
            precision=options.precision,
            scales=options.scales,
            flip=options.flip,
            trust=options.trust,
            gpus=(options.device or default_device(weights)) != "cpu",
            progress=progress,
            label_of=label_of,
        )
    else:
        threads = torch.get_num_threads()
        found = images.evaluate(engine, frames, threads=threads, progress=progress, label_of=label_of, mask=mask)
    print(images.format_evaluation(found), file=messages)
    figures = images.evaluation_to_json(found) | translation_to_json(translation) | data_to_json(options)
    write_figures(options.json, figures, messages)
    if options.plots:
        images.write_plots(options.plots, found, engine, frames, label_of, mask)
        print_plots(options.plots, messages)


def translation_to_json(translation: Translation) -> dict:
    """Return the classes that count as another label as JSON values; null for a class without a label."""
    renamed = translation.renamed()
    return {"translated": renamed} if renamed else {}


def data_to_json(options: EvaluateOptions) -> dict:
    """Return what was measured on as JSON values."""
    return {"dataset": options.dataset, "split": options.split, **({"only": options.only} if options.only else {})}


def print_plots(folder: Path, messages: TextIO) -> None:
    """Print the names of the plots of an evaluation."""
    print(f"{folder / 'confusion.png'}  {folder / 'worst.png'}", file=messages)


def reproduce(
    table: Annotated[str, option("TABLE", choices=(*TABLES, "all"))],
    /,
    *,
    runs: Annotated[Path | None, option("DIR", "no accuracy")] = None,
    data: Annotated[Path | None, option("DIR", "no accuracy")] = None,
    dataset: Dataset = "camvid",
    split: str = "val",
    only: Annotated[str, option("NAME", "all frames")] = "",
    speed: Annotated[str, option(default="yes on a GPU, no on the CPU", choices=("yes", "no"))] = "",
    compiled: bool = False,
    out: Annotated[Path | None, option("DIR", "none are written")] = None,
    json: Json = None,
    device: Device = "",
    quiet: Quiet = False,
) -> int:
    """Measure the tables of the paper again, and print both figures.

    Args:
        table: I (cost of the attention), II (its key channels), III (its kinds), reduction (its place and kind; a
            figure), IV (Cityscapes), V (CamVid, COCO-Stuff), VI (video), ours (FANet+, which the paper does not have),
            or all.
        runs: A folder of trained networks, RUN/weights.safetensors, to measure the accuracy of.
        data: The folder of the data set to measure them on.
        dataset: cityscapes, camvid, comma10k, coco-stuff, ade20k, or folder for your own data.
        split: The split to measure on.
        only: Measure only frames whose file name starts with this, such as a recording that training left out, or
            devices of comma10k; several with commas between them.
        speed: Whether to measure speed: the network alone as in the paper, and from frame to labels.
        compiled: Compile each network for the measurement from frame to labels, which takes minutes.
        out: A folder for each table as Markdown, JSON and a plot.
        json: A file for the figures of all tables; - for standard output.
        device: cuda or cpu.
        quiet: Print only warnings and errors.

    Examples:
        streamseg reproduce I
        streamseg reproduce all --out tables
        streamseg reproduce V --runs runs --data CamVid --dataset camvid --split test
    """
    check_data(dataset, data)
    if (runs is None) != (data is None):
        raise ValueError("Accuracy needs both --runs DIR, trained networks, and --data DIR, a data set.")
    check_folder(out, "tables")
    check_figures(json)
    with loading(quiet):
        from streamseg.evaluate import plot, reproduce as reproduction

    if out:
        plot.new_figure(1, 1)  # fails here rather than after the work, if the library is missing
    messages, progress = open_messages(quiet, json), pick_progress(quiet)
    place = pick_device(device)
    evaluator = open_runs(runs, data, dataset, split, only, place) if runs and data else None
    timed = speed == "yes" or (not speed and place.type == "cuda")
    figures = []
    for part in [part for name, parts in TABLES.items() if table in (name, "all") for part in parts]:
        results = reproduction.reproduce(
            part, place, timed=timed, compiled=compiled, evaluator=evaluator, progress=progress
        )
        notes = [describe_timing(place)] if timed else []
        notes += [evaluator.note()] if evaluator and any("miou" in result.found for result in results) else []
        print(reproduction.format_table(part, results, notes), file=messages)
        figures.append(reproduction.table_to_json(part, results, notes))
        if out:
            written = reproduction.write_table(out, part, results, notes)
            print("  ".join(map(str, written)), end="\n\n", file=messages)
    write_figures(json, figures, messages)
    return 0


def open_runs(runs: Path, data: Path, dataset: str, split: str, only: str, device: "torch.device") -> "RunEvaluator":
    """Return an evaluator of the trained runs on a data set."""
    import torch

    from streamseg.data.datasets import DATASETS
    from streamseg.evaluate import reproduce as reproduction

    try:
        frames = keep_frames(DATASETS[dataset](data, split), only)
    except FileNotFoundError as error:
        source = DOWNLOADS.get(dataset)
        raise FileNotFoundError(f"{error} It is {source}." if source else str(error)) from None
    return reproduction.RunEvaluator(reproduction.find_runs(runs), frames, device, torch.get_num_threads())


def describe_timing(device: "torch.device") -> str:
    """Describe the hardware of the timings in a table."""
    import platform

    import torch

    cores = f"{torch.get_num_threads()} cores of {platform.machine()}"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cores
    return f"Here: {name}, torch {torch.__version__}; the paper: a Titan X."
