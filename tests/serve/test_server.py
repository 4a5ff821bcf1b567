import asyncio
import json
import math
import re
import signal
import socket
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import hostile
import pytest
from commands import complaint
from serving import FRAME, PICTURE, REQUEST, read_labels, run_server, running as running
from waiting import PATIENCE, until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import streamseg
from streamseg.cli.serving import LimitOptions
from streamseg.serve import Limits, server
from streamseg.stream.label_frames import label_frame


def test_a_client_that_still_sends_is_answered_at_once_and_may_finish(running):
    size = 40 * 2**20
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as connection:
        connection.sendall(f"POST /segment HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
        connection.sendall(bytes(size))
        while connection.recv(1 << 16):  # the rest of the answer, then the end of the connection: no error
            pass


def test_a_client_that_does_not_read_the_end_of_an_error_is_disconnected():
    async def reject(scope, receive, send):
        await send({"type": "http.response.start", "status": 413})
        await send({"type": "http.response.body", "body": b"too large"})

    async def receive():
        return {"type": "http.request", "body": b"the rest"}

    async def send(message):
        sent.append(message)
        if message == {"type": "http.response.body"}:
            await asyncio.sleep(60)

    sent = []
    limits = SimpleNamespace(bytes=100, seconds=0.05)
    gate = SimpleNamespace(requests=0, limits=limits, answered=SimpleNamespace(add=lambda **_: None))
    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"8")]}
    with pytest.raises(TimeoutError):
        asyncio.run(server.HttpMiddleware(reject, gate)(scope, receive, send))
    assert [message.get("more_body") for message in sent] == [None, True, None]
    assert gate.requests == 0


@pytest.mark.slow
def test_a_thousand_hostile_requests_get_no_500_and_the_server_answers_afterwards(running):
    with ThreadPoolExecutor(8) as clients:
        statuses = {*clients.map(lambda request: hostile.check(running.port, request), hostile.requests(1000))}
    assert {101, 200, 400, 403, 404, 405, 406, 413, 415} <= statuses
    assert running.ask("/segment", PICTURE).status == 200
    until(lambda: not (running.gate.active or running.gate.streams))


def test_slow_clients_get_408(monkeypatch):
    with run_server(Limits(seconds=0.2)) as running:
        with monkeypatch.context() as short:
            short.setattr(server, "HEAD_SECONDS", 0.2)
            for begin in (b"", b"GET / HT"):
                assert b"The request did not arrive within 0.2 s." in running.send_raw(begin)
        monkeypatch.setattr(server, "HEAD_SECONDS", PATIENCE)  # so that a busy machine is not a slow client
        monkeypatch.setattr(server, "DRAIN_SECONDS", 0.1)  # the rest of the picture never comes
        head = b"POST /segment HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"
        assert b"The picture did not arrive within 0.2 s." in running.send_raw(head)


def test_active_requests_and_streams_are_answered_before_the_shutdown():
    with run_server() as running, ThreadPoolExecutor(2) as clients:
        with connect(running.stream) as client:
            with running.engine.pause():
                client.send(PICTURE)
                assert running.engine.called.wait(PATIENCE)
                picture = clients.submit(running.ask, "/segment", PICTURE)
                until(lambda: running.gate.batcher.queue)
                running.server.should_exit = True
                until(running.gate.closing.is_set)
                assert running.ask("/healthz").status == 503
                assert running.ask("/segment", PICTURE).json["error"] == "The server is shutting down."
            assert json.loads(client.recv(PATIENCE))["frame"] == 0
            assert len(zlib.decompress(client.recv(PATIENCE))) == 72 * 96
            with pytest.raises(ConnectionClosed):
                client.recv(PATIENCE)
            assert client.close_code == 1001
        assert picture.result(PATIENCE).status == 200
    with pytest.raises(ConnectionRefusedError):
        running.ask("/healthz")


def test_the_command_serves_until_a_signal(model, tmp_path):
    weights = tmp_path / "mine.safetensors"
    streamseg.save(model, streamseg.CAMVID, weights)
    command = [sys.executable, "-m", "streamseg", "serve", "--port", "0", weights, "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        port = int(re.fullmatch(r"http://0\.0\.0\.0:(\d+) serves mine\.safetensors\. Ctrl-C stops it\.\n", line)[1])
        status, body = hostile.send(port, REQUEST)
        assert status == 200
        expected, _ = label_frame(model, FRAME)
        assert (read_labels(body) == expected).float().mean() > 0.999
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert process.stderr.read() == (
            "streamseg: Everybody who can reach this machine can use the server: give --token to restrict it.\n"
        )


def test_the_time_of_a_batch_is_given_in_milliseconds():
    given = [LimitOptions(batch_time=milliseconds).limits().batch_seconds for milliseconds in (None, 30, math.inf)]
    assert given == [None, 0.03, math.inf]


def test_options_that_cannot_be_served_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    zone = '[[zone]]\nname = "z"\nclasses = ["%s"]\npoints = %s\n'
    (tmp_path / "cross.toml").write_text(zone % ("Car", "[[0, 0], [1, 1], [1, 0], [0, 1]]"))
    (tmp_path / "foreign.toml").write_text(zone % ("Submarine", "[[0, 0], [1, 1], [1, 0]]"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = complaint(monkeypatch, capsys, "serve", "--port", port)
        assert f"Could not listen on 127.0.0.1, port {port} (Address already in use): give another --port" in sentence
    for arguments, sentence in (
        (("--host", "nowhere.invalid"), "Could not listen on nowhere.invalid, port"),
        (("--host", "x" * 300), "is not a host: give an address of this machine"),
        (("--port", "70000"), "port is 70000; expected 0 to 65535."),
        (("--token", "a b"), "The token may hold only letters"),
        (("--queue", "0"), "queue is 0; expected"),
        (("--window", "0"), "window is 0; expected"),
        (("--seconds", "0"), "seconds is 0.0; expected a number above 0."),
        (("--batch-time", "0"), "batch-time is 0.0; expected a number above 0."),
        (("nowhere.safetensors",), "No weights at nowhere.safetensors"),
        (("--zones", "none.toml"), "No file of zones at none.toml: check the path."),
        (("--events", "events.jsonl"), "--events reports what happens in zones: give a file of them with --zones."),
        (("--zones", "cross.toml"), "cross.toml: Zone 'z' crosses itself, between its points 1 and 3"),
        (("--zones", "foreign.toml"), "Zone 'z': No class is called 'Submarine'; there are "),
        (
            ("--hardware-decoding", "auto"),
            "--hardware-decoding is for what the server reads: give --source or --fleet too",
        ),
        (("--save", "none"), "No folder none to save into: create it first."),
    ):
        port = () if "--port" in arguments else ("--port", "0")
        assert sentence in complaint(monkeypatch, capsys, "serve", *arguments, *port)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else name)
    assert complaint(monkeypatch, capsys, "serve").endswith("serve needs uvicorn: pip install 'streamseg[serve]'\n")
