"""Export of a network to a file for another runtime; the file is run and compared with the network before it is kept.

All files have the interface of ExportModule: uint8 in, uint8 out, and the state of a stream beside them.

Shapes: K classes, H height, W width, D key channels, C channels of a stage.
"""

import logging
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from streamseg.checks import EXPORT_SUFFIXES, pick_export_format
from streamseg.classes import Classes
from streamseg.deploy.export_module import ExportModule
from streamseg.deploy.onnx_int8 import quantise_onnx
from streamseg.engine.engine import resize_frames
from streamseg.engine.inputs import check_model
from streamseg.engine.runtime import (
    ENTRY,
    MAX_EXPORT_SIDE,
    ExportedEngine,
    Manifest,
    open_exported,
    require_packages,
)
from streamseg.engine.steadying import Steadiness
from streamseg.evaluate import metrics
from streamseg.io.checksums import write_checksum
from streamseg.io.files import check_writable, written_whole
from streamseg.io.images import Picture
from streamseg.io.masks import Mask, to_mask
from streamseg.io.resolve import read_frames
from streamseg.io.tensors import short_error
from streamseg.models.fanet import FANet
from streamseg.models.fanet_plus import FANetPlus
from streamseg.stream.label_frames import check_size, label_frame, label_frames
from streamseg.stream.state import LastFrames

OPSET = 18
"""The oldest ONNX opset that torch exports to, for as many runtimes as possible."""

MIN_SAME_LABELS = 0.999
"""The share of pixels on which an fp32 file and the network must have the same label."""
MIN_INT8_MIOU = 0.8
"""The mean IoU of an int8 file with the network's labels as ground truth, in which every class counts alike."""

MAX_PICTURES = 64
"""The most pictures to compare on, or to calibrate with and compare on."""
SIZES = ((360, 480), (512, 1024), (720, 960), (397, 531))
"""Heights and widths at which a file for any size is compared, in turn."""
CLIP_FRAMES = 50
"""Frames of the clip over which a file with state is compared: a camera that pans over a picture."""
CLIP_SIZE = (360, 640)
"""Height and width of that clip for a file for any size."""


@dataclass(frozen=True)
class Agreement:
    """How far the labels of a file and of the network agree, from 0 to 1."""

    pictures: int
    pixels: float
    """The share of pixels with the same label."""
    miou: float
    """The mean IoU, with the network's labels as ground truth."""
    clip: float | None
    """The share of pixels with the same label over a clip, with the state carried along; None for a file without."""


def export_model(
    model: FANet,
    classes: Classes,
    path: str | Path,
    *,
    to: str = "",
    size: tuple[int, int] | None = None,
    confidence: bool = False,
    video: bool = False,
    int8: bool = False,
    steady: Steadiness | None = None,
    pictures: str | Path | None = None,
    window: int = 1,
    source: str = "",
    mask: Mask | Picture | None = None,
) -> Agreement:
    """Write a network to a file for another runtime; a file that disagrees with the network is not kept.

    Args:
        path: Its suffix selects the kind: .onnx, .xml (OpenVINO, with a .bin file beside it), .pt2 (torch.export).
        to: The kind by name (see EXPORT_SUFFIXES); aotinductor is a .pt2 file and runs on the model's device.
        size: Height and width of the frames; None for any.
        confidence: Whether the file also outputs the probability of each label.
        video: Whether the file takes and returns the state of a stream.
        int8: Whether most of it computes in int8, calibrated with the pictures.
        steady: How steady it keeps the labels of a stream, such as STEADY_LOW; this needs video and a size.
        pictures: A folder, a video, … to compare on, and for int8 to calibrate with; by default the samples.
        window: The number of frames that the network was trained with.
        source: Where the weights came from, in words.
        mask: Pixels to ignore, as in label_frames; it becomes a part of the file, which then needs a size.
    """
    path, mask = Path(path), to_mask(mask)
    kind = pick_export_format(path, to)
    check_writable(path)
    check_exportable(model, classes, kind, video=video)
    if size is not None:
        check_size(size)
    if mask is not None:
        if size is None:
            raise ValueError(f"{mask.name} is built in for frames of one size: give their size (--size) too.")
        mask.check_fits(*size)
    if int8 and kind != "onnx":
        raise ValueError(f"int8 needs an ONNX file, but {path} is for {kind}: end its name in .onnx.")
    if steady and (size is None or not video or int8):
        raise ValueError("Steady labels need a file for video, of one size, in fp32: give --video and --size.")
    if steady and kind == "openvino":  # which agrees on 99.4 % of the labels: it resizes and moves maps differently
        raise ValueError(f"Steady labels need an ONNX or .pt2 file, but {path} is for OpenVINO: end its name in .onnx.")
    if int8 and pictures is None:
        raise ValueError("int8 is calibrated with pictures like those that you will label: give some (--pictures).")
    check_libraries(kind)
    frames = read_comparison_frames(pictures, size)
    manifest = Manifest(
        classes=classes,
        size=size,
        state=tuple(attend.context_shape for attend in model.attentions) if video else (),
        confidence=confidence,
        window=window,
        averages=model.averages,
        precision="int8" if int8 else "fp32",
        source=source,
        device=model.mean.device.type if kind == "aotinductor" else "",
        min_side=model.min_free_side,
        masked=mask is not None,
        steady=steady,
        score_size=None if steady is None or size is None else score_size(model, size),
    )
    with quiet_exporters(), TemporaryDirectory() as folder:
        temporary = Path(folder) / f"model{EXPORT_SUFFIXES[kind]}"
        program = export_program(model, manifest, mask)
        if int8:
            # calibrated with every other picture, and compared on the rest
            write_int8(program, manifest, temporary, frames[::2])
            frames = frames[1::2] or frames
        else:
            WRITERS[kind](program, manifest, temporary)
        agreement = compare_labels(model, open_exported(temporary, model.mean.device, trust=True), frames, mask)
        for file in sorted(temporary.parent.glob("model.*")):  # OpenVINO's .bin before the .xml that needs it
            with written_whole(path if file == temporary else path.with_suffix(file.suffix)) as unfinished:
                shutil.copyfile(file, unfinished)
    return agreement


def check_exportable(model: FANet, classes: Classes, kind: str, *, video: bool) -> None:
    """Raise a ValueError if a network cannot be exported to a kind of file."""
    check_model(model)
    if len(classes) != model.classes:
        raise ValueError(f"The network has {model.classes} classes, but {len(classes)} names were given.")
    if model.mean.dtype != torch.float32:
        raise ValueError(f"The network is in {model.mean.dtype}; expected fp32: call model.float() first.")
    if video and not all(attend.context_shape[0] for attend in model.attentions):
        attention = type(model.attentions[0]).__name__
        raise ValueError(f"A network with {attention} has no context for later frames: export it without --video.")
    if kind in ("onnx", "openvino") and model.mean.device.type != "cpu":
        raise ValueError(f"The network is on {model.mean.device}; expected the CPU: call model.cpu() first.")


def check_libraries(kind: str) -> None:
    """Raise an ImportError that names the package to install, if a kind of file needs one that is missing."""
    if kind in ("onnx", "openvino"):
        require_packages("ONNX files", "onnx", "onnxscript", "onnxruntime")
    if kind == "openvino":
        require_packages("OpenVINO files", "openvino")
    if kind == "aotinductor" and not any(map(shutil.which, ("g++", "clang++"))):
        raise ImportError("AOTInductor needs a C++ compiler, and none was found: install g++.")


def export_program(model: FANet, manifest: Manifest, mask: Mask | None = None) -> ExportedProgram:
    """Return a network as a graph of torch operators, with the inputs and outputs of a manifest."""
    device = model.mean.device
    height, width = manifest.size or (192, 320)
    frame = torch.zeros(1, height, width, 3, dtype=torch.uint8, device=device)
    shapes = {name: shape for name, shape in manifest.inputs.items() if name != "frame"}
    kinds = {"past_labels": torch.uint8}
    state = [
        torch.zeros([side or 1 for side in shape], dtype=kinds.get(name, torch.float32), device=device)
        for name, shape in shapes.items()
    ]
    with torch.no_grad():
        graph = ExportModule(model, manifest.confidence, mask, (height, width), manifest.steady).eval()
        program = torch.export.export(
            graph,
            (frame, *state),
            dynamic_shapes={"frame": free_sides(manifest)} | ({"state": ({},) * len(state)} if state else {}),
            strict=False,
            # the sides of a FANet+'s maps are too complex for torch to prove that they are positive
            prefer_deferred_runtime_asserts_over_guards=isinstance(model, FANetPlus),
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains paths of this machine
    return program


@torch.no_grad()
def score_size(model: FANet, size: tuple[int, int]) -> tuple[int, int]:
    """Return the height and width of a network's scores for frames of a size."""
    scores, _ = model.outputs(torch.zeros(1, 3, *size, device=model.mean.device))
    return scores.shape[2], scores.shape[3]


def free_sides(manifest: Manifest) -> dict[int, Dim]:
    """Return the dimensions of a frame that may have any length."""
    limits = {"min": manifest.min_side, "max": MAX_EXPORT_SIDE}
    return {} if manifest.size else {1: Dim("height", **limits), 2: Dim("width", **limits)}


def write_onnx(program: ExportedProgram, manifest: Manifest, path: Path) -> None:
    """Write a graph as one ONNX file."""
    exported = torch.onnx.export(
        program,
        (),
        input_names=[*manifest.inputs],
        output_names=[*manifest.outputs],
        # for their names
        dynamic_shapes={name: free_sides(manifest) if name == "frame" else {} for name in manifest.inputs},
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    if exported is None:
        raise RuntimeError("torch.onnx.export returned nothing.")
    for node in exported.model.graph:
        node.metadata_props.clear()  # stack traces of torch
    exported.model.metadata_props[ENTRY] = manifest.to_json()
    exported.save(path, external_data=False)
    write_checksum(path)


def write_openvino(program: ExportedProgram, manifest: Manifest, path: Path) -> None:
    """Write a graph as OpenVINO IR, through ONNX: an .xml file and a .bin file."""
    import openvino

    onnx = path.with_name("fp32.onnx")
    write_onnx(program, manifest, onnx)
    # not openvino.convert_model, which sends telemetry
    network = openvino.Core().read_model(onnx)
    network.set_rt_info(manifest.to_json(), [ENTRY])
    network.set_rt_info("", ["framework", ENTRY])  # the manifest of the ONNX file, with its checksum
    openvino.save_model(network, path, compress_to_fp16=False)
    write_checksum(path, path.with_suffix(".bin"))


def write_torch(program: ExportedProgram, manifest: Manifest, path: Path) -> None:
    """Write a graph as a .pt2 file of torch.export."""
    torch.export.save(program, path, extra_files={f"{ENTRY}.json": manifest.to_plain_json()})


def write_compiled(program: ExportedProgram, manifest: Manifest, path: Path) -> None:
    """Compile a graph for its device into an AOTInductor package (.pt2)."""
    try:
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except RuntimeError as error:
        raise ValueError(
            f"AOTInductor could not compile the network ({short_error(error)}): check that the C++ compiler works."
        ) from error
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{path.stem}/extra/{ENTRY}.json", manifest.to_plain_json())


WRITERS = {"onnx": write_onnx, "openvino": write_openvino, "torch": write_torch, "aotinductor": write_compiled}


def write_int8(program: ExportedProgram, manifest: Manifest, path: Path, frames: Sequence[Tensor]) -> None:
    """Write a graph as an ONNX file that computes mostly in int8, calibrated with frames (3, H, W)."""
    fp32 = path.with_name("fp32.onnx")
    write_onnx(program, replace(manifest, precision="fp32"), fp32)
    quantise_onnx(fp32, path, manifest, frames)


def compare_labels(
    model: FANet, exported: ExportedEngine, frames: Sequence[Tensor], mask: Mask | None = None
) -> Agreement:
    """Compare the labels of a file with the network's; raise a ValueError if they differ more than they may."""
    confusion = torch.zeros(model.classes, model.classes, dtype=torch.int64)
    for frame in frames:
        truth, _ = label_frame(model, frame, mask=mask)
        predicted, _ = label_frame(exported, frame)
        confusion += metrics.confusion_matrix(truth, predicted, model.classes)
    agreement = Agreement(
        pictures=len(frames),
        pixels=metrics.pixel_accuracy(confusion),
        miou=metrics.miou(confusion),
        clip=compare_clip(model, exported, frames[0], mask) if exported.manifest.state else None,
    )
    if exported.manifest.precision == "int8" and agreement.miou < MIN_INT8_MIOU:
        raise ValueError(
            f"The int8 file has a mean IoU of {agreement.miou:.1%} with the network's labels; expected "
            f"{MIN_INT8_MIOU:.0%} or more. It was not kept: calibrate with more pictures like those that you label."
        )
    same = min(agreement.pixels, 1.0 if agreement.clip is None else agreement.clip)
    if exported.manifest.precision == "fp32" and same < MIN_SAME_LABELS:
        raise ValueError(
            f"Only {same:.2%} of the file's labels match the network's; expected {MIN_SAME_LABELS:.1%}. It was not "
            "kept: please report this, with the output of pip list."
        )
    return agreement


def compare_clip(model: FANet, exported: ExportedEngine, picture: Tensor, mask: Mask | None = None) -> float:
    """Return the share of equal labels over a clip, in which network and file each carry their own state."""
    manifest = exported.manifest
    size, window = manifest.size or CLIP_SIZE, LastFrames(max(2, manifest.window), steady=manifest.steady or 0.0)
    truth = label_frames(model, pan(picture, size), window, mask=mask)
    predicted = label_frames(exported, pan(picture, size), window)
    same = [(a == b).double().mean().item() for (_, a), (_, b) in zip(truth, predicted, strict=True)]
    return sum(same) / len(same)


def pan(picture: Tensor, size: tuple[int, int], frames: int = CLIP_FRAMES) -> Iterator[Tensor]:
    """Yield the frames (3, H, W) of a camera that pans over a picture from left to right."""
    height, width = size
    (wide,) = resize_frames(picture[None], (height, width + width // 2))
    for i in range(frames):
        left = (width // 2) * i // (frames - 1)
        yield wide[:, :, left : left + width].contiguous()


def read_comparison_frames(pictures: str | Path | None, size: tuple[int, int] | None) -> list[Tensor]:
    """Read the frames to compare on, at the size of the file or, if it takes any, at SIZES in turn."""
    source = pictures or samples_folder()
    if source is None:
        raise FileNotFoundError("The sample pictures are missing: give pictures to compare on.")
    pairs = zip(islice(read_frames(source), MAX_PICTURES), cycle([size] if size else SIZES), strict=False)
    frames = [resize_frames(frame[None], frame_size)[0] for frame, frame_size in pairs]
    if not frames:
        raise ValueError(f"{source} has no pictures to compare on: give some.")
    return frames


def samples_folder() -> Path | None:
    """Return the folder of the sample pictures: in the package or, in a checkout, beside it."""
    package = Path(__file__).parents[1]
    return next((folder for folder in (package / "samples", package.parent / "samples") if folder.is_dir()), None)


@contextmanager
def quiet_exporters() -> Iterator[None]:
    """Silence the warnings and log lines of the exporters, but not their errors."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def format_agreement(path: Path, agreement: Agreement) -> str:
    """Return a line for the terminal: what was written, and how far it agrees with the network."""
    line = (
        f"{path}: {100 * agreement.pixels:.3f} % of the labels match the network's on {agreement.pictures} pictures "
        f"(mean IoU {100 * agreement.miou:.2f} %)"
    )
    if agreement.clip is not None:
        line += f", {100 * agreement.clip:.3f} % over a clip of {CLIP_FRAMES} frames"
    return line
