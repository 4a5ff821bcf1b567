"""The verbs check, pack and train: from a data set to a network."""

import os
from collections.abc import Callable
from dataclasses import Field, asdict, dataclass, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cyclopts import Parameter

from streamseg.checks import check_positive, check_readable, check_suffix
from streamseg.class_table import open_class_table
from streamseg.cli.masks import check_mask_file
from streamseg.cli.messages import (
    STANDARD_OUTPUT,
    check_figures,
    debugging,
    loading,
    open_messages,
    out_of_memory,
    pick_progress,
    write_figures,
)
from streamseg.cli.options import (
    DataFolder,
    DatasetName,
    Device,
    Json,
    Quiet,
    check_data,
    check_folder,
    check_weights,
    option,
    pick_device,
)
from streamseg.io.files import check_writable
from streamseg.machine import available_cores
from streamseg.train.config import OPTION_NAMES, TrainConfig, check_second_folder, check_share

if TYPE_CHECKING:
    import torch


def check(
    dataset: DatasetName,
    /,
    *,
    data: DataFolder,
    sheet: Annotated[Path | None, option("FILE", "none")] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> int:
    """Find errors in a data set before training.

    Args:
        dataset: cityscapes, camvid, comma10k, coco-stuff, ade20k, or folder for your own data.
        data: The folder of the data set.
        sheet: A PNG for some frames with their labels drawn over them.
        json: A file for the figures, the errors and the warnings; - for standard output.
        quiet: Print only warnings and errors; the exit status is 1 if there are errors.

    Examples:
        streamseg check folder --data mine
        streamseg check folder --data mine --sheet sheet.png
        streamseg check camvid --data CamVid --quiet --json report.json
    """
    check_data(dataset, data)
    if sheet:
        check_suffix(sheet)
        check_writable(sheet)
    check_figures(json)
    messages = open_messages(quiet, json)
    with loading(quiet):
        import streamseg.evaluate.check as dataset_check

        report = dataset_check.check_dataset(dataset, data)
    print(dataset_check.format_dataset_report(report), file=messages)
    if sheet and report.samples:
        dataset_check.write_contact_sheet(sheet, report)
        print(sheet, file=messages)
    write_figures(json, dataset_check.dataset_report_to_json(report), messages)
    return int(bool(report.errors))


def pack(
    dataset: DatasetName,
    out: Annotated[Path, option("OUT")],
    /,
    *,
    data: DataFolder,
    splits: Annotated[tuple[str, ...], Parameter(metavar="NAME ...", show_default="all", consume_multiple=True)] = (),
    megabytes: float = 256.0,
    json: Json = None,
    quiet: Quiet = False,
) -> int:
    """Pack a data set into a few large tar files.

    Args:
        dataset: cityscapes, camvid, comma10k, coco-stuff, ade20k, or folder for your own data.
        out: The folder to write to, on a disk or in an object store; train and evaluate take it as --data.
        data: The folder of the data set.
        splits: The splits to pack.
        megabytes: The size of a tar file.
        json: A file for the figures, how many frames each split has; - for standard output.
        quiet: Print only warnings and errors.

    Examples:
        streamseg pack folder shards --data mine
        streamseg pack cityscapes shards --data CITYSCAPES --splits train val
    """
    check_data(dataset, data)
    check_positive("megabytes", megabytes)
    check_folder(out, "shards")
    check_figures(json)
    messages = open_messages(quiet, json)
    with loading(quiet):
        from streamseg.data import shards
    found = shards.pack(
        dataset, data, out, splits, megabytes=megabytes, threads=available_cores(), progress=pick_progress(quiet)
    )
    counts = (f"{count:,} frame{'s' * (count != 1)} of {split}" for split, count in found.items())
    print(f"{out}: {', '.join(counts)}", file=messages)
    write_figures(json, {"out": str(out), "frames": found}, messages)
    return 0


@dataclass(frozen=True, kw_only=True)
class TrainRun:
    """The options of train: the settings of the run, where its data is, and where it writes."""

    data: DataFolder
    """The folder of the data set."""
    with_data: Annotated[Path | None, option("DIR", "none")] = None
    """The folder of the second data set, which --with names."""
    out: Annotated[Path, option("DIR")]
    """The folder for weights, log, curves and state; a stopped run continues from there."""
    resume: bool = False
    """Continue the run in the out folder."""
    initial: str = "imagenet"
    """The initial weights: imagenet, nothing, a checkpoint, hf:USER/NAME, or a name that streamseg weights lists."""
    encoder_weights: Annotated[Path | None, option("FILE", "downloaded once")] = None
    """A file of ImageNet weights for the encoder, safetensors or torch."""
    flow_weights: Annotated[Path | None, option("FILE", "none")] = None
    """A file of a trained flow network, for a video method that has one."""
    eager: bool = False
    """Do not compile the network by torch.compile, which takes about two minutes at the start: for short runs on a
    GPU, where it is a CUDA graph anyway. Nothing is compiled on the CPU."""
    tensorboard: bool = False
    """Also write TensorBoard files."""
    json: Json = None
    """A file for the figures at the end: weights, iterations, accuracy; - for standard output."""
    device: Device = ""
    """cuda or cpu."""
    quiet: Quiet = False
    """Print only warnings and errors; log.jsonl in the out folder has everything."""
    config: Annotated[TrainConfig, Parameter(name="*")]


def train(run: TrainRun) -> int:
    """Train a network by a recipe.

    Examples:
        streamseg train folder-18 --data mine --out run
        streamseg train folder-18 --data mine --out run --resume
        streamseg train camvid-18 --data CamVid --out run --batch 8 --iterations 4000
        streamseg train folder-18 --help
    """
    run.config.check()
    check_mask_file(run.config.mask, bonnet=False)
    check_data(run.config.dataset, run.data)
    check_second_folder(run.config, run.with_data)
    check_data(run.config.with_dataset, run.with_data)
    if run.config.class_table:
        open_class_table(run.config.class_table)
    if run.encoder_weights:
        check_readable(run.encoder_weights)
    if run.flow_weights:
        check_readable(run.flow_weights)
    for teacher in run.config.teachers:
        check_weights(Path(teacher))
    check_weights(None if run.initial in ("imagenet", "nothing") else Path(run.initial))
    check_figures(run.json)
    check_folder(run.out, "run")
    with loading(run.quiet):
        import torch

        from streamseg.engine import kernels
        from streamseg.train import loop, runlog

        device = pick_device(run.device)
    try:
        weights = loop.train(
            run.config,
            run.data,
            run.out,
            with_data=run.with_data,
            device=device,
            initial=run.initial,
            encoder_weights=run.encoder_weights,
            flow_weights=run.flow_weights,
            resume=run.resume,
            tensorboard=run.tensorboard,
            # torch.compile needs Triton there
            compiled=device.type == "cuda" and kernels.VERSION != "none" and not run.eager,
            threads=torch.get_num_threads(),
            messages=open_messages(run.quiet, STANDARD_OUTPUT),
        )
    except loop.TrainingStopped as stop:
        return 128 + stop.signal
    except RuntimeError as error:
        if debugging() or not out_of_memory(error):
            raise
        raise ValueError(suggest_less_memory(run.config, device)) from None
    if int(os.environ.get("RANK", "0")) == 0:
        messages = open_messages(run.quiet, run.json)
        print(weights, file=messages)
        write_figures(run.json, {"weights": str(weights), **runlog.summarise(run.out / "log.jsonl")}, messages)
    return 0


def suggest_less_memory(config: TrainConfig, device: "torch.device") -> str:
    """Return what to change in a run that does not fit into memory."""
    batch, (height, width) = config.batch, config.crop
    smaller = f"--batch {batch // 2}" if batch > 1 else f"--crop {height // 2} {width // 2}"
    return (
        f"The memory of the {device.type} does not hold a batch of {batch} crops of {height} x {width}: try {smaller}; "
        "saved weights are kept."
    )


def recipe_command(config: TrainConfig) -> Callable[..., int]:
    """Return train as a command whose options have the settings of a recipe as defaults."""
    # cyclopts takes defaults from a class, not from an instance of it
    kinds = {field.name: option_type(field) for field in fields(config)}
    recipe = subclass(TrainConfig, {name: (kind, getattr(config, name)) for name, kind in kinds.items()})
    run_type = subclass(TrainRun, {"config": (Annotated[recipe, Parameter(name="*")], recipe())})

    def command(*, run: Annotated[run_type, Parameter(name="*")]) -> int:  # type: ignore[valid-type] # made above
        options = {field.name: getattr(run, field.name) for field in fields(TrainRun)}
        given = TrainConfig(**asdict(options["config"]))
        check_share(given, config)
        return train(TrainRun(**{**options, "config": given}))

    return command


def option_type(setting: Field[Any]) -> Any:
    """Return the type of a setting as an option."""
    if setting.name in OPTION_NAMES:
        return Annotated[setting.type, Parameter(name=f"--{OPTION_NAMES[setting.name]}")]
    if Ellipsis in get_args(setting.type):  # any number of values
        none = f"--no-{setting.name}" if setting.default == () else ()
        return Annotated[setting.type, Parameter(consume_multiple=True, negative=none)]
    return setting.type


def subclass(base: type, defaults: dict[str, tuple[Any, Any]]) -> Any:
    """Return a dataclass like another one, with other types and defaults of some fields."""
    parts = [(name, kind, default) for name, (kind, default) in defaults.items()]
    module = {"__module__": base.__module__}  # without it cyclopts takes the class for a built-in one
    return make_dataclass(base.__name__, parts, bases=(base,), namespace=module, frozen=True, kw_only=True)
