"""Regions, zones and events of the frames of a source, on their way through the pipeline."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from streamseg.classes import Classes
from streamseg.io.sources import Capture, Source
from streamseg.regions.defaults import MIN_AREA
from streamseg.regions.drawing import draw_zones
from streamseg.regions.events import Reading, ZoneMonitor, event_to_json
from streamseg.regions.regions import find_regions
from streamseg.regions.sinks import EventSink
from streamseg.regions.tracking import RegionTracker
from streamseg.regions.writing import FrameRegions
from streamseg.regions.zones import Lane, Zone


@dataclass(frozen=True)
class RegionSettings:
    """What a run does with regions and zones; its sources share it."""

    classes: Classes
    write_regions: Callable[[FrameRegions], None] | None = None
    """Receives the regions of each frame, of several sources at once."""
    min_area: int = MIN_AREA
    """Smaller regions are left out."""
    only: tuple[str, ...] = ()
    """The classes whose regions are wanted; all if empty."""
    areas: tuple[Zone | Lane, ...] = ()
    """The zones and lanes to watch and to draw."""
    sinks: tuple[EventSink, ...] = ()
    """Receive the events."""


class RegionOutputs:
    """Finds and writes the regions and events of one source, frame by frame, and draws its zones."""

    def __init__(self, settings: RegionSettings, source: Source):
        self.settings, self.source = settings, source
        self.tracker = RegionTracker()
        # single pictures are independent: each begins anew, and a class that is there has entered
        self.areas = settings.areas if source.moving else tuple(replace(area, debounce=0.0) for area in settings.areas)
        self.monitor = ZoneMonitor(self.areas, settings.classes)
        self.readings: list[Reading] = []

    def examine(self, capture: Capture, labels: Tensor) -> None:
        """Write the regions of a frame, whose labels are (H, W), and send its events."""
        settings = self.settings
        if settings.write_regions:
            regions = find_regions(labels, settings.classes, min_area=settings.min_area, only=settings.only)
            if self.source.moving:
                regions = self.tracker.update(regions)
            height, width = labels.shape
            frame = FrameRegions(
                self.source.name, capture.name, capture.index, capture.seconds, (height, width), regions
            )
            settings.write_regions(frame)
        if self.areas:
            if not self.source.moving:
                self.monitor = ZoneMonitor(self.areas, settings.classes)
            self.readings, events = self.monitor.update(labels, capture.seconds)
            for event in events:
                line = event_to_json(event, self.source.name, capture.name, capture.index)
                for send in settings.sinks:
                    send(line)

    def draw(self, picture: Tensor) -> Tensor:
        """Draw the zones, with what the frame has in them, into a picture (3, H, W)."""
        return draw_zones(picture, self.areas, self.readings) if self.readings else picture
