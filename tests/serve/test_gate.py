import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import PICTURE, REQUEST, run_server, running as running
from waiting import PATIENCE, until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from streamseg.serve import Limits
from streamseg.serve.gate import extract_file


def test_a_picture_may_be_sent_as_a_file_in_a_form(running):
    body = b'--e\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--e\r\nContent-Disposition: form-data; '
    body += b'name="picture"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n' + PICTURE + b"\r\n--e--\r\n"
    kind = "multipart/form-data; boundary=e"
    assert running.ask("/segment", body, Content_Type=kind).body == running.ask("/segment", PICTURE).body
    assert extract_file(body, kind) == PICTURE
    assert extract_file(body, "image/png") == body
    assert extract_file(b"--e\r\n\r\nno file\r\n--e--", kind) == b""


def test_a_full_queue_answers_503_and_the_queued_pictures_share_a_batch():
    with run_server(Limits(queue=4)) as running, ThreadPoolExecutor(4) as clients:
        with running.engine.pause():
            first = clients.submit(running.ask, "/segment", PICTURE)
            assert running.engine.called.wait(PATIENCE)
            others = [clients.submit(running.ask, "/segment", PICTURE) for _ in range(3)]
            until(lambda: len(running.gate.batcher.queue) == 3)
            answer = running.ask("/segment", PICTURE)
            assert answer.status == 503
            assert answer.json["error"] == "The queue is full (4 pictures): try again later."
            assert int(answer.headers["retry-after"]) >= 1
            metrics = running.ask("/metrics").body.decode()
            assert "streamseg_queue_frames 3" in metrics
            assert "streamseg_begun 4" in metrics
        assert {answer.result().body for answer in (first, *others)} == {first.result().body}
        assert running.engine.batches == [1, 3]
        metrics = running.ask("/metrics").body.decode()
        for line in (
            'streamseg_requests_total{path="/segment",status="200"} 4',
            'streamseg_requests_total{path="/segment",status="503"} 1',
            'streamseg_frames_total{source="segment"} 4',
            'streamseg_dropped_total{reason="full"} 1',
            "streamseg_latency_seconds_count 4",
            'streamseg_batch_frames_bucket{le="2"} 1',
            "streamseg_batch_frames_sum 4",
            "streamseg_queue_frames 0",
        ):
            assert f"{line}\n" in metrics


def test_a_picture_that_is_not_labelled_in_time_gets_503_and_is_counted(running, monkeypatch):
    decode, late = running.gate.decode, running.count_dropped("late")

    async def decode_and_shorten_limit(data, codec):
        frame = await decode(data, codec)
        shorter.setattr(running.gate, "limits", Limits(seconds=0.05))  # after the picture has arrived
        return frame

    with monkeypatch.context() as shorter, running.engine.pause():
        shorter.setattr(running.gate, "decode", decode_and_shorten_limit)
        answer = running.ask("/segment", PICTURE)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json["error"] == "The picture was not labelled within 0.05 s: try again later."
    assert running.count_dropped("late") == late + 1


def test_the_picture_of_a_client_that_disconnects_is_not_labelled(running):
    before, gone = len(running.engine.batches), running.count_dropped("gone")
    with ThreadPoolExecutor(1) as clients:
        with running.engine.pause():
            first = clients.submit(running.ask, "/segment", PICTURE)
            assert running.engine.called.wait(PATIENCE)
            with socket.create_connection(("127.0.0.1", running.port)) as connection:
                connection.sendall(REQUEST)
                until(lambda: running.gate.batcher.queue)
            until(lambda: all(request.future.cancelled() for request in running.gate.batcher.queue))
            until(lambda: running.gate.active == 1)
        assert first.result(PATIENCE).status == 200
        # the next picture would be labelled after the abandoned one, or in a batch with it
        assert running.ask("/segment", PICTURE).status == 200
    assert running.engine.batches[before:] == [1, 1]
    assert running.count_dropped("gone") == gone + 1


def test_without_the_token_only_health_and_the_page_are_answered():
    with run_server(token="secret.Token-1") as running:
        for path in ("/info", "/metrics", "/browser", "/model.onnx"):
            assert running.ask(path).status == 401
        for given in ("", "Bearer", "Bearer wrong", "Basic secret.Token-1", "Bearer secret.Token-1x", "Bearer \xff"):
            answer = running.ask("/segment", PICTURE, Authorization=given)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert "send it as Authorization: Bearer TOKEN." in answer.json["error"]
        for path in ("/healthz", "/", "/page.js", "/docs", "/openapi.json"):
            assert running.ask(path).status == 200
        assert running.ask("/segment", PICTURE, Authorization="bearer secret.Token-1").status == 200
        for options in ({}, {"subprotocols": ["streamseg", "bearer.wrong"]}):
            with pytest.raises(InvalidStatus) as rejected:
                connect(running.stream, **options)
            assert rejected.value.response.status_code == 401
            assert "token" in json.loads(rejected.value.response.body)["error"]
        with connect(running.stream, subprotocols=["streamseg", "bearer.secret.Token-1"]) as client:
            assert client.subprotocol == "streamseg"
        with connect(running.stream, additional_headers={"Authorization": "Bearer secret.Token-1"}) as client:
            assert client.subprotocol is None
