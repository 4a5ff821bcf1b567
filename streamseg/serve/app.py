"""The addresses of the server, and what is answered at each."""

import asyncio
import contextlib
import io
import re
import zlib
from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Annotated

import torch
from fastapi import Depends, FastAPI, Query, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocketDisconnect
from torch import Tensor

import streamseg
from streamseg.classes import IGNORE, Classes
from streamseg.deploy.export import samples_folder
from streamseg.draw import overlay
from streamseg.io.images import MAX_SIDES as SIDES, to_jpeg, write_labels
from streamseg.serve import page
from streamseg.serve.browser import Browser
from streamseg.serve.counters import format_metrics
from streamseg.serve.gate import RequestError, RequestGate

KINDS = {
    "image/png": "labels, indexed: each pixel is the number of its class",
    "image/jpeg": "the picture under the colours of its classes",
    "application/json": "size, classes and the share of each",
}
"""What /segment answers, by the Accept header; the first where all are welcome."""

FOREVER = "private, max-age=31536000, immutable"


def build_app(gate: RequestGate) -> FastAPI:
    """The server's addresses."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(gate.close)

    served, limits, browser = gate.served, gate.limits, Browser(gate.served)
    app = FastAPI(
        title="streamseg",
        version=streamseg.__version__,
        description=(
            "Labels for every pixel of pictures, and of streams of frames: ws://…/stream takes frames as binary "
            "messages, each a PNG, JPEG or WebP, and answers each with a text message, JSON, and a binary one: the "
            "labels, a byte a pixel, row by row, deflated (zlib)."
        ),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    known = [Depends(gate.check_token)]
    samples = samples_folder()
    pictures = {path.name: path for path in sorted(samples.glob("*.jpg"), reverse=True)} if samples else {}
    files = {path.name: path for path in page.PAGE.iterdir() if path.suffix in (".html", ".css", ".js", ".svg")}

    @app.exception_handler(RequestError)
    def refused(request: Request, refusal: RequestError) -> Response:
        return refusal.response()

    @app.exception_handler(HTTPException)
    def not_there(request: Request, error: HTTPException) -> Response:
        told = {404: "There is nothing at this address: see /docs.", 405: "That method is not for this address."}
        refusal = RequestError(error.status_code, told.get(error.status_code, f"{error.detail}."))
        response = refusal.response()
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return RequestError(422, f"{first['loc'][-1]}: {first['msg']}.").response()

    @app.exception_handler(Exception)
    def failed(request: Request, error: Exception) -> Response:
        return RequestError(500, "The server failed at this request; its log says how.").response()

    @app.post("/segment", dependencies=known, response_class=Response, **about_segment())
    async def segment(request: Request, alpha: Annotated[float, Query(ge=0, le=1)] = 0.5) -> Response:
        """Label every pixel of a picture. The Accept header says what is wanted.

        alpha is the share of the colours in the JPEG.
        """
        kind = pick_kind(request.headers.get("accept", "*/*"))
        with gate.place("segment"):
            frame = await gate.decode(await gate.read_body(request))
            if kind == "image/jpeg" and max(frame.shape) > SIDES[".jpg"]:
                raise RequestError(406, f"A JPEG has at most {SIDES['.jpg']:,} pixels a side: accept image/png.")
            labels = await gate.label_unless_gone(request, frame)
            return await gate.in_thread(encode_answer, kind, frame, labels, served.classes, alpha)

    @app.websocket("/stream")
    async def stream(client: WebSocket) -> None:
        """Label the frames of a stream, each with what was seen before it."""
        try:
            check_origin(client)
            gate.check_token(client)
            if gate.streams >= limits.queue or gate.closing.is_set():
                raise RequestError(503, f"{gate.streams} streams are open, and more have no room.", gate.wait())
        except RequestError as refusal:
            await client.send_denial_response(refusal.response())
            return
        gate.streams += 1
        try:
            await client.accept("streamseg" if "streamseg" in client.scope["subprotocols"] else None)
            await label_stream(gate, client)
            await client.close(1001)
        except (WebSocketDisconnect, RuntimeError):
            pass  # starlette's words for a client that has gone
        finally:
            gate.streams -= 1

    @app.get("/stream", include_in_schema=False)
    async def no_upgrade() -> None:
        raise HTTPException(426, "A stream is a WebSocket: see /docs", {"Upgrade": "websocket"})

    @app.websocket("/{rest:path}")
    async def no_stream(client: WebSocket, rest: str) -> None:
        await client.send_denial_response(RequestError(404, "Streams are at /stream.").response())

    @app.get("/healthz")
    async def healthz() -> Response:
        """Whether the server works."""
        if gate.closing.is_set() or not gate.batcher.thread.is_alive():
            return RequestError(503, "The server is being shut down.", 10).response()
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", dependencies=known, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """What was counted: requests, latency, queue, what was dropped. Prometheus's text format."""
        return PlainTextResponse(format_metrics(gate.counted), media_type="text/plain; version=0.0.4")

    @app.get("/info", dependencies=known)
    async def info() -> dict[str, object]:
        """The network's classes and the server's limits."""
        return {
            "version": streamseg.__version__,
            "weights": served.weights.name,
            "window": served.window,
            "classes": show_classes(served.classes),
            "limits": {"bytes": limits.bytes, "pixels": limits.pixels, "seconds": limits.seconds},
            "samples": [*pictures],
        }

    @app.get("/browser", dependencies=known)
    async def prepare_browser() -> dict[str, object]:
        """What a browser needs to run the network by itself. The first time, it is made, which takes half a minute."""
        return await browser.prepare()

    @app.get("/model.onnx", dependencies=known, response_class=FileResponse)
    async def model(version: str = "") -> Response:
        """The network as ONNX, once /browser has been asked for it."""
        if browser.model is None:
            raise HTTPException(404)
        return FileResponse(browser.model, headers={"Cache-Control": FOREVER if version else "no-cache"})

    @app.get("/library/{version}/{name}", include_in_schema=False)
    async def library(version: str, name: str) -> Response:
        folder = page.find_library()
        if folder is None or version != page.VERSION or name not in page.NEEDED:
            raise HTTPException(404)
        return FileResponse(folder / name, headers={"Cache-Control": FOREVER})

    @app.get("/samples/{name}", include_in_schema=False)
    async def sample(name: str) -> Response:
        return send_file(pictures.get(name))

    addresses = {"/": files["index.html"], "/docs": files["docs.html"]} | {f"/{name}": files[name] for name in files}
    for address, path in addresses.items():
        app.add_api_route(address, partial(send_file, path), include_in_schema=False, response_model=None)

    return app


def about_segment() -> dict:
    """What OpenAPI says of /segment beyond its signature."""
    file = {"schema": {"type": "string", "format": "binary"}}
    form = {"schema": {"type": "object", "properties": {"picture": file["schema"]}}}
    refusals = {
        400: "cut off or damaged",
        401: "no token",
        406: "an answer that is not there",
        408: "too slow",
        413: "too many bytes or pixels",
        415: "no picture",
        422: "alpha is no number from 0 to 1",
        503: "no room: ask again after Retry-After",
    }
    kinds: dict = {kind: {} for kind in KINDS}
    found = {200: {"description": "; ".join(f"{kind}: {what}" for kind, what in KINDS.items()), "content": kinds}}
    body = {"required": True, "content": {"image/*": file, "multipart/form-data": form}}
    return {
        "responses": found | {status: {"description": why} for status, why in refusals.items()},
        "openapi_extra": {"requestBody": body},
    }


def send_file(path: Path | None) -> Response:
    if path is None:
        raise HTTPException(404)
    return FileResponse(path, headers={"Cache-Control": "no-cache"})


def check_origin(client: WebSocket) -> None:
    """Refuse pages of other servers, which browsers would let in."""
    origin = client.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != client.headers.get("host"):
        raise RequestError(403, "Streams are for this server's own page, and for programs that are no browsers.")


async def label_stream(gate: RequestGate, client: WebSocket) -> None:
    """Answer each frame of a stream, in order; the state is kept here, and nowhere else."""
    state = None
    for number in count():
        message = await gate.receive(client)
        if message is None:
            return
        begin = monotonic()
        try:
            with gate.place("stream"):
                if not message.get("bytes"):
                    raise RequestError(400, "A frame is a binary message: a PNG, JPEG or WebP.")
                frame = await gate.decode(message["bytes"])
                labels, state = await gate.label(frame, state)
                packed = await gate.in_thread(zlib.compress, labels.contiguous().numpy(), 1)
        except RequestError as refusal:
            told = {"frame": number, "error": refusal.sentence, "status": refusal.status, "again": refusal.again}
            await client.send_json(told)
            continue
        height, width = labels.shape
        taken = round(1000 * (monotonic() - begin), 1)
        await client.send_json({"frame": number, "height": height, "width": width, "milliseconds": taken})
        await client.send_bytes(packed)


def pick_kind(accept: str) -> str:
    """What a client would like best of what there is, by its Accept header."""
    wanted = {}
    for entry in accept.lower().split(","):
        name, _, rest = entry.partition(";")
        weight = re.search(r"q=(0(?:\.\d{0,3})?|1)", rest)
        wanted[name.strip()] = float(weight[1]) if weight else 1.0
    ranges = {kind: (kind, f"{kind.partition('/')[0]}/*", "*/*") for kind in KINDS}
    weights = {kind: next((wanted[name] for name in names if name in wanted), 0.0) for kind, names in ranges.items()}
    best = max(weights, key=lambda kind: weights[kind])
    if not weights[best]:
        raise RequestError(406, f"What was asked for is not there: accept one of {', '.join(KINDS)}.")
    return best


def label_shares(labels: Tensor, classes: Classes) -> dict[str, object]:
    """What is in a picture, for JSON."""
    shares = torch.bincount(labels.flatten(), minlength=IGNORE + 1)[: len(classes)] / labels.numel()
    entries = zip(show_classes(classes), shares.tolist(), strict=True)
    height, width = labels.shape
    return {"height": height, "width": width, "classes": [entry | {"share": round(s, 6)} for entry, s in entries]}


def show_classes(classes: Classes) -> list[dict[str, object]]:
    pairs = zip(classes.names, classes.colours, strict=True)
    return [{"name": name, "colour": f"#{bytes(colour).hex()}"} for name, colour in pairs]


def to_png(labels: Tensor, classes: Classes) -> bytes:
    file = io.BytesIO()
    write_labels(file, labels, classes)
    return file.getvalue()


def encode_answer(kind: str, frame: Tensor, labels: Tensor, classes: Classes, alpha: float) -> Response:
    """What was found in a picture, as a client would like it."""
    if kind == "application/json":
        return JSONResponse(label_shares(labels, classes))
    if kind == "image/png":
        return Response(to_png(labels, classes), media_type=kind)
    return Response(to_jpeg(overlay(frame, labels, classes, alpha)), media_type=kind)
