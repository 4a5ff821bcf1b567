"""The interface of the video methods, the state of their streams, and warping by optical flow.

A method segments frame after frame: `logits, state = method.step(image, state)`. The state is a value, a NamedTuple of
tensors and ints: streams cannot mix, and any state can be kept, saved, sent or returned to.

Shapes: B batch, K classes, C channels, H height, W width, h x w a map.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from streamseg.checks import check_count
from streamseg.io.tensors import read_tensors, write_tensors
from streamseg.models.layers import check_image, resize_to
from streamseg.models.video.backbone import Backbone, split
from streamseg.models.video.schedule import CHECKS


class VideoState(Protocol):
    """What every state has; the rest is a method's own: tensors with the batch in front, and ints."""

    @property
    def position(self) -> int:
        """Frames since the last key frame: 0 after a key frame."""

    @property
    def streams(self) -> int:
        """Streams in the batch: each entry of a batch of frames belongs to another video."""

    @property
    def height(self) -> int:
        """Height of the frames."""

    @property
    def width(self) -> int:
        """Width of the frames."""


State = TypeVar("State", bound=VideoState)


class VideoMethod(nn.Module, ABC, Generic[State]):
    """A way to segment video with an image network.

    Every `interval`-th frame is a key frame; the method decides what it does on the others. A first frame, and one of
    another size than the frame before, is a key frame. A frame that never arrives does not count: if a key frame is
    dropped, the next frame that arrives is the key frame. After a cut pass no state; otherwise the past of the other
    scene is used until the next key frame.

    Args:
        network: The image network: swiftnet18, fanet18 or another one that split() knows.
        interval: Frames from one key frame to the next; 1 makes the method its backbone, None leaves only the first.

    Attributes:
        state_type: The NamedTuple of this method's states.
        kind: Name of the method, the first part of its name on the command line.
        decides_by: The attribute by which a schedule chooses key frames, `threshold` or `target`; empty without one.
        name: Name on the command line, that of the method and its backbone, such as dff-swiftnet18.
        trained: Names of the parts that are trained on video, as by the method's authors; freeze() freezes all others.
    """

    state_type: ClassVar[type]
    kind: ClassVar[str]
    decides_by: ClassVar[str] = ""
    trained: tuple[str, ...]

    def __init__(self, network: nn.Module, interval: int | None):
        super().__init__()
        if interval is not None:
            check_count("interval", interval)
        self.backbone: Backbone = split(network)
        self.classes = self.backbone.classes
        self.name = f"{self.kind}-{network.name}"
        self.interval = interval
        self.frozen = False

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), each on its own."""
        logits, _ = self.step(image)
        return logits

    def step(self, image: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the logits (B, K, H, W) of the next frame of a video, and the state for the frame after it.

        Args:
            image: RGB (B, 3, H, W), bytes or floats in 0–255; each entry of the batch belongs to another stream.
            state: What step returned for the frame before; None for the first frame.
        """
        check_image(image)
        if state is None:
            return self.key_frame(image)
        check_state(state, self.state_type, image)
        state = self.finish(state)
        return self.key_frame(image) if self.is_key(image, state) else self.next_frame(image, state)

    def is_key(self, image: Tensor, state: State) -> bool:
        """Return whether the frame after a state, which is finished, is a key frame."""
        due = self.interval is not None and state.position + 1 >= self.interval
        return due or (state.height, state.width) != tuple(image.shape[2:])

    @abstractmethod
    def key_frame(self, image: Tensor) -> tuple[Tensor, State]:
        """Return the logits of a key frame, which are those of the backbone, and a new state."""

    @abstractmethod
    def next_frame(self, image: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the logits of a frame that is no key frame, and the next state.

        Args:
            state: A finished one.
        """

    @property
    def schedule_value(self) -> float | None:
        """The threshold or the target of the schedule; None without a schedule."""
        return getattr(self, self.decides_by) if self.decides_by else None

    def set_schedule(self, value: float) -> None:
        """Set the threshold or the target of the schedule."""
        if self.decides_by not in CHECKS:
            raise ValueError(f"{self.name} has no schedule: its key frames come at a fixed interval.")
        CHECKS[self.decides_by](value)
        setattr(self, self.decides_by, value)

    def finish(self, state: State) -> State:
        """Do the work that a frame has left for the time after its labels; step does it if nobody has."""
        return state

    def key_share(self, state: State) -> float:
        """Return the share, 0 to 1, of the last frame that was segmented as a key frame, from a finished state."""
        return float(state.position == 0)

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the logits (B, K, ...) to train on, of the last frame of a clip, and the loss of a scheduler.

        The first frame is the key frame, and the method runs as it does later. A method overrides this if its authors
        train it otherwise, or to leave out what the last frame's logits do not need.

        Args:
            clip: Two frames (B, 3, H, W) or more.
        """
        logits, state = self.key_frame(clip[0])
        for image in clip[1:]:
            logits, state = self.next_frame(image, state)
        return logits, None

    def freeze(self) -> None:
        """Freeze the parts that the authors do not train: no gradients, and batch norm as in evaluation."""
        self.frozen = True
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(is_part_of(name, self.trained))
        self.train(self.training)

    def train(self, mode: bool = True) -> "VideoMethod":
        """Switch to training; frozen parts stay in evaluation."""
        super().train(mode)
        if self.frozen:
            for name, module in self.named_children():
                module.train(mode and is_part_of(name, self.trained))
        return self


def sizes(image: Tensor) -> tuple[int, int, int]:
    """Return the streams, the height and the width of a batch of frames (B, 3, H, W), as states hold them."""
    streams, _, height, width = image.shape
    return streams, height, width


def train_backbone(method: VideoMethod, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return the logits of the last frame of a clip on its own, for a method whose image network alone is trained."""
    return method.backbone(clip[-1]), None


def is_part_of(name: str, parts: tuple[str, ...]) -> bool:
    """Return whether a name such as `backbone.network.pool` is that of a part, or of something in it."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def check_state(state: VideoState, state_type: type, image: Tensor) -> None:
    """Raise a ValueError if a state is not one of a method, or of another number of streams than a batch."""
    if not isinstance(state, state_type):
        raise ValueError(
            f"The state is a {type(state).__name__}; expected the {state_type.__name__} that step() of this method "
            "returned, or None for a first frame."
        )
    if state.streams != image.shape[0]:
        raise ValueError(
            f"The state is of {state.streams} streams and the batch has {image.shape[0]} frames; expected one frame a "
            "stream: keep a state for each batch."
        )


def warp(features: Tensor, flow: Tensor) -> Tensor:
    """Return features (B, C, h, w) moved along a flow: out(p) = features(p + flow(p)), bilinear, borders repeated.

    Zero flow is exactly the identity, and a whole number of pixels exactly a shift: F.grid_sample, whose coordinates
    reach from -1 to 1, rounds both.

    Args:
        flow: (B, 2, h, w), x then y in pixels of the features: from the current frame to the one of the features.
    """
    height, width = features.shape[-2:]
    # coordinates need fp32: fp16 has whole pixels only from 1024 on
    flow = flow.float()
    x = torch.arange(width, device=flow.device, dtype=flow.dtype) + flow[:, 0]
    y = torch.arange(height, device=flow.device, dtype=flow.dtype)[:, None] + flow[:, 1]
    x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    # the second clamp is for nan, which would index outside
    left, top = x.detach().floor().long().clamp(0, width - 1), y.detach().floor().long().clamp(0, height - 1)
    right, bottom = (left + 1).clamp(max=width - 1), (top + 1).clamp(max=height - 1)
    x_share, y_share = ((x - left)[:, None].to(features.dtype), (y - top)[:, None].to(features.dtype))
    upper = take(features, top, left) * (1 - x_share) + take(features, top, right) * x_share
    lower = take(features, bottom, left) * (1 - x_share) + take(features, bottom, right) * x_share
    return upper * (1 - y_share) + lower * y_share


def take(features: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels of features (B, C, h, w) at rows and columns (B, h, w)."""
    batch, channels, height, width = features.shape
    index = (rows * width + columns).view(batch, 1, -1).expand(-1, channels, -1)
    return features.flatten(2).gather(2, index).view(batch, channels, height, width)


def resize_flow(flow: Tensor, like: Tensor) -> Tensor:
    """Return a flow (B, 2, ...), in pixels of its own map, at the size and in pixels of another map."""
    height, width = like.shape[-2:]
    if flow.shape[-2:] == like.shape[-2:]:
        return flow
    x, y = resize_to(flow, height, width).split(1, dim=1)
    return torch.cat([x * (width / flow.shape[-1]), y * (height / flow.shape[-2])], dim=1)


def save_state(state: VideoState, path: str | Path) -> None:
    """Write the state of a stream to a safetensors file. The file appears whole or not at all."""
    tensors = {name: torch.as_tensor(value).cpu().contiguous() for name, value in state_fields(state).items()}
    write_tensors(Path(path), tensors, {"format": "pt", "streamseg-video-state": type(state).__name__})


def load_state(method: VideoMethod[State], path: str | Path) -> State:
    """Read a state that save_state wrote, bit for bit, onto the device of the method that made it."""
    tensors = read_tensors(Path(path))
    kind: Any = method.state_type
    if set(tensors) != set(kind._fields):
        raise ValueError(f"{path} holds no {kind.__name__}: give a file that save_state wrote for this method.")
    device = next(method.parameters()).device
    fields = {name: tensor.to(device) if tensor.ndim else tensor.item() for name, tensor in tensors.items()}
    return kind(**fields)


def state_fields(state: VideoState) -> dict[str, Tensor | int]:
    """Return the fields of a state by their names."""
    return state._asdict()  # type: ignore[attr-defined] # every state is a NamedTuple
