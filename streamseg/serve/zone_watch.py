"""Watch the zones of streams: of the sources that the server reads, and of WebSockets."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from streamseg.classes import Classes
from streamseg.regions.drawing import draw_zones
from streamseg.regions.events import Reading, ZoneMonitor, event_to_json, reading_to_json
from streamseg.regions.sinks import EventSink
from streamseg.regions.zones import Lane, Zone, read_zones

EVENTS_KEPT = 100
"""How many events of a stream can be asked for later."""

Areas = tuple[Zone | Lane, ...]
LOG = logging.getLogger("streamseg")


@dataclass(frozen=True)
class ServedZones:
    """The zones of streams, and where their events go."""

    areas: Mapping[str, Areas] = field(default_factory=dict)
    """By the name of a stream; those of the name "" are for all others."""
    sinks: Sequence[EventSink] = ()

    def find(self, name: str) -> Areas:
        """Return the zones of a stream."""
        return self.areas.get(name, self.areas.get("", ()))

    def check(self, classes: Classes) -> None:
        """Raise a ValueError if zones are of other classes than these."""
        for areas in self.areas.values():
            ZoneMonitor(areas, classes)

    def watch(self, name: str, classes: Classes, title: str = "") -> "ZoneWatch | None":
        """Return the watch of a stream's zones, or None if it has no zones; title is for a stream without a name."""
        return ZoneWatch(name or title, self.find(name), self.sinks, classes) if self.find(name) else None


def parse_zone_files(given: Sequence[str]) -> dict[str, Areas]:
    """Return the zones of files by the name of their stream, of texts such as FILE or NAME=FILE."""
    found: dict[str, Areas] = {}
    for text in given:
        named = re.fullmatch(r"([A-Za-z0-9_-]{1,64})=(.+)", text)
        name, path = named.groups() if named else ("", text)
        if name in found:
            whose = f"the stream {name}" if name else "all streams"
            raise ValueError(f"--zones has two files for {whose}: give one.")
        found[name] = tuple(read_zones(Path(path)))
    return found


class ZoneWatch:
    """Watches the zones of one stream; its state after the newest frame can be read from other threads."""

    def __init__(self, name: str, areas: Areas, sinks: Sequence[EventSink], classes: Classes):
        self.name, self.areas, self.sinks = name, areas, sinks
        self.monitor = ZoneMonitor(self.areas, classes)
        self.readings: list[Reading] = []
        self.events: tuple[dict[str, Any], ...] = ()
        """The newest events, the last one last."""
        self.count = 0
        """How many events there were."""
        self.problem = ""
        """Why the zones do not fit the newest frame."""

    def update(self, labels: Tensor, frame: int, seconds: float) -> list[dict[str, Any]]:
        """Examine the labels (H, W) of the next frame; return its events, which the sinks get too."""
        try:
            self.readings, events = self.monitor.update(labels, seconds)
        except ValueError as error:  # a frame of another size may fit
            if str(error) != self.problem:
                LOG.warning("%s: %s", self.name, error)
            self.readings, self.problem = [], str(error)
            return []
        lines = [event_to_json(event, self.name, self.name, frame) for event in events]
        self.problem, self.events = "", (*self.events, *lines)[-EVENTS_KEPT:]
        self.count += len(lines)
        for line in lines:
            self.send(line)
        return lines

    def send(self, line: dict[str, Any]) -> None:
        """Give an event to the sinks; one that fails does not end the stream."""
        for sink in self.sinks:
            try:
                sink(line)
            except OSError as error:
                LOG.warning("An event was lost: %s", error)

    def events_after(self, count: int) -> list[dict[str, Any]]:
        """Return the events after a number of them, as far as they are kept."""
        new = min(self.count - count, len(self.events))
        return [*self.events[len(self.events) - new :]]

    def draw(self, picture: Tensor) -> Tensor:
        """Draw the zones, with what the newest frame has in them, into a picture (3, H, W)."""
        return draw_zones(picture, self.areas, self.readings) if self.readings else picture

    def to_json(self) -> dict[str, Any]:
        """Return what the newest frame has in the zones, for the message about the frame."""
        readings = [reading_to_json(reading) for reading in self.readings]
        return {"zones": readings} | ({"problem": self.problem} if self.problem else {})
