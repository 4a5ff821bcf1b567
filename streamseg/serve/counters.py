"""What a server counts, in the text that Prometheus reads."""

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

Labels = tuple[tuple[str, str], ...]


class Counter:
    """Numbers that only grow, one for each set of labels."""

    def __init__(self, name: str, about: str):
        self.name, self.about = name, about
        self.lock = threading.Lock()
        self.values: dict[Labels, int] = {}

    def add(self, **labels: str) -> None:
        with self.lock:
            key = tuple(labels.items())
            self.values[key] = self.values.get(key, 0) + 1

    def lines(self) -> Iterator[str]:
        yield from heading(self.name, self.about, "counter")
        for labels, value in sorted(self.values.items()):
            yield sample(self.name, labels, value)


class Histogram:
    """How often a number was at most so large."""

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
        yield from heading(self.name, self.about, "histogram")
        below = 0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            below += count
            yield sample(f"{self.name}_bucket", (("le", "+Inf" if bound == math.inf else f"{bound:g}"),), below)
        yield sample(f"{self.name}_sum", (), self.total)
        yield sample(f"{self.name}_count", (), below)


class Gauge:
    """A number as it is when it is asked for."""

    def __init__(self, name: str, about: str, read: Callable[[], float]):
        self.name, self.about, self.read = name, about, read

    def lines(self) -> Iterator[str]:
        yield from heading(self.name, self.about, "gauge")
        yield sample(self.name, (), self.read())


def heading(name: str, about: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def sample(name: str, labels: Labels, value: float) -> str:
    """A line: labels are ours, and need no escapes."""
    inside = ",".join(f'{key}="{text}"' for key, text in labels)
    return f"{name}{{{inside}}} {value:g}" if inside else f"{name} {value:g}"


def format_metrics(counted: Sequence[Counter | Histogram | Gauge]) -> str:
    """All that is counted, in Prometheus's text format."""
    return "".join(f"{line}\n" for one in counted for line in one.lines())
