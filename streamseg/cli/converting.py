"""The verb convert: from an annotation tool to a data set."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from streamseg.cli.messages import check_figures, loading, open_messages, pick_progress, print_error, write_figures
from streamseg.cli.options import Json, Quiet, option

FORMATS = ("cvat", "labelstudio", "labelme", "coco", "coco-panoptic", "yolo", "supervisely")


def convert(
    source: Annotated[Path, option("SOURCE")],
    out: Annotated[Path, option("OUT")],
    /,
    *,
    format: Annotated[str, option("NAME", "found by its files", FORMATS)] = "",
    classes: Annotated[str, option("NAME,NAME", "all")] = "",
    background: Annotated[str, option("NAME", "none: they are ignored")] = "",
    images: Annotated[Path | None, option("DIR", "in SOURCE")] = None,
    link: Annotated[bool, Parameter(negative=())] = False,
    json: Json = None,
    quiet: Quiet = False,
) -> int:
    """Convert the export of an annotation tool to a data set.

    Args:
        source: The folder of an export of CVAT, Label Studio, Labelme, COCO, YOLO or Supervisely, or its only file.
        out: The folder to write: images/, labels/ and classes.txt, which check folder and train folder-18 read.
        format: cvat, labelstudio, labelme, coco, coco-panoptic, yolo or supervisely.
        classes: The classes to keep, in order; pixels of others count as unlabelled.
        background: The class of pixels that no object covers.
        images: The folder of the pictures, if they are not in the export.
        link: Link to the pictures instead of copying them.
        json: A file for the figures: format, classes, pictures, what was left out; - for standard output.
        quiet: Print only warnings and errors.

    Examples:
        streamseg convert cvat-export mine
        streamseg convert project.json mine --images pictures
        streamseg convert coco mine --classes road,car --background other
    """
    check_figures(json)
    messages = open_messages(quiet, json)
    with loading(quiet):
        from streamseg.data.formats import convert as conversion
    kept = [name.strip() for name in classes.split(",") if name.strip()]
    done = conversion.convert(
        source,
        out,
        format=format,
        classes=kept,
        background=background.strip(),
        images=images,
        link=link,
        progress=pick_progress(quiet),
    )
    if done.other_classes:
        print_error(f"Pixels of other classes count as unlabelled: {', '.join(done.other_classes)}.")
    if done.other_kinds:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in done.other_kinds.items())
        print_error(f"Objects without an area were left out: {kinds}.")
    if done.empty:
        were = "picture without objects was" if done.empty == 1 else "pictures without objects were"
        print_error(f"{done.empty:,} {were} left out; --background NAME keeps such pictures.")
    counts = " and ".join(f"{count:,} {split}" for split, count in done.pictures.items()).replace(" all", "")
    total = sum(done.pictures.values())
    print(f"{out}: {counts} picture{'s' * (total != 1)} of {done.format}", file=messages)
    print(f"classes: {', '.join(done.classes.names)}", file=messages)
    figures = {
        "out": str(out),
        "format": done.format,
        "classes": done.classes.names,
        "pictures": done.pictures,
        "without_objects": done.empty,
        "left_out": done.other_kinds,
        "other_classes": done.other_classes,
    }
    write_figures(json, figures, messages)
    return 0
