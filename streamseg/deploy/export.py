"""A network as a file for other runtimes, which is run and compared with the network before it is left behind.

The interface of every file is that of Deployed: bytes in, bytes out, and the state of a stream beside them.

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
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from streamseg.checks import EXPORT_SUFFIXES as KINDS, pick_export_format
from streamseg.classes import Classes
from streamseg.deploy.onnx_int8 import names_of_int8, round_network
from streamseg.engine.engine import resize_frames
from streamseg.engine.inputs import check_model
from streamseg.engine.runtime import (
    ENTRY,
    MAX_EXPORT_SIDE,
    MIN_EXPORT_SIDE,
    ExportedEngine,
    Manifest,
    open_exported,
    open_onnx,
    require_packages,
)
from streamseg.evaluate import metrics
from streamseg.io.checksums import write_checksum
from streamseg.io.files import check_writable, written_whole
from streamseg.io.resolve import read_frames
from streamseg.io.tensors import short_error
from streamseg.models.fanet import FANet
from streamseg.stream.label_frames import check_size, label_frame, label_frames

OPSET = 18
"""The oldest set of ONNX's operators that torch exports to: as many programs as possible read it."""

SAME = 0.999
"""The share of labels that must be the network's own."""
SAME_INT8 = 0.8
"""The mean IoU with the network's labels that an int8 file must have, in which every class counts alike."""

PICTURES = 64
"""The most pictures that a file is compared on, or calibrated with and compared on."""
SIZES = ((360, 480), (512, 1024), (720, 960), (397, 531))
"""Heights and widths that a file for any size is compared at, one after the other."""
CLIP = 50
"""Frames of the clip that the state of a stream is carried over, as a camera gives them that pans over a picture."""
CLIP_SIZE = (360, 640)
"""Of a file for any size."""

BYTES = ("Conv", "Relu")
"""The operators that work on bytes in an int8 file, some of them; sums, attention and resizes stay in fp32."""


@dataclass(frozen=True)
class Agreement:
    """How far a file's labels are the network's own, from 0 to 1."""

    pictures: int
    pixels: float
    """The share of the pixels that have the same label."""
    miou: float
    """The mean IoU, with the network's labels as the truth."""
    clip: float | None
    """The share of the pixels over a clip, with the state carried from frame to frame; None for a file without."""


class ExportModule(nn.Module):
    """A FANet as it is exported, from bytes to bytes."""

    def __init__(self, network: FANet, confident: bool):
        super().__init__()
        self.network = network
        self.confident = confident

    def forward(
        self,
        frame: Tensor,
        past1: Tensor | None = None,
        past2: Tensor | None = None,
        past3: Tensor | None = None,
        past4: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Labels (1, H, W); then confidence, if wanted; then the contexts of Res-1 … Res-4, if there is a past.

        Args:
            frame: RGB (1, H, W, 3), uint8, as cameras and canvases give it.
            past1: With the next three the sum of the contexts of the earlier frames in the window, (1, D, C); zeros for
                the first frame.
            weight: How many frames that sum is of, (1,), for a network that averages.
        """
        # floats at once, and bytes at the very end: TensorRT takes bytes only where they enter and leave
        image = frame.to(self.network.mean.dtype).permute(0, 3, 1, 2)
        past = [part for part in (past1, past2, past3, past4) if part is not None]
        logits, context = self.network.step(image, past or None, 1.0 if weight is None else weight.view(1, 1, 1))
        answers = [to_uint8(logits.argmax(dim=1))]
        if self.confident:
            # the softmax of the highest alone
            others = (logits - logits.amax(dim=1, keepdim=True)).exp().sum(dim=1)
            answers.append(to_uint8((255 / others).round()))
        return (*answers, *(context if past else ()))


def to_uint8(values: Tensor) -> Tensor:
    return values.float().to(torch.uint8)


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
    pictures: str | Path | None = None,
    window: int = 1,
    source: str = "",
) -> Agreement:
    """Write a network as a file for another runtime; one that disagrees with the network is not left behind.

    Args:
        path: Its suffix says the kind: .onnx, .xml (OpenVINO, with its weights beside it as .bin), .pt2 (torch.export).
        to: The kind by its name, as in KINDS; aotinductor has the suffix .pt2 too, and runs where the model is.
        size: Height and width of the frames; None for any.
        confidence: Whether it gives the probability of each label too.
        video: Whether it carries the state of a stream.
        int8: Whether most of it computes in bytes, whose ranges are those that the pictures need.
        pictures: A folder, a video, … to compare on, and for int8 to calibrate with; without it, the samples.
        window: How many frames of a video the network was trained to look at.
        source: Where the weights came from, in words.
    """
    path = Path(path)
    kind = pick_export_format(path, to)
    check_model(model)
    check_writable(path)
    if len(classes) != model.classes:
        raise ValueError(f"The network tells {model.classes} classes apart, but {len(classes)} are named.")
    if model.mean.dtype != torch.float32:
        raise ValueError(
            f"The network computes in {model.mean.dtype}; it is exported in fp32: call model.float() first."
        )
    if size is not None:
        check_size(size)
    if int8 and (kind != "onnx" or pictures is None):
        raise ValueError("int8 is for ONNX, and is calibrated with pictures like those to come: give some.")
    if video and not all(attend.context_shape[0] for attend in model.attentions):
        kept = type(model.attend1).__name__
        raise ValueError(f"A network of {kept} leaves nothing to later frames: export it without --video.")
    if kind in ("onnx", "openvino") and model.mean.device.type != "cpu":
        raise ValueError("The network is on a GPU, but is exported from the CPU: call model.cpu() first.")
    check_libraries(kind)
    frames = list(resize_to_export(read_pictures(pictures), size))
    if not frames:
        raise ValueError(f"{pictures} holds no pictures to compare on: give some.")
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
    )
    with quiet_exporters(), TemporaryDirectory() as folder:
        made = Path(folder) / f"model{KINDS[kind]}"
        program = trace(model, manifest)
        if int8:
            # every other picture, so that the others say how it does on pictures that it has not seen
            write_int8(program, manifest, made, frames[::2])
            frames = frames[1::2] or frames
        else:
            WRITERS[kind](program, manifest, made)
        agreement = compare(model, open_exported(made, model.mean.device, trust=True), frames)
        for file in sorted(made.parent.glob("model.*")):  # OpenVINO's weights first, so that no .xml is without
            with written_whole(path if file == made else path.with_suffix(file.suffix)) as temporary:
                shutil.copyfile(file, temporary)
    return agreement


def check_libraries(kind: str) -> None:
    """Raise an ImportError that says what to install, if a kind of file needs a library that is missing."""
    if kind in ("onnx", "openvino"):
        require_packages("ONNX files", "onnx", "onnxscript", "onnxruntime")
    if kind == "openvino":
        require_packages("OpenVINO files", "openvino")
    if kind == "aotinductor" and not any(map(shutil.which, ("g++", "clang++"))):
        raise ImportError("AOTInductor needs a C++ compiler, and there is none: install g++.")


def trace(model: FANet, manifest: Manifest) -> ExportedProgram:
    """A network as a graph of torch's operators, with the inputs and outputs of a manifest."""
    place = model.mean.device
    height, width = manifest.size or (192, 320)
    frame = torch.zeros(1, height, width, 3, dtype=torch.uint8, device=place)
    shapes = [shape for name, shape in manifest.inputs.items() if name != "frame"]
    carried = [torch.zeros([side or 1 for side in shape], device=place) for shape in shapes]
    graph = ExportModule(model, manifest.confidence).eval()
    with torch.no_grad():
        program = torch.export.export(graph, (frame, *carried), dynamic_shapes=free_sides(manifest), strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names of files of this machine
    return program


def free_sides(manifest: Manifest) -> dict | None:
    """Which sides of what goes into Deployed may have any length; None if all are fixed."""
    if manifest.size:
        return None
    sides = {
        1: Dim("height", min=MIN_EXPORT_SIDE, max=MAX_EXPORT_SIDE),
        2: Dim("width", min=MIN_EXPORT_SIDE, max=MAX_EXPORT_SIDE),
    }
    return {name: sides if name == "frame" else None for name in manifest.inputs}


def write_onnx(program: ExportedProgram, manifest: Manifest, path: Path) -> None:
    """Write a graph as ONNX, in one file."""
    found = torch.onnx.export(
        program,
        (),
        input_names=[*manifest.inputs],
        output_names=[*manifest.outputs],
        dynamic_shapes=free_sides(manifest),  # for their names
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    if found is None:
        raise RuntimeError("torch.onnx.export gave nothing.")
    for node in found.model.graph:
        node.metadata_props.clear()  # how torch came to it
    found.model.metadata_props[ENTRY] = manifest.to_json()
    found.save(path, external_data=False)
    write_checksum(path)


def write_openvino(program: ExportedProgram, manifest: Manifest, path: Path) -> None:
    """Write a graph as OpenVINO IR, by way of ONNX, in two files: .xml, and .bin beside it."""
    import openvino

    plain = path.with_name("plain.onnx")
    write_onnx(program, manifest, plain)
    # not openvino.convert_model, which reports its use to its makers
    network = openvino.Core().read_model(plain)
    network.set_rt_info(manifest.to_json(), [ENTRY])
    network.set_rt_info("", ["framework", ENTRY])  # the ONNX file's own, with the checksum of that file
    openvino.save_model(network, path, compress_to_fp16=False)
    write_checksum(path, path.with_suffix(".bin"))


def write_torch(program: ExportedProgram, manifest: Manifest, path: Path) -> None:
    """Write a graph as torch.export's .pt2."""
    torch.export.save(program, path, extra_files={f"{ENTRY}.json": manifest.to_plain_json()})


def write_compiled(program: ExportedProgram, manifest: Manifest, path: Path) -> None:
    """Compile a graph for the device that it is on, into an AOTInductor package (.pt2)."""
    try:
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except RuntimeError as error:
        raise ValueError(
            f"AOTInductor could not compile the network ({short_error(error)}): see that the C++ compiler works."
        ) from error
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{path.stem}/extra/{ENTRY}.json", manifest.to_plain_json())


WRITERS = {"onnx": write_onnx, "openvino": write_openvino, "torch": write_torch, "aotinductor": write_compiled}


def write_int8(program: ExportedProgram, manifest: Manifest, path: Path, frames: Sequence[Tensor]) -> None:
    """Write a graph as ONNX with most operators on bytes, whose ranges are those that frames (3, H, W) need."""
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    plain = path.with_name("plain.onnx")
    write_onnx(program, replace(manifest, precision="fp32"), plain)
    network, file = onnx.load(plain), open_onnx(plain, torch.device("cpu"))
    round_network(network, iter(Calibration(file, frames).get_next, None))
    quantize_static(
        network,
        path,
        Calibration(file, frames),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=[*BYTES],
        nodes_to_quantize=names_of_int8(network),
        per_channel=True,
        reduce_range=True,  # 7-bit weights: right on processors without VNNI as well
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    written = onnx.load(path)
    onnx.helper.set_model_props(written, {ENTRY: manifest.to_json()})
    onnx.save(written, path)
    write_checksum(path)


class Calibration:
    """Hands out what a file is calibrated with, as onnxruntime asks for it."""

    def __init__(self, file: ExportedEngine, frames: Sequence[Tensor]):
        self.left = calibration(file, frames)

    def get_next(self) -> dict | None:
        given = next(self.left, None)
        return given and {name: tensor.numpy() for name, tensor in given.items()}


def calibration(file: ExportedEngine, frames: Sequence[Tensor]) -> Iterator[dict[str, Tensor]]:
    """What goes into a file for each frame; for video also with a window full of it before it, which counts most."""
    for frame in frames:
        given = file.name_inputs(frame, torch.zeros(file.context_shape), 0.0)
        yield given
        if file.manifest.state:
            found = file.run(given)
            before = max(1, file.manifest.window - 1)
            own = torch.cat([found[f"context{stage}"] for stage in (1, 2, 3, 4)], dim=2)[0]
            yield file.name_inputs(frame, before * own, float(before))


def compare(model: FANet, file: ExportedEngine, frames: Sequence[Tensor]) -> Agreement:
    """How far the labels of a file are the network's own; a ValueError if they are not as much as they should be."""
    confusion = torch.zeros(model.classes, model.classes, dtype=torch.int64)
    for frame in frames:
        truth, _ = label_frame(model, frame)
        predicted, _ = label_frame(file, frame)
        confusion += metrics.confusion_matrix(truth, predicted, model.classes)
    found = Agreement(
        pictures=len(frames),
        pixels=metrics.pixel_accuracy(confusion),
        miou=metrics.miou(confusion),
        clip=compare_clip(model, file, frames[0]) if file.manifest.state else None,
    )
    shares = (found.pixels, 1.0 if found.clip is None else found.clip)
    if file.manifest.precision == "int8" and found.miou < SAME_INT8:
        raise ValueError(
            f"In int8 the mean IoU with the network's own labels is {found.miou:.1%}, and {SAME_INT8:.0%} is expected; "
            "the file is not kept: calibrate with more pictures, like those to come."
        )
    if file.manifest.precision == "fp32" and min(shares) < SAME:
        raise ValueError(
            f"Only {min(shares):.2%} of the labels in the file are the network's own, and {SAME:.1%} are expected; "
            "the file is not kept: please report it, with the versions that pip list shows."
        )
    return found


def compare_clip(model: FANet, file: ExportedEngine, picture: Tensor) -> float:
    """The share of the same labels over a clip, in which network and file each carry a state of their own."""
    size, window = file.manifest.size or CLIP_SIZE, max(2, file.manifest.window)
    truth = label_frames(model, pan(picture, size), window)
    predicted = label_frames(file, pan(picture, size), window)
    same = [(a == b).double().mean().item() for (_, a), (_, b) in zip(truth, predicted, strict=True)]
    return sum(same) / len(same)


def pan(picture: Tensor, size: tuple[int, int], frames: int = CLIP) -> Iterator[Tensor]:
    """Frames (3, H, W) of a camera that moves over a picture from the left to the right."""
    height, width = size
    (wide,) = resize_frames(picture[None], (height, width + width // 2))
    for i in range(frames):
        left = (width // 2) * i // (frames - 1)
        yield wide[:, :, left : left + width].contiguous()


def read_pictures(pictures: str | Path | None) -> Iterator[Tensor]:
    """The frames to compare on: those of a folder, a video, …; or the samples."""
    pictures = pictures or samples_folder()
    if pictures is None:
        raise FileNotFoundError("The samples to compare on are missing: give pictures of your own.")
    return islice(read_frames(pictures), PICTURES)


def samples_folder() -> Path | None:
    """The samples: in the package or, where it is not installed but worked on, beside it."""
    package = Path(__file__).parents[1]
    return next((place for place in (package / "samples", package.parent / "samples") if place.is_dir()), None)


def resize_to_export(frames: Iterator[Tensor], size: tuple[int, int] | None) -> Iterator[Tensor]:
    """Frames (3, H, W) at the size that a file takes; where it takes any, at several."""
    for frame, place in zip(frames, cycle([size] if size else SIZES), strict=False):
        yield resize_frames(frame[None], place)[0]


@contextmanager
def quiet_exporters() -> Iterator[None]:
    """Keep exporters from telling of what is no concern of the user's; errors come through."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def format_agreement(path: Path, agreement: Agreement) -> str:
    """What was written, and how far it agrees with the network, for the terminal."""
    told = (
        f"{path}: {100 * agreement.pixels:.3f} % of the labels are the network's own on {agreement.pictures} pictures "
        f"(mean IoU {100 * agreement.miou:.2f} %)"
    )
    return told if agreement.clip is None else f"{told}, {100 * agreement.clip:.3f} % over a clip of {CLIP} frames"
