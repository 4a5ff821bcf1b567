import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from types import SimpleNamespace

import pytest
from commands import failing
from listeners import LOCALHOST, Broker, free_port
from waiting import PATIENCE, until

from streamseg.io import live_sender
from streamseg.regions import sinks
from streamseg.regions.sinks import Webhook, check_target, open_sink

EVENT = {"event": "enter", "zone": "door"}


@contextmanager
def server(*answers):
    """A web server that gives the answers in turn, the last one again and again; yields its address and what came."""
    came = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.path, self.headers.get("Authorization"), json.loads(body)))
            status = answers[min(len(came), len(answers)) - 1]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/hook", came
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def patient_and_without_proxy(monkeypatch):
    # a machine that stalls must not make a webhook send an event again, nor give up at the end
    monkeypatch.setattr(sinks, "TIMEOUT", PATIENCE)
    monkeypatch.setattr(sinks, "DRAIN_SECONDS", PATIENCE)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_a_file_gets_a_line_for_each_event_at_once_and_keeps_older_ones(tmp_path):
    path = tmp_path / "events.jsonl"
    for number in range(2):
        with open_sink(str(path), StringIO(), pytest.fail) as send:
            send(EVENT | {"frame": number})
            assert len(path.read_text().splitlines()) == number + 1
        check_target(str(path))
    assert [json.loads(line)["frame"] for line in path.read_text().splitlines()] == [0, 1]


def test_standard_output_gets_lines():
    output = StringIO()
    with open_sink("-", output, pytest.fail) as send:
        send(EVENT)
    assert json.loads(output.getvalue()) == EVENT


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device"), "Could not write events to standard output: No space left on device."),
        (OSError("Could not write standard output: it is full."), "Could not write standard output: it is full."),
    ],
)
def test_an_error_of_standard_output_is_a_sentence(error, sentence):
    sink = open_sink("-", SimpleNamespace(write=failing(error)), pytest.fail)
    with sink as send, pytest.raises(OSError, match=f"^{sentence}$"):
        send(EVENT)


def test_a_webhook_gets_the_events_in_order_with_its_password():
    with server(200) as (address, came):
        with open_sink(address.replace("//", "//me:p%40ss@"), StringIO(), pytest.fail) as send:
            for frame in range(5):
                send(EVENT | {"frame": frame})
        assert [event["frame"] for _, _, event in came] == [0, 1, 2, 3, 4]
        assert {(path, login) for path, login, _ in came} == {("/hook", "Basic bWU6cEBzcw==")}


def test_a_webhook_that_fails_is_tried_again(monkeypatch):
    monkeypatch.setattr(sinks, "RETRY_DELAYS", (0.0, 0.0))
    with server(503, 503, 204) as (address, came):
        hook = Webhook(address)
        hook(EVENT)
        hook.close()
        assert (len(came), hook.sent, hook.lost) == (3, 1, 0)


@pytest.mark.parametrize(("status", "words"), [(403, "answered 403 Forbidden."), (302, "answered 302 Found.")])
def test_a_webhook_that_refuses_is_one_sentence(status, words, monkeypatch):
    monkeypatch.setattr(sinks, "RETRY_DELAYS", ())
    said = []
    with server(status) as (address, came):
        with open_sink(address.replace("//", "//me:secret@"), StringIO(), said.append) as send:
            send(EVENT)
            send(EVENT)
        assert len(came) == 2
    (sentence,) = said
    assert sentence == f"2 of 2 events could not be sent, the first because {address} {words}"


def test_a_webhook_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(sinks, "RETRY_DELAYS", ())
    with server(200) as (address, _):
        pass
    hook = Webhook(address)
    hook(EVENT)
    hook.close()
    assert hook.lost == 1
    assert re.fullmatch(
        r"1 of 1 events could not be sent, the first because http://\S+ cannot be reached: .+\.", hook.problem()
    )


def test_a_webhook_that_hangs_holds_nobody_up_and_drops_what_is_too_much(monkeypatch):
    monkeypatch.setattr(sinks, "DRAIN_SECONDS", 0.05)
    asked, gate = threading.Event(), threading.Event()
    hook = Webhook("http://127.0.0.1:1/", capacity=3)

    def hang(*_, **__):
        asked.set()
        gate.wait(30)
        raise OSError("too late")

    monkeypatch.setattr(hook.opener, "open", hang)
    hook(EVENT)
    assert asked.wait(30)
    for _ in range(9):
        hook(EVENT)  # returns at once, or this test would hang
    hook.close()
    assert (hook.sent, hook.lost) == (0, 10)
    assert "10 of 10 events could not be sent" in hook.problem()
    gate.set()


def test_a_broker_gets_the_events_under_its_topic():
    pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed: pip install 'streamseg[mqtt]'")
    broker, problems = Broker(), []
    with open_sink(f"mqtt://{LOCALHOST}:{broker.port}/yard/events", StringIO(), problems.append) as send:
        for frame in range(3):
            send({**EVENT, "frame": frame})
    until(lambda: len(broker.messages) == 3)
    broker.close()
    assert [(topic, json.loads(text)["frame"]) for topic, text in broker.messages] == [
        ("yard/events", frame) for frame in range(3)
    ]
    assert problems == []


def test_a_websocket_that_is_not_there_is_one_sentence(monkeypatch):
    pytest.importorskip("websockets", reason="websockets is not installed: pip install 'streamseg[serve]'")
    monkeypatch.setattr(live_sender, "PAUSES", (0.02,))
    problems = []
    with open_sink(f"ws://me:secret@{LOCALHOST}:{free_port()}/x", StringIO(), problems.append) as send:
        send(EVENT)
    (problem,) = problems
    assert problem.startswith("--events: ")
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (
            "ftp://me:secret@host/topic",
            "ftp://host/topic takes no events: give http://, https://, ws://, mqtt://, a file's name or -.",
        ),
        ("http://", "names no host"),
        ("http://host:port/x", "is no address that can be read"),
        ("nowhere/events.jsonl", "No folder nowhere to write events.jsonl into: create it first."),
        ("notes.txt", "notes.txt exists and does not hold events: give another name for --events."),
    ],
)
def test_a_wrong_target_is_refused(target, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("precious\n")
    with pytest.raises((ValueError, OSError), match=re.escape(sentence)) as caught:
        check_target(target)
    assert "secret" not in str(caught.value)
