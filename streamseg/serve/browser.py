"""Files for inference in the browser: onnxruntime-web, and the network as an ONNX file."""

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import Annotated

import torch
from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException

import streamseg
from streamseg.engine.runtime import Manifest, open_exported
from streamseg.engine.steadying import MIRROR_SHARE, USUAL_GAP, Steadiness
from streamseg.serve import page
from streamseg.serve.gate import RequestError, ServedModel, require_token
from streamseg.stream.state import GAP_DECAY

CACHE_FOREVER = "private, max-age=31536000, immutable"
"""Cache-Control of files whose address contains their version."""


class BrowserModel:
    """The network as an ONNX file for browsers, exported and described on the first request for it."""

    def __init__(self, served: ServedModel):
        self.served = served
        self.lock = asyncio.Lock()
        self.path: Path | None = served.weights if served.weights.suffix.lower() == ".onnx" else None
        self.description: dict[str, object] = {}

    async def prepare(self) -> dict[str, object]:
        """Return the addresses of the library and the network, and the network's inputs; make what is missing."""
        if self.served.mask is not None:
            raise RequestError(404, "The server hides pixels by a mask, which the network in a browser would see.")
        async with self.lock:
            if not self.description:
                try:
                    if not page.find_library():
                        await asyncio.to_thread(page.fetch_library, page.cache_folder() / page.BUNDLED_LIBRARY.name)
                    self.path = self.path or await self.export()
                    self.description = await asyncio.to_thread(self.describe_inputs, self.path)
                except (OSError, ValueError, ImportError) as error:
                    raise RequestError(503, f"The network cannot run in your browser: {error}", 60) from None
            return self.description

    def describe_inputs(self, path: Path) -> dict[str, object]:
        """Return the inputs of an ONNX file, for worker.js."""
        manifest = open_exported(path).manifest
        return {
            "library": f"library/{page.VERSION}",
            "model": f"model.onnx?version={short_hash(path)}",
            "size": manifest.size,
            "min_side": manifest.min_side,
            "state": manifest.state,
            "averages": manifest.averages,
            "window": self.served.window,
            "steady": self.describe_steady(manifest),
        }

    def describe_steady(self, manifest: Manifest) -> dict[str, object] | None:
        """Return what worker.js needs to keep labels steady, as the server's streams do; None if the file cannot."""
        if manifest.steady is None:
            return None
        steady = self.served.steady
        mirrors = isinstance(steady, Steadiness) and steady.mirror
        return {
            "keeps": isinstance(steady, Steadiness),
            "takes_mirrored": "mirrored" in manifest.inputs,
            "inputs": {name: manifest.inputs[name] for name in ("past_luma", "past_scores", "past_labels")},
            "usual_gap": USUAL_GAP,
            "longest_mirrored": manifest.steady.share * USUAL_GAP / MIRROR_SHARE if mirrors else -1.0,
            "gap_decay": GAP_DECAY,
        }

    async def export(self) -> Path:
        """Export the network to an ONNX file in the cache, unless it is there; return its path."""
        weights, options = self.served.weights, ["--video"] if self.served.window > 1 else []
        if weights.suffix.lower() in (".xml", ".pt2"):
            raise RequestError(404, f"{weights.name} cannot run in a browser: serve a checkpoint or an .onnx file.")
        version = short_hash(weights, streamseg.__version__, torch.__version__, *options)
        out = page.cache_folder() / f"{version}.onnx"
        if not out.exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            # a separate process: tracing would block all requests, and does not free its memory
            command = (sys.executable, "-m", "streamseg", "export", str(weights), str(out), *options)
            pipes = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.PIPE}
            process = await asyncio.create_subprocess_exec(*command, **pipes)  # type: ignore[arg-type]
            try:
                _, stderr = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
            if process.returncode:
                message = stderr.decode(errors="replace").strip().removeprefix("streamseg: ")
                raise ValueError(message or "export failed.")
        return out


def short_hash(path: Path, *more: str) -> str:
    """A hash of a file and of other strings that its use depends on."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update("\n".join(more).encode())
    return digest.hexdigest()[:16]


async def current_model(request: Request) -> BrowserModel:
    model: BrowserModel = request.app.state.browser
    return model


Model = Annotated[BrowserModel, Depends(current_model)]
router = APIRouter()


@router.get("/browser", dependencies=[Depends(require_token)])
async def prepare_browser(model: Model) -> dict[str, object]:
    """Return the files for inference in the browser. The first request exports the network, in half a minute."""
    return await model.prepare()


@router.get("/model.onnx", dependencies=[Depends(require_token)], response_class=FileResponse)
async def send_model(model: Model, version: str = "") -> Response:
    """The network as an ONNX file, after a request to /browser."""
    if model.path is None and version:
        await model.prepare()  # the request to /browser went to another replica
    if model.path is None:
        raise HTTPException(404)
    return FileResponse(model.path, headers={"Cache-Control": CACHE_FOREVER if version else "no-cache"})


@router.get("/library/{version}/{name}", include_in_schema=False)
async def send_library(version: str, name: str) -> Response:
    folder = page.find_library()
    if folder is None or version != page.VERSION or name not in page.LIBRARY_FILES:
        raise HTTPException(404)
    return FileResponse(folder / name, headers={"Cache-Control": CACHE_FOREVER})
