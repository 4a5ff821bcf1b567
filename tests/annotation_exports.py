"""Miniature exports of annotation tools in their real layouts, written from known labels.

Each function writes labels (H, W) of the classes NAMES, 255 = unlabelled, for each name of a picture.
"""

import base64
import io
import json
import zlib
from functools import partial
from itertools import pairwise

import numpy
from PIL import Image

from streamseg.classes import Classes
from streamseg.regions.coco import encode_rle
from streamseg.regions.polygons import region_polygons
from streamseg.regions.regions import find_regions

NAMES = ("road", "car", "tree")
COLOURS = ((128, 64, 128), (0, 0, 142), (107, 142, 35))
CLASSES = Classes(NAMES, COLOURS)
SIZE = (48, 64)


def make_labels(seed=0, size=SIZE):
    """A large road with a hole, a car on it with a window that shows a tree, and unlabelled pixels."""
    height, width = size
    labels = numpy.full(size, 255, numpy.uint8)
    labels[height // 4 :, : width - 6] = 0
    labels[height // 2 : height // 2 + 12, 8 + seed : 30 + seed] = 1
    labels[height // 2 + 3 : height // 2 + 7, 12 + seed : 18 + seed] = 2
    labels[height - 8 : height - 4, 40:46] = 255
    y, x = numpy.ogrid[:height, :width]
    labels[(y - 12) ** 2 + (x - width + 14) ** 2 < 64] = 2
    return labels


def save_picture(path, labels, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = numpy.random.default_rng(seed).integers(0, 255, (*labels.shape, 3), dtype=numpy.uint8)
    Image.fromarray(noise).save(path)


def save_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def polygons_of(labels):
    """The class and the rings of each region, along the edges of its pixels."""
    regions = find_regions(labels, CLASSES, min_area=1)
    return [
        (region.name, [ring.tolist() for ring in rings])
        for region, rings in zip(regions, region_polygons(regions, 0), strict=True)
    ]


def filled(labels):
    """The class and outline of each region, larger first, and of each unlabelled hole; for tools without holes."""
    both = Classes((*NAMES, "nothing"), (*COLOURS, (1, 1, 1)))
    regions = find_regions(numpy.where(labels == 255, 3, labels).astype(numpy.uint8), both, min_area=1)
    outlines = [rings[0] for rings in region_polygons(regions, 0)]
    whole = [(region.name, outline) for region, outline in zip(regions, outlines, strict=True)]
    return sorted(whole, key=lambda pair: -box_area(pair[1]))


def box_area(ring):
    return numpy.prod(ring.max(axis=0) - ring.min(axis=0))


def png(mask, **options):
    file = io.BytesIO()
    Image.fromarray(mask.astype(numpy.uint8) * 255).convert("1").save(file, "PNG", **options)
    return file.getvalue()


def crop(mask):
    """The box around a mask: left, top, and its pixels."""
    rows, columns = numpy.flatnonzero(mask.any(1)), numpy.flatnonzero(mask.any(0))
    return columns[0], rows[0], mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def masks_of(labels):
    return [(name, labels == number) for number, name in enumerate(NAMES) if (labels == number).any()]


def write_cvat_masks(folder, pictures):
    lines = ["# label:color_rgb:parts:actions", "background:0,0,0::"]
    lines += [f"{name}:{','.join(map(str, colour))}::" for name, colour in zip(NAMES, COLOURS, strict=True)]
    (folder / "ImageSets/Segmentation").mkdir(parents=True)
    (folder / "ImageSets/Segmentation/default.txt").write_text("".join(f"{name}\n" for name in pictures))
    (folder / "labelmap.txt").write_text("\n".join(lines) + "\n")
    (folder / "SegmentationClass").mkdir()
    for i, (name, labels) in enumerate(pictures.items()):
        save_picture(folder / f"JPEGImages/{name}.png", labels, i)
        table = numpy.zeros((256, 3), numpy.uint8)
        table[: len(NAMES)] = COLOURS
        Image.fromarray(table[labels]).save(folder / f"SegmentationClass/{name}.png")


def write_cvat_xml(folder, pictures, polygons=False):
    labels = "".join(
        f"<label><name>{name}</name><color>#{bytes(colour).hex()}</color><type>any</type><attributes/></label>"
        for name, colour in zip(NAMES, COLOURS, strict=True)
    )
    images = ""
    for i, (name, array) in enumerate(pictures.items()):
        save_picture(folder / f"images/{name}.png", array, i)
        height, width = array.shape
        shapes = "".join(cvat_polygons(array) if polygons else cvat_masks(array))
        images += f'<image id="{i}" name="{name}.png" width="{width}" height="{height}">{shapes}</image>'
    (folder / "annotations.xml").write_text(
        '<?xml version="1.0" encoding="utf-8"?>\n<annotations><version>1.1</version><meta><job><id>1</id><labels>'
        f"{labels}</labels></job></meta>{images}</annotations>\n"
    )


def cvat_masks(labels):
    for name, mask in masks_of(labels):
        left, top, pixels = crop(mask)
        flat = numpy.concatenate([[False], pixels.reshape(-1)])
        counts = numpy.diff(numpy.flatnonzero(flat[1:] != flat[:-1]), prepend=0, append=pixels.size)
        rle = ", ".join(map(str, counts))
        height, width = pixels.shape
        yield (
            f'<mask label="{name}" source="semi-auto" occluded="0" rle="{rle}" left="{left}" top="{top}" '
            f'width="{width}" height="{height}" z_order="0"></mask>'
        )


def cvat_polygons(labels):
    """From the last to the first in the file: z_order is what counts."""
    for z, (name, ring) in reversed([*enumerate(pair for pair in filled(labels) if pair[0] != "nothing")]):
        points = ";".join(f"{x:.2f},{y:.2f}" for x, y in ring)
        yield f'<polygon label="{name}" source="manual" occluded="0" points="{points}" z_order="{z}"></polygon>'


def pack_brush(mask):
    """Label Studio's encoding of a brush region, with runs and single values."""
    values = numpy.repeat(mask.reshape(-1), 4).astype(int) * 255
    bits = [f"{len(values):032b}", f"{7:05b}", *(f"{size - 1:04b}" for size in (3, 4, 8, 16))]
    edges = [0, *(numpy.flatnonzero(numpy.diff(values)) + 1).tolist(), len(values)]
    for start, end in pairwise(edges):
        bits += ["0", "00", f"{0:03b}", f"{values[start]:08b}"]
        for begin in range(start + 1, end, 2**16):
            bits += ["1", "11", f"{min(end, begin + 2**16) - begin - 1:016b}", f"{values[start]:08b}"]
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return [int(text[i : i + 8], 2) for i in range(0, len(text), 8)]


def write_labelstudio(folder, pictures, polygons=False):
    tasks = []
    for i, (name, labels) in enumerate(pictures.items()):
        save_picture(folder / f"pictures/{name}.png", labels, i)
        height, width = labels.shape
        same = {"original_width": width, "original_height": height, "image_rotation": 0, "from_name": "tag"}
        result = [
            {**same, "type": "brushlabels", "value": {"format": "rle", "rle": pack_brush(mask), "brushlabels": [kind]}}
            for kind, mask in masks_of(labels)
        ]
        if polygons:
            result = [
                {
                    **same,
                    "type": "polygonlabels",
                    "value": {"points": (ring * (100 / width, 100 / height)).tolist(), "polygonlabels": [kind]},
                }
                for kind, ring in filled(labels)
                if kind != "nothing"
            ]
        annotations = [
            {"id": 7, "result": [], "was_cancelled": True},
            {"id": 8, "result": result, "ground_truth": False},
        ]
        data = {"image": f"/data/upload/3/0a1b2c3d-{name}.png"}
        tasks.append(
            {"id": i + 1, "annotations": annotations[::-1], "data": data, "file_upload": f"0a1b2c3d-{name}.png"}
        )
    save_json(folder / "project-1-at-2026-01-01.json", tasks)


def write_labelme(folder, pictures, polygons=False):
    for i, (name, labels) in enumerate(pictures.items()):
        save_picture(folder / f"{name}.png", labels, i)
        shapes = []
        for kind, mask in masks_of(labels):
            left, top, pixels = crop(mask)
            corners = [[float(left), float(top)], [left + pixels.shape[1] - 1.0, top + pixels.shape[0] - 1.0]]
            shapes.append(
                {"label": kind, "points": corners, "shape_type": "mask", "mask": base64.b64encode(png(pixels)).decode()}
            )
        if polygons:
            shapes = [
                {"label": kind if kind != "nothing" else "__ignore__", "points": ring.tolist(), "shape_type": "polygon"}
                for kind, ring in filled(labels)
            ]
        for shape in shapes:
            shape |= {"group_id": None, "description": "", "flags": {}}
        height, width = labels.shape
        content = {"version": "5.4.1", "flags": {}, "shapes": shapes, "imagePath": f"{name}.png", "imageData": None}
        save_json(folder / f"{name}.json", content | {"imageHeight": height, "imageWidth": width})


def coco_lists(pictures, annotations):
    images = [
        {"id": i + 1, "file_name": f"{name}.png", "height": labels.shape[0], "width": labels.shape[1]}
        for i, (name, labels) in enumerate(pictures.items())
    ]
    # ids have gaps and are not in order, as COCO's
    categories = [{"id": 3 * i + 1, "name": name, "supercategory": ""} for i, name in enumerate(NAMES)]
    return {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": categories[::-1]}


def write_coco(folder, pictures, polygons=False):
    annotations = []
    for i, (name, labels) in enumerate(pictures.items()):
        save_picture(folder / f"images/{name}.png", labels, i)
        segments = []
        for kind, mask in masks_of(labels):
            packed = encode_rle(mask)
            flat = numpy.concatenate([[False], mask.T.reshape(-1)])
            counts = numpy.diff(numpy.flatnonzero(flat[1:] != flat[:-1]), prepend=0, append=mask.size)
            segments.append((kind, packed if i % 2 else {**packed, "counts": counts.tolist()}, 1))
        if polygons:
            segments = [(kind, [ring.reshape(-1).tolist()], 0) for kind, ring in filled(labels) if kind != "nothing"]
        for kind, segmentation, crowd in segments:
            number = len(annotations) + 1
            annotations.insert(
                0,
                {
                    "id": number,
                    "image_id": i + 1,
                    "category_id": 3 * NAMES.index(kind) + 1,
                    "segmentation": segmentation,
                    "iscrowd": crowd,
                    "bbox": [0, 0, 1, 1],
                    "area": 1,
                },
            )
    save_json(folder / "annotations/instances_default.json", coco_lists(pictures, annotations))


def write_coco_panoptic(folder, pictures):
    annotations = []
    for i, (name, labels) in enumerate(pictures.items()):
        save_picture(folder / f"images/{name}.png", labels, i)
        ids, segments = numpy.zeros(labels.shape, numpy.int64), []
        for kind, mask in masks_of(labels):
            number = 70000 * (NAMES.index(kind) + 1) + 300 + i
            ids[mask] = number
            segments.append({"id": number, "category_id": 3 * NAMES.index(kind) + 1, "iscrowd": 0, "area": 1})
        colours = numpy.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=2).astype(numpy.uint8)
        (folder / "annotations/panoptic_default").mkdir(parents=True, exist_ok=True)
        Image.fromarray(colours).save(folder / f"annotations/panoptic_default/{name}.png")
        annotations.append({"image_id": i + 1, "file_name": f"{name}.png", "segments_info": segments})
    save_json(folder / "annotations/panoptic_default.json", coco_lists(pictures, annotations))


def write_yolo(folder, pictures, split="train"):
    (folder / f"labels/{split}").mkdir(parents=True)
    for i, (name, labels) in enumerate(pictures.items()):
        save_picture(folder / f"images/{split}/{name}.png", labels, i)
        height, width = labels.shape
        lines = []
        for kind, ring in filled(labels):
            if kind != "nothing":
                points = " ".join(f"{x / width:.6f} {y / height:.6f}" for x, y in ring)
                lines.append(f"{NAMES.index(kind)} {points}\n")
        (folder / f"labels/{split}/{name}.txt").write_text("".join(lines[::-1]))
    names = "".join(f"  {i}: {name}\n" for i, name in enumerate(NAMES))
    (folder / "data.yaml").write_text(
        f"# a comment\npath: ../datasets/mini\ntrain: images/train  # beside it\nval: images/val\nnames:\n{names}"
    )


def write_supervisely(folder, pictures, polygons=False):
    classes = [
        {"title": name, "shape": "any", "color": f"#{bytes(colour).hex().upper()}", "geometry_config": {}}
        for name, colour in zip(NAMES, COLOURS, strict=True)
    ]
    save_json(folder / "meta.json", {"classes": classes, "tags": [], "projectType": "images"})
    for i, (name, labels) in enumerate(pictures.items()):
        save_picture(folder / f"ds0/img/{name}.png", labels, i)
        objects = []
        for kind, mask in masks_of(labels):
            left, top, pixels = crop(mask)
            data = base64.b64encode(zlib.compress(png(pixels, transparency=0))).decode()
            bitmap = {"data": data, "origin": [int(left), int(top)]}
            objects.append({"classTitle": kind, "geometryType": "bitmap", "bitmap": bitmap})
        if polygons:
            objects = [
                {"classTitle": kind, "geometryType": "polygon", "points": {"exterior": rings[0], "interior": rings[1:]}}
                for kind, rings in polygons_of(labels)
            ]
        size = {"height": labels.shape[0], "width": labels.shape[1]}
        save_json(
            folder / f"ds0/ann/{name}.png.json", {"description": "", "tags": [], "size": size, "objects": objects}
        )


# ways to write an export; the first word is its format
WITH_HOLES = {
    "cvat masks": write_cvat_masks,
    "cvat XML masks": write_cvat_xml,
    "labelstudio brush": write_labelstudio,
    "labelme masks": write_labelme,
    "labelme polygons": partial(write_labelme, polygons=True),
    "coco RLE": write_coco,
    "coco-panoptic": write_coco_panoptic,
    "supervisely bitmaps": write_supervisely,
    "supervisely polygons": partial(write_supervisely, polygons=True),
}
WITHOUT_HOLES = {
    "cvat XML polygons": partial(write_cvat_xml, polygons=True),
    "labelstudio polygons": partial(write_labelstudio, polygons=True),
    "coco polygons": partial(write_coco, polygons=True),
    "yolo polygons": write_yolo,
}
