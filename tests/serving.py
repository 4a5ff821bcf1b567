"""A streamseg server in the test process, on a small network that can be paused, and clients for it."""

import io
import json
import re
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection
from pathlib import Path

import numpy
import pytest
import torch
from exports import moving, small
from PIL import Image
from waiting import PATIENCE

import streamseg
from streamseg.engine.engine import EagerEngine, Engine
from streamseg.engine.steadying import Steadiness
from streamseg.io.masks import Mask

# test modules that import this one are skipped where a library is missing
for library in ("fastapi", "uvicorn", "websockets"):
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'streamseg[serve]'")

from streamseg.serve import (  # noqa: E402 (needs these libraries)
    DataFolder,
    Limits,
    RequestGate,
    ServedModel,
    ServedZones,
    Server,
    add_sources,
    listen,
)

WINDOW = 3


@cache
def small_engine() -> Engine:
    return EagerEngine(small())


class PausableEngine:
    """An engine that can be paused, and records the number of frames in each batch."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.free, self.called = threading.Event(), threading.Event()
        self.free.set()
        self.batches: list[int] = []

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def predict(self, batch):
        self.batches.append(len(batch.images))
        self.called.set()
        assert self.free.wait(PATIENCE)
        return self.engine.predict(batch)

    @contextmanager
    def pause(self) -> Iterator[None]:
        self.free.clear()
        self.called.clear()
        try:
            yield
        finally:
            self.free.set()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)


@dataclass(frozen=True)
class RunningServer:
    server: Server
    engine: PausableEngine
    port: int

    @property
    def gate(self) -> RequestGate:
        return self.server.gate

    @property
    def stream(self) -> str:
        """The address of its WebSocket."""
        return f"ws://127.0.0.1:{self.port}/stream"

    def ask(self, path: str, body: bytes | Iterator[bytes] | None = None, method: str = "", **headers: str) -> Answer:
        """Send a request, a POST if it has a body; _ in the names of headers stands for -."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method or ("GET" if body is None else "POST"), path, body, named)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def send_raw(self, data: bytes) -> bytes:
        """Send bytes and nothing more; return all that the server answers."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def count_dropped(self, reason: str) -> int:
        """The number of dropped pictures and frames in the metrics."""
        found = re.search(rf'dropped_total\{{reason="{reason}"\}} (\d+)\n', self.ask("/metrics").body.decode())
        return int(found[1]) if found else 0


@contextmanager
def run_server(
    limits: Limits | None = None,
    token: str = "",
    weights: Path = Path("small.onnx"),
    sources: dict[str, str] | None = None,
    zones: ServedZones | None = None,
    folder: Path | None = None,
    mask: Mask | None = None,
    steady: float | Steadiness = 0.0,
) -> Iterator[RunningServer]:
    """Run a server in a thread; weights is the file that it says it serves, sources are those that it reads itself."""
    engine = PausableEngine(small_engine())
    served = ServedModel(engine, streamseg.CAMVID, WINDOW, weights, mask=mask, steady=steady)
    saves = DataFolder(folder, streamseg.CAMVID) if folder else None
    gate = RequestGate(served, limits, token, zones=zones, folder=saves)
    add_sources(gate, sources or {})
    listening = listen("127.0.0.1", 0)
    server = Server(gate)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield RunningServer(server, engine, listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def running():
    """A server with the default limits and no token, shared by the tests of a module."""
    with run_server() as server:
        yield server


def to_png(frame) -> bytes:
    """A frame as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(frame.permute(1, 2, 0).numpy()).save(file, format="PNG")
    return file.getvalue()


def read_labels(body: bytes):
    """The labels in a PNG file."""
    return torch.from_numpy(numpy.array(Image.open(io.BytesIO(body))))


def label_next(client, frame):
    """Send a frame to a stream, and return its labels."""
    client.send(to_png(frame))
    answer = json.loads(client.recv(PATIENCE))
    data = zlib.decompress(client.recv(PATIENCE))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(answer["height"], answer["width"])


FRAME = moving(1)[0]
PICTURE = to_png(FRAME)
REQUEST = b"POST /segment HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(PICTURE)
REQUEST += PICTURE


def open_view(server, name="road", query=""):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("GET", f"/streams/{name}.mjpeg{query}")
    return connection, connection.getresponse()


def next_picture(response):
    """Read a part of an MJPEG stream."""
    assert response.readline() == b"--frame\r\n"
    head = {}
    while (line := response.readline().strip()) != b"":
        name, _, value = line.decode().partition(": ")
        head[name] = value
    assert head["Content-Type"] == "image/jpeg"
    data = response.read(int(head["Content-Length"]))
    assert response.readline() == b"\r\n"
    return Image.open(io.BytesIO(data))


def leave(connection, response):
    response.close()
    connection.close()


ZONE = {"name": "a", "points": [[0.1, 0.1], [0.9, 0.1], [0.5, 0.9]], "classes": ["car"]}


def send_zones(server: RunningServer, content: object, path: str = "/zones", method: str = "POST") -> Answer:
    """Send a file of zones."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return server.ask(path, body, method)
