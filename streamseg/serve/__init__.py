"""The web server: pictures over HTTP, streams over WebSockets, and a page. Only this folder imports FastAPI."""

from streamseg.serve.gate import (
    TOKEN as TOKEN,
    Limits as Limits,
    RequestGate as RequestGate,
    ServedModel as ServedModel,
)
from streamseg.serve.saving import DataFolder as DataFolder
from streamseg.serve.server import (
    Server as Server,
    is_private as is_private,
    listen as listen,
    run_server as run_server,
)
from streamseg.serve.sources import add_sources as add_sources, parse_sources as parse_sources
from streamseg.serve.zone_watch import (
    ServedZones as ServedZones,
    parse_zone_files as parse_zone_files,
)
