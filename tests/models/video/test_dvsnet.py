"""DVSNet: cells, the two paths, and the decision between them."""

from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from torch import nn

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.fanet import fanet18
from streamseg.models.video.dvsnet import DecisionNet, DVSNet, cut_side
from streamseg.models.video.flownet import FlowNetS


@pytest.fixture(scope="module")
def frames():
    generator = torch.Generator().manual_seed(0)
    return [*torch.randint(0, 256, (4, 1, 3, 96, 128), dtype=torch.uint8, generator=generator)]


def make(network=swiftnet18, **options):
    torch.manual_seed(0)
    flow = FlowNetS((4, 4, 4, 8, 8, 8))
    return DVSNet(network(4), flow, **{"overlap": 0, **options}).eval()


@torch.no_grad()
def run(method, frames, state=None):
    results = []
    for frame in frames:
        logits, state = method.step(frame, state)
        results.append(logits)
    return results, state


@pytest.mark.parametrize("network", [swiftnet18, fanet18])
def test_interval_1_with_one_cell_is_exactly_the_backbone(network, frames):
    method = make(network, interval=1, grid=(1, 1))
    with torch.no_grad():
        expected = [method.backbone.network(frame) for frame in frames]
    assert all(a.equal(b) for a, b in zip(run(method, frames)[0], expected, strict=True))


def test_a_key_frame_is_the_backbone_on_each_cell(frames):
    method = make()
    logits = run(method, frames[:1])[0][0]
    with torch.no_grad():
        for rows in (slice(0, 48), slice(48, 96)):
            for columns in (slice(0, 64), slice(64, 128)):
                expected = method.backbone.network(frames[0][..., rows, columns])
                torch.testing.assert_close(logits[..., rows, columns], expected, rtol=1e-4, atol=1e-4)


def test_a_target_of_100_segments_all_cells_of_all_frames(frames):
    method = make(target=100)
    with torch.no_grad():
        expected = [method.key_frame(frame)[0] for frame in frames]
    assert all(a.equal(b) for a, b in zip(run(method, frames)[0], expected, strict=True))


def test_a_target_of_0_propagates_all_cells_after_the_first_frame(frames):
    method = make(target=0)
    with patch.object(method, "segment", wraps=method.segment) as segment:
        _, state = run(method, frames)
    assert segment.call_count == 1
    assert state.position == 3


def test_only_cells_below_the_target_are_segmented_and_get_a_new_key(frames):
    method = make(target=50)
    score = torch.tensor([10.0, 90.0, 90.0, 20.0])
    with patch.object(DecisionNet, "forward", return_value=score):
        _, state = run(method, frames[:2])
    cells = [method.cut(frame) for frame in frames[:2]]
    for number, source in enumerate((1, 0, 0, 1)):
        assert state.cells[number].equal(cells[source][number])
    assert state.position == 1
    assert method.key_share(state) == 0.5


def test_the_decision_network_has_the_published_size():
    assert sum(x.numel() for x in DecisionNet(384).parameters()) == 4_538_485


@pytest.mark.parametrize(
    ("side", "count", "overlap"), [(720, 2, 64), (512, 2, 0), (97, 3, 10), (40, 2, 64), (33, 4, 0)]
)
def test_the_slices_of_a_side_cover_it_with_one_length(side, count, overlap):
    slices = cut_side(side, count, overlap)
    assert slices[0].start == 0
    assert slices[-1].stop == side
    assert len({part.stop - part.start for part in slices}) == 1
    assert all(b.start <= a.stop for a, b in pairwise(slices))
    assert len(slices) == min(count, max(1, side // 32))


def test_where_cells_overlap_the_higher_maximum_counts():
    method = make(grid=(1, 2), overlap=32)
    image = torch.zeros(1, 3, 64, 96)
    left, right = torch.zeros(1, 2, 64, 64), torch.ones(1, 2, 64, 64)
    whole = method.join(torch.cat([left, right]), image)
    assert (whole[..., :32] == 0).all()
    assert (whole[..., 32:] == 1).all()


def test_streams_of_a_batch_and_in_turn_equal_each_alone(frames):
    method = make(target=0)
    together, _ = run(method, [torch.cat([frames[0], frames[2]]), torch.cat([frames[1], frames[3]])])
    for place in range(2):
        alone, _ = run(method, frames[2 * place : 2 * place + 2])
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[place : place + 1], b, rtol=1e-4, atol=1e-4)


def test_a_frame_of_another_size_starts_anew(frames):
    method = make(target=0)
    small = frames[1][..., :70, :80]
    assert run(method, [frames[0], small])[0][-1].equal(run(method, [small])[0][-1])


def test_the_decision_network_learns_the_agreement_of_both_paths(frames):
    method = make(grid=(1, 1))
    # zero flow on a still picture: both paths agree nearly everywhere
    _, right = expecting(method, 100).clip_outputs([frames[0], frames[0]])
    _, wrong = expecting(method, 0).clip_outputs([frames[0], frames[0]])
    assert right < 0.05
    assert wrong > 0.6
    wrong.backward()
    assert method.decide.score.bias.grad < 0  # a step raises the expected score
    assert all(x.grad is None for x in method.flow.parameters())


def expecting(method, score):
    """Let the decision network expect a score for every cell."""
    nn.init.zeros_(method.decide.score.weight)
    nn.init.constant_(method.decide.score.bias, score / 100)
    return method


def test_cells_of_several_streams_are_chosen_one_by_one(frames):
    method = make(target=50)
    scores = torch.tensor([[10.0, 90.0], [90.0, 90.0], [90.0, 20.0], [90.0, 20.0]])  # cells x streams
    pairs = [torch.cat([frames[0], frames[2]]), torch.cat([frames[1], frames[3]])]
    with patch.object(DecisionNet, "forward", return_value=scores.flatten()):
        together, state = run(method, pairs)
    assert state.segmented == 3
    assert method.key_share(state) == 3 / 8
    for place in range(2):
        with patch.object(DecisionNet, "forward", return_value=scores[:, place]):
            alone, own = run(method, frames[2 * place : 2 * place + 2])
        assert method.key_share(own) == (1 / 4, 2 / 4)[place]
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[place : place + 1], b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", [-1, 101, "90", float("inf")])
def test_a_target_that_is_no_percentage_is_refused(target):
    with pytest.raises(ValueError, match=r"target is .*; expected 0 to 100\.$"):
        make(target=target)
