"""What segment reports at its end: the written files, the classes, the deadline and what was sent."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamseg.io.outputs import Output
    from streamseg.stream.pipeline import Pipeline, RunResult

MAX_LATE_SHARE = 0.05
"""The largest share of late frames at which a deadline counts as held."""


def list_results(pipeline: "Pipeline", result: "RunResult", deadline: float | None) -> Iterator[str]:
    """Yield the lines that report the written files and the labels of a run."""
    from streamseg.io.outputs import OutputFiles

    for stream in pipeline.streams:
        writer = stream.writer
        if writer.sender and writer.sender.reached:
            yield f"{stream.source.name}: {writer.sender.counts}"
        elif writer.written and not stream.results.are_pictures:
            names = [name for files in writer.parts if isinstance(files, OutputFiles) for name in list_files(files)]
            if names:
                yield f"{stream.source.name}: {'  '.join(names)}"
    if result.frames > 1:
        yield f"\nall frames: {list_largest_classes(pipeline.settings.classes.names, result.shares)}"
        yield f"network input {result.size[0]} x {result.size[1]}\n"
        if deadline is not None:
            yield f"{format_deadline(deadline, result)}\n"


def list_files(files: "Output") -> Iterator[str]:
    """Yield the names of the files of a video, with a hint beside labels that nobody can watch."""
    for path in files.paths:
        unwatchable = path == files.labels and not files.colours
        yield f"{path}  (class numbers; --colours writes a video to watch)" if unwatchable else str(path)


def list_largest_classes(names: tuple[str, ...], shares: list[float]) -> str:
    """Return the largest classes of a frame, with their shares of the pixels."""
    largest = sorted(zip(shares, names, strict=True), reverse=True)[:5]
    return ", ".join(f"{name} {share:.0%}" for share, name in largest if share > 0.005)


def format_deadline(milliseconds: float, result: "RunResult") -> str:
    """Return how many frames met the deadline, and at which network input sizes."""
    late, (height, width) = result.late / result.frames, result.smallest
    sizes = ", ".join(f"{tall} x {wide} in {frames} frames" for (tall, wide), frames in result.sizes.items())
    if late > MAX_LATE_SHARE:
        return (
            f"deadline of {milliseconds:g} ms not met: {100 * late:.1f} % of the frames were late, even at a network "
            f"input of {height} x {width} ({sizes}); give a longer one, a smaller --size or a faster --device"
        )
    met = f"deadline of {milliseconds:g} ms met by {100 - 100 * late:.1f} % of the frames"
    smallest = f"smallest network input {height} x {width}"
    return f"{met}, {smallest} ({sizes})" if len(result.sizes) > 1 else f"{met}, {smallest}"


def count_sent(pipeline: "Pipeline") -> dict[str, object]:
    """Return how many frames each stream sent to its address, for JSON; nothing if there is no address."""
    senders = {stream.source.name: stream.writer.sender for stream in pipeline.streams if stream.writer.sender}
    counts = {name: {"sent": sender.sent, "dropped": sender.dropped} for name, sender in senders.items()}
    return {"sent": counts} if counts else {}
