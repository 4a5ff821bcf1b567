"""Training on the export of an annotation tool is training on the same data in a folder."""

import math

import annotation_exports as exports
import pytest
import runs
from commands import run
from PIL import Image

from streamseg.data.layouts import read_classes, write_classes
from streamseg.train import runlog

SIZE = (72, 80)
CONFIG = runs.replace(runs.TINY, iterations=3, validate_every=3)


def make_pictures(holes):
    """Labels by names of pictures; where a tool has no holes, its road has none."""
    pictures = {f"frame_{i:03}": exports.make_labels(i, SIZE) for i in range(5)}
    if not holes:
        for labels in pictures.values():
            labels[SIZE[0] - 8 : SIZE[0] - 4, 40:46] = 0
    return pictures


def write_folder(folder, pictures, classes):
    """Write pictures and labels by hand in the layout `folder`, with the classes in a given order."""
    (folder / "labels").mkdir(parents=True)
    write_classes(folder / "classes.txt", classes)
    numbers = [classes.names.index(name) for name in exports.NAMES]
    for i, (name, labels) in enumerate(pictures.items()):
        exports.save_picture(folder / f"images/{name}.png", labels, i)
        own = labels.copy()
        for number, moved in enumerate(numbers):
            own[labels == number] = moved
        Image.fromarray(own).save(folder / f"labels/{name}.png")


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("kind", exports.WITH_HOLES | exports.WITHOUT_HOLES)
def test_a_converted_export_trains_to_the_losses_of_the_same_data_in_a_folder(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(runlog, "EVERY", 1)
    writers = exports.WITH_HOLES | exports.WITHOUT_HOLES
    (tmp_path / "export").mkdir()
    writers[kind](tmp_path / "export", make_pictures(holes=True))
    assert run(monkeypatch, "convert", tmp_path / "export", tmp_path / "mine") == 0
    holes = kind in exports.WITH_HOLES
    write_folder(tmp_path / "own", make_pictures(holes), read_classes(tmp_path / "mine/classes.txt"))
    for data in ("own", "mine"):
        runs.run(tmp_path / data, tmp_path / f"run-{data}", CONFIG)
    losses = [entry["loss"] for entry in runs.entries(tmp_path / "run-mine", "loss") if entry["loss"] is not None]
    assert len({*losses}) == CONFIG.iterations
    assert all(map(math.isfinite, losses))
    runs.assert_same_run(tmp_path / "run-mine", tmp_path / "run-own")


@pytest.mark.usefixtures("no_plots")
def test_one_wrong_class_in_a_folder_is_another_loss(tmp_path):
    """What the test above compares depends on the labels."""
    pictures = make_pictures(holes=True)
    write_folder(tmp_path / "right", pictures, exports.CLASSES)
    for labels in pictures.values():
        labels[labels == 1] = 2
    write_folder(tmp_path / "wrong", pictures, exports.CLASSES)
    for data in ("right", "wrong"):
        runs.run(tmp_path / data, tmp_path / f"run-{data}", CONFIG)
    right, wrong = (runs.entries(tmp_path / f"run-{data}", "loss")[0]["loss"] for data in ("right", "wrong"))
    assert right != wrong
