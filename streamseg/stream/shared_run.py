"""What the threads of a run share: its state, and the frames that they hand on.

Shapes: H height, W width.
"""

import json
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import torch
from torch import Tensor

from streamseg.io import codec_pool
from streamseg.io.line_thread import LineWriter
from streamseg.io.sources import Capture, Decoding
from streamseg.io.yuv import Yuv420
from streamseg.parallel.threads import ThreadGroup
from streamseg.stream.deadline import Deadline
from streamseg.stream.latency import Meter
from streamseg.stream.observer import PipelineObserver
from streamseg.stream.region_outputs import RegionSettings
from streamseg.stream.settings import DrawStyle, LabelSettings

if TYPE_CHECKING:
    from streamseg.stream.source_threads import SourceStream


@dataclass(eq=False)
class SharedRun:
    """The state that all threads of a run share."""

    settings: LabelSettings
    style: DrawStyle
    meter: Meter
    deadline: Deadline
    observer: PipelineObserver
    device: torch.device
    live: bool
    """Whether any source is live."""
    several: bool
    """Whether there is more than one source."""
    shows: bool
    """Whether the frames are shown in a window."""
    records: LineWriter | None
    """Receives a line of JSON for each frame."""
    records_labels: bool
    """Whether these lines hold the labels."""
    raw: BinaryIO | None
    """Receives the labels of each frame as bytes."""
    regions: RegionSettings | None = None
    """What to do with regions and zones."""
    group: ThreadGroup = field(default_factory=ThreadGroup)
    # not the group's: torch and files give other threads a turn, which would all wait for a lock of the queues
    totals_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while class_pixels change."""
    records_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a line is written to records."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each source that failed."""
    reported: dict[str, str] = field(default_factory=dict)
    """Those of them that the observer has received already, by the name of the source."""
    class_pixels: list[int] = field(init=False)
    """How many pixels of all frames have each class."""
    hardware: str = ""
    """The hardware decoder of videos; empty for none."""
    on_device: bool = field(init=False)
    """Whether the network thread also copies, converts and draws frames (device_work.py), as on a GPU. Videos are read
    and written as planes then."""
    codec_processes: bool = field(init=False)
    """Whether video files are decoded and encoded by processes of their own."""

    def __post_init__(self) -> None:
        self.on_device = works_on_device(self.device)
        self.codec_processes = uses_codec_processes(self.on_device)
        self.class_pixels = [0] * len(self.settings.classes)

    @property
    def decoding(self) -> Decoding:
        """How videos are decoded."""
        # a hardware decoder takes memory of the GPU in each process
        in_process = self.codec_processes and not self.hardware
        return Decoding(self.on_device, self.device.type == "cuda", self.hardware, in_process)

    def add_labels(self, job: "FrameJob", counts: list[int]) -> None:
        """Take how many pixels of a frame have each class."""
        seen = max(1, sum(counts))  # pixels that are not masked
        job.shares = [count / seen for count in counts]
        with self.totals_lock:
            for i, count in enumerate(counts):
                self.class_pixels[i] += count

    def write_record(self, entry: dict[str, object]) -> None:
        """Write a line of JSON, which were asked for."""
        assert self.records is not None
        line = json.dumps(entry) + "\n"
        with self.records_lock:
            self.records.write(line)

    def add_latency(self, job: "FrameJob") -> None:
        """Take the latency of a frame, which ends with its labels on the host."""
        self.meter.labelled(job.latency, job.stream.source.name)
        self.deadline.record(job.latency, job.scale, job.network_seconds, job.prepared)


def works_on_device(device: torch.device) -> bool:
    """Return whether one thread does all work on a device besides the codecs."""
    return device.type == "cuda"


def uses_codec_processes(on_device: bool) -> bool:
    """Return whether codecs run in processes of their own: beside a GPU, whose thread they would hold up.

    The environment variable STREAMSEG_CODECS, processes or threads, decides otherwise, to compare them.
    """
    if os.environ.get("STREAMSEG_CODECS", "processes" if on_device else "threads") != "processes":
        return False
    return codec_pool.are_possible()


NOTHING = torch.empty(0)
"""Stands for a tensor that is not there. To make one for each frame would be a call more, after which a thread may have
to wait for Python's lock."""


@dataclass(eq=False)
class FrameJob:
    """A frame on its way through the pipeline."""

    stream: "SourceStream"
    capture: Capture
    started: float
    """When its latency begins: at the capture of a live source, at the network for a file, which has no clock."""
    frame: Tensor = NOTHING
    """(3, H, W), on the network's device; empty before it is copied to a GPU, or is needed, and after it was drawn."""
    scale: float = 1.0
    """The scale of the network input that the deadline chose."""
    size: tuple[int, int] = (0, 0)
    """Height and width of the network input."""
    labels: Tensor = NOTHING
    """(H, W), on the network's device until DeviceWork or the drawer has fetched them."""
    device_labels: Tensor | None = None
    """The labels on the network's device, if the drawer needs them there."""
    confidence: Tensor | None = None
    prepared: bool = False
    """Whether the engine was prepared for this batch size and input size."""
    network_seconds: float = 0.0
    """The network's part of the latency."""
    latency: float = 0.0
    counts: list[int] | None = None
    """How many pixels have each class, once they are counted."""
    shares: list[float] = field(default_factory=list)
    """The share of each class."""
    picture: Tensor | Yuv420 | None = None
    """RGB, or planes if it only goes into a video."""
    colours: Tensor | Yuv420 | None = None
    """The colours of the labels alone."""

    @property
    def shape(self) -> torch.Size:
        """The shape (3, H, W) of the frame, wherever it is."""
        return self.capture.pixels.shape
