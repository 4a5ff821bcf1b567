"""A server of ours in this process, on a small network that can be held up, and clients for it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection
from pathlib import Path

from exports import small
from waiting import PATIENCE

import streamseg
from streamseg.engine.engine import EagerEngine, Engine
from streamseg.serve import Limits, RequestGate, ServedModel, Server, listen

WINDOW = 3


@cache
def plain() -> Engine:
    return EagerEngine(small())


class Held:
    """An engine that waits while it is held, and notes how many frames it saw at once."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.free, self.asked = threading.Event(), threading.Event()
        self.free.set()
        self.batches: list[int] = []

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def predict(self, batch):
        self.batches.append(len(batch.images))
        self.asked.set()
        assert self.free.wait(PATIENCE)
        return self.engine.predict(batch)

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.free.clear()
        self.asked.clear()
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
class Running:
    """A server that runs."""

    server: Server
    engine: Held
    port: int

    @property
    def gate(self) -> RequestGate:
        return self.server.gate

    def ask(self, path: str, body: bytes | Iterator[bytes] | None = None, method: str = "", **headers: str) -> Answer:
        """Send a request, a POST if it has a body; _ in the names of headers stands for -."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method or ("GET" if body is None else "POST"), path, body, named)
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()


@contextmanager
def serving(limits: Limits | None = None, token: str = "", weights: Path = Path("small.onnx")) -> Iterator[Running]:
    engine = Held(plain())
    gate = RequestGate(ServedModel(engine, streamseg.CAMVID, WINDOW, weights), limits, token)
    listening = listen("127.0.0.1", 0)
    server = Server(gate)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield Running(server, engine, listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
