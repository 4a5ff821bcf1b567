"""The own car in the first frames."""

import pytest
import torch

from streamseg.classes import CAMVID, COMMA10K, Classes
from streamseg.stream.bonnet import mask_own_car, own_car_label


def car_labels(top=80, height=100, width=60):
    labels = torch.zeros(height, width, dtype=torch.uint8)
    labels[top:, 10:50] = 4
    return labels


def test_the_class_of_the_own_car_is_found_by_its_name():
    assert COMMA10K.names[own_car_label(COMMA10K)] == "my car"
    assert own_car_label(Classes(("a", "OwnCar"), ((0, 0, 0), (1, 1, 1)))) == 1
    with pytest.raises(ValueError, match="--mask bonnet needs weights with a class of the own car, and these have Sky"):
        own_car_label(CAMVID)


def test_what_is_steadily_the_own_car_is_hidden_with_a_margin():
    frames = [car_labels() for _ in range(10)]
    frames[3] = torch.zeros_like(frames[3])  # not seen once
    mask = mask_own_car(frames, 4, "it")
    assert not mask.looked_at[79:, 9:51].any()
    assert mask.looked_at[:79].all()
    assert mask.looked_at[:, :9].all()


def test_reflections_on_it_are_hidden_too():
    labels = car_labels()
    labels[90:95, 20:30] = 1
    assert not mask_own_car([labels], 4, "it").looked_at[90:95, 20:30].any()


def test_what_comes_and_goes_or_is_above_is_no_own_car():
    once = [car_labels(), *[torch.zeros(100, 60, dtype=torch.uint8)] * 3]
    assert mask_own_car(once, 4, "it") is None
    above = torch.zeros(100, 60, dtype=torch.uint8)
    above[10:20] = 4
    assert mask_own_car([above], 4, "it") is None
    assert mask_own_car([], 4, "it") is None
