"""The web application: all addresses, and the errors that they share.

POST /segment is in segment.py, the WebSocket /stream in websocket.py, the sources that the server reads in views.py,
zones in zones.py, what the page saves in saving.py, its samples in samples.py, and what a browser needs in order to run
the network itself in browser.py.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

import streamseg
from streamseg.serve import browser, page, samples, saving, segment, views, websocket, zones
from streamseg.serve.gate import Gate, RequestError, RequestGate, require_token

DESCRIPTION = """Label every pixel of pictures, and of the frames of a stream. ws://…/stream takes frames as binary \
messages, each a PNG, JPEG or WebP file, and answers each with a text message (JSON) and a binary message: the labels, \
one byte per pixel, row by row, compressed with zlib."""

SENTENCES = {404: "No such address: see /docs.", 405: "This address does not accept this method: see /docs."}
"""What is answered to requests that no address matches."""

router = APIRouter()


def build_app(gate: RequestGate) -> FastAPI:
    """Return the web application; it closes the gate when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for source in gate.sources.values():
            source.start(asyncio.get_running_loop())
        yield
        for source in gate.sources.values():
            await asyncio.to_thread(source.close)
        await gate.codecs.close()
        await asyncio.to_thread(gate.close)

    app = FastAPI(
        title="streamseg",
        version=streamseg.__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers={
            RequestError: answer_request_error,
            HTTPException: answer_http_error,
            RequestValidationError: answer_invalid_parameter,
            Exception: answer_failure,
        },
    )
    app.state.gate, app.state.browser = gate, browser.BrowserModel(gate.served)
    for part in (
        segment.router,
        views.router,
        zones.router,
        saving.router,
        websocket.router,
        router,
        browser.router,
        samples.router,
    ):
        app.include_router(part)
    files = {path.name: path for path in page.PAGE.iterdir() if path.suffix in (".html", ".css", ".js", ".svg")}
    addresses = {"/": files["index.html"], "/docs": files["docs.html"]} | {f"/{name}": files[name] for name in files}
    for address, path in addresses.items():
        app.add_api_route(address, partial(send_file, path), include_in_schema=False, response_model=None)
    return app


async def answer_request_error(request: Request, error: RequestError) -> Response:
    return error.response()


async def answer_http_error(request: Request, error: HTTPException) -> Response:
    sentence = SENTENCES.get(error.status_code, f"{error.detail}.")
    response = RequestError(error.status_code, sentence).response()
    response.headers.update(error.headers or {})
    return response


async def answer_invalid_parameter(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    return RequestError(422, f"{first['loc'][-1]}: {first['msg']}.").response()


async def answer_failure(request: Request, error: Exception) -> Response:
    return RequestError(500, "The server failed to answer this request: see its log.").response()


async def send_file(path: Path) -> Response:
    return FileResponse(path, headers={"Cache-Control": "no-cache"})


@router.get("/healthz")
async def healthz(gate: Gate) -> Response:
    """Whether the server is running; 503 while it shuts down."""
    if gate.closing.is_set() or not gate.batcher.thread.is_alive():
        return RequestError(503, "The server is shutting down.", 10).response()
    return JSONResponse({"status": "ok"})


@router.get("/metrics", dependencies=[Depends(require_token)], response_class=PlainTextResponse)
async def metrics(gate: Gate) -> Response:
    """Requests, latency, batches, queue and dropped frames, in the text format of Prometheus."""
    return PlainTextResponse(await gate.read_metrics(), media_type="text/plain; version=0.0.4")


@router.get("/info", dependencies=[Depends(require_token)])
async def info(gate: Gate) -> dict[str, object]:
    """The classes of the network and the limits of the server."""
    served, limits = gate.served, gate.limits
    return {
        "version": streamseg.__version__,
        "weights": served.title,
        "window": served.window,
        "classes": segment.classes_as_json(served.classes),
        "drawn": [entry["colour"] for entry in segment.classes_as_json(served.drawn or served.classes)],
        "limits": {"bytes": limits.bytes, "pixels": limits.pixels, "seconds": limits.seconds},
        "samples": [*samples.find_samples()],
        "sources": [*gate.sources],
        "saves": gate.folder is not None,
    }
