"""The overlay of a source as an HLS stream, written to a temporary folder while somebody asks for it."""

import atexit
import logging
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

from torch import Tensor

from streamseg.io.live_sender import LiveSender
from streamseg.io.live_video import LiveFrame, hls_sender
from streamseg.io.pyav import require_av

PLAYLIST = "stream.m3u8"
SEGMENT = re.compile(r"[0-9]{1,9}\.ts", re.ASCII)
"""The names of segments."""
IDLE_SECONDS = 60.0
"""After this time without a request the stream ends."""
JOIN_SECONDS = 5.0
"""How long the end of a stream waits for its process, which was killed."""


class HlsStream:
    """A stream that starts with the first request for it, and ends when there are none any more.

    A process of its own encodes. Where it is slower than the pictures come, the oldest are dropped.
    """

    def __init__(self, name: str):
        self.name = name
        self.lock = threading.Lock()
        self.folder: Path | None = None
        """Holds the playlist and its segments, while the stream runs."""
        self.sender: LiveSender[LiveFrame] | None = None
        self.asked = 0.0
        """When the last request came."""

    @property
    def running(self) -> bool:
        return self.folder is not None

    def ask(self) -> Path:
        """Start the stream unless it runs, and return its folder, which is empty at first."""
        with self.lock:
            self.asked = time.monotonic()
            if self.folder is None:
                require_av()
                self.folder = Path(tempfile.mkdtemp(prefix="streamseg-hls-"))
                self.sender = hls_sender(self.name, self.folder / PLAYLIST, logging.getLogger("streamseg").warning)
                atexit.register(self.close)  # a second Ctrl-C ends the server without its usual end
            return self.folder

    def put(self, picture: Tensor) -> None:
        """Add a picture (3, H, W), uint8, if the stream runs; end it if nobody has asked for it for a while."""
        self.end_if_idle()
        sender = self.sender
        if sender is not None:
            sender.put(LiveFrame(picture, time.monotonic()))  # a video that is played again begins at 0 s

    def end_if_idle(self) -> None:
        """End the stream if nobody has asked for it for a while."""
        if self.running and time.monotonic() - self.asked > IDLE_SECONDS:
            self.close()

    def read_segment(self, name: str) -> bytes | None:
        """Return a segment; None if there is none of that name."""
        folder = self.folder
        if folder is None or not SEGMENT.fullmatch(name):
            return None
        self.asked = time.monotonic()
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """End the stream and remove its folder."""
        with self.lock:
            folder, sender = self.folder, self.sender
            self.folder = self.sender = None
        if folder is None or sender is None:
            return
        atexit.unregister(self.close)
        sender.abort()
        sender.thread.join(JOIN_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
