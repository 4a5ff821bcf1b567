"""Small data sets in their real layouts."""

import numpy
from PIL import Image


def save_frame(path, seed=0, size=(8, 12)):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = numpy.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=numpy.uint8)
    Image.fromarray(values).save(path)


def save_ids(path, ids, size=(8, 12)):
    """Write a label file that repeats the ids."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = numpy.resize(numpy.array(ids, dtype=numpy.uint8), size[0] * size[1]).reshape(size)
    Image.fromarray(values).save(path)


def found(labels):
    return labels.unique().tolist()


def make_cityscapes(data, size=(8, 12)):
    for split, city, name in [
        ("train", "ulm", "ulm_000001_000019"),
        ("train", "aachen", "aachen_000000_000019"),
        ("val", "frankfurt", "frankfurt_000000_000294"),
        ("val", "frankfurt", "frankfurt_000000_000576"),
    ]:
        save_frame(data / "leftImg8bit" / split / city / f"{name}_leftImg8bit.png", 0, size)
        save_ids(data / "gtFine" / split / city / f"{name}_gtFine_labelIds.png", range(34), size)
        save_frame(data / "gtFine" / split / city / f"{name}_gtFine_color.png")
    return data


def make_snippets(data, size=(8, 12)):
    """Write the 30 frames around each labelled one of Cityscapes val."""
    for number in [*range(275, 305), *range(557, 587)]:
        name = f"frankfurt_000000_{number:06}_leftImg8bit.png"
        save_frame(data / "leftImg8bit_sequence" / "val" / "frankfurt" / name, number, size)
    return data


def make_camvid(data, split, names, suffix=".png", size=(8, 12)):
    for i, name in enumerate(names):
        save_frame(data / split / f"{name}{suffix}", i, size)
        save_ids(data / f"{split}annot" / f"{name}.png", range(12), size)
    return data


def make_folder(data, names, ids=(0, 1, 2, 255), classes="sky\nroad #804080\ngrass\n"):
    for i, name in enumerate(names):
        save_frame(data / "images" / f"{name}.jpg", i)
        save_ids(data / "labels" / f"{name}.png", ids)
    (data / "classes.txt").write_text(classes)
    return data


def names_of(dataset):
    return [pair.image.stem for pair in dataset.pairs]


def make_coco_10k(data):
    for name in ("COCO_train2014_000000000077", "COCO_train2014_000000000109"):
        save_frame(data / "images" / f"{name}.jpg")
        (data / "annotations").mkdir(exist_ok=True)
        (data / "annotations" / f"{name}.mat").touch()
    (data / "imageLists").mkdir()
    (data / "imageLists/train.txt").write_text("COCO_train2014_000000000077\n")
    (data / "imageLists/test.txt").write_text("COCO_train2014_000000000109\n")
    return data
