"""Find the own car in the first frames of a camera, as a mask.

Shapes: H height, W width.
"""

from collections.abc import Iterable
from contextlib import closing
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import Classes, name_key
from streamseg.engine.engine import Engine
from streamseg.io.masks import Mask
from streamseg.io.sources import Pictures, RawFrames, Source
from streamseg.stream.label_frames import label_frame

OWN_CAR = ("owncar", "mycar", "egovehicle", "bonnet", "hood")
"""Names of the class of the own car, as name_key writes them."""
BONNET_FRAMES = 25
"""Number of frames that are looked at."""
STEADY_SHARE = 0.8
"""The share of these frames in which a pixel must belong to the own car."""
MARGIN = 0.01
"""How far around it the mask reaches, in heights of the frame: its edge is neither car nor road."""


def find_bonnet(engine: Engine, classes: Classes, source: Source, size: tuple[int, int] | None = None) -> Mask | None:
    """Return a mask of the own car by the first frames of a source, which is opened for them; None if there is none.

    Args:
        size: Height and width of the network input.
    """
    label = own_car_label(classes)
    if isinstance(source, Pictures | RawFrames):
        raise ValueError(
            f"--mask bonnet looks at the first frames of a video or camera, and {source.name} is none: give a picture, "
            "--mask FILE."
        )
    with closing(source.captures()) as captures:
        labels = (label_frame(engine, capture.frame, size=size)[0] for capture in islice(captures, BONNET_FRAMES))
        return mask_own_car(labels, label, f"The mask of {source.name}")


def describe_bonnet(name: str, mask: Mask | None) -> str:
    """Return a sentence on what was found in the first frames of a source."""
    if mask is None:
        return f"{name}: there is no own car in the first {BONNET_FRAMES} frames, so nothing is left out."
    hidden = 1 - mask.looked_at.double().mean().item()
    return f"{name}: the own car, {hidden:.0%} of the frame, is left out."


def own_car_label(classes: Classes) -> int:
    """Return the label of the own car."""
    for label, name in enumerate(classes.names):
        if name_key(name) in OWN_CAR:
            return label
    raise ValueError(
        f"--mask bonnet needs weights with a class of the own car, and these have {', '.join(classes.names):.200}: "
        "give a picture, --mask FILE, or the weights street or road."
    )


def mask_own_car(labels: Iterable[Tensor], label: int, name: str) -> Mask | None:
    """Return a mask of a class that is steadily in the lower half of labels (H, W); None if it is not there.

    All below its highest pixel of a column belongs to it too: what a bonnet mirrors has other classes.
    """
    seen, frames = torch.zeros(()), 0
    for found in labels:
        seen, frames = seen + (found == label).float().cpu(), frames + 1
    if not frames or seen.ndim != 2:
        return None
    steady = seen >= STEADY_SHARE * frames
    height = len(steady)
    steady[: height // 2] = False
    below = steady.cumsum(dim=0) > 0
    reach = max(1, round(MARGIN * height))
    hidden = F.max_pool2d(below[None].float(), 2 * reach + 1, stride=1, padding=reach)[0].bool()
    return Mask(~hidden, name) if steady.any() else None
