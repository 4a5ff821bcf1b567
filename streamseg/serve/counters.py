"""Metrics of the server, in the text format of Prometheus."""

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

Labels = tuple[tuple[str, str], ...]
MetricLines = list[str]
"""The lines of one metric: two comments, and its values."""


class Counter:
    """Numbers that only grow, one for each set of labels."""

    def __init__(self, name: str, about: str):
        self.name, self.about = name, about
        self.lock = threading.Lock()
        self.values: dict[Labels, float] = {}

    def add(self, amount: float = 1, /, **labels: str) -> None:
        with self.lock:
            key = tuple(labels.items())
            self.values[key] = self.values.get(key, 0) + amount

    def value(self, **labels: str) -> float:
        """Return the number with exactly these labels; 0 if nothing was added."""
        with self.lock:
            return self.values.get(tuple(labels.items()), 0)

    def forget(self, **labels: str) -> None:
        """Remove the numbers with these labels, such as those of a stream that is closed."""
        with self.lock:
            self.values = {key: value for key, value in self.values.items() if not labels.items() <= {*key}}

    def lines(self) -> Iterator[str]:
        yield from header_lines(self.name, self.about, "counter")
        with self.lock:
            values = sorted(self.values.items())
        for labels, value in values:
            yield sample_line(self.name, labels, value)


class PrometheusHistogram:
    """Counts of values up to each of several bounds."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]):
        self.name, self.about = name, about
        self.bounds = (*bounds, math.inf)
        self.lock = threading.Lock()
        self.counts = [0] * len(self.bounds)
        self.total = 0.0

    def add(self, value: float) -> None:
        with self.lock:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    def lines(self) -> Iterator[str]:
        yield from header_lines(self.name, self.about, "histogram")
        cumulative = 0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            cumulative += count
            labels = (("le", "+Inf" if bound == math.inf else f"{bound:g}"),)
            yield sample_line(f"{self.name}_bucket", labels, cumulative)
        yield sample_line(f"{self.name}_sum", (), self.total)
        yield sample_line(f"{self.name}_count", (), cumulative)


class Gauge:
    """A number that is read when the metrics are requested."""

    def __init__(self, name: str, about: str, read: Callable[[], float]):
        self.name, self.about, self.read = name, about, read

    def lines(self) -> Iterator[str]:
        yield from header_lines(self.name, self.about, "gauge")
        yield sample_line(self.name, (), self.read())


def header_lines(name: str, about: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def sample_line(name: str, labels: Labels, value: float) -> str:
    """A line with one value; labels are written unescaped, as none of ours holds a quote."""
    inside = ",".join(f'{key}="{text}"' for key, text in labels)
    return f"{name}{{{inside}}} {value:.12g}" if inside else f"{name} {value:.12g}"


def format_metrics(metrics: Sequence[Counter | PrometheusHistogram | Gauge]) -> str:
    """Return all metrics in the text format of Prometheus."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def merge_metrics(replicas: Mapping[str, Sequence[MetricLines]]) -> str:
    """Return the metrics of several replicas in the text format of Prometheus, with the name of the replica as a label.

    All replicas have the same metrics, in the same order.
    """
    text = ""
    for same in zip(*replicas.values(), strict=True):
        text += "".join(f"{line}\n" for line in same[0] if line.startswith("#"))
        for name, lines in zip(replicas, same, strict=True):
            text += "".join(f"{add_label(line, 'replica', name)}\n" for line in lines if not line.startswith("#"))
    return text


def add_label(line: str, label: str, text: str) -> str:
    """Return a line with one value, with another label."""
    series, _, value = line.rpartition(" ")
    name, _, labels = series.removesuffix("}").partition("{")
    inside = f'{label}="{text}"' + (f",{labels}" if labels else "")
    return f"{name}{{{inside}}} {value}"
