"""Exported files at work: ONNX Runtime, OpenVINO, torch.export and AOTInductor, each behind the interface of an engine.

A file takes a frame and, for video, what the frames before it left; it gives labels and what this one leaves. Of an
ONNX or OpenVINO file nothing is run but the operators of a network. A .pt2 file is a program: torch runs code in it as
soon as it is loaded (pickles, guards, compiled libraries), so it is opened only for somebody who trusts it.

Shapes: B batch, H height, W width, D key channels, C channels of Res-1 … Res-4 side by side.
"""

import json
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.checks import check_choice, check_count, check_readable
from streamseg.classes import Classes
from streamseg.engine.engine import FrameBatch, Prediction, resize_frames, to_uint8
from streamseg.io.checksums import BLANK_CHECKSUM, check_checksum, check_zip, pop_checksum
from streamseg.io.tensors import short_error
from streamseg.models import checkpoint

ENTRY = "streamseg"
"""Where a file says what it is: in ONNX's metadata, in OpenVINO's rt_info, in the folder extra of a .pt2."""

MIN_EXPORT_SIDE = 65
"""The least height and width of frames for a file that takes any size: Res-4's map is then more than one pixel."""
MAX_EXPORT_SIDE = 8192
"""The largest side of frames for such a file, so that a compiled one can count pixels in 32 bits."""

COMPILED = "/data/aotinductor/"
"""What the names in a .pt2 hold if it is an AOTInductor package, and not a torch.export program."""

Shape = tuple[int | None, ...]
"""The shape of what goes into a file; None where any size will do."""
Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Runs a file once: tensors in and out, by their names."""


@dataclass(frozen=True)
class Manifest:
    """What an exported file says of itself."""

    classes: Classes
    size: tuple[int, int] | None
    """Height and width of its frames; None for any."""
    state: tuple[tuple[int, int], ...]
    """D and C of the contexts of Res-1 … Res-4; empty if it was exported without --video."""
    confidence: bool
    """Whether it gives the probability of each label too."""
    window: int
    """How many frames the network was trained to look at."""
    averages: bool
    """Whether it attends to the mean of the frames in the window, and so wants to know how many they are."""
    precision: str
    """What most of it computes in: fp32 or int8."""
    source: str
    """Where the weights came from, in words."""
    device: str = ""
    """What it was compiled for: cpu or cuda; empty if it runs on any."""

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, ("fp32", "int8"))
        check_choice("device", self.device, ("", "cpu", "cuda"))
        check_count("window", self.window)
        if self.size is not None and not is_shape(self.size):
            raise ValueError(f"size is {self.size!r:.80}; expected height and width, or null.")
        if len(self.state) not in (0, 4) or not all(map(is_shape, self.state)):
            raise ValueError(f"state is {self.state!r:.80}; expected the shapes of four matrices, or none.")
        if len({keys for keys, _ in self.state}) > 1:
            raise ValueError(f"state is {self.state!r:.80}; expected as many key channels in each matrix.")
        for flag in (self.confidence, self.averages):
            if not isinstance(flag, bool):
                raise ValueError(f"{flag!r:.80} stands where true or false should.")
        if not (isinstance(self.source, str) and self.source.isprintable()):
            raise ValueError(f"source is {self.source!r:.80}; expected printable text in one line.")

    @property
    def inputs(self) -> dict[str, Shape]:
        """Names and shapes of what goes in."""
        ports: dict[str, Shape] = {"frame": (1, *(self.size or (None, None)), 3)}
        ports |= {f"past{stage}": (1, *shape) for stage, shape in enumerate(self.state, 1)}
        return ports | ({"weight": (1,)} if self.state and self.averages else {})

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what comes out."""
        contexts = [f"context{stage}" for stage in range(1, len(self.state) + 1)]
        return ("labels", *(["confidence"] if self.confidence else []), *contexts)

    def to_json(self) -> str:
        """As it stands in a file, with a place for the file's checksum."""
        return json.dumps({**asdict(self), "checksum": BLANK_CHECKSUM})

    def to_plain_json(self) -> str:
        """As it stands in a .pt2, a zip file, which has checksums of its own."""
        return json.dumps(asdict(self))


def is_shape(numbers: Sequence[object]) -> bool:
    """Whether two numbers can be the height and width of a frame or of a matrix."""
    return len(numbers) == 2 and all(type(side) is int and 1 <= side <= 2**16 for side in numbers)


def read_manifest(path: Path, text: str | None) -> Manifest:
    """What a file says of itself, from the text in it."""
    if text is None:
        raise ValueError(f"{path} was not exported by streamseg: make such a file with streamseg export.")
    try:
        entry = json.loads(text)
        pop_checksum(path, entry)
        size, state, classes = entry["size"], entry["state"], entry["classes"]
        entry |= {"size": size and tuple(size), "state": tuple(map(tuple, state)), "classes": Classes(**classes)}
        return Manifest(**entry)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} describes itself wrongly ({error!r:.200}): it cannot be used.") from None


class ExportedEngine:
    """An exported file as an engine: label_frames and all else that takes a network takes it too."""

    def __init__(self, path: Path, manifest: Manifest, run: Run, device: torch.device):
        self.path = path
        self.manifest = manifest
        self.run = run
        self.device = device
        self.classes = len(manifest.classes)
        self.widths = tuple(channels for _, channels in manifest.state) or (0, 0, 0, 0)
        self.context_shape = (manifest.state[0][0] if manifest.state else 0, sum(self.widths))

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(f"{self.path} is open in this process alone and cannot be copied: open it again.")

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        """See Engine; labels of another size than the frames were seen at are taken from the nearest pixel."""
        images, past, weights, sizes, with_confidence, steady, _ = batch
        if with_confidence and not self.manifest.confidence:
            raise ValueError(f"{self.path} gives no confidence: export it again with --confidence.")
        if steady:
            raise ValueError(
                f"{self.path} gives labels, whose scores it does not tell: keep them steady with a network."
            )
        height, width = (min(max(MIN_EXPORT_SIDE, side), MAX_EXPORT_SIDE) for side in images.shape[-2:])
        frames = to_uint8(resize_frames(images, self.manifest.size or (height, width)))
        pasts = images.new_zeros(len(images), *self.context_shape, dtype=torch.float32) if past is None else past
        predictions, contexts = [], []
        for frame, before, weight, size in zip(frames, pasts.float(), weights, sizes, strict=True):
            found = self.run(self.name_inputs(frame, before, weight))
            confidence = resize_nearest(found["confidence"][0], size) if with_confidence else None
            predictions.append(Prediction(resize_nearest(found["labels"][0], size), confidence))
            context = [found[f"context{stage}"] for stage in range(1, len(self.manifest.state) + 1)]
            contexts.append(torch.cat(context, dim=2) if context else pasts.new_zeros(1, 0, 0))
        return predictions, torch.cat(contexts)

    def name_inputs(self, frame: Tensor, past: Tensor, weight: float) -> dict[str, Tensor]:
        """What goes into the file for a frame (3, H, W) and its past (D, C)."""
        parts = past[None].split(self.widths, dim=2) if self.manifest.state else ()
        given = {"frame": frame.permute(1, 2, 0)[None].contiguous()}
        given |= {f"past{stage}": part.contiguous() for stage, part in enumerate(parts, 1)}
        return given | ({"weight": past.new_tensor([weight])} if "weight" in self.manifest.inputs else {})


def resize_nearest(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Bytes (H, W) at another size, each from the pixel that it lies on."""
    if tuple(values.shape) == size:
        return values
    return F.interpolate(values[None, None], size, mode="nearest-exact")[0, 0]


def open_weights(
    path: Path | None, device: torch.device, *, trust: bool = False
) -> tuple["checkpoint.Network | ExportedEngine", Classes, int]:
    """The network in a checkpoint, or an exported file; its classes; and how many frames it was trained to look at.

    Args:
        path: By its suffix: .onnx, .xml, .pt2, or else a checkpoint; None for the one that ships.
        device: Where an exported file is to run.
        trust: Whether a program in the file may run.
    """
    if path is None or path.suffix.lower() not in OPENERS:
        model, description = checkpoint.read_checkpoint(path or checkpoint.BUNDLED)
        return model, description.classes, description.window
    file = open_exported(path, device, trust=trust)
    return file, file.manifest.classes, file.manifest.window


def open_exported(path: str | Path, device: str | torch.device = "cpu", *, trust: bool = False) -> ExportedEngine:
    """A file that export wrote, ready to label frames; see open_weights."""
    path = Path(path)
    check_readable(path)
    check_choice("The suffix of an exported file", path.suffix.lower(), tuple(OPENERS))
    if path.suffix.lower() == ".pt2" and not trust:
        raise ValueError(
            f"{path} is a program, which runs when it is opened: if you made it, or trust who did, give --trust "
            "(trust=True)."
        )
    return OPENERS[path.suffix.lower()](path, torch.device(device))


def open_onnx(path: Path, device: torch.device) -> ExportedEngine:
    """An ONNX file, in ONNX Runtime."""
    require_packages("ONNX files", "onnxruntime")
    import onnxruntime

    gpu = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    if not {*gpu} <= {*onnxruntime.get_available_providers()}:
        raise ValueError("This onnxruntime has no GPU: pip install onnxruntime-gpu in its place, or give --device cpu.")
    check_checksum(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what goes wrong is told in a sentence
    with explain_runtime_errors(f"{path} is no ONNX file, or is cut short or damaged"):
        session = onnxruntime.InferenceSession(str(path), options, [*gpu, "CPUExecutionProvider"])
    manifest = read_manifest(path, session.get_modelmeta().custom_metadata_map.get(ENTRY))
    ports = {port.name: to_shape(port.shape) for port in session.get_inputs()}
    check_shapes(path, manifest, ports, [port.name for port in session.get_outputs()])

    def run(given: dict[str, Tensor]) -> dict[str, Tensor]:
        with explain_runtime_errors(f"{path} failed on a frame"):
            found = session.run(manifest.outputs, {name: tensor.numpy() for name, tensor in given.items()})
        return {name: torch.from_numpy(values) for name, values in zip(manifest.outputs, found, strict=True)}

    return ExportedEngine(path, manifest, run, torch.device("cpu"))


def open_openvino(path: Path, device: torch.device) -> ExportedEngine:
    """An OpenVINO IR, whose weights lie beside it as .bin."""
    require_packages("OpenVINO files", "openvino")
    import openvino

    if device.type != "cpu":
        raise ValueError("OpenVINO does not run on this GPU: give --device cpu.")
    weights = path.with_suffix(".bin")
    check_readable(weights)
    check_checksum(path, weights)
    core = openvino.Core()
    # fp32 even where the processor has a faster format, so that labels are those of the network
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    with explain_runtime_errors(f"{path} is no OpenVINO file, or is cut short or damaged"):
        network = core.read_model(path, weights)
        text = network.get_rt_info([ENTRY]).astype(str) if network.has_rt_info([ENTRY]) else None
    manifest = read_manifest(path, text)
    ports = {
        port.any_name: to_shape(side.get_length() if side.is_static else None for side in port.partial_shape)
        for port in network.inputs
    }
    check_shapes(path, manifest, ports, [port.any_name for port in network.outputs])
    with explain_runtime_errors(f"{path} cannot be run here"):
        compiled = core.compile_model(network, "CPU", settings)
    turn = threading.Lock()  # a compiled model computes one thing at a time, and fails if it is asked for two

    def run(given: dict[str, Tensor]) -> dict[str, Tensor]:
        with turn, explain_runtime_errors(f"{path} failed on a frame"):
            found = compiled({name: tensor.numpy() for name, tensor in given.items()})
        return {name: torch.from_numpy(found[name]) for name in manifest.outputs}

    return ExportedEngine(path, manifest, run, torch.device("cpu"))


def open_program(path: Path, device: torch.device) -> ExportedEngine:
    """A .pt2 file: a torch.export program, or an AOTInductor package. What is in it is run."""
    check_zip(path)
    with explain_runtime_errors(f"{path} is no .pt2 file, or is cut short"), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        found = [name for name in names if name.partition("/")[2] == f"extra/{ENTRY}.json"]
        text = archive.read(found[0]).decode() if found else None
    manifest = read_manifest(path, text)
    compiled = any(COMPILED in name for name in names)
    if compiled and manifest.device != device.type:
        raise ValueError(
            f"{path} was compiled for {manifest.device or 'nothing'}, and not for {device.type}: give --device, or "
            "export it anew."
        )
    with explain_runtime_errors(f"{path} cannot be loaded by this version of torch, on this machine"):
        program = load_compiled(path, device) if compiled else load_program(path, device)

    def run(given: dict[str, Tensor]) -> dict[str, Tensor]:
        with explain_runtime_errors(f"{path} failed on a frame"), torch.no_grad():
            values = program(*given.values())
        return dict(zip(manifest.outputs, values, strict=True))

    return ExportedEngine(path, manifest, run, device)


def load_program(path: Path, device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
    """A torch.export program, on a device."""
    from torch.export.passes import move_to_device_pass

    program = torch.export.load(path)
    return move_to_device_pass(program, device).module()


def load_compiled(path: Path, device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
    """An AOTInductor package, on the device that it was compiled for."""
    return torch._inductor.aoti_load_package(str(path), device_index=-1 if device.index is None else device.index)


def default_device(path: Path | None) -> str:
    """The device that weights run on unless told otherwise; empty for the best that there is."""
    return "cpu" if path is not None and path.suffix.lower() in (".onnx", ".xml") else ""


OPENERS = {".onnx": open_onnx, ".xml": open_openvino, ".pt2": open_program}
"""What opens an exported file, by its suffix."""


def to_shape(sides: Iterator[int | str | None] | Sequence[int | str | None]) -> Shape:
    """A shape with None for what any size will do for."""
    return tuple(side if isinstance(side, int) else None for side in sides)


def check_shapes(path: Path, manifest: Manifest, inputs: Mapping[str, Shape], outputs: Sequence[str]) -> None:
    """Raise a ValueError unless what goes in and out of a file is what it says."""
    if inputs != manifest.inputs or set(outputs) != set(manifest.outputs):
        raise ValueError(f"{path} describes itself wrongly (it takes {inputs!s:.200}): it cannot be used.")


def require_packages(what: str, *modules: str) -> None:
    """Raise an ImportError that says what to install, if a library is missing."""
    for module in modules:
        if find_spec(module) is None:
            raise ImportError(f"{what} need {module}: pip install 'streamseg[export]'")


@contextmanager
def explain_runtime_errors(what: str) -> Iterator[None]:
    """Tell of whatever a runtime fails with in a sentence; each has errors of its own kinds."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            raise MemoryError(f"{what}: there is not enough memory.") from error
        raise ValueError(f"{what} ({short_error(error)}): get a whole copy of it, or export it again.") from error
