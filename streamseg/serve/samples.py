"""The sample pictures of the page, and their thumbnails."""

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException
from torch.nn.functional import interpolate

from streamseg.deploy.export import samples_folder
from streamseg.io.images import read_image, to_jpeg

router = APIRouter()


@router.get("/samples/{name}", include_in_schema=False)
async def send_sample(name: str, width: Annotated[int | None, Query(ge=16, le=1024)] = None) -> Response:
    samples = find_samples()
    if name not in samples:
        raise HTTPException(404)
    if width is None:
        return FileResponse(samples[name], headers={"Cache-Control": "no-cache"})
    thumbnail = await asyncio.to_thread(make_thumbnail, samples[name], width)
    return Response(thumbnail, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


@lru_cache(maxsize=32)
def make_thumbnail(path: Path, width: int) -> bytes:
    """Return a picture of a width as a JPEG file."""
    frame = read_image(path)
    size = max(1, round(width * frame.shape[1] / frame.shape[2])), width
    small = interpolate(frame[None].float(), size, mode="bilinear", antialias=True)[0]
    return to_jpeg(small.round().clamp(0, 255).byte())


def find_samples() -> dict[str, Path]:
    """The sample pictures by name, in the order in which the page shows them."""
    folder = samples_folder()
    paths = [*sorted(folder.glob("*.jpg"), reverse=True), *sorted(folder.glob("dashcam/*.jpg"))] if folder else []
    return {path.name: path for path in paths}
