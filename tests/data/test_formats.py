"""Exports of annotation tools become the labels that they were written from."""

import json
import zipfile

import annotation_exports as exports
import numpy
import pytest

from streamseg.classes import Classes
from streamseg.data.datasets import folder
from streamseg.data.formats.convert import convert
from streamseg.data.formats.labelstudio import decode_brush
from streamseg.data.formats.prelabels import WRITERS, PrelabelledPicture, find_outlines, write_cvat
from streamseg.data.formats.yolo import parse_yaml
from streamseg.data.layouts import read_classes
from streamseg.io.images import read_label_ids

HOLE = slice(exports.SIZE[0] - 8, exports.SIZE[0] - 4), slice(40, 46)

EVERY = exports.WITH_HOLES | exports.WITHOUT_HOLES


def pictures(count=2):
    return {f"frame_{i:03}": exports.make_labels(i) for i in range(count)}


def make(tmp_path, kind, count=2):
    source = tmp_path / "export"
    source.mkdir()
    EVERY[kind](source, pictures(count))
    return source


def labels_in(out, names):
    """The labels of a converted folder by the numbers of NAMES, whatever the order of its classes."""
    order = [exports.NAMES.index(name) for name in names]
    table = numpy.array([*order, *[255] * (256 - len(order))], numpy.uint8)
    return {path.stem: table[read_label_ids(path).numpy()] for path in sorted((out / "labels").glob("*.png"))}


@pytest.mark.parametrize("kind", EVERY)
def test_an_export_becomes_the_labels_that_it_was_written_from(tmp_path, kind):
    source, out = make(tmp_path, kind), tmp_path / "mine"
    done = convert(source, out)
    assert done.format == kind.split()[0]
    assert {*done.classes.names} == {*exports.NAMES}
    found = labels_in(out, done.classes.names)
    assert [*found] == [*pictures()]
    for name, labels in pictures().items():
        if kind in exports.WITHOUT_HOLES:
            labels[HOLE] = 0
        numpy.testing.assert_array_equal(found[name], labels)
        (original,) = [
            path
            for path in source.rglob(f"{name}.png")
            if path.parent.name not in ("SegmentationClass", "panoptic_default")
        ]
        assert (out / f"images/{name}.png").read_bytes() == original.read_bytes()
    assert folder(out, "all").classes == read_classes(out / "classes.txt") == done.classes


def test_the_labels_of_labelme_give_the_order_of_classes(tmp_path):
    source = make(tmp_path, "labelme masks")
    (source / "labels.txt").write_text("__ignore__\n_background_\ntree\nsky\nroad\ncar\n")
    assert convert(source, tmp_path / "mine").classes.names == ("tree", "sky", "road", "car")
    (source / "labels.txt").write_text("tree\nroad\n")
    with pytest.raises(ValueError, match="classes that its own list lacks: car"):
        convert(source, tmp_path / "less")


@pytest.mark.parametrize("kind", ["cvat masks", "cvat XML masks", "supervisely bitmaps"])
def test_order_and_colours_of_classes_are_kept(tmp_path, kind):
    assert convert(make(tmp_path, kind), tmp_path / "mine").classes == exports.CLASSES


def test_a_background_covers_what_no_object_covers(tmp_path):
    done = convert(make(tmp_path, "supervisely bitmaps"), tmp_path / "mine", background="other")
    assert done.classes.names == ("other", *exports.NAMES)
    labels = read_label_ids(tmp_path / "mine/labels/frame_000.png").numpy()
    numpy.testing.assert_array_equal(labels, (pictures()["frame_000"].astype(int) + 1) % 256)


def test_classes_that_are_not_kept_are_unlabelled(tmp_path):
    done = convert(make(tmp_path, "coco RLE"), tmp_path / "mine", classes=["tree", "road"])
    assert (done.classes.names, done.other_classes) == (("tree", "road"), ["car"])
    labels = pictures()["frame_000"]
    labels[labels == 1] = 255
    numpy.testing.assert_array_equal(labels_in(tmp_path / "mine", done.classes.names)["frame_000"], labels)


def test_subsets_train_and_val_become_splits(tmp_path):
    source = tmp_path / "export"
    for split, name in (("train", "a"), ("val", "b")):
        exports.write_yolo(source, {name: exports.make_labels()}, split)
    done = convert(source, tmp_path / "mine")
    assert done.pictures == {"train": 1, "val": 1}
    assert [pair.labels.stem for pair in folder(tmp_path / "mine", "val").pairs] == ["b"]


def test_yolo_folders_of_splits_are_found_by_the_end_of_their_paths(tmp_path):
    source = tmp_path / "export"
    exports.write_yolo(source, {"a": exports.make_labels()}, "train")
    for kind in ("images", "labels"):
        (source / "train").mkdir(exist_ok=True)
        (source / kind / "train").rename(source / "train" / kind)
        (source / kind).rmdir()
    (source / "data.yaml").write_text(
        "train: ../train/images\nval: ../valid/images\n\nnc: 3\nnames: ['road', 'car', 'tree']\n"
    )
    assert convert(source, tmp_path / "mine").classes.names == exports.NAMES
    labels = exports.make_labels()
    labels[HOLE] = 0
    numpy.testing.assert_array_equal(read_label_ids(tmp_path / "mine/labels/a.png").numpy(), labels)


def test_yolo_lists_of_pictures_are_read(tmp_path):
    source = tmp_path / "export"
    exports.write_yolo(source, {"a": exports.make_labels(), "b": exports.make_labels()}, "train")
    (source / "train.txt").write_text("data/images/train/a.png\n")
    (source / "val.txt").write_text("data/images/train/b.png\n")
    (source / "data.yaml").write_text("names: [road, car, tree]\npath: .\ntrain: train.txt\nval: val.txt\n")
    assert convert(source, tmp_path / "mine").pictures == {"train": 1, "val": 1}


def test_coco_files_beside_the_pictures_of_their_split_are_read(tmp_path):
    source = tmp_path / "export"
    for i, split in enumerate(("train", "valid")):
        exports.write_coco(tmp_path / split, {"a": exports.make_labels(i)}, polygons=True)
        source.mkdir(exist_ok=True)
        (tmp_path / split / "images").rename(source / split)
        (tmp_path / split / "annotations/instances_default.json").rename(source / split / "_annotations.coco.json")
    assert convert(source, tmp_path / "mine").pictures == {"train": 1, "val": 1}
    first, second = (read_label_ids(tmp_path / f"mine/labels/{split}/a.png") for split in ("train", "val"))
    assert not (first == second).all()


def test_subsets_with_pictures_of_one_name_are_told_apart(tmp_path):
    source = make(tmp_path, "supervisely bitmaps", 1)
    exports.write_supervisely(tmp_path / "other", {"frame_000": exports.make_labels(3)})
    (tmp_path / "other/ds0").rename(source / "ds1")
    convert(source, tmp_path / "mine")
    found = labels_in(tmp_path / "mine", exports.NAMES)
    numpy.testing.assert_array_equal(found["frame_000"], exports.make_labels())
    numpy.testing.assert_array_equal(found["ds1_frame_000"], exports.make_labels(3))


def test_a_picture_that_is_annotated_twice_is_refused(tmp_path):
    source = make(tmp_path, "labelme masks")
    (source / "copy.json").write_text((source / "frame_000.json").read_text())
    refuse(tmp_path, "frame_000.png is annotated twice, in .*copy.json and .*frame_000.json: keep one")


def test_pictures_without_objects_are_kept_with_a_background_only(tmp_path):
    source = make(tmp_path, "yolo polygons")
    (source / "labels/train/frame_000.txt").write_text("1 0.5 0.5 0.2 0.2\n")
    done = convert(source, tmp_path / "mine")
    assert (done.pictures, done.empty, done.other_kinds) == ({"all": 1}, 1, {"box": 1})
    assert convert(source, tmp_path / "all", background="other").pictures == {"all": 2}


def test_pictures_can_be_links(tmp_path):
    source = make(tmp_path, "labelme masks")
    convert(source, tmp_path / "mine", link=True)
    link = tmp_path / "mine/images/frame_000.png"
    assert link.is_symlink()
    assert link.resolve() == (source / "frame_000.png").resolve()


def test_pictures_can_be_in_another_folder(tmp_path):
    source = make(tmp_path, "labelstudio brush")
    (source / "pictures").rename(tmp_path / "elsewhere")
    (file,) = source.glob("*.json")
    with pytest.raises(FileNotFoundError, match="No picture '/data/upload/3/0a1b2c3d-frame_000.png'.*--images"):
        convert(file, tmp_path / "mine")
    assert convert(file, tmp_path / "mine", images=tmp_path / "elsewhere").pictures == {"all": 2}


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refuse(tmp_path, message, source="export", **options):
    """Convert what must be refused, and check that nothing is left of it."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises((ValueError, OSError), match=message):
        convert(tmp_path / source, tmp_path / "mine", **options)
    assert sorted(tmp_path.iterdir()) == before


def test_classes_that_the_list_lacks_are_named(tmp_path):
    source = make(tmp_path, "supervisely bitmaps")
    edit(source / "meta.json", lambda meta: meta["classes"].pop(0))
    edit(source / "meta.json", lambda meta: meta["classes"].pop(0))
    refuse(tmp_path, r"classes that its own list lacks: car, road \(the first in .*frame_000.png.json\)")
    assert convert(source, tmp_path / "mine", classes=["tree"]).other_classes == ["car", "road"]


def test_a_class_to_keep_must_exist(tmp_path):
    make(tmp_path, "coco RLE")
    refuse(tmp_path, "no class 'raod', only road, car, tree. Did you mean 'road'?", classes=["raod"])


@pytest.mark.parametrize(
    ("kind", "path", "text"),
    [
        ("labelme masks", "frame_001.json", '{"shapes": ['),
        ("coco RLE", "annotations/instances_default.json", "[" * 100000),
        ("supervisely bitmaps", "ds0/ann/frame_001.png.json", "\xff"),
        ("cvat XML masks", "annotations.xml", "<annotations><image>"),
        ("cvat XML masks", "annotations.xml", '<!DOCTYPE a [<!ENTITY b "c">]><annotations>&b;</annotations>'),
        ("cvat XML masks", "annotations.xml", "<annotations><track/></annotations>"),
        ("cvat masks", "labelmap.txt", "road=1\n"),
        ("cvat masks", "labelmap.txt", "road:1,2,3::\ncar:1,2,3::\n"),
        ("cvat masks", "SegmentationClass/frame_001.png", "no picture"),
        ("yolo polygons", "labels/train/frame_001.txt", "0 0.1 0.1 0.2 0.2 nan 0.3\n"),
        ("yolo polygons", "labels/train/frame_001.txt", "0 0.1 0.1 0.2 0.2 0.3\n"),
        ("yolo polygons", "data.yaml", "train: images\n"),
        ("labelme masks", "frame_001.png", "no picture"),
    ],
)
def test_damaged_files_are_named(tmp_path, kind, path, text):
    (make(tmp_path, kind) / path).write_text(text)
    refuse(tmp_path, path.rsplit("/", 1)[-1], format=kind.split()[0])


def drop(key):
    return lambda content: content.pop(key)


@pytest.mark.parametrize(
    ("kind", "path", "change"),
    [
        ("labelme polygons", "frame_001.json", lambda c: c["shapes"][0].pop("label")),
        ("labelme polygons", "frame_001.json", lambda c: c["shapes"][0].update(points=[[1, "x"]])),
        ("labelme masks", "frame_001.json", lambda c: c["shapes"][0].update(mask="AAAA")),
        ("labelme masks", "frame_001.json", lambda c: c.update(imageHeight=47)),
        ("labelme masks", "frame_001.json", lambda c: c.update(imagePath="../../../etc/hostname")),
        ("coco RLE", "annotations/instances_default.json", lambda c: c["annotations"][0].update(image_id=9)),
        (
            "coco RLE",
            "annotations/instances_default.json",
            lambda c: c["annotations"][0]["segmentation"].update(counts="?"),
        ),
        (
            "coco RLE",
            "annotations/instances_default.json",
            lambda c: c["annotations"][0]["segmentation"].update(size=[9, 9]),
        ),
        ("coco-panoptic", "annotations/panoptic_default.json", lambda c: c["annotations"][0]["segments_info"].pop()),
        ("supervisely bitmaps", "ds0/ann/frame_001.png.json", lambda c: c["objects"][0]["bitmap"].update(data="AAAA")),
        ("supervisely bitmaps", "ds0/ann/frame_001.png.json", drop("size")),
        ("labelstudio brush", "project-1-at-2026-01-01.json", lambda c: c[0]["data"].update(image="")),
        (
            "labelstudio brush",
            "project-1-at-2026-01-01.json",
            lambda c: c[0]["annotations"][0]["result"][0]["value"].update(rle=[0, 0, 48, 0]),
        ),
    ],
)
def test_wrong_contents_are_told_with_the_file(tmp_path, kind, path, change):
    edit(make(tmp_path, kind) / path, change)
    refuse(tmp_path, path.rsplit("/", 1)[-1])


def test_a_missing_picture_is_named(tmp_path):
    (make(tmp_path, "cvat masks") / "JPEGImages/frame_001.png").unlink()
    refuse(tmp_path, "frame_001")


def test_a_link_out_of_the_export_is_refused(tmp_path):
    source = make(tmp_path, "coco RLE")
    picture = source / "images/frame_000.png"
    picture.rename(tmp_path / "outside.png")
    picture.symlink_to(tmp_path / "outside.png")
    refuse(tmp_path, "frame_000.png is a link that leads out of the export")


def test_names_that_climb_folders_stay_inside(tmp_path):
    source = make(tmp_path, "coco RLE")
    edit(
        source / "annotations/instances_default.json",
        lambda c: c["images"][0].update(file_name="../../x/frame_000.png"),
    )
    convert(source, tmp_path / "mine")
    assert sorted(path.name for path in (tmp_path / "mine/images").iterdir()) == ["frame_001.png", "x_frame_000.png"]


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    make(tmp_path, "coco RLE")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kept.txt").write_text("mine")
    refuse(tmp_path, "mine is not empty: give a new folder")
    assert (tmp_path / "mine/kept.txt").read_text() == "mine"


def test_an_ambiguous_export_asks_for_the_format(tmp_path):
    source = make(tmp_path, "coco RLE")
    exports.write_labelme(source, {})
    exports.write_labelme(source, pictures(1))
    refuse(tmp_path, "could be an export of coco and labelme: say which with --format coco")
    assert convert(source, tmp_path / "mine", format="labelme").format == "labelme"


def test_what_is_no_export_is_told_so(tmp_path):
    (tmp_path / "export").mkdir()
    refuse(tmp_path, "is no export that is known; expected labelmap.txt")
    refuse(tmp_path, "No export at", source="nowhere")


def test_predictions_for_label_studio_are_no_export(tmp_path):
    write_prelabels(tmp_path / "export", "labelstudio", 0)
    edit(
        tmp_path / "export/tasks.json",
        lambda tasks: [task.update(predictions=task.pop("annotations")) for task in tasks],
    )
    refuse(tmp_path, "export has predictions for Label Studio, which nobody has corrected: import tasks.json there")


def test_a_packed_export_is_to_be_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as file:
        file.writestr("labelmap.txt", "")
    refuse(tmp_path, "is a ZIP file: unpack it", source="export.zip")


def test_labelme_fills_rectangles_and_circles_and_leaves_out_lines(tmp_path):
    source = tmp_path / "export"
    exports.save_picture(source / "a.png", numpy.zeros((40, 40)))
    shapes = [
        {"label": "car", "shape_type": "rectangle", "points": [[10, 4], [2, 8]]},
        {"label": "tree", "shape_type": "circle", "points": [[25, 25], [35, 25]]},
        {"label": "road", "shape_type": "line", "points": [[0, 0], [9, 9]]},
    ]
    exports.save_json(source / "a.json", {"shapes": shapes, "imagePath": "..\\pictures\\a.png"})
    done = convert(source, tmp_path / "mine")
    labels = read_label_ids(tmp_path / "mine/labels/a.png").numpy()
    assert done.other_kinds == {"line": 1}
    assert (labels == 0).sum() == (labels[4:8, 2:10] == 0).sum() == 32
    assert abs((labels == 2).sum() - 314) < 5


@pytest.mark.parametrize(
    "names",
    ["names: [road, 'my car', tree]", 'names: {0: road, 1: "my car", 2: tree}', "names:\n- road\n- my car\n- tree",
     "names:\n  0: road\n  1: my car # one\n  2: 'tree'"],
)  # fmt: skip
def test_the_names_in_a_yaml_file(tmp_path, names):
    (tmp_path / "data.yaml").write_text(f"nc: 3\n{names}\ntrain: ../train/images\nroboflow:\n  license: x\n")
    values = parse_yaml(tmp_path / "data.yaml")
    assert [*values["names"].values()] == ["road", "my car", "tree"]
    assert values["train"] == {"0": "../train/images"}


def test_a_brush_region_of_every_length_of_run_round_trips():
    mask = numpy.random.default_rng(0).random((150, 160)) > 0.7
    mask[20:140] = True
    numpy.testing.assert_array_equal(decode_brush(exports.pack_brush(mask), *mask.shape), mask)


def complete_labels(seed=0):
    """Labels as networks write them: every pixel has a class."""
    labels = exports.make_labels(seed)
    return numpy.where(labels == 255, 2, labels).astype(numpy.uint8)


def write_prelabels(folder, kind, tolerance):
    place, write = WRITERS[kind]
    found = []
    for i in range(2):
        labels = complete_labels(i)
        exports.save_picture(folder / place / f"{i}.png", labels, i)
        outlines = find_outlines(labels, exports.CLASSES, min_area=1, tolerance=tolerance)
        found.append(PrelabelledPicture(f"{i}.png", labels.shape, outlines))
    write(folder, found, exports.CLASSES)
    if kind == "labelstudio":  # what it exports after its user has accepted the predictions
        edit(folder / "tasks.json", lambda tasks: [task.update(annotations=task.pop("predictions")) for task in tasks])


@pytest.mark.parametrize(("tolerance", "share"), [(0, 1), (0.75, 0.99)])
@pytest.mark.parametrize("kind", WRITERS)
def test_labels_for_a_tool_are_converted_back_to_themselves(tmp_path, kind, tolerance, share):
    source = tmp_path / "export"
    write_prelabels(source, kind, tolerance)
    done = convert(source, tmp_path / "mine")
    assert done.format == kind
    for i, labels in enumerate(labels_in(tmp_path / "mine", done.classes.names).values()):
        assert (labels == complete_labels(i)).mean() >= share


def test_names_are_written_as_text_in_xml(tmp_path):
    classes = Classes(('"road" & <more>',), ((1, 2, 3),))
    labels = numpy.zeros((8, 8), numpy.uint8)
    outlines = find_outlines(labels, classes, min_area=1, tolerance=0)
    exports.save_picture(tmp_path / "export/images/a & b.png", labels)
    write_cvat(tmp_path / "export", [PrelabelledPicture("a & b.png", labels.shape, outlines)], classes)
    assert convert(tmp_path / "export", tmp_path / "mine").classes == classes
