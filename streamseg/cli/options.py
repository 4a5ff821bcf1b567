"""Options that several verbs share: how they are shown, and what is made of what is given."""

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import tyro

from streamseg.checks import check_choice, check_readable, missing_data_error
from streamseg.evaluate.paper import DOWNLOADS
from streamseg.io.web import is_address, restore_address
from streamseg.machine import available_cores
from streamseg.train.config import TrainConfig

if TYPE_CHECKING:
    import torch

    from streamseg.engine.runtime import ExportedEngine
    from streamseg.stream.state import Policy


DataFolder = Annotated[Path, tyro.conf.arg(metavar="DIR")]


def optional_arg(metavar: str, default: str) -> Any:
    """How the help shows an option that may be left out."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


Json = Annotated[Path | None, optional_arg("FILE", "none is written")]
Quiet = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Device = Annotated[str, optional_arg("NAME", "a GPU if there is one")]


DATASETS: tuple[str, ...] = get_args({field.name: field.type for field in fields(TrainConfig)}["dataset"])
NETWORKS: tuple[str, ...] = get_args({field.name: field.type for field in fields(TrainConfig)}["network"])


def check_weights(path: Path | None) -> None:
    """Raise an error in a sentence if weights that were given are not there."""
    if path is not None:
        check_readable(path)


def check_data(dataset: str, data: Path | None) -> None:
    """Raise an error in a sentence if a data set is unknown, or its folder is not there; a store is asked later."""
    check_choice("dataset", dataset, DATASETS)
    if data is not None and not is_address(restore_address(data)) and not data.exists():
        source = f" It is {DOWNLOADS[dataset]}." if dataset in DOWNLOADS else ""
        raise FileNotFoundError(f"{missing_data_error(dataset, data)}{source}")


def check_folder(folder: Path | None, content: str) -> None:
    """Raise an error in a sentence if a folder to write to is a file."""
    if folder and folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give a folder for the {content}.")


def parse_size(option: str, text: str) -> tuple[int, int] | None:
    """A height and width from "HEIGHTxWIDTH"; None from nothing."""
    if not text:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isascii() and side.isdecimal() and 32 <= int(side) <= 65536 for side in sides):
        raise ValueError(f"{option} is {text!r:.80}; expected a height and a width from 32 up, such as 720x1280.")
    return int(sides[0]), int(sides[1])


def pick_policy(window: int | None, half_life: float | None, steady: float = 0.0) -> "Policy | None":
    """What is remembered of a video: the last frames, or a past that fades in time; None where nothing was said."""
    from streamseg.stream.state import FadingInTime, LastFrames

    if window is not None and half_life is not None:
        raise ValueError("Give --window or --half-life, not both.")
    if half_life is not None:
        return FadingInTime(half_life, steady=steady)
    return None if window is None else LastFrames(window, steady=steady)


def pick_device(name: str) -> "torch.device":
    """The device of a name, or the best that there is; torch gets no more threads than there are cores for them."""
    import torch

    # torch knows nothing of a container's quota, and threads beyond it only wait for each other
    torch.set_num_threads(min(torch.get_num_threads(), available_cores()))
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


def check_exported(
    file: "ExportedEngine",
    policy: "Policy | None",
    *,
    size: tuple[int, int] | None = None,
    tile: bool = False,
    deadline: float | None = None,
    precision: str = "",
    confidence: bool = False,
    steady: float = 0.0,
) -> None:
    """Raise a ValueError that says what an exported file cannot do, if that is asked for."""
    from streamseg.stream.state import LastFrames

    path, fixed = file.path, file.manifest.size
    if tile:
        raise ValueError(f"--tile needs the network itself, and {path} is an exported file: give a checkpoint.")
    if precision:
        raise ValueError(f"{path} computes in what it was exported in: leave out --precision.")
    if confidence and not file.manifest.confidence:
        raise ValueError(f"{path} gives no confidence: leave out --confidence, or export it with --confidence.")
    if steady:
        raise ValueError(f"{path} gives labels, and no scores: leave out --steady, or give a checkpoint.")
    if fixed and size not in (None, fixed):
        raise ValueError(f"{path} takes frames of {fixed[0]} x {fixed[1]} alone: leave out --size.")
    if fixed and deadline is not None:
        raise ValueError(f"{path} takes frames of one size: leave out --deadline, or export it without --size.")
    if not file.manifest.state and policy not in (None, LastFrames(1)):
        raise ValueError(f"{path} looks at single frames: leave out the window, or export it with --video.")
