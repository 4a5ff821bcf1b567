"""Answers of Ray Serve's HTTP proxy for replicas that died: 503 instead of 500, and a close for their streams.

Ray's proxy passes the messages of a request on to a replica and back. If the replica dies it just stops, and its web
server makes a 500 of that, or cuts the connection. The middleware here runs in the proxy, around all requests; Ray
imports it by the name in PROXY_ENVIRONMENT. It is no part of the server, so that proxies need not import torch.
"""

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

RETRY_SECONDS = 1
"""Retry-After of requests whose replica died: the other replicas can take them at once."""
SERVICE_RESTART = 1012
"""The code that closes a stream whose replica died."""
PROXY_ENVIRONMENT = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "streamseg.parallel.proxy:list_middleware",
    # on a busy machine a proxy is not ready within the 5 s that are the default
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
}
"""Variables that the proxies and their controller must be started with."""


class DeadReplicaMiddleware:
    """Around every request of the proxy: an answer for those that the proxy ends without one."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.answer_http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self.answer_websocket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; answer 503 if it ends before the first part of a body has come."""
        start: Message | None = None
        answered = False

        async def held_send(message: Message) -> None:
            nonlocal start, answered
            if message["type"] == "http.response.start":
                # the replica may still die before the body: until that comes, a 503 is possible
                start = with_retry_after(message)
                return
            if start is not None:
                await send(start)
                start, answered = None, True
            await send(message)

        await self.app(scope, receive, held_send)
        if not answered:
            await unavailable("The replica that worked on this request died: send it again.")(scope, receive, send)

    async def answer_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a stream on; reject it with 503, or close it, if it ends without either."""
        opened = ended = False

        async def tracked_receive() -> Message:
            nonlocal ended
            message = await receive()
            ended = ended or message["type"] == "websocket.disconnect"
            return message

        async def tracked_send(message: Message) -> None:
            nonlocal opened, ended
            opened = opened or message["type"] == "websocket.accept"
            ended = ended or message["type"] in ("websocket.close", "websocket.http.response.start")
            await send(message)

        await self.app(scope, tracked_receive, tracked_send)
        if ended:
            return
        sentence = "The replica of this stream died: open the stream again."
        if opened:
            await send({"type": "websocket.close", "code": SERVICE_RESTART, "reason": sentence})
        else:
            await unavailable(sentence)(scope, receive, send)


def unavailable(sentence: str) -> JSONResponse:
    """Return a 503, in the form of the server's errors."""
    return JSONResponse({"error": sentence}, 503, {"Retry-After": str(RETRY_SECONDS)})


def with_retry_after(start: Message) -> Message:
    """Add a Retry-After to the beginning of a 503 that has none, as those of Ray itself when its queue is full."""
    headers = [*start.get("headers", ())]
    if start["status"] != 503 or any(name.lower() == b"retry-after" for name, _ in headers):
        return start
    return {**start, "headers": [*headers, (b"retry-after", str(RETRY_SECONDS).encode())]}


def list_middleware() -> list[Middleware]:
    """Return what Ray Serve's proxy puts around all requests."""
    return [Middleware(DeadReplicaMiddleware)]
