"""The verbs check, pack and train: from a data set to a network."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from streamseg.checks import check_positive, check_suffix
from streamseg.cli.options import DataFolder, Device, Json, Quiet, check_data, check_weights, optional_arg, pick_device
from streamseg.cli.say import (
    STANDARD_OUTPUT,
    check_figures,
    debugging,
    loading,
    open_messages,
    out_of_memory,
    pick_progress,
    write_figures,
)
from streamseg.io.files import check_writable
from streamseg.machine import available_cores
from streamseg.train.config import RECIPES, TrainConfig


def check(
    dataset: Annotated[str, tyro.conf.arg(metavar="DATASET")],
    /,
    *,
    data: DataFolder,
    sheet: Annotated[Path | None, optional_arg("FILE", "none is written")] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Look for all that would make a training go wrong.

    Args:
        dataset: cityscapes, camvid, coco-stuff, ade20k, or folder for one's own.
        data: The data set's folder.
        sheet: A PNG to write some frames to, with their labels drawn over.
        json: A file for the figures, the errors and the warnings; - for standard output.
        quiet: Print nothing but warnings and errors; the exit status is 1 if there are errors.

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
    words = open_messages(quiet, json)
    with loading(quiet):
        import streamseg.evaluate.check as doctor

        report = doctor.check_dataset(dataset, data)
    print(doctor.format_dataset_report(report), file=words)
    if sheet and report.samples:
        doctor.write_contact_sheet(sheet, report)
        print(sheet, file=words)
    write_figures(json, doctor.dataset_report_to_json(report), words)
    if report.errors:
        sys.exit(1)


def pack(
    dataset: Annotated[str, tyro.conf.arg(metavar="DATASET")],
    out: Annotated[Path, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    data: DataFolder,
    splits: Annotated[tuple[str, ...], optional_arg("NAME ...", "all")] = (),
    megabytes: float = 256.0,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Pack a data set into a few large tar files.

    Args:
        dataset: cityscapes, camvid, coco-stuff, ade20k, or folder for one's own.
        out: The folder to write to, which train and evaluate take as --data, on a disk or in a store.
        data: The data set's folder.
        splits: The parts to pack.
        megabytes: The size of a file.
        json: A file for the figures: how many frames each part has; - for standard output.
        quiet: Print nothing but warnings and errors.

    Examples:
        streamseg pack folder shards --data mine
        streamseg pack cityscapes shards --data CITYSCAPES --splits train val
    """
    check_data(dataset, data)
    check_positive("megabytes", megabytes)
    check_figures(json)
    words = open_messages(quiet, json)
    with loading(quiet):
        from streamseg.data import shards
    found = shards.pack(
        dataset, data, out, splits, megabytes=megabytes, threads=available_cores(), progress=pick_progress(quiet)
    )
    print(f"{out}: {', '.join(f'{count:,} frames of {split}' for split, count in found.items())}", file=words)
    write_figures(json, {"out": str(out), "frames": found}, words)


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
    encoder_weights: Annotated[Path | None, optional_arg("FILE", "downloaded once")] = None
    """A file of ImageNet weights for the encoder, safetensors or torch."""
    tensorboard: bool = False
    """Write TensorBoard files too."""
    json: Json = None
    """A file for the figures at the end: weights, iterations, accuracy; - for standard output."""
    device: Device = ""
    """cuda or cpu."""
    quiet: Quiet = False
    """Print nothing but warnings and errors; log.jsonl in the out folder has it all."""


def recipes() -> Any:
    """A subcommand for each recipe, whose options begin as the recipe says."""
    runs = {name: TrainRun(recipe.config, tyro.MISSING, tyro.MISSING) for name, recipe in RECIPES.items()}
    about = {name: recipe.about for name, recipe in RECIPES.items()}
    return tyro.extras.subcommand_type_from_defaults(runs, about, prefix_names=False)


def train(run: Annotated[recipes(), tyro.conf.OmitArgPrefixes]) -> None:  # type: ignore[valid-type] # made at run time
    """Train a network by a recipe.

    Examples:
        streamseg train folder-18 --data mine --out run
        streamseg train folder-18 --data mine --out run --resume
        streamseg train camvid-18 --data CamVid --out run --batch 8 --iterations 4000
        streamseg train folder-18 --help
    """
    run.config.check()
    check_data(run.config.dataset, run.data)
    check_weights(run.encoder_weights)
    check_weights(None if run.initial in ("imagenet", "nothing") else Path(run.initial))
    check_figures(run.json)
    with loading(run.quiet):
        import torch

        from streamseg.engine import kernels
        from streamseg.train import loop as training, runlog

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
            compiled=device.type == "cuda" and kernels.VERSION != "none",  # torch.compile needs Triton there
            threads=torch.get_num_threads(),
            messages=open_messages(run.quiet, STANDARD_OUTPUT),
        )
    except training.TrainingStopped as stop:
        sys.exit(128 + stop.signal)
    except RuntimeError as error:
        if debugging() or not out_of_memory(error):
            raise
        batch, (height, width) = run.config.batch, run.config.crop
        smaller = f"--batch {batch // 2}" if batch > 1 else f"--crop {height // 2} {width // 2}"
        raise ValueError(
            f"The memory of the {device.type} does not hold a batch of {batch} crops of {height} x {width}: "
            f"try {smaller}; what was saved is still there."
        ) from None
    if int(os.environ.get("RANK", "0")) == 0:
        words = open_messages(run.quiet, run.json)
        print(weights, file=words)
        write_figures(run.json, {"weights": str(weights), **runlog.summarise(run.out / "log.jsonl")}, words)
