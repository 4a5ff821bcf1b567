"""Read and write files of named tensors: safetensors, and torch files to read. No code in a file is run."""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from streamseg.checks import check_readable
from streamseg.io.checksums import BLANK_CHECKSUM, check_checksum, check_zip, write_checksum
from streamseg.io.files import written_whole


def open_tensors(path: Path) -> safe_open:
    """Open a safetensors file, and check its checksum if it has one."""
    check_readable(path)
    try:
        file = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        if zipfile.is_zipfile(path):
            raise ValueError(
                f"{path} is a file of torch.save, not a checkpoint of streamseg: build the network, and load the file "
                "into it with load_state_dict."
            ) from None
        raise ValueError(
            f"{path} is no safetensors file, or is cut short ({short_error(error)}): get a whole copy of it."
        ) from None
    check_checksum(path)
    return file


def load_tensors(path: Path, file: safe_open) -> dict[str, Tensor]:
    """Return all tensors of an open safetensors file."""
    try:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:  # a data type that torch lacks
        raise ValueError(f"{path} holds tensors that cannot be read ({short_error(error)}).") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of a torch file, whose pickled code is not run."""
    if path.suffix == ".safetensors":
        with open_tensors(path) as file:
            return load_tensors(path, file)
    check_readable(path)
    check_zip(path)
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file can fail in any way
        raise ValueError(
            f"{path} is no torch file of plain tensors, or is cut short ({short_error(error)}): get a whole copy of it."
        ) from None
    if not isinstance(tensors, dict) or not all(isinstance(x, str) and is_dense(t) for x, t in tensors.items()):
        raise ValueError(f"{path} does not hold dense tensors by their names: save a model's state_dict().")
    return tensors


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all; a blank checksum in its metadata is filled in."""
    try:
        with written_whole(path) as temporary:
            save_file(tensors, temporary, metadata)
            if any(BLANK_CHECKSUM in text for text in metadata.values()):
                write_checksum(temporary)
    except SafetensorError as error:  # such as a full disk
        raise OSError(f"Could not write {path}: {short_error(error)}.") from error


def check_state_dict(where: str, weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if weights differ in names or shapes from the wanted ones, or hold invalid numbers."""
    for name in sorted(weights.keys() | wanted.keys()):
        if name not in weights:
            raise ValueError(f"{where}: {name!r:.80} is missing.")
        if name not in wanted:
            raise ValueError(f"{where}: {name!r:.80} does not belong to it.")
        given, expected = tuple(weights[name].shape), tuple(wanted[name].shape)
        if given != expected:
            raise ValueError(f"{where}: {name!r:.80} has shape {given!s:.80}, expected {expected}.")
    for name, tensor in weights.items():
        kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
        if name.endswith("num_batches_tracked"):
            kinds = [torch.int64]
        if not is_dense(tensor) or tensor.dtype not in kinds:
            raise ValueError(f"{where}: {name!r:.80} is no dense tensor of {' or '.join(map(str, kinds))}.")
    for name, (low, high) in find_extremes(weights).items():
        if not (math.isfinite(low) and math.isfinite(high)) or (name.endswith("running_var") and low < 0):
            raise ValueError(f"{where}: {name!r:.80} holds numbers that are not finite, or variances below zero.")


def find_extremes(tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return the least and the greatest number of each tensor, in fp32; both are NaN if one of its numbers is.

    As few calls of torch as possible: after each one Python's lock may be with the thread that starts the GPU.
    """
    # isfinite would copy all numbers
    found = [number for tensor in tensors.values() for number in tensor.aminmax()]
    # one by one: stacked with fp16, a large count of batches would be infinite
    extremes = [number.to("cpu", torch.float32) for number in found]
    pairs = torch.stack(extremes).view(-1, 2).tolist() if extremes else []
    return dict(zip(tensors, pairs, strict=True))


def is_dense(tensor: object) -> bool:
    """Return whether an object is a dense tensor with data."""
    return isinstance(tensor, Tensor) and tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_meta)


def short_error(error: Exception) -> str:
    """Return the first printable words of an error message, which a hostile file can fill with anything."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in line[:120])
