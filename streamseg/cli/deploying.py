"""The verb export: a network for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from streamseg.checks import EXPORT_SUFFIXES, pick_export_format
from streamseg.cli.masks import check_mask_file, read_mask_option
from streamseg.cli.messages import check_figures, loading, open_messages, write_figures
from streamseg.cli.options import (
    Device,
    Json,
    Quiet,
    check_weights,
    option,
    parse_size,
    parse_steadiness,
    pick_device,
)
from streamseg.io.files import check_writable
from streamseg.models.bundled import find_weights

if TYPE_CHECKING:
    pass


def export(
    *names: Annotated[Path, option("[WEIGHTS] OUT")],
    out: Annotated[Path | None, Parameter(name=("--out", "-o"), metavar="OUT", show_default="the last name")] = None,
    to: Annotated[str, option(default="by the suffix", choices=EXPORT_SUFFIXES)] = "",
    size: Annotated[str, option("HEIGHTxWIDTH", "any size")] = "",
    confidence: bool = False,
    video: bool = False,
    int8: bool = False,
    steady: Annotated[str, option("HOW", "off", choices=("off", "low", "high"))] = "",
    pictures: Annotated[str | None, option("DIR", "the samples")] = None,
    mask: Annotated[str, option("FILE", "none")] = "",
    json: Json = None,
    device: Device = "",
    quiet: Quiet = False,
) -> int:
    """Write a network as a file for another runtime.

    Args:
        names: The weights, a checkpoint, hf:USER/NAME or a name that streamseg weights lists; and the file to write:
            .onnx, .xml (OpenVINO), .pt2 (torch.export, or with --to an AOTInductor package). A file that disagrees with
            the network is deleted.
        out: The file to write; a name is then that of the weights.
        to: The format to write.
        size: A fixed size of the frames, which makes the file faster.
        confidence: Also give the confidence of each label.
        video: Carry the state of a stream: a matrix for each stage with attention in, and one out.
        int8: Quantise most layers to int8 (ONNX), calibrated on half of the pictures and compared on the others.
        steady: With --video and --size, keep the labels of a stream steady: low or high; see streamseg segment.
        pictures: A folder, a video or the like to compare on and, with --int8, to calibrate on: use frames like those
            that the file will label.
        mask: A picture whose black pixels are ignored; it becomes a part of the file, and needs --size.
        json: A file for the figures, how well it agrees with the network; - for standard output.
        device: The device that aotinductor compiles for: cuda or cpu.
        quiet: Print only warnings and errors.

    Examples:
        streamseg export model.onnx
        streamseg export run/weights.safetensors model.onnx --size 512x1024 --video
        streamseg export model.xml --size 720x1280
        streamseg export model.onnx --int8 --pictures photos --size 512x1024
    """
    from dataclasses import asdict

    given, target = split_export_names(names, out)
    kind = pick_export_format(target, to)
    check_writable(target)
    check_weights(given)
    check_figures(json)
    check_mask_file(mask, bonnet=False)
    if int8 and pictures is None:
        raise ValueError("--int8 is calibrated on pictures like those to label: give them with --pictures DIR.")
    with loading(quiet):
        from streamseg.deploy import export as exporter
        from streamseg.models import checkpoint

        weights = find_weights(given)
        network, classes = checkpoint.load(weights)
        model = checkpoint.require_fanet(network, "export")
        description = checkpoint.describe(weights)
    agreement = exporter.export_model(
        model.to(pick_device(device if kind == "aotinductor" else "cpu")),
        classes,
        target,
        to=kind,
        size=parse_size("--size", size),
        confidence=confidence,
        video=video,
        int8=int8,
        steady=parse_steadiness(steady),
        pictures=pictures,
        window=description.window,
        source=description.source,
        mask=read_mask_option(mask),
    )
    messages = open_messages(quiet, json)
    print(exporter.format_agreement(target, agreement), file=messages)
    write_figures(json, {"file": str(target), "kind": kind, **asdict(agreement)}, messages)
    return 0


def split_export_names(names: tuple[Path, ...], out: Path | None) -> tuple[Path | None, Path]:
    """Return the checkpoint among the names, if any, and the file to write."""
    if out and (len(names) > 1 or (names and names[0].suffix in EXPORT_SUFFIXES.values())):
        raise ValueError(f"OUT is given twice, as {names[-1]} and as --out {out}: leave out one.")
    if out:
        names = (*names, out)
    if not names:
        raise ValueError("There is nothing to write: give OUT, such as model.onnx.")
    if len(names) > 2:
        raise ValueError(f"{len(names)} names are too many: give the weights, if not the default ones, and OUT.")
    return names[0] if len(names) == 2 else None, names[-1]
