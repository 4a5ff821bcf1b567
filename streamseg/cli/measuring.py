"""The verbs evaluate, reproduce and benchmark: how good a network is, and how fast."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from streamseg.checks import check_choice, check_count, check_positive
from streamseg.cli.options import (
    NETWORKS,
    DataFolder,
    Device,
    Json,
    Quiet,
    check_data,
    check_exported,
    check_folder,
    check_weights,
    optional_arg,
    parse_size,
    pick_device,
    pick_policy,
)
from streamseg.cli.say import check_figures, clear_line, loading, open_messages, pick_progress, write_figures
from streamseg.io.files import check_writable


def evaluate(
    weights: Annotated[Path | None, optional_arg("[WEIGHTS]", "those that ship")] = None,
    /,
    *,
    data: DataFolder,
    dataset: str,
    split: str = "val",
    only: Annotated[str, optional_arg("NAME", "all frames")] = "",
    scales: Annotated[tuple[float, ...], optional_arg("FLOAT ...", "1.0")] = (1.0,),
    flip: bool = False,
    window: Annotated[int | None, optional_arg("FRAMES", "single frames, in any order")] = None,
    half_life: Annotated[float | None, optional_arg("SECONDS", "the exact window")] = None,
    steady: Annotated[float, optional_arg("MARGIN", "0, off")] = 0.0,
    json: Json = None,
    plots: Annotated[Path | None, optional_arg("DIR", "none are written")] = None,
    device: Device = "",
    precision: Annotated[str, optional_arg("{fp32,fp16,bf16,int8}", "fp32, operator by operator")] = "",
    trust: bool = False,
    ray: Annotated[str, optional_arg("[ADDRESS]", "off; without ADDRESS this machine alone")] = "",
    quiet: Quiet = False,
) -> None:
    """Measure a network on a data set: mIoU and more.

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
        steady: With one of the two, let a pixel change its class only if the new one scores so much higher.
        json: A file for the figures; - for standard output.
        plots: A folder for confusion.png and worst.png.
        device: cuda or cpu.
        precision: Measure the network's fast form in this: fp16 or bf16 on a GPU, fp32 or int8 on the CPU.
        trust: Open a .pt2 file, which is a program and can do whatever it likes.
        ray: Spread the frames over a Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT.
        quiet: Print nothing but warnings and errors.

    Examples:
        streamseg evaluate --dataset camvid --data CamVid --split val
        streamseg evaluate run/weights.safetensors --dataset folder --data mine
        streamseg evaluate --dataset camvid --data CamVid --precision int8 --json -
        streamseg evaluate --dataset camvid --data CamVid --window 1 --plots plots
    """
    check_data(dataset, data)
    check_weights(weights)
    check_figures(json)
    check_folder(plots, "plots")
    with loading(quiet):
        import torch

        from streamseg.data.shards import open_dataset
        from streamseg.engine import runtime
        from streamseg.evaluate import images as evaluation, plot, video
        from streamseg.evaluate.engines import open_evaluation_engine

    policy = pick_policy(window, half_life, steady)
    if steady and not policy:
        raise ValueError("--steady is for frames in order: give --window or --half-life too.")
    if policy and ray:
        raise ValueError("--window and --half-life time each frame, for which it must have no rival: leave out --ray.")
    if policy and (flip or scales != (1.0,)):
        raise ValueError("--window and --half-life see each frame once, as it is: leave out --scales and --flip.")
    words, progress = open_messages(quiet, json), pick_progress(quiet)
    if plots:
        plot.new_figure(1, 1)  # fails now, and not after the work, where the library is missing
    place = pick_device(device or runtime.default_device(weights))
    frames = open_dataset(dataset, data.absolute() if ray and data.exists() else data, split)
    frames = replace(frames, pairs=tuple(pair for pair in frames.pairs if pair.image.name.startswith(only)))
    engine = open_evaluation_engine(weights, place, frames, precision=precision, scales=scales, flip=flip, trust=trust)
    if isinstance(engine, runtime.ExportedEngine):
        check_exported(engine, policy, precision=precision, steady=steady)
    threads = torch.get_num_threads()
    if policy:
        found = video.evaluate_video(engine, frames, policy, threads=threads, progress=progress)
        table, told = video.format_video_evaluation(found), video.video_evaluation_to_json(found)
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
                gpus=(device or runtime.default_device(weights)) != "cpu",
                progress=progress,
            )
        else:
            result = evaluation.evaluate(engine, frames, threads=threads, progress=progress)
        table, told = evaluation.format_evaluation(result), evaluation.evaluation_to_json(result)
    print(table, file=words)
    write_figures(json, told, words)
    if plots:
        if policy:
            video.write_video_plots(plots, found, engine, frames, policy)
        else:
            evaluation.write_plots(plots, result, engine, frames)
        print(f"{plots / 'confusion.png'}  {plots / 'worst.png'}", file=words)


def reproduce(
    table: Annotated[str, tyro.conf.arg(metavar="TABLE")],
    /,
    *,
    runs: Annotated[Path | None, optional_arg("DIR", "no accuracy")] = None,
    data: Annotated[Path | None, optional_arg("DIR", "no accuracy")] = None,
    dataset: str = "camvid",
    split: str = "val",
    only: Annotated[str, optional_arg("NAME", "all frames")] = "",
    speed: Annotated[str, optional_arg("{yes,no}", "yes on a GPU, no on the CPU")] = "",
    compiled: bool = False,
    out: Annotated[Path | None, optional_arg("DIR", "none are written")] = None,
    json: Json = None,
    device: Device = "",
    quiet: Quiet = False,
) -> None:
    """Measure again what the paper prints, and show both.

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
        json: A file for the figures of all tables; - for standard output.
        device: cuda or cpu.
        quiet: Print nothing but warnings and errors.

    Examples:
        streamseg reproduce I
        streamseg reproduce all --out tables
        streamseg reproduce V --runs runs --data CamVid --dataset camvid --split test
    """
    import platform

    from streamseg.evaluate import paper

    check_choice("table", table, (*paper.TABLES, "all"))
    check_data(dataset, data)
    if speed:
        check_choice("speed", speed, ("yes", "no"))
    if (runs is None) != (data is None):
        raise ValueError("Accuracy needs both: --runs DIR, networks that were trained, and --data DIR, a data set.")
    check_folder(out, "tables")
    check_figures(json)
    with loading(quiet):
        import torch

        from streamseg.data.datasets import DATASETS
        from streamseg.evaluate import plot, reproduce as reproduction

    if out:
        plot.new_figure(1, 1)  # fails now, and not after the work, where the library is missing
    words, progress = open_messages(quiet, json), pick_progress(quiet)
    place = pick_device(device)
    threads = torch.get_num_threads()
    evaluator = None
    if runs and data:
        try:
            frames = DATASETS[dataset](data, split)
        except FileNotFoundError as error:
            source = paper.DOWNLOADS.get(dataset)
            raise FileNotFoundError(f"{error} It is {source}." if source else str(error)) from None
        frames = replace(frames, pairs=tuple(pair for pair in frames.pairs if pair.image.name.startswith(only)))
        evaluator = reproduction.RunEvaluator(reproduction.find_runs(runs), frames, place, threads)
    timed = speed == "yes" or (not speed and place.type == "cuda")
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else f"{threads} cores of {platform.machine()}"
    notes = [f"Here: {name}, torch {torch.__version__}; the paper: a Titan X."] if timed else []
    figures = []
    for part in [part for name, parts in paper.TABLES.items() if table in (name, "all") for part in parts]:
        results = reproduction.reproduce(
            part, place, timed=timed, compiled=compiled, evaluator=evaluator, progress=progress
        )
        accuracy = [evaluator.note()] if evaluator and any("miou" in result.found for result in results) else []
        told = part, results, [*notes, *accuracy]
        print(reproduction.format_table(*told), file=words)
        figures.append(reproduction.table_to_json(*told))
        if out:
            print("  ".join(map(str, reproduction.write_table(out, *told))), end="\n\n", file=words)
    write_figures(json, figures, words)


def benchmark(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[MODEL ...]")] = (
        "fanet18",
        "fanet34",
    ),
    /,
    *,
    size: Annotated[str, optional_arg("HEIGHTxWIDTH", "1024x2048 on a GPU, 512x1024 on the CPU")] = "",
    batch: int = 1,
    compiled: bool = False,
    seconds: float = 3.0,
    profile: bool = False,
    json: Json = None,
    plot: Annotated[Path | None, optional_arg("FILE", "none is drawn")] = None,
    device: Device = "",
    precision: Annotated[str, optional_arg("{fp16,bf16,fp32,int8}", "fp16 on a GPU, fp32 on the CPU")] = "",
    trust: bool = False,
    quiet: Quiet = False,
) -> None:
    """Measure how fast networks are, and what they cost.

    Args:
        models: What to measure, from a frame to its labels: names of networks, which get random weights and 19
            classes, checkpoints, or files that export wrote (.onnx, .xml, .pt2). Networks are fanet18, fanet34, and the
            rivals segnet, enet, icnet, erfnet, bisenet18, shelfnet18, swiftnet18, fcn16s, fcn8s, deeplab.
        size: Height and width of the frames.
        batch: Frames at a time.
        compiled: Measure torch.compile too, which takes a minute for each network.
        seconds: How long to measure each network.
        profile: Name the ten most expensive kernels or operators.
        json: A file for the figures; - for standard output.
        plot: A PNG for the median times.
        device: cuda or cpu; with a .onnx or .xml file it is cpu unless told otherwise.
        precision: What the fast and the plain way compute in; a file has its own.
        trust: Open a .pt2 file, which is a program and can do whatever it likes.
        quiet: Print nothing but warnings and errors.

    Examples:
        streamseg benchmark
        streamseg benchmark fanet18 --size 512x1024 --precision int8
        streamseg benchmark fanet18 enet --json figures.json --plot figures.png
        streamseg benchmark run/weights.safetensors model.onnx --json -
    """
    from dataclasses import asdict

    check_count("batch", batch)
    check_positive("seconds", seconds)
    for name in models:
        if name not in NETWORKS and not Path(name).is_file():
            raise ValueError(f"{name!r:.80} is neither a file nor one of the networks {', '.join(NETWORKS)}.")
    check_figures(json)
    if plot:
        check_writable(plot)
    with loading(quiet):
        from streamseg.engine import runtime
        from streamseg.evaluate import benchmark as costs, plot as plots

    # one device for all, or their times could not be compared
    usual = "cpu" if any(runtime.default_device(Path(name)) for name in models) else ""
    place = pick_device(device or usual)
    seen = parse_size("--size", size) or ((1024, 2048) if place.type == "cuda" else (512, 1024))
    words, progress = open_messages(quiet, json), pick_progress(quiet)
    if plot:
        plots.new_figure(1, 1)  # fails now, and not after the work, where the library is missing
    found = []
    for number, name in enumerate(models):
        progress(number, len(models))
        found.append(
            costs.measure_cost(name, seen, batch, place, precision, compiled=compiled, seconds=seconds, trust=trust)
        )
    if not quiet:
        clear_line()
    machine = costs.describe_machine(place)
    print(costs.format_costs(found, seen, batch, machine), file=words)
    if profile:
        for name in models:
            print(f"\n{name}: the ten that take most, ms a frame", file=words)
            spent = costs.profile(name, seen, place, precision)
            for kernel, taken in spent:
                print(f"{taken:10.4f}  {kernel:.100}", file=words)
            if not spent:
                print(f"{'-':>10}", file=words)
    networks = [asdict(cost) for cost in found]
    write_figures(json, {"machine": machine, "size": seen, "batch": batch, "networks": networks}, words)
    if plot:
        costs.plot_costs(plot, found, seen, machine)
