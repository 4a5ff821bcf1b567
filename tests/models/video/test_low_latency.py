"""Low-Latency: propagation by predicted kernels, the scheduler, and key frames whose deep part waits."""

from unittest.mock import patch

import pytest
import torch
from torch import nn

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.fanet import fanet18
from streamseg.models.video.low_latency import LowLatency, convolve_variant


@pytest.fixture(scope="module")
def frames():
    generator = torch.Generator().manual_seed(0)
    return [*torch.randint(0, 256, (4, 1, 3, 64, 96), dtype=torch.uint8, generator=generator)]


def make(network=swiftnet18, **options):
    torch.manual_seed(0)
    return LowLatency(network(4), channels=8, kernel=3, **options).eval()


@torch.no_grad()
def run(method, frames, state=None):
    results = []
    for frame in frames:
        logits, state = method.step(frame, state)
        results.append(logits)
    return results, state


def always(method):
    """Let the scheduler expect that everything changes."""
    nn.init.zeros_(method.schedule.deviation.weight)
    nn.init.ones_(method.schedule.deviation.bias)
    return method


@pytest.mark.parametrize("network", [swiftnet18, fanet18])
def test_interval_1_is_exactly_the_backbone(network, frames):
    method = make(network, interval=1)
    with torch.no_grad():
        expected = [method.backbone.network(frame) for frame in frames]
    assert all(a.equal(b) for a, b in zip(run(method, frames)[0], expected, strict=True))


def test_a_spatially_variant_convolution_is_its_sum():
    torch.manual_seed(0)
    x, kernels = torch.randn(2, 3, 5, 6), torch.rand(2, 9, 5, 6)
    padded = nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
    expected = torch.zeros_like(x)
    for u in range(3):
        for v in range(3):
            expected += kernels[:, 3 * u + v, None] * padded[:, :, u : u + 5, v : v + 6]
    torch.testing.assert_close(convolve_variant(x, kernels), expected)


def test_kernels_sum_to_one_and_an_untrained_network_copies():
    method = make()
    x = torch.randn(1, 128, 4, 6)
    kernels = method.kernel_predictor(x, x + 1)
    torch.testing.assert_close(kernels.sum(dim=1), torch.ones(1, 4, 6))
    assert (kernels[:, 4] > 0.99).all()
    assert method.adapt(x, x).equal(x)


def test_the_deep_part_of_a_new_key_frame_runs_after_its_labels(frames):
    method = always(make())
    with patch.object(method.backbone, "deep", wraps=method.backbone.deep) as deep, torch.no_grad():
        _, state = method.step(frames[0])
        assert deep.call_count == 1
        _, state = method.step(frames[1], state)
        assert deep.call_count == 1
        assert state.due.all()
        finished = method.finish(state)
        assert deep.call_count == 2
        assert finished.key.equal(method.backbone.shallow(frames[1]).out)
        assert method.finish(finished) is finished
    assert run(method, [frames[2]], state)[0][0].equal(run(method, [frames[2]], finished)[0][0])


def test_the_next_frame_is_propagated_from_the_new_key_frame(frames):
    method = always(make())
    assert run(method, frames[:3])[0][-1].equal(run(method, frames[1:3])[0][-1])


def test_without_a_new_key_frame_the_first_one_serves(frames):
    method = make(threshold=float("inf"))
    assert run(method, frames)[0][-1].equal(run(method, [frames[0], frames[3]])[0][-1])


@pytest.mark.parametrize("network", [swiftnet18, fanet18])
def test_before_training_an_unchanged_frame_keeps_the_labels_of_its_key_frame(network, frames):
    """Whatever its distance: all but those that a little of the kernels' neighbourhood changes."""
    torch.manual_seed(0)
    method = LowLatency(network(4), threshold=float("inf")).eval()
    (key, *others), _ = run(method, [frames[0]] * 4)
    assert others[-1].equal(others[0])
    assert (others[0].argmax(dim=1) == key.argmax(dim=1)).float().mean() > 0.95


def test_streams_of_a_batch_and_in_turn_equal_each_alone(frames):
    method = make(threshold=1e-4)
    # the scheduler fires on any change, and not on a still picture
    nn.init.zeros_(method.schedule.compare[0].bias)
    nn.init.constant_(method.schedule.deviation.weight, 1.0)
    nn.init.zeros_(method.schedule.deviation.bias)
    still, changing = [frames[0]] * 3, [frames[0], 255 - frames[0], frames[1]]
    together, state = run(method, [torch.cat(pair) for pair in zip(still[:2], changing[:2], strict=True)])
    assert state.due.tolist() == [False, True]
    more, _ = run(method, [torch.cat([still[2], changing[2]])], state)
    for place, frames_alone in enumerate((still, changing)):
        alone, _ = run(method, frames_alone)
        for a, b in zip(together + more, alone, strict=True):
            torch.testing.assert_close(a[place : place + 1], b, rtol=1e-4, atol=1e-4)


def test_a_frame_of_another_size_starts_anew(frames):
    method = make()
    small = frames[1][..., :50, :70]
    assert run(method, [frames[0], small])[0][-1].equal(run(method, [small])[0][-1])


def test_only_propagation_and_scheduler_are_trained(frames):
    method = make()
    method.freeze()
    logits, loss = method.train().clip_outputs(frames[:2])
    (logits.mean() + loss).backward()
    trained = {name.split(".")[0] for name, x in method.named_parameters() if x.grad is not None}
    assert trained == {"kernel_predictor", "adapt", "schedule"}
    assert not method.backbone.training


def test_the_scheduler_learns_the_share_of_changed_labels(frames):
    method = make()
    method.freeze()
    optimiser = torch.optim.Adam(method.schedule.parameters(), lr=0.01)
    clips = ([frames[0], frames[0]], [frames[0], 255 - frames[0]])
    for _ in range(60):
        optimiser.zero_grad()
        sum(method.clip_outputs(clip)[1] for clip in clips).backward()
        optimiser.step()
    still, moving = (method.clip_outputs(clip)[1].item() for clip in clips)
    assert still < 0.01
    assert moving < 0.01


def test_a_threshold_of_0_makes_every_frame_a_key_frame(frames):
    method = make(threshold=0)
    nn.init.zeros_(method.schedule.deviation.weight)
    nn.init.constant_(method.schedule.deviation.bias, -1.0)
    _, state = run(method, frames[:2])
    assert state.due.all()
    assert method.key_share(method.finish(state)) == 1
