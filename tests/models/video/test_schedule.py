"""Choosing streams of a batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from streamseg.models.video.schedule import chosen_entries, put_entries, take_entries


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


def test_the_chosen_entries_are_those_with_a_true_decision():
    assert chosen_entries(torch.tensor([True, False, True]), default=False) == [0, 2]


def test_without_values_the_default_decides():
    decisions = torch.ones(2, device="meta") > 0
    assert chosen_entries(decisions, default=True) == [0, 1]
    assert chosen_entries(decisions, default=False) == []


def test_maps_of_chosen_entries_are_taken_and_put_back():
    maps = Pair(torch.arange(3), torch.arange(3) + 10)
    taken = take_entries(maps, [0, 2])
    assert taken.b.tolist() == [10, 12]
    assert put_entries(maps.a, [1], torch.tensor([7])).tolist() == [0, 7, 2]
    assert maps.a.tolist() == [0, 1, 2]
