"""The table of benchmarks/video_methods.py: one row a network, and what it says about the methods.

    python benchmarks/method_table.py video-methods.json [--into docs/video-methods.md]

It prints the table of the figures that video_methods.py wrote, or puts it into a document, between the two lines
MARKS. Of two seeds a figure is the mean, ± how far each is from it.
"""

import argparse
import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

Figures = Mapping[str, Any]

Curve = Sequence[Sequence[float]]
"""Percentages of key frames, each with the mIoU of copying, most key frames first."""

COPY_BESIDE_CLOCKWORK = "copy-2"
"""Copying at the interval of Clockwork; `copy` is at that of the others."""

PROPAGATING = ("clockwork", "dff", "accel", "clockwork-adaptive", "low-latency", "dvsnet")
"""Methods that have to beat copying at their own share of key frames."""

CHEAPER_ON_AVERAGE = ("clockwork", "dff")
"""Methods whose mean time is expected below the backbone's, and whose longest is not."""

COLUMNS = {
    "mean_ms": ("mean ms", 2),
    "max_ms": ("max ms", 2),
    "eager_mean_ms": ("eager: mean", 2),
    "eager_max_ms": ("max", 2),
    "flip_rate": ("flips %", 2),
    "mvc8": ("mVC8", 1),
    "gmacs": ("GMACs", 1),
    "key_share": ("key frames %", 1),
}
"""Titles and decimals of the columns after the accuracy; what was not measured is a dash."""

FASTER = 0.97
"""A time is below another one if it is less than this share of it: less is the noise of the measurement."""

MARKS = ("<!-- begin: benchmarks/method_table.py -->", "<!-- end -->")
"""Lines of a document between which the table is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, help="the JSON file that video_methods.py wrote")
    parser.add_argument("--into", type=Path, help="the document to put the table into")
    arguments = parser.parse_args()
    table = format_table(json.loads(arguments.figures.read_text(encoding="utf-8"))["rows"])
    if arguments.into:
        arguments.into.write_text(put_table(arguments.into.read_text(encoding="utf-8"), table), encoding="utf-8")
    else:
        print(table)


def put_table(text: str, table: str) -> str:
    """Return a document with a table between its two marks, instead of what was there."""
    before, begin, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise ValueError(f"The document has no lines {MARKS[0]} and {MARKS[1]} for the table.")
    return f"{before}{begin}\n{table}\n{end}{after}"


def format_table(found: Mapping[str, Figures]) -> str:
    """Format the figures of rows as a Markdown table, with what they say below it."""
    titles = ["", "mIoU", "farthest from the key frame", *(title for title, _ in COLUMNS.values())]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, figures in found.items():
        distances = figures.get("by_distance")
        cells = [name, mean_and_spread(figures["miou"]), f"{distances[-1]:.1f}" if distances else "–"]
        cells += [format_number(figures.get(key), decimals) for key, (_, decimals) in COLUMNS.items()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *verdicts(found), *schedule_verdicts(found), *cost_verdicts(found)])


def format_number(number: float | Sequence[float] | None, decimals: int) -> str:
    """Format a figure, of several seeds their mean; a dash if there is none."""
    if number is None:
        return "–"
    return f"{number if isinstance(number, float | int) else fmean(number):.{decimals}f}"


def verdicts(found: Mapping[str, Figures]) -> Iterable[str]:
    """Yield by how much each method that propagates beats copying, at the share of key frames that it has on val."""
    for name, figures in found.items():
        method, _, backbone = name.rpartition("-")
        curves = copying_curves(found, backbone) if method in PROPAGATING else []
        if not curves:
            continue
        seeds = [*zip(figures["miou"], figures["key_share"], curves, strict=False)]
        gains = mean_and_spread([miou - copied_miou(curve, share) for miou, share, curve in seeds])
        shares = " and ".join(dict.fromkeys(f"{share:.0f} %" for _, share, _ in seeds))
        least = min(curve[-1][0] for curve in curves)
        beyond = min(share for _, share, _ in seeds) < least - 0.5
        bound = f"; fewer than {least:.0f} % are compared with copying at {least:.0f} %" if beyond else ""
        yield f"- {name} less copying: {gains} mIoU, with {shares} key frames{bound}"


def copying_curves(found: Mapping[str, Figures], backbone: str) -> Sequence[Curve]:
    """Return the curve of copying of each seed: as measured, or else by the rows of the backbone and of copying."""
    if curves := found.get(backbone, {}).get("copying"):
        return curves
    names = [name for name in (f"{COPY_BESIDE_CLOCKWORK}-{backbone}", f"copy-{backbone}") if name in found]
    points = [zip(found[name]["key_share"], found[name]["miou"], strict=True) for name in (backbone, *names) if names]
    return [*zip(*points, strict=False)]


def copied_miou(curve: Curve, key_share: float) -> float:
    """Return the mIoU of copying at a percentage of key frames; beyond the ends of the curve, that of its end.

    Between two points it is linear in the interval, 100 / share: copying loses about the same with each frame of it.
    """
    intervals, mious = [100 / share for share, _ in curve], [miou for _, miou in curve]
    interval = min(max(100 / key_share, intervals[0]), intervals[-1])
    place = bisect_left(intervals, interval)
    if intervals[place] == interval:
        return mious[place]
    part = (interval - intervals[place - 1]) / (intervals[place] - intervals[place - 1])
    return mious[place - 1] + part * (mious[place] - mious[place - 1])


def schedule_verdicts(found: Mapping[str, Figures]) -> Iterable[str]:
    """Yield the share of key frames of each schedule on the clips that it was tuned on, and on val."""
    for name, figures in found.items():
        if "key_rate" in figures:
            tuned, val = (format_number(figures[key], 0) for key in ("key_rate", "key_share"))
            yield f"- {name}: {tuned} % key frames on the clips that it was tuned on, {val} % on val"


def cost_verdicts(found: Mapping[str, Figures]) -> Iterable[str]:
    """Yield whether methods with cheap frames between key frames are faster than their backbone, on average only."""
    for name, figures in found.items():
        method, _, backbone = name.rpartition("-")
        alone = found.get(backbone, {})
        if method in CHEAPER_ON_AVERAGE and "mean_ms" in figures and "mean_ms" in alone:
            mean, longest = (figures[key] < FASTER * alone[key] for key in ("mean_ms", "max_ms"))
            yield (
                f"- {name}: the mean time is {'below' if mean else 'not below'} the backbone's, "
                f"the longest {'is below it too' if longest else 'is not'}"
            )


def mean_and_spread(numbers: Sequence[float]) -> str:
    """Format the mean of the seeds, and the largest distance of one of them from it."""
    mean = fmean(numbers)
    spread = max(abs(number - mean) for number in numbers)
    return f"{mean:.1f}" + (f" ± {spread:.1f}" if len(numbers) > 1 else "")


if __name__ == "__main__":
    main()
