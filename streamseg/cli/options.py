"""Options that several verbs share: how the help shows them, and how their values are checked."""

import os
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from cyclopts import Parameter

from streamseg.checks import check_readable, missing_data_error
from streamseg.classes import Classes
from streamseg.evaluate.paper import DOWNLOADS
from streamseg.io.hub import check_hub_address, is_hub_address, parse_hub_address
from streamseg.io.sources import HARDWARE_DECODERS
from streamseg.machine import available_cores
from streamseg.models.bundled import DEFAULT, find_weights, is_bundled
from streamseg.palette import bright_colours
from streamseg.train.config import TrainConfig

if TYPE_CHECKING:
    import torch

    from streamseg.engine.engine import Engine
    from streamseg.engine.runtime import ExportedEngine
    from streamseg.engine.steadying import Steadiness
    from streamseg.stream.state import Policy


DATASET_NAMES: tuple[str, ...] = get_args({field.name: field.type for field in fields(TrainConfig)}["dataset"])
NETWORKS: tuple[str, ...] = get_args({field.name: field.type for field in fields(TrainConfig)}["network"])
PRECISION_NAMES = ("fp32", "fp16", "bf16", "int8")
MANY_CORES = 8
"""From so many on, one of them is left to what works beside the network."""


def option(metavar: str | None = None, default: str | None = None, choices: Iterable[str] | None = None) -> Parameter:
    """Describe an option for the help: the word for its value, its default in words, and its choices."""
    return Parameter(metavar=metavar, show_default=default, choices=choices)


DataFolder = Annotated[Path, option("DIR")]
DatasetName = Annotated[str, option("DATASET", choices=DATASET_NAMES)]
Dataset = Annotated[str, option("NAME", choices=DATASET_NAMES)]
Device = Annotated[str, option("NAME", "a GPU if there is one")]
HardwareDecoder = Annotated[str, option("NAME", "none", choices=("auto", *HARDWARE_DECODERS))]
Json = Annotated[Path | None, option("FILE", "none")]
Palette = Annotated[str, option(choices=("bright", "own"))]
Precision = Annotated[str, option(default="fp16 on a GPU, fp32 on the CPU", choices=PRECISION_NAMES)]
Quiet = Annotated[bool, Parameter(negative=())]
Ray = Annotated[str, option("[ADDRESS]", "off; without ADDRESS, this machine only")]
Weights = Annotated[Path | None, option("[WEIGHTS]", DEFAULT)]


def check_source(name: str) -> None:
    """Raise an error if nothing can be read at a name, before torch is imported; addresses are asked later."""
    from streamseg.io.resolve import find_sources
    from streamseg.io.web import is_address

    if not is_address(name):
        find_sources([name])


def check_weights(given: Path | None) -> None:
    """Raise an error if weights were given that are neither bundled nor a file that can be read.

    Those of the Hugging Face Hub are requested later, when they are opened.
    """
    if is_hub_address(given):
        check_hub_address(str(given))
    elif given is not None:
        check_readable(find_weights(given))


def weights_on_cluster(given: Path | None) -> Path | None:
    """Return weights as the machines of a cluster find them: each has the bundled ones, and a file at the same path.

    Those of the Hugging Face Hub are named by the commit, so that all machines download the same.
    """
    if is_hub_address(given):
        file = find_weights(given)
        return Path(str(replace(parse_hub_address(str(given)), file=file.name, revision=file.parent.name)))
    return given if given is None or is_bundled(given) else given.absolute()


def pick_palette(classes: Classes, palette: str) -> Classes:
    """Return a class set in the colours to draw."""
    return classes if palette == "own" else bright_colours(classes)


def check_data(dataset: str, data: Path | None) -> None:
    """Raise an error if the folder of a data set is missing; object stores are checked later."""
    from streamseg.io.web import is_address, restore_address

    if data is not None and not is_address(restore_address(data)) and not data.exists():
        source = f" It is {DOWNLOADS[dataset]}." if dataset in DOWNLOADS else ""
        raise FileNotFoundError(f"{missing_data_error(dataset, data)}{source}")


def check_folder(folder: Path | None, content: str) -> None:
    """Raise an error if a folder to write to is a file."""
    if folder and folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give a folder for the {content}.")


def parse_size(name: str, text: str) -> tuple[int, int] | None:
    """Return the height and width in "HEIGHTxWIDTH", or None for an empty text."""
    if not text:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isascii() and side.isdecimal() and 32 <= int(side) <= 65536 for side in sides):
        raise ValueError(f"{name} is {text!r:.80}; expected a height and a width from 32 up, such as 720x1280.")
    return int(sides[0]), int(sides[1])


def parse_steady(text: str) -> "float | Steadiness":
    """Return how steady labels are to be, of off, low, high or a margin; 0 for an empty text."""
    name = text.lower()
    if name in ("low", "high"):
        from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW  # with torch

        return STEADY_LOW if name == "low" else STEADY_HIGH
    if name in ("", "off"):
        return 0.0
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--steady is {text!r:.80}; expected off, low, high, or a number such as 1.") from None


def parse_steadiness(text: str) -> "Steadiness | None":
    """Return the steadiness of low or high; None for off or an empty text."""
    from streamseg.checks import check_choice

    check_choice("--steady", text.lower(), ("", "off", "low", "high"))
    steady = parse_steady(text)
    return None if isinstance(steady, float) else steady


def steady_by_default(policy: "Policy", engine: "Engine") -> "Policy":
    """Return a policy that keeps the labels of videos steady, if an engine can do that at little cost.

    An exported file is as steady as it was made; a video method is run as its authors describe it. On a GPU only the
    fast engine has kernels for it.
    """
    from streamseg.engine.engine import VideoEngine
    from streamseg.engine.fast import FastEngine
    from streamseg.engine.prepare import PreparingEngine
    from streamseg.engine.runtime import ExportedEngine
    from streamseg.engine.steadying import STEADY_LOW

    if isinstance(engine, ExportedEngine):
        return replace(policy, steady=engine.manifest.steady or 0.0)
    costly = engine.device.type != "cpu" and not isinstance(engine, FastEngine | PreparingEngine)
    return policy if costly or isinstance(engine, VideoEngine) else replace(policy, steady=STEADY_LOW)


def pick_policy(window: int | None, half_life: float | None, steady: "float | Steadiness" = 0.0) -> "Policy | None":
    """Return the window policy that the options ask for: the last frames, or a decaying past; None for neither."""
    from streamseg.stream.state import FadingInTime, LastFrames

    if window is not None and half_life is not None:
        raise ValueError("Give --window or --half-life, not both.")
    if half_life is not None:
        return FadingInTime(half_life, steady=steady)
    return None if window is None else LastFrames(window, steady=steady)


def set_key_interval(engine: "Engine", policy: "Policy | None") -> "Policy | None":
    """Take --window as the key interval of a video method, and return the policy for its streams, which have no window.

    A method without a fixed interval keeps its schedule, unless the window is 1, which makes it its backbone.
    """
    from streamseg.engine.engine import VideoEngine
    from streamseg.stream.state import LastFrames

    if policy is None or not isinstance(engine, VideoEngine):
        return policy
    if not isinstance(policy, LastFrames):
        raise ValueError("A video method has key frames, and no past that decays: give --window, not --half-life.")
    if policy.frames == 1 or engine.model.interval is not None:
        engine.model.interval = policy.frames
    return LastFrames(1, steady=policy.steady)


def default_device(path: Path | None) -> str:
    """Return the default device of weights; empty for the best one of the machine."""
    return "cpu" if path is not None and path.suffix.lower() in (".onnx", ".xml") else ""


def pick_device(name: str) -> "torch.device":
    """Return the device of a name, or the best one for an empty name; limit torch's threads to the available cores."""
    import torch

    # torch does not know a container's quota, and threads beyond it only wait for each other
    torch.set_num_threads(min(torch.get_num_threads(), available_cores()))
    given = name
    if not name:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":  # each process that torchrun starts has its own GPU
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"{name!r} is no device: give cuda or cpu.") from None
    if device.type not in ("cuda", "cpu"):
        raise ValueError(f"{name!r} is not a supported device: give cuda or cpu.")
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise ValueError(f"There is no GPU for --device {given}: leave the option out, or give cpu.")
    return device


def leave_core(engine: "Engine", policy: "Policy") -> None:
    """Leave a core of many to steady labels, which look back beside a network on the CPU.

    With 8 cores, the network takes 4 % longer with seven threads than with eight, a frame with steady labels 11 % less.
    A number of threads that the user has set is kept.
    """
    from streamseg.engine.engine import VideoEngine
    from streamseg.engine.runtime import ExportedEngine
    from streamseg.engine.steadying import Steadiness

    cores = available_cores()
    if engine.device.type != "cpu" or cores < MANY_CORES or os.environ.get("OMP_NUM_THREADS"):
        return
    if isinstance(policy.steady, Steadiness) and not isinstance(engine, (ExportedEngine, VideoEngine)):
        import torch

        torch.set_num_threads(min(torch.get_num_threads(), cores - 1))


def check_exported(
    file: "ExportedEngine",
    policy: "Policy | None",
    *,
    size: tuple[int, int] | None = None,
    tile: bool = False,
    deadline: float | None = None,
    precision: str = "",
    confidence: bool = False,
    steady: "float | Steadiness" = 0.0,
    mask: bool = False,
) -> None:
    """Raise a ValueError if an option asks for something that an exported file cannot do."""
    from streamseg.stream.state import LastFrames

    path, fixed = file.path, file.manifest.size
    if tile:
        raise ValueError(f"--tile needs a checkpoint, and {path} is an exported file: give a checkpoint.")
    if precision:
        raise ValueError(f"The precision of {path} was fixed when it was exported: leave out --precision.")
    if confidence and not file.manifest.confidence:
        raise ValueError(f"{path} gives no confidence: leave out --confidence, or export it with --confidence.")
    if steady and not file.manifest.keeps_as_steady_as(steady):
        if file.manifest.steady:
            raise ValueError(f"{path} keeps labels steady in another way: leave out --steady, or export it again.")
        raise ValueError(f"{path} gives labels without scores: leave out --steady, or give a checkpoint.")
    if mask:
        does = "has a mask built in" if file.manifest.masked else "looks at all pixels"
        raise ValueError(f"{path} {does}: leave out --mask, or export it again with --mask.")
    if fixed and size not in (None, fixed):
        raise ValueError(f"{path} takes only frames of {fixed[0]} x {fixed[1]}: leave out --size.")
    if fixed and deadline is not None:
        raise ValueError(f"{path} takes frames of one size: leave out --deadline, or export it without --size.")
    if not file.manifest.state and policy not in (None, LastFrames(1)):
        raise ValueError(f"{path} labels single frames: leave out the window, or export it with --video.")
