from pathlib import Path

import numpy
import pytest

import streamseg
from streamseg.regions.events import Event, Reading, Switch, ZoneMonitor, event_to_json, reading_to_json
from streamseg.regions.zones import Lane, Zone, read_zones

EXAMPLES = Path(__file__).parents[2] / "examples" / "zones"
CLASSES = streamseg.Classes(("road", "car", "person"), ((0, 0, 0), (1, 1, 1), (2, 2, 2)))
LEFT = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))


def frame(car=0.0):
    """Road, with cars in a share of the left half."""
    labels = numpy.zeros((20, 40), dtype=numpy.uint8)
    labels[: round(20 * car), :20] = 1
    return labels


def watch(shares, rate=10, **options):
    """The events of a zone that cars cover by a share in each frame: kind, frame and share."""
    monitor = ZoneMonitor([Zone("left", LEFT, ("Car",), **options)], CLASSES)
    found = []
    for i, share in enumerate(shares):
        readings, events = monitor.update(frame(share), i / rate)
        assert readings[0].shares == {"car": pytest.approx(share)}
        found += [(event.kind, i, event.share) for event in events]
    return found


def test_a_class_enters_covers_uncovers_and_leaves():
    found = watch([0, 0.1, 0.6, 0.6, 0.2, 0], share=0.5, debounce=0)
    assert found == [("enter", 1, 0.1), ("cover", 2, 0.6), ("uncover", 4, 0.2), ("leave", 5, 0.0)]


def test_only_the_events_asked_for_are_reported():
    assert watch([0, 0.6, 0], share=0.5, debounce=0, events=("leave",)) == [("leave", 2, 0.0)]
    assert [kind for kind, *_ in watch([0.6, 0], debounce=0)] == ["enter", "leave"]


def test_a_change_must_last_for_the_debounce():
    # at 10 frames a second, half a second is five frames
    assert watch([0, 0.5, 0.5, 0.5, 0.5, 0, 0], debounce=0.5) == []
    assert watch([0] + 6 * [0.5] + 2 * [0] + 6 * [0.5], debounce=0.5) == [("enter", 6, 0.5)]


def test_the_share_from_which_a_class_is_present_can_be_set():
    assert watch([0.2, 0.3], present=0.3, debounce=0) == [("enter", 1, 0.3)]


def test_each_class_enters_for_itself():
    labels = frame(0.5)
    labels[15:, :20] = 2
    monitor = ZoneMonitor([Zone("left", LEFT, ("car", "Person"), debounce=0)], CLASSES)
    (reading,), events = monitor.update(labels, 0.0)
    assert [event.class_name for event in events] == ["car", "person"]
    assert reading.shares == {"car": 0.5, "person": 0.25}
    assert reading.active == ("car", "person")


def test_a_state_that_flickers_never_changes():
    switch = Switch()
    assert not any(switch.update(i % 2 == 0, i / 10, 0.15) for i in range(40))
    assert not switch.on


def test_a_change_is_not_held_up_by_time_that_goes_back():
    switch = Switch()
    assert not switch.update(True, 1000.0, 0.5)
    assert [switch.update(True, seconds, 0.5) for seconds in (2.0, 2.4, 2.5)] == [False, False, True]
    assert switch.on


CORNERS = ((0.0, 1.0), (1.0, 1.0), (1.0, 0.0), (0.0, 0.0))


def test_the_free_distance_ends_at_the_first_row_that_is_not_drivable():
    labels = numpy.zeros((20, 40), dtype=numpy.uint8)
    labels[5, :30] = 1
    labels[12, :10] = 1  # less than half of the row
    monitor = ZoneMonitor([Lane("lane", CORNERS, ("road",))], CLASSES)
    (reading,), events = monitor.update(labels, 0.0)
    assert (reading.pixels, reading.metres, reading.active, events) == (14, None, (), [])
    labels[19] = 1
    assert monitor.update(labels, 0.1)[0][0].pixels == 0
    assert monitor.update(numpy.zeros_like(labels), 0.2)[0][0].pixels == 20


def test_metres_are_those_of_the_ground_points():
    # seen straight from above: 20 rows are 40 metres
    ground = ((-10.0, 0.0), (10.0, 0.0), (10.0, 40.0), (-10.0, 40.0))
    lane = Lane("lane", CORNERS, ("road",), image=CORNERS, ground=ground, min_distance=30, debounce=0)
    monitor = ZoneMonitor([lane], CLASSES)
    labels = numpy.zeros((20, 40), dtype=numpy.uint8)
    assert monitor.update(labels, 0.0) == ([monitor.update(labels, 0.0)[0][0]], [])
    assert monitor.update(labels, 0.0)[0][0].metres == pytest.approx(40)
    labels[9] = 1
    (reading,), (event,) = monitor.update(labels, 1.0)
    assert (reading.pixels, reading.metres, reading.active) == (10, pytest.approx(20), ("blocked",))
    assert (event.kind, event.seconds, event.pixels, event.metres) == ("blocked", 1.0, 10, pytest.approx(20))
    labels[9] = 0
    assert [event.kind for event in monitor.update(labels, 2.0)[1]] == ["clear"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_watch_classes_of_the_bundled_weights(path):
    monitor = ZoneMonitor(read_zones(path), streamseg.describe("street").classes)
    readings, _ = monitor.update(numpy.zeros((478, 928), dtype=numpy.uint8), 0.0)
    assert [reading.zone for reading in readings] == [area.name for area in monitor.areas]


def test_an_unknown_class_is_refused():
    with pytest.raises(ValueError, match="Zone 'left': No class is called 'cat'; there are road, car, person."):
        ZoneMonitor([Zone("left", LEFT, ("cat",))], CLASSES)


def test_events_and_readings_as_json_have_no_empty_entries():
    line = event_to_json(Event("left", "enter", 1.23456, "car", 0.5), "door", "door", 7)
    assert line.pop("time")
    assert [*line.values()] == ["enter", "left", "car", "door", "door", 7, 1.2346, 0.5]
    assert reading_to_json(Reading("left", {"car": 0.123456}, ("car",))) == {
        "zone": "left",
        "active": ["car"],
        "shares": {"car": 0.1235},
    }
    lane = reading_to_json(Reading("lane", {}, (), 14, 20.123))
    assert lane == {"zone": "lane", "active": [], "pixels": 14, "metres": 20.12}


def test_what_a_mask_hides_counts_neither_in_a_zone_nor_on_a_lane():
    monitor = ZoneMonitor([Zone("left", LEFT, ("car",))], CLASSES)
    labels = frame(0.25)
    labels[10:] = 255  # half of the zone
    assert monitor.update(labels, 0.0)[0][0].shares == {"car": pytest.approx(0.5)}
    labels[:] = 255
    assert monitor.update(labels, 0.1)[0][0].shares == {"car": 0.0}
    lane = ZoneMonitor([Lane("lane", LEFT, ("road",))], CLASSES)
    labels = frame(0.25)
    labels[16:] = 255  # the bonnet
    assert lane.update(labels, 0.0)[0][0].pixels == 15
