"""Load test of `streamseg serve`: python benchmarks/serve.py [load] [hostile]

load     32 clients for a minute, each sending a picture of 360 x 640 as soon as the last is answered, once with a queue
         for all of them and once for 8: answers per second, latency, share of 503 answers, memory
hostile  5,000 hostile requests (tests/hostile.py), 8 at a time: their statuses
"""

import argparse
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
CLIENTS, HOSTILE = 32, 5000


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


def load(seconds: float) -> None:
    """Print a table of throughput, latency and memory under load."""
    file = io.BytesIO()
    with Image.open(ROOT / "samples" / "suburb-1.jpg") as picture:
        picture.resize((640, 360)).save(file, format="JPEG", quality=90)
    print("| queue | answers per second | p50, ms | p99, ms | slowest, ms | 503 | other | MB early | MB at the end |")
    print("|---|---|---|---|---|---|---|---|---|")
    for queue in (CLIENTS, 8):
        with serve("--queue", str(queue)) as (port, process):
            answers: list[tuple[int, float]] = []
            arguments = (port, file.getvalue(), time.monotonic() + seconds, answers)
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
    parser.add_argument("parts", nargs="*", choices=["load", "hostile"], help="both if none is given")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the clients of load send")
    options = parser.parse_args()
    parts = options.parts or ["load", "hostile"]
    if "load" in parts:
        load(options.seconds)
    if "hostile" in parts:
        hostile()


if __name__ == "__main__":
    main()
