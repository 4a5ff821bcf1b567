"""The fast path: a FANet in fewer and larger steps, for whatever takes a network to label frames.

On a GPU the folded network runs in half precision, with kernels.py between its convolutions, as one CUDA graph for each
size of frames: nothing is allocated, and the host waits for nothing. On the CPU it runs in fp32, or with most of its
convolutions in bytes (int8).

Shapes: B batch, H x W the frame, D key channels, C channels of Res-1 … Res-4 side by side.
"""

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from streamseg.checks import check_choice
from streamseg.engine import kernels
from streamseg.engine.convolutions import has_int8
from streamseg.engine.engine import (
    EagerEngine,
    Engine,
    FrameBatch,
    ImageEngine,
    Prediction,
    apply_hysteresis,
    make_frame_batch,
    predict_from_scores,
    step_engine,
    to_engine,
    to_frames,
    to_uint8,
)
from streamseg.engine.folded import Folded, FoldedInt8
from streamseg.engine.scratch import DeviceLock
from streamseg.engine.sizes import SizeCounter
from streamseg.engine.tiles import check_model, to_checked_frame
from streamseg.io.images import Picture
from streamseg.models.attention import FastAttention
from streamseg.models.checkpoint import Network
from streamseg.models.fanet import FANet

LOG = logging.getLogger("streamseg")

MAX_GRAPHS = 8
"""How many sizes of frames are kept ready at a time."""

CALIBRATION_FRAMES = 8
"""How many frames are seen in fp32 to learn the ranges of bytes, where none were given for it."""

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.uint8}
"""What numbers are computed with, by their names."""

CAPTURE = threading.Lock()
"""Of graphs: torch captures all of them in one queue of the GPU's, and so one at a time."""

Size = tuple[torch.Size, bool]
"""The shape that frames are given in, and whether confidence is wanted."""


@dataclass(eq=False)
class GraphBuffers:
    """What a size of frames needs on a GPU: places for what goes in and comes out, and the graph between them."""

    given: Tensor
    """The frames' place in the shape that they are given in, (3, H, W) or (B, 3, H, W)."""
    frame: Tensor
    """The same as (B, 3, H, W)."""
    past: Tensor
    scale: Tensor
    context: Tensor
    unfolded: Tensor
    labels: Tensor
    answer: Tensor
    """The labels' place in the shape that fits the frames'."""
    confidence: Tensor | None
    alone: tuple[float, ...]
    """The weights of frames without a past."""
    weights: tuple[float, ...]
    """Those that `scale` was made from."""
    scores: Tensor | None = None
    graph: "torch.cuda.CUDAGraph | None" = None
    has_past: bool = False


class FastEngine:
    """A FANet's fast form: a function from frames to labels, and an engine for streams.

    `labels = fast(frame)`: of a frame (3, H, W) or frames (B, 3, H, W), bytes on the network's device.

    It holds weights of its own: what becomes of the network afterwards does not change it. Any number of threads may
    call it, and copies of it, by copy.deepcopy or pickle, share nothing with it.
    """

    def __init__(self, model: FANet, precision: torch.dtype, calibration: Sequence[Picture] = ()):
        self.device, self.classes, self.averages = model.mean.device, model.classes, model.averages
        self.widths = tuple(attend.context_shape[1] for attend in model.attentions)
        self.context_shape = (model.key_channels, sum(self.widths))
        self.ready: dict[Size, GraphBuffers] = {}
        self.sizes: SizeCounter[Size] = SizeCounter(MAX_GRAPHS)
        self.capture_when_idle = False
        """Whether graphs are made by capture_next alone, and not while frames wait for their labels."""
        in_bytes = precision == torch.uint8
        frames = [to_checked_frame(frame)[None] for frame in calibration] if in_bytes else []
        with torch.inference_mode(False):  # or nothing that is made here could be changed outside of it
            self.folded = Folded(model, torch.float32 if in_bytes else precision)
            if frames:
                self.folded = FoldedInt8(self.folded, frames)
        self.calibrating, self.seen = in_bytes and not frames, list[Tensor]()
        self.turn = DeviceLock(self.device)

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"ready": {}, "sizes": SizeCounter(MAX_GRAPHS)}  # a copy prepares for sizes by itself

    def __copy__(self) -> "FastEngine":
        return copy.deepcopy(self)

    def __call__(self, frame: Picture) -> Tensor:
        """Labels (H, W) or (B, H, W), uint8."""
        if self.device.type != "cuda":
            return step_engine(self, frame)[0]
        with self.turn:
            return self.see(frame, None, 1.0).answer.clone()

    def step(self, frame: Picture, past: Tensor | None = None, weight: float = 1.0) -> tuple[Tensor, Tensor]:
        """Labels of the next frame of a video, and the context (B, D, C) that it leaves to later frames.

        Args:
            past: The sum of the contexts of the earlier frames in the window (B, D, C); None for the first.
            weight: How many frames that sum is of, for a network that averages.
        """
        if self.device.type != "cuda":
            return step_engine(self, frame, past, weight)
        with self.turn:
            ready = self.see(frame, past, weight)
            return ready.answer.clone(), ready.context.clone()

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        batch = batch._replace(images=to_uint8(batch.images))
        if self.device.type == "cuda":
            with self.turn:
                return self.predict_on_gpu(batch)
        # a new thread computes with as many threads as torch was told to only once it has been asked
        torch.get_num_threads()
        context = torch.empty(len(batch.images), *self.context_shape, device=self.device)
        past = torch.zeros_like(context) if batch.past is None else batch.past
        scores = self.folded.scores(batch.images, past, self.scale_of(batch.weights), context)
        if self.calibrating:
            self.learn(batch.images)
        return predict_from_scores(scores, batch), context

    def learn(self, images: Tensor) -> None:
        """Keep frames to learn the ranges of bytes from, and go over to bytes when there are enough."""
        with self.turn, torch.inference_mode(False):
            if not self.calibrating:  # another thread has brought the last one
                return
            self.seen.append(images.clone())  # the caller may put the next frame into its place
            if sum(map(len, self.seen)) >= CALIBRATION_FRAMES:
                self.folded = FoldedInt8(self.folded, self.seen)
                self.calibrating, self.seen = False, []

    def scale_of(self, weights: Sequence[float]) -> Tensor:
        return torch.tensor([1 / (1 + weight) if self.averages else 1.0 for weight in weights], device="cpu")

    # on a GPU; whoever calls these has the turn

    def see(self, frame: Picture, past: Tensor | None, weight: float) -> GraphBuffers:
        """See frames; what is found is in the places of their size until the next call."""
        # what follows is waited for, so the host does as little as it can
        if isinstance(frame, Tensor):
            key = (frame.shape, False)
            ready = self.ready.get(key)
            known = past is None or (ready is not None and past.shape == ready.past.shape)
            if ready and ready.graph and known and frame.dtype == torch.uint8 and frame.device == ready.given.device:
                self.sizes.note(key)
                ready.given.copy_(frame, non_blocking=True)
                self.remind(ready, past, ready.alone if past is None else (weight,) * len(ready.frame))
                ready.graph.replay()
                return ready
        frames, one = to_frames(frame, self.device)
        return self.replay(
            make_frame_batch(self, frames, past, weight), frames.shape[1:] if one else frames.shape, True
        )

    def predict_on_gpu(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        """See look; steady labels, and those of another size than the frames', are made from the scores once more."""
        ready = self.replay(batch, batch.images.shape)
        assert ready.scores is not None
        scores, coarse = apply_hysteresis(ready.scores, batch)
        predictions: list[Prediction] = []
        for i, size in enumerate(batch.sizes):
            if size == tuple(batch.images.shape[2:]) and not batch.steady:
                confidence = None if ready.confidence is None else ready.confidence[i].clone()
                predictions.append(Prediction(ready.labels[i].clone(), confidence))
                continue
            labels = torch.empty(1, *size, dtype=torch.uint8, device=self.device)
            confidence = torch.empty_like(labels) if batch.with_confidence else None
            kernels.label(scores[i : i + 1], size, labels, confidence)
            predictions.append(Prediction(labels[0], None if confidence is None else confidence[0], coarse[i]))
        return predictions, ready.context.clone()

    def replay(self, batch: FrameBatch, shape: torch.Size, at_once: bool = False) -> GraphBuffers:
        """See frames; what is found is in the places of their size.

        Args:
            shape: That in which they were given.
            at_once: Whether a graph is made for a size that comes for the first time; else, for the second. Neither
                for a size that is rare among more sizes than are kept.
        """
        key = (shape, batch.with_confidence)
        self.sizes.note(key)
        again = key in self.ready
        ready = self.ready[key] if again else self.allocate(key)
        kept = again or self.keep(key, ready)
        ready.frame.copy_(batch.images, non_blocking=True)
        self.remind(ready, batch.past, tuple(batch.weights))
        if ready.graph is None and kept and (at_once or again) and not self.capture_when_idle:
            self.capture(ready)
        if ready.graph is None:
            with CAPTURE:  # or what is captured in another thread might get this as well
                self.run(ready)
        else:
            ready.graph.replay()
        return ready

    def remind(self, ready: GraphBuffers, past: Tensor | None, weights: tuple[float, ...]) -> None:
        """Put the past into its place."""
        if past is not None:
            ready.past.copy_(past.detach())
        elif ready.has_past:
            ready.past.zero_()
        ready.has_past = past is not None
        if ready.weights != weights:  # mostly they are what they were, and nothing has to go to the GPU
            ready.weights = weights
            ready.scale.copy_(self.scale_of(weights))

    @torch.inference_mode(False)
    def allocate(self, key: Size) -> GraphBuffers:
        """Places for a size of frames."""
        shape, confident = key
        batch, height, width = (shape[0] if len(shape) == 4 else 1), *shape[-2:]
        device, half = self.device, self.folded.stem.weight.dtype
        rows, columns = (height + 1) // 2 + 3, (width + 1) // 2 + 3
        given = torch.empty(shape, dtype=torch.uint8, device=device)
        labels = torch.empty(batch, height, width, dtype=torch.uint8, device=device)
        return GraphBuffers(
            given=given,
            frame=given.view(batch, 3, height, width),
            past=torch.zeros(batch, *self.context_shape, device=device),
            scale=torch.ones(batch, device=device),
            context=torch.empty(batch, *self.context_shape, device=device),
            unfolded=torch.zeros(batch, rows, columns, 16, dtype=half, device=device).permute(0, 3, 1, 2),
            labels=labels,
            answer=labels if len(shape) == 4 else labels[0],
            confidence=torch.empty_like(labels) if confident else None,
            alone=(0.0,) * batch,
            weights=(0.0,) * batch,
        )

    def keep(self, key: Size, ready: GraphBuffers) -> bool:
        """Keep the places of a size, for those of a rarer one if need be; False for a size that is rare itself."""
        if not self.sizes.admits(key, self.ready):
            return False
        if len(self.ready) >= MAX_GRAPHS:
            self.turn.settle()  # they may still be in use, in another queue than the one that they were made in
            del self.ready[self.sizes.rarest(self.ready)]
        self.ready[key] = ready
        return True

    def capture(self, ready: GraphBuffers) -> None:
        """Make the graph of a size."""
        LOG.info("Preparing for frames of %d x %d, which takes half a minute the first time.", *ready.given.shape[-2:])
        ready.graph = capture_graph(partial(self.run, ready), self.device)

    def capture_next(self) -> bool:
        """Make the graph of the size that comes most often of those without one; False if no other is left."""
        with self.turn:
            wanted = [key for key, ready in self.ready.items() if ready.graph is None and self.sizes.counts[key] > 1]
            if wanted:
                self.capture(self.ready[max(wanted, key=self.sizes.counts.__getitem__)])
        return len(wanted) > 1

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self, ready: GraphBuffers) -> None:
        """From a size's frame to its labels."""
        size = (ready.labels.shape[1], ready.labels.shape[2])
        ready.scores = self.folded.scores(ready.frame, ready.past, ready.scale, ready.context, ready.unfolded)
        kernels.label(ready.scores, size, ready.labels, ready.confidence)


def capture_graph(run: Callable[[], object], device: torch.device) -> torch.cuda.CUDAGraph:
    """All that a function does on a GPU as one graph, which does it again, in the same places."""
    with CAPTURE, torch.cuda.device(device), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose their kernels, and Triton compiles ours
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # other threads may talk to the GPU meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
    return graph


def accelerate(
    model: FANet, precision: str | None = None, calibration: Sequence[Picture] = ()
) -> FastEngine | EagerEngine | ImageEngine:
    """The fast form of a network, for whatever takes a network to label frames; the labels are the same.

    It is called as a function, `labels = fast(frame)`, from any number of threads. It keeps the weights of now: call
    accelerate again after they have changed.

    Args:
        precision: fp16 or bf16 on a GPU; fp32 or int8 on the CPU. Without one, fp16 and fp32.
        calibration: Frames that tell int8 the ranges of its numbers; without any, the first ones that it sees do.

    Returns:
        For a network that has no fast form, such as one of self-attention: the network itself, in its own precision or
        in the one given, to be called in the same way.
    """
    check_model(model)
    device = next(model.parameters()).device
    known = fast_precisions(device)
    if precision == "int8" and device.type != "cuda":
        check_int8(model)
    check_choice("precision", known[0] if precision is None else precision, known)
    if has_fast_form(model):
        return FastEngine(model, PRECISIONS[precision or known[0]], calibration)
    if precision and next(model.parameters()).dtype != PRECISIONS[precision]:
        model = copy.deepcopy(model).to(PRECISIONS[precision])
    engine = to_engine(model)
    assert isinstance(engine, (EagerEngine, ImageEngine))
    return engine


def has_fast_form(model: nn.Module) -> bool:
    """Whether there is a fast form of a network: of a FANet with fast attention and a first convolution of stride 2."""
    if not isinstance(model, FANet):
        return False
    plain_stem = model.encoder.conv1.stride[0] == 2 and isinstance(model.encoder.pool[0], nn.Identity)
    return plain_stem and all(type(attend) is FastAttention for attend in model.attentions)


def check_int8(model: nn.Module) -> None:
    """Raise a ValueError if a network cannot run in int8 on this machine's CPU."""
    if not has_fast_form(model):
        given = "the network is " + type(model).__name__
        if isinstance(model, FANet):
            attention = type(model.attend1)
            given = "this one has " + ("Conv-0 reduced" if attention is FastAttention else attention.__name__)
        raise ValueError(f"int8 needs a FANet with fast attention, and {given}: choose fp32.")
    if not has_int8():
        raise ValueError(f"int8 needs convolutions that torch {torch.__version__} does not have here: choose fp32.")


def fast_precisions(device: torch.device) -> tuple[str, ...]:
    """What a network's fast form can compute in on a device, the best first."""
    if device.type == "cuda":
        return ("fp16", "bf16")
    return ("fp32", "int8") if has_int8() else ("fp32",)


def pick_engine(model: Network | Engine, device: torch.device, precision: str = "", eager: bool = False) -> Engine:
    """What labels frames best on a device, in a precision or in the best one; an engine comes back as it is.

    Args:
        precision: fp32, fp16, bf16 or, on the CPU, int8.
        eager: Keep the network itself, as tiles need it.
    """
    check_choice("precision", precision, ("", *PRECISIONS))
    if not isinstance(model, nn.Module):
        return model
    network: Network = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
    if isinstance(network, FANet) and not eager:
        if not precision:
            return accelerate(network)
        if has_fast_form(network) and precision in fast_precisions(device):
            return accelerate(network, precision)
    if precision == "int8" and device.type != "cuda" and not eager:
        check_int8(network)
    precision = precision or ("fp16" if device.type == "cuda" else "fp32")
    if precision == "int8":
        raise ValueError("int8 is for FANets on a CPU that torch's oneDNN knows, and not for tiles: choose fp32.")
    return to_engine(network.to(PRECISIONS[precision]))
