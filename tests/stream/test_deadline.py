"""The deadline against a simulated machine: no test here waits for a real clock."""

import math
import random
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from streamseg.engine import fast
from streamseg.stream.deadline import (
    MIN_SCALE,
    POOR_SCALE,
    RECENT_FRAMES,
    SCALES,
    SETTLING_FRAMES,
    TARGET_SHARE,
    WARM_UP_PASSES,
    Deadline,
    scale_size,
)


@dataclass
class Machine:
    """What frames cost: a fixed part, a part for the pixels, and what preparing a size takes.

    Args:
        prepare: What each of the first two frames of a size that is not kept ready takes more.
        repack: What the first frame after any change of size takes more.
        noise: The deviation of the logarithm of a frame's time.
        hiccups: The share of frames that take `hiccup` more, whatever their size.
    """

    fixed: float
    pixels: float
    prepare: float = 0.0
    repack: float = 0.0
    noise: float = 0.0
    hiccups: float = 0.0
    hiccup: float = 0.1
    wait: float = 0.0
    seed: int = 0
    load: float = 1.0
    now: float = 0.0
    last: float = 1.0
    kept: "OrderedDict[float, int]" = field(default_factory=OrderedDict)

    def __post_init__(self):
        self.dice = random.Random(self.seed)

    def cost(self, scale):
        return self.fixed + self.pixels * scale**2

    def see(self, scale):
        """Label a frame; its network time, and whether its size was ready."""
        met = self.kept.pop(scale, 0)
        self.kept[scale] = met + 1
        while len(self.kept) > fast.MAX_GRAPHS:
            self.kept.popitem(last=False)
        seconds = self.load * self.cost(scale) * math.exp(self.dice.gauss(0, self.noise))
        seconds += self.hiccup * (self.dice.random() < self.hiccups)
        seconds += self.prepare * (met < 2) + self.repack * (scale != self.last)
        self.last = scale
        self.now += seconds
        return seconds, met >= 2


def start(seconds, machine):
    """A deadline that has prepared its sizes, as the pipeline does before the first frame."""
    deadline = Deadline(seconds)
    deadline.prepare(HUGE, machine.see, lambda: machine.now)
    return deadline


def drive(deadline, machine, frames, load=lambda i: 1.0):
    """Label frames; the scale and the latency of each."""
    seen = []
    for i in range(frames):
        machine.load, scale = load(i), deadline.scale
        network, prepared = machine.see(scale)
        deadline.record(network + machine.wait, scale, network, prepared)
        seen.append((scale, network + machine.wait))
    return seen


def in_time(seen, seconds):
    return sum(latency <= seconds for _, latency in seen) / len(seen)


def changes(seen):
    return sum(a != b for (a, _), (b, _) in pairwise(seen))


CPU = {"fixed": 0.02, "pixels": 0.1, "repack": 0.04, "prepare": 0.1}
HUGE = (100_000, 100_000)
"""A size at which the rounding of sides does not matter."""
GPU = {"fixed": 0.0005, "pixels": 0.0006, "prepare": 2.0}


@given(st.tuples(st.integers(32, 5000), st.integers(32, 5000)), st.sampled_from(SCALES))
def test_a_deadline_makes_no_side_of_a_frame_larger_nor_smaller_than_its_share(size, scale):
    seen = scale_size(size, scale)
    assert all(max(32, scale * before - 1e-3) <= after <= before for before, after in zip(size, seen, strict=True))
    assert all(after == before or after % 32 == 0 for before, after in zip(size, seen, strict=True))


def test_all_sizes_of_a_frame_fit_into_what_an_engine_keeps_ready():
    assert len(SCALES) <= fast.MAX_GRAPHS
    assert SCALES[0] == 1.0
    assert POOR_SCALE in SCALES
    assert list(SCALES) == sorted(SCALES, reverse=True)
    assert MIN_SCALE == min(SCALES) == 0.2  # as docs/segment.md says


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("seconds", "noise"),
    [(0.06, 0.0), (0.06, 0.1)] + [(seconds, noise) for seconds in (0.08, 0.1, 0.12, 0.16) for noise in (0.0, 0.1, 0.2)],
)
def test_a_deadline_that_a_size_from_half_up_can_hold_is_held_by_95_percent_of_the_frames(ahead, seconds, noise, seed):
    machine = Machine(**CPU, noise=noise, hiccups=0.01, seed=seed)
    seen = drive(start(seconds, machine) if ahead else Deadline(seconds), machine, 2000)
    assert in_time(seen, seconds) >= 0.95
    assert changes(seen) <= 12


@pytest.mark.parametrize("seed", range(5))
def test_a_tenth_of_late_frames_is_no_reason_for_poor_labels(seed):
    machine = Machine(**CPU, noise=0.2, seed=seed)
    seen = drive(start(0.06, machine), machine, 2000)
    assert min(scale for scale, _ in seen) == POOR_SCALE
    assert 0.88 < in_time(seen, 0.06) < 0.95


@pytest.mark.parametrize("seed", range(5))
def test_a_third_of_late_frames_is_one_where_less_is_in_time(seed):
    machine = Machine(**CPU, noise=0.2, seed=seed)
    seen = drive(start(0.049, machine), machine, 2000)
    assert in_time(seen, 0.049) > 0.9
    assert seen[-1][0] < POOR_SCALE


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("seconds", [0.045, 0.06, 0.08, 0.1, 0.15, 0.2])
def test_without_noise_it_settles_on_the_largest_size_that_has_room(ahead, seconds):
    machine = Machine(**CPU)
    deadline = start(seconds, machine) if ahead else Deadline(seconds)
    drive(deadline, machine, 100)
    seen = drive(deadline, machine, 1000)
    assert changes(seen) == 0
    scale, latency = seen[0]
    assert latency <= seconds
    larger = [other for other in SCALES if other > scale and other >= POOR_SCALE]
    # what holds it without room to spare may stay, and is not tried
    assert all(machine.cost(other) > TARGET_SHARE * seconds for other in larger)


@pytest.mark.parametrize("seconds", [0.01, 0.001, 0.0003])
@pytest.mark.parametrize("ahead", [True, False])
def test_preparing_sizes_on_a_gpu_does_not_cause_further_changes(ahead, seconds):
    machine = Machine(**GPU, noise=0.05)
    seen = drive(start(seconds, machine) if ahead else Deadline(seconds), machine, 3000)
    # what was not measured ahead is tried, less and less often
    assert changes(seen) <= (12 if not ahead and seconds < machine.cost(MIN_SCALE) else 3)
    if seconds == 0.01:
        assert {scale for scale, _ in seen} == {1.0}
    # no more than the sizes that were used were prepared, each once
    assert sum(latency > 1 for _, latency in seen) <= (0 if ahead else 2 * len({scale for scale, _ in seen}))
    if seconds > machine.cost(MIN_SCALE):
        assert in_time(seen[20:], seconds) > 0.99


def test_preparing_is_measured_apart_from_what_a_size_costs():
    machine = Machine(**CPU | {"prepare": 5.0})
    deadline = start(0.1, machine)
    assert deadline.scale == 0.59
    assert deadline.costs.times[:3] == pytest.approx([machine.cost(scale) for scale in SCALES[:3]], rel=1e-3)
    assert deadline.late == 0


def test_sizes_that_are_not_ready_are_measured_later():
    machine, ready, asked = Machine(**CPU), set(), []
    deadline, whole = Deadline(0.1), start(0.1, Machine(**CPU))

    def is_ready(scale):
        asked.append(scale)
        return scale in ready

    for scale in SCALES[: len(whole.passes[HUGE])]:
        assert not deadline.prepare(HUGE, machine.see, lambda: machine.now, is_ready)
        assert deadline.scale == 1.0
        ready.add(scale)
    assert deadline.prepare(HUGE, machine.see, lambda: machine.now, is_ready)
    assert deadline.scale == whole.scale == 0.59
    assert deadline.costs.times == pytest.approx(whole.costs.times)
    assert {*asked} == ready  # none that is not needed


def test_cameras_of_two_sizes_in_turn_are_each_measured_once():
    machine, deadline = Machine(**CPU), Deadline(0.1)
    for _ in range(3):
        for size in (HUGE, (720, 1280)):
            assert not deadline.prepare(size, machine.see, lambda: machine.now, lambda scale: scale == 1.0)
    assert {size: [len(times) for times in passes] for size, passes in deadline.passes.items()} == {
        HUGE: [WARM_UP_PASSES],
        (720, 1280): [WARM_UP_PASSES],
    }


def test_only_sizes_that_may_be_needed_are_prepared_ahead():
    for seconds, prepared in ((10.0, 2), (0.12, 4), (0.001, 7)):
        machine = Machine(**CPU)
        start(seconds, machine)
        assert len(machine.kept) == prepared


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("pixels", [0.0, 0.001, 0.004])
def test_where_smaller_inputs_save_nothing_the_size_stays(pixels, noise):
    machine = Machine(0.05, pixels, prepare=0.1, repack=0.03, noise=noise)
    deadline = start(0.03, machine)
    seen = drive(deadline, machine, 2000)
    assert {scale for scale, _ in seen} == {1.0}
    assert deadline.late == 2000


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("noise", [0.1, 0.2, 0.4])
def test_where_smaller_frames_save_nothing_noise_makes_no_labels_poor_for_long(noise, seed):
    machine = Machine(0.05, 0.001, prepare=0.1, repack=0.03, noise=noise, seed=seed)
    seen = drive(start(0.03, machine), machine, 2000)
    assert sum(scale < POOR_SCALE for scale, _ in seen) < 0.1 * len(seen)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.3, 0.5])
def test_sizes_that_were_measured_on_a_busy_machine_are_tried_again(noise, seed):
    machine = Machine(0.01, 0.1, prepare=0.1, repack=0.03, noise=noise, seed=seed)
    deadline = start(0.1, machine)
    machine.noise = 0.05
    seen = drive(deadline, machine, 200)
    assert in_time(seen, 0.1) > 0.92
    assert min(scale for scale, _ in seen) >= POOR_SCALE


def test_a_deadline_out_of_reach_stops_where_less_saves_no_time():
    machine = Machine(0.0005, 0.0006)
    deadline = start(0.0003, machine)
    seen = drive(deadline, machine, 1000)
    assert changes(seen) == 0
    step = SCALES.index(deadline.scale)
    assert 0 < step < len(SCALES) - 1
    assert machine.cost(SCALES[step]) < 0.9 * machine.cost(SCALES[step - 1])
    assert machine.cost(SCALES[step + 1]) > 0.9 * machine.cost(SCALES[step])
    assert deadline.late == 1000


def test_below_half_it_goes_after_a_while_and_only_if_frames_are_in_time_there():
    machine = Machine(0.0, 1.0)
    deadline = start(0.06, machine)
    seen = [scale for scale, _ in drive(deadline, machine, 100)]
    assert seen == [POOR_SCALE] * 22 + [MIN_SCALE] * 78
    assert deadline.late == 22
    assert {scale for scale, _ in drive(start(0.03, machine), machine, 1000)} == {POOR_SCALE}
    assert {scale for scale, _ in drive(start(0.001, machine), machine, 1000)} == {POOR_SCALE}


def test_a_size_below_half_where_most_frames_are_late_is_left_again():
    machine = Machine(0.1, 0.0)  # not prepared, so that only its pixels speak for a smaller size
    deadline = Deadline(0.05)
    deadline.step = SCALES.index(MIN_SCALE)
    seen = [scale for scale, _ in drive(deadline, machine, 100)]
    # two that prepare the size, two that are skipped, and twenty that decide
    assert seen[:24] == [MIN_SCALE] * 24
    assert min(seen[24:60]) >= POOR_SCALE


def test_a_size_that_was_thought_to_save_time_and_does_not_is_left_again():
    machine = Machine(0.05, 0.0005)  # not prepared, so that only its pixels speak for a smaller size
    deadline = Deadline(0.03)
    seen = drive(deadline, machine, 2000)
    assert 1 < changes(seen) <= 14
    assert sum(scale == 1.0 for scale, _ in seen) > 0.9 * len(seen)
    assert min(scale for scale, _ in seen) >= POOR_SCALE


@pytest.mark.parametrize("ahead", [True, False])
def test_waiting_in_a_queue_is_no_reason_to_shrink_what_is_not_the_cause(ahead):
    machine = Machine(0.002, 0.01, wait=0.12)
    deadline = start(0.1, machine) if ahead else Deadline(0.1)
    assert {scale for scale, _ in drive(deadline, machine, 500)} == {1.0}
    assert deadline.late == 500


def test_a_queue_behind_the_network_is_a_reason_to_shrink():
    machine = Machine(0.002, 0.09)
    deadline, seen = start(0.11, machine), []
    for _ in range(300):
        scale = deadline.scale
        network, prepared = machine.see(scale)
        deadline.record(1.5 * network, scale, network, prepared)  # half a frame on the average
        seen.append((scale, 1.5 * network))
    assert in_time(seen[100:], 0.11) == 1.0
    assert seen[-1][0] >= 0.71


def test_a_late_frame_is_never_the_one_after_which_frames_grow():
    deadline = Deadline(0.1)
    deadline.change(SCALES.index(0.5))
    for _ in range(SETTLING_FRAMES + RECENT_FRAMES - 1):
        deadline.record(0.04, 0.5)
    deadline.record(0.11, 0.5)
    assert deadline.scale == 0.5
    deadline.record(0.04, 0.5)
    assert deadline.scale > 0.5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spike", [2.0, 3.0, 8.0])
def test_it_recovers_after_a_load(spike, seed):
    machine = Machine(0.02, 0.05, repack=0.04, prepare=0.1, noise=0.05, seed=seed)
    deadline = start(0.1, machine)
    before = drive(deadline, machine, 300)
    during = drive(deadline, machine, 100, load=lambda i: spike)
    after = drive(deadline, machine, 600)
    # it starts with a margin, and grows when frames have shown that there is room
    assert {scale for scale, _ in before[100:]} == {after[-1][0]} == {1.0}
    assert min(scale for scale, _ in during) < 1.0
    assert in_time(after, 0.1) > 0.95
    assert changes(after) <= 6
    if spike * machine.cost(POOR_SCALE) < 0.08:
        assert min(scale for scale, _ in during + after) >= POOR_SCALE
        assert in_time(during[30:], 0.1) > 0.9


def test_a_short_load_does_not_make_labels_poor():
    machine = Machine(0.02, 0.05, prepare=0.1)
    deadline = start(0.1, machine)
    drive(deadline, machine, 100)
    seen = drive(deadline, machine, 200, load=lambda i: 20.0 if i < 20 else 1.0)
    assert min(scale for scale, _ in seen) >= POOR_SCALE


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("hiccups", "kept"), [(0.02, 0.95), (0.05, 0.9)])
def test_hiccups_that_no_size_avoids_change_little(hiccups, kept, seed):
    machine = Machine(**CPU, noise=0.05, hiccups=hiccups, hiccup=0.5, seed=seed)
    deadline = start(0.2, machine)
    seen = drive(deadline, machine, 4000)
    assert sum(scale == 1.0 for scale, _ in seen) > kept * len(seen)
    assert sum(scale < POOR_SCALE for scale, _ in seen) < 0.05 * len(seen)


def test_a_step_that_is_rounded_to_the_size_before_it_is_passed_over():
    size = (96, 96)  # at 0.84 and 0.71 the same
    assert scale_size(size, SCALES[1]) == scale_size(size, SCALES[0])
    machine, deadline, seen = Machine(0.0, 1.0), Deadline(0.5), set()

    def see(scale):
        machine.now += math.prod(scale_size(size, scale)) / math.prod(size)
        seen.add(scale_size(size, scale))

    deadline.prepare(size, see, lambda: machine.now)
    assert deadline.scale == next(scale for scale in SCALES if scale_size(size, scale) == (64, 64))


@given(
    st.floats(0.01, 1.0),
    st.lists(st.floats(0.001, 10.0), min_size=1, max_size=200),
    st.sampled_from(range(1 + SCALES.index(POOR_SCALE))),
)
def test_being_late_never_raises_the_scale_where_less_saves_time(seconds, loads, step):
    deadline = Deadline(seconds)
    deadline.step = step
    for load in sorted(loads, reverse=True):  # of falling load each smaller size is faster
        scale = deadline.scale
        latency = load * scale**2
        deadline.record(latency, scale)
        if latency > seconds:
            assert deadline.scale <= scale or scale < POOR_SCALE == deadline.scale


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=300))
def test_a_late_frame_leads_no_higher_than_where_it_came_from(latencies):
    deadline, highest = Deadline(0.1), 1.0
    deadline.step = 2
    came_from = {SCALES[2]}
    for latency in latencies:
        scale = deadline.scale
        deadline.record(latency, scale)
        if latency > 0.1 and deadline.scale > scale:
            assert deadline.scale in came_from
        came_from.add(deadline.scale)
        highest = max(highest, deadline.scale)
    assert highest <= 1.0


@pytest.mark.parametrize("prepared", [True, False])
def test_frames_of_an_older_size_and_those_that_prepare_one_are_late_and_decide_nothing(prepared):
    deadline = Deadline(0.1)
    for _ in range(100):
        deadline.record(5.0, SCALES[2] if prepared else 1.0, 5.0, prepared)
    assert (deadline.scale, deadline.late) == (1.0, 100)


def test_without_a_deadline_frames_keep_their_size_and_none_is_late():
    deadline, machine = Deadline(None), Machine(**CPU)
    deadline.prepare(HUGE, machine.see, lambda: machine.now)
    assert list(machine.kept) == [1.0]
    assert {scale for scale, _ in drive(deadline, machine, 30, load=lambda i: 1000.0)} == {1.0}
    assert deadline.late == 0
