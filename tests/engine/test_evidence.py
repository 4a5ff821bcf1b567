"""Evidence of a stream in one piece of memory."""

import copy
import pickle
from itertools import pairwise

import pytest
import torch

from streamseg.engine.evidence import ALIGNMENT, Evidence, Layout, PackedEvidence, hide_labels

LAYOUT = Layout((4, 6), (3, 2, 3), (7, 5))


@pytest.fixture
def packed():
    return torch.randn(LAYOUT.length, generator=torch.Generator().manual_seed(0))


def test_the_parts_have_their_shapes_and_share_the_memory(packed):
    parts = LAYOUT.split(packed)
    assert [part.shape for part in parts] == [(4, 6), (3, 2, 3), (7, 5), ()]
    assert [part.dtype for part in parts] == [torch.float32, torch.float32, torch.uint8, torch.float32]
    packed.zero_()
    assert not any(part.any() for part in parts)


def test_the_parts_do_not_overlap_and_are_aligned(packed):
    parts = LAYOUT.split(packed)
    spans = [(part.data_ptr(), part.data_ptr() + part.nbytes) for part in parts]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert spans[-1][1] <= packed.data_ptr() + packed.nbytes
    assert all((begin - packed.data_ptr()) % (4 * ALIGNMENT) == 0 for begin, _ in spans)


def test_the_evidence_of_a_batch_is_that_of_each_stream():
    batch = torch.randn(2, LAYOUT.length, generator=torch.Generator().manual_seed(0))
    for whole, *streams in zip(LAYOUT.split(batch), *(LAYOUT.split(row.clone()) for row in batch), strict=True):
        assert whole.equal(torch.stack(streams))


def test_packed_evidence_has_the_names_and_the_order_of_its_parts(packed):
    evidence, parts = PackedEvidence(packed, LAYOUT), LAYOUT.split(packed)
    for one, name, other in zip(evidence, Evidence._fields, parts, strict=True):
        assert one.equal(other)
        assert getattr(evidence, name).equal(other)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda evidence: pickle.loads(pickle.dumps(evidence))])
def test_a_copy_of_packed_evidence_shares_nothing(packed, clone):
    evidence = PackedEvidence(packed, LAYOUT)
    labels = evidence.labels.clone()
    twin = clone(evidence)
    packed.zero_()
    assert twin.labels.equal(labels)


@pytest.mark.parametrize("kind", [PackedEvidence, lambda packed, layout: Evidence(*layout.split(packed))])
def test_hidden_pixels_have_no_class_in_a_copy(packed, kind):
    given, before = kind(packed, LAYOUT), packed.clone()
    hidden = torch.zeros(7, 5, dtype=torch.bool)
    hidden[5:] = True
    found = hide_labels(given, hidden)
    assert type(found) is type(given)
    assert found.labels[hidden].eq(255).all()
    assert found.labels[~hidden].equal(given.labels[~hidden])
    assert found.luma.equal(given.luma)
    assert found.scores.equal(given.scores)
    assert packed.view(torch.int32).equal(before.view(torch.int32))  # some of it is no number
