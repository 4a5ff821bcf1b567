"""Run exported files as engines: ONNX Runtime, OpenVINO, torch.export and AOTInductor.

A file takes a frame and, for video, the past; it returns labels and the context. An ONNX or OpenVINO file runs only the
operators of a network. A .pt2 file is a program: torch runs code from it as soon as it is loaded (pickles, guards,
compiled libraries), so opening one requires `trust`.

Shapes: B batch, H height, W width, D key channels, C channels of the stages with attention, concatenated.
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
from streamseg.engine.engine import Engine, FrameBatch, Prediction, find_mirrored, resize_frames, to_uint8
from streamseg.engine.evidence import AnyEvidence, Evidence
from streamseg.engine.steadying import Steadiness, luma_size, weigh_gap
from streamseg.io.checksums import BLANK_CHECKSUM, check_checksum, check_zip, pop_checksum
from streamseg.io.tensors import short_error
from streamseg.models.fanet import join_contexts

ENTRY = "streamseg"
"""Key of the manifest: in ONNX's metadata, in OpenVINO's rt_info, in the folder extra of a .pt2."""

MAX_EXPORT_SIDE = 8192
"""Maximum height and width for such a file, so that compiled code can count pixels in 32 bits."""

COMPILED = "/data/aotinductor/"
"""Folder in a .pt2 that is an AOTInductor package, and not a torch.export program."""

Shape = tuple[int | None, ...]
"""Shape of an input of a file; None for a dimension of any size."""
Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Runs a file once, with inputs and outputs by name."""


@dataclass(frozen=True)
class Manifest:
    """The metadata of an exported file."""

    classes: Classes
    size: tuple[int, int] | None
    """Height and width of its frames; None for any size."""
    state: tuple[tuple[int, int], ...]
    """D and C of the contexts of the stages with attention; empty if it was exported without --video."""
    confidence: bool
    """Whether it also returns the probability of each label."""
    window: int
    """Number of frames that the network was trained on."""
    averages: bool
    """Whether it attends to the mean over the frames in the window, and so needs their number as an input."""
    precision: str
    """Precision of most of its operators: fp32 or int8."""
    source: str
    """Origin of the weights, in words."""
    device: str = ""
    """Device that it was compiled for: cpu or cuda; empty if it runs on any."""
    min_side: int = 65
    """Minimum height and width of its frames, if it takes any size: its Res-4 map must have more than one pixel."""
    masked: bool = False
    """Whether a mask is built in: what it hides has the label 255."""
    steady: Steadiness | None = None
    """How steady it keeps the labels of a stream; None if it labels each frame by itself."""
    score_size: tuple[int, int] | None = None
    """Height and width of its scores, if it keeps labels steady."""

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, ("fp32", "int8"))
        check_choice("device", self.device, ("", "cpu", "cuda"))
        check_count("window", self.window)
        if self.size is not None and not is_shape(self.size):
            raise ValueError(f"size is {self.size!r:.80}; expected height and width, or null.")
        check_count("min_side", self.min_side)
        if len(self.state) not in (0, 2, 4) or not all(map(is_shape, self.state)):
            raise ValueError(f"state is {self.state!r:.80}; expected the shapes of two or four matrices, or none.")
        if len({keys for keys, _ in self.state}) > 1:
            raise ValueError(f"state is {self.state!r:.80}; expected the same number of key channels in each matrix.")
        for flag in (self.confidence, self.averages, self.masked):
            if not isinstance(flag, bool):
                raise ValueError(f"confidence, averages or masked is {flag!r:.80}; expected true or false.")
        if self.steady is not None and not (self.state and self.size and is_shape(self.score_size or ())):
            raise ValueError(f"score_size is {self.score_size!r:.80}; expected that of a file for video of one size.")
        if not (isinstance(self.source, str) and self.source.isprintable()):
            raise ValueError(f"source is {self.source!r:.80}; expected printable text in one line.")

    def keeps_as_steady_as(self, steady: float | Steadiness) -> bool:
        """Return whether it keeps labels steady as it is asked to; a file that mirrors frames need not."""
        return self.steady is not None and steady in (self.steady, self.steady.unmirrored())

    @property
    def inputs(self) -> dict[str, Shape]:
        """Names and shapes of the inputs."""
        shapes: dict[str, Shape] = {"frame": (1, *(self.size or (None, None)), 3)}
        shapes |= {f"past{stage}": (1, *shape) for stage, shape in enumerate(self.state, 1)}
        shapes |= {"weight": (1,)} if self.state and self.averages else {}
        if self.steady and self.size and self.score_size:
            h, w = self.score_size
            shapes |= {"past_luma": (1, 1, *luma_size((h, w), self.size)), "past_scores": (1, len(self.classes), h, w)}
            shapes |= {"past_labels": (1, *self.size), "past_share": (1,)}
            shapes |= {"mirrored": (1,)} if self.steady.mirror else {}
        return shapes

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        contexts = [f"context{stage}" for stage in range(1, len(self.state) + 1)]
        evidence = ["luma", "scores"] if self.steady else []
        return ("labels", *(["confidence"] if self.confidence else []), *contexts, *evidence)

    def to_json(self) -> str:
        """Return the JSON for a file, with a blank for the file's checksum."""
        return json.dumps({**asdict(self), "checksum": BLANK_CHECKSUM})

    def to_plain_json(self) -> str:
        """Return the JSON for a .pt2, which is a zip file and so has its own checksums."""
        return json.dumps(asdict(self))


def is_shape(numbers: Sequence[object]) -> bool:
    """Return whether numbers are the height and width of a frame or of a matrix."""
    return len(numbers) == 2 and all(type(side) is int and 1 <= side <= 2**16 for side in numbers)


def read_manifest(path: Path, text: str | None) -> Manifest:
    """Parse and check the manifest of a file."""
    if text is None:
        raise ValueError(f"{path} was not exported by streamseg: create one with streamseg export.")
    try:
        entry = json.loads(text)
        pop_checksum(path, entry)
        size, state, classes = entry["size"], entry["state"], entry["classes"]
        entry |= {"size": size and tuple(size), "state": tuple(map(tuple, state)), "classes": Classes(**classes)}
        if entry.get("steady") is not None:
            entry |= {"steady": Steadiness(**entry["steady"]), "score_size": tuple(entry["score_size"])}
        return Manifest(**entry)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} has invalid metadata ({error!r:.200}): it cannot be used.") from None


class ExportedEngine(Engine):
    """An exported file as an engine, for label_frames and every other function that takes a network."""

    def __init__(self, path: Path, manifest: Manifest, run: Run, device: torch.device):
        self.path = path
        self.manifest = manifest
        self.run = run
        self.run_device = device
        self.classes = len(manifest.classes)
        self.widths = tuple(channels for _, channels in manifest.state) or (0, 0, 0, 0)
        self.context_shape = (manifest.state[0][0] if manifest.state else 0, sum(self.widths))

    @property
    def device(self) -> torch.device:
        return self.run_device

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(f"{self.path} is open in this process and cannot be copied: open it again.")

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        """Return predictions and contexts; labels are resized to another size by the nearest pixel."""
        if batch.shares is not None:
            return self.predict_together(batch, batch.shares)
        images, past, weights, sizes, with_confidence, steady, *_ = batch
        count = len(images)
        evidence, gaps = list(batch.evidence) or [None] * count, list(batch.gaps) or [0.0] * count
        mirrored = find_mirrored(batch, torch.device("cpu"))
        flags = torch.zeros(count) if mirrored is None else mirrored
        if batch.mask is not None:
            raise ValueError(f"{self.path} looks at all pixels: export it with --mask, or use a network.")
        if with_confidence and not self.manifest.confidence:
            raise ValueError(f"{self.path} gives no confidence: export it again with --confidence.")
        if steady and not self.manifest.keeps_as_steady_as(steady):
            if self.manifest.steady:
                raise ValueError(
                    f"{self.path} keeps labels steady in another way: leave out steady, or export it again."
                )
            raise ValueError(f"{self.path} gives labels, and no scores: leave out steady, or use a network.")
        height, width = (min(max(self.manifest.min_side, side), MAX_EXPORT_SIDE) for side in images.shape[-2:])
        frames = to_uint8(resize_frames(images, self.manifest.size or (height, width)))
        pasts = images.new_zeros(len(images), *self.context_shape, dtype=torch.float32) if past is None else past
        predictions, contexts = [], []
        each = zip(frames, pasts.float(), weights, sizes, evidence, gaps, flags, strict=True)
        for frame, own_past, weight, size, earlier, gap, flag in each:
            inputs = self.name_inputs(frame, own_past, weight)
            if self.manifest.steady:
                inputs |= self.name_evidence(earlier if steady else None, gap)
            if "mirrored" in self.manifest.inputs:
                inputs["mirrored"] = flag[None].to(self.device)
            outputs = self.run(inputs)
            confidence = resize_labels(outputs["confidence"][0], size) if with_confidence else None
            after = read_evidence(outputs, steady, flag) if isinstance(steady, Steadiness) else None
            predictions.append(Prediction(resize_labels(outputs["labels"][0], size), confidence, evidence=after))
            contexts.append(self.join_context(outputs) if self.manifest.state else pasts.new_zeros(1, 0, 0))
        return predictions, torch.cat(contexts)

    def predict_together(self, batch: FrameBatch, shares: Tensor) -> tuple[list[Prediction], Tensor]:
        """Return predictions of frames that attend to one context of all: they run once for it, and once more."""
        alone = batch._replace(shares=None)
        _, own = self.predict(alone._replace(past=None, with_confidence=False))
        joint = join_contexts(own, shares)
        others = joint - own if batch.past is None else joint - own + batch.past.float()
        predictions, _ = self.predict(alone._replace(past=others))
        return predictions, joint

    def join_context(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the context (1, D, C) among the outputs of a file with the state of a stream."""
        return torch.cat([outputs[f"context{stage}"] for stage in range(1, len(self.manifest.state) + 1)], dim=2)

    def name_inputs(self, frame: Tensor, past: Tensor, weight: float) -> dict[str, Tensor]:
        """Return the inputs of the file for a frame (3, H, W) and its past (D, C)."""
        parts = past[None].split(self.widths, dim=2) if self.manifest.state else ()
        inputs = {"frame": frame.permute(1, 2, 0)[None].contiguous()}
        inputs |= {f"past{stage}": part.contiguous() for stage, part in enumerate(parts, 1)}
        return inputs | ({"weight": past.new_tensor([weight])} if "weight" in self.manifest.inputs else {})

    def name_evidence(self, evidence: AnyEvidence | None, gap: float) -> dict[str, Tensor]:
        """Return the inputs of a file that keeps labels steady, for the evidence of the frame before, if any."""
        shapes = self.manifest.inputs
        names, types = ("past_luma", "past_scores", "past_labels"), (torch.float32, torch.float32, torch.uint8)
        zeros = [
            torch.zeros([side or 1 for side in shapes[name]], dtype=kind, device=self.device)
            for name, kind in zip(names, types, strict=True)
        ]
        given = () if evidence is None else (evidence.luma[None, None], evidence.scores[None], evidence.labels[None])
        fits = bool(given) and all(a.shape == b.shape for a, b in zip(given, zeros, strict=True))
        tensors = [tensor.to(self.device).contiguous() for tensor in given] if fits else zeros
        share = torch.tensor([weigh_gap(gap) if fits else 0.0], device=self.device)
        return dict(zip((*names, "past_share"), (*tensors, share), strict=True))


def read_evidence(outputs: Mapping[str, Tensor], steady: Steadiness, mirrored: Tensor) -> Evidence:
    """Return the evidence among the outputs of a file that keeps labels steady.

    Args:
        mirrored: 1 if the frame was mirrored, or else 0, ().
    """
    luma, scores, labels = (outputs[name][0].clone() for name in ("luma", "scores", "labels"))
    return Evidence(luma[0], scores, labels, float(steady.mirror) - mirrored)


def resize_labels(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize labels or confidence (H, W), bytes, by the nearest pixel."""
    if tuple(values.shape) == size:
        return values
    return F.interpolate(values[None, None], size, mode="nearest-exact")[0, 0]


def open_exported(path: str | Path, device: str | torch.device = "cpu", *, trust: bool = False) -> ExportedEngine:
    """Open an exported file as an engine.

    Args:
        path: A file that export_model or `streamseg export` wrote: .onnx, .xml or .pt2.
        device: Device on which it runs.
        trust: Allow a .pt2 file, which is a program, to run.
    """
    path = Path(path)
    check_readable(path)
    check_choice("The suffix of an exported file", path.suffix.lower(), tuple(OPENERS))
    if path.suffix.lower() == ".pt2" and not trust:
        raise ValueError(
            f"{path} is a program, which runs when it is opened: give --trust (trust=True) if you trust its origin."
        )
    return OPENERS[path.suffix.lower()](path, torch.device(device))


def open_onnx(path: Path, device: torch.device) -> ExportedEngine:
    """Open an ONNX file in ONNX Runtime."""
    require_packages("ONNX files", "onnxruntime")
    import onnxruntime

    gpu = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    if not {*gpu} <= {*onnxruntime.get_available_providers()}:
        raise ValueError("This onnxruntime has no GPU support: pip install onnxruntime-gpu, or give --device cpu.")
    check_checksum(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised as one sentence
    with explain_runtime_errors(f"{path} is no ONNX file, or is cut short or damaged"):
        session = onnxruntime.InferenceSession(str(path), options, [*gpu, "CPUExecutionProvider"])
    manifest = read_manifest(path, session.get_modelmeta().custom_metadata_map.get(ENTRY))
    shapes = {node.name: to_shape(node.shape) for node in session.get_inputs()}
    check_shapes(path, manifest, shapes, [node.name for node in session.get_outputs()])

    def run(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with explain_runtime_errors(f"{path} failed on a frame"):
            outputs = session.run(manifest.outputs, {name: tensor.numpy() for name, tensor in inputs.items()})
        return {name: torch.from_numpy(values) for name, values in zip(manifest.outputs, outputs, strict=True)}

    return ExportedEngine(path, manifest, run, torch.device("cpu"))


def open_openvino(path: Path, device: torch.device) -> ExportedEngine:
    """Open an OpenVINO IR, whose weights are in a .bin file beside it."""
    require_packages("OpenVINO files", "openvino")
    import openvino

    if device.type != "cpu":
        raise ValueError("OpenVINO does not run on this GPU: give --device cpu.")
    weights = path.with_suffix(".bin")
    check_readable(weights)
    check_checksum(path, weights)
    core = openvino.Core()
    # fp32 even if the processor has a faster format, so that the labels are those of the network
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    with explain_runtime_errors(f"{path} is no OpenVINO file, or is cut short or damaged"):
        network = core.read_model(path, weights)
        text = network.get_rt_info([ENTRY]).astype(str) if network.has_rt_info([ENTRY]) else None
    manifest = read_manifest(path, text)
    shapes = {
        node.any_name: to_shape(side.get_length() if side.is_static else None for side in node.partial_shape)
        for node in network.inputs
    }
    check_shapes(path, manifest, shapes, [node.any_name for node in network.outputs])
    with explain_runtime_errors(f"{path} cannot be run here"):
        compiled = core.compile_model(network, "CPU", settings)
    lock = threading.Lock()  # a compiled model fails if two threads call it at the same time

    def run(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with lock, explain_runtime_errors(f"{path} failed on a frame"):
            outputs = compiled({name: tensor.numpy() for name, tensor in inputs.items()})
        return {name: torch.from_numpy(outputs[name]) for name in manifest.outputs}

    return ExportedEngine(path, manifest, run, torch.device("cpu"))


def open_program(path: Path, device: torch.device) -> ExportedEngine:
    """Open a .pt2 file, a torch.export program or an AOTInductor package, whose code is run."""
    check_zip(path)
    with explain_runtime_errors(f"{path} is no .pt2 file, or is cut short"), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        manifests = [name for name in names if name.partition("/")[2] == f"extra/{ENTRY}.json"]
        text = archive.read(manifests[0]).decode() if manifests else None
    manifest = read_manifest(path, text)
    compiled = any(COMPILED in name for name in names)
    if compiled and manifest.device != device.type:
        raise ValueError(
            f"{path} was compiled for {manifest.device or 'nothing'}, and not for {device.type}: give --device, or "
            "export it again."
        )
    with explain_runtime_errors(f"{path} cannot be loaded by this version of torch, on this machine"):
        program = load_compiled(path, device) if compiled else load_program(path, device)

    def run(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with explain_runtime_errors(f"{path} failed on a frame"), torch.no_grad():
            values = program(*inputs.values())
        return dict(zip(manifest.outputs, values, strict=True))

    return ExportedEngine(path, manifest, run, device)


def load_program(path: Path, device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
    """Load a torch.export program on a device."""
    from torch.export.passes import move_to_device_pass

    program = torch.export.load(path)
    return move_to_device_pass(program, device).module()


def load_compiled(path: Path, device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
    """Load an AOTInductor package on the device that it was compiled for."""
    return torch._inductor.aoti_load_package(str(path), device_index=-1 if device.index is None else device.index)


OPENERS = {".onnx": open_onnx, ".xml": open_openvino, ".pt2": open_program}
"""The function that opens an exported file, by suffix."""


def to_shape(sides: Iterator[int | str | None] | Sequence[int | str | None]) -> Shape:
    """Return a shape with None for dimensions of any size."""
    return tuple(side if isinstance(side, int) else None for side in sides)


def check_shapes(path: Path, manifest: Manifest, inputs: Mapping[str, Shape], outputs: Sequence[str]) -> None:
    """Raise a ValueError unless the inputs and outputs of a file are those of its manifest."""
    if inputs != manifest.inputs or set(outputs) != set(manifest.outputs):
        raise ValueError(f"{path} has invalid metadata (it takes {inputs!s:.200}): it cannot be used.")


def require_packages(files: str, *modules: str) -> None:
    """Raise an ImportError that names the package to install, if one is missing."""
    for module in modules:
        if find_spec(module) is None:
            raise ImportError(f"{files} need {module}: pip install 'streamseg[export]'")


@contextmanager
def explain_runtime_errors(problem: str) -> Iterator[None]:
    """Raise any error of a runtime as a ValueError or MemoryError in one sentence; each runtime has its own types."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            raise MemoryError(f"{problem}: there is not enough memory.") from error
        raise ValueError(f"{problem} ({short_error(error)}): copy or export it again.") from error
