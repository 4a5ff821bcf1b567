"""The table of benchmarks/video_methods.py: one row a network, and what it says about the methods."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

Figures = Mapping[str, Any]

COPY_BESIDE_CLOCKWORK = "copy-2"
"""Copying at the interval of Clockwork; `copy` is at that of the others."""

PROPAGATING = {
    "clockwork": COPY_BESIDE_CLOCKWORK,
    "dff": "copy",
    "accel": "copy",
    "clockwork-adaptive": "copy",
    "low-latency": "copy",
    "dvsnet": "copy",
}
"""The row of copying that each method has to beat; methods with a schedule have no interval, only a key share."""

CHEAPER_ON_AVERAGE = ("clockwork", "dff")
"""Methods whose mean time is expected below the backbone's, and whose longest is not."""

COLUMNS = {
    "mean_ms": ("mean ms", 2),
    "max_ms": ("max ms", 2),
    "graph_mean_ms": ("mean ms, graph", 2),
    "graph_max_ms": ("max ms, graph", 2),
    "flip_rate": ("flips %", 2),
    "mvc8": ("mVC8", 1),
    "gmacs": ("GMACs", 1),
    "key_share": ("key frames %", 1),
}
"""Titles and decimals of the columns after the accuracy; what was not measured is a dash."""


def format_table(found: Mapping[str, Figures]) -> str:
    """Format the figures as a Markdown table; several seeds give mean and standard deviation."""
    titles = ["", "mIoU", "at the last distance", *(title for title, _ in COLUMNS.values())]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, figures in found.items():
        distances = figures.get("by_distance")
        cells = [name, mean_and_spread(figures["miou"]), f"{distances[-1]:.1f}" if distances else "–"]
        cells += [format_number(figures.get(key), decimals) for key, (_, decimals) in COLUMNS.items()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *verdicts(found), *cost_verdicts(found)])


def format_number(number: float | None, decimals: int) -> str:
    return "–" if number is None else f"{number:.{decimals}f}"


def verdicts(found: Mapping[str, Figures]) -> Iterable[str]:
    """Yield by how much each method that propagates beats copying the labels of the last key frame."""
    for name, figures in found.items():
        method, _, backbone = name.rpartition("-")
        copy = found.get(f"{PROPAGATING.get(method)}-{backbone}")
        if copy:
            gains = [ours - copied for ours, copied in zip(figures["miou"], copy["miou"], strict=False)]
            shares = f"{figures['key_share']:.0f} % and {copy['key_share']:.0f} %"
            yield f"- {name} less copying: {mean_and_spread(gains)} mIoU; key frames {shares}"


def cost_verdicts(found: Mapping[str, Figures]) -> Iterable[str]:
    """Yield whether methods with cheap frames between key frames are faster than their backbone, on average only."""
    for name, figures in found.items():
        method, _, backbone = name.rpartition("-")
        alone = found.get(backbone, {})
        if method in CHEAPER_ON_AVERAGE and "mean_ms" in figures and "mean_ms" in alone:
            mean, longest = (figures[key] < alone[key] for key in ("mean_ms", "max_ms"))
            yield (
                f"- {name}: the mean time is {'below' if mean else 'not below'} the backbone's, "
                f"the longest {'is too' if longest else 'is not'}"
            )


def mean_and_spread(numbers: Sequence[float]) -> str:
    return f"{fmean(numbers):.1f}" + (f" ± {stdev(numbers):.1f}" if len(numbers) > 1 else "")
