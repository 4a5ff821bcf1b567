import json

import hostile
import pytest
from exports import moving
from serving import WINDOW, label_next, run_server, running as running
from waiting import PATIENCE, until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from streamseg.serve import Limits
from streamseg.stream.label_frames import label_frame, label_frames


def test_each_stream_has_its_own_state(running):
    one, other = moving(5), moving(5)[::-1]
    with connect(running.stream) as first, connect(running.stream) as second:
        answers = [(label_next(first, a), label_next(second, b)) for a, b in zip(one, other, strict=True)]
    for frames, found in zip((one, other), zip(*answers, strict=True), strict=True):
        expected = [labels for _, labels in label_frames(running.engine.engine, frames, WINDOW)]
        assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
    alone, _ = label_frame(running.engine.engine, one[4])
    assert not answers[4][0].equal(alone)


def test_a_wrong_frame_gets_an_error_and_the_stream_goes_on(running):
    frames = moving(2)
    with connect(running.stream) as client:
        label_next(client, frames[0])
        for wrong, status in (("hello", 400), (b"", 400), (b"hello", 415), (hostile.bomb(9**9, 9), 413)):
            client.send(wrong)
            answer = json.loads(client.recv(PATIENCE))
            assert answer["status"] == status
            assert answer["error"].endswith(".")
        expected = [labels for _, labels in label_frames(running.engine.engine, frames, WINDOW)]
        assert label_next(client, frames[1]).equal(expected[1])


def test_a_frame_beyond_the_limit_closes_its_stream_and_streams_beyond_the_limit_get_503():
    with run_server(Limits(bytes=20_000, queue=1)) as running, connect(running.stream) as client:
        with pytest.raises(InvalidStatus) as rejected:
            connect(running.stream)
        assert rejected.value.response.status_code == 503
        with pytest.raises(ConnectionClosed):
            client.send(bytes(30_000))
            client.recv(PATIENCE)
        assert client.close_code == 1009


def test_only_a_page_of_exactly_this_server_may_open_a_stream(running):
    host = f"127.0.0.1:{running.port}"
    for origin in (f"http://{host}", f"https://{host}"):  # a proxy may do the encryption
        with connect(running.stream, origin=origin):
            pass
    # hosts that begin or end with this server's, or contain it; and "null", which a sandboxed page sends
    others = (
        "elsewhere",
        f"{host}.evil.com",
        f"{host}0",
        f"evil.com.{host}",
        f"{host}@evil.com",
        f"evil.com/{host}",
        "127.0.0.1",
        "",
    )
    for origin in (*(f"http://{name}" for name in others), "null", host):
        with pytest.raises(InvalidStatus) as rejected:
            connect(running.stream, origin=origin)
        assert rejected.value.response.status_code == 403, origin
    with pytest.raises(InvalidStatus) as rejected:
        connect(f"ws://{host}/x", origin="http://elsewhere")
    assert rejected.value.response.status_code == 404


def stream_metrics(running):
    return [line for line in running.ask("/metrics").body.decode().splitlines() if line.startswith("streamseg_stream_")]


def test_metrics_count_the_frames_of_each_open_stream():
    with run_server() as running:
        with connect(f"{running.stream}?name=front") as front, connect(running.stream) as other:
            for frame in moving(2):
                label_next(front, frame)
            label_next(other, moving(1)[0])
            other.send("hello")
            other.recv(PATIENCE)
            frames = [line for line in stream_metrics(running) if "frames_total" in line]
            assert frames == [
                'streamseg_stream_frames_total{stream="1",name="front",answer="labelled"} 2',
                'streamseg_stream_frames_total{stream="2",answer="labelled"} 1',
                'streamseg_stream_frames_total{stream="2",answer="rejected"} 1',
            ]
            seconds = [line for line in stream_metrics(running) if "seconds_total" in line]
            assert [line.partition("}")[0] for line in seconds] == [
                'streamseg_stream_seconds_total{stream="1",name="front"',
                'streamseg_stream_seconds_total{stream="2"',
            ]
        until(lambda: not stream_metrics(running))


@pytest.mark.parametrize("name", ["a%22b", "a%20b", "x" * 65, "%0A"])
def test_a_name_that_would_break_the_metrics_is_refused(running, name):
    with pytest.raises(InvalidStatus) as rejected:
        connect(f"{running.stream}?name={name}")
    assert rejected.value.response.status_code == 400
