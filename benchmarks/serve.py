"""Load test of `streamseg serve`: python benchmarks/serve.py [load] [hostile] [clients]

load     32 clients for a minute, each sending a picture of 360 x 640 as soon as the last is answered, once with a queue
         for all of them and once for 8: answers per second, latency, share of 503 answers, memory
hostile  5,000 hostile requests (tests/hostile.py), 8 at a time: their statuses
clients  32 clients in processes of their own, each sending a JPEG of 720 x 1280 (--size) as soon as the last is
         answered, on each --device in turn: requests per second, p50, p99, errors; --json FILE
"""

import argparse
import io
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles

from PIL import Image

from streamseg.cli.options import parse_size

ROOT = Path(__file__).parent.parent
CLIENTS, HOSTILE = 32, 5000
CLIENT_PROCESSES = 4
"""Python sends from one thread of a process at a time."""
CAPTURE_SECONDS = 4.0
"""Pause in which a server on a GPU prepares the sizes that it has seen."""


@contextmanager
def serve(*options: str) -> Iterator[tuple[int, int]]:
    """Run a server in a separate process; yield its port and process number."""
    command = [sys.executable, "-m", "streamseg", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield int(process.stdout.readline().split()[0].rpartition(":")[2]), process.pid
        finally:
            process.terminate()


def resident(process: int) -> float:
    """Return the memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def send_pictures(port: int, picture: bytes, until: float, answers: list[tuple[int, float]]) -> None:
    """Send a picture again and again, and record status and time of each answer; wait after a 503 as it says."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < until:
        begin = time.monotonic()
        connection.request("POST", "/segment", picture)
        response = connection.getresponse()
        response.read()
        answers.append((response.status, time.monotonic() - begin))
        if response.status == 503:
            time.sleep(int(response.headers["Retry-After"]))
    connection.close()


def sample_jpeg(size: tuple[int, int]) -> bytes:
    """Return a sample picture of a size as JPEG."""
    file = io.BytesIO()
    with Image.open(ROOT / "samples" / "suburb-1.jpg") as picture:
        picture.resize(size[::-1]).save(file, format="JPEG", quality=90)
    return file.getvalue()


def send_from_process(port: int, picture: bytes, until: float, clients: int) -> list[tuple[int, float]]:
    """Send a picture from several threads; return status and time of each answer, status 0 for a lost connection."""
    answers: list[tuple[int, float]] = []

    def send() -> None:
        try:
            send_pictures(port, picture, until, answers)
        except OSError:
            answers.append((0, 0.0))

    threads = [threading.Thread(target=send) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def measure_clients(size: tuple[int, int], clients: int, seconds: float, *options: str) -> dict:
    """Return requests per second, percentiles and errors of a server with these options."""
    picture, groups = sample_jpeg(size), min(CLIENT_PROCESSES, clients)
    shares = [clients // groups + (i < clients % groups) for i in range(groups)]
    # not a fork: this process has threads
    spawned = multiprocessing.get_context("spawn")
    with serve("--queue", str(clients), *options) as (port, process), ProcessPoolExecutor(groups, spawned) as pool:

        def send(duration: float) -> list[tuple[int, float]]:
            until = time.monotonic() + duration
            jobs = [pool.submit(send_from_process, port, picture, until, share) for share in shares]
            return [answer for job in jobs for answer in job.result()]

        send(min(5.0, seconds))
        time.sleep(min(CAPTURE_SECONDS, seconds))
        send(min(1.0, seconds))
        early, begin = resident(process), time.monotonic()
        answers = send(seconds)
        taken, late = time.monotonic() - begin, resident(process)
    times = sorted(1000 * taken for status, taken in answers if status == 200)
    shown = quantiles(times, n=100, method="inclusive") if len(times) > 1 else [0.0] * 99
    statuses = Counter(status for status, _ in answers)
    return {
        "requests_per_second": len(times) / taken,
        "p50_ms": shown[49],
        "p99_ms": shown[98],
        "max_ms": max(times, default=0.0),
        "answered": len(times),
        "errors": {str(status): count for status, count in sorted(statuses.items()) if status != 200},
        "memory_mb": {"start": early, "end": late},
    }


def clients(devices: list[str], size: tuple[int, int], number: int, seconds: float, file: Path | None) -> None:
    """Print throughput and latency of many clients on each device."""
    print(f"{number} clients, JPEGs of {size[0]} x {size[1]}")
    print("| device | requests per second | p50, ms | p99, ms | slowest, ms | errors |\n|---|---|---|---|---|---|")
    found = {}
    for device in devices:
        found[device] = row = measure_clients(size, number, seconds, "--device", device)
        print(
            f"| {device} | {row['requests_per_second']:.1f} | {row['p50_ms']:.0f} | {row['p99_ms']:.0f} "
            f"| {row['max_ms']:.0f} | {sum(row['errors'].values())} |",
            flush=True,
        )
        if file:
            figures = {"clients": number, "size": size, "seconds": seconds, "cores": os.cpu_count(), "devices": found}
            file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def load(seconds: float) -> None:
    """Print a table of throughput, latency and memory under load."""
    picture = sample_jpeg((360, 640))
    print("| queue | answers per second | p50, ms | p99, ms | slowest, ms | 503 | other | MB early | MB at the end |")
    print("|---|---|---|---|---|---|---|---|---|")
    for queue in (CLIENTS, 8):
        with serve("--queue", str(queue)) as (port, process):
            answers: list[tuple[int, float]] = []
            arguments = (port, picture, time.monotonic() + seconds, answers)
            clients = [threading.Thread(target=send_pictures, args=arguments) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            time.sleep(seconds / 6)
            early = resident(process)
            for client in clients:
                client.join()
            late = resident(process)
        statuses = Counter(status for status, _ in answers)
        times = [1000 * taken for status, taken in answers if status == 200]
        shares = quantiles(times, n=100)
        print(
            f"| {queue} | {len(times) / seconds:.1f} | {shares[49]:.0f} | {shares[98]:.0f} | {max(times):.0f} "
            f"| {100 * statuses[503] / len(answers):.1f} % | {len(answers) - statuses[200] - statuses[503]} "
            f"| {early:.0f} | {late:.0f} |"
        )


def hostile() -> None:
    """Print the statuses of hostile requests, and whether the server still works."""
    sys.path.append(str(ROOT / "tests"))  # for hostile.py
    from hostile import check, requests

    with serve() as (port, process):
        begin, early = time.monotonic(), resident(process)
        with ThreadPoolExecutor(8) as clients:
            statuses = Counter(clients.map(lambda request: check(port, request), requests(HOSTILE)))
        taken = time.monotonic() - begin
        counts = ", ".join(f"{status}: {number}" for status, number in sorted(statuses.items()))
        print(f"{HOSTILE} requests in {taken:.0f} s; by status (0: disconnected): {counts}")
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/segment", (ROOT / "samples" / "suburb-1.jpg").read_bytes())
        print(f"a picture afterwards: {connection.getresponse().status}; MB {early:.0f}, then {resident(process):.0f}")
        connection.close()


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["load", "hostile", "clients"], help="load and hostile by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long clients send")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="of the part clients")
    parser.add_argument(
        "--size", type=partial(parse_size, "--size"), default=(720, 1280), help="of the pictures of the part clients"
    )
    parser.add_argument("--device", nargs="+", default=["cpu"], help="cpu, cuda or both, for the part clients")
    parser.add_argument("--json", type=Path, help="a file for the figures of the part clients")
    options = parser.parse_args()
    parts = options.parts or ["load", "hostile"]
    if "load" in parts:
        load(options.seconds)
    if "hostile" in parts:
        hostile()
    if "clients" in parts:
        clients(options.device, options.size, options.clients, options.seconds, options.json)


if __name__ == "__main__":
    main()
