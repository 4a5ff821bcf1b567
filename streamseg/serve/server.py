"""The server process: sockets, connections, timeouts and the shutdown around the web application."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
from collections.abc import Callable
from ipaddress import ip_address
from time import monotonic

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from streamseg.serve.app import build_app
from streamseg.serve.gate import RequestError, RequestGate

HEADERS = {
    # threads and exact clocks in the browser require a page that is isolated from others
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    # the page loads nothing from other servers, and sends nothing to them
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; "
        "img-src 'self' blob: data:; media-src 'self' blob:; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every response."""
HEADER_PAIRS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
"""The same as ASGI wants them."""

HEAD_SECONDS = 10.0
"""Timeout for receiving the headers of a request."""
DRAIN_SECONDS = 5.0
"""How long the rest of a rejected body is read; a client that is still sending could miss the response otherwise."""
MAX_REQUESTS = 256
"""The largest number of HTTP requests at a time, to all addresses together."""


class HttpMiddleware:
    """Around every HTTP request: headers of the response, counts and limits, and the rest of a body not read."""

    def __init__(self, app: ASGIApp, gate: RequestGate):
        self.app, self.gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn leaves out the body
        gate, headers = self.gate, dict(scope["headers"])
        # whether a part of the body has not been received yet
        more = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"

        async def tracked_receive() -> Message:
            nonlocal more
            message = await receive()
            more = message.get("more_body", False)
            return message

        async def tracked_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                closes = [(b"connection", b"close")] if more else []
                message["headers"] = [*message.get("headers", ()), *HEADER_PAIRS, *closes]
                route = getattr(scope.get("route"), "path", "other")
                gate.answered.add(path=route, status=str(message["status"]))
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            # a response that comes before the end of the request stays open until the rest is read
            early = last and more and not expects_continue
            # clients that do not read the response are disconnected
            async with asyncio.timeout(gate.limits.seconds):
                await send({**message, "more_body": True} if early else message)
            if early:
                await drain(tracked_receive, lambda: more, 2 * gate.limits.bytes)
                async with asyncio.timeout(gate.limits.seconds):
                    await send({"type": "http.response.body"})

        if gate.requests >= MAX_REQUESTS:
            error = RequestError(503, f"{gate.requests} requests are open: try again later.", 1)
            await error.response()(scope, tracked_receive, tracked_send)
            return
        gate.requests += 1
        try:
            await self.app(scope, tracked_receive, tracked_send)
        finally:
            gate.requests -= 1


async def drain(receive: Receive, more: Callable[[], bool], max_bytes: int) -> None:
    """Read and discard the rest of a body for a while, so that the client can read the response."""
    left = max_bytes
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while more() and left > 0:
                left -= len((await receive()).get("body", b""))


class Connection(H11Protocol):
    """An HTTP connection with a timeout for the headers of a request, and with errors in JSON."""

    head_timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn itself
        super().connection_made(transport)
        self.update_head_timeout()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.update_head_timeout()

    def update_head_timeout(self) -> None:
        """Start the timeout when a request is awaited, and cancel it when its headers are complete."""
        waits = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if waits and self.head_timeout is None:
            self.head_timeout = self.loop.call_later(HEAD_SECONDS, self.on_head_timeout)
        elif not waits and self.head_timeout is not None:
            self.head_timeout.cancel()
            self.head_timeout = None

    def on_head_timeout(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.reject(408, f"The request did not arrive within {HEAD_SECONDS:g} s.")

    def send_400_response(self, msg: str) -> None:
        self.reject(400, "This is not a valid HTTP request.")

    def reject(self, status: int, sentence: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = RequestError(status, sentence).response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=bytes(response.body))):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """A server that answers active requests, and frames of streams, before it shuts down."""

    def __init__(self, gate: RequestGate):
        config = uvicorn.Config(
            HttpMiddleware(build_app(gate), gate),
            http=Connection,
            ws="websockets-sansio",
            ws_max_size=gate.limits.bytes,
            ws_per_message_deflate=False,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=math.ceil(gate.limits.seconds),
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
        )
        super().__init__(config)
        self.gate = gate
        # uvicorn logs a rejected WebSocket as an error
        logging.getLogger("uvicorn.error").addFilter(lambda record: "completing handshake" not in record.getMessage())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.gate.closing.set()
        deadline = monotonic() + self.gate.limits.seconds
        while (
            (self.gate.active or self.gate.streams or self.gate.listeners)
            and monotonic() < deadline
            and not self.force_exit
        ):
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port is {port}; expected 0 to 65535.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=256)
    except UnicodeError:
        raise ValueError(f"{host!r:.80} is not a host: give an address of this machine, such as 127.0.0.1.") from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise OSError(
            f"Could not listen on {host}, port {port} ({reason}): give another --port, or as --host an address of "
            "this machine, such as 127.0.0.1."
        ) from None


def is_private(listening: socket.socket) -> bool:
    """Whether only this machine can connect to a socket."""
    return ip_address(listening.getsockname()[0]).is_loopback


def run_server(gate: RequestGate, listening: socket.socket) -> int:
    """Serve until a signal; return its number."""
    caught: list[int] = []
    # uvicorn handles signals while it runs, and raises them again at its end
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: caught.append(number))
    Server(gate).run([listening])
    return caught[0] if caught else 0
