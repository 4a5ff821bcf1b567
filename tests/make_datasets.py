"""Small data sets in their real layouts."""

import random

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


def make_changing_camvid(data, size, frames=12):
    """Make a val split whose true labels change once, in the fourth frame: the upper half to Road."""
    names = [f"0016E5_{7959 + 2 * i:05}" for i in range(frames)]
    make_camvid(data, "val", names, size=size)
    for i, name in enumerate(names):
        labels = numpy.full(size, 1, dtype=numpy.uint8)
        if i >= 3:
            labels[: size[0] // 2] = 3
        Image.fromarray(labels).save(data / f"valannot/{name}.png")
    return data


def comma10k_names(devices=40, frames=1):
    """Return names of frames of comma10k, of devices with random names."""
    chance = random.Random(0)
    return [
        f"{device * frames + i:04}_{name:016x}_2018-08-19--13-26-08_11_{i}"
        for device, name in enumerate(chance.getrandbits(64) for _ in range(devices))
        for i in range(frames)
    ]


def save_colours(path, codes, size=(8, 12)):
    """Write a label file that repeats colours, 0xrrggbb."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colours = numpy.array([[code >> 16, code >> 8 & 255, code & 255] for code in codes], dtype=numpy.uint8)
    values = colours[numpy.arange(size[0] * size[1]) % len(codes)].reshape(*size, 3)
    Image.fromarray(values).save(path)


COMMA10K_CODES = (0x402020, 0xFF0000, 0x808060, 0x00FF66, 0xCC00FF, 0x000000)


def make_comma10k(data, names, tail="", size=(8, 12)):
    """Write frames and masks of comma10k as it is downloaded; tail "2" and "d" for its later parts."""
    for i, name in enumerate(names):
        save_frame(data / f"imgs{tail}" / f"{name}.png", i, size)
        save_colours(data / f"masks{tail}" / f"{name}.png", COMMA10K_CODES, size)
    return data


def make_comma10k_ids(data, names):
    """Write frames of comma10k with labels as ids."""
    for i, name in enumerate(names):
        save_frame(data / "images" / f"{name}.webp", i)
        save_ids(data / "labels" / f"{name}.png", [*range(5), 255])
    (data / "classes.txt").write_text(
        "road #402020\nlane marking #ff0000\nundrivable #808060\nmovable #00ff66\nmy car #cc00ff\n"
    )
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
