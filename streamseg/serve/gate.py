"""The request gate: limits, counts and timeouts of requests on their way to the network.

A request is admitted before its body is read, and counts as active until it is answered. The number of active requests
is limited, and requests beyond the limit get 503 with Retry-After: memory and waiting time are bounded.
"""

import asyncio
import contextlib
import hmac
import itertools
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message as Header
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request, WebSocket
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Message
from torch import Tensor

from streamseg.classes import Classes
from streamseg.engine.engine import Engine
from streamseg.engine.steadying import Steadiness
from streamseg.io.images import decode_uploaded_ids
from streamseg.io.masks import Mask
from streamseg.io.pictures import TooLargeError, UnknownFormatError
from streamseg.serve.batches import Batcher, Labelled
from streamseg.serve.codecs import Codecs, RequestCodec, process_count
from streamseg.serve.counters import Counter, Gauge, PrometheusHistogram, format_metrics
from streamseg.serve.zone_watch import ServedZones
from streamseg.stream.state import LastFrames, State

if TYPE_CHECKING:
    from streamseg.serve.saving import DataFolder
    from streamseg.serve.sources import ServedSource

TOKEN = re.compile(r"[A-Za-z0-9._~+-]+")
"""The characters of a token: those that are allowed in headers and in names of WebSocket protocols."""

STREAM_IDLE_SECONDS = 300.0
"""A stream that sends nothing for this long is closed."""


@dataclass(frozen=True)
class Limits:
    """Limits on what clients send, and on how long the server waits and a batch takes."""

    bytes: int = 32 * 2**20
    """Size of a picture, or of a frame of a stream."""
    pixels: int = 32_000_000
    """Width times height of either."""
    seconds: float = 30.0
    """Timeout for receiving a picture, and again for labelling it."""
    queue: int = 32
    """Pictures and frames that are received, queued or labelled at a time; also the number of open streams."""
    viewers: int = 256
    """Viewers of the sources that the server reads: of their pictures and of their events."""
    batch_seconds: float | None = None
    """How long a batch should take; None for the default of the network's device."""


@dataclass(frozen=True)
class ServedModel:
    """The network that is served."""

    engine: Engine
    classes: Classes
    window: int
    """How many frames of a stream the network uses, including the current one."""
    weights: Path
    """The file that it was loaded from."""
    drawn: Classes | None = None
    """The classes in the colours of overlays and of the page; None for the colours that they have."""
    name: str = ""
    """What the weights are called; empty for the name of the file."""
    mask: Mask | None = None
    """Pixels to ignore; None for none."""
    steady: float | Steadiness = 0.0
    """How steady the labels of a stream are kept."""

    @property
    def title(self) -> str:
        return self.name or self.weights.name


class RequestError(Exception):
    """An error to report to the client: a status, a sentence and, for Retry-After, a number of seconds."""

    def __init__(self, status: int, sentence: str, retry_after: int | None = None):
        super().__init__(sentence)
        self.status, self.sentence, self.retry_after = status, sentence, retry_after

    def response(self) -> JSONResponse:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": self.sentence}, self.status, headers)


class RequestGate:
    """Limits, counts and timeouts of requests on their way to the network.

    Args:
        token: The token that clients must send; none if empty.
        batch: The largest number of frames in a batch.
        zones: The zones of streams, if there are any.
        folder: Where pictures that clients correct are saved; nowhere if None.
        processes: The most processes that decode and encode pictures; None for as many as the machine has use for.
    """

    def __init__(
        self,
        served: ServedModel,
        limits: Limits | None = None,
        token: str = "",
        batch: int = 8,
        zones: ServedZones | None = None,
        folder: "DataFolder | None" = None,
        processes: int | None = None,
    ):
        self.served, self.limits, self.token = served, limits or Limits(), token
        self.active = self.streams = self.requests = 0
        self.closing = asyncio.Event()
        self.sources: dict[str, ServedSource] = {}
        """The sources that the server reads itself, by name."""
        self.zones, self.folder = zones or ServedZones(), folder
        self.zones.check(served.classes)
        self.answered = Counter("streamseg_requests_total", "HTTP requests answered.")
        self.frames = Counter("streamseg_frames_total", "Pictures and frames labelled.")
        self.dropped = Counter("streamseg_dropped_total", "Pictures and frames rejected or abandoned.")
        self.stream_frames = Counter("streamseg_stream_frames_total", "Frames of each open stream, by answer.")
        self.stream_seconds = Counter(
            "streamseg_stream_seconds_total",
            "Time from arrival to answer, over the labelled frames of each open stream.",
        )
        self.stream_numbers = itertools.count(1)
        self.latency = PrometheusHistogram(
            "streamseg_latency_seconds",
            "Time from the arrival of a picture or frame to its answer.",
            (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        batches = PrometheusHistogram("streamseg_batch_frames", "Frames in a batch.", (1, 2, 4, 8, 16, 32))
        policy = LastFrames(served.window, steady=served.steady)
        self.batcher = Batcher(served.engine, policy, batch, batches.add, self.limits.batch_seconds)
        count = process_count() if processes is None else processes
        self.codecs = Codecs(self.limits.bytes, self.limits.pixels, count, self.limits.seconds)
        self.metrics: list[Counter | PrometheusHistogram | Gauge] = [
            self.answered,
            self.frames,
            self.dropped,
            self.latency,
            batches,
            Gauge("streamseg_queue_frames", "Frames in the queue.", lambda: len(self.batcher.queue)),
            Gauge("streamseg_begun", "Pictures and frames received and not answered yet.", lambda: self.active),
            Gauge("streamseg_streams", "Open streams.", lambda: self.streams),
            self.stream_frames,
            self.stream_seconds,
        ]

    @property
    def listeners(self) -> int:
        """How many WebSockets receive the events of sources."""
        return sum(source.listeners for source in self.sources.values())

    def close(self) -> None:
        """Label the frames in the queue, and end the thread."""
        self.batcher.close()

    async def read_metrics(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return format_metrics(self.metrics)

    @contextlib.contextmanager
    def admit(self, source: str) -> Iterator[None]:
        """Count a picture or frame as active until it is answered, then as labelled."""
        begin = monotonic()
        with self.reserve():
            yield
            self.frames.add(source=source)
            self.latency.add(monotonic() - begin)

    @contextlib.contextmanager
    def reserve(self) -> Iterator[None]:
        """Count a picture or frame as active until it is answered; raise a 503 if there are too many."""
        if self.closing.is_set():
            raise RequestError(503, "The server is shutting down.", 10)
        if self.active >= self.limits.queue:
            self.dropped.add(reason="full")
            raise RequestError(503, f"The queue is full ({self.active} pictures): try again later.", self.retry_after())
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    def retry_after(self) -> int:
        """Seconds after which a rejected client should try again: the mean latency so far."""
        return max(1, math.ceil(self.latency.total / max(1, sum(self.latency.counts))))

    async def read_picture(self, request: Request) -> bytes:
        """Return the picture file in a request: its body, or the first file of a form."""
        picture = extract_file(await self.read_body(request), request.headers.get("content-type", ""))
        if not picture:
            raise RequestError(400, "The request has no picture: send one as the body, or as a file in a form.")
        return picture

    async def read_body(self, request: Request) -> bytes:
        """Return the body of a request, within the limits of size and time."""
        data = bytearray()
        max_bytes, seconds = self.limits.bytes, self.limits.seconds
        too_large = f"The picture has more than {max_bytes:,} bytes: send a smaller one."
        if int(request.headers.get("content-length", 0)) > max_bytes:
            raise RequestError(413, too_large)
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    data += part
                    if len(data) > max_bytes:
                        raise RequestError(413, too_large)
        except TimeoutError:
            raise RequestError(408, f"The picture did not arrive within {seconds:g} s.") from None
        except ClientDisconnect:
            raise RequestError(400, "The client disconnected before the picture was complete.") from None
        return bytes(data)

    async def decode(self, data: bytes, codec: RequestCodec) -> Tensor:
        """Return the frame (3, H, W) in a picture file; it may be used as long as the codec is open."""
        try:
            with picture_errors():
                frame = await codec.decode(data)
                if self.served.mask:
                    self.served.mask.check_fits(frame.shape[1], frame.shape[2])
                return frame
        except TimeoutError as error:
            self.dropped.add(reason="late")
            raise RequestError(503, str(error), self.retry_after()) from None
        except (MemoryError, RuntimeError):
            logging.getLogger("streamseg").exception("A picture of %d bytes could not be decoded.", len(data))
            raise RequestError(500, "The server failed to decode this picture: see its log.") from None

    async def decode_ids(self, data: bytes) -> Tensor:
        """Return the ids (H, W), int32, in a label file."""
        with picture_errors():
            return await asyncio.to_thread(decode_uploaded_ids, data, self.limits.pixels)

    async def label(self, frame: Tensor, state: State | None = None, seconds: float | None = None) -> Labelled:
        """Return the labels of a frame and the new state of its stream, within the time limit.

        Args:
            seconds: When the frame of a stream came.
        """
        limit = self.limits.seconds
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(self.batcher.submit(frame, state, seconds, mask=self.served.mask))
        except TimeoutError:
            self.dropped.add(reason="late")
            sentence = f"The picture was not labelled within {limit:g} s: try again later."
            raise RequestError(503, sentence, self.retry_after()) from None
        except Exception:  # a bug, or out of memory
            logging.getLogger("streamseg").exception("A picture of %s could not be labelled.", tuple(frame.shape))
            raise RequestError(500, "The server failed to label this picture: see its log.") from None

    async def label_while_connected(self, request: Request, frame: Tensor) -> Tensor:
        """Return the labels of a frame; cancel the work if the client disconnects."""
        work = asyncio.ensure_future(self.label(frame))
        gone = asyncio.ensure_future(wait_for_disconnect(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.dropped.add(reason="gone")
                raise RequestError(400, "The client disconnected.")
            labels, _ = await work
            return labels
        finally:
            work.cancel()
            gone.cancel()

    async def next_message(self, client: WebSocket) -> Message | None:
        """Return the next message of a stream; None if it ends or is idle, or if the server shuts down."""
        message = asyncio.ensure_future(client.receive())
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait({message, closing}, timeout=STREAM_IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() and message.result()["type"] == "websocket.receive" else None
        finally:
            message.cancel()
            closing.cancel()


@contextlib.contextmanager
def picture_errors() -> Iterator[None]:
    """Turn the errors of a picture that cannot be decoded into RequestErrors."""
    try:
        yield
    except UnknownFormatError as error:
        raise RequestError(415, str(error)) from None
    except TooLargeError as error:
        raise RequestError(413, str(error)) from None
    except ValueError as error:
        raise RequestError(400, str(error)) from None


async def current_gate(connection: HTTPConnection) -> RequestGate:
    """Return the gate of the application that received a request."""
    gate: RequestGate = connection.app.state.gate
    return gate


Gate = Annotated[RequestGate, Depends(current_gate)]
"""The type of an address's parameter that receives the gate."""


async def require_token(connection: HTTPConnection, gate: Gate) -> None:
    """Raise a RequestError unless the token is in a header or, from browsers, in the name of a WebSocket protocol."""
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    candidates = [given.strip()] if scheme.lower() == "bearer" else []
    candidates += [name[7:] for name in connection.scope.get("subprotocols", ()) if name.startswith("bearer.")]
    # in constant time: the time of a comparison must not reveal how much of a token is right
    matches = [hmac.compare_digest(candidate.encode(), gate.token.encode()) for candidate in candidates]
    if gate.token and not any(matches):
        raise RequestError(401, "This server requires a token: send it as Authorization: Bearer TOKEN.")


async def require_own_page(connection: HTTPConnection) -> None:
    """Raise a RequestError for pages of other sites: browsers let these connect."""
    origin = connection.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != connection.headers.get("host"):
        raise RequestError(403, "Pages of other sites may not use this server's streams and folders.")


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def extract_file(body: bytes, content_type: str) -> bytes:
    """Return the first file of a form (multipart/form-data); any other body unchanged."""
    if "multipart/form-data" not in content_type.lower():  # most requests
        return body
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
