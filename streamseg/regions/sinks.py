"""Where events go: a file, standard output, a webhook, a WebSocket or an MQTT topic.

A sink is a function that takes an event as a dictionary. It must return at once: what takes time, it does in a thread
of its own.
"""

import base64
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import HTTPRedirectHandler, Request, build_opener

from streamseg.io.files import check_writable
from streamseg.io.line_thread import LineWriter
from streamseg.io.live_lines import SCHEMES, LineSender, check_line_address
from streamseg.io.web import redact, response_error, split_address, without_login

LOG = logging.getLogger("streamseg")

EventSink = Callable[[dict[str, Any]], None]
"""Takes an event; returns at once."""

QUEUE_SIZE = 1000
"""Events that may wait for a webhook; more are dropped and counted."""
RETRY_DELAYS = (0.5, 1.0, 2.0)
"""Seconds before each further attempt to send an event."""
TIMEOUT = 5.0
"""Seconds within which a webhook must answer."""
DRAIN_SECONDS = 10.0
"""Seconds that the end of a run waits for events that are not sent yet."""


def is_webhook(target: str) -> bool:
    """Return whether a target is a web address."""
    return target.partition("://")[0].lower() in ("http", "https")


def check_target(target: str) -> None:
    """Raise an error if events cannot go to a target: a file, an address, or - for standard output."""
    if is_webhook(target):
        split_address(target)
    elif "://" in target:
        if target.partition("://")[0].lower() not in SCHEMES:
            raise ValueError(
                f"{redact(target)} takes no events: give http://, https://, ws://, mqtt://, a file's name or -."
            )
        check_line_address(target)
    elif target != "-":
        path = Path(target)
        check_writable(path)
        if path.exists() and not holds_events(path):
            raise ValueError(f"{path} exists and does not hold events: give another name for --events.")


def holds_events(path: Path) -> bool:
    """Return whether a file is empty or holds lines of events."""
    with path.open("rb") as file:
        line = file.readline(2**16)
    try:
        entry = json.loads(line or b'{"event": ""}')
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and "event" in entry


@contextmanager
def open_sink(target: str, output: LineWriter, report: Callable[[str], None]) -> Iterator[EventSink]:
    """Give the sink of a target, and finish it at the end.

    Args:
        target: A file, to which lines of JSON are added as they come; the address of a webhook, a WebSocket or an MQTT
            topic; - for standard output.
        output: Standard output, which writes each line at once.
        report: Receives one sentence if events were lost.
    """
    if target == "-":
        yield LinesSink(output, "standard output")
    elif is_webhook(target):
        webhook = Webhook(target)
        try:
            yield webhook
        finally:
            webhook.close()
            if webhook.lost:
                report(webhook.problem())
    elif "://" in target:
        lines = LineSender(target, "--events", LOG.warning)
        try:
            yield lambda event: lines.sender.put(json.dumps(event))
            lines.sender.close()
        finally:
            lines.sender.abort()
        if lines.sender.problem:
            report(lines.sender.problem)
    else:
        with Path(target).open("a", encoding="utf-8", buffering=1) as file:
            yield LinesSink(file, target)


class LinesSink:
    """Writes events as lines of JSON, each at once."""

    def __init__(self, file: LineWriter, name: str):
        self.file, self.name = file, name
        self.lock = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        try:
            with self.lock:
                self.file.write(json.dumps(event) + "\n")
        except BrokenPipeError:  # no fault: the reader has closed the pipe
            raise
        except OSError as error:
            if not error.strerror:  # it is a sentence
                raise
            raise OSError(f"Could not write events to {self.name}: {error.strerror}.") from error


class NoRedirects(HTTPRedirectHandler):
    """Refuses redirections: urllib would follow them without the event."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Sends each event to a web address, by POST, from a thread of its own."""

    def __init__(self, address: str, capacity: int = QUEUE_SIZE):
        self.address = address
        parts = split_address(address)
        self.headers = {"Content-Type": "application/json", "User-Agent": "streamseg"}
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self.headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        self.bare = without_login(parts)
        self.opener = build_opener(NoRedirects)
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue(capacity)
        self.given, self.sent = 0, 0
        self.reason = ""
        """Why the first event was lost."""
        self.lock, self.closing = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self.work, name="webhook", daemon=True)
        self.thread.start()

    @property
    def lost(self) -> int:
        """How many events were not sent, once it is closed."""
        return self.given - self.sent

    def __call__(self, event: dict[str, Any]) -> None:
        with self.lock:  # several sources may have events
            self.given += 1
        try:
            self.events.put_nowait(event)
        except queue.Full:
            self.reason = self.reason or "events came faster than they could be sent."

    def work(self) -> None:
        """Send the events, one after the other."""
        while (event := self.events.get()) is not None:
            self.send(json.dumps(event).encode())

    def send(self, body: bytes) -> None:
        """Send an event, several times if necessary."""
        for delay in (*RETRY_DELAYS, None):
            try:
                request = Request(self.bare, data=body, headers=self.headers, method="POST")
                with self.opener.open(request, timeout=TIMEOUT):
                    self.sent += 1
                    return
            except (OSError, HTTPException, ValueError) as error:
                reason = response_error(self.address, error, "cannot be reached")
            if delay is None or self.closing.wait(delay):
                break
        self.reason = self.reason or str(reason)

    def close(self) -> None:
        """Wait for the events that are not sent yet, for some seconds; what then remains is lost."""
        deadline = time.monotonic() + DRAIN_SECONDS
        with suppress(queue.Full):
            self.events.put(None, timeout=DRAIN_SECONDS)
        self.thread.join(max(0.0, deadline - time.monotonic()))
        self.closing.set()
        if self.thread.is_alive():
            self.reason = self.reason or f"{redact(self.address)} did not answer in time."

    def problem(self) -> str:
        """Return a sentence about the events that were lost."""
        return f"{self.lost} of {self.given} events could not be sent, the first because {self.reason}"
