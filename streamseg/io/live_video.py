"""Send video to an address: RTSP, RTMP, or MPEG-TS over UDP or SRT; or to a folder, as HLS.

A process encodes and sends (live_process.py); here are its start, its timeouts and its end.
"""

import json
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from streamseg.io.live_process import TICKS
from streamseg.io.live_sender import ANSWER_SECONDS, LiveSender
from streamseg.io.pyav import av, colour_matrix_number, default_colour_matrix, require_av
from streamseg.io.sources import DEFAULT_RATE
from streamseg.io.web import SCHEMES, redact, redact_address_in, split_if_valid

if TYPE_CHECKING:
    from torch import Tensor

    from streamseg.io.yuv import Yuv420

CAPACITY = 2
"""Frames that may wait for a peer."""

CAMERA_HINT = "If it is a camera to read too, name the place to write with -o."

FORMATS = {"rtsp": "rtsp", "rtsps": "rtsp", "rtmp": "flv", "rtmps": "flv", "udp": "mpegts", "srt": "mpegts"}
"""FFmpeg's format for each kind of address."""

HLS_OPTIONS = {
    "hls_time": "1",
    "hls_list_size": "6",
    # a process that takes over from another, as when the size changes, continues the playlist: numbers never go back
    "hls_flags": "delete_segments+independent_segments+append_list",
    "hls_segment_type": "mpegts",
}
"""A playlist of six segments, each of a second or, if key frames are rarer, up to the next one."""
HLS_RATE = Fraction(10)
"""Frames from key frame to key frame: a segment begins with one, and a slow network has few frames a second."""


@dataclass(frozen=True)
class LiveFrame:
    """A picture to send, and its time."""

    picture: "Tensor | Yuv420"
    """RGB (3, H, W), uint8, or the planes that the encoder takes, of 8 bits, limited range and even sides."""
    seconds: float

    @property
    def planes(self) -> str:
        """FFmpeg's name for the planes."""
        from streamseg.io.yuv import Yuv420  # with torch: addresses are checked before it is imported

        return "yuv420p" if isinstance(self.picture, Yuv420) else "gbrp"


class VideoProcess:
    """A process that is connected to an address and takes frames."""

    def __init__(self, address: str, size: tuple[int, int], rate: Fraction, planes: str = "gbrp"):
        """
        Args:
            planes: FFmpeg's name for those of the frames.
        """
        self.address, self.size, self.planes = address, size, planes
        self.start: float | None = None
        self.tick = -1
        self.answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        script = Path(__file__).with_name("live_process.py")
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        threading.Thread(target=self.read_answers, name="answers", daemon=True).start()
        file_format, options = format_of(address)
        header = {
            "address": with_packet_size(address),  # not an argument: others could read a password there
            "format": file_format,
            "options": options,
            "size": size,
            "planes": planes,
            "matrix": default_colour_matrix(size[0]),
            "matrix_number": colour_matrix_number(size[0]),
            "rate": (rate.numerator, rate.denominator),
        }
        try:
            self.write(json.dumps(header).encode() + b"\n")
            self.expect("open")
        except BaseException:
            self.abort()
            raise

    def send(self, frame: LiveFrame) -> None:
        """Send a frame, and wait until it is on its way."""
        if frame.picture.shape[1:] != self.size:
            raise ValueError(f"the size changed to {frame.picture.shape[1]} x {frame.picture.shape[2]}")
        if frame.planes != self.planes:
            raise ValueError(f"the pixels changed to {frame.planes}")
        if self.start is None:
            self.start = frame.seconds
        self.tick = max(round((frame.seconds - self.start) * TICKS), self.tick + 1)
        self.write(struct.pack("<q", self.tick))
        self.write(to_bytes(frame.picture))
        self.expect("sent")

    def close(self) -> None:
        """End the stream; the peer gets all that was sent."""
        assert self.process.stdin
        try:
            self.process.stdin.close()
            self.expect("done")
        finally:
            self.abort()

    def abort(self) -> None:
        self.process.kill()
        with suppress(OSError):
            assert self.process.stdin
            self.process.stdin.close()
        self.process.wait()

    def write(self, data: bytes | memoryview) -> None:
        assert self.process.stdin
        view = memoryview(data)
        try:
            while view:
                view = view[self.process.stdin.write(view) :]
        except OSError:  # a broken pipe; Windows has another error for it
            self.expect("")  # its last answer says why

    def expect(self, wanted: str) -> None:
        """Wait for an answer; an OSError if it is another one, or none comes."""
        try:
            answer = self.answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise TimeoutError(f"it did not answer within {ANSWER_SECONDS:.0f} s") from None
        if answer == "sent" and not wanted:
            self.expect(wanted)
        if answer != wanted:
            kind, _, reason = answer.partition(" ")
            raise OSError(explain(reason, self.address) if kind == "error" else "the process that sends has ended")

    def read_answers(self) -> None:
        """Queue the answers of the process, and an empty one at its end."""
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                self.answers.put(line.decode(errors="replace").strip())
        self.answers.put("ended")


def video_sender(
    name: str, address: str, rate: Fraction | None, notify: Callable[[str], None]
) -> LiveSender[LiveFrame]:
    """Return a sender of frames to an address.

    Args:
        name: The stream's name, for messages.
        rate: Frames a second, if known.
        notify: Receives a sentence when the connection is lost, and when it is back.
    """
    require_av()

    def connect(frame: LiveFrame) -> VideoProcess:
        _, height, width = frame.picture.shape
        return VideoProcess(address, (height, width), rate or DEFAULT_RATE, frame.planes)

    # segment takes the last name as OUT, though it may be meant as one more camera
    hint = CAMERA_HINT if address.partition("://")[0].lower() in SCHEMES else ""
    return LiveSender(name, redact(address), connect, capacity=CAPACITY, noun="frame", notify=notify, hint=hint)


def to_bytes(picture: "Tensor | Yuv420") -> memoryview:
    """Return the bytes of a picture, plane by plane."""
    from streamseg.io.yuv import Yuv420

    pixels = picture.pixels if isinstance(picture, Yuv420) else picture
    return pixels.cpu().contiguous().numpy().data.cast("B")


def hls_sender(name: str, playlist: Path, notify: Callable[[str], None]) -> LiveSender[LiveFrame]:
    """Return a sender of frames to a playlist (.m3u8) and its segments (.ts) beside it.

    Args:
        name: The stream's name, for messages.
        notify: Receives a sentence when writing fails.
    """
    return video_sender(name, str(playlist), HLS_RATE, notify)


def format_of(address: str) -> tuple[str, dict[str, str]]:
    """Return FFmpeg's format for an address, and its options."""
    if "://" not in address:  # a playlist
        return "hls", HLS_OPTIONS | {"hls_segment_filename": str(Path(address).with_name("%d.ts"))}
    found = FORMATS[address.partition("://")[0].lower()]
    # over TCP: lost packets would damage the picture until the next key frame
    return found, {"rtsp_transport": "tcp"} if found == "rtsp" else {}


def check_live_address(address: str) -> None:
    """Raise a ValueError if video cannot be sent to an address."""
    scheme, shown = address.partition("://")[0].lower(), redact(address)
    if scheme not in FORMATS:
        raise ValueError(
            f"{shown} is no address to send to: expected rtsp://, rtmp://, udp:// or srt://. To read it, name "
            "the place to write with -o."
        )
    example = f"{scheme}://host:port" + ("" if FORMATS[scheme] == "mpegts" else "/path")
    parts = split_if_valid(address)
    if not (parts and parts.hostname) or (FORMATS[scheme] == "mpegts" and not parts.port):
        raise ValueError(f"{shown} is no address to send to: expected {example}.")
    if scheme == "srt" and not has_srt():
        raise ValueError(f"{shown} cannot be sent to: {explain('Protocol not found', address)}.")


def has_srt() -> bool:
    """Return whether the FFmpeg inside PyAV can send over SRT, which many builds cannot."""
    require_av()
    try:
        av.open("srt://")
    except av.error.ProtocolNotFoundError:
        return False
    except (av.error.FFmpegError, ValueError):  # no host was given
        pass
    return True


def with_packet_size(address: str) -> str:
    """Return an address; for UDP with packets that fit a network, as players expect."""
    if not address.lower().startswith("udp:") or "pkt_size=" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}pkt_size=1316"


def explain(reason: str, address: str) -> str:
    """Return FFmpeg's reason for a failure in words."""
    scheme = address.partition("://")[0].lower()
    if reason == "Protocol not found":
        return f"the FFmpeg inside PyAV was built without {scheme}: send to rtsp://, rtmp:// or udp://"
    return redact_address_in(reason, address) or "the connection failed"
