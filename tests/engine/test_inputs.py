import numpy
import pytest
import torch
from torch import nn

import streamseg
from streamseg.engine.inputs import check_model, to_checked_frame
from streamseg.engine.tiles import label_tiled


def test_a_picture_becomes_a_frame_and_a_frame_stays_itself():
    frame = torch.randint(0, 256, (3, 4, 6), dtype=torch.uint8)
    assert to_checked_frame(frame) is frame
    assert to_checked_frame(frame.permute(1, 2, 0).numpy().astype(numpy.uint8)).equal(frame)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (torch.zeros(3, 64, 64), "The frame is a tensor of torch.float32; expected RGB bytes"),
        (None, "The frame is a NoneType; expected RGB bytes"),
        (torch.zeros(64, 64, 3).byte(), r"The frame's shape is \(64, 64, 3\); expected RGB, channels first"),
        (torch.zeros(1, 3, 64, 64).byte(), r"The frame's shape is \(1, 3, 64, 64\)"),
        (torch.zeros(3, 0, 64).byte(), r"The frame's shape is \(3, 0, 64\)"),
    ],
)
def test_what_is_not_a_frame_is_refused(model, frame, sentence):
    with pytest.raises(ValueError, match=sentence):
        label_tiled(model, frame)


def test_something_else_or_a_network_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"The model is a tuple; expected the network: model, classes ="):
        label_tiled((nn.Identity(), None), torch.zeros(3, 64, 64).byte())
    with pytest.raises(ValueError, match=r"in training mode.*model\.eval\(\)"):
        label_tiled(streamseg.fanet18(), torch.zeros(3, 64, 64).byte())


def test_a_network_in_evaluation_mode_is_accepted():
    check_model(streamseg.fanet18(classes=2).eval())
