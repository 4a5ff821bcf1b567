"""The verb prelabel."""

import json

import pytest
from commands import complaint, run
from make_datasets import save_frame

from streamseg import CAMVID
from streamseg.cli.prelabelling import FORMATS
from streamseg.data.formats.prelabels import WRITERS
from streamseg.io.images import read_label_ids


@pytest.fixture
def pictures(here):
    for i in range(2):
        save_frame(here / f"new/{i}.png", i, size=(64, 96))
    return here / "new"


def test_the_command_line_knows_the_formats_that_can_be_written():
    assert tuple(WRITERS) == FORMATS


@pytest.mark.parametrize("kind", ["labelme", "coco", "cvat"])
def test_drafts_are_what_segment_labels(pictures, here, weights, segment, monkeypatch, capsys, kind):
    options = ("--weights", weights, "--device", "cpu")
    exact = ("--tolerance", "0", "--min-area", "1", "--json", "figures.json")
    assert run(monkeypatch, "prelabel", pictures, "drafts", "--format", kind, *exact, *options) == 0
    figures = json.loads((here / "figures.json").read_text())
    assert figures["pictures"] == 2
    assert f"drafts: 2 pictures with {figures['polygons']:,} polygons" in capsys.readouterr().out
    assert run(monkeypatch, "convert", "drafts", "mine", "--quiet") == 0
    assert segment("new", "out", "--labels", "--no-overlay", "--quiet") == 0
    names = [line.split(" #")[0] for line in (here / "mine/classes.txt").read_text().splitlines()]
    ours, theirs = read_label_ids(here / "mine/labels/1.png"), read_label_ids(here / "out/1-labels.png")
    assert (ours == theirs.apply_(lambda label: names.index(CAMVID.names[label]))).all()


def test_wrong_names_are_answered_with_a_sentence(pictures, here, weights, monkeypatch, capsys):
    def told(*words):
        return complaint(monkeypatch, capsys, "prelabel", *words, "--weights", weights, "--device", "cpu")

    assert "needs pictures and a folder to write" in told("new")
    assert "Nothing at nowhere" in told("nowhere", "drafts")
    assert "new is not empty" in told("new/0.png", "new")
    assert "have the same name" in told("new", "new/0.png", "drafts")
    assert "--format is 'voc'; choose one of" in told("new", "drafts", "--format", "voc")
    assert "--tolerance is -1.0; expected pixels, 0 to 100." in told("new", "drafts", "--tolerance", "-1")
    (here / "note.txt").write_text("no picture")
    assert "note.txt is no picture" in told("note.txt", "drafts")
    (here / "new/1.png").write_bytes(b"cut")
    assert "1.png is not a picture" in told("new", "drafts")
    assert not (here / "drafts").exists()
