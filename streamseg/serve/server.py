"""Connections and processes: what is between the addresses and the network cards."""

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
    # threads and exact clocks in the browser need a page that is isolated from others
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    # nothing comes from elsewhere, and nothing goes there
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; "
        "img-src 'self' blob: data:; media-src 'self' blob:; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

HEAD_SECONDS = 10.0
"""How long the head of a request may take."""
DRAIN_SECONDS = 5.0
"""How long is read on after a refusal: a connection that is closed while a client sends would lose the answer."""
REQUESTS = 256
"""The most requests at a time, of whatever kind."""


class Guard:
    """Around every request: the headers of answers, how many there are, and what is left of a body at a refusal."""

    def __init__(self, app: ASGIApp, gate: RequestGate):
        self.app, self.gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn leaves out the body
        gate, headers = self.gate, dict(scope["headers"])
        # whether a body is still to come
        more = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        waits = headers.get(b"expect", b"").lower() == b"100-continue"

        async def receive_and_note() -> Message:
            nonlocal more
            message = await receive()
            more = message.get("more_body", False)
            return message

        async def finish(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = HEADERS | ({"Connection": "close"} if more else {})
                pairs = [(key.lower().encode(), value.encode()) for key, value in added.items()]
                message["headers"] = [*message.get("headers", ()), *pairs]
                route = getattr(scope.get("route"), "path", "other")
                gate.answered.add(path=route, status=str(message["status"]))
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            lingers = last and more and not waits  # the answer is given before its request is read to the end
            # who does not take the answer is not waited for
            async with asyncio.timeout(gate.limits.seconds):
                await send({**message, "more_body": True} if lingers else message)
            if lingers:
                await drain(receive_and_note, lambda: more, 2 * gate.limits.bytes)
                async with asyncio.timeout(gate.limits.seconds):
                    await send({"type": "http.response.body"})

        if gate.requests >= REQUESTS:
            refusal = RequestError(503, f"{gate.requests} requests are being answered, and more have no room.", 1)
            await refusal.response()(scope, receive_and_note, finish)
            return
        gate.requests += 1
        try:
            await self.app(scope, receive_and_note, finish)
        finally:
            gate.requests -= 1


async def drain(receive: Receive, more: Callable[[], bool], most: int) -> None:
    """Read what is left of a body that nobody wants, for a while, so that its sender hears why."""
    left = most
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while more() and left > 0:
                left -= len((await receive()).get("body", b""))


class Connection(H11Protocol):
    """A connection that may not take for ever to say what it wants, and hears in JSON what is wrong with it."""

    head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn's own
        super().connection_made(transport)
        self.watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.watch_head()

    def watch_head(self) -> None:
        """Give the head of a request its time, from its first byte on."""
        waits = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if waits and self.head_due is None:
            self.head_due = self.loop.call_later(HEAD_SECONDS, self.give_up)
        elif not waits and self.head_due is not None:
            self.head_due.cancel()
            self.head_due = None

    def give_up(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.refuse(408, f"The request did not arrive within {HEAD_SECONDS:g} s.")

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, "That is no HTTP request.")

    def refuse(self, status: int, sentence: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = RequestError(status, sentence).response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=bytes(response.body))):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """A server that answers what is begun before it goes: frames of streams too."""

    def __init__(self, gate: RequestGate):
        config = uvicorn.Config(
            Guard(build_app(gate), gate),
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
        # uvicorn takes a refused stream for a fault
        logging.getLogger("uvicorn.error").addFilter(lambda record: "completing handshake" not in record.getMessage())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.gate.closing.set()
        until = monotonic() + self.gate.limits.seconds
        while (self.gate.begun or self.gate.streams) and monotonic() < until and not self.force_exit:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address, or a sentence that says why not."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port is {port}; expected 0 to 65535.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=256)
    except UnicodeError:
        raise ValueError(f"{host!r:.80} is no host: give an address of this machine, such as 127.0.0.1.") from None
    except OSError as error:
        words = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise OSError(
            f"Nothing can listen at {host}, port {port} ({words}): give another --port, or as --host an address of "
            "this machine, such as 127.0.0.1."
        ) from None


def is_private(listening: socket.socket) -> bool:
    """Whether no other machine reaches a socket."""
    return ip_address(listening.getsockname()[0]).is_loopback


def run_server(gate: RequestGate, listening: socket.socket) -> int:
    """Serve until a signal comes; its number."""
    caught: list[int] = []
    # uvicorn takes signals while it runs, and hands them on at its end
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: caught.append(number))
    Server(gate).run([listening])
    return caught[0] if caught else 0
