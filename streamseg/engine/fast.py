"""The fast engine: a FANet or FANet+ with folded convolutions, in fewer and larger steps.

On a GPU the folded network runs in half precision, with the Triton kernels of engine/kernels between its convolutions,
as one CUDA graph for each size of frames: nothing is allocated, and the host never waits. On the CPU it runs in fp32,
or with most of its convolutions in int8.

Shapes: B batch, H x W the frame, D key channels, C channels of the stages with attention, concatenated.
"""

import copy
import logging
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from streamseg.engine import kernels
from streamseg.engine.buffers import GraphBuffers, Size, key_of
from streamseg.engine.engine import (
    Engine,
    FrameBatch,
    Prediction,
    apply_hysteresis,
    find_mirrored,
    look_back_beside,
    make_frame_batch,
    mirror_batch,
    predict_from_scores,
    predict_steadily,
    to_frames,
    to_uint8,
)
from streamseg.engine.folded import Folded, View, fold_network, to_int8
from streamseg.engine.graphs import CAPTURE_LOCK, capture_graph, new_stream, record_graph, warm_up
from streamseg.engine.inputs import to_checked_frame
from streamseg.engine.mirroring import mirror
from streamseg.engine.scratch import DeviceLock
from streamseg.engine.sizes import SizeCounter
from streamseg.engine.steady_graph import SteadyBuffers, label_on_gpu
from streamseg.engine.steadying import Steadiness
from streamseg.io.images import Picture
from streamseg.models.fanet import FANet

LOG = logging.getLogger("streamseg")

MAX_GRAPHS = 8
"""Maximum number of frame sizes whose buffers are kept at a time."""

CALIBRATION_FRAMES = 8
"""Number of frames that run in fp32 to calibrate int8, if no calibration frames are given."""


class FastEngine(Engine):
    """The fast form of a FANet or FANet+.

    It has its own weights: later changes to the network do not affect it. Copies made with copy.deepcopy or pickle
    share nothing with it.
    """

    folded: Folded
    """The folded network, once fold() has been called."""

    def __init__(self, model: FANet, precision: torch.dtype, calibration: Sequence[Picture] = ()):
        self.classes, self.averages = model.classes, model.averages
        self.widths = tuple(attend.context_shape[1] for attend in model.attentions)
        self.context_shape = (model.key_channels, sum(self.widths))
        self.buffers: dict[Size, GraphBuffers] = {}
        self.sizes: SizeCounter[Size] = SizeCounter(MAX_GRAPHS)
        is_int8 = precision == torch.uint8
        frames = [to_checked_frame(frame)[None] for frame in calibration] if is_int8 else []
        self.precision = torch.float32 if is_int8 else precision
        with torch.inference_mode(False):  # tensors made in inference mode could not be changed outside of it
            on_gpu = model.mean.device.type == "cuda"
            self.unfolded: FANet | None = copy.deepcopy(model) if on_gpu else model
            """The network until it is folded."""
            self.lock, self.folding = DeviceLock(model.mean.device), DeviceLock(model.mean.device)
            if on_gpu:
                kernels.make_kernel_folder()
            else:
                self.fold()
            if frames:
                self.folded = to_int8(self.folded, frames)
        self.calibrating, self.calibration = is_int8 and not frames, list[Tensor]()

    @property
    def device(self) -> torch.device:
        return self.lock.device

    def fold(self) -> Folded:
        """Return the folded network.

        On a GPU it is folded when it is first needed: that imports Triton, for which the first labels of a
        PreparingEngine do not wait.
        """
        if self.unfolded is not None:
            with self.folding, torch.inference_mode(False):
                if self.unfolded is not None:  # else another thread has folded it
                    self.folded = fold_network(self.unfolded, self.precision)
                    if self.device.type == "cuda":  # other CUDA streams may use it now
                        torch.cuda.current_stream(self.device).synchronize()
                    self.unfolded = None
        return self.folded

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"buffers": {}, "sizes": SizeCounter(MAX_GRAPHS)}  # a copy makes its own

    def __copy__(self) -> "FastEngine":
        return copy.deepcopy(self)

    def __call__(self, frame: Picture) -> Tensor:
        if self.device.type != "cuda":
            return super().__call__(frame)
        with self.lock:
            return self.run_frame(frame, None, 1.0).output.clone()

    def step(self, frame: Picture, past: Tensor | None = None, weight: float = 1.0) -> tuple[Tensor, Tensor]:
        if self.device.type != "cuda":
            return super().step(frame, past, weight)
        with self.lock:
            buffers = self.run_frame(frame, past, weight)
            return buffers.output.clone(), buffers.context.clone()

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        if batch.images.dtype != torch.uint8:
            batch = batch._replace(images=to_uint8(batch.images))
        if self.device.type == "cuda":
            with self.lock:
                return self.predict_on_gpu(batch)
        # a new thread adopts torch's number of threads only when asked for it
        torch.get_num_threads()
        context = torch.empty(len(batch.images), *self.context_shape, device=self.device)
        past = torch.zeros_like(context) if batch.past is None else batch.past
        seen, mirrored = mirror_batch(batch, self.device)
        scale, view = self.make_scale(batch.weights), View(seen.mask, batch.shares)
        with look_back_beside(batch, self.device) as looked_back:
            scores = self.folded.scores(seen.images, past, scale, context, view=view)
            if self.calibrating:
                self.calibrate(batch.images)
            return predict_from_scores(scores, batch, mirrored, looked_back), context

    def calibrate(self, images: Tensor) -> None:
        """Collect frames for the calibration of int8, and switch to int8 when there are enough."""
        with self.lock, torch.inference_mode(False):
            if not self.calibrating:  # another thread has added the last frame
                return
            self.calibration.append(images.clone())  # the caller may overwrite the frame
            if sum(map(len, self.calibration)) >= CALIBRATION_FRAMES:
                self.folded = to_int8(self.folded, self.calibration)
                self.calibrating, self.calibration = False, []

    def make_scale(self, weights: Sequence[float]) -> Tensor:
        """Return the factor for the sum of context and past of each frame."""
        return torch.tensor([1 / (1 + weight) if self.averages else 1.0 for weight in weights], device="cpu")

    # sizes that are prepared ahead; on the CPU none has to be

    def is_prepared(self, key: Size) -> bool:
        """Return whether frames of a size have a graph."""
        buffers = self.buffers.get(key)
        return self.device.type != "cuda" or (buffers is not None and buffers.graph is not None)

    def is_frequent(self, key: Size) -> bool:
        """Count a batch that another engine has labelled; return whether to prepare its size.

        Sizes that come once and those that are rare among more sizes than are kept are not worth it.
        """
        with self.lock:
            self.sizes.add(key)
            return self.sizes.counts[key] > 1 and self.sizes.admits(key, self.buffers)

    def prepare(self, batch: FrameBatch) -> None:
        """Capture the graph for batches like this one, while other threads label batches that have a graph.

        A copy of the engine compiles the kernels and runs them: two runs of a network at the same time would count in
        the same memory (kernels.convolve). Only the shape of the images counts; they may be on the device "meta".
        """
        if self.device.type != "cuda":
            return
        key = key_of(batch)
        with torch.cuda.device(self.device), torch.inference_mode(False), torch.no_grad():
            self.fold()  # before it is copied
            stream = new_stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                twin = copy.deepcopy(self)
                twin_buffers = twin.allocate(key)
                with CAPTURE_LOCK:  # a capture in another thread could record these kernels
                    warm_up(partial(twin.run, twin_buffers))
                    twin.read_predictions(twin_buffers, batch)
                    twin.add_steady(twin_buffers, twin_buffers.scores)
                    twin.run(twin_buffers)
                buffers = self.allocate(key)
                self.add_steady(buffers, twin_buffers.scores)
                buffers.graph = record_graph(partial(self.run, buffers))
            stream.synchronize()
        with self.lock:
            self.keep_buffers(key, buffers)

    # on a GPU; the caller holds the lock

    def run_frame(self, frame: Picture, past: Tensor | None, weight: float) -> GraphBuffers:
        """Run frames and return their buffers, which are valid until the next call."""
        # the GPU is idle until the graph is launched, so the host does as little as possible before that
        if isinstance(frame, Tensor):
            key = (frame.shape, False, False, False, None)
            buffers = self.buffers.get(key)
            past_fits = past is None or (buffers is not None and past.shape == buffers.past.shape)
            if (
                buffers
                and buffers.graph
                and past_fits
                and frame.dtype == torch.uint8
                and frame.device == buffers.input.device
            ):
                buffers.input.copy_(frame, non_blocking=True)
                self.set_past(buffers, past, buffers.no_weights if past is None else (weight,) * len(buffers.frame))
                buffers.graph.replay()
                self.sizes.add(key)
                return buffers
        frames, is_single = to_frames(frame, self.device)
        batch = make_frame_batch(self, frames, past, weight)
        return self.run_batch(batch, frames.shape[1:] if is_single else frames.shape, capture_first=True)

    def predict_on_gpu(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        """Return predictions and contexts."""
        buffers = self.run_batch(batch, batch.images.shape)
        contexts = buffers.context.clone() if batch.needs_contexts else buffers.no_context
        return self.read_predictions(buffers, batch), contexts

    def read_predictions(self, buffers: GraphBuffers, batch: FrameBatch) -> list[Prediction]:
        """Return the predictions in the buffers; with hysteresis or another label size, they are made from scores."""
        assert buffers.scores is not None
        if isinstance(batch.steady, Steadiness):
            if buffers.graph is not None and buffers.steady is not None:
                return buffers.steady.read()
            label = partial(label_on_gpu, with_confidence=batch.with_confidence)
            mirrored = find_mirrored(batch, self.device)
            return predict_steadily(buffers.scores, batch, batch.steady, label, mirrored)
        scores, low_res = apply_hysteresis(buffers.scores, batch)
        predictions: list[Prediction] = []
        for i, size in enumerate(batch.sizes):
            if size == buffers.size and not batch.steady:
                confidence = None if buffers.confidence is None else buffers.confidence[i].clone()
                predictions.append(Prediction(buffers.own_labels[i].clone(), confidence))
                continue
            predictions.append(Prediction(*label_on_gpu(scores[i], size, batch.with_confidence), low_res[i]))
        return predictions

    def run_batch(self, batch: FrameBatch, shape: torch.Size, capture_first: bool = False) -> GraphBuffers:
        """Run a batch, by its graph if there is one, and return its buffers.

        Args:
            shape: Shape in which the frames were given.
            capture_first: Capture the graph of a size the first time it comes, instead of the second time. Sizes that
                are rare among more sizes than are kept get no graph.
        """
        key = (shape, *key_of(batch)[1:])
        self.sizes.add(key)
        known = self.buffers.get(key)
        buffers = known or self.allocate(key)
        is_kept = known is not None or self.sizes.admits(key, self.buffers)
        if is_kept and known is None:
            self.keep_buffers(key, buffers)
        if buffers.graph is None and is_kept and (capture_first or known is not None):
            self.add_steady(buffers, buffers.scores)
            self.capture(buffers)
        images = batch.images
        if buffers.steady is not None:  # its graph mirrors frames itself
            buffers.steady.set_evidence(batch)
            mirrored = buffers.steady.mirrored
        else:
            mirrored = find_mirrored(batch, self.device)
            images = images if mirrored is None else mirror(images.to(self.device), mirrored)
        buffers.frame.copy_(images, non_blocking=True)
        self.set_past(buffers, batch.past, tuple(batch.weights))
        if buffers.view.mask is not None and batch.mask is not None:
            buffers.view.mask.copy_(mirror(batch.mask.to(self.device), mirrored), non_blocking=True)
        if buffers.view.shares is not None and batch.shares is not None:
            buffers.view.shares.copy_(batch.shares, non_blocking=True)
        if buffers.graph is None:
            with CAPTURE_LOCK:  # a capture in another thread could record these kernels
                self.run(buffers)
        else:
            buffers.graph.replay()
        return buffers

    def add_steady(self, buffers: GraphBuffers, scores: Tensor | None) -> None:
        """Allocate what keeps labels steady, if that is wanted, for scores of a known shape (B, K, h, w)."""
        if buffers.wanted is None or scores is None:
            return
        steadiness, size = buffers.wanted
        if size is not None:  # labels of several sizes are made from scores one by one
            classes, height, width = scores.shape[1:]
            with_confidence = buffers.confidence is not None
            shape, mask = (classes, height, width), buffers.view.mask
            buffers.steady = SteadyBuffers(buffers.frame, shape, size, steadiness, with_confidence, mask)

    def set_past(self, buffers: GraphBuffers, past: Tensor | None, weights: tuple[float, ...]) -> None:
        """Copy the past and the scale to their buffers."""
        if past is not None:
            buffers.past.copy_(past.detach())
        elif buffers.has_past:
            buffers.past.zero_()
        buffers.has_past = past is not None
        if buffers.weights != weights:  # they rarely change, which saves a copy to the GPU
            buffers.weights = weights
            buffers.scale.copy_(self.make_scale(weights))

    @torch.inference_mode(False)
    def allocate(self, key: Size) -> GraphBuffers:
        """Allocate the buffers of a size of frames."""
        shape, with_confidence, masked, together, wanted = key
        batch, height, width = (shape[0] if len(shape) == 4 else 1), *shape[-2:]
        device, half = self.device, self.precision
        rows, columns = ((side + 1) // 2 + 3 for side in self.fold().image_size(height, width))
        given = torch.empty(shape, dtype=torch.uint8, device=device)
        labels = torch.empty(batch, height, width, dtype=torch.uint8, device=device)
        return GraphBuffers(
            input=given,
            frame=given.view(batch, 3, height, width),
            past=torch.zeros(batch, *self.context_shape, device=device),
            scale=torch.ones(batch, device=device),
            context=torch.empty(batch, *self.context_shape, device=device),
            no_context=torch.empty(0, *self.context_shape, device=device),
            unfolded=torch.zeros(batch, rows, columns, 16, dtype=half, device=device).permute(0, 3, 1, 2),
            labels=labels,
            output=labels if len(shape) == 4 else labels[0],
            own_labels=list(labels),
            size=(height, width),
            confidence=torch.empty_like(labels) if with_confidence else None,
            no_weights=(0.0,) * batch,
            weights=(0.0,) * batch,
            view=View(
                torch.ones(batch, height, width, device=device) if masked else None,
                torch.full((batch,), 1 / batch, device=device) if together else None,
            ),
            wanted=wanted,
        )

    def keep_buffers(self, key: Size, buffers: GraphBuffers) -> None:
        """Keep the buffers of a size, in place of the rarest size if all places are taken."""
        if key not in self.buffers and len(self.buffers) >= MAX_GRAPHS:
            self.lock.synchronize()  # another CUDA stream may still use them
            del self.buffers[self.sizes.rarest(self.buffers)]
        self.buffers[key] = buffers

    def capture(self, buffers: GraphBuffers) -> None:
        """Capture the graph of a size."""
        LOG.info("Preparing for frames of %d x %d; the first time takes half a minute.", *buffers.input.shape[-2:])
        buffers.graph = capture_graph(partial(self.run, buffers), self.device)

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self, buffers: GraphBuffers) -> None:
        """Compute labels, confidence and context from the frame and the past in the buffers."""
        given = buffers.frame, buffers.past, buffers.scale, buffers.context, buffers.unfolded, buffers.view
        if buffers.steady is not None:
            buffers.steady.start()
            beside, mirrored = buffers.steady.compare, buffers.steady.mirrored
            buffers.scores = self.folded.scores(*given, beside=beside, mirrored=mirrored)
            buffers.steady.finish(buffers.scores)
            return
        buffers.scores = self.folded.scores(*given)
        if buffers.wanted is None:
            kernels.label(buffers.scores, buffers.size, buffers.labels, buffers.confidence)
