"""The addresses of zones: those of streams with their events, and a check of zones that the page draws."""

import asyncio
import json
import tomllib
from typing import Any

from fastapi import APIRouter, Depends, Request

from streamseg.classes import Classes
from streamseg.regions.events import ZoneMonitor
from streamseg.regions.zones import parse_zones, zones_to_json
from streamseg.serve.gate import Gate, RequestError, require_token
from streamseg.serve.views import find_served
from streamseg.serve.zone_watch import Areas

MAX_BYTES = 2**16
"""The largest file of zones that is accepted."""
MAX_POINTS = 500
"""The most points of a zone that is accepted; each pair of edges is compared."""

router = APIRouter()


@router.get("/zones", dependencies=[Depends(require_token)])
async def send_zones(gate: Gate, name: str = "") -> dict[str, Any]:
    """The zones of the stream of a name, as the content of a file of zones; empty if it has none."""
    return zones_to_json(gate.zones.find(name))


@router.post("/zones", dependencies=[Depends(require_token)])
async def check_zones(request: Request, gate: Gate) -> dict[str, Any]:
    """Check a file of zones, JSON or TOML, and return it as JSON. 422 says what is wrong."""
    return zones_to_json(await receive_zones(request, gate.served.classes, gate.limits.seconds))


@router.get("/streams/{name}/zones", dependencies=[Depends(require_token)])
async def show_zones(name: str, gate: Gate) -> dict[str, Any]:
    """The zones of a source that the server reads, what its newest frame has in them, and its latest events."""
    source = find_served(gate, name)
    if source.zones is None:
        raise RequestError(404, f"{name} has no zones: start the server with --zones FILE or --zones {name}=FILE.")
    watch = source.zones
    return {"file": zones_to_json(watch.areas), **watch.to_json(), "events": [*watch.events]}


async def receive_zones(request: Request, classes: Classes, seconds: float) -> Areas:
    """Return the zones in the body of a request."""
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                data += part
                if len(data) > MAX_BYTES:
                    raise RequestError(413, f"The file of zones has more than {MAX_BYTES:,} bytes: send fewer zones.")
    except TimeoutError:
        raise RequestError(408, f"The file of zones did not arrive within {seconds:g} s.") from None
    try:
        return await asyncio.to_thread(decode_zones, bytes(data), classes)
    except ValueError as error:
        raise RequestError(422, str(error)) from None


def decode_zones(data: bytes, classes: Classes) -> Areas:
    """Return the zones of a JSON or TOML file, for these classes; a ValueError says what is wrong."""
    try:
        text = data.decode()
        content = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("The file of zones is neither TOML nor JSON that can be read: correct it.") from None
    tables = [table for kind in content.values() for table in kind] if is_table_of_lists(content) else []
    for table in tables:
        points = table.get("points") if isinstance(table, dict) else None
        if isinstance(points, list) and len(points) > MAX_POINTS:
            raise ValueError(f"A zone has {len(points)} points; expected at most {MAX_POINTS}: simplify it.")
    areas = tuple(parse_zones(content, "The file of zones"))
    ZoneMonitor(areas, classes)  # refuses unknown classes
    return areas


def is_table_of_lists(content: object) -> bool:
    return isinstance(content, dict) and all(isinstance(tables, list) for tables in content.values())
