import base64
import json
import socket
import zlib
from pathlib import Path

import av
import numpy
import pytest
from clips import make_clip
from serving import leave, next_picture, open_view, run_server
from waiting import PATIENCE, until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from streamseg.serve.gate import Limits


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return str(make_clip(tmp_path_factory.mktemp("clips") / "road.mp4", 10, size=(48, 64)))


@pytest.fixture(scope="module")
def watching(clip):
    """A server that plays a video."""
    with run_server(sources={"road": clip}) as server:
        until(lambda: not server.gate.sources["road"].problem)
        yield server


def test_a_viewer_gets_picture_after_picture(watching):
    connection, response = open_view(watching)
    assert response.status == 200
    assert response.getheader("Content-Type") == "multipart/x-mixed-replace; boundary=frame"
    for _ in range(3):
        assert next_picture(response).size == (64, 48)
    leave(connection, response)
    until(lambda: watching.gate.sources["road"].viewers == 0)


def test_a_player_reads_it(watching):
    with av.open(f"http://127.0.0.1:{watching.port}/streams/road.mjpeg", format="mpjpeg", timeout=PATIENCE) as stream:
        frames = stream.decode(video=0)
        assert [(next(frames).width, next(frames).height) for _ in range(2)] == [(64, 48), (64, 48)]


def test_nothing_is_labelled_while_nobody_watches(watching):
    source = watching.gate.sources["road"]
    until(lambda: not source.watched)
    until(lambda: len(watching.gate.batcher.queue) == 0)
    before = len(watching.engine.batches)
    seen = source.latest
    until(lambda: source.latest > seen)  # it is still read
    assert len(watching.engine.batches) <= before + 1  # one may have been under way


def test_a_viewer_who_does_not_read_holds_up_nobody(watching):
    with socket.create_connection(("127.0.0.1", watching.port)) as sleeper:
        sleeper.sendall(b"GET /streams/road.mjpeg HTTP/1.1\r\nHost: x\r\n\r\n")
        connection, response = open_view(watching)
        for _ in range(5):
            next_picture(response)
        leave(connection, response)


def test_events_are_lines_of_json_with_labels_on_request(watching):
    address = f"ws://127.0.0.1:{watching.port}/streams/road/events"
    with connect(address) as plain, connect(f"{address}?labels=true") as full:
        event, other = json.loads(plain.recv(PATIENCE)), json.loads(full.recv(PATIENCE))
    assert (event["source"], event["height"], event["width"]) == ("road", 48, 64)
    assert sum(entry["share"] for entry in event["classes"]) == pytest.approx(1, abs=1e-3)
    assert event["age_ms"] >= 0
    assert "labels" not in event
    labels = numpy.frombuffer(zlib.decompress(base64.b64decode(other["labels"])), numpy.uint8).reshape(48, 64)
    shares = {entry["name"]: entry["share"] for entry in other["classes"]}
    names = [*shares]
    for number, share in zip(*numpy.unique(labels, return_counts=True), strict=True):
        assert shares[names[number]] == pytest.approx(share / labels.size, abs=1e-5)
    until(lambda: watching.gate.sources["road"].listeners == 0)


def test_listeners_have_a_limit_of_their_own(clip):
    with run_server(Limits(queue=1, viewers=1), sources={"road": clip}) as server:
        until(lambda: not server.gate.sources["road"].problem)
        address = f"ws://127.0.0.1:{server.port}/streams/road/events"
        with connect(address) as listener:
            listener.recv(PATIENCE)
            assert (server.gate.listeners, server.gate.streams) == (1, 0)
            with connect(server.stream):  # the one stream that may be open
                until(lambda: server.gate.streams == 1)
            with pytest.raises(InvalidStatus) as refused:
                connect(address).close()
            assert refused.value.response.status_code == 503
            assert server.ask("/streams/road.mjpeg").status == 503


def test_sources_are_listed_and_counted(watching):
    listed = watching.ask("/streams").json
    assert (listed["road"]["status"], listed["road"]["up"]) == ("ok", True)
    metrics = watching.ask("/metrics").body.decode()
    for part in ("frames", "seconds", "dropped"):
        assert f'streamseg_source_{part}_total{{source="road"}} ' in metrics
    assert "streamseg_sources_up 1\n" in metrics
    assert "streamseg_viewers " in metrics
    assert 'streamseg_frames_total{source="source"} ' in metrics


def test_an_unknown_source_gets_404(watching):
    answer = watching.ask("/streams/gate.mjpeg")
    assert (answer.status, answer.json) == (404, {"error": "No source is called gate; there are road."})
    with pytest.raises(InvalidStatus) as rejected:
        connect(f"ws://127.0.0.1:{watching.port}/streams/gate/events")
    assert rejected.value.response.status_code == 404


def test_a_token_may_be_in_the_query_of_a_picture(clip):
    with run_server(token="secret", sources={"road": clip}) as server:
        until(lambda: not server.gate.sources["road"].problem)
        assert server.ask("/streams/road.mjpeg").status == 401
        assert server.ask("/streams/road.mjpeg?token=wrong").status == 401
        assert server.ask("/streams?token=secret").status == 401  # only where a header is impossible
        connection, response = open_view(server, query="?token=secret")
        assert next_picture(response).size == (64, 48)
        leave(connection, response)


def test_an_open_view_ends_with_the_server(clip):
    with run_server(sources={"road": clip}) as server:
        until(lambda: not server.gate.sources["road"].problem)
        connection, response = open_view(server)
        next_picture(response)
    assert Path(clip).exists()
    while response.readline():
        pass
    leave(connection, response)
