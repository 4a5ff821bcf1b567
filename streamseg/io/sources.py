"""Kinds of sources: pictures, numbered pictures, video files, live streams and raw frames on standard input.

The `captures` of a source yields its frames: RGB, uint8, (3, H, W), or the planes of a video that is decoded to them. A
size is (height, width). Passwords in addresses are never shown. torch is imported only when frames are read, so that a
wrong name is reported at once.
"""

import io
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from streamseg.checks import CutShort
from streamseg.io import web
from streamseg.io.codec_pool import IDLE, read_job
from streamseg.io.web import is_address, redact

if TYPE_CHECKING:
    from torch import Tensor

    from streamseg.io.codec_client import ProcessVideo
    from streamseg.io.decoded_frame import DecodedFrame
    from streamseg.io.video_reading import Video
    from streamseg.io.yuv import Yuv420

DEFAULT_RATE = Fraction(25)
"""Frames a second where the rate is unknown."""
HARDWARE_DECODERS = ("cuda", "videotoolbox", "vaapi")
"""In the order in which auto tries them."""
RECONNECT_DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each attempt to reach a live source again."""
NUMBER_FIELD = re.compile(r"%(?:0\d+)?d")
"""The place of the number in a pattern such as frame_%04d.png."""


@dataclass(frozen=True)
class Decoding:
    """How videos are decoded."""

    planes: bool = False
    """Whether frames of YUV 4:2:0 stay as they are stored, to be converted to RGB on a GPU."""
    pinned: bool = False
    """Whether these are in pinned memory, which a GPU copies faster."""
    hardware: str = ""
    """A hardware decoder: cuda, vaapi, videotoolbox or auto; empty for the CPU."""
    process: bool = False
    """Whether a process of its own decodes each video file."""


TO_RGB = Decoding()


@dataclass(frozen=True)
class Capture:
    """A frame, and where and when it was taken."""

    pixels: "Tensor | Yuv420 | DecodedFrame"
    """RGB, the planes of a video that is decoded to them, or what becomes RGB when it is needed."""
    name: str
    """For the names of output files: of a picture its file's name without suffix, else the source's name."""
    index: int
    seconds: float
    """Since the source's first frame; 0 for single pictures."""
    captured: float
    """The time.monotonic() at which it was decoded."""
    note: str = ""
    """A message for the user."""
    total: int | None = None
    """How many frames its source has, if that is known."""
    reconnected: bool = False
    """Whether its source was lost and came back with this frame."""

    @property
    def frame(self) -> "Tensor":
        """The frame as RGB, (3, H, W)."""
        from streamseg.io.yuv import as_rgb

        return as_rgb(self.pixels)


@dataclass(frozen=True)
class PictureFile:
    """A picture in a file or on a web server."""

    name: str
    address: str = field(repr=False)

    def read(self) -> tuple["Tensor", str]:
        """Return its frame, and a note if the file holds more than one."""
        from streamseg.io import images

        with readable_errors(self.address):
            if is_address(self.address):
                frame, more = images.read_downloaded(io.BytesIO(web.fetch(self.address)), redact(self.address))
            else:
                frame, more = images.read_first(self.address)
        return frame, f"{redact(self.address)} holds several pictures: the first is used." if more else ""


@dataclass(frozen=True)
class Pictures:
    """Single pictures, independent of each other."""

    name: str
    pictures: tuple[PictureFile, ...]
    live: ClassVar[bool] = False
    moving: ClassVar[bool] = False
    rate: ClassVar[Fraction | None] = None
    audio_from: ClassVar[str | None] = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The local files among them."""
        return tuple(Path(picture.address) for picture in self.pictures if not is_address(picture.address))

    def captures(self) -> Generator[Capture, None, None]:
        """Yield each picture. Unreadable ones are skipped, and CutShort at the end counts them."""
        problems = []
        for i, picture in enumerate(self.pictures):
            try:
                frame, note = picture.read()
            except (OSError, ValueError) as problem:
                if len(self.pictures) == 1:
                    raise
                problems.append(str(problem))
            else:
                yield Capture(frame, picture.name, i, 0.0, time.monotonic(), note, len(self.pictures))
        if problems:
            raise CutShort(
                f"{len(problems)} of {len(self.pictures)} pictures could not be read, the first one: {problems[0]}"
            )


@dataclass(frozen=True)
class NumberedPictures:
    """Pictures with consecutive numbers, which are the frames of a video."""

    name: str
    address: str
    paths: tuple[Path, ...] = field(repr=False)
    rate: Fraction
    note: str = ""
    live: ClassVar[bool] = False
    moving: ClassVar[bool] = True
    audio_from: ClassVar[str | None] = None

    def captures(self) -> Generator[Capture, None, None]:
        """Yield each frame. An unreadable one ends them with CutShort."""
        for i, path in enumerate(self.paths):
            try:
                frame, _ = PictureFile(self.name, str(path)).read()
            except (OSError, ValueError) as problem:
                if i == 0:
                    raise
                raise CutShort(f"{self.address} ends after {plural(i, 'frame')}: {problem}") from None
            note = self.note if i == 0 else ""
            yield Capture(frame, self.name, i, float(i / self.rate), time.monotonic(), note, len(self.paths))


@dataclass(frozen=True)
class VideoFile:
    """A video with an end, in a file or on a web server."""

    name: str
    address: str = field(repr=False)
    live: ClassVar[bool] = False
    moving: ClassVar[bool] = True

    @cached_property
    def copy(self) -> web.TemporaryCopy | None:
        """A local copy, if the video cannot be read directly from its server."""
        return web.copy_if_needed(self.address) if is_address(self.address) else None

    @property
    def location(self) -> str:
        """The file or address that is read."""
        return str(self.copy.path) if self.copy else self.address

    @property
    def audio_from(self) -> str:
        return self.location

    @property
    def paths(self) -> tuple[Path, ...]:
        return () if is_address(self.address) else (Path(self.address),)

    @cached_property
    def rate(self) -> Fraction | None:
        """Frames a second; None if it cannot be opened, for which captures raises the error."""
        from streamseg.io.video_reading import open_video

        try:
            with open_video(self.location) as video:
                return video.rate
        except (OSError, ValueError):
            return None

    def open(self, name: str, decoding: Decoding) -> "Video | ProcessVideo":
        """Start to decode it, in this process or another."""
        if decoding.process:
            from streamseg.io.codec_client import ProcessVideo

            return ProcessVideo(self.location, name, decoding)
        from streamseg.io.video_reading import open_video

        return open_video(self.location, name=name, hardware=decoding.hardware)

    def open_ahead(self, decoding: Decoding) -> None:
        """Let a process begin to decode it, before captures asks for that with the same decoding."""
        job = read_job(self.location, redact(self.address), decoding.hardware, decoding.planes)
        IDLE.begin("read", job)

    def captures(
        self, decoding: Decoding = TO_RGB, opened: "Callable[[Video | ProcessVideo], None] | None" = None
    ) -> Generator[Capture, None, None]:
        """Yield each frame; CutShort follows the last of a damaged file.

        Args:
            opened: Receives the video once it is open.
        """
        name = redact(self.address)
        with readable_errors(self.address), self.open(name, decoding) as video:
            if opened:
                opened(video)
            self.__dict__["rate"] = video.rate  # so that it is not opened again for it
            copied = f"{name} was downloaded first: its index comes last, and its server sends no parts."
            first_note = " ".join(note for note in (copied if self.copy else "", video.note) if note)
            for i, (pixels, seconds) in enumerate(video.pictures(decoding)):
                note = first_note if i == 0 else ""
                yield Capture(pixels, self.name, i, seconds, time.monotonic(), note, video.length)


@dataclass(frozen=True)
class LiveSource:
    """A camera or a network stream."""

    name: str
    address: str = field(repr=False)
    open: Callable[[str, str], "Video"] = field(repr=False)
    """Opens an address with a hardware decoder, or none."""
    live: ClassVar[bool] = True
    moving: ClassVar[bool] = True
    rate: ClassVar[Fraction | None] = None
    paths: ClassVar[tuple[Path, ...]] = ()
    audio_from: ClassVar[str | None] = None

    def captures(self, decoding: Decoding = TO_RGB) -> Generator[Capture, None, None]:
        """Yield frames as they come. A lost source is opened again; CutShort says that it did not come back."""
        index, attempt, began, lost, latest = 0, 0, 0.0, 0.0, 0.0
        while True:
            try:
                with readable_errors(self.address), self.open(self.address, decoding.hardware) as video:
                    shift, note = None, "" if index else video.note
                    for pixels, seconds in video.pictures(decoding):
                        now = time.monotonic()
                        if index == 0:
                            began = now
                        elif shift is None:
                            note = f"{redact(self.address)} was lost and came back after {now - lost:.1f} s."
                        if shift is None:
                            # a stream starts again at 0; frames that arrived in a burst may be ahead of the clock
                            shift = (max(now - began, latest + float(1 / DEFAULT_RATE)) if index else 0.0) - seconds
                        latest = shift + seconds
                        yield Capture(pixels, self.name, index, latest, now, note, reconnected=bool(note) and index > 0)
                        index, attempt, note = index + 1, 0, ""
            except (OSError, ValueError):
                if index == 0:
                    raise
            if index == 0:
                raise ValueError(f"{redact(self.address)} sent no frame: check that it is running.")
            if attempt == 0:
                lost = time.monotonic()
            if attempt == len(RECONNECT_DELAYS):
                raise CutShort(
                    f"{redact(self.address)} was lost after {plural(index, 'frame')} and did not come back within "
                    f"{time.monotonic() - lost:.0f} s."
                )
            time.sleep(RECONNECT_DELAYS[attempt])
            attempt += 1


@dataclass(frozen=True)
class RawFrames:
    """Frames on standard input as bytes: rows from the top, pixels from the left, red, green, blue."""

    size: tuple[int, int]
    rate: Fraction
    name: str = "stdin"
    address: ClassVar[str] = "-"
    live: ClassVar[bool] = False
    moving: ClassVar[bool] = True
    paths: ClassVar[tuple[Path, ...]] = ()
    audio_from: ClassVar[str | None] = None

    def captures(self) -> Generator[Capture, None, None]:
        """Yield each whole frame; CutShort if the last is not whole."""
        import torch

        height, width = self.size
        if sys.stdin is None or sys.stdin.isatty():
            raise ValueError(f"Nothing is piped into standard input: expected raw RGB frames of {height} x {width}.")
        buffer = bytearray(height * width * 3)
        pixels = torch.frombuffer(buffer, dtype=torch.uint8).view(height, width, 3).permute(2, 0, 1)
        with io.FileIO(sys.stdin.fileno(), closefd=False) as file:
            index = 0
            while (filled := read_into(file, buffer)) == len(buffer):
                frame = pixels.clone(memory_format=torch.contiguous_format)
                yield Capture(frame, self.name, index, float(index / self.rate), time.monotonic())
                index += 1
        if filled:
            raise CutShort(
                f"Standard input ended within a frame of {height} x {width} pixels ({filled} of {len(buffer)} bytes), "
                f"after {plural(index, 'whole frame')}: check --raw-size."
            )
        if index == 0:
            raise ValueError(f"Standard input was empty: expected raw RGB frames of {height} x {width} pixels.")


@dataclass(frozen=True)
class PlayedVideo:
    """A video that is read at its own pace, as a camera delivers it: for live outputs."""

    name: str
    video: NumberedPictures | VideoFile | RawFrames
    live: ClassVar[bool] = True
    moving: ClassVar[bool] = True
    audio_from: ClassVar[str | None] = None

    @property
    def address(self) -> str:
        return self.video.address

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.video.paths

    @property
    def rate(self) -> Fraction | None:
        return self.video.rate

    def captures(self, decoding: Decoding = TO_RGB) -> Generator[Capture, None, None]:
        """Yield each frame when it is due; what is late is not waited for."""
        begin, video = None, self.video
        with closing(video.captures(decoding) if isinstance(video, VideoFile) else video.captures()) as captures:
            for capture in captures:
                now = time.monotonic()
                if begin is None:
                    begin = now - capture.seconds
                due = begin + capture.seconds
                if due > now:
                    time.sleep(due - now)
                    now = time.monotonic()
                yield replace(capture, captured=now)


Source: TypeAlias = Pictures | NumberedPictures | VideoFile | LiveSource | RawFrames | PlayedVideo


def play(source: Source) -> Source:
    """Return a source as a live one; pictures as they are."""
    if isinstance(source, NumberedPictures | VideoFile | RawFrames):
        return PlayedVideo(source.name, source)
    return source


def read_into(file: io.FileIO, buffer: bytearray) -> int:
    """Read into a buffer until it is full or the file ends, and return the number of bytes read."""
    view, filled = memoryview(buffer), 0
    while filled < len(view) and (got := file.readinto(view[filled:])):
        filled += got
    return filled


def open_camera(address: str, hardware: str) -> "Video":
    """Open a camera by its number or device. Its frames need no hardware decoder."""
    from streamseg.io import video_reading

    return video_reading.open_camera(address)


def open_stream(address: str, hardware: str) -> "Video":
    """Open a network stream."""
    from streamseg.io import video_reading

    return video_reading.open_stream(address, hardware=hardware)


def fill_number(name: str, number: int) -> str:
    """Return a pattern such as frame_%04d.png with a number filled in."""
    return NUMBER_FIELD.sub(lambda match: match[0] % number, name)


def numbered_files(pattern: Path) -> dict[int, Path]:
    """Return the existing files of a pattern such as frame_%04d.png, by number."""
    shape = re.compile("([0-9]+)".join(map(re.escape, NUMBER_FIELD.split(pattern.name))))
    files = {}
    for path in pattern.parent.iterdir() if pattern.parent.is_dir() else ():
        match = shape.fullmatch(path.name)
        if match and path.name == fill_number(pattern.name, int(match[1])):
            files[int(match[1])] = path
    return files


@contextmanager
def readable_errors(address: str, prefix: str = "") -> Iterator[None]:
    """Turn errors into sentences without passwords, which start with a prefix."""
    kinds = (CutShort, FileNotFoundError, IsADirectoryError, PermissionError, OSError, ValueError)
    try:
        yield
    except kinds as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:  # the system's message is no sentence
            text = f"{address} cannot be read: {error.strerror}."
        sentence = prefix + web.redact_address_in(text, address)
        if sentence == str(error):
            raise
        raise next(kind for kind in kinds if isinstance(error, kind))(sentence) from None


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
