"""How steady the labels of a video without true labels are.

Shapes: H height, W width.
"""

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from streamseg.checks import CutShort
from streamseg.classes import IGNORE
from streamseg.engine.engine import Engine, to_engine
from streamseg.engine.steadying import name_steadiness
from streamseg.evaluate.motion import estimate_motion
from streamseg.evaluate.slice import SliceRecorder
from streamseg.evaluate.steadiness import Steadiness, SteadinessTally
from streamseg.evaluate.video import labels_alone
from streamseg.io.images import Picture
from streamseg.io.masks import GREY, Mask, to_mask
from streamseg.io.pyav import av
from streamseg.io.resolve import find_sources
from streamseg.io.sources import NumberedPictures, Pictures, Source, VideoFile, plural, readable_errors
from streamseg.io.video_reading import open_video
from streamseg.io.web import redact
from streamseg.models.checkpoint import Network
from streamseg.models.video.flownet import FlowEstimator
from streamseg.stream.label_frames import check_window, finish_state, label_frame
from streamseg.stream.state import Policy, to_policy


class TimedFrame(NamedTuple):
    """A frame (3, H, W) of a video, its time in seconds, and the number of frames of the video; 0 if it is unknown."""

    picture: Tensor
    seconds: float
    total: int = 0


@dataclass(frozen=True)
class VideoFileEvaluation:
    """How steady the labels of a video are."""

    frames: int
    size: tuple[int, int]
    visible: float
    """Percentage of the pixels, of those that no mask hides, that the frame before shows too: the others are not
    compared."""
    steadiness: Steadiness
    alone: Steadiness | None
    """The same with each frame labelled alone; None if it is that already."""
    steady: str = "off"
    """How steady the labels were kept: off, low, high or a margin, as --steady has it."""


def evaluate_video_file(
    model: Network | Engine,
    frames: Iterable[TimedFrame],
    window: int | Policy,
    *,
    size: tuple[int, int] | None = None,
    mask: Mask | Picture | None = None,
    flow: FlowEstimator | None = None,
    recorder: SliceRecorder | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VideoFileEvaluation:
    """Measure how steady the labels of a video are, also with each frame labelled alone.

    Args:
        window: Number of frames, with the present one; or another policy, such as FadingInTime.
        size: The network input's height and width; by default the frame's own, up to 1024 x 2048 pixels.
        mask: Pixels to ignore, as in label_frames: they count in no figure, and the motion is estimated without them.
        flow: What estimates the motion, such as DISFlow(); motion.block_flow by default.
        recorder: Where to keep a slice of the video.
        progress: Called after each frame with the number of frames done and the total.
    """
    engine = to_engine(model)
    check_window(engine, window)
    mask = to_mask(mask)
    forgets, device = labels_alone(engine, window), engine.device
    ours, others = (SteadinessTally(engine.classes, device) for _ in range(2))
    state, before, count = None, None, 0
    for count, (picture, seconds, total) in enumerate(frames, start=1):
        frame = picture.to(device)
        if before is not None:
            check_same_size(frame, before[0], count)
        labels, state = label_frame(engine, frame, state, window, seconds=seconds, size=size, mask=mask)
        state = finish_state(engine, state)
        alone = labels if forgets else label_frame(engine, frame, size=size, mask=mask)[0]
        # by the labels, as an exported file may have a mask built in
        shown = frame.masked_fill(labels == IGNORE, GREY)
        if before is not None:
            motion = estimate_motion(shown, before[0], flow)
            ours.add(before[1], labels, motion)
            if not forgets:
                others.add(before[2], alone, motion)
        if recorder:
            recorder.add(frame, labels, None if forgets else alone)
        before = (shown, labels, alone)
        if progress is not None:
            progress(count, max(count, total))
    if before is None or count < 2:
        raise ValueError(
            f"The video has {plural(count, 'frame')}; steadiness is measured from one frame to the next: give a video "
            "of two or more."
        )
    height, width = before[1].shape
    return VideoFileEvaluation(
        count,
        (height, width),
        ours.compared(),
        ours.result(),
        alone=None if forgets else others.result(),
        steady=name_steadiness(to_policy(window).steady),
    )


def check_same_size(frame: Tensor, before: Tensor, number: int) -> None:
    """Raise a ValueError if a frame (3, H, W), counted from 1, differs in size from the one before."""
    if frame.shape != before.shape:
        raise ValueError(
            f"Frame {number} is {frame.shape[1]} x {frame.shape[2]} pixels and the one before "
            f"{before.shape[1]} x {before.shape[2]}; expected frames of one size: cut the video there."
        )


def find_video(name: str) -> VideoFile | NumberedPictures | Pictures:
    """Return the source of a video file, of numbered pictures or of a folder of pictures; a ValueError for others."""
    sources: list[Source] = find_sources([name])
    source = sources[0]
    if len(sources) > 1:
        raise ValueError(f"{redact(name)} holds {len(sources)} videos; expected one: give its name.")
    if isinstance(source, Pictures) and len(source.pictures) == 1:
        raise ValueError(f"{redact(name)} is a picture; expected a video: steadiness is measured over time.")
    if not isinstance(source, VideoFile | NumberedPictures | Pictures):
        raise ValueError(f"{redact(name)} is live; expected a video with an end: record it first.")
    return source


def read_video(source: VideoFile | NumberedPictures | Pictures) -> Generator[TimedFrame, None, None]:
    """Yield the frames of a video; CutShort follows the last of a damaged one.

    Pictures of a folder are taken as 25 frames a second, in the order of their names.
    """
    if not isinstance(source, VideoFile):
        for number, capture in enumerate(source.captures()):
            seconds = number / 25 if isinstance(source, Pictures) else capture.seconds
            yield TimedFrame(capture.frame, seconds, capture.total or 0)
        return
    with readable_errors(source.address), open_video(source.location, name=redact(source.address)) as video:

        def convert(stored: "av.VideoFrame") -> Tensor:
            # not resized to the first frame's size, which would be a motion that the camera did not make
            if (stored.height, stored.width) != video.stored_size:
                height, width = video.stored_size
                raise ValueError(
                    f"{video.name} changes its size from {height} x {width} to {stored.height} x {stored.width} pixels;"
                    " expected frames of one size: cut it there."
                )
            return video.to_frame(stored)

        yield from (TimedFrame(*pair, video.length or 0) for pair in video.read(convert))


def until_cut(frames: Iterable[TimedFrame], problems: list[str]) -> Generator[TimedFrame, None, None]:
    """Yield the frames of a video that may be damaged; its problem is added to a list at the end."""
    try:
        yield from frames
    except CutShort as problem:
        problems.append(str(problem))


def video_file_evaluation_to_json(evaluation: VideoFileEvaluation) -> dict:
    """Return an evaluation as JSON values: percent and pixels, and null for what does not exist."""
    return {
        "frames": evaluation.frames,
        "size": list(evaluation.size),
        "visible": evaluation.visible,
        "steady": evaluation.steady,
        **steadiness_to_json(evaluation.steadiness),
        **({} if evaluation.alone is None else {"frame_by_frame": steadiness_to_json(evaluation.alone)}),
    }


def steadiness_to_json(steadiness: Steadiness) -> dict:
    return {name: None if math.isnan(value) else value for name, value in vars(steadiness).items()}


def format_video_file_evaluation(evaluation: VideoFileEvaluation) -> str:
    """Format an evaluation as a table for the terminal."""
    columns = {"": evaluation.steadiness}
    if evaluation.alone is not None:
        columns = {"frame by frame": evaluation.alone, "with these options": evaluation.steadiness}
    names = {
        "consistency, %": "consistency",
        "consistency, mean IoU, %": "consistency_miou",
        "boundary shift, pixels": "boundary_shift",
        "flip rate, %": "flip_rate",
    }
    lines = [] if evaluation.alone is None else [" " * 24 + "".join(f"  {title:>18}" for title in columns)]
    for title, name in names.items():
        values = (getattr(steadiness, name) for steadiness in columns.values())
        width = 8 if evaluation.alone is None else 18
        cells = ("-" if math.isnan(value) else f"{value:.{3 if name == 'boundary_shift' else 2}f}" for value in values)
        lines.append(f"{title:24}" + "".join(f"  {cell:>{width}}" for cell in cells))
    rows, wide = evaluation.size
    compared = f"{evaluation.visible:.1f} % of the pixels compared; --steady {evaluation.steady}"
    return "\n".join([*lines, "", f"{evaluation.frames} frames of {rows} x {wide}; {compared}"])
