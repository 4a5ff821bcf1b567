"""Regions, zones and events on the command line."""

import json
from pathlib import Path

import pytest
from clips import make_clip, picture
from commands import error_line

from streamseg.io.images import write_image
from streamseg.io.video_reading import open_video

EVERYWHERE = "[[0, 0], [1, 0], [1, 1], [0, 1]]"


@pytest.fixture
def inputs(here):
    """A picture, a short video, and a file of zones in which every class of CamVid enters."""
    write_image(Path("a.png"), picture(0))
    make_clip(Path("v.mp4"), 3)
    zone = f'[[zone]]\nname = "all"\npoints = {EVERYWHERE}\nclasses = ["Road", "Car", "Sky", "Building", "Tree"]\n'
    Path("zones.toml").write_text(zone + "present = 0.0001\ndebounce = 0\n")
    return here


@pytest.mark.parametrize("name", ["r.jsonl", "r.coco.json", "r.geojson"])
def test_regions_are_written_in_the_format_of_the_name(segment, inputs, capsys, name):
    assert segment("v.mp4", "out.mp4", "--regions", name, "--min-area", "1") == 0
    assert f"regions: {name}" in capsys.readouterr().out.splitlines()
    assert segment("v.mp4", "out.mp4", "--regions", name, "--min-area", "1") == 0  # our own file may be replaced
    text = Path(name).read_text()
    if name == "r.jsonl":
        assert [json.loads(line)["frame"] for line in text.splitlines()] == [0, 1, 2]
    else:
        content = json.loads(text)
        assert len(content.get("images", [])) == 3 or content["features"][-1]["properties"]["frame"] == 2


def test_regions_and_events_can_be_all_that_is_written(segment, inputs, capfd):
    assert segment("v.mp4", "--no-overlay", "--regions", "r.jsonl") == 0
    assert sorted(path.name for path in inputs.iterdir()) == ["a.png", "r.jsonl", "v.mp4", "zones.toml"]
    capfd.readouterr()
    assert segment("a.png", "--no-overlay", "--zones", "zones.toml", "--events", "-") == 0
    out = capfd.readouterr().out
    events = [json.loads(line) for line in out.splitlines()]
    assert events
    assert {(event["event"], event["zone"], event["source"]) for event in events} == {("enter", "all", "a")}


def test_events_go_to_several_targets(segment, inputs, capfd):
    assert segment("a.png", "o.png", "--zones", "zones.toml", "--events", "e.jsonl,-") == 0
    assert Path("e.jsonl").read_text() == capfd.readouterr().out


def test_a_webhook_that_refuses_is_one_sentence_and_the_files_are_written(segment, inputs, capfd, monkeypatch):
    monkeypatch.setattr("streamseg.regions.sinks.RETRY_DELAYS", ())
    assert segment("a.png", "o.png", "--zones", "zones.toml", "--events", "http://127.0.0.1:1/", "--quiet") == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "events could not be sent, the first because http://127.0.0.1:1/" in line
    assert Path("o.png").exists()


def test_zones_that_fit_one_video_only_end_the_other_with_one_sentence(segment, inputs, capfd):
    make_clip(Path("w.mp4"), 5, size=(96, 128))
    Path("pixels.toml").write_text('[[zone]]\nname = "x"\npoints = [[0, 0], [100, 0], [0, 40]]\nclasses = ["Car"]\n')
    assert segment("v.mp4", "w.mp4", "-o", "out", "--zones", "pixels.toml", "--quiet") == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "v: Zone 'x' has the point [100.0, 0.0], outside of a frame that is 64 wide" in line
    assert [path.name for path in Path("out").iterdir()] == ["w-overlay.mp4"]
    with open_video("out/w-overlay.mp4") as video:
        assert sum(1 for _ in video) == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("a.png o.png --events e.jsonl", "--events reports what happens in zones: give a file of them with --zones."),
        ("a.png o.png --zones nowhere.toml", "No file of zones at nowhere.toml: check the path."),
        ("a.png o.png --zones crossed.toml", "crossed.toml: Zone 'x' crosses itself"),
        ("a.png o.png --zones foreign.toml", "Zone 'x': No class is called 'Unicorn'; there are Sky, Building"),
        ("a.png o.png --zones outside.toml", "Zone 'x' has the point [5000.0, 0.0], outside of a frame that is"),
        ("a.png o.png --zones zones.toml --events ftp://host/x", "ftp://host/x takes no events"),
        ("a.png o.png --zones zones.toml --events zones.toml", "zones.toml exists and does not hold events"),
        ("a.png o.png --zones zones.toml --events - --json -", "cannot share standard output: give file names."),
        ("a.png o.png --regions a.png", "a.png exists and was not written by streamseg"),
        ("a.png o.png --regions o.png", "o.png is an input or output already"),
        ("a.png o.png --regions r --regions-format coco --min-area 0", "--min-area is 0; expected a whole number"),
        ("a.png o.png --min-area 100", "--min-area is about the regions of --regions: give a file for them"),
        ("a.png o.png --regions-classes Car", "--regions-classes is about the regions of --regions"),
        ("a.png o.png --regions-format coco", "--regions-format is about the regions of --regions"),
        (
            "a.png o.png --zones beside.toml",
            "beside.toml: Zone 'x' has the point [1.5, 0.0], outside of the frame",
        ),
        ("a.png o.png --regions nowhere/r.json", "No folder nowhere to write r.json into: create it first."),
        ("a.png o.png --regions - --regions-format coco", "Standard output takes regions as JSON lines only"),
        ("a.png o.png --regions r.json --regions-classes Unicorn", "No class is called 'Unicorn'"),
        ("v.mp4 out --ray --regions r.json", "--ray labels videos into a folder: leave out --regions"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(segment, inputs, capfd, arguments, sentence):
    for name, points, kind in (
        ("crossed", "[[0, 0], [1, 1], [1, 0], [0, 1]]", "Car"),
        ("foreign", EVERYWHERE, "Unicorn"),
        ("outside", "[[0, 0], [5000, 0], [10, 10]]", "Car"),
        ("beside", "[[0, 0], [1.5, 0], [0.5, 0.5]]", "Car"),
    ):
        Path(f"{name}.toml").write_text(f'[[zone]]\nname = "x"\npoints = {points}\nclasses = ["{kind}"]\n')
    before = {path.name: path.read_bytes() for path in inputs.iterdir()}
    assert sentence in error_line(capfd, segment(*arguments.split()))
    assert {path.name: path.read_bytes() for path in inputs.iterdir()} == before
