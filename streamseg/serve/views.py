"""The addresses of sources that the server reads: pictures as MJPEG and HLS streams, events over a WebSocket."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, WebSocket
from fastapi.responses import Response, StreamingResponse
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketDisconnect

from streamseg.io.images import to_jpeg
from streamseg.serve.gate import Gate, RequestError, RequestGate, require_own_page, require_token
from streamseg.serve.hls import PLAYLIST
from streamseg.serve.sources import POLL_SECONDS, ServedSource

BOUNDARY = "frame"

router = APIRouter()


async def require_viewer(connection: HTTPConnection, gate: Gate) -> None:
    """Raise a RequestError unless the token is in a header or in the query: a page's <img> cannot send headers."""
    given = connection.query_params.get("token", "")
    if not (gate.token and hmac.compare_digest(given.encode(), gate.token.encode())):
        await require_token(connection, gate)


def find_served(gate: RequestGate, name: str) -> ServedSource:
    if name not in gate.sources:
        there = ", ".join(gate.sources) or "none: start the server with --source NAME=ADDRESS or --fleet FILE"
        raise RequestError(404, f"No source is called {name[:80]}; there are {there}.")
    return gate.sources[name]


def check_room(gate: RequestGate) -> None:
    """Raise a RequestError if too many watch already."""
    watching = sum(source.viewers + source.listeners for source in gate.sources.values())
    if watching >= gate.limits.viewers:
        raise RequestError(503, f"{watching} viewers are watching: try again later.", 10)


@router.get("/streams", dependencies=[Depends(require_token)])
async def list_streams(gate: Gate) -> dict[str, dict[str, object]]:
    """The sources that the server reads: whether they deliver frames, how many watch, frames labelled and latency."""
    return {name: source.to_json() for name, source in gate.sources.items()}


@router.get("/streams/{name}.jpg", dependencies=[Depends(require_viewer)], response_class=Response)
async def show_frame(name: str, gate: Gate) -> Response:
    """The newest frame of a source, without colours; 503 if the source delivers no frames."""
    source = find_served(gate, name)
    source.check()
    assert source.newest is not None
    picture = await asyncio.to_thread(lambda capture: to_jpeg(capture.frame), source.newest)
    return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "no-store"})


@router.get("/streams/{name}.mjpeg", dependencies=[Depends(require_viewer)], response_class=Response)
async def show(name: str, gate: Gate) -> Response:
    """The overlay of a source as an endless picture (multipart/x-mixed-replace), for an <img> and for players.

    A slow viewer misses pictures. 503 if the source delivers no frames; the server keeps trying.
    """
    source = find_served(gate, name)
    check_room(gate)
    pictures = jpegs(source)
    first = await anext(pictures, None)  # before the answer begins, so that it may still be an error
    if first is None:
        raise RequestError(503, "The server is shutting down.", 10)
    headers = {"Cache-Control": "no-store"}
    return StreamingResponse(parts(first, pictures), 200, headers, f"multipart/x-mixed-replace; boundary={BOUNDARY}")


async def jpegs(source: ServedSource) -> AsyncIterator[bytes]:
    """Yield the newest picture of a source, each once."""
    source.viewers += 1
    try:
        # not the view that is there already: it may be old
        view = await source.first_view(source.view.number)
        while view is not None:
            if view.jpeg:
                yield view.jpeg
            view = await source.next_view(view.number)
    finally:
        source.viewers -= 1


async def parts(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pictures as the parts of an endless answer."""
    yield part(first)
    async for picture in rest:
        yield part(picture)


def part(picture: bytes) -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
    return head.encode() + picture + b"\r\n"


@router.get(f"/streams/{{name}}/hls/{PLAYLIST}", dependencies=[Depends(require_viewer)], response_class=Response)
async def show_playlist(name: str, gate: Gate, token: Annotated[str, Query()] = "") -> Response:
    """The overlay of a source as an HLS stream: its playlist, which starts it.

    It ends a minute after the last request. 503 if the source delivers no frames.
    """
    source = find_served(gate, name)
    source.check()
    if not source.hls.running:
        check_room(gate)
    playlist = await first_playlist(source)
    if token:  # players ask for segments without the query of the playlist
        lines = playlist.splitlines()
        playlist = "\n".join(line if line.startswith("#") else f"{line}?token={quote(token)}" for line in lines) + "\n"
    return Response(playlist, media_type="application/vnd.apple.mpegurl", headers={"Cache-Control": "no-store"})


async def first_playlist(source: ServedSource) -> str:
    """Return the playlist of a source, as soon as there is a segment; a RequestError if none comes in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(source.gate.limits.seconds):
            while not source.gate.closing.is_set():
                folder = await asyncio.to_thread(source.hls.ask)
                with suppress(FileNotFoundError):
                    return await asyncio.to_thread((folder / PLAYLIST).read_text, "utf-8")
                source.check()
                await asyncio.sleep(POLL_SECONDS)
    raise RequestError(503, "The stream has not begun yet: try again.", 5)


@router.get("/streams/{name}/hls/{segment}", dependencies=[Depends(require_viewer)], response_class=Response)
async def show_segment(name: str, segment: str, gate: Gate) -> Response:
    """A segment that the playlist names."""
    source = find_served(gate, name)
    found = await asyncio.to_thread(source.hls.read_segment, segment)
    if found is None:
        raise RequestError(404, f"There is no segment {segment[:80]!r}: read the playlist again.")
    return Response(found, media_type="video/mp2t", headers={"Cache-Control": "no-store"})


@router.websocket("/streams/{name}/events")
async def listen(client: WebSocket, name: str, gate: Gate, labels: Annotated[bool, Query()] = False) -> None:
    """Send a line of JSON for each labelled frame of a source; with ?labels=true also its labels."""
    try:
        await require_own_page(client)
        await require_viewer(client, gate)
        source = find_served(gate, name)
        if gate.closing.is_set():
            raise RequestError(503, "The server is shutting down.", 10)
        check_room(gate)
        source.check()
    except RequestError as error:
        await client.send_denial_response(error.response())
        return
    source.listeners += 1
    source.label_listeners += labels
    try:
        await client.accept("streamseg" if "streamseg" in client.scope["subprotocols"] else None)
        sending = asyncio.ensure_future(send_events(client, source, labels))
        gone = asyncio.ensure_future(wait_until_gone(client))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sending.cancel()
        if not gone.done() or gone.cancelled():
            await client.close(1001)
    except (WebSocketDisconnect, RuntimeError):
        pass  # starlette's errors for a client that has disconnected
    finally:
        source.listeners -= 1
        source.label_listeners -= labels


async def send_events(client: WebSocket, source: ServedSource, with_labels: bool) -> None:
    """Send the newest event of a source, each once, and all events of its zones since the one before."""
    seen, zones = source.view.number, source.zones
    known = zones.count if zones else 0
    while (view := await source.next_view(seen)) is not None:
        seen = view.number
        if view.event and not (with_labels and view.labels is None):
            message = view.event | ({"labels": view.labels} if with_labels else {})
            if zones:
                happened, known = zones.events_after(known), zones.count
                message |= {"events": happened}
            await client.send_json(message)


async def wait_until_gone(client: WebSocket) -> None:
    while (await client.receive())["type"] != "websocket.disconnect":
        pass
