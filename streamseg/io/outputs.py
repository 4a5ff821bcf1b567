"""The files that labelled frames become.

They are planned without torch, so that a name that cannot be written to is told at once.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from streamseg.checks import PICTURE_SUFFIXES, check_suffix, check_video_suffix
from streamseg.classes import Classes
from streamseg.io.files import check_writable, written_whole
from streamseg.io.sources import DEFAULT_RATE, NUMBER_FIELD, Capture, Pictures, Source, fill_number, numbered_files

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "segmented"
"""Where several results go if nothing else was said."""


@dataclass(frozen=True)
class FrameOutput:
    """What there is of a frame to write; None where it was not asked for."""

    capture: Capture
    labels: "Tensor"
    picture: "Tensor | None"
    confidence: "Tensor | None"


@dataclass(frozen=True)
class OutputFiles:
    """The files of a source: overlay, labels and confidence, None where one is not wanted.

    Videos, or pictures: then {name} in a file's name stands for the picture that was read, and %05d for the number of
    the frame.
    """

    overlay: Path | None = None
    labels: Path | None = None
    confidence: Path | None = None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.overlay, self.labels, self.confidence) if path]

    @property
    def are_pictures(self) -> bool:
        return all(path.suffix.lower() in PICTURE_SUFFIXES for path in self.paths)

    def of(self, capture: Capture) -> "OutputFiles":
        """The files of one frame."""
        return self.named(capture.name, capture.index)

    def named(self, name: str, number: int) -> "OutputFiles":
        """The files of the frame of a name and number."""
        files = {}
        for field in fields(self):
            path = getattr(self, field.name)
            if path is not None:
                path = path.with_name(fill_number(path.name, number).replace("{name}", name))
            files[field.name] = path
        return OutputFiles(**files)


def plan_outputs(
    sources: Sequence[Source],
    out: str,
    *,
    overlay: bool = True,
    labels: bool = False,
    confidence: bool = False,
    missing: int = 0,
) -> list[OutputFiles]:
    """The files that each source is to become; a sentence if they cannot be written, or would destroy something.

    Args:
        out: A picture or video, numbered pictures, or a folder, which is made with the first file; empty for this
            folder, - for no files.
        missing: How many more sources were asked for: what is missing changes nothing about where the others go.
    """
    wanted = len(sources) + missing
    if out == "-":
        if wanted > 1:
            raise ValueError(f"The labels of {wanted} sources cannot share standard output: give a folder.")
        if labels or confidence:
            raise ValueError("Standard output gets raw labels alone: leave out --labels and --confidence.")
        return [OutputFiles()]
    several = wanted > 1 or any(isinstance(source, Pictures) and len(source.pictures) > 1 for source in sources)
    path = Path(out or (FOLDER if several else "."))
    new = not path.exists() and (not path.suffix or out.endswith("/"))
    if new or path.is_dir():
        names = [path / (f"{{name}}-overlay.{'mp4' if source.moving else 'png'}") for source in sources]
    elif several and not (wanted == 1 and NUMBER_FIELD.search(path.name)):
        raise ValueError(
            f"{path} is one file, and there are several to write: the last name is where to write, so give a folder "
            "there."
        )
    else:
        names = [path]
    planned = []
    for source, name in zip(sources, names, strict=True):
        check_output_format(source, name)
        if source.moving:
            name = name.with_name(name.name.replace("{name}", source.name))
        beside = name.stem.removesuffix("-overlay")
        suffix = ".png" if name.suffix.lower() in PICTURE_SUFFIXES else ".mkv"
        results = OutputFiles(
            name if overlay else None,
            name.with_name(f"{beside}-labels{suffix}") if labels else None,
            name.with_name(f"{beside}-confidence{suffix}") if confidence else None,
        )
        if not new:
            check_output_files(results, source, sources)
        planned.append(results)
    return planned


def check_output_format(source: Source, path: Path) -> None:
    """Raise a ValueError if a source cannot become such a file."""
    is_picture = path.suffix.lower() in PICTURE_SUFFIXES
    if not source.moving:
        check_suffix(path)
    elif not is_picture:
        check_video_suffix(path)
    elif not NUMBER_FIELD.search(path.name):
        raise ValueError(f"{path} is one picture, and {source.name} has many: give a video, or {path.stem}_%05d.png.")


def check_output_files(results: OutputFiles, source: Source, sources: Sequence[Source]) -> None:
    """Raise an error if a file cannot be written, is being read, or was not written by streamseg."""
    read = {path.resolve() for other in sources for path in other.paths}
    for path in files_of(results, source):
        check_writable(path)
        for file in numbered_files(path).values() if source.moving and results.are_pictures else [path]:
            if file.resolve() in read:
                raise ValueError(f"{file} is what is read: give another name to write to.")
            if file.exists() and not file_made_by_streamseg(file):
                raise ValueError(
                    f"{file} is there, and was not written by streamseg: the last name is where to write, so give a "
                    "new one there, or a folder."
                )


def check_json_lines(path: Path, sources: Sequence[Source], planned: Sequence[OutputFiles]) -> None:
    """Raise an error if the lines of JSON about frames cannot be written to a file, or would destroy something."""
    check_writable(path)
    used = [file for source in sources for file in source.paths]
    used += [file for pair in zip(planned, sources, strict=True) for file in files_of(*pair)]
    if path.resolve() in {file.resolve() for file in used}:
        raise ValueError(f"{path} is read or written already: give another name for --json.")
    if path.exists() and not is_json_lines(path):
        raise ValueError(f"{path} is there, and was not written by streamseg: give another name for --json.")


def files_of(results: OutputFiles, source: Source) -> list[Path]:
    """The files that a source is to become; numbered pictures under the one name that stands for them."""
    if isinstance(source, Pictures):
        return [path for i, picture in enumerate(source.pictures) for path in results.named(picture.name, i).paths]
    return results.paths


def is_json_lines(path: Path) -> bool:
    """Whether a file holds the lines of JSON about the frames of a run, or nothing."""
    with path.open("rb") as file:
        line = file.readline(2**16)
    try:
        record = json.loads(line or b'{"summary": {}}')
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and not record.keys().isdisjoint({"mask_age_ms", "summary"})


def file_made_by_streamseg(path: Path) -> bool:
    """Whether a picture or a video was written here."""
    from streamseg.io import images, video_reading

    if path.suffix.lower() in PICTURE_SUFFIXES:
        return images.picture_made_by_streamseg(path)
    return video_reading.video_made_by_streamseg(path)


@contextmanager
def open_writer(results: OutputFiles, source: Source, classes: Classes) -> Iterator[Callable[[FrameOutput], None]]:
    """A function that writes the frames of a source, one after the other.

    Pictures appear one by one, each whole; a video appears at the end, and not at all after an error.
    """
    from streamseg.io import images
    from streamseg.io.video_writing import write_label_video, write_video

    def write_pictures(drawn: FrameOutput) -> None:
        files = results.of(drawn.capture)
        make_folder(files)
        with ExitStack() as whole:  # those of one frame appear together
            if files.overlay and drawn.picture is not None:
                images.write_image(whole.enter_context(written_whole(files.overlay)), drawn.picture)
            if files.labels:
                images.write_labels(whole.enter_context(written_whole(files.labels)), drawn.labels, classes)
            if files.confidence and drawn.confidence is not None:
                images.write_grey(whole.enter_context(written_whole(files.confidence)), drawn.confidence)

    if results.are_pictures:
        yield write_pictures
        return

    # all videos are finished before the first gets its name
    with ExitStack() as whole, ExitStack() as videos:
        writers: list[tuple[Callable[[Tensor, float], None], Callable[[FrameOutput], Tensor | None]]] = []
        start = 0.0

        def begin(drawn: FrameOutput) -> None:
            nonlocal start
            # of a live source the first frames may have been dropped
            start = drawn.capture.seconds
            rate, (height, width) = source.rate or DEFAULT_RATE, drawn.labels.shape
            size = (height, width)
            make_folder(results)
            if results.overlay and drawn.picture is not None:
                temporary = whole.enter_context(written_whole(results.overlay))
                _, tall, wide = drawn.picture.shape
                writer = write_video(temporary, (tall, wide), rate, audio_from=source.audio_from)
                writers.append((videos.enter_context(writer).write, lambda drawn: drawn.picture))
            if results.labels:
                temporary = whole.enter_context(written_whole(results.labels))
                writer = write_label_video(temporary, size, rate)
                writers.append((videos.enter_context(writer).write, lambda drawn: drawn.labels))
            if results.confidence:
                temporary = whole.enter_context(written_whole(results.confidence))
                writer = write_label_video(temporary, size, rate)
                writers.append((videos.enter_context(writer).write, lambda drawn: drawn.confidence))

        def write_frame(drawn: FrameOutput) -> None:
            if not writers:  # only the first frame tells the size
                begin(drawn)
            for write, part in writers:
                frame = part(drawn)
                assert frame is not None
                write(frame, drawn.capture.seconds - start)

        yield write_frame


def make_folder(results: OutputFiles) -> None:
    """Make the folder of files, if it is not there."""
    for folder in {path.parent for path in results.paths}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(f"Could not make the folder {folder}: {error.strerror}.") from error
