"""POST /segment: a picture in; its labels, an overlay or the share of each class out."""

import asyncio
import re
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from torch import Tensor

from streamseg.classes import IGNORE, Classes
from streamseg.draw import overlay
from streamseg.io.images import MAX_SIDES, to_jpeg
from streamseg.serve.gate import Gate, RequestError, ServedModel, require_token

ANSWERS = {
    "image/png": "labels as an indexed PNG: each pixel is the number of its class",
    "image/jpeg": "overlay: the picture with its classes in colour",
    "application/json": "size, classes and the share of each",
}
"""Media types of the answer, chosen by the Accept header; the first is the default."""

ERRORS = {
    400: "the picture is damaged or incomplete",
    401: "no token, or a wrong one",
    406: "no accepted media type is available",
    408: "the picture did not arrive in time",
    413: "too many bytes or pixels",
    415: "not a picture",
    422: "alpha is not a number from 0 to 1",
    503: "queue full or timeout: try again after Retry-After seconds",
}

router = APIRouter()


def openapi_details() -> dict[str, Any]:
    """The parts of the OpenAPI description of /segment that its signature does not give."""
    file = {"type": "string", "format": "binary"}
    form = {"type": "object", "properties": {"picture": file}}
    success = {
        "description": "; ".join(f"{media_type}: {answer}" for media_type, answer in ANSWERS.items()),
        "content": {media_type: {} for media_type in ANSWERS},
    }
    body = {"required": True, "content": {"image/*": {"schema": file}, "multipart/form-data": {"schema": form}}}
    return {
        "responses": {200: success} | {status: {"description": reason} for status, reason in ERRORS.items()},
        "openapi_extra": {"requestBody": body},
    }


@router.post("/segment", dependencies=[Depends(require_token)], response_class=Response, **openapi_details())
async def segment(request: Request, gate: Gate, alpha: Annotated[float, Query(ge=0, le=1)] = 0.5) -> Response:
    """Label every pixel of a picture. The Accept header selects the answer.

    alpha is the opacity of the class colours in the JPEG.
    """
    media_type = choose_media_type(request.headers.get("accept", "*/*"))
    with gate.admit("segment"), gate.codecs.open() as codec:
        frame = await gate.decode(await gate.read_picture(request), codec)
        if media_type == "image/jpeg" and max(frame.shape) > MAX_SIDES[".jpg"]:
            raise RequestError(406, f"A JPEG has at most {MAX_SIDES['.jpg']:,} pixels a side: accept image/png.")
        labels = await gate.label_while_connected(request, frame)
        if media_type == "image/png":
            return Response(await codec.encode(labels, gate.served.classes), media_type=media_type)
        return await asyncio.to_thread(encode_answer, media_type, frame, labels, gate.served, alpha)


def choose_media_type(accept: str) -> str:
    """Return the available media type that an Accept header prefers."""
    accepted = {}
    for entry in accept.lower().split(","):
        name, _, parameters = entry.partition(";")
        weight = re.search(r"q=(0(?:\.\d{0,3})?|1)", parameters)
        accepted[name.strip()] = float(weight[1]) if weight else 1.0
    ranges = {name: (name, f"{name.partition('/')[0]}/*", "*/*") for name in ANSWERS}
    weights = {name: next((accepted[r] for r in names if r in accepted), 0.0) for name, names in ranges.items()}
    best = max(weights, key=lambda name: weights[name])
    if not weights[best]:
        raise RequestError(406, f"No accepted media type is available: accept one of {', '.join(ANSWERS)}.")
    return best


def encode_answer(media_type: str, frame: Tensor, labels: Tensor, served: ServedModel, alpha: float) -> Response:
    """Return the answer to a request, as JSON or an overlay."""
    if media_type == "application/json":
        return JSONResponse(shares_as_json(labels, served.classes))
    drawn = overlay(frame, labels, served.drawn or served.classes, alpha, borders=True)
    return Response(to_jpeg(drawn), media_type=media_type)


def shares_as_json(labels: Tensor, classes: Classes) -> dict[str, object]:
    """The size of a picture, and the share of each class in it."""
    counts = torch.bincount(labels.flatten(), minlength=IGNORE + 1)[: len(classes)]
    shares = counts / counts.sum().clamp(min=1)  # of the pixels that are not masked
    entries = zip(classes_as_json(classes), shares.tolist(), strict=True)
    height, width = labels.shape
    return {"height": height, "width": width, "classes": [entry | {"share": round(s, 6)} for entry, s in entries]}


def classes_as_json(classes: Classes) -> list[dict[str, object]]:
    """The name and colour of each class."""
    pairs = zip(classes.names, classes.colours, strict=True)
    return [{"name": name, "colour": f"#{bytes(colour).hex()}"} for name, colour in pairs]
