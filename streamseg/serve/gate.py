"""Where requests are received, limited and counted on their way to the network.

A request has a place before its body is read and keeps it until it is answered; there are so many places, and who finds
none is told to come again. So memory and waiting are bounded, whatever clients do.
"""

import asyncio
import contextlib
import hmac
import logging
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message as Header
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import TypeVar

from fastapi import Request, WebSocket
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Message
from torch import Tensor

from streamseg.classes import Classes
from streamseg.engine.engine import Engine
from streamseg.io.images import TooLargeError, UnknownFormatError, decode_upload
from streamseg.serve.batches import Answer, Batcher
from streamseg.serve.counters import Counter, Gauge, Histogram
from streamseg.stream.state import State

Result = TypeVar("Result")

TOKEN = re.compile(r"[A-Za-z0-9._~+-]+")
"""What a token may hold: what headers and names of WebSocket protocols may."""

IDLE_SECONDS = 300.0
"""How long a stream may be silent."""


@dataclass(frozen=True)
class Limits:
    """What a client may ask for."""

    bytes: int = 32 * 2**20
    """Of a picture, or of a frame of a stream."""
    pixels: int = 32_000_000
    seconds: float = 30.0
    """For sending a picture, and again for waiting."""
    queue: int = 32
    """How many pictures and frames are being received, waited with or labelled."""


@dataclass(frozen=True)
class ServedModel:
    """What labels pictures, and what is known of it."""

    engine: Engine
    classes: Classes
    window: int
    """How many frames of a stream it looks at."""
    weights: Path
    """The file that it came from."""


class RequestError(Exception):
    """Why a request is not answered: a status, a sentence, and after how many seconds to ask again, if ever."""

    def __init__(self, status: int, sentence: str, again: int | None = None):
        super().__init__(sentence)
        self.status, self.sentence, self.again = status, sentence, again

    def response(self) -> JSONResponse:
        headers = {} if self.again is None else {"Retry-After": str(self.again)}
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": self.sentence}, self.status, headers)


class RequestGate:
    """Where requests are received, limited and counted on their way to the network.

    Args:
        token: What clients must know; nothing if empty.
        batch: The most frames that the network sees at once.
    """

    def __init__(self, served: ServedModel, limits: Limits | None = None, token: str = "", batch: int = 8):
        self.served, self.limits, self.token = served, limits or Limits(), token
        self.begun = self.streams = self.requests = 0
        self.closing = asyncio.Event()
        self.threads = ThreadPoolExecutor(thread_name_prefix="pictures")
        self.answered = Counter("streamseg_requests_total", "Requests that were answered.")
        self.frames = Counter("streamseg_frames_total", "Pictures and frames that were labelled.")
        self.dropped = Counter("streamseg_dropped_total", "Pictures and frames that were refused or given up.")
        self.latency = Histogram(
            "streamseg_latency_seconds",
            "From the first byte of a picture or frame to its answer.",
            (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        batches = Histogram("streamseg_batch_frames", "Frames that the network saw at once.", (1, 2, 4, 8, 16, 32))
        self.batcher = Batcher(served.engine, served.window, batch, batches.add, busy=lambda: self.begun > 0)
        self.counted: list[Counter | Histogram | Gauge] = [
            self.answered,
            self.frames,
            self.dropped,
            self.latency,
            batches,
            Gauge("streamseg_queue_frames", "Frames that wait for the network.", lambda: len(self.batcher.waiting)),
            Gauge("streamseg_begun", "Pictures and frames that are not answered yet.", lambda: self.begun),
            Gauge("streamseg_streams", "Streams that are open.", lambda: self.streams),
        ]

    def close(self) -> None:
        """Finish what is begun."""
        self.batcher.close()
        self.threads.shutdown()

    def check_token(self, connection: HTTPConnection) -> None:
        """Refuse who does not know the token, by a header or, as browsers must, by the name of a protocol."""
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        candidates = [given.strip()] if scheme.lower() == "bearer" else []
        candidates += [name[7:] for name in connection.scope.get("subprotocols", ()) if name.startswith("bearer.")]
        # in the time that it takes whether one is nearly right or not
        known = [hmac.compare_digest(candidate.encode(), self.token.encode()) for candidate in candidates]
        if self.token and not any(known):
            raise RequestError(401, "This server wants a token: send it as Authorization: Bearer TOKEN.")

    @contextlib.contextmanager
    def place(self, source: str) -> Iterator[None]:
        """A place for a picture or frame, from its arrival to its answer."""
        if self.closing.is_set():
            raise RequestError(503, "The server is being shut down.", 10)
        if self.begun >= self.limits.queue:
            self.dropped.add(reason="full")
            raise RequestError(503, f"{self.begun} pictures are being labelled, and more have no room.", self.wait())
        begin = monotonic()
        self.begun += 1
        try:
            yield
            self.frames.add(source=source)
            self.latency.add(monotonic() - begin)
        finally:
            self.begun -= 1

    def wait(self) -> int:
        """Seconds after which there should be room again: what the pictures so far took."""
        return max(1, math.ceil(self.latency.total / max(1, sum(self.latency.counts))))

    async def read_body(self, request: Request) -> bytes:
        """The picture in a request: its body, or the first file in a form."""
        data = bytearray()
        most, seconds = self.limits.bytes, self.limits.seconds
        too_large = RequestError(413, f"The picture has more than {most:,} bytes: make it smaller first.")
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    data += part
                    if len(data) > most:
                        raise too_large
        except TimeoutError:
            raise RequestError(408, f"The picture did not arrive within {seconds:g} s.") from None
        except ClientDisconnect:
            raise RequestError(400, "The picture was cut off.") from None
        picture = take_file(bytes(data), request.headers.get("content-type", ""))
        if not picture:
            raise RequestError(400, "There is no picture in the request: send one as its body, or as a file in a form.")
        return picture

    async def decode(self, data: bytes) -> Tensor:
        try:
            return await self.in_thread(decode_upload, data, self.limits.pixels)
        except UnknownFormatError as error:
            raise RequestError(415, str(error)) from None
        except TooLargeError as error:
            raise RequestError(413, str(error)) from None
        except ValueError as error:
            raise RequestError(400, str(error)) from None

    async def label(self, frame: Tensor, state: State | None = None) -> Answer:
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await asyncio.wrap_future(self.batcher.submit(frame, state))
        except TimeoutError:
            self.dropped.add(reason="late")
            raise RequestError(503, f"It was not done within {self.limits.seconds:g} s.", self.wait()) from None
        except Exception:  # a fault of ours, or memory that is full
            logging.getLogger("streamseg").exception("A picture of %s could not be labelled.", tuple(frame.shape))
            raise RequestError(500, "The server failed at this picture; its log says how.") from None

    async def in_thread(self, work: Callable[..., Result], *given: object) -> Result:
        """Do something that takes long without holding up other requests."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *given)

    async def label_unless_gone(self, request: Request, frame: Tensor) -> Tensor:
        """The labels of a frame; a client that has hung up is not worked for."""
        work = asyncio.ensure_future(self.label(frame))
        gone = asyncio.ensure_future(hung_up(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.dropped.add(reason="gone")
                raise RequestError(400, "The client has hung up.")
            labels, _ = await work
            return labels
        finally:
            work.cancel()
            gone.cancel()

    async def receive(self, client: WebSocket) -> Message | None:
        """What a stream sends next; None when it ends, is silent for long, or the server is shut down."""
        message = asyncio.ensure_future(client.receive())
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait({message, closing}, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() and message.result()["type"] == "websocket.receive" else None
        finally:
            message.cancel()
            closing.cancel()


async def hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def take_file(body: bytes, content_type: str) -> bytes:
    """The first file in the body of a form (multipart/form-data); any other body as it is."""
    header = Header()
    header["Content-Type"] = "".join(letter for letter in content_type if letter.isprintable())
    boundary = header.get_param("boundary")
    if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        return body
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode(errors="replace"))[1:]:
        head, _, content = part.partition(b"\r\n\r\n")
        if b"filename" in head.lower():
            return content
    return b""
