"""The options of segment for regions, zones and events, and the files and addresses that they name."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from streamseg.checks import check_count
from streamseg.cli.messages import STANDARD_OUTPUT
from streamseg.cli.options import option
from streamseg.cli.records import TextOpener, open_text
from streamseg.io.files import check_writable
from streamseg.regions.defaults import MIN_AREA, SUFFIXES

if TYPE_CHECKING:
    from streamseg.classes import Classes
    from streamseg.stream.region_outputs import RegionSettings


@dataclass(frozen=True, kw_only=True)
class RegionOptions:
    """The options of segment for regions, zones and events."""

    regions: Annotated[Path | None, option("FILE", "none")] = None
    """A file for the connected regions of each frame: class, area, box, centroid, polygon, and in videos an id that
    lasts. NAME.coco.json is COCO, NAME.geojson has polygons like GeoJSON, any other name and - are JSON lines."""
    regions_format: Annotated[str, option(default="by the name of the file", choices=tuple(SUFFIXES))] = ""
    """The format of the file of regions."""
    regions_classes: Annotated[str, option("NAME,...", "all")] = ""
    """Find regions of these classes only, such as Car,Pedestrian."""
    min_area: Annotated[int, option("PIXELS")] = MIN_AREA
    """Leave out regions of fewer pixels."""
    zones: Annotated[Path | None, option("FILE", "none")] = None
    """A TOML or JSON file of zones and lanes to watch; they are drawn on the overlay (docs/regions.md)."""
    events: Annotated[str, option("TARGET,...", "none")] = ""
    """Where the events of the zones go, as JSON: a file, to which they are added; an http or https address, to which
    each is posted; a ws or mqtt address (docs/live.md); - for standard output."""

    @property
    def targets(self) -> list[str]:
        """Where events go."""
        return [target.strip() for target in self.events.split(",") if target.strip()]

    @property
    def results(self) -> list[str]:
        """Where something is written."""
        return [*([str(self.regions)] if self.regions else []), *self.targets]


NO_REGIONS = RegionOptions()


def check_region_options(options: RegionOptions, used: Sequence[Path]) -> None:
    """Raise an error if options are wrong, or a file cannot be written or is in use. It imports no torch.

    Args:
        used: Files that are read, or written by other options.
    """
    from streamseg.regions.sinks import check_target
    from streamseg.regions.writing import holds_regions, pick_format
    from streamseg.regions.zones import read_zones

    check_count("--min-area", options.min_area)
    if not options.regions:
        for name, given in (
            ("--regions-format", options.regions_format),
            ("--regions-classes", options.regions_classes),
            ("--min-area", options.min_area != MIN_AREA),
        ):
            if given:
                raise ValueError(f"{name} is about the regions of --regions: give a file for them, or leave it out.")
    if options.events and not options.zones:
        raise ValueError("--events reports what happens in zones: give a file of them with --zones.")
    if options.zones:
        read_zones(options.zones)
    files = [Path(name) for name in options.results if name != "-" and "://" not in name]
    for target in options.targets:
        check_target(target)
    if options.regions:
        form = pick_format(options.regions, options.regions_format)
        if options.regions == STANDARD_OUTPUT and form != "lines":
            raise ValueError(f"Standard output takes regions as JSON lines only: give a file for the format {form}.")
        if options.regions != STANDARD_OUTPUT:
            check_writable(options.regions)
            if options.regions.exists() and not holds_regions(options.regions):
                raise ValueError(
                    f"{options.regions} exists and was not written by streamseg: give another name for --regions."
                )
    resolved = [path.resolve() for path in files]
    for path in resolved:
        if path in {other.resolve() for other in used} or resolved.count(path) > 1:
            raise ValueError(f"{path.name} is an input or output already: give another name for --regions or --events.")


@contextmanager
def open_region_outputs(
    options: RegionOptions, classes: "Classes", problems: list[str], open_file: TextOpener
) -> Iterator["RegionSettings | None"]:
    """Open what the regions and events of a run are written to; None without these options.

    Args:
        problems: Receives a sentence if events could not be sent.
        open_file: Opens a file for JSON lines. Other formats are of no use before their end.
    """
    if not (options.regions or options.zones):
        yield None
        return
    from streamseg.regions.events import ZoneMonitor
    from streamseg.regions.sinks import open_sink
    from streamseg.regions.writing import pick_format, region_writer
    from streamseg.regions.zones import read_zones
    from streamseg.stream.region_outputs import RegionSettings

    only = tuple(name for name in options.regions_classes.split(",") if name.strip())
    for name in only:
        classes.find(name)
    areas = tuple(read_zones(options.zones)) if options.zones else ()
    ZoneMonitor(areas, classes)  # refuses unknown classes before a file is opened
    with ExitStack() as stack:
        output = stack.enter_context(open_file(STANDARD_OUTPUT)) if "-" in options.targets else sys.stdout
        sinks = tuple(stack.enter_context(open_sink(target, output, problems.append)) for target in options.targets)
        write = None
        if options.regions:
            form = pick_format(options.regions, options.regions_format)
            opener: TextOpener = open_file if form == "lines" else open_text
            file = stack.enter_context(opener(options.regions))
            write = stack.enter_context(region_writer(file, form, classes))
        yield RegionSettings(classes, write, options.min_area, only, areas, sinks)
