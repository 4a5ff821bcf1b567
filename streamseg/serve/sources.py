"""Sources that the server reads itself: cameras, streams, and videos that are played over and over.

A reader thread keeps the newest frame. A second thread labels it together with the requests of clients, draws it and
encodes it, but only what somebody watches. Viewers wait for the next picture; a slow one misses some.
"""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from torch import Tensor

from streamseg.draw import overlay
from streamseg.io.images import to_jpeg
from streamseg.io.live_sender import PAUSES
from streamseg.io.masks import have_same_proportions
from streamseg.io.packed_labels import pack_labels
from streamseg.io.resolve import find_sources
from streamseg.io.sources import Capture, Decoding, LiveSource, PlayedVideo, play
from streamseg.io.web import is_address, redact, split_address
from streamseg.parallel.threads import set_torch_threads
from streamseg.serve.batches import Labelled
from streamseg.serve.counters import Counter, Gauge
from streamseg.serve.gate import RequestError, RequestGate, ServedModel
from streamseg.serve.hls import HlsStream
from streamseg.serve.segment import shares_as_json
from streamseg.stream.bonnet import BONNET_FRAMES, describe_bonnet, mask_own_car, own_car_label
from streamseg.stream.settings import DrawStyle, SourceSettings
from streamseg.stream.state import State

NAME = re.compile(r"[A-Za-z0-9_-]+")
"""The characters of a source's name, which is a part of addresses and of metrics."""
SILENT_SECONDS = 10.0
"""A source that delivers no frame for this long counts as lost."""
NO_FRAME_YET = "it has not delivered a frame yet"
"""The fault of a source before its first frame or its first failure."""
POLL_SECONDS = 0.5
"""How often a viewer who waits for a picture looks whether the server shuts down."""


@dataclass(frozen=True)
class View:
    """A labelled frame for viewers: what is None was not wanted by anybody."""

    number: int
    jpeg: bytes | None = None
    event: dict[str, object] | None = None
    labels: str | None = None


class SourceCounters:
    """The counters of all sources, each with the name of a source as a label."""

    def __init__(self) -> None:
        self.frames = Counter("streamseg_source_frames_total", "Frames of each source that were labelled.")
        self.seconds = Counter(
            "streamseg_source_seconds_total",
            "Time from capture to labels, over the labelled frames of each source.",
        )
        self.dropped = Counter(
            "streamseg_source_dropped_total", "Frames of a watched source that a newer one replaced."
        )

    @property
    def all(self) -> list[Counter]:
        """Frames, seconds and dropped frames."""
        return [self.frames, self.seconds, self.dropped]


class ServedSource:
    """A source, its two threads, and its newest picture.

    Args:
        hardware: A hardware decoder; empty for the CPU.
        settings: Its network input size, mask and style; None for those of the server.
        bonnet: Whether its mask is the own car, which is found in the first frames that are labelled.
    """

    def __init__(
        self,
        name: str,
        address: str,
        gate: RequestGate,
        counters: SourceCounters,
        hardware: str = "",
        settings: SourceSettings | None = None,
        bonnet: bool = False,
    ):
        self.name, self.address, self.gate, self.counters = name, address, gate, counters
        self.decoding = Decoding(hardware=hardware)
        self.settings = settings or SourceSettings(None, served_style(gate.served), gate.served.mask)
        self.mask, self.bonnet = self.settings.mask, bonnet
        self.sought: Sequence[int] | None = None
        """Height and width of the frames in which the own car was sought."""
        self.note = ""
        """The last message of the source about itself: a video that is played again has the same one again."""
        for counter in counters.all:
            counter.add(0, source=name)  # so that Prometheus sees the first frame as an increase
        self.viewers = self.listeners = self.label_listeners = 0
        """How many want pictures, events, and labels in their events."""
        self.hls = HlsStream(name)
        self.view = View(0)
        self.fault = NO_FRAME_YET
        """Why there are no frames; empty while there are."""
        self.latest = time.monotonic()
        """When the last frame came."""
        self.frame: Capture | None = None
        """The newest frame, until it is labelled."""
        self.newest: Capture | None = None
        self.zones = gate.zones.watch(name, gate.served.classes)
        self.change = threading.Condition()
        self.closed = threading.Event()
        self.woken = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.threads: list[threading.Thread] = []

    @property
    def watched(self) -> bool:
        """Whether frames are labelled: those of zones are always, as an event does not come again."""
        return bool(self.viewers or self.listeners or self.zones or self.hls.running)

    @property
    def problem(self) -> str:
        """Why there are no frames, in a sentence; empty while there are."""
        silent = time.monotonic() - self.latest
        fault = self.fault or (f"it has been silent for {silent:.0f} s" if silent > SILENT_SECONDS else "")
        return f"{self.name} is not available: {fault.rstrip('.')}. The server tries again." if fault else ""

    def to_json(self) -> dict[str, object]:
        """Return whether it delivers frames, how many watch, and what was labelled since the start of the server."""
        problem, watching = self.problem, self.viewers + self.listeners
        frames, seconds, dropped = (counter.value(source=self.name) for counter in self.counters.all)
        return {
            "status": problem or "ok",
            "up": not problem,
            "viewers": watching,
            "frames": int(frames),
            "dropped": int(dropped),
            "mean_latency_ms": round(1000 * seconds / frames, 1) if frames else None,
        }

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        for work in (self.read, self.label):
            thread = threading.Thread(target=work, name=f"{work.__name__} {self.name}", daemon=True)
            thread.start()
            self.threads.append(thread)

    def close(self) -> None:
        """End the threads. The reader, which may hang in a device, is not waited for."""
        self.closed.set()
        with self.change:
            self.change.notify_all()
        if self.threads:
            self.threads[1].join(self.gate.limits.seconds)
        self.hls.close()

    def read(self) -> None:
        """Read frames; open the source again if it fails or ends."""
        set_torch_threads(1)
        attempt, source = 0, None
        while not self.closed.is_set():
            delivered = False
            try:
                source = source or find_source(self.address)
                with closing(source.captures(self.decoding)) as captures:
                    for capture in captures:
                        if self.closed.is_set():
                            return
                        if self.mask and not self.bonnet:  # that of the own car is sought again
                            self.mask.check_fits(*capture.pixels.shape[1:])
                        attempt, delivered = 0, True
                        if self.fault not in ("", NO_FRAME_YET):
                            logging.getLogger("streamseg").warning("%s delivers frames now.", self.name)
                        if capture.note not in ("", self.note):
                            logging.getLogger("streamseg").warning("%s: %s", self.name, capture.note)
                            self.note = capture.note
                        self.offer(capture)
                fault = "it has ended"
            except Exception as error:  # whatever a library raises: the source may come back
                fault, source = str(error) or type(error).__name__, None
            if isinstance(source, PlayedVideo) and delivered:  # which starts again
                continue
            if self.fault in ("", NO_FRAME_YET):  # the first attempt that failed, and no other
                state = "was lost" if self.newest else "delivers no frames"
                logging.getLogger("streamseg").warning("%s %s: %s", self.name, state, fault)
            self.fault = fault
            with self.change:
                if not self.watched:
                    self.frame = None  # who comes while it is lost wants no frame of before, nor does its latency count
            self.hls.end_if_idle()
            self.closed.wait(PAUSES[min(attempt, len(PAUSES) - 1)])
            attempt += 1

    def offer(self, capture: Capture) -> None:
        """Keep a frame as the newest one."""
        with self.change:
            if self.frame is not None and self.watched:
                self.counters.dropped.add(source=self.name)
            self.frame = self.newest = capture
            self.latest, self.fault = time.monotonic(), ""
            self.change.notify_all()

    def label(self) -> None:
        """Label the newest frame while somebody watches."""
        set_torch_threads(1)
        state: State | None = None
        while (capture := self.next_frame()) is not None:
            try:
                if self.bonnet and not (self.sought and have_same_proportions(capture.pixels.shape[1:], self.sought)):
                    self.find_bonnet(capture.pixels.shape[1:])
                    state = None
                    continue
                labels, state = self.label_frame(capture, state)
                self.counters.seconds.add(time.monotonic() - capture.captured, source=self.name)
                self.counters.frames.add(source=self.name)
                if self.zones:
                    self.zones.update(labels, capture.index, capture.seconds)
                self.publish(self.make_view(capture, labels))
            except Exception:  # a bug, out of memory, or the end of the server: the next frame may do
                state = None
                if not self.closed.is_set():
                    logging.getLogger("streamseg").exception("A frame of %s could not be labelled.", self.name)
                    self.closed.wait(POLL_SECONDS)

    def label_frame(self, capture: Capture, state: State | None) -> Labelled:
        """Return the labels of a frame, and the new state of the stream."""
        size, mask = self.settings.size, self.mask
        answer = self.gate.batcher.submit(capture.frame, state, capture.captured, size=size, mask=mask)
        try:
            return answer.result(self.gate.limits.seconds)
        finally:
            answer.cancel()  # if it is late, nobody wants it any more

    def find_bonnet(self, size: Sequence[int]) -> None:
        """Take the own car in the next frames, of a height and width, as the mask."""
        self.mask = None
        label = own_car_label(self.gate.served.classes)
        mask = mask_own_car(self.next_labels(BONNET_FRAMES, size), label, f"The mask of {self.name}")
        if not self.closed.is_set():
            self.mask, self.sought = mask, size
            logging.getLogger("streamseg").warning(describe_bonnet(self.name, mask))

    def next_labels(self, number: int, size: Sequence[int]) -> Iterator[Tensor]:
        """Yield the labels of the next frames of a height and width, each labelled by itself."""
        for _ in range(number):
            capture = self.next_frame()
            if capture is None or capture.pixels.shape[1:] != size:
                return
            yield self.label_frame(capture, None)[0]

    def next_frame(self) -> Capture | None:
        """Wait for a frame and somebody who watches; None at the end."""
        with self.change:
            self.change.wait_for(lambda: self.closed.is_set() or (self.frame and self.watched))
            capture, self.frame = self.frame, None
            return None if self.closed.is_set() else capture

    def make_view(self, capture: Capture, labels: Tensor) -> View:
        """Draw and encode what somebody wants of a frame."""
        classes, style, jpeg, event, packed = self.gate.served.classes, self.settings.style, None, None, None
        if self.viewers or self.hls.running:
            drawn = overlay(
                capture.frame, labels.cpu(), style.classes or classes, style.alpha, style.only, borders=style.borders
            )
            drawn = self.zones.draw(drawn) if self.zones else drawn
            jpeg = to_jpeg(drawn) if self.viewers else None
            self.hls.put(drawn)
        if self.listeners:
            age = round(1000 * (time.monotonic() - capture.captured), 1)
            event = {"source": self.name, "frame": capture.index, "seconds": capture.seconds, "age_ms": age}
            event |= shares_as_json(labels.cpu(), classes) | (self.zones.to_json() if self.zones else {})
        if self.label_listeners:
            packed = pack_labels(labels)
        self.gate.frames.add(source="source")
        return View(self.view.number + 1, jpeg, event, packed)

    def publish(self, view: View) -> None:
        """Show a view to all who wait for one."""
        self.view = view
        assert self.loop
        with suppress(RuntimeError):  # the server has ended
            self.loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        self.woken.set()
        self.woken = asyncio.Event()

    async def next_view(self, seen: int) -> View | None:
        """Return the first view after one that was seen; None if the server shuts down.

        While the source is lost it waits, since viewers who have seen a picture keep it; see `check`.
        """
        while not self.gate.closing.is_set():
            if self.view.number > seen:
                return self.view
            with self.change:  # somebody watches now
                self.change.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self.woken.wait()
        return None

    async def first_view(self, seen: int) -> View | None:
        """Return the next view, as next_view does; a RequestError if the source is lost."""
        waiting = asyncio.ensure_future(self.next_view(seen))
        try:
            while not (await asyncio.wait({waiting}, timeout=POLL_SECONDS))[0]:
                self.check()
            return waiting.result()
        finally:
            waiting.cancel()

    def check(self) -> None:
        """Raise a RequestError if there are no frames."""
        if self.problem:
            raise RequestError(503, self.problem, 5)


def served_style(served: ServedModel) -> DrawStyle:
    """Return how the labels of sources are drawn."""
    return DrawStyle(borders=True, classes=served.drawn)


def find_source(address: str) -> LiveSource | PlayedVideo:
    """Return the source at an address, a file as one that is played."""
    found = find_sources([address])
    if len(found) > 1:
        raise ValueError(f"{redact(address)} holds {len(found)} sources: give one of them, such as {found[0].name}.")
    source = play(found[0])
    if not isinstance(source, LiveSource | PlayedVideo):
        raise ValueError(f"{source.name} is a picture: give a camera, a stream or a video.")
    return source


def parse_sources(given: Sequence[str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return addresses by name, of texts such as NAME=ADDRESS; raise an error if one cannot be a source.

    Args:
        known: Addresses by name that come first, such as those of a fleet file.
    """
    addresses = dict(known or {})
    for text in given:
        name, mark, address = text.partition("=")
        if not mark or is_address(text):  # an address may have a mark of its own
            raise ValueError(
                f"--source is {redact(text)!r:.80}; expected NAME=ADDRESS, such as front={redact(text):.80}."
            )
        if not address or not NAME.fullmatch(name):
            raise ValueError(
                "--source takes NAME=ADDRESS, with letters, digits, _ and - in the name; "
                f"{redact(name)!r:.80} does not fit."
            )
        if name in addresses:
            raise ValueError(f"Two sources are called {name}: give each a name of its own.")
        if is_address(address):
            split_address(address)  # it may answer later
        else:
            find_source(address)
        addresses[name] = address
    return addresses


def add_sources(
    gate: RequestGate,
    addresses: Mapping[str, str],
    hardware: str = "",
    own: Mapping[str, SourceSettings] | None = None,
    bonnets: Collection[str] = (),
) -> None:
    """Let the server read sources, with their metrics; they start with it.

    Args:
        hardware: The hardware decoder of all of them; empty for the CPU.
        own: The settings of sources that have their own, by name.
        bonnets: The names of those whose mask is the own car.
    """
    if not addresses:
        return
    counters, own = SourceCounters(), own or {}
    gate.sources = {
        name: ServedSource(name, address, gate, counters, hardware, own.get(name), name in bonnets)
        for name, address in addresses.items()
    }
    sources = gate.sources.values()
    gate.metrics += [
        *counters.all,
        Gauge("streamseg_viewers", "Viewers of sources.", lambda: sum(s.viewers + s.listeners for s in sources)),
        Gauge("streamseg_sources_up", "Sources that deliver frames.", lambda: sum(not s.problem for s in sources)),
    ]
