"""The server: pictures over HTTP, streams over WebSockets, and the page. Only this folder knows of either."""

from streamseg.serve.desk import TOKEN as TOKEN, Desk as Desk, Limits as Limits, Served as Served
from streamseg.serve.server import Server as Server, is_private as is_private, listen as listen, run as run
