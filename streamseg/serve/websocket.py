"""The WebSocket /stream: frames in, labels out, with the state of the stream kept for as long as it is open."""

import asyncio
import re
from itertools import count
from time import monotonic

from fastapi import APIRouter, WebSocket
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocketDisconnect

from streamseg.serve.gate import Gate, RequestError, RequestGate, require_own_page, require_token

router = APIRouter()

STREAM_NAME = re.compile(r"[\w-]{0,64}", re.ASCII)
"""What a client may call its stream, as in /stream?name=front."""


@router.websocket("/stream")
async def stream(client: WebSocket, gate: Gate) -> None:
    """Label the frames of a stream, each with the past of the frames before it."""
    try:
        await require_own_page(client)
        await require_token(client, gate)
        if gate.closing.is_set():
            raise RequestError(503, "The server is shutting down.", 10)
        if gate.streams >= gate.limits.queue:
            raise RequestError(503, f"{gate.streams} streams are open: try again later.", gate.retry_after())
        name = client.query_params.get("name", "")
        if not STREAM_NAME.fullmatch(name):
            raise RequestError(400, "The name of a stream has up to 64 letters, digits, - and _: give another.")
    except RequestError as error:
        await client.send_denial_response(error.response())
        return
    gate.streams += 1
    labels = {"stream": str(next(gate.stream_numbers))} | ({"name": name} if name else {})
    try:
        await client.accept("streamseg" if "streamseg" in client.scope["subprotocols"] else None)
        await answer_frames(client, gate, name, labels)
        await client.close(1001)
    except (WebSocketDisconnect, RuntimeError):
        pass  # starlette's errors for a client that has disconnected
    finally:
        gate.streams -= 1
        for counter in (gate.stream_frames, gate.stream_seconds):
            counter.forget(**labels)


@router.get("/stream", include_in_schema=False)
async def no_upgrade() -> None:
    raise HTTPException(426, "/stream is a WebSocket: see /docs", {"Upgrade": "websocket"})


@router.websocket("/{rest:path}")
async def no_stream(client: WebSocket, rest: str) -> None:
    await client.send_denial_response(
        RequestError(404, "WebSockets are at /stream and, for each source, at /streams/NAME/events.").response()
    )


async def answer_frames(client: WebSocket, gate: RequestGate, name: str, labels_of_stream: dict[str, str]) -> None:
    """Answer the frames of a stream in order, until it ends; its state is a local variable.

    A stream has one frame at a time in the queue, which is first come, first served: so streams take turns, and none
    waits longer than for one frame of each other client.
    """
    state, zones, first = (
        None,
        gate.zones.watch(name, gate.served.classes, f"stream {labels_of_stream['stream']}"),
        None,
    )
    for number in count():
        message = await gate.next_message(client)
        if message is None:
            return
        begin = monotonic()
        try:
            with gate.admit("stream"), gate.codecs.open() as codec:
                if not message.get("bytes"):
                    raise RequestError(400, "Expected a binary message with a PNG, JPEG or WebP file.")
                frame = await gate.decode(message["bytes"], codec)
                labels, state = await gate.label(frame, state, begin)
                compressed = await codec.compress(labels)
        except RequestError as error:
            gate.stream_frames.add(1, **labels_of_stream, answer="rejected")
            answer = {"frame": number, "error": error.sentence, "status": error.status, "again": error.retry_after}
            await client.send_json(answer)
            continue
        height, width = labels.shape
        found = {}
        if zones:
            first = begin if first is None else first
            events = await asyncio.to_thread(zones.update, labels, number, round(begin - first, 3))
            found = {**zones.to_json(), "events": events}
        seconds = monotonic() - begin
        gate.stream_frames.add(1, **labels_of_stream, answer="labelled")
        gate.stream_seconds.add(seconds, **labels_of_stream)
        milliseconds = round(1000 * seconds, 1)
        answer = {"frame": number, "height": height, "width": width, "milliseconds": milliseconds}
        await client.send_json(answer | found)
        await client.send_bytes(compressed)
