"""What a browser needs to do without the server: onnxruntime-web, and the network as an ONNX file."""

import asyncio
import hashlib
import sys
from pathlib import Path

import torch

import streamseg
from streamseg.engine.runtime import open_exported
from streamseg.serve import page
from streamseg.serve.gate import RequestError, ServedModel


class Browser:
    """What a browser needs to do without the server: the library, and the network as an ONNX file."""

    def __init__(self, served: ServedModel):
        self.served = served
        self.lock = asyncio.Lock()
        self.model: Path | None = served.weights if served.weights.suffix.lower() == ".onnx" else None
        self.prepared: dict[str, object] = {}

    async def prepare(self) -> dict[str, object]:
        """Where both are, and what goes in and comes out of the network; what is missing is made or fetched, once."""
        async with self.lock:
            if not self.prepared:
                try:
                    self.prepared = await self.gather()
                except (OSError, ValueError, ImportError) as error:
                    raise RequestError(503, f"The network cannot run in your browser: {error}", 60) from None
            return self.prepared

    async def gather(self) -> dict[str, object]:
        if not page.find_library():
            await asyncio.to_thread(page.fetch_library, page.cache_folder() / page.INSIDE.name)
        self.model = self.model or await self.export()
        manifest = (await asyncio.to_thread(open_exported, self.model)).manifest
        return {
            "library": f"library/{page.VERSION}",
            "model": f"model.onnx?version={await asyncio.to_thread(digest, self.model)}",
            "size": manifest.size,
            "state": manifest.state,
            "averages": manifest.averages,
            "window": self.served.window,
        }

    async def export(self) -> Path:
        """The network as an ONNX file in the cache, compared with it as all are."""
        weights, options = self.served.weights, ["--video"] if self.served.window > 1 else []
        if weights.suffix.lower() in (".xml", ".pt2"):
            raise RequestError(404, f"No browser runs {weights.name}: serve a checkpoint, or an .onnx file.")
        mark = digest(weights, streamseg.__version__, torch.__version__, *options)
        out = page.cache_folder() / f"{mark}.onnx"
        if not out.exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            # a process of its own: tracing would hold up all requests, and keeps its memory
            command = (sys.executable, "-m", "streamseg", "export", str(weights), str(out), *options)
            pipes = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.PIPE}
            process = await asyncio.create_subprocess_exec(*command, **pipes)  # type: ignore[arg-type]
            try:
                _, told = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
            if process.returncode:
                raise ValueError(told.decode(errors="replace").strip().removeprefix("streamseg: ") or "export failed.")
        return out


def digest(path: Path, *more: str) -> str:
    """What tells a file, and what is made of it, from others."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
    found.update("\n".join(more).encode())
    return found.hexdigest()[:16]
