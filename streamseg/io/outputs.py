"""The files that labelled frames are written to.

Planning imports torch only where a file already exists, so that a bad file name is reported at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias
from urllib.parse import quote

from streamseg.checks import PICTURE_SUFFIXES, check_suffix, check_video_suffix
from streamseg.classes import Classes
from streamseg.io.files import check_writable, written_whole
from streamseg.io.sources import NUMBER_FIELD, Capture, Pictures, Source, fill_number, numbered_files
from streamseg.io.web import is_address, redact

if TYPE_CHECKING:
    from torch import Tensor

    from streamseg.io.yuv import Yuv420

FOLDER = "segmented"
"""The folder for several outputs, if no name was given."""


@dataclass(frozen=True)
class FrameOutput:
    """The outputs of a frame; None for those that are not written."""

    capture: Capture
    overlay: "Tensor | Yuv420 | None"
    """RGB, or planes for a video."""
    labels: "Tensor"
    confidence: "Tensor | None"
    colours: "Tensor | Yuv420 | None" = None


@dataclass(frozen=True)
class OutputFiles:
    """The files of a source: overlay, labels, confidence and colours; None where one is not wanted.

    Either videos or pictures. In the name of a picture, {name} stands for the picture that was read and %05d for the
    number of the frame.
    """

    overlay: Path | None = None
    labels: Path | None = None
    confidence: Path | None = None
    colours: Path | None = None
    planned: frozenset[Path] = field(default=frozenset(), repr=False, compare=False, kw_only=True)
    """The files of all sources of the run, which may not exist yet."""

    @property
    def all_paths(self) -> tuple[Path | None, ...]:
        return self.overlay, self.labels, self.confidence, self.colours

    @property
    def paths(self) -> list[Path]:
        return [path for path in self.all_paths if path]

    @property
    def are_videos(self) -> bool:
        return bool(self.paths) and not self.are_pictures

    @property
    def are_pictures(self) -> bool:
        return all(path.suffix.lower() in PICTURE_SUFFIXES for path in self.paths)

    def next_part(self) -> "OutputFiles":
        """Return the files in which a video goes on that changes its size: NAME-2.mp4, or the next number that is free.

        So no file is replaced, and none that another source will write.
        """
        for number in count(2):
            numbered = [path and path.with_name(f"{path.stem}-{number}{path.suffix}") for path in self.all_paths]
            if not any(path and (path.exists() or path.resolve() in self.planned) for path in numbered):
                break
        return OutputFiles(*numbered, planned=self.planned)

    def for_capture(self, capture: Capture) -> "OutputFiles":
        """Return the files of one frame."""
        return self.for_frame(capture.name, capture.index)

    def for_frame(self, name: str, number: int) -> "OutputFiles":
        """Return the files of a frame by its name and number."""
        named = [
            path and path.with_name(fill_number(path.name, number).replace("{name}", name)) for path in self.all_paths
        ]
        return OutputFiles(*named, planned=self.planned)


@dataclass(frozen=True)
class LiveOutput:
    """The address that a source's overlay, or the colours of its labels, are sent to; None for the other one."""

    overlay: str | None = field(default=None, repr=False)
    colours: str | None = field(default=None, repr=False)
    labels: ClassVar[None] = None
    confidence: ClassVar[None] = None
    are_pictures: ClassVar[bool] = False
    are_videos: ClassVar[bool] = False
    paths: ClassVar[list[Path]] = []

    @property
    def address(self) -> str:
        return self.overlay or self.colours or ""

    def for_capture(self, capture: Capture) -> "LiveOutput":
        return self


Output: TypeAlias = OutputFiles | LiveOutput
"""Where the frames of a source go."""


def plan_outputs(
    sources: Sequence[Source],
    out: str,
    *,
    overlay: bool = True,
    labels: bool = False,
    confidence: bool = False,
    colours: bool = False,
    missing: int = 0,
) -> Sequence[Output]:
    """Return the outputs of each source; raise an error if they cannot be written or would destroy something.

    Args:
        out: A picture or video, numbered pictures, or a folder, which is made with the first file; empty for the
            current folder, - for no files; or an address such as rtsp://host/path, with {name} for the source's name.
        missing: How many further sources were named but not found: they do not change where the others go.
    """
    wanted = len(sources) + missing
    if is_address(out):
        if labels or confidence:
            raise ValueError(
                f"Labels cannot be sent to {redact(out)}, as its video is not lossless: leave out --labels and "
                "--confidence, or write them to a file; --colours --no-overlay sends the labels in colours."
            )
        return plan_live_outputs(sources, out, overlay=overlay, colours=colours, several=wanted > 1)
    if out == "-":
        if wanted > 1:
            raise ValueError(f"The labels of {wanted} sources cannot share standard output: give a folder.")
        if labels or confidence or colours:
            raise ValueError("Standard output takes raw labels only: leave out --labels, --confidence and --colours.")
        return [OutputFiles()]
    several = wanted > 1 or any(isinstance(source, Pictures) and len(source.pictures) > 1 for source in sources)
    path = Path(out or (FOLDER if several else "."))
    new = not path.exists() and (not path.suffix or out.endswith("/"))
    if new or path.is_dir():
        names = [path / (f"{{name}}-overlay.{'mp4' if source.moving else 'png'}") for source in sources]
    elif several and not (wanted == 1 and NUMBER_FIELD.search(path.name)):
        raise ValueError(
            f"{path} is one file, and there are several to write: the last name is where to write. To label all of "
            "them, name a folder with -o OUT."
        )
    else:
        names = [path]
    planned = []
    for source, name in zip(sources, names, strict=True):
        check_output_format(source, name)
        if source.moving:
            name = name.with_name(name.name.replace("{name}", source.name))
        stem = name.stem.removesuffix("-overlay")
        suffix = ".png" if name.suffix.lower() in PICTURE_SUFFIXES else ".mkv"
        files = OutputFiles(
            name if overlay else None,
            name.with_name(f"{stem}-labels{suffix}") if labels else None,
            name.with_name(f"{stem}-confidence{suffix}") if confidence else None,
            name.with_name(f"{stem}-colours{'.png' if suffix == '.png' else name.suffix}") if colours else None,
        )
        if not new:
            check_output_files(files, source, sources)
        planned.append(files)
    return planned


def share_plan(outputs: Sequence[Output]) -> list[Output]:
    """Return the outputs of a run's sources, each of which knows the files of all."""
    planned = frozenset(path.resolve() for output in outputs for path in output.paths)
    return [replace(output, planned=planned) if isinstance(output, OutputFiles) else output for output in outputs]


def plan_live_outputs(
    sources: Sequence[Source], out: str, *, overlay: bool, colours: bool, several: bool
) -> list[LiveOutput]:
    """Return the address of each source; raise a ValueError if video cannot be sent there."""
    from streamseg.io.live_video import check_live_address

    shown = redact(out)
    addresses = [out.replace("{name}", quote(source.name, safe="")) for source in sources]
    for address in addresses:
        check_live_address(address)
    if overlay and colours:
        raise ValueError(f"{shown} takes one video: leave out --colours, or add --no-overlay to send them alone.")
    if several and "{name}" not in out:
        raise ValueError(
            f"{shown} is one address, and there are several sources: put {{name}} into it, for the source's name."
        )
    for source in sources:
        if not source.moving:
            raise ValueError(f"{source.name} is a picture, and {shown} takes video: write it to a file.")
    if not (overlay or colours):
        return [LiveOutput() for _ in sources]
    return [LiveOutput(overlay=address) if overlay else LiveOutput(colours=address) for address in addresses]


def check_output_format(source: Source, path: Path) -> None:
    """Raise a ValueError if a source cannot be written to a file of this format."""
    is_picture = path.suffix.lower() in PICTURE_SUFFIXES
    if not source.moving:
        check_suffix(path)
    elif not is_picture:
        check_video_suffix(path)
    elif not NUMBER_FIELD.search(path.name):
        raise ValueError(f"{path} is one picture, and {source.name} has many: give a video, or {path.stem}_%05d.png.")


def check_output_files(files: OutputFiles, source: Source, sources: Sequence[Source]) -> None:
    """Raise an error if a file cannot be written, is an input, or was not written by streamseg."""
    inputs = {path.resolve() for other in sources for path in other.paths}
    for path in files_of(files, source):
        check_writable(path)
        for file in numbered_files(path).values() if source.moving and files.are_pictures else [path]:
            if file.resolve() in inputs:
                raise ValueError(f"{file} is an input: give another name to write to.")
            if file.exists() and not file_made_by_streamseg(file):
                raise ValueError(
                    f"{file} exists and was not written by streamseg: the last name is where to write, so give a new "
                    "one or a folder there, or name the place to write with -o."
                )


def check_json_lines(path: Path, sources: Sequence[Source], planned: Sequence[Output]) -> None:
    """Raise an error if the lines of JSON about frames cannot be written to a file, or would destroy something."""
    check_writable(path)
    used = [file for source in sources for file in source.paths]
    used += [file for pair in zip(planned, sources, strict=True) for file in files_of(*pair)]
    if path.resolve() in {file.resolve() for file in used}:
        raise ValueError(f"{path} is an input or output already: give another name for --json.")
    if path.exists() and not is_json_lines(path):
        raise ValueError(f"{path} exists and was not written by streamseg: give another name for --json.")


def files_of(files: Output, source: Source) -> list[Path]:
    """Return the files that a source is written to; numbered pictures as their one pattern."""
    if isinstance(source, Pictures) and isinstance(files, OutputFiles):
        return [path for i, picture in enumerate(source.pictures) for path in files.for_frame(picture.name, i).paths]
    return files.paths


def is_json_lines(path: Path) -> bool:
    """Return whether a file is empty or holds the lines of JSON of a run."""
    with path.open("rb") as file:
        line = file.readline(2**16)  # one with labels is longer
    is_frame = line.startswith(b'{"source": "') and b'"mask_age_ms": ' in line
    return not line or is_frame or line.startswith((b'{"summary": {', b'{"statistics": {'))


def file_made_by_streamseg(path: Path) -> bool:
    """Return whether streamseg wrote a picture or a video."""
    from streamseg.io import images, video_streams

    if path.suffix.lower() in PICTURE_SUFFIXES:
        return images.picture_made_by_streamseg(path)
    return video_streams.video_made_by_streamseg(path)


@contextmanager
def open_writer(
    files: OutputFiles, source: Source, classes: Classes, process: bool = False
) -> Iterator[Callable[[FrameOutput], None]]:
    """Give a function that writes the frames of a source, one after the other.

    Pictures appear one by one, each of them whole. Videos appear at the end, and not at all after an error.

    Args:
        process: Whether a process of its own encodes each video.
    """
    if files.are_pictures:
        yield partial(write_pictures, files, classes)
        return
    from streamseg.io.video_writing import open_videos

    with open_videos(files, source, process) as write_frame:
        yield write_frame


def write_pictures(files: OutputFiles, classes: Classes, frame: FrameOutput) -> None:
    """Write the pictures of one frame, which appear together."""
    from streamseg.io import images
    from streamseg.io.yuv import as_rgb

    files = files.for_capture(frame.capture)
    make_folders(files)
    with ExitStack() as stack:
        if files.overlay and frame.overlay is not None:
            images.write_image(stack.enter_context(written_whole(files.overlay)), as_rgb(frame.overlay))
        if files.labels:
            images.write_labels(stack.enter_context(written_whole(files.labels)), frame.labels, classes)
        if files.confidence and frame.confidence is not None:
            images.write_grey(stack.enter_context(written_whole(files.confidence)), frame.confidence)
        if files.colours and frame.colours is not None:
            images.write_image(stack.enter_context(written_whole(files.colours)), as_rgb(frame.colours))


def make_folders(files: OutputFiles) -> None:
    """Make the folders of the files."""
    for folder in {path.parent for path in files.paths}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(f"Could not make the folder {folder}: {error.strerror}.") from error
