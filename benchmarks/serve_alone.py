"""What `streamseg serve` takes beside its network, with a network that answers at once:

    python benchmarks/serve_alone.py [--clients 16] [--seconds 5] [--turns 0.05 0.5 5]

The codecs run in threads, then in processes. For each and for each of Python's turns, in ms: requests per second, the
processor time of a request in the server and in its other processes, and how often a thread of the server changes.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from serve import sample_jpeg, send_from_process

from streamseg import CAMVID, serve as server
from streamseg.engine.engine import Engine, FrameBatch, Prediction
from streamseg.io.pictures import allow_large_pictures

SIZE = (720, 1280)


class InstantEngine(Engine):
    """Answers with the same labels at once: large regions, as streets have."""

    def __init__(self) -> None:
        self.classes, self.widths, self.context_shape = len(CAMVID), (), (0, 0)
        rows, columns = torch.arange(SIZE[0])[:, None], torch.arange(SIZE[1])
        waves = (rows + 40 * torch.sin(columns / 50)).div(120, rounding_mode="floor") + columns // 500
        self.labels = waves.clamp(0, len(CAMVID) - 1).to(torch.uint8)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], torch.Tensor]:
        return [Prediction(self.labels) for _ in batch.sizes], torch.zeros(len(batch.images), 0, 0)


def run_server(turn: float) -> None:
    """Serve until a signal; print the port."""
    torch.set_num_threads(1)
    sys.setswitchinterval(turn / 1000)
    allow_large_pictures()
    gate = server.RequestGate(server.ServedModel(InstantEngine(), CAMVID, 1, Path("none")), server.Limits(queue=256))
    with server.listen("127.0.0.1", 0) as listening:
        print(listening.getsockname()[1], flush=True)
        server.run_server(gate, listening)


def processor_ms(stat: str) -> float:
    """Return the processor time in a file stat of /proc."""
    fields = stat.rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_work(process: int) -> tuple[float, float, int]:
    """Return the processor time of a process and of its children, in ms, and how often its threads changed."""
    children, tasks = 0.0, Path(f"/proc/{process}/task")
    listed = " ".join((task / "children").read_text() for task in tasks.iterdir())
    for child in listed.split():
        children += processor_ms(Path(f"/proc/{child}/stat").read_text())
    lines = [line for task in tasks.iterdir() for line in (task / "status").read_text().splitlines()]
    changes = sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return processor_ms(Path(f"/proc/{process}/stat").read_text()), children, changes


def measure(codecs: str, turn: float, clients: int, seconds: float) -> None:
    """Print a row of the table."""
    command, picture = [sys.executable, __file__, "--serve", str(turn)], sample_jpeg(SIZE)
    environment = os.environ | {"STREAMSEG_CODECS": codecs}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout
            port = int(process.stdout.readline())
            send_from_process(port, picture, time.monotonic() + 2, clients)  # the processes start
            before, begin = count_work(process.pid), time.monotonic()
            answers = send_from_process(port, picture, begin + seconds, clients)
            taken, after = time.monotonic() - begin, count_work(process.pid)
        finally:
            process.terminate()
    wrong = sum(status != 200 for status, _ in answers)
    own, others, changes = ((late - early) / len(answers) for early, late in zip(before, after, strict=True))
    print(
        f"| {codecs} | {turn:g} | {len(answers) / taken:.1f} | {own:.1f} | {others:.1f} | {changes:.0f} | {wrong} |",
        flush=True,
    )


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=float, nargs="+", default=[0.05, 0.5, 5.0], help="in ms")
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run_server(options.serve)
        return
    print("| codecs | turn, ms | requests per second | server, ms | processes, ms | changes | errors |")
    print("|---|---|---|---|---|---|---|")
    for codecs in ("threads", "processes"):
        for turn in options.turns:
            measure(codecs, turn, options.clients, options.seconds)


if __name__ == "__main__":
    main()
