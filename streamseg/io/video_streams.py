"""Videos as FFmpeg opens them, and what their streams declare."""

import re
import time
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from streamseg.io.hardware import open_accelerated
from streamseg.io.pyav import av, require_av, time_base
from streamseg.io.web import is_address, redact

if TYPE_CHECKING:
    from av import VideoStream
    from av.container import InputContainer


def open_container(
    address: str, timeout: float, options: dict[str, str] | None = None, hardware: str = ""
) -> "InputContainer":
    """Open a file or an address with FFmpeg."""
    require_av()
    options = dict(options or {})
    location = address
    if not is_address(address):
        path = Path(address)
        if not path.exists():
            raise FileNotFoundError(f"No video at {path}: check the path.")
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder: give a video.")
        if not path.is_file():
            raise ValueError(f"{path} is a device or a pipe: give a video.")
        # a playlist that calls itself a video must not read anything else
        location, options["protocol_whitelist"] = f"file:{address}", "file"
    # not as options of the streams as well: PyAV 14 crashes on streams that appear late
    open_with = partial(av.open, location, container_options=options, metadata_errors="replace", timeout=timeout)
    began = time.monotonic()
    try:
        return open_accelerated(lambda accelerator: open_with(hwaccel=accelerator), hardware)
    except av.error.FFmpegError as error:
        # some protocols report a timeout as another error
        if time.monotonic() - began >= timeout:
            raise TimeoutError(f"{redact(address)} did not answer in time.") from None
        raise reading_error(error, redact(address)) from None


def reading_error(error: "av.error.FFmpegError", name: str) -> Exception:
    """Return an error of FFmpeg as one that names the file."""
    if isinstance(error, av.error.ExitError | av.error.TimeoutError):
        return TimeoutError(f"{name} did not answer in time.")
    if isinstance(error, PermissionError):
        return PermissionError(f"{name} may not be read: {error.strerror}.")
    if is_address(name) and not isinstance(error, av.error.InvalidDataError):
        return OSError(f"{name} cannot be read: {error.strerror}.")
    return ValueError(f"{name} is not a video that can be read, such as MP4, MKV, WebM or AVI ({error.strerror}).")


def frame_rate(stream: "VideoStream") -> Fraction:
    """Return the average number of frames a second; 25 if the file declares none that is credible."""
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and 0 < rate <= 1000:
            return rate
    return Fraction(25)


def declared_frames(stream: "VideoStream") -> int:
    """Return how many frames a file declares; 0 if it does not, as an AVI that was written to a pipe."""
    return stream.frames if stream.frames < 2**30 else 0


def declared_end(stream: "VideoStream") -> float | None:
    """Return the time at which a file says that its video ends; None if it does not, or FFmpeg only estimates it."""
    if declared_frames(stream) and stream.duration:
        return float(((stream.start_time or 0) + stream.duration) * time_base(stream))
    match = re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", ""))  # in Matroska
    return 3600 * int(match[1]) + 60 * int(match[2]) + float(match[3]) if match else None


def has_known_length(address: str) -> bool:
    """Return whether the video at an address declares its length, as no live stream does."""
    try:
        with open_container(address, 10.0, {"analyzeduration": "1"}) as container:
            frames = sum(stream.frames for stream in container.streams.video)
            # of a fragmented MP4, FFmpeg adds up the fragments that it has read
            return bool(container.duration and (frames or "mp4" not in container.format.name))
    except (OSError, ValueError):
        return False


def video_made_by_streamseg(path: Path) -> bool:
    """Return whether streamseg wrote a video, by its metadata."""
    try:
        with open_container(str(path), 10.0) as container:
            return {key.lower(): text for key, text in container.metadata.items()}.get("comment") == "streamseg"
    except (OSError, ValueError):
        return False
