"""Cameras that send garbage, and many addresses of which half are dead: real servers on this machine."""

import functools
import io
import random
import re
import struct
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av
import pytest
from clips import make_clip, picture
from commands import error_line
from listeners import LOCALHOST, free_port
from segment_run import made, watch
from servers import RtspServer, jpeg, packetise, serve_http

from streamseg.io import sources, video_reading

FRAMES = [picture(i, (64, 96)).permute(1, 2, 0).numpy() for i in range(6)]
GARBAGE = random.Random(0).randbytes(200_000)
PICTURES = [jpeg(frame) for frame in FRAMES]
FILM = 8
"""Frames of the other source."""


@pytest.fixture(autouse=True)
def brief_waits(monkeypatch):
    """Live sources are given up soon."""
    monkeypatch.setattr(sources, "RECONNECT_DELAYS", (0.01, 0.02))


class Streams(BaseHTTPRequestHandler):
    """Streams by their paths: the first request of a path gets its bytes, and later ones get 503.

    Args:
        endless: What follows, over and over, until the client leaves.
    """

    def __init__(self, *request, kind, streams, endless=b""):
        self.kind, self.streams, self.endless = kind, streams, endless
        super().__init__(*request)

    def do_GET(self):
        data = self.streams.pop(self.path, None)
        if data is None:
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Type", self.kind)
        self.end_headers()
        try:
            self.wfile.write(data)
            while self.endless:
                self.wfile.write(self.endless)
        except OSError:  # the client has closed the connection
            pass

    def log_message(self, *_):
        pass


def serve_streams(kind, streams, **options):
    return serve_http(functools.partial(Streams, kind=kind, streams=streams, **options))


def part(data):
    """Return a part of a stream of pictures."""
    return f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data + b"\r\n"


def garbage_in_parts(size=2000):
    return b"".join(part(GARBAGE[i * size : (i + 1) * size]) for i in range(30))


def transport_stream():
    """Return frames as MPEG-TS."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream = container.add_stream("mpeg2video", rate=25, width=96, height=64, pix_fmt="yuv420p")
        stream.options = {"g": "3"}
        for i in range(60):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(FRAMES[i % len(FRAMES)], format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


MULTIPART = "multipart/x-mixed-replace; boundary=frame"
GOOD_PARTS = b"".join(map(part, PICTURES))
STREAMS = {
    "pictures, and garbage in their place": (MULTIPART, GOOD_PARTS, garbage_in_parts()),
    "pictures, and garbage between them": (MULTIPART, GOOD_PARTS, GARBAGE),
    "a transport stream": ("video/mp2t", transport_stream(), GARBAGE),
}


class NoisyRtspServer(RtspServer):
    """A network camera whose first visit has good frames, garbage, and good frames.

    Args:
        framed: Whether the garbage comes as RTP packets of the video, or as bytes between packets.
    """

    def __init__(self, frames, framed):
        super().__init__(frames, visits=[1])
        self.framed = framed

    def play(self, connection, count):
        dice = random.Random(1)
        number = 0
        for i in range(90):
            packets = packetise(self.coded[i % len(self.coded)], number, i * 3600)
            if 30 <= i < 60:
                packets = [packet[:12] + dice.randbytes(len(packet) - 12) for packet in packets]
                if not self.framed:
                    connection.sendall(dice.randbytes(3000))
                    continue
            connection.sendall(b"".join(b"$\0" + struct.pack("!H", len(packet)) + packet for packet in packets))
            number += len(packets)


def fleet(*cameras):
    tables = [f'[[camera]]\nname = "{name}"\naddress = "{address}"\n' for name, address in cameras]
    Path("fleet.toml").write_text("\n".join(tables))


def run_beside_a_film(segment, capsys, address):
    """Label a camera named noisy and a film; check the film, and return the lines of standard error."""
    make_clip(Path("film.mp4"), FILM, size=(64, 96))
    fleet(("noisy", address), ("film", "film.mp4"))
    status = segment("--fleet", "fleet.toml", "--size", "32x48")
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    assert status == 1, shown.err
    assert len(watch("segmented/film-overlay.mp4")) == FILM
    lines = shown.err.splitlines()
    assert all(line.startswith("streamseg: ") and line.isprintable() for line in lines), lines
    assert not any(line.startswith("streamseg: film") for line in lines)
    assert lines[-1] == "streamseg: 1 of 2 sources failed: noisy."
    return lines[:-1]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_camera_that_sends_garbage_for_a_while_ends_with_one_sentence(here, segment, capsys, stream):
    kind, good, garbage = STREAMS[stream]
    with serve_streams(kind, {"/live": good + garbage + good}) as url:
        lines = run_beside_a_film(segment, capsys, f"{url}/live")
    assert sum(" was lost after " in line for line in lines) == 1
    assert re.fullmatch(rf"streamseg: noisy: {url}/live was lost after \d+ frames and did not come .*\.", lines[-1])
    assert len(watch("segmented/noisy-overlay.mp4")) > 0


@pytest.mark.parametrize("framed", [True, False])
def test_a_network_camera_that_sends_garbage_for_a_while_ends_with_one_sentence(here, segment, capsys, framed):
    with NoisyRtspServer(FRAMES, framed) as server:
        lines = run_beside_a_film(segment, capsys, server.address)
    assert sum(" was lost after " in line for line in lines) == 1
    assert lines[-1].startswith(f"streamseg: noisy: {server.address} was lost after ")
    assert len(watch("segmented/noisy-overlay.mp4")) > 0


@pytest.mark.parametrize("stream", STREAMS)
def test_a_camera_that_sends_only_garbage_is_one_sentence(here, segment, capsys, stream):
    kind, _, garbage = STREAMS[stream]
    with serve_streams(kind, {"/live": garbage}) as url:
        lines = run_beside_a_film(segment, capsys, f"{url}/live")
    assert len(lines) == 1
    assert lines[0].startswith(f"streamseg: noisy: {url}/live ")
    assert made(here / "segmented") == ["film-overlay.mp4"]


def test_a_camera_that_sends_only_garbage_alone_is_one_sentence(here, segment, capsys):
    kind, _, garbage = STREAMS["pictures, and garbage between them"]
    with serve_streams(kind, {"/live": garbage}) as url:
        fleet(("noisy", f"{url}/live"))
        line = error_line(capsys, segment("--fleet", "fleet.toml"))
    assert re.search(r"is not a video that can be read|cannot be read", line)
    assert made(here) == ["fleet.toml"]


@pytest.mark.parametrize("good", [GOOD_PARTS, b""])
def test_a_camera_whose_garbage_never_ends_is_given_up(here, segment, capsys, monkeypatch, good):
    monkeypatch.setattr(video_reading, "UNDECODABLE_SECONDS", 0.0)
    with serve_streams(MULTIPART, {"/live": good}, endless=garbage_in_parts()) as url:
        (line,) = run_beside_a_film(segment, capsys, f"{url}/live")
    end = f"was lost after {len(PICTURES)} frames and did not come back within" if good else "is not a video that can"
    assert line.startswith(f"streamseg: noisy: {url}/live {end} ")
    assert len(made(here / "segmented")) == (2 if good else 1)


def test_half_of_200_addresses_are_dead_and_each_other_one_is_labelled(here, segment, capsys, monkeypatch):
    monkeypatch.setattr(ThreadingHTTPServer, "request_queue_size", 256)
    numbers, port = range(100), free_port()
    streams = {f"/{i}": GOOD_PARTS for i in numbers}
    with serve_streams(MULTIPART, streams) as url:
        live = [(f"live{i}", f"{url}/{i}") for i in numbers]
        dead = [(f"dead{i}", f"http://{LOCALHOST}:{port}/{i}") for i in numbers]
        fleet(*(camera for pair in zip(live, dead, strict=True) for camera in pair))
        assert segment("--fleet", "fleet.toml", "--size", "32x48") == 1
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    *lines, last = shown.err.splitlines()
    for name, address in dead:
        (line,) = (line for line in lines if line.startswith(f"streamseg: {name}: "))
        assert line == f"streamseg: {name}: {address} cannot be read: Connection refused."
    for name, address in live:
        (line,) = (line for line in lines if line.startswith(f"streamseg: {name}: "))
        assert line.startswith(f"streamseg: {name}: {address} was lost after {len(PICTURES)} frames and did not")
    assert re.fullmatch(r"streamseg: 200 of 200 sources failed: (\w+(, )?){200}\.", last)
    assert made(here / "segmented") == sorted(f"{name}-overlay.mp4" for name, _ in live)
    assert all(len(watch(path)) > 0 for path in Path("segmented").iterdir())
