"""Meet a deadline: shrink the network input when labels are late, and enlarge it again when there is time.

The control loop, for each labelled frame:

1. `record` takes its latency. Frames of an earlier size, of a size that was not prepared, and the first two after a
   change are counted if late, and otherwise ignored: a change is slow by itself, which must not cause another one.
2. `decide` compares the last 40 latencies with the deadline; outliers, which no size avoids, are left out.
3. Several late frames: go to the largest size that should be in time, or else to the smallest that saves time.
   Sizes below half, where labels are poor, are used only if frames have been late for long and are in time there.
4. After a change, the latencies before and after correct the estimate of what each size costs (`StepCosts`).
   A smaller size that turns out to save nothing is given up again, and is not tried again for a while.
5. No late frame for a while: go to the largest size that should be in time. If that fails, wait twice as long.

There are few sizes, the steps of a ladder numbered from 0 (full size), so that all can be prepared before the first
frame. Sizes are (height, width), times are seconds.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from streamseg.models.layers import MIN_SIDE

SCALES = (1.0, 0.84, 0.71, 0.59, 0.5, 0.35, 0.2)
"""The factor of both sides at each step. No more than the sizes that an engine keeps ready (fast.MAX_GRAPHS)."""
MIN_SCALE = SCALES[-1]
POOR_SCALE = 0.5
"""The scale below which labels are poor: on the sample pictures 79 to 96 % of the labels are still those of the full
size at a half (FANet-18, the bundled network until FANet+), and 57 to 91 % at the smallest."""

RECENT_FRAMES = 40
"""How many frames decisions are based on, and how many must be in time before a larger size is tried."""
FEW_FRAMES = 8
"""How many frames show what a size takes at the moment."""
MIN_LATE_FRAMES = 3
"""How many of the recent frames must be late to shrink."""
SETTLING_FRAMES = 2
"""How many frames after a change are ignored: packing weights and filling caches makes them slow."""
MAX_PATIENCE = 64 * RECENT_FRAMES
"""The longest wait, in frames, before a size that has failed is tried again."""
OUTLIER_FACTOR = 3.0
"""Frames that take so many times the median of the last few are outliers."""
TARGET_SHARE = 0.8
"""The share of the deadline that a size may be expected to take."""
START_SHARE = 0.55
"""The same before the first frame: the network was measured alone, and will share the cores with other threads."""
MIN_GAIN = 0.1
"""The share of the latency that a smaller size must save."""
WARM_UP_PASSES = 4
"""How often the network runs at a size to prepare it; on a GPU the second pass captures a graph."""
QUIET_SPREAD = 1.2
"""The ratio of two passes at one size below which the machine is quiet enough to trust the measurement."""


class FrameTimes(NamedTuple):
    """The latency of a frame, and the network's part of it."""

    latency: float
    network: float


class Trial(NamedTuple):
    """Measurements before a change of size, and after how many frames to compare."""

    step: int
    latency: float
    network: float
    frames: int


class StepCosts:
    """Estimates the network's time at each step: first by the pixels, then by measurements."""

    def __init__(self) -> None:
        self.pixels = [scale**2 for scale in SCALES]
        self.times = list(self.pixels)
        """The time at each step, in any unit."""
        self.first_times = tuple(self.times)
        """The times before they were corrected."""
        self.reliable = False
        """Whether the times were measured well; otherwise a smaller size is tried once to find out what it saves."""

    def measure(self, size: tuple[int, int], passes: Sequence[Sequence[float]]) -> float:
        """Set the times by passes at the first steps, and return how much slower a usual pass is than the fastest."""
        spread = median(max(times[2:]) / max(min(times[2:]), 1e-9) for times in passes)
        self.reliable = spread < QUIET_SPREAD and len(passes) > 2
        self.pixels = [float(math.prod(scale_size(size, scale))) for scale in SCALES]
        fastest = [min(times[1:]) for times in passes]
        self.times = fit_times(fastest, self.pixels, min_slope=0.0 if self.reliable else 0.5)
        self.first_times = tuple(self.times if self.reliable else self.pixels)
        return spread

    def expect(self, step: int, known: int, latency: float, network_share: float) -> float:
        """Return the latency to expect at a step, given that at a known one and the network's share of it."""
        ratio = self.limit_ratio(self.times[step] / max(self.times[known], 1e-9), step, known)
        return latency * (1 - network_share + network_share * ratio)

    def correct(self, step: int, known: int, measured: float) -> None:
        """Correct the times of a step and of those beyond it by its measured ratio to a known step."""
        estimated = self.times[step] / max(self.times[known], 1e-9)
        factor = self.limit_ratio(measured, step, known) / estimated
        for other in range(len(SCALES)):
            nearness = (other - known) / (step - known)
            self.times[other] *= factor ** min(max(nearness, 0.0), 1.0)

    def forget_smaller(self, step: int) -> None:
        """Undo the corrections of a step and of smaller ones: they may have been due to another load."""
        known = self.times[step] / self.first_times[step]
        self.times[step:] = [known * time for time in self.first_times[step:]]

    def limit_ratio(self, ratio: float, step: int, known: int) -> float:
        """Limit the ratio of two steps' times to what their pixels explain; the rest is the load of the machine."""
        pixels = self.pixels[step] / self.pixels[known]
        return min(max(ratio, min(1.0, pixels / 1.3)), max(1.0, 1.3 * pixels))


class Deadline:
    """Chooses the scale of the network input by the latencies so far. Any thread may call it.

    Without a deadline the scale stays 1.
    """

    def __init__(self, seconds: float | None):
        self.seconds = seconds
        self.limit = math.inf if seconds is None else seconds
        self.lock = threading.Lock()
        self.step = 0
        self.late = 0
        """How many frames were labelled after the deadline."""
        self.costs = StepCosts()
        self.passes: dict[tuple[int, int], list[list[float]]] = {}
        """For each full size, what the network took at each scale, pass by pass, before the first change."""
        self.recent: deque[FrameTimes] = deque(maxlen=RECENT_FRAMES)
        """The last frames at this step."""
        self.frames = 0
        """How many frames have not been ignored."""
        self.changed_at = 0
        """Their number at the last change."""
        self.settling = SETTLING_FRAMES
        """How many frames are still ignored after the last change."""
        self.trial: Trial | None = None
        """What to compare the current size with, until that is done."""
        self.grown = False
        """Whether the last change was to a larger size."""
        self.patience = RECENT_FRAMES
        """How many frames must be in time before a larger size is tried; doubled when that fails."""
        self.block_frames = RECENT_FRAMES
        """For how many frames smaller sizes are blocked after they saved nothing; doubled each time."""
        self.lowest_step, self.blocked_until = len(SCALES) - 1, 0
        """The step below which nothing was saved; smaller steps are blocked until this frame."""

    @property
    def scale(self) -> float:
        """The factor of the sides of the next frame."""
        return SCALES[self.step]

    def prepare(
        self,
        size: tuple[int, int],
        run_network: Callable[[float], None],
        clock: Callable[[], float],
        is_ready: Callable[[float], bool] = lambda scale: True,
    ) -> bool:
        """Prepare the sizes that may be needed, measure them, and choose the first one.

        Args:
            size: The full size.
            run_network: Runs the network at a scale, and returns when it has finished.
            is_ready: Whether a scale can be measured now; if not, call again later.

        Returns:
            Whether that is done.
        """
        if self.seconds is None:
            run_network(1.0)
            return True
        passes = self.passes.setdefault(size, [])
        for scale in SCALES[len(passes) :]:
            # so fast that even twice the load leaves time: smaller sizes are not needed
            if len(passes) > 1 and min(passes[-1][1:]) <= self.seconds / 2:
                break
            if not is_ready(scale):
                return False
            passes.append([])
            for _ in range(WARM_UP_PASSES):
                begin = clock()
                run_network(scale)
                passes[-1].append(clock() - begin)
        with self.lock:
            spread = self.costs.measure(size, passes)
            self.change(self.find_smaller(self.costs.times[0] * spread, 1.0, share=START_SHARE))
        return True

    def record(self, latency: float, scale: float, network: float | None = None, prepared: bool = True) -> None:
        """Take the latency of a frame that was labelled at a scale, and decide on the scale of the next ones.

        Args:
            network: The network's part of the latency; all of it by default.
            prepared: Whether the engine was prepared for this size: otherwise the latency says nothing about it.
        """
        if self.seconds is None:
            return
        with self.lock:
            self.late += latency > self.seconds
            if scale != self.scale or not prepared:
                return
            if self.settling:
                self.settling -= 1
                return
            self.frames += 1
            self.recent.append(FrameTimes(latency, latency if network is None else min(network, latency)))
            self.decide()

    def decide(self) -> None:
        """Shrink, grow or stay."""
        median_latency = median(times.latency for times in list(self.recent)[-FEW_FRAMES:])
        usual = [times for times in self.recent if times.latency <= OUTLIER_FACTOR * median_latency]
        if self.recent[-1] != usual[-1]:
            return
        latencies, networks = [times.latency for times in usual], [times.network for times in usual]
        if self.trial and len(usual) >= self.trial.frames and self.undo_trial(self.trial, latencies, networks):
            return
        latency, network_share = high_level(latencies), median(networks) / max(median(latencies), 1e-9)
        late_frames = sum(time > self.limit for time in latencies)
        waited = self.frames - self.changed_at
        if latencies[-1] > self.limit and late_frames >= MIN_LATE_FRAMES and latency > 0.9 * self.limit:
            self.shrink(latencies, networks, latency, network_share)
        elif latencies[-1] <= self.limit and waited >= self.patience:
            if self.grown and waited >= 10 * self.patience:
                self.grown, self.patience = False, max(self.patience // 2, RECENT_FRAMES)
            step = self.find_larger(latency, network_share)
            if step != self.step:
                self.change(step, Trial(self.step, latency, high_level(networks), FEW_FRAMES))

    def shrink(self, latencies: list[float], networks: list[float], latency: float, network_share: float) -> None:
        """Go to a smaller size, if one saves time and the last change has been compared."""
        if self.trial and not self.grown:
            return
        full = len(latencies) == RECENT_FRAMES
        half_late = (
            len(latencies) >= RECENT_FRAMES // 2
            and min(median(latencies), median(latencies[-FEW_FRAMES:])) > self.limit
        )
        quarter_late = full and sorted(latencies)[3 * RECENT_FRAMES // 4] > self.limit
        if self.scale < POOR_SCALE and half_late:
            self.block_smaller(SCALES.index(POOR_SCALE))
            return
        step = self.find_smaller(latency, network_share, half_late or quarter_late)
        if step == self.step and not self.costs.reliable:
            self.costs.reliable = True
            self.costs.forget_smaller(self.step)
            step = self.find_smaller(latency, network_share, half_late or quarter_late)
        if step == self.step:
            if full and latency > self.limit and self.frames >= self.blocked_until:
                as_fast = (
                    larger
                    for larger in range(step)
                    if (1 - MIN_GAIN) * self.costs.expect(larger, step, latency, network_share) <= latency
                )
                self.block_smaller(next(as_fast, step))
                self.costs.forget_smaller(self.step)
            return
        if self.grown and self.frames - self.changed_at < 10 * self.patience:
            self.patience = min(2 * self.patience, MAX_PATIENCE)
        if self.trial:
            self.compare(self.trial, networks)
        urgent = high_level(latencies[-FEW_FRAMES:]) > self.limit and SCALES[step] >= POOR_SCALE
        frames = FEW_FRAMES if urgent else RECENT_FRAMES // 2
        self.change(step, Trial(self.step, latency, high_level(networks), frames))

    def undo_trial(self, trial: Trial, latencies: list[float], networks: list[float]) -> bool:
        """Compare a size with the one before. If it saves nothing, go back and return True."""
        self.trial = None
        self.compare(trial, networks)
        latency = high_level(latencies)
        if self.grown or latency <= self.limit or latency <= (1 - MIN_GAIN / 2) * trial.latency:
            return False
        self.block_smaller(trial.step)
        return True

    def compare(self, trial: Trial, networks: list[float]) -> None:
        """Correct the costs by what the network took before and after the change to this step."""
        self.costs.correct(self.step, trial.step, high_level(networks) / max(trial.network, 1e-9))

    def block_smaller(self, step: int) -> None:
        """Go to a step, or stay there, and block smaller sizes for a while, because they save nothing."""
        self.lowest_step, self.blocked_until = step, self.frames + self.block_frames
        self.block_frames = min(2 * self.block_frames, MAX_PATIENCE)
        self.change(step)
        self.grown = False

    def find_smaller(
        self, latency: float, network_share: float, long_late: bool = False, share: float = TARGET_SHARE
    ) -> int:
        """Return the largest smaller size that should be in time, or else the smallest of those that save time.

        Args:
            long_late: Whether frames have been late for so long that sizes below half are allowed.
            share: The share of the deadline that the size may take.
        """
        best, chosen = latency, self.step
        for step in range(self.step + 1, len(SCALES)):
            blocked = self.frames < self.blocked_until and step > self.lowest_step
            too_poor = SCALES[step] < POOR_SCALE and not (long_late and self.scale <= POOR_SCALE)
            if blocked or too_poor or best <= share * self.limit:
                break
            expected = self.costs.expect(step, self.step, latency, network_share)
            # poor labels are accepted only if they are in time
            acceptable = SCALES[step] >= POOR_SCALE or expected <= self.limit
            if acceptable and expected < (1 - MIN_GAIN) * best:
                best, chosen = expected, step
        return chosen

    def find_larger(self, latency: float, network_share: float) -> int:
        """Return the largest size that should be in time."""
        for step in range(self.step):
            if self.costs.expect(step, self.step, latency, network_share) <= TARGET_SHARE * self.limit:
                return step
        return self.step

    def change(self, step: int, trial: Trial | None = None) -> None:
        """Go to a step, to be compared with a trial."""
        self.trial, self.grown = trial, step < self.step
        self.step, self.changed_at, self.settling = step, self.frames, SETTLING_FRAMES
        self.recent.clear()


def fit_times(times: Sequence[float], pixels: Sequence[float], min_slope: float) -> list[float]:
    """Fit a fixed part and a part proportional to the pixels to the first steps' times; return those of all steps.

    The relative error is minimised. A fit, since on a busy machine a smaller size may seem slower.

    Args:
        min_slope: The least share of the time that is proportional to the pixels.
    """
    weights = [1 / max(time, 1e-9) ** 2 for time in times]
    total = sum(weights)
    mean_pixels = sum(w * p for w, p in zip(weights, pixels, strict=False)) / total
    mean_time = sum(w * t for w, t in zip(weights, times, strict=True)) / total
    variance = sum(w * (p - mean_pixels) ** 2 for w, p in zip(weights, pixels, strict=False))
    covariance = sum(w * (p - mean_pixels) * (t - mean_time) for w, p, t in zip(weights, pixels, times, strict=False))
    slope = min(max(covariance / max(variance, 1e-30), min_slope * mean_time / mean_pixels), mean_time / mean_pixels)
    return [mean_time + slope * (p - mean_pixels) for p in pixels]


def high_level(times: Sequence[float]) -> float:
    """Return a time that only two of the last eight frames exceed and, of twenty or more, only a tenth of all."""
    few = sorted(times[-FEW_FRAMES:])
    short = few[math.ceil(0.65 * len(few)) - 1]
    if len(times) < RECENT_FRAMES // 2:
        return short
    return max(short, sorted(times)[math.floor(0.9 * (len(times) - 1))])


def scale_size(size: tuple[int, int], scale: float) -> tuple[int, int]:
    """Return a height and width times a scale, rounded up to multiples of 32 but never enlarged."""
    if scale == 1.0:
        return size
    height, width = (min(side, math.ceil(side * scale / MIN_SIDE - 1e-6) * MIN_SIDE) for side in size)
    return height, width
