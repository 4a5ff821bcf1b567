"""The verb prelabel: from pictures to labels that people correct."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from streamseg.checks import PICTURE_SUFFIXES, check_count
from streamseg.cli.messages import check_figures, loading, open_messages, pick_progress, write_figures
from streamseg.cli.options import Device, Json, Quiet, check_weights, default_device, option, parse_size, pick_device
from streamseg.io.files import check_new_folder, folder_written_whole
from streamseg.models.bundled import DEFAULT

if TYPE_CHECKING:
    from streamseg.data.formats.prelabels import PrelabelledPicture
    from streamseg.engine.open import OpenedEngine

FORMATS = ("labelme", "coco", "cvat", "labelstudio")


def prelabel(
    *names: Annotated[str, option("SOURCE... OUT")],
    format: Annotated[str, option("NAME", choices=FORMATS)] = "labelme",
    weights: Annotated[Path | None, option("WEIGHTS", DEFAULT)] = None,
    size: Annotated[str, option("HEIGHTxWIDTH", "the picture's")] = "",
    min_area: Annotated[int, option("PIXELS")] = 64,
    tolerance: Annotated[float, option("PIXELS")] = 0.75,
    link: Annotated[bool, Parameter(negative=())] = False,
    device: Device = "",
    json: Json = None,
    quiet: Quiet = False,
) -> int:
    """Label pictures as polygons, to correct in an annotation tool.

    Args:
        names: Pictures, or folders of pictures; the last name is the folder to write.
        format: labelme, coco, cvat or labelstudio.
        weights: A checkpoint, an exported file, hf:USER/NAME, or a name that streamseg weights lists.
        size: The network input.
        min_area: Leave out regions of fewer pixels.
        tolerance: How far the polygons may be from the edges of the labels; more gives fewer points.
        link: Link to the pictures instead of copying them.
        device: cuda or cpu.
        json: A file for the figures: pictures, polygons, points; - for standard output.
        quiet: Print only warnings and errors.

    Examples:
        streamseg prelabel new drafts
        streamseg prelabel new drafts --format cvat --weights run/weights.safetensors
        streamseg prelabel a.jpg b.jpg drafts --tolerance 2 --min-area 200
    """
    if len(names) < 2:
        raise ValueError("prelabel needs pictures and a folder to write: streamseg prelabel PICTURES OUT.")
    out = Path(names[-1])
    check_new_folder(out)
    check_count("--min-area", min_area)
    if not 0 <= tolerance <= 100:
        raise ValueError(f"--tolerance is {tolerance}; expected pixels, 0 to 100.")
    check_weights(weights)
    check_figures(json)
    network_input = parse_size("--size", size)
    pictures = list_pictures(names[:-1])
    messages = open_messages(quiet, json)
    with loading(quiet):
        from streamseg.data.formats.files import place_picture
        from streamseg.data.formats.prelabels import WRITERS
        from streamseg.engine.open import open_engine

        opened = open_engine(weights, pick_device(device or default_device(weights)))
    folder, write = WRITERS[format]
    progress = pick_progress(quiet)
    labelled: list[PrelabelledPicture] = []
    with folder_written_whole(out) as temporary:
        (temporary / folder).mkdir(exist_ok=True)
        for picture in label_pictures(opened, pictures, network_input, min_area, tolerance):
            place_picture(pictures[len(labelled)], temporary / folder / picture.name, link=link)
            labelled.append(picture)
            progress(len(labelled), len(pictures))
        write(temporary, labelled, opened.classes)
    polygons = sum(len(picture.outlines) for picture in labelled)
    points = sum(len(ring) for picture in labelled for _, ring in picture.outlines)
    count = f"{len(pictures):,} picture{'s' * (len(pictures) != 1)}"
    print(f"{out}: {count} with {polygons:,} polygons of {points:,} points for {format}", file=messages)
    figures = {"out": str(out), "format": format, "pictures": len(pictures), "polygons": polygons, "points": points}
    write_figures(json, figures, messages)
    return 0


def list_pictures(names: Sequence[str]) -> list[Path]:
    """Return the pictures that are named, and those of the folders that are; an error if two have the same name."""
    found: list[Path] = []
    for path in map(Path, names):
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in PICTURE_SUFFIXES)
            if not inside:
                raise FileNotFoundError(f"No pictures in {path}; expected files with {' '.join(PICTURE_SUFFIXES)}.")
            found += inside
        elif not path.exists():
            raise FileNotFoundError(f"Nothing at {path}: give pictures, or folders of pictures, and a new folder.")
        elif path.suffix.lower() not in PICTURE_SUFFIXES:
            raise ValueError(f"{path} is no picture; expected one of {' '.join(PICTURE_SUFFIXES)}.")
        else:
            found.append(path)
    first_of: dict[str, Path] = {}
    for path in found:
        other = first_of.setdefault(path.stem.casefold(), path)
        if other is not path:
            raise ValueError(f"{other} and {path} have the same name: label them into two folders.")
    return found


def label_pictures(
    opened: "OpenedEngine", pictures: Sequence[Path], size: tuple[int, int] | None, min_area: int, tolerance: float
) -> Iterator["PrelabelledPicture"]:
    """Yield pictures with the outlines of what the network finds."""
    from streamseg.data.formats.prelabels import PrelabelledPicture, find_outlines
    from streamseg.io.images import read_image
    from streamseg.stream.label_frames import label_frame

    for path in pictures:
        labels, _ = label_frame(opened.engine, read_image(path), size=size)
        outlines = find_outlines(labels.cpu().numpy(), opened.classes, min_area=min_area, tolerance=tolerance)
        yield PrelabelledPicture(path.name, (labels.shape[0], labels.shape[1]), outlines)
