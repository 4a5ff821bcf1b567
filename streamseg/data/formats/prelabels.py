"""Write labels as polygons in the formats of annotation tools, for people to correct.

None of the formats has polygons with holes. Each region is its outline, holes filled, and larger outlines come before
smaller ones, so that what is in a hole is over what is around it, in the tools and when the result is converted back.

Shapes: H height, W width, N points.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import numpy
from numpy.typing import NDArray

from streamseg.classes import Classes
from streamseg.data.formats.shapes import ring_area
from streamseg.regions.polygons import Points, region_polygons
from streamseg.regions.regions import find_regions


@dataclass(frozen=True, eq=False)
class PrelabelledPicture:
    """A picture with the outlines of its regions."""

    name: str
    """The name of its file."""
    size: tuple[int, int]
    """Height and width."""
    outlines: Sequence[tuple[str, Points]]
    """The class of each region and its outline (N, 2), x and y, larger ones first."""


def find_outlines(
    labels: NDArray[numpy.uint8], classes: Classes, *, min_area: int, tolerance: float
) -> list[tuple[str, Points]]:
    """Return the class and the outline of each region of labels (H, W), larger ones first.

    Args:
        labels: The labels.
        classes: Their classes.
        min_area: Regions of fewer pixels are left out.
        tolerance: How far, in pixels, an outline may be from the edges of the region's pixels.
    """
    regions = find_regions(labels, classes, min_area=min_area)
    polygons = region_polygons(regions, tolerance)
    outlines = [(region.name, rings[0]) for region, rings in zip(regions, polygons, strict=True)]
    return sorted(outlines, key=lambda outline: -ring_area(outline[1]))


def write_labelme(folder: Path, pictures: Iterable[PrelabelledPicture], classes: Classes) -> None:
    """Write a JSON file for each picture, beside it, and the classes in order as labels.txt."""
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in classes.names), encoding="utf-8")
    for picture in pictures:
        height, width = picture.size
        shapes: list[dict[str, Any]] = [
            {"label": name, "points": rounded(ring), "group_id": None, "shape_type": "polygon", "flags": {}}
            for name, ring in picture.outlines
        ]
        content: dict[str, Any] = {
            "version": "5.0.0",
            "flags": {},
            "shapes": shapes,
            "imagePath": picture.name,
            "imageData": None,
        }
        write_json(folder / f"{Path(picture.name).stem}.json", content | {"imageHeight": height, "imageWidth": width})


def write_coco(folder: Path, pictures: Iterable[PrelabelledPicture], classes: Classes) -> None:
    """Write annotations/instances_default.json for the pictures in images/."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    number_of = {name: number for number, name in enumerate(classes.names, start=1)}
    for image_id, picture in enumerate(pictures, start=1):
        height, width = picture.size
        images.append({"id": image_id, "file_name": picture.name, "height": height, "width": width})
        for name, ring in picture.outlines:
            (left, top), (right, bottom) = ring.min(axis=0).tolist(), ring.max(axis=0).tolist()
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": number_of[name],
                    "segmentation": [[part for point in rounded(ring) for part in point]],
                    "area": ring_area(ring),
                    "bbox": [left, top, right - left, bottom - top],
                    "iscrowd": 0,
                }
            )
    categories = [{"id": number, "name": name, "supercategory": ""} for name, number in number_of.items()]
    content = {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": categories}
    write_json(folder / "annotations/instances_default.json", content)


def write_cvat(folder: Path, pictures: Iterable[PrelabelledPicture], classes: Classes) -> None:
    """Write annotations.xml of "CVAT for images 1.1" for the pictures in images/."""
    labels = "".join(
        f"<label><name>{escape(name)}</name><color>#{bytes(colour).hex()}</color><attributes/></label>"
        for name, colour in zip(classes.names, classes.colours, strict=True)
    )
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<annotations>", "<version>1.1</version>"]
    lines.append(f"<meta><job><labels>{labels}</labels></job></meta>")
    for number, picture in enumerate(pictures):
        height, width = picture.size
        lines.append(f'<image id="{number}" name={quoteattr(picture.name)} width="{width}" height="{height}">')
        for order, (name, ring) in enumerate(picture.outlines):
            points = ";".join(f"{x:.2f},{y:.2f}" for x, y in ring.tolist())
            lines.append(
                f'<polygon label={quoteattr(name)} source="auto" occluded="0" points="{points}" z_order="{order}"/>'
            )
        lines.append("</image>")
    (folder / "annotations.xml").write_text("\n".join([*lines, "</annotations>"]) + "\n", encoding="utf-8")


def write_labelstudio(folder: Path, pictures: Iterable[PrelabelledPicture], classes: Classes) -> None:
    """Write tasks.json with predictions to import, and the labelling interface for them, config.xml."""
    tasks = []
    for picture in pictures:
        height, width = picture.size
        same = {"type": "polygonlabels", "from_name": "label", "to_name": "image", "image_rotation": 0}
        result = [
            {
                **same,
                "original_width": width,
                "original_height": height,
                "value": {
                    "points": numpy.round(ring * (100 / width, 100 / height), 4).tolist(),
                    "polygonlabels": [name],
                    "closed": True,
                },
            }
            for name, ring in picture.outlines
        ]
        address = f"/data/local-files/?d=images/{quote(picture.name)}"
        tasks.append({"data": {"image": address}, "predictions": [{"model_version": "streamseg", "result": result}]})
    write_json(folder / "tasks.json", tasks)
    labels = "".join(
        f'    <Label value={quoteattr(name)} background="#{bytes(colour).hex()}"/>\n'
        for name, colour in zip(classes.names, classes.colours, strict=True)
    )
    (folder / "config.xml").write_text(
        '<View>\n  <Image name="image" value="$image"/>\n  <PolygonLabels name="label" toName="image">\n'
        f"{labels}  </PolygonLabels>\n</View>\n",
        encoding="utf-8",
    )


WRITERS: dict[str, tuple[str, Callable[[Path, Iterable[PrelabelledPicture], Classes], None]]] = {
    "labelme": ("", write_labelme),
    "coco": ("images", write_coco),
    "cvat": ("images", write_cvat),
    "labelstudio": ("images", write_labelstudio),
}
"""For each format, the folder of the pictures and the function that writes the rest."""


def rounded(ring: Points) -> list[list[float]]:
    """Return points as lists, with two decimals."""
    return [[round(x, 2), round(y, 2)] for x, y in ring.tolist()]


def write_json(path: Path, content: object) -> None:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
