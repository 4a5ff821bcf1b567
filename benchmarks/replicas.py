"""Measure the replicas of `streamseg serve` on Ray: python benchmarks/replicas.py kill|grow|cost [--json FILE]

kill  pictures to two replicas, one of which is killed in the middle; every answer is compared with the right labels
grow  pictures per second and latency without Ray, and with each number of replicas
cost  processor time of a request outside the network: the picture, the labels, Ray's proxy
"""

import argparse
import io
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import numpy
import torch
from PIL import Image
from scene import moving_scene
from serve import measure_clients, sample_jpeg, serve
from torch import Tensor

import streamseg
from streamseg.cli.options import parse_size
from streamseg.io.images import decode_upload
from streamseg.serve.gate import ServedModel
from streamseg.serve.segment import encode_answer

RIGHT, WRONG, BUSY, LOST = "right labels", "wrong labels", "503", "lost"
"""Outcomes of a request; another status is named by its number."""


@dataclass(frozen=True)
class Case:
    """A picture and its right labels."""

    picture: bytes
    """A PNG file."""
    labels: Tensor

    def matches(self, labels: Tensor) -> bool:
        return labels.equal(self.labels)


@dataclass(frozen=True)
class EitherCase(Case):
    """A picture with two right answers, while one network replaces another."""

    others: Tensor

    def matches(self, labels: Tensor) -> bool:
        return labels.equal(self.labels) or labels.equal(self.others)


def make_cases(model: streamseg.FANet | None, size: tuple[int, int], number: int = 16) -> list[Case]:
    """Return pictures of a moving scene with the labels of a network, of the default one if there is none given.

    No two have the same labels: an answer to another request is a wrong one.
    """
    network = streamseg.accelerate((model or streamseg.load()[0]).eval())
    cases: list[Case] = []
    for frame in moving_scene(size, 8 * number):
        labels = network(frame).cpu()
        if len(cases) < number and all(float((labels != case.labels).float().mean()) > 0.01 for case in cases):
            file = io.BytesIO()
            Image.fromarray(frame.permute(1, 2, 0).numpy()).save(file, format="PNG")
            cases.append(Case(file.getvalue(), labels))
    return cases


def read_labels(body: bytes) -> Tensor:
    """Return the labels in a PNG file."""
    return torch.from_numpy(numpy.array(Image.open(io.BytesIO(body))))


def send_requests(
    port: int, cases: Sequence[Case], number: int, clients: int = 8, halfway: Callable[[], None] = lambda: None
) -> Counter[str]:
    """Send a number of pictures from several clients, each once; return how often each outcome came.

    Args:
        halfway: Called once, by the client that sends the picture in the middle, while the others go on.
    """
    outcomes: Counter[str] = Counter()
    lock, numbers = threading.Lock(), iter(range(number))

    def send() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        while True:
            with lock:
                index = next(numbers, None)
            if index is None:
                break
            if index == number // 2:
                halfway()
            case = cases[index % len(cases)]
            try:
                connection.request("POST", "/segment", case.picture)
                response = connection.getresponse()
                body = response.read()
                outcome = str(response.status)
                if response.status == 200:
                    outcome = RIGHT if case.matches(read_labels(body)) else WRONG
                elif response.status == 503 and not response.headers.get("Retry-After", "").isdecimal():
                    outcome = "503 without Retry-After"
            except (OSError, HTTPException):
                connection.close()
                outcome = LOST
            with lock:
                outcomes[outcome] += 1
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def find_replicas(ancestor: int, title: bytes = b"ray::ServeReplica") -> set[int]:
    """Return the numbers of the replicas, or of processes with another title, that descend from a process (Linux)."""
    parents, found = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text(encoding="utf-8")
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        parents[int(folder.name)] = int(fields["PPid"])
        if command.startswith(title) and not fields["State"].startswith("Z"):
            found.add(int(folder.name))

    def descends(process: int) -> bool:
        while process and process != ancestor:
            process = parents.get(process, 0)
        return process == ancestor

    return {process for process in found if descends(process)}


def kill_one(ancestor: int) -> None:
    """Kill a replica that descends from a process; it hangs first, so that requests are open when it dies."""
    replica = min(find_replicas(ancestor))
    os.kill(replica, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(replica, signal.SIGKILL)


def replicas_in_metrics(port: int) -> int:
    """Return how many replicas answer a request for metrics."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(line.startswith("streamseg_streams{") for line in lines)


def kill(size: tuple[int, int], number: int, clients: int) -> dict[str, object]:
    """Kill one of two replicas in the middle of many requests; print and return the outcomes."""
    cases = make_cases(None, size)
    killed: list[float] = []
    with serve("--replicas", "2", "--device", "cpu") as (port, process):
        send_requests(port, cases, 4 * clients, clients)
        begin = time.monotonic()

        def halfway() -> None:
            kill_one(process)
            killed.append(time.monotonic())

        def watch() -> None:
            """Record when two replicas answer again."""
            while not killed or replicas_in_metrics(port) < 2:
                time.sleep(0.5)
            killed.append(time.monotonic())

        watching = threading.Thread(target=watch)
        watching.start()
        outcomes = send_requests(port, cases, number, clients, halfway)
        taken = time.monotonic() - begin
        watching.join()
    print(
        f"{number:,} pictures of {size[0]} x {size[1]} from {clients} clients in {taken:.0f} s; 1 of 2 replicas killed"
    )
    for outcome, count in sorted(outcomes.items()):
        print(f"{outcome:24}{count:7,}")
    print(f"two replicas again after {killed[1] - killed[0]:.0f} s")
    return {"outcomes": dict(outcomes), "seconds": taken, "recovered_seconds": killed[1] - killed[0]}


def grow(size: tuple[int, int], counts: Sequence[int], clients: int, seconds: float) -> dict[str, object]:
    """Print and return throughput and latency without Ray, and with each number of replicas."""
    print(f"{clients} clients, JPEGs of {size[0]} x {size[1]}, {os.cpu_count()} cores for the server and the clients")
    print("| server | requests per second | p50, ms | p99, ms | errors |\n|---|---|---|---|---|")
    found: dict[str, object] = {}
    for count in (0, *counts):
        options = ["--replicas", str(count)] if count else []
        row = measure_clients(size, clients, seconds, "--device", "cpu", *options)
        name = f"{count} replica{'s' if count > 1 else ''}" if count else "without Ray"
        print(
            f"| {name} | {row['requests_per_second']:.1f} | {row['p50_ms']:.0f} | {row['p99_ms']:.0f} "
            f"| {sum(row['errors'].values())} |",
            flush=True,
        )
        found[name] = row
    return found


def cost(size: tuple[int, int], number: int) -> dict[str, object]:
    """Print and return the processor time, in ms, of the parts of a request that are not the network."""
    picture = sample_jpeg(size)
    frame = decode_upload(picture, 2**31)
    model, classes = streamseg.load()
    labels = streamseg.accelerate(model.eval())(frame)
    served = ServedModel(None, classes, 1, Path())  # type: ignore[arg-type] # its network is not asked
    rows = {
        "decode a JPEG": milliseconds(number, lambda: decode_upload(picture, 2**31)),
        "write labels as PNG": milliseconds(number, lambda: encode_answer("image/png", frame, labels, served, 0.5)),
        "write shares as JSON": milliseconds(
            number, lambda: encode_answer("application/json", frame, labels, served, 0.5)
        ),
    }
    with serve("--replicas", "1", "--device", "cpu") as (port, process):
        (proxy,) = find_replicas(process, b"ray::ProxyActor")
        case = [Case(picture, labels)]
        send_requests(port, case, 2, 1)
        begin, start = processor_seconds(proxy), time.monotonic()
        time.sleep(5.0)
        idle = (processor_seconds(proxy) - begin) / (time.monotonic() - start)
        begin, start = processor_seconds(proxy), time.monotonic()
        send_requests(port, case, number, 1)
        used = processor_seconds(proxy) - begin - idle * (time.monotonic() - start)
    rows["Ray's proxy"] = 1000 * used / number
    print(f"a picture of {size[0]} x {size[1]}, {number} times")
    for name, taken in rows.items():
        print(f"{name:24}{taken:7.2f} ms")
    return dict(rows)


def milliseconds(number: int, work: Callable[[], object]) -> float:
    """Return the processor time of some work, over all threads, the mean of a number of times."""
    work()
    begin = time.process_time()
    for _ in range(number):
        work()
    return 1000 * (time.process_time() - begin) / number


def processor_seconds(process: int) -> float:
    """Return the processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["kill", "grow", "cost"])
    parser.add_argument("--requests", type=int, default=5000, help="of the parts kill and cost")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2], help="of the part grow")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the clients of the part grow send")
    parser.add_argument("--size", type=partial(parse_size, "--size"), default=(120, 160), help="of the pictures")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    if options.part == "kill":
        figures = kill(options.size, options.requests, options.clients)
    elif options.part == "cost":
        figures = cost(options.size, options.requests)
    else:
        figures = grow(options.size, options.replicas, options.clients, options.seconds)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if options.part == "kill" and {*figures["outcomes"]} - {RIGHT, BUSY}:  # type: ignore[misc]
        sys.exit(1)


if __name__ == "__main__":
    main()
