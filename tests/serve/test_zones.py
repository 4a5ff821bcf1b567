import json
import time

import numpy
import pytest
from clips import make_clip
from exports import moving
from serving import ZONE, leave, next_picture, open_view, run_server, running as running, send_zones, to_png
from waiting import PATIENCE, until
from websockets.sync.client import connect

import streamseg
from streamseg.regions.events import ZoneMonitor
from streamseg.regions.zones import Zone
from streamseg.serve import ServedZones
from streamseg.stream.label_frames import label_frames

WHOLE = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
NAMES = streamseg.CAMVID.names
ALL = Zone("all", WHOLE, NAMES, present=0.02, debounce=0.0)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A server that plays a video in which zones are watched, with the events that it sends."""
    clip = make_clip(tmp_path_factory.mktemp("clips") / "road.mp4", 10, size=(48, 64))
    sent = []
    zones = ServedZones({"road": (ALL,)}, [sent.append])
    with run_server(sources={"road": str(clip), "bare": str(clip)}, zones=zones) as server:
        until(lambda: sent)
        yield server, sent


def test_a_source_with_zones_is_labelled_though_nobody_watches(watched):
    server, sent = watched
    road, bare = (server.gate.sources[name] for name in ("road", "bare"))
    assert (road.viewers, road.listeners) == (0, 0)
    assert sent[0]["source"] == "road"
    assert road.view.number > 0
    assert bare.view.number == 0
    until(lambda: server.ask("/streams/road/zones").json["zones"])
    shown = server.ask("/streams/road/zones").json
    assert shown["file"]["zone"][0]["name"] == "all"
    assert sum(shown["zones"][0]["shares"].values()) == pytest.approx(1, abs=0.01)
    assert shown["events"][0] == sent[0] or len(sent) > len(shown["events"])


def test_listeners_get_what_is_in_the_zones_and_all_events(watched):
    server, _ = watched
    road = server.gate.sources["road"]
    with connect(f"ws://127.0.0.1:{server.port}/streams/road/events") as listener:
        first = json.loads(listener.recv(PATIENCE))
        assert first["zones"][0]["zone"] == "all"
        # an event that was completed between two messages is in the next
        count = road.zones.count
        road.zones.events, road.zones.count = (*road.zones.events, {"event": "test"}), count + 1
        found = []
        until(lambda: found.extend(json.loads(listener.recv(PATIENCE))["events"]) or {"event": "test"} in found)


def test_zones_are_drawn_on_the_overlay(watched):
    server, _ = watched
    redness = {}
    for name in ("road", "bare"):
        connection, response = open_view(server, name)
        picture = numpy.asarray(next_picture(response).convert("RGB")).astype(int)
        leave(connection, response)
        redness[name] = (picture[16:, 0, 0] - picture[16:, 0, 1]).mean()
    assert redness["road"] > redness["bare"] + 40


def test_the_newest_frame_of_a_source_is_a_picture(watched):
    server, _ = watched
    answer = server.ask("/streams/bare.jpg")
    assert (answer.status, answer.headers["content-type"]) == (200, "image/jpeg")
    assert answer.body.startswith(b"\xff\xd8")
    assert server.ask("/streams/none.jpg").status == 404


def test_a_source_without_zones_says_so(watched):
    answer = watched[0].ask("/streams/bare/zones")
    assert answer.status == 404
    assert answer.json["error"] == "bare has no zones: start the server with --zones FILE or --zones bare=FILE."
    assert watched[0].ask("/streams/none/zones").status == 404


def test_a_stream_is_answered_with_its_zones_and_events():
    front = Zone("front", WHOLE, ("Car", "Sky"), debounce=0.0)
    zones = ServedZones({"": (ALL,), "front": (front,)})
    frames = moving(3)
    with run_server(zones=zones) as server:
        answers = {}
        for name in ("", "front"):
            with connect(f"{server.stream}?name={name}") as client:
                answers[name] = []
                for frame in frames:
                    client.send(to_png(frame))
                    answers[name].append(json.loads(client.recv(PATIENCE)))
                    client.recv(PATIENCE)
        engine = server.engine.engine
        assert server.ask("/zones?name=front").json["zone"][0]["name"] == "front"
        assert server.ask("/zones").json["zone"][0]["name"] == "all"
    for name, area in (("", ALL), ("front", front)):
        monitor = ZoneMonitor([area], streamseg.CAMVID)
        expected = [monitor.update(labels, float(i)) for i, (_, labels) in enumerate(label_frames(engine, frames, 3))]
        for answer, (readings, events) in zip(answers[name], expected, strict=True):
            shares = {key: pytest.approx(share, abs=1e-4) for key, share in readings[0].shares.items()}
            assert answer["zones"][0]["shares"] == shares
            found = [(event["event"], event["class"]) for event in answer["events"]]
            assert found == [(event.kind, event.class_name) for event in events]
    assert {event["source"] for event in answers[""][0]["events"]} == {"stream 1"}


def test_a_stream_whose_frames_are_too_small_for_its_zones_goes_on():
    far = Zone("far", ((0, 0), (5000, 0), (0, 5000)), ("Car",))
    with run_server(zones=ServedZones({"": (far,)})) as server, connect(server.stream) as client:
        for frame in moving(2):
            client.send(to_png(frame))
            answer = json.loads(client.recv(PATIENCE))
            assert answer["problem"].startswith("Zone 'far' has the point [5000, 0], outside of a frame that is ")
            client.recv(PATIENCE)


def test_zones_are_checked_and_returned(running):
    answer = send_zones(running, {"zone": [ZONE | {"debounce": 0.5}]})
    assert (answer.status, answer.json) == (200, {"zone": [ZONE]})
    toml = b'[[zone]]\nname = "a"\npoints = [[0.1, 0.1], [0.9, 0.1], [0.5, 0.9]]\nclasses = ["car"]\n'
    assert send_zones(running, toml).json == {"zone": [ZONE]}
    assert running.ask("/zones").json == {}


BAD = [
    (b"no json", "The file of zones is neither TOML nor JSON that can be read: correct it."),
    (b'{"a":' * 10000, "The file of zones is neither TOML nor JSON that can be read: correct it."),
    (b"", "The file of zones holds no zones: expected tables called [[zone]] or [[lane]], and nothing else."),
    (b"\xff", "The file of zones is neither TOML nor JSON that can be read: correct it."),
    ({}, "The file of zones holds no zones: expected tables called [[zone]] or [[lane]], and nothing else."),
    ({"zone": 3}, "The file of zones: zone is no list of tables; write each as [[zone]]."),
    (
        {"zone": [ZONE | {"points": [[0.1, 0.1], [0.9, 0.9], [0.9, 0.1], [0.1, 0.9]]}]},
        "The file of zones: Zone 'a' crosses itself, between its points 1 and 3: give the corners in order.",
    ),
    (
        {"zone": [ZONE | {"points": [[0.1, 0.1], [1.4, 0.1], [0.5, 0.9]], "units": "fractions"}]},
        "The file of zones: Zone 'a' has the point [1.4, 0.1], outside of the frame: fractions of the width and height "
        "are 0 to 1.",
    ),
    (
        {"zone": [ZONE | {"points": [[i, i * i] for i in range(501)]}]},
        "A zone has 501 points; expected at most 500: simplify it.",
    ),
    ({"zone": [ZONE, ZONE]}, "The file of zones: two zones are called 'a'; names must differ."),
]


@pytest.mark.parametrize(("content", "sentence"), BAD)
def test_wrong_zones_get_a_sentence(running, content, sentence):
    answer = send_zones(running, content)
    assert (answer.status, answer.json) == (422, {"error": sentence})


def test_a_zone_of_a_foreign_class_and_a_huge_file_get_a_sentence(running):
    answer = send_zones(running, {"zone": [ZONE | {"classes": ["Submarine"]}]})
    assert answer.status == 422
    assert answer.json["error"].startswith("Zone 'a': No class is called 'Submarine'; there are Sky, ")
    assert send_zones(running, b" " * 70_000).status == 413


def test_the_slowest_zones_are_checked_in_seconds(running):
    circle = [[round(0.5 + 0.4 * x, 4), round(0.5 + 0.4 * y, 4)] for x, y in unit_circle(490)]
    begin = time.monotonic()
    assert send_zones(running, {"zone": [ZONE | {"points": circle}]}).status == 200
    assert time.monotonic() - begin < PATIENCE


def unit_circle(points):
    angles = numpy.linspace(0, 2 * numpy.pi, points, endpoint=False)
    return zip(numpy.cos(angles).tolist(), numpy.sin(angles).tolist(), strict=True)
