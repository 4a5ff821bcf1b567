# ruff: noqa: E402 (where a library is missing, nothing of it is imported)
import asyncio
import io
import json
import re
import signal
import socket
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import hostile
import numpy
import pytest
import torch
from commands import complaint
from exports import SIZE, exported as exported, moving
from PIL import Image
from waiting import PATIENCE, until

import streamseg
from streamseg import cli
from streamseg.draw import overlay
from streamseg.io.images import to_frame
from streamseg.serve import page
from streamseg.stream.label_frames import label_frame, label_frames

for library in ("fastapi", "uvicorn", "websockets"):
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'streamseg[serve]'")

from serving import WINDOW, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from streamseg.serve import Limits, server
from streamseg.serve.app import pick_kind
from streamseg.serve.gate import RequestError, take_file


@pytest.fixture(scope="module")
def running():
    with serving() as found:
        yield found


def png(frame):
    """A frame as a file."""
    file = io.BytesIO()
    Image.fromarray(frame.permute(1, 2, 0).numpy()).save(file, format="PNG")
    return file.getvalue()


FRAME = moving(1)[0]
PICTURE = png(FRAME)
REQUEST = b"POST /segment HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(PICTURE)
REQUEST += PICTURE


def labels_in(body):
    return torch.from_numpy(numpy.array(Image.open(io.BytesIO(body))))


# pictures


def test_a_picture_is_answered_as_labels_overlay_or_json_as_the_client_likes(running):
    expected, _ = label_frame(running.engine.engine, FRAME)
    found = running.ask("/segment", PICTURE)
    assert (found.status, found.headers["content-type"]) == (200, "image/png")
    assert labels_in(found.body).equal(expected)
    assert Image.open(io.BytesIO(found.body)).getpalette()[3:6] == [*streamseg.CAMVID.colours[1]]
    found = running.ask("/segment?alpha=1", PICTURE, Accept="image/jpeg")
    drawn = to_frame(Image.open(io.BytesIO(found.body)))
    assert (drawn.float() - overlay(FRAME, expected, streamseg.CAMVID, 1.0).float()).abs().mean() < 20
    found = running.ask("/segment", PICTURE, Accept="application/json").json
    assert (found["height"], found["width"]) == SIZE
    assert [entry["name"] for entry in found["classes"]] == [*streamseg.CAMVID.names]
    shares = [(expected == i).float().mean().item() for i in range(11)]
    assert [entry["share"] for entry in found["classes"]] == pytest.approx(shares, abs=1e-5)


def test_a_picture_may_come_as_a_file_in_a_form(running):
    body = b'--e\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--e\r\nContent-Disposition: form-data; '
    body += b'name="picture"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n' + PICTURE + b"\r\n--e--\r\n"
    kind = "multipart/form-data; boundary=e"
    assert running.ask("/segment", body, Content_Type=kind).body == running.ask("/segment", PICTURE).body
    assert take_file(body, kind) == PICTURE
    assert take_file(body, "image/png") == body
    assert take_file(b"--e\r\n\r\nno file\r\n--e--", kind) == b""


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "image/png"),
        ("image/*", "image/png"),
        ("image/jpeg, */*;q=0.1", "image/jpeg"),
        ("image/png;q=0.2, application/json;q=0.3", "application/json"),
        ("text/html, application/json;q=0.9, */*;q=0.8", "application/json"),
        ("IMAGE/PNG;q=0, image/*", "image/jpeg"),
    ],
)
def test_the_kind_of_answer_is_what_the_client_likes_best(accept, kind):
    assert pick_kind(accept) == kind


def test_a_kind_that_is_not_there_is_refused():
    for accept in ("text/html", "*/*;q=0", ""):
        with pytest.raises(RequestError, match="accept one of image/png"):
            pick_kind(accept)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "sentence"),
    [
        ("/segment", b"", {}, 400, "There is no picture in the request"),
        ("/segment", b"hello", {}, 415, "The data is no picture: send a PNG"),
        ("/segment", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", {}, 415, "The data is no picture"),
        ("/segment", PICTURE[:200], {}, 400, "The picture is damaged or cut short"),
        ("/segment", hostile.bomb(30_000, 30_000), {}, 413, "The picture has more than 32,000,000 pixels"),
        ("/segment", hostile.bomb(6_000, 6_000), {}, 413, "The picture has more than 32,000,000 pixels"),
        ("/segment", bytes(33 * 2**20), {}, 413, "The picture has more than 33,554,432 bytes"),
        ("/segment", (bytes(2**20) for _ in range(33)), {}, 413, "The picture has more than 33,554,432 bytes"),
        ("/segment", PICTURE, {"Accept": "text/html"}, 406, "accept one of image/png, image/jpeg, application/json."),
        ("/segment?alpha=2", PICTURE, {}, 422, "alpha: Input should be less than or equal to 1."),
        ("/segment?alpha=nan", PICTURE, {}, 422, "alpha: "),
        ("/segment", None, {}, 405, "That method is not for this address."),
        ("/stream", None, {}, 426, "A stream is a WebSocket: see /docs."),
        ("/nowhere", None, {}, 404, "There is nothing at this address: see /docs."),
        ("/samples/..%2f..%2fpyproject.toml", None, {}, 404, "There is nothing at this address"),
        ("/library/1.30.0/..%2f..%2f__init__.py", None, {}, 404, "There is nothing at this address"),
        ("/__init__.py", None, {}, 404, "There is nothing at this address"),
    ],
)
def test_what_is_refused_has_a_status_that_fits_and_a_sentence(running, path, body, headers, status, sentence):
    found = running.ask(path, body, **headers)
    assert found.status == status
    assert [*found.json] == ["error"]
    assert sentence in found.json["error"]


def test_who_still_sends_is_answered_at_once_and_may_finish(running):
    size = 40 * 2**20
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as line:
        line.sendall(f"POST /segment HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode())
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
        line.sendall(bytes(size))
        while line.recv(1 << 16):  # the rest of the answer, and then the end of the line, which is no error
            pass


def test_who_takes_no_end_of_a_refusal_is_not_waited_for():
    async def refuse(scope, receive, send):
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
        asyncio.run(server.Guard(refuse, gate)(scope, receive, send))
    assert [message.get("more_body") for message in sent] == [None, True, None]
    assert gate.requests == 0


def test_a_strip_is_labelled_but_is_no_jpeg(running):
    strip = png(torch.zeros(3, 1, 70_000, dtype=torch.uint8))
    assert labels_in(running.ask("/segment", strip).body).shape == (1, 70_000)
    found = running.ask("/segment", strip, Accept="image/jpeg")
    assert (found.status, found.json["error"]) == (406, "A JPEG has at most 65,500 pixels a side: accept image/png.")


@pytest.mark.slow
def test_a_thousand_hostile_requests_get_no_500_and_the_server_answers_afterwards(running):
    with ThreadPoolExecutor(8) as clients:
        found = {*clients.map(lambda request: hostile.check(running.port, request), hostile.requests(1000))}
    assert {101, 200, 400, 403, 404, 405, 406, 413, 415} <= found
    assert running.ask("/segment", PICTURE).status == 200
    until(lambda: not (running.gate.begun or running.gate.streams))


def test_a_failure_of_the_network_is_told_and_the_next_picture_is_labelled(running, monkeypatch, capfd):
    with monkeypatch.context() as broken, connect(f"ws://127.0.0.1:{running.port}/stream") as client:
        broken.setattr(running.engine, "engine", None)
        found = running.ask("/segment", PICTURE)
        assert (found.status, found.json["error"]) == (500, "The server failed at this picture; its log says how.")
        client.send(PICTURE)
        assert json.loads(client.recv(PATIENCE))["status"] == 500
    assert running.ask("/segment", PICTURE).status == 200
    assert "A picture of (3, 72, 96) could not be labelled." in capfd.readouterr().err


# limits


def test_who_is_slow_is_told_so(monkeypatch):
    with serving(Limits(seconds=0.2)) as running:
        with monkeypatch.context() as short:
            short.setattr(server, "HEAD_SECONDS", 0.2)
            for begin in (b"", b"GET / HT"):
                assert b"The request did not arrive within 0.2 s." in slowly(running.port, begin)
        monkeypatch.setattr(server, "HEAD_SECONDS", PATIENCE)  # so that a busy machine is no slow client
        monkeypatch.setattr(server, "DRAIN_SECONDS", 0.1)  # how long the rest of the picture is waited for
        head = b"POST /segment HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"
        assert b"The picture did not arrive within 0.2 s." in slowly(running.port, head)


def count_dropped(running, reason):
    """How many pictures and frames the server says that it has dropped."""
    found = re.search(rf'dropped_total\{{reason="{reason}"\}} (\d+)\n', running.ask("/metrics").body.decode())
    return int(found[1]) if found else 0


def test_what_is_not_done_in_time_is_given_up_and_counted(running, monkeypatch):
    decode, late = running.gate.decode, count_dropped(running, "late")

    async def decode_and_hurry(data):
        frame = await decode(data)
        hurry.setattr(running.gate, "limits", Limits(seconds=0.05))  # from here on, however long it took to arrive
        return frame

    with monkeypatch.context() as hurry, running.engine.hold():
        hurry.setattr(running.gate, "decode", decode_and_hurry)
        found = running.ask("/segment", PICTURE)
    assert (found.status, found.headers["retry-after"]) == (503, "1")
    assert found.json["error"] == "It was not done within 0.05 s."
    assert count_dropped(running, "late") == late + 1


def slowly(port, begin):
    """All that a server answers to who says no more than a beginning."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as line:
        line.sendall(begin)
        return b"".join(iter(lambda: line.recv(65536), b""))


def test_a_full_queue_sends_clients_away_and_what_waited_is_seen_together():
    with serving(Limits(queue=4)) as running, ThreadPoolExecutor(4) as clients:
        with running.engine.hold():
            first = clients.submit(running.ask, "/segment", PICTURE)
            assert running.engine.asked.wait(PATIENCE)
            others = [clients.submit(running.ask, "/segment", PICTURE) for _ in range(3)]
            until(lambda: len(running.gate.batcher.waiting) == 3)
            found = running.ask("/segment", PICTURE)
            assert found.status == 503
            assert found.json["error"] == "4 pictures are being labelled, and more have no room."
            assert int(found.headers["retry-after"]) >= 1
            told = running.ask("/metrics").body.decode()
            assert "streamseg_queue_frames 3" in told
            assert "streamseg_begun 4" in told
        assert {answer.result().body for answer in (first, *others)} == {first.result().body}
        assert running.engine.batches == [1, 3]
        told = running.ask("/metrics").body.decode()
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
            assert f"{line}\n" in told


def test_who_hangs_up_is_not_worked_for(running):
    before, gone = len(running.engine.batches), count_dropped(running, "gone")
    with ThreadPoolExecutor(1) as clients:
        with running.engine.hold():
            first = clients.submit(running.ask, "/segment", PICTURE)
            assert running.engine.asked.wait(PATIENCE)
            with socket.create_connection(("127.0.0.1", running.port)) as line:
                line.sendall(REQUEST)
                until(lambda: running.gate.batcher.waiting)
            until(lambda: all(job.answer.cancelled() for job in running.gate.batcher.waiting))
            until(lambda: running.gate.begun == 1)
        assert first.result(PATIENCE).status == 200
        # the next one would be seen after what was left behind, or together with it
        assert running.ask("/segment", PICTURE).status == 200
    assert running.engine.batches[before:] == [1, 1]
    assert count_dropped(running, "gone") == gone + 1


def test_without_the_token_nothing_is_told_but_health_and_the_page():
    with serving(token="secret.Token-1") as running:
        for path in ("/info", "/metrics", "/browser", "/model.onnx"):
            assert running.ask(path).status == 401
        for given in ("", "Bearer", "Bearer wrong", "Basic secret.Token-1", "Bearer secret.Token-1x", "Bearer \xff"):
            found = running.ask("/segment", PICTURE, Authorization=given)
            assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer")
            assert "send it as Authorization: Bearer TOKEN." in found.json["error"]
        for path in ("/healthz", "/", "/page.js", "/docs", "/openapi.json"):
            assert running.ask(path).status == 200
        assert running.ask("/segment", PICTURE, Authorization="bearer secret.Token-1").status == 200
        address = f"ws://127.0.0.1:{running.port}/stream"
        for options in ({}, {"subprotocols": ["streamseg", "bearer.wrong"]}):
            with pytest.raises(InvalidStatus) as refused:
                connect(address, **options)
            assert refused.value.response.status_code == 401
            assert "token" in json.loads(refused.value.response.body)["error"]
        with connect(address, subprotocols=["streamseg", "bearer.secret.Token-1"]) as client:
            assert client.subprotocol == "streamseg"
        with connect(address, additional_headers={"Authorization": "Bearer secret.Token-1"}) as client:
            assert client.subprotocol is None


# streams


def next_labels(client, frame):
    """What a stream answers to a frame."""
    client.send(png(frame))
    told = json.loads(client.recv(PATIENCE))
    data = zlib.decompress(client.recv(PATIENCE))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(told["height"], told["width"])


def test_each_stream_has_a_state_of_its_own(running):
    address = f"ws://127.0.0.1:{running.port}/stream"
    one, other = moving(5), moving(5)[::-1]
    with connect(address) as first, connect(address) as second:
        answers = [(next_labels(first, a), next_labels(second, b)) for a, b in zip(one, other, strict=True)]
    for frames, found in zip((one, other), zip(*answers, strict=True), strict=True):
        expected = [labels for _, labels in label_frames(running.engine.engine, frames, WINDOW)]
        assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
    alone, _ = label_frame(running.engine.engine, one[4])
    assert not answers[4][0].equal(alone)


def test_a_wrong_frame_is_refused_and_the_stream_goes_on(running):
    frames = moving(2)
    with connect(f"ws://127.0.0.1:{running.port}/stream") as client:
        next_labels(client, frames[0])
        for wrong, status in (("hello", 400), (b"", 400), (b"hello", 415), (hostile.bomb(9**9, 9), 413)):
            client.send(wrong)
            told = json.loads(client.recv(PATIENCE))
            assert told["status"] == status
            assert told["error"].endswith(".")
        expected = [labels for _, labels in label_frames(running.engine.engine, frames, WINDOW)]
        assert next_labels(client, frames[1]).equal(expected[1])


def test_too_large_a_frame_ends_its_stream_and_pages_of_others_get_none():
    with serving(Limits(bytes=20_000, queue=1)) as running:
        address = f"ws://127.0.0.1:{running.port}/stream"
        with connect(address) as client:
            with pytest.raises(InvalidStatus) as refused:
                connect(address)
            assert refused.value.response.status_code == 503
            with pytest.raises(ConnectionClosed):
                client.send(bytes(30_000))
                client.recv(PATIENCE)
            assert client.close_code == 1009
        for path, status in (("/stream", 403), ("/x", 404)):
            with pytest.raises(InvalidStatus) as refused:
                connect(f"ws://127.0.0.1:{running.port}{path}", origin="http://elsewhere")
            assert refused.value.response.status_code == status


def test_only_a_page_of_exactly_this_server_may_open_a_stream(running):
    host = f"127.0.0.1:{running.port}"
    for origin in (f"http://{host}", f"https://{host}"):  # whatever stands in front may do the encryption
        with connect(f"ws://{host}/stream", origin=origin):
            pass
    # names that begin or end as this server's, or hold it; and none, which a sandboxed page sends
    others = (
        f"{host}.evil.com",
        f"{host}0",
        f"evil.com.{host}",
        f"{host}@evil.com",
        f"evil.com/{host}",
        "127.0.0.1",
        "",
    )
    for origin in (*(f"http://{name}" for name in others), "null", host):
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://{host}/stream", origin=origin)
        assert refused.value.response.status_code == 403, origin


# the end


def test_what_is_begun_is_answered_before_the_end():
    with serving() as running, ThreadPoolExecutor(2) as clients:
        with connect(f"ws://127.0.0.1:{running.port}/stream") as client:
            with running.engine.hold():
                client.send(PICTURE)
                assert running.engine.asked.wait(PATIENCE)
                picture = clients.submit(running.ask, "/segment", PICTURE)
                until(lambda: running.gate.batcher.waiting)
                running.server.should_exit = True
                until(running.gate.closing.is_set)
                assert running.ask("/healthz").status == 503
                assert running.ask("/segment", PICTURE).json["error"] == "The server is being shut down."
            assert json.loads(client.recv(PATIENCE))["frame"] == 0
            assert len(zlib.decompress(client.recv(PATIENCE))) == 72 * 96
            with pytest.raises(ConnectionClosed):
                client.recv(PATIENCE)
            assert client.close_code == 1001
        assert picture.result(PATIENCE).status == 200
    with pytest.raises(ConnectionRefusedError):
        running.ask("/healthz")


def test_the_command_serves_until_a_signal_comes(model, tmp_path):
    weights = tmp_path / "mine.safetensors"
    streamseg.save(model, streamseg.CAMVID, weights)
    command = [sys.executable, "-m", "streamseg", "serve", "--port", "0", weights, "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        told = process.stdout.readline()
        port = int(re.fullmatch(r"http://0\.0\.0\.0:(\d+) serves mine\.safetensors\. Ctrl-C ends it\.\n", told)[1])
        status, body = hostile.send(port, REQUEST)
        assert status == 200
        expected, _ = label_frame(model, FRAME)
        assert (labels_in(body) == expected).float().mean() > 0.999
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert process.stderr.read() == (
            "streamseg: Whoever reaches this machine can use the server: give --token to choose who.\n"
        )


def test_what_cannot_be_served_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = complaint(monkeypatch, capsys, "serve", "--port", port)
        assert f"Nothing can listen at 127.0.0.1, port {port} (Address already in use): give another --port" in told
    for arguments, sentence in (
        (("--host", "nowhere.invalid"), "Nothing can listen at nowhere.invalid, port"),
        (("--host", "x" * 300), "is no host: give an address of this machine"),
        (("--port", "70000"), "port is 70000; expected 0 to 65535."),
        (("--token", "a b"), "The token holds other characters than letters"),
        (("--queue", "0"), "queue is 0; expected"),
        (("--window", "0"), "window is 0; expected"),
        (("--seconds", "0"), "seconds is 0.0; expected a number above 0."),
        (("nowhere.safetensors",), "No weights at nowhere.safetensors"),
    ):
        port = () if "--port" in arguments else ("--port", "0")
        assert sentence in complaint(monkeypatch, capsys, "serve", *arguments, *port)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else name)
    assert complaint(monkeypatch, capsys, "serve").endswith("serve needs uvicorn: pip install 'streamseg[serve]'\n")


# the page's needs


def test_the_page_asks_nothing_of_other_servers(running):
    found = running.ask("/")
    assert found.headers["cross-origin-opener-policy"] == "same-origin"
    assert found.headers["cross-origin-embedder-policy"] == "require-corp"
    assert found.headers["content-security-policy"].startswith("default-src 'self'; ")
    for path in page.PAGE.glob("*.[hcjs]*"):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"(?:https?:)?//[a-z]", text) == [], path
        assert running.ask(f"/{path.name}").body == path.read_bytes()
    assert running.ask("/docs").body == (page.PAGE / "docs.html").read_bytes()
    told = running.ask("/openapi.json").json["paths"]
    assert {*told} == {"/segment", "/healthz", "/metrics", "/info", "/browser", "/model.onnx"}
    assert {*told["/segment"]["post"]["responses"]} >= {"200", "400", "401", "406", "408", "413", "415", "503"}
    info = running.ask("/info").json
    assert info["classes"][1] == {"name": "Building", "colour": "#800000"}
    assert running.ask(f"/samples/{info['samples'][0]}").headers["content-type"] == "image/jpeg"


@pytest.fixture
def no_library(tmp_path, monkeypatch):
    """A machine that has no library for browsers, and no network."""
    monkeypatch.setattr(page, "INSIDE", tmp_path / "none" / "library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:9")
    return tmp_path


def with_library(folder):
    """Files that stand for the library."""
    (folder / "none" / "library").mkdir(parents=True)
    for name in page.NEEDED:
        (folder / "none" / "library" / name).write_text(name)


def test_a_browser_is_told_why_it_cannot_compute(no_library, exported):
    with serving(weights=exported("any.onnx")) as running:
        found = running.ask("/browser")
        assert found.status == 503
        assert "The network cannot run in your browser: onnxruntime-web could not be fetched" in found.json["error"]
        assert found.json["error"].endswith("and run: python -m streamseg.serve.page")
        assert running.ask(f"/library/{page.VERSION}/{page.NEEDED[0]}").status == 404
    with_library(no_library)
    with serving(weights=no_library / "model.xml") as running:
        found = running.ask("/browser")
        assert (found.status, found.headers.get("retry-after")) == (404, None)
        assert found.json["error"] == "No browser runs model.xml: serve a checkpoint, or an .onnx file."
        assert running.ask("/model.onnx").status == 404


def test_a_browser_gets_the_file_that_is_served(no_library, exported):
    with_library(no_library)
    with serving(weights=exported("any.onnx")) as running:
        found = running.ask("/browser").json
        assert (found["size"], found["averages"], found["window"]) == (None, True, WINDOW)
        assert [tuple(shape) for shape in found["state"]] == [(8, 64), (8, 128), (8, 256), (8, 512)]
        assert running.ask(f"/{found['model']}").body == exported("any.onnx").read_bytes()
        library = running.ask(f"/{found['library']}/{page.NEEDED[0]}")
        assert library.body == page.NEEDED[0].encode()
        assert library.headers["content-type"].startswith("text/javascript")


def test_a_checkpoint_is_exported_for_browsers_once(no_library, exported, monkeypatch):
    """What exports is a stand-in here: the real one takes half a minute, and has tests of its own."""
    with_library(no_library)
    weights = no_library / "weights.safetensors"
    weights.write_bytes(b"weights")
    program = no_library / "python"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {no_library}/asked\n'
        f'[ -e {no_library}/broken ] && echo "streamseg: It went wrong." >&2 && exit 2\n'
        f'cp {exported("any.onnx")} "$5"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    (no_library / "broken").touch()
    with serving(weights=weights) as running:
        told = running.ask("/browser").json["error"]
        assert told == "The network cannot run in your browser: It went wrong."
    (no_library / "broken").unlink()
    for _ in range(2):
        with serving(weights=weights) as running:
            assert running.ask(f"/{running.ask('/browser').json['model']}").body == exported("any.onnx").read_bytes()
    asked = (no_library / "asked").read_text().splitlines()
    assert len(asked) == 2
    assert re.fullmatch(rf"-m streamseg export {weights} {no_library}/cache/streamseg/\w+\.onnx --video", asked[0])


def test_health_is_told_without_a_token(running):
    assert running.ask("/healthz").json == {"status": "ok"}


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/healthz", 200), ("/segment", 405), ("/nowhere", 404)])
def test_a_head_is_that_of_the_answer(running, path, status):
    found, whole = running.ask(path, method="HEAD"), running.ask(path)
    assert (found.status, found.body) == (status, b"")
    assert found.headers["content-length"] == str(len(whole.body))
    assert found.headers["content-type"] == whole.headers["content-type"]


def test_the_options_and_addresses_on_the_page_on_serving_exist(running, monkeypatch, capsys):
    document = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    monkeypatch.setattr(sys, "argv", ["streamseg", "serve", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    known = capsys.readouterr().out + "--data-binary"  # of curl
    for option in re.findall(r"--[a-z-]+", document):
        assert option in known, option
    addresses = re.findall(r"^curl localhost:8000(/[a-z.]+)", document, re.MULTILINE)
    assert {*addresses} > {*running.ask("/openapi.json").json["paths"]}
