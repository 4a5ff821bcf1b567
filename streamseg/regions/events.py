"""Watch zones and lanes over the frames of a video, and report what happens in them.

Shapes: H height, W width.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from streamseg.classes import IGNORE, Classes
from streamseg.regions.regions import to_label_array
from streamseg.regions.zones import FittedArea, Lane, Zone, fit_area

if TYPE_CHECKING:
    from torch import Tensor

ROUNDING = 1e-6
"""Seconds by which the times of frames may be wrong."""


@dataclass(frozen=True)
class Event:
    """Something that happened in a zone or lane."""

    zone: str
    kind: str
    """enter, leave, cover or uncover for a class in a zone; blocked or clear for a lane."""
    seconds: float
    """The time of the frame that completed it."""
    class_name: str | None = None
    share: float | None = None
    """The share of the class in the zone."""
    pixels: int | None = None
    """How far the lane is free."""
    metres: float | None = None


@dataclass(frozen=True)
class Reading:
    """What a frame has in a zone or lane."""

    zone: str
    shares: dict[str, float]
    """The share of each watched class; empty for a lane."""
    active: tuple[str, ...]
    """The classes that are present, after debouncing; for a lane "blocked" or nothing."""
    pixels: int | None = None
    """How many rows of a lane are free, from its lower end."""
    metres: float | None = None
    """How far ahead that is, in the lane's own metres; None without them."""


class Switch:
    """A state that changes only when its opposite has lasted for some time."""

    def __init__(self) -> None:
        self.on = False
        self.changing: float | None = None
        """Since when the opposite lasts."""

    def update(self, on: bool, seconds: float, debounce: float) -> bool:
        """Return whether the state changes now."""
        if on == self.on:
            self.changing = None
            return False
        if self.changing is None or seconds < self.changing:  # a clock that was set back begins anew
            self.changing = seconds
        if seconds - self.changing < debounce - ROUNDING:
            return False
        self.on, self.changing = on, None
        return True


class ZoneMonitor:
    """Measures zones and lanes in each frame of one video, and finds their events."""

    def __init__(self, areas: Sequence[Zone | Lane], classes: Classes):
        """
        Args:
            areas: What read_zones returns.
            classes: The classes of the labels; a zone with another class is refused.
        """
        self.areas = list(areas)
        self.labels: dict[str, dict[str, int]] = {}
        for area in self.areas:
            names = area.classes if isinstance(area, Zone) else area.drivable
            try:
                self.labels[area.name] = {classes.names[i]: i for i in (classes.find(name) for name in names)}
            except ValueError as error:
                raise ValueError(f"Zone {area.name!r:.80}: {error}") from None
        self.switches: dict[tuple[str, str, str], Switch] = {}

    def update(self, labels: "Tensor | NDArray[numpy.uint8]", seconds: float) -> tuple[list[Reading], list[Event]]:
        """Return what the next frame has in each zone, and the events that it completes.

        Args:
            labels: The labels of the frame, (H, W).
            seconds: The time of the frame, from any beginning.
        """
        array = to_label_array(labels)
        readings, events = [], []
        for area in self.areas:
            fitted = fit_area(area, *array.shape)
            watch = self.watch_zone if isinstance(area, Zone) else self.watch_lane
            reading, happened = watch(area, fitted, fitted.crop(array), seconds)  # type: ignore[arg-type]
            readings.append(reading)
            events += happened
        return readings, events

    def watch_zone(
        self, zone: Zone, fitted: FittedArea, labels: NDArray[numpy.uint8], seconds: float
    ) -> tuple[Reading, list[Event]]:
        """Return the shares of the classes in a zone, and its events."""
        counts = numpy.bincount(labels[fitted.mask], minlength=IGNORE + 1)
        looked_at = max(1, fitted.pixels - counts[IGNORE])
        shares = {name: float(counts[i] / looked_at) for name, i in self.labels[zone.name].items()}
        events, active = [], []
        for name, share in shares.items():
            limits = {("enter", "leave"): zone.present}
            if zone.share is not None:
                limits["cover", "uncover"] = zone.share
            for (begin, end), limit in limits.items():
                switch = self.switches.setdefault((zone.name, begin, name), Switch())
                kind = end if switch.on else begin
                if switch.update(share >= limit, seconds, zone.debounce) and kind in zone.events:
                    events.append(Event(zone.name, kind, seconds, name, share))
            if self.switches[zone.name, "enter", name].on:
                active.append(name)
        return Reading(zone.name, shares, tuple(active)), events

    def watch_lane(
        self, lane: Lane, fitted: FittedArea, labels: NDArray[numpy.uint8], seconds: float
    ) -> tuple[Reading, list[Event]]:
        """Return how far a lane is free, and its events."""
        drivable = numpy.zeros(IGNORE + 1, dtype=bool)
        drivable[list(self.labels[lane.name].values())] = True
        pixels, metres = free_distance(lane, fitted, drivable[labels], labels != IGNORE)
        switch = self.switches.setdefault((lane.name, "blocked", ""), Switch())
        events = []
        if lane.min_distance is not None:
            distance = pixels if metres is None else metres
            kind = "clear" if switch.on else "blocked"
            if switch.update(distance < lane.min_distance, seconds, lane.debounce):
                events.append(Event(lane.name, kind, seconds, pixels=pixels, metres=metres))
        return Reading(lane.name, {}, ("blocked",) if switch.on else (), pixels, metres), events


def free_distance(
    lane: Lane, fitted: FittedArea, drivable: NDArray[numpy.bool_], looked_at: NDArray[numpy.bool_]
) -> tuple[int, float | None]:
    """Return how many rows of a lane are free from its lower end, and how far ahead the last of them ends in metres."""
    width = (fitted.mask & looked_at).sum(axis=1)
    # a row of a lane that narrows to a point may have no pixel, and one that a mask hides has none that counts
    free = (drivable & fitted.mask).sum(axis=1) >= lane.row_share * width
    rows = int(numpy.argmin(free[::-1])) if not free.all() else len(free)
    if fitted.homography is None:
        return rows, None
    edge = len(free) - rows
    columns = numpy.flatnonzero(fitted.mask[min(edge, len(free) - 1)])
    x = fitted.left + columns.mean() + 0.5 if len(columns) else fitted.outline[:, 0].mean()
    _, ahead, depth = fitted.homography @ (x, fitted.top + edge, 1.0)
    return rows, float(ahead / depth)


def event_to_json(event: Event, source: str, name: str, frame: int) -> dict[str, Any]:
    """Return an event with the frame that completed it, without what it does not have.

    Args:
        source: The name of the source.
        name: The name of the frame.
        frame: The number of the frame.
    """
    values = asdict(event)
    line = {
        "event": values.pop("kind"),
        "zone": values.pop("zone"),
        "class": values.pop("class_name"),
        "source": source,
        "name": name,
        "frame": frame,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    numbers = {key: round(value, 4) for key, value in values.items() if value is not None}
    return {key: value for key, value in line.items() if value is not None} | numbers


def reading_to_json(reading: Reading) -> dict[str, Any]:
    """Return what a frame has in a zone, without what it does not have."""
    shares = {name: round(share, 4) for name, share in reading.shares.items()}
    numbers = {"pixels": reading.pixels, "metres": reading.metres and round(reading.metres, 2)}
    line = {"zone": reading.zone, "active": [*reading.active], "shares": shares or None, **numbers}
    return {key: value for key, value in line.items() if value is not None}
