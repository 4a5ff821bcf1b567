import numpy
import pytest
import torch

import streamseg
from streamseg.regions.zones import Zone

pytest.importorskip("fastapi", reason="fastapi is not installed: pip install 'streamseg[serve]'")

from streamseg.serve import zone_watch
from streamseg.serve.zone_watch import EVENTS_KEPT, ServedZones, parse_zone_files

CLASSES = streamseg.CAMVID
LEFT = Zone("left", ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)), ("Car",), debounce=0.0)
FILE = """[[zone]]
name = "%s"
points = [[0, 0], [1, 0], [1, 1]]
classes = ["Car"]
"""


def frame(cars):
    labels = torch.zeros(20, 40, dtype=torch.uint8)
    labels[:, : 20 * cars] = CLASSES.find("Car")
    return labels


def test_events_are_kept_counted_and_sent():
    sent = []
    watch = ServedZones({"": (LEFT,)}, [sent.append]).watch("door", CLASSES)
    found = [event for i in range(4) for event in watch.update(frame(i % 2), i, i / 10)]
    assert [(event["event"], event["frame"], event["source"]) for event in found] == [
        ("enter", 1, "door"),
        ("leave", 2, "door"),
        ("enter", 3, "door"),
    ]
    assert sent == found == [*watch.events]
    assert watch.events_after(1) == found[1:]
    assert watch.events_after(3) == []
    assert watch.to_json() == {"zones": [{"zone": "left", "active": ["Car"], "shares": {"Car": 1.0}}]}
    for i in range(4, 300):
        watch.update(frame(i % 2), i, i / 10)
    assert len(watch.events) == EVENTS_KEPT
    assert [event["frame"] for event in watch.events_after(watch.count - 2)] == [298, 299]
    assert len(watch.events_after(0)) == EVENTS_KEPT


def test_zones_that_do_not_fit_a_frame_are_a_sentence_until_they_do():
    zone = Zone("far", ((0, 0), (100, 0), (100, 10)), ("Car",), debounce=0.0)
    watch = ServedZones({"": (zone,)}).watch("", CLASSES, "stream 1")
    assert watch.update(frame(1), 0, 0.0) == []
    assert watch.to_json()["problem"].startswith(
        "Zone 'far' has the point [100, 0], outside of a frame that is 40 wide"
    )
    picture = torch.zeros(3, 20, 40, dtype=torch.uint8)
    assert not watch.draw(picture).any()
    watch.update(torch.full((40, 200), CLASSES.find("Car"), dtype=torch.uint8), 1, 0.1)
    assert "problem" not in watch.to_json()
    assert watch.draw(torch.zeros(3, 40, 200, dtype=torch.uint8)).any()


def test_a_sink_that_fails_does_not_end_the_stream(monkeypatch):
    told = []
    monkeypatch.setattr(zone_watch.LOG, "warning", lambda text, *values: told.append(text % values))

    def fail(line):
        raise OSError("The disk is full.")

    watch = ServedZones({"": (LEFT,)}, [fail]).watch("", CLASSES, "stream 1")
    assert len(watch.update(frame(1), 0, 0.0)) == 1
    assert told == ["An event was lost: The disk is full."]


def test_files_are_for_one_stream_or_for_all(tmp_path):
    for name in ("all", "door"):
        (tmp_path / f"{name}.toml").write_text(FILE % name)
    given = [str(tmp_path / "all.toml"), f"door={tmp_path / 'door.toml'}"]
    zones = ServedZones(parse_zone_files(given))
    assert [zones.find(name)[0].name for name in ("door", "gate", "")] == ["door", "all", "all"]
    assert ServedZones(parse_zone_files(given[1:])).find("gate") == ()
    assert ServedZones(parse_zone_files(given[1:])).watch("gate", CLASSES) is None
    with pytest.raises(ValueError, match="--zones has two files for the stream door: give one"):
        parse_zone_files([*given, given[1]])
    with pytest.raises(ValueError, match="--zones has two files for all streams: give one"):
        parse_zone_files([given[0], given[0]])
    with pytest.raises(FileNotFoundError, match="No file of zones at"):
        parse_zone_files(["door=none.toml"])


def test_a_zone_of_a_foreign_class_is_refused():
    zone = Zone("z", LEFT.points, ("Submarine",))
    with pytest.raises(ValueError, match="Zone 'z': No class is called 'Submarine'"):
        ServedZones({"": (zone,)}).check(CLASSES)


def test_readings_are_those_of_the_labels():
    labels = torch.from_numpy(numpy.random.default_rng(0).integers(0, len(CLASSES), (20, 40), dtype=numpy.uint8))
    watch = ServedZones({"": (LEFT,)}).watch("", CLASSES, "stream 1")
    watch.update(labels, 0, 0.0)
    share = (labels[:, :20] == CLASSES.find("Car")).float().mean().item()
    assert watch.to_json()["zones"][0]["shares"]["Car"] == pytest.approx(share, abs=1e-4)
