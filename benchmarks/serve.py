"""Measure `streamseg serve` under load: python benchmarks/serve.py [load] [hostile].

load     32 clients for a minute, each sending a picture of 360 x 640 as soon as the last is answered, with a queue for
         all of them and with one for 8: responses per second, latency, share of 503, memory
hostile  5,000 malicious requests (tests/hostile.py), 8 at a time: the status of the responses
"""

import io
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles

from PIL import Image

ROOT = Path(__file__).parent.parent
CLIENTS, SECONDS, HOSTILE = 32, 60.0, 5000


@contextmanager
def serve(*options: str) -> Iterator[tuple[int, int]]:
    """Start a server in its own process; yields its port and process id."""
    command = [sys.executable, "-m", "streamseg", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield int(process.stdout.readline().split()[0].rpartition(":")[2]), process.pid
        finally:
            process.terminate()


def resident(process: int) -> float:
    """Return the resident memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def send_pictures(port: int, picture: bytes, until: float, found: list[tuple[int, float]]) -> None:
    """Send a picture repeatedly, and record status and time of each response; after a 503, wait for Retry-After."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < until:
        start = time.monotonic()
        connection.request("POST", "/segment", picture)
        response = connection.getresponse()
        response.read()
        found.append((response.status, time.monotonic() - start))
        if response.status == 503:
            time.sleep(int(response.headers["Retry-After"]))
    connection.close()


def load() -> None:
    file = io.BytesIO()
    with Image.open(ROOT / "samples" / "suburb-1.jpg") as picture:
        picture.resize((640, 360)).save(file, format="JPEG", quality=90)
    print(
        "| queue | responses per second | p50, ms | p99, ms | slowest, ms | 503 | other | MB at 10 s | MB at the end |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for queue in (CLIENTS, 8):
        with serve("--queue", str(queue)) as (port, process):
            found: list[tuple[int, float]] = []
            arguments = (port, file.getvalue(), time.monotonic() + SECONDS, found)
            clients = [threading.Thread(target=send_pictures, args=arguments) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            time.sleep(10)
            early = resident(process)
            for client in clients:
                client.join()
            late = resident(process)
        statuses = Counter(status for status, _ in found)
        times = [1000 * seconds for status, seconds in found if status == 200]
        shares = quantiles(times, n=100)
        print(
            f"| {queue} | {len(times) / SECONDS:.1f} | {shares[49]:.0f} | {shares[98]:.0f} | {max(times):.0f} "
            f"| {100 * statuses[503] / len(found):.1f} % | {len(found) - statuses[200] - statuses[503]} "
            f"| {early:.0f} | {late:.0f} |"
        )


def hostile() -> None:
    sys.path.append(str(ROOT / "tests"))  # for hostile.py
    from hostile import check, requests

    with serve() as (port, process):
        start, early = time.monotonic(), resident(process)
        with ThreadPoolExecutor(8) as clients:
            found = Counter(clients.map(lambda request: check(port, request), requests(HOSTILE)))
        seconds = time.monotonic() - start
        statuses = ", ".join(f"{status}: {number}" for status, number in sorted(found.items()))
        print(f"{HOSTILE} requests in {seconds:.0f} s; by status (0: connection closed): {statuses}")
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/segment", (ROOT / "samples" / "suburb-1.jpg").read_bytes())
        print(f"a picture after them: {connection.getresponse().status}; MB {early:.0f}, then {resident(process):.0f}")
        connection.close()


if __name__ == "__main__":
    parts = {"load": load, "hostile": hostile}
    for name in sys.argv[1:] or parts:
        parts[name]()
