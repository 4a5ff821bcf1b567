"""Accuracy of a network on sequences of frames in order: also how consistent its labels are, and how long they take.

Shapes: H height, W width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from streamseg.data.datasets import Dataset, SequenceFrame, check_sizes, in_parallel
from streamseg.data.layouts import VIDEOS
from streamseg.engine.engine import Engine, VideoEngine, to_engine
from streamseg.evaluate import metrics
from streamseg.evaluate.images import (
    Evaluation,
    Tally,
    check_engine_fits,
    draw_plots,
    evaluation_to_json,
    format_shares,
)
from streamseg.evaluate.lag import HELD, Lag, LagTally, format_lag, lag_to_json
from streamseg.evaluate.translate import to_lookup, translate_predicted
from streamseg.io.masks import Mask, remove_labels
from streamseg.models.checkpoint import Network
from streamseg.stream.label_frames import check_window, finish_state, label_frame
from streamseg.stream.state import LastFrames, Policy, to_policy

METHOD_FRAMES = 20
"""Frames before a labelled one for a video method without a key interval: all that Cityscapes has."""

WARM_UP = 3
"""Frames of a size that are labelled before the first one is timed."""


@dataclass(frozen=True)
class VideoEvaluation(Evaluation):
    """The accuracy of a network on sequences of frames in order; NaN if they are too short for a metric."""

    mvc8: float
    """Video consistency of VSPW in windows of 8 frames; see metrics.mvc."""
    mvc16: float
    strict_mvc8: float
    """Like mvc8, but the labels must be correct as well."""
    strict_mvc16: float
    flip_rate: float
    """Share of pixels whose predicted label changes from the frame before a labelled one to it."""
    flip_rate_still: float
    """The same, of the pixels whose true label stays."""
    avg_rt_ms: float
    """Milliseconds from a frame on the device to its labels there, the paper's Avg RT (Table VI)."""
    max_latency_ms: float
    """Milliseconds of the slowest frame, the paper's MaxLatency."""
    sequences: int
    device: str
    """Name of the device that was timed."""
    key_share: float = math.nan
    """Of a video method, the percentage of frames that were key frames, or of DVSNet's cells that were segmented."""
    lag: Lag | None = None
    """How late labels appear after changes of the true ones; None if no true label can be followed for long enough."""


@dataclass(frozen=True)
class LabelledFrame:
    """A frame of a sequence with its true and predicted labels (H, W), on the device."""

    frame: SequenceFrame
    first: bool
    """Whether it is the first frame of a sequence."""
    labels: Tensor
    predicted: Tensor
    milliseconds: float
    picture: Tensor
    """The frame itself (3, H, W), on the device."""
    key_share: float
    """The share, 0 to 1, that a video method made a key frame of; see VideoMethod.key_share."""


def evaluate_video(
    model: Network | Engine,
    dataset: Dataset,
    window: int | Policy,
    *,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
    label_of: Sequence[int] | None = None,
    mask: Mask | None = None,
) -> VideoEvaluation:
    """Evaluate a network or an engine on every sequence of a data set, in order, at full size.

    Frames without labels are predicted too, if they are in the window before a labelled one. Where all frames have
    labels, each frame is also predicted alone, which is not timed: this is what the lag is compared with.

    Args:
        window: Number of frames, with the present one; or another policy, such as FadingInTime.
        threads: Number of threads that decode frames.
        progress: Called after each frame with the number of frames done and the total.
        mask: Pixels to ignore: they do not count.
        label_of: As in images.evaluate; consistency and flips are of the data set's labels too.
    """
    engine = to_engine(model)
    check_engine_fits(engine, dataset, label_of)
    check_window(engine, window)
    device = engine.device
    sequences = list_sequences(dataset, frames_before(engine, window))
    total = sum(map(len, sequences))
    index_of = {pair.image: index for index, pair in enumerate(dataset.pairs)}
    tally = Tally(len(dataset.classes), device)
    flips = torch.zeros(4, dtype=torch.int64, device=device)
    lookup = None if label_of is None else to_lookup(label_of, len(dataset.classes), device)
    lag = LagTally(device) if any(map(has_lag, sequences)) else None
    forgets = labels_alone(engine, window)
    consistent: dict[int, list[list[Tensor]]] = {8: [], 16: []}
    times, keys = [], 0.0
    runs = None
    for step in run_sequences(engine, dataset, sequences, window, threads, label_of, mask):
        runs = metrics.extend_runs(None if step.first else runs, step.labels, step.predicted)
        for frames, videos in consistent.items():
            if step.first:
                videos.append([])
            videos[-1].append(metrics.consistency(runs, frames))
        if step.frame.labels is not None:
            tally.add(index_of[step.frame.image], step.labels, step.predicted)
            flips += metrics.flip_counts(runs)
        if lag:
            alone = step.predicted if forgets else translate_predicted(label_alone(engine, step.picture, mask), lookup)
            lag.add(step.labels, step.predicted, alone, first=step.first)
        times.append(step.milliseconds)
        keys += step.key_share
        if progress is not None:
            progress(len(times), total)

    (mvc8, strict_mvc8), (mvc16, strict_mvc16) = (metrics.mvc(videos).tolist() for videos in consistent.values())
    flip_rate, flip_rate_still = metrics.flip_rates(flips).tolist()
    return VideoEvaluation(
        **vars(tally.result(dataset, label_of)),
        mvc8=100 * mvc8,
        mvc16=100 * mvc16,
        strict_mvc8=100 * strict_mvc8,
        strict_mvc16=100 * strict_mvc16,
        flip_rate=100 * flip_rate,
        flip_rate_still=100 * flip_rate_still,
        avg_rt_ms=sum(times) / len(times),
        max_latency_ms=max(times),
        sequences=len(sequences),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        key_share=100 * keys / len(times) if isinstance(engine, VideoEngine) else math.nan,
        lag=lag.result() if lag else None,
    )


def has_lag(sequence: Sequence[SequenceFrame]) -> bool:
    """Return whether a sequence has labels for so many frames in a row that a change of them can be followed."""
    labelled = [frame.labels is not None for frame in sequence]
    return any(all(labelled[i : i + HELD + 1]) for i in range(len(labelled) - HELD))


def labels_alone(engine: Engine, window: int | Policy) -> bool:
    """Return whether an engine labels each frame of a stream alone."""
    return to_policy(window) == LastFrames(1) and not isinstance(engine, VideoEngine)


def label_alone(engine: Engine, frame: Tensor, mask: Mask | None = None) -> Tensor:
    """Return the labels (H, W) of a frame (3, H, W) without a past; a video method takes it as a key frame."""
    labels, _ = label_frame(engine, frame, size=(frame.shape[1], frame.shape[2]), mask=mask)
    return labels


def list_sequences(dataset: Dataset, before: int | None) -> list[tuple[SequenceFrame, ...]]:
    """Return the sequences of a data set, with so many frames before labelled ones; a ValueError without any."""
    sequences = dataset.labelled_sequences(before)
    needed = VIDEOS.get(dataset.name, "a data set of videos")
    if all(len(sequence) == 1 for sequence in sequences):
        raise ValueError(f"{dataset.name} {dataset.split} has no sequences of frames: a window needs {needed}.")
    found = {frame.image for sequence in sequences for frame in sequence}
    for pair in dataset.pairs:
        if pair.image not in found:
            raise ValueError(f"{pair.image} is in no sequence of frames: a window needs {needed}.")
    return sequences


def frames_before(engine: Engine, window: int | Policy) -> int | None:
    """Return the number of frames that are predicted before a labelled one; None for all."""
    if isinstance(engine, VideoEngine):
        interval = engine.model.interval
        # where labels are sparse, each clip starts with a key frame, and the labelled frame is farthest from it
        return METHOD_FRAMES if interval is None else max(1, interval - 1)
    policy = to_policy(window)
    # one more than the window needs: the frame before, which labels are compared with, has a full window too
    return policy.frames if isinstance(policy, LastFrames) else None


def run_sequences(
    engine: Engine,
    dataset: Dataset,
    sequences: Sequence[Sequence[SequenceFrame]],
    window: int | Policy,
    threads: int,
    label_of: Sequence[int] | None,
    mask: Mask | None = None,
) -> Iterator[LabelledFrame]:
    """Yield every frame of the sequences with its labels; each sequence starts without a past."""
    device = engine.device
    lookup = None if label_of is None else to_lookup(label_of, len(dataset.classes), device)
    warm: set[tuple[int, int]] = set()
    frames = read_in_groups(dataset, chain.from_iterable(sequences), 4 * threads, threads)
    for sequence in sequences:
        state, first_frame = None, None
        for entry, (frame, labels) in zip(sequence, islice(frames, len(sequence)), strict=True):
            first = first_frame is None
            first_frame = first_frame or (frame, entry.image)
            check_sizes(*first_frame, frame, entry.image)
            size, frame = (frame.shape[1], frame.shape[2]), frame.to(device)
            try:
                if size not in warm:
                    warm.add(size)
                    warm_up(engine, frame, window, mask)
                wait_for(device)
                start = perf_counter()
                predicted, state = label_frame(
                    engine, frame, state, window, seconds=entry.seconds, size=size, mask=mask
                )
                wait_for(device)
                seconds = perf_counter() - start
            except ValueError as error:
                raise ValueError(f"{entry.image}: {error}") from error
            found = remove_labels(translate_predicted(predicted, lookup), mask)
            state = finish_state(engine, state)
            share = engine.model.key_share(state.method_state) if state and isinstance(engine, VideoEngine) else 0.0
            truth = remove_labels(labels.to(device), mask)
            yield LabelledFrame(entry, first, truth, found, 1000 * seconds, frame, share)


def read_in_groups(
    dataset: Dataset, frames: Iterator[SequenceFrame], count: int, threads: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield frames and labels, decoded in groups; nothing is decoded while a group is timed."""
    while group := list(islice(frames, count)):
        yield from list(in_parallel(dataset.read_sequence_frame, group, threads))


def warm_up(engine: Engine, frame: Tensor, window: int | Policy, mask: Mask | None = None) -> None:
    """Label a frame with and without a past, so that the device is ready for frames of its size."""
    state = None
    for _ in range(WARM_UP):
        _, state = label_frame(engine, frame, state, window, size=(frame.shape[1], frame.shape[2]), mask=mask)


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def video_evaluation_to_json(evaluation: VideoEvaluation) -> dict:
    """Return an evaluation on sequences as JSON values: percent, milliseconds, and null for what does not exist."""
    shares = ("mvc8", "mvc16", "strict_mvc8", "strict_mvc16", "flip_rate", "flip_rate_still")
    measured = {name: getattr(evaluation, name) for name in shares}
    return evaluation_to_json(evaluation) | {
        **{name: None if math.isnan(share) else share for name, share in measured.items()},
        "avg_rt_ms": evaluation.avg_rt_ms,
        "max_latency_ms": evaluation.max_latency_ms,
        "sequences": evaluation.sequences,
        "device": evaluation.device,
        **({} if math.isnan(evaluation.key_share) else {"key_share": evaluation.key_share}),
        **({} if evaluation.lag is None else {"lag": lag_to_json(evaluation.lag)}),
    }


def format_video_evaluation(evaluation: VideoEvaluation) -> str:
    """Format an evaluation on sequences as a table for the terminal, with the times and the lag below."""
    shares = {
        "mVC8": evaluation.mvc8,
        "mVC16": evaluation.mvc16,
        "strict mVC8": evaluation.strict_mvc8,
        "strict mVC16": evaluation.strict_mvc16,
        "flip rate": evaluation.flip_rate,
        "flip rate, still": evaluation.flip_rate_still,
    }
    return (
        f"{format_shares(evaluation, shares)}\n\na frame takes {evaluation.avg_rt_ms:.1f} ms, "
        f"at most {evaluation.max_latency_ms:.1f} ms, on {evaluation.device}"
        + ("" if math.isnan(evaluation.key_share) else f"; key frames: {evaluation.key_share:.1f} %")
        + ("" if evaluation.lag is None else f"\n{format_lag(evaluation.lag)}")
    )


def write_video_plots(
    folder: Path,
    evaluation: VideoEvaluation,
    model: Network | Engine,
    dataset: Dataset,
    window: int | Policy,
    label_of: Sequence[int] | None = None,
    mask: Mask | None = None,
) -> None:
    """Write the plots of an evaluation on sequences; the worst frames are predicted again, in their sequence."""
    engine = to_engine(model)

    def predict_again(index: int) -> Tensor:
        single = replace(dataset, pairs=(dataset.pairs[index],))
        sequences = single.labelled_sequences(frames_before(engine, window))
        *_, last = run_sequences(engine, single, sequences, window, 1, label_of, mask)
        return last.predicted

    draw_plots(folder, evaluation, dataset, predict_again)
