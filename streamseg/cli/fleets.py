"""The cameras of a fleet file as a plan of segment, and as sources of serve."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamseg.cli.masks import BONNET, check_mask_file, find_masks, read_mask_option
from streamseg.cli.options import parse_size
from streamseg.cli.regions import RegionOptions
from streamseg.cli.segmenting import SegmentOptions, SegmentPlan, check_text_outputs
from streamseg.io.fleet import OUTPUTS, Camera, read_fleet
from streamseg.io.outputs import FOLDER, LiveOutput, Output, plan_outputs
from streamseg.io.sources import play
from streamseg.io.web import redact

if TYPE_CHECKING:
    from streamseg.serve import ServedModel
    from streamseg.stream.settings import DrawStyle, LabelSettings, SourceSettings


def check_fleet_options(names: Sequence[str], options: SegmentOptions) -> None:
    """Raise a ValueError if options do not go together with a fleet file."""
    if names:
        raise ValueError(f"--fleet names the sources: leave out {' '.join(names)!r:.80}, and give OUT with -o.")
    if options.out == "-":
        raise ValueError("A fleet is written to files: give a folder with -o, or out = in the fleet file.")
    if options.tile:
        raise ValueError("--tile processes single pictures: leave it out with --fleet.")


def plan_fleet(path: Path, options: SegmentOptions, region_options: RegionOptions) -> SegmentPlan:
    """Plan the sources and files of a fleet; raise an error if they cannot be read or written."""
    cameras, missing = read_fleet(path)
    if not cameras:
        raise missing[0]
    outputs: list[Output] = []
    for camera in cameras:
        place = f"{path}, camera {camera.name!r}"
        check_camera(place, camera)
        if camera.out == "-":
            raise ValueError(f"{place}: out is '-', which takes one source only; expected a file or a folder.")
        wanted = {name: camera.outputs.get(name, getattr(options, name)) for name in OUTPUTS}
        if not (any(wanted.values()) or options.json or options.show or region_options.results):
            raise ValueError(f"{place}: there is nothing to write without an overlay: add labels, colours or --json.")
        out = camera.out or options.out or FOLDER
        try:
            outputs.extend(plan_outputs([camera.source], out, **wanted))
        except (OSError, ValueError) as error:
            raise type(error)(f"{place}: {error}") from None
    check_apart(path, cameras, outputs)
    check_text_outputs(options, region_options, [camera.source for camera in cameras], outputs)
    sources = [
        play(camera.source) if isinstance(output, LiveOutput) else camera.source
        for camera, output in zip(cameras, outputs, strict=True)
    ]
    return SegmentPlan(sources, outputs, list(missing), raw=False, cameras=cameras)


def check_camera(place: str, camera: Camera) -> None:
    """Raise an error if the size of a camera is none, or if there is no mask where it has one."""
    parse_size(f"{place}: size", camera.size)
    try:
        check_mask_file(camera.mask)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{place}: {error}") from None


def read_served_fleet(path: Path) -> list[Camera]:
    """Return the cameras of a fleet as sources of serve; raise an error if one cannot be that."""
    from streamseg.serve.sources import NAME

    cameras, missing = read_fleet(path)
    if missing:
        raise missing[0]
    for camera in cameras:
        place = f"{path}, camera {camera.name!r}"
        check_camera(place, camera)
        if not NAME.fullmatch(camera.name):
            raise ValueError(f"{place}: serve has the name in its addresses; expected letters, digits, _ and -.")
    return cameras


def check_apart(path: Path, cameras: Sequence[Camera], outputs: Sequence[Output]) -> None:
    """Raise a ValueError if a file is written for two cameras, or is one that is read."""
    taken = Counter(file.resolve() for files in outputs for file in files.paths)
    taken.update(file.resolve() for camera in cameras for file in camera.source.paths)
    addresses = Counter(output.address for output in outputs if isinstance(output, LiveOutput))
    for camera, files in zip(cameras, outputs, strict=True):
        if isinstance(files, LiveOutput) and addresses[files.address] > 1:
            raise ValueError(
                f"{path}, camera {camera.name!r}: {redact(files.address)} belongs to another camera too: give each its "
                "own out, or put {name} into the address."
            )
        for file in files.paths:
            if taken[file.resolve()] > 1:
                raise ValueError(
                    f"{path}, camera {camera.name!r}: {file} belongs to another camera too: give each its own out, or "
                    "a folder."
                )


def own_settings(
    plan: SegmentPlan, mask: str, settings: "LabelSettings", style: "DrawStyle", say: Callable[[str], None]
) -> "dict[str, SourceSettings]":
    """Return the settings of each camera of a fleet, and of each source if it has a mask of its own, by name.

    Args:
        mask: The option --mask.
        say: Receives a sentence about each mask that is found.
    """
    from streamseg.stream.settings import SourceSettings

    given = {source.name: mask for source in plan.sources} | {
        camera.name: camera.mask for camera in plan.cameras if camera.mask
    }
    own = fleet_settings(plan.cameras, settings, style)
    if {*given.values()} - {mask} or mask == BONNET:
        for name, found in find_masks(given, plan.sources, settings, say).items():
            own[name] = replace(own.get(name) or SourceSettings(settings.size, style), mask=found)
    return own


def served_settings(cameras: Sequence[Camera], model: "ServedModel") -> "dict[str, SourceSettings]":
    """Return the settings of each camera of a fleet as a source of serve, by name; the own car is found later."""
    from streamseg.serve.sources import served_style
    from streamseg.stream.bonnet import own_car_label
    from streamseg.stream.settings import LabelSettings
    from streamseg.stream.state import LastFrames

    settings = LabelSettings(model.engine, model.classes, LastFrames(model.window), mask=model.mask)
    own = fleet_settings(cameras, settings, served_style(model))
    for camera in cameras:
        if camera.mask == BONNET:
            own_car_label(model.classes)  # an error now rather than with the first frames
        if camera.mask:
            own[camera.name] = replace(own[camera.name], mask=read_mask_option(camera.mask))
    return own


def fleet_settings(
    cameras: Sequence[Camera], settings: "LabelSettings", style: "DrawStyle"
) -> "dict[str, SourceSettings]":
    """Return the settings of each camera of a fleet, by name, with the mask of all."""
    from streamseg.engine.runtime import ExportedEngine
    from streamseg.stream.settings import SourceSettings

    exported = settings.model if isinstance(settings.model, ExportedEngine) else None
    fixed = exported and exported.manifest.size
    own = {}
    for camera in cameras:
        size = parse_size("size", camera.size)
        if fixed and size not in (None, fixed):
            raise ValueError(
                f"The weights take only frames of {fixed[0]} x {fixed[1]}: leave out the size of {camera.name!r}."
            )
        if exported and camera.mask:
            raise ValueError(f"The weights are an exported file: leave out the mask of {camera.name!r}.")
        try:
            only = tuple(settings.classes.find(name) for name in camera.classes)
        except ValueError as error:
            raise ValueError(f"Camera {camera.name!r}: {error}") from None
        drawn = replace(style, only=only) if only else style
        own[camera.name] = SourceSettings(size or settings.size, drawn, settings.mask)
    return own
