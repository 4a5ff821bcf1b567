"""Checks of what a caller passes to an engine: a network and a frame."""

import torch
from torch import Tensor, nn

from streamseg.io.images import Picture, is_picture, to_frame
from streamseg.models.layers import describe_type


def check_model(model: nn.Module) -> None:
    """Raise a ValueError if something is not a network, or is in training mode."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"The model is a {describe_type(model)}; expected the network: model, classes = streamseg.load(PATH)."
        )
    if model.training:
        raise ValueError("The network is in training mode, where each frame changes it: call model.eval() first.")


def to_checked_frame(given: Picture) -> Tensor:
    """Return any picture as a frame (3, H, W), bytes; a ValueError if it is not a picture."""
    if is_picture(given):
        return to_frame(given)
    check_frame(given)
    assert isinstance(given, Tensor)
    return given


def check_frame(frame: object) -> None:
    """Raise a ValueError if something is not a frame (3, H, W) of bytes."""
    if isinstance(frame, Tensor) and frame.is_floating_point():
        raise ValueError(
            f"The frame is a {describe_type(frame)}; expected RGB bytes, a tensor of torch.uint8: give "
            "(255 * frame).byte() for values from 0 to 1, or frame.byte() for values from 0 to 255."
        )
    if not isinstance(frame, Tensor) or frame.dtype != torch.uint8:
        raise ValueError(f"The frame is a {describe_type(frame)}; expected RGB bytes, a tensor of torch.uint8.")
    if frame.ndim != 3 or frame.shape[0] != 3 or 0 in frame.shape:
        hint = ": give frame.permute(2, 0, 1)" if frame.ndim == 3 and frame.shape[2] == 3 else ""
        raise ValueError(f"The frame's shape is {tuple(frame.shape)}; expected RGB, channels first: (3, H, W){hint}.")
