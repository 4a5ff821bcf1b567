"""Labels in time: the network input shrinks when labels come late, and grows again when there is time.

There are few sizes, the steps of a ladder, so that all of them can be prepared before they are needed. How long a
change of size takes by itself (allocations, packing of weights, on a GPU the capture of a graph) is no reason for
another change.

A size is (height, width); times are seconds. Steps are numbered from 0, the full size.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from streamseg.models.layers import MIN_SIDE

SCALES = (1.0, 0.84, 0.71, 0.59, 0.5, 0.35, 0.2)
"""The steps: what both sides are multiplied by. No more than an engine keeps ready at a time (fast.SIZES)."""
LEAST = SCALES[-1]
"""The smallest network input, as a share of each side."""
POOR = 0.5
"""The share of each side below which labels are poor: of the samples 79 to 96 % of the labels are still the same at a
half (the weights that ship), and 57 to 91 % at the smallest."""

WINDOW = 40
"""How many of the last frames decide."""
FEW = 8
"""How many frames tell what a size takes just now."""
LATE = 3
"""How many late frames in the window are a reason to shrink."""
HICCUP = 3.0
"""Frames that take so many times the median of the last few are the machine's hiccups, and decide nothing."""
SKIPPED = 2
"""How many frames after a change decide nothing: packing weights and filling caches makes them slow."""
ROOM = 0.8
"""The share of the deadline that a size may need in order to be chosen."""
START = 0.55
"""The same at the start, when the network was measured alone: decoding and encoding will take cores from it."""
GAIN = 0.1
"""The share of the latency that a smaller size must save in order to be chosen."""
PASSES = 4
"""How often the network sees frames of a size to prepare it; on a GPU the second pass captures a graph."""
SURE = 1.2
"""The ratio of two passes of a size up to which the machine is quiet enough to believe what is measured then."""
SPARE = 0.5
"""The share of the deadline at which no smaller size is prepared ahead: there the load may double."""
PATIENCE = 40
"""How many frames must be in time before a larger size is tried; doubled whenever that fails."""
MOST_PATIENCE = 2560


class Trial(NamedTuple):
    """What was measured before a change of size, and after how many frames to compare."""

    step: int
    latency: float
    network: float
    frames: int


class Deadline:
    """Chooses the network input's size from the latency of the frames so far; any thread may call it.

    It shrinks when several frames are late, to the largest size that should be in time, or else to the smallest that
    saves time. Below half it goes only when many frames have been late for a while, and only as long as most are in
    time there. A size that turns out to save nothing is left again. It grows when there has been room for a larger size
    for a while. Without a deadline frames keep their size.
    """

    def __init__(self, seconds: float | None):
        self.seconds = seconds
        self.lock = threading.Lock()
        self.step = 0
        self.late = 0
        """Frames whose labels came after the deadline."""
        self.pixels = [scale**2 for scale in SCALES]
        self.costs = list(self.pixels)
        """The network's time at each step, in any unit: until it is measured, the share of the pixels."""
        self.first_costs = tuple(self.costs)
        """The same before anything was learned from changes."""
        self.sure = False
        """Whether that was measured so well, or tried, that no smaller size is tried to see what it saves."""
        self.recent: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        """Latency and network time of the last frames at this step."""
        self.frames = 0
        """How many frames have decided something."""
        self.changed = 0
        """Their number at the last change."""
        self.skip = SKIPPED
        self.trial: Trial | None = None
        self.grown = False
        self.patience = self.pause = PATIENCE
        self.floor, self.floor_until = len(SCALES) - 1, 0
        """The step below which nothing was gained, and how long that is believed."""

    @property
    def scale(self) -> float:
        """What the sides of the next frame are multiplied by."""
        return SCALES[self.step]

    def prepare(self, size: tuple[int, int], see: Callable[[float], None], clock: Callable[[], float]) -> None:
        """Prepare the sizes that may be needed, measure them, and choose the one to begin with.

        Args:
            size: The full one.
            see: Lets the network see frames at a scale, and waits until it has.
        """
        if self.seconds is None:
            see(1.0)
            return
        costs, spreads = list[float](), list[float]()
        for scale in SCALES:
            times = []
            for _ in range(PASSES):
                begin = clock()
                see(scale)
                times.append(clock() - begin)
            costs.append(min(times[1:]))
            spreads.append(max(times[2:]) / max(min(times[2:]), 1e-9))
            if len(costs) > 1 and costs[-1] <= SPARE * self.seconds:
                break
        with self.lock:
            self.pixels = [float(math.prod(smaller(size, scale))) for scale in SCALES]
            self.sure = median(spreads) < SURE and len(costs) > 2
            self.costs = fit(costs, self.pixels, 0.0 if self.sure else 0.5)
            self.first_costs = tuple(self.costs if self.sure else self.pixels)
            # these are the quickest passes, and on a busy machine most take longer
            self.change(self.smaller_step(0, self.costs[0] * median(spreads), 1.0, room=START))

    def took(self, seconds: float, scale: float, network: float | None = None, prepared: bool = True) -> None:
        """The labels of a frame that was seen at a scale took so long.

        Args:
            network: How much of it was the network's; all of it unless given.
            prepared: Whether the engine had seen this size before: otherwise it says nothing of the size.
        """
        if self.seconds is None:
            return
        with self.lock:
            late = seconds > self.seconds
            self.late += late
            if scale != self.scale or not prepared:  # of an older size, or slow for another reason
                return
            if self.skip:
                self.skip -= 1
                return
            self.frames += 1
            self.recent.append((seconds, seconds if network is None else min(network, seconds)))
            self.decide()

    def decide(self) -> None:
        """Shrink, grow or stay."""
        assert self.seconds is not None
        usual = median(pair[0] for pair in list(self.recent)[-FEW:])
        usual_frames = [pair for pair in self.recent if pair[0] <= HICCUP * usual]
        latencies, networks = [pair[0] for pair in usual_frames], [pair[1] for pair in usual_frames]
        if self.recent[-1] != usual_frames[-1]:
            return
        if self.trial and len(latencies) >= self.trial.frames and self.gained_nothing(self.trial, latencies, networks):
            return
        high, part = level(latencies), median(networks) / max(median(latencies), 1e-9)
        late = sum(latency > self.seconds for latency in latencies)
        if latencies[-1] > self.seconds and late >= LATE and high > 0.9 * self.seconds:
            self.shrink(latencies, networks, high, part)
        elif latencies[-1] <= self.seconds and self.frames - self.changed >= self.patience:
            if self.grown and self.frames - self.changed >= 10 * self.patience:
                self.grown, self.patience = False, max(self.patience // 2, PATIENCE)
            step = self.larger_step(high, part)
            if step != self.step:
                self.change(step, Trial(self.step, high, level(networks), FEW))

    def gained_nothing(self, trial: Trial, latencies: list[float], networks: list[float]) -> bool:
        """Compare a size with the one before; True if a smaller one is no faster, and the one before is back."""
        self.trial = None
        self.learn(trial, networks)
        now = level(latencies)
        if self.grown or now <= self.limit or now <= (1 - GAIN / 2) * trial.latency:
            return False
        self.return_to(trial.step)
        return True

    def return_to(self, step: int) -> None:
        """Go back to a larger size, or keep this one, because less saves nothing; and stay there for a while."""
        self.floor, self.floor_until = step, self.frames + self.pause
        self.pause = min(2 * self.pause, MOST_PATIENCE)
        self.change(step)
        self.grown = False

    def shrink(self, latencies: list[float], networks: list[float], high: float, part: float) -> None:
        """Go to a smaller size, if that saves time and the last change has been measured."""
        if self.trial and not self.grown:
            return
        most_late = len(latencies) >= WINDOW // 2 and min(median(latencies), median(latencies[-FEW:])) > self.limit
        many_late = len(latencies) == WINDOW and high > self.limit
        quarter_late = len(latencies) == WINDOW and sorted(latencies)[3 * WINDOW // 4] > self.limit
        if SCALES[self.step] < POOR and most_late:
            self.return_to(SCALES.index(POOR))
            return
        step = self.smaller_step(self.step, high, part, most_late or quarter_late)
        if step == self.step and not self.sure:
            self.sure = True
            self.forget()
            step = self.smaller_step(self.step, high, part, most_late or quarter_late)
        if step == self.step:
            if many_late and self.frames >= self.floor_until:
                as_good = (u for u in range(step) if (1 - GAIN) * self.expect(u, step, high, part) <= high)
                self.return_to(next(as_good, step))
                self.forget()
            return
        if self.grown and self.frames - self.changed < 10 * self.patience:
            self.patience = min(2 * self.patience, MOST_PATIENCE)
        if self.trial:
            self.learn(self.trial, networks)
        few = level(latencies[-FEW:]) > self.limit and SCALES[step] >= POOR
        self.change(step, Trial(self.step, high, level(networks), FEW if few else WINDOW // 2))

    def forget(self) -> None:
        """Drop what was learned of the cost of smaller sizes: it may have been the load of the machine."""
        known = self.costs[self.step] / self.first_costs[self.step]
        self.costs[self.step :] = [known * cost for cost in self.first_costs[self.step :]]

    def learn(self, trial: Trial, networks: list[float]) -> None:
        """Correct what this step and those beyond it cost by what was measured before and after the change to it."""
        ratio = self.within_pixels(level(networks) / max(trial.network, 1e-9), self.step, trial.step)
        known = self.costs[self.step] / max(self.costs[trial.step], 1e-9)
        factor = ratio / known
        for step in range(len(SCALES)):
            near = (step - trial.step) / (self.step - trial.step)
            self.costs[step] *= factor ** min(max(near, 0.0), 1.0)

    def smaller_step(self, step: int, latency: float, part: float, most_late: bool = False, room: float = ROOM) -> int:
        """The largest size that should be in time; if there is none, the smallest of those that save time.

        Args:
            most_late: Whether frames have been late for so long that it may go below half.
            room: The share of the deadline that the size may need.
        """
        best, least = latency, step
        for lower in range(step + 1, len(SCALES)):
            blocked = self.frames < self.floor_until and lower > self.floor
            poor = SCALES[lower] < POOR and not (most_late and SCALES[step] <= POOR)
            if blocked or poor or best <= room * self.limit:
                break
            expected = self.expect(lower, step, latency, part)
            enough = SCALES[lower] >= POOR or expected <= self.limit  # late and poor would be the worst of both
            if enough and expected < (1 - GAIN) * best:
                best, least = expected, lower
        return least

    def larger_step(self, latency: float, part: float) -> int:
        """The largest size that should be in time."""
        for upper in range(self.step):
            if self.expect(upper, self.step, latency, part) <= ROOM * self.limit:
                return upper
        return self.step

    def expect(self, other: int, step: int, latency: float, part: float) -> float:
        """The latency at another step, if the network has a part in the latency at this one."""
        ratio = self.within_pixels(self.costs[other] / max(self.costs[step], 1e-9), other, step)
        return latency * (1 - part + part * ratio)

    def within_pixels(self, ratio: float, step: int, other: int) -> float:
        """A ratio of two steps' times, kept to what their pixels allow; what exceeds that is the machine's load."""
        pixels = self.pixels[step] / self.pixels[other]
        return min(max(ratio, min(1.0, pixels / 1.3)), max(1.0, 1.3 * pixels))

    def change(self, step: int, trial: Trial | None = None) -> None:
        """Go to a step, to be compared with what was measured before."""
        self.trial, self.grown = trial, step < self.step
        self.step, self.changed, self.skip = step, self.frames, SKIPPED
        self.recent.clear()

    @property
    def limit(self) -> float:
        return math.inf if self.seconds is None else self.seconds


def fit(times: Sequence[float], pixels: Sequence[float], least: float) -> list[float]:
    """Times of all steps by those of the first: a fixed part and one that goes with the pixels, least relative error.

    Each was measured in a few passes, and on a busy machine a smaller size may seem slower.

    Args:
        least: The least share of the time that goes with the pixels.
    """
    weights = [1 / max(time, 1e-9) ** 2 for time in times]
    total = sum(weights)
    mean_pixels = sum(w * p for w, p in zip(weights, pixels, strict=False)) / total
    mean_time = sum(w * t for w, t in zip(weights, times, strict=True)) / total
    spread = sum(w * (p - mean_pixels) ** 2 for w, p in zip(weights, pixels, strict=False))
    both = sum(w * (p - mean_pixels) * (t - mean_time) for w, p, t in zip(weights, pixels, times, strict=False))
    slope = min(max(both / max(spread, 1e-30), least * mean_time / mean_pixels), mean_time / mean_pixels)
    return [mean_time + slope * (p - mean_pixels) for p in pixels]


def level(times: Sequence[float]) -> float:
    """What frames take, as far as a deadline is concerned: exceeded by two of the last eight, or by a tenth of all."""
    few = sorted(times[-FEW:])
    short = few[math.ceil(0.65 * len(few)) - 1]
    return short if len(times) < WINDOW // 2 else max(short, sorted(times)[math.floor(0.9 * (len(times) - 1))])


def smaller(size: tuple[int, int], scale: float) -> tuple[int, int]:
    """A height and width times a scale; sides are rounded up to multiples of 32, but none becomes larger."""
    if scale == 1.0:
        return size
    height, width = (min(side, math.ceil(side * scale / MIN_SIDE - 1e-6) * MIN_SIDE) for side in size)
    return height, width
