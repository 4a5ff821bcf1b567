"""The speed of `segment` from file to file, as tables and as a plot."""

import textwrap
from pathlib import Path

from streamseg.evaluate import plot
from streamseg.evaluate.pipeline_benchmark import PipelineFigures, Speed, StageTimes
from streamseg.io.sources import plural
from streamseg.stream.latency import STAGES

COLUMN = 22
"""Characters of a column in the table of the stages."""


def format_figures(figures: PipelineFigures, machine: dict[str, str]) -> str:
    """Return the figures as tables for the terminal."""
    video = figures.video
    about = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "device")
    return "\n".join(
        [
            f"{machine['device']}: {figures.frames} frames of {video.name} ({video.codec}, {video.height} x "
            f"{video.width}), {plural(figures.rounds, 'round')} in turn",
            *textwrap.wrap(f"({about})", 110),
            "",
            *speed_lines(figures.speeds),
            "",
            *stage_lines(figures.stages),
            "",
            *wait_lines(figures.stages),
            "",
            f"First labels {figures.first_labels_seconds:.2f} s after the start of the first run, "
            f"{figures.next_first_labels_seconds:.2f} s in later ones.",
        ]
    )


def speed_lines(speeds: tuple[Speed, ...]) -> list[str]:
    """Return the table of frames a second: the bare ways, then those of segment with their ratios."""
    lines = [f"{'bare':26}{'frames/s':>10}{'cores':>8}"]
    bare, ours = ([speed for speed in speeds if bool(speed.bare) == paired] for paired in (False, True))
    lines += [f"  {speed.way:24}{speed.fps:10,.1f}{speed.cores:8.1f}" for speed in bare]
    lines += ["", f"{'segment':26}{'frames/s':>10}{'cores':>8}{'of network':>12}   of bare"]
    for speed in ours:
        ratio = f"{speed.of_bare:.2f} of {speed.bare}"
        lines.append(f"  {speed.way:24}{speed.fps:10,.1f}{speed.cores:8.1f}{speed.of_network:12.2f}   {ratio}")
    return lines


def stage_lines(stages: tuple[StageTimes, ...]) -> list[str]:
    """Return the table of the stages, with a column for each way of segment."""
    lines = [f"{'ms a frame, busy':18}" + "".join(f"{one.way:>{COLUMN}}" for one in stages)]
    for name in STAGES:
        cells = [f"{one.ms[name]:.2f}{100 * one.busy[name]:5.0f} %" if name in one.ms else "-" for one in stages]
        if any(name in one.ms for one in stages):
            lines.append(f"  {name:16}" + "".join(f"{cell:>{COLUMN}}" for cell in cells))
    rows = {
        "sum of stages": [f"{sum(one.ms.values()):.2f}{'':7}" for one in stages],
        "the whole": [f"{one.ms_per_frame:.2f}{'':7}" for one in stages],
        "of the slowest": [f"{one.of_slowest:.3f}{'':7}" for one in stages],
    }
    return lines + [f"{name:18}" + "".join(f"{cell:>{COLUMN}}" for cell in cells) for name, cells in rows.items()]


def wait_lines(stages: tuple[StageTimes, ...]) -> list[str]:
    """Return what waits for what in each way of segment."""
    lines = []
    for one in stages:
        waits = f" {', '.join(one.waits)}." if one.waits else ""
        text = f"{one.way}:{waits} {one.bottleneck} {describe_host(one)}".rstrip()
        lines += textwrap.wrap(text, 110, subsequent_indent="  ")
    return lines


def describe_host(stages: StageTimes) -> str:
    """Return what a way of segment waits for besides other stages: Python's lock and the GPU."""
    parts = []
    if lock := stages.lock_ms:
        parts.append(f"A further thread waits {lock['mean']:.2f} ms for Python's lock, p95 {lock['p95']:.2f}.")
    if host := stages.host_ms:
        parts.append(
            f"A batch of {host['frames']:.1f} frames: {host['device']:.2f} ms on the GPU, {host['enqueue']:.2f} in "
            f"Python to start it, then {host['wait']:.2f} waiting for it; {host['waits']:.0f} waits in all."
        )
    return " ".join(parts)


def plot_figures(path: Path, figures: PipelineFigures, machine: dict[str, str]) -> None:
    """Plot the time of each way, and of its stages as stacked bars."""
    figure = plot.new_figure(11, 4.4)
    figure.set_layout_engine("constrained")
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    ways = [speed.way for speed in figures.speeds]
    times = [1000 / speed.fps for speed in figures.speeds]
    colours = ["tab:red" if speed.bare else "0.6" for speed in figures.speeds]
    bars = left.barh(ways, times, color=colours)
    left.bar_label(bars, [f" {x:.2f}" for x in times], fontsize=8)
    left.set_title("whole runs: bare grey, segment red", fontsize=10)
    left.margins(x=0.15)
    present = [name for name in STAGES if any(name in one.ms for one in figures.stages)]
    places = range(len(figures.stages))
    starts = [0.0 for _ in places]
    for name in present:
        widths = [one.ms.get(name, 0.0) for one in figures.stages]
        right.barh(list(places), widths, 0.6, left=starts, label=name)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for place, one in zip(places, figures.stages, strict=True):
        right.plot([one.ms_per_frame] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2)
    right.set_yticks(list(places), [one.way for one in figures.stages])
    right.set_title("stages of segment; black: the whole, as they overlap", fontsize=10)
    right.legend(fontsize=8, frameon=False, ncols=len(present), loc="upper center", bbox_to_anchor=(0.5, -0.16))
    for axes in (left, right):
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds a frame")
        axes.tick_params(labelsize=8)
    video = figures.video
    figure.suptitle(f"{machine['device']}: {video.codec}, {video.height} x {video.width}", fontsize=11)
    plot.save_figure(figure, path)
