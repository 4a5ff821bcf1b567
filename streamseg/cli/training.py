"""The verbs check, pack and train: from a data set to a network."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from streamseg.cli.options import DataFolder, Device, optional, pick_device
from streamseg.cli.say import out_of_memory, show_progress
from streamseg.config import RECIPES, TrainConfig


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
