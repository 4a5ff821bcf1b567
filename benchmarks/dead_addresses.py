"""Live cameras beside dead addresses: does `streamseg segment` begin later, and what does it need?

    python benchmarks/dead_addresses.py [--live 100] [--dead 0 1 100] [--silent 0 1 100] [--json FILE]

The live cameras are streams of JPEG pictures from a server in this process. A dead address is a closed port of this
machine; a silent one takes the connection and never answers. Each run is a new process with a fleet of all addresses,
for each number of dead and then of silent addresses. Seconds count from the first connection or failure. Files, threads
and memory are read from /proc, so this needs Linux.
"""

import argparse
import io
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image
from scene import SIZE, moving_scene
from torch import Tensor

LOCALHOST = "127.0.0.1"
FRAMES = 10
"""Frames of each live camera, one a second."""


class Server(ThreadingHTTPServer):
    """Live cameras by their paths. The first request gets the frames, and later ones get 503."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, size: tuple[int, int]) -> None:
        self.pictures = [to_jpeg(frame) for frame in moving_scene(size, FRAMES)]
        self.connected: dict[str, float] = {}
        """When each camera was first asked for, by time.monotonic()."""
        super().__init__((LOCALHOST, 0), Camera)


class Camera(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path in self.server.connected:
            self.send_error(503)
            return
        self.server.connected[self.path] = time.monotonic()
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        with suppress(OSError):  # the client has left
            for picture in self.server.pictures:
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
                self.wfile.write(head.encode() + picture + b"\r\n")
                time.sleep(1.0)

    def log_message(self, *_: object) -> None:
        """Do not log."""


def to_jpeg(frame: Tensor) -> bytes:
    file = io.BytesIO()
    Image.fromarray(frame.permute(1, 2, 0).numpy()).save(file, format="JPEG")
    return file.getvalue()


@contextmanager
def serve_cameras(size: tuple[int, int]) -> Iterator[Server]:
    with Server(size) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def closed_port() -> int:
    with socket.create_server((LOCALHOST, 0)) as probe:
        return probe.getsockname()[1]


def need(process: int) -> dict[str, int]:
    """Return the threads, open files and the highest resident memory in MB of a process."""
    folder = Path(f"/proc/{process}")
    status = (folder / "status").read_text(encoding="utf-8")
    found = {name: int(number) for name, number in re.findall(r"^(Threads|VmHWM):\s+(\d+)", status, re.MULTILINE)}
    files = sum(1 for _ in (folder / "fd").iterdir())
    return {"threads": found["Threads"], "files": files, "memory_mb": found["VmHWM"] // 1000}


def measure(live: int, dead: int, silent: int, size: tuple[int, int], *options: str) -> dict[str, float]:
    """Label live cameras beside dead and silent addresses in a new process."""
    with (
        serve_cameras(size) as server,
        socket.create_server((LOCALHOST, 0), backlog=1024) as mute,
        tempfile.TemporaryDirectory() as folder,
    ):
        refusing, taking = closed_port(), mute.getsockname()[1]
        cameras = [(f"live{i}", f"http://{LOCALHOST}:{server.server_port}/{i}") for i in range(live)]
        others = [(f"dead{i}", f"http://{LOCALHOST}:{refusing}/{i}") for i in range(dead)]
        others += [(f"silent{i}", f"http://{LOCALHOST}:{taking}/{i}") for i in range(silent)]
        # the others first, so that they would be in the way
        tables = [f'[[camera]]\nname = "{name}"\naddress = "{address}"\n' for name, address in others + cameras]
        (Path(folder) / "fleet.toml").write_text("\n".join(tables), encoding="utf-8")
        command = [sys.executable, "-m", "streamseg", "segment", "--fleet", "fleet.toml", "--json", "log.jsonl"]
        command += ["--size", f"{size[0]}x{size[1]}", *options]
        told: dict[str, float] = {}
        highest = {"threads": 0, "files": 0, "memory_mb": 0}
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            sentences: list[str] = []

            def listen() -> None:
                assert process.stderr
                for line in process.stderr:
                    sentences.append(line)
                    for name in re.findall(r"streamseg: (\w+): ", line):
                        told.setdefault(name, time.monotonic())

            listener = threading.Thread(target=listen)
            listener.start()
            while process.poll() is None:
                with suppress(OSError, KeyError):  # it has ended
                    now = need(process.pid)
                    highest = {name: max(highest[name], now[name]) for name in highest}
                time.sleep(0.1)
            listener.join()
        if process.returncode != 1 or any("Traceback" in line for line in sentences):
            raise SystemExit(f"segment ended with status {process.returncode}: {''.join(sentences)[-2000:]}")
        *_, last = (Path(folder) / "log.jsonl").read_text(encoding="utf-8").splitlines()
        streams = json.loads(last)["summary"]["streams"]
        begin = min([*server.connected.values(), *(told[name] for name, _ in others if name in told)])
        return {
            "live": live,
            "dead": dead,
            "silent": silent,
            "labelled_cameras": sum(streams[name]["labelled"] > 0 for name, _ in cameras),
            "videos": sum((Path(folder) / "segmented" / f"{name}-overlay.mp4").exists() for name, _ in cameras),
            "told": sum(name in told for name, _ in others),
            "live_connected_seconds": max(server.connected.values()) - begin,
            "others_told_seconds": max((told[name] for name, _ in others if name in told), default=begin) - begin,
            "run_seconds": time.monotonic() - begin,
            **highest,
        }


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", type=int, default=100, help="cameras that send frames")
    parser.add_argument("--dead", type=int, nargs="*", default=[0, 1, 100], help="addresses of a closed port")
    parser.add_argument("--silent", type=int, nargs="*", default=[1, 100], help="addresses that never answer")
    parser.add_argument("--size", type=SIZE, default=(64, 96), help="of the frames and of the network input")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    found = []
    for dead, silent in [*((number, 0) for number in options.dead), *((0, number) for number in options.silent)]:
        figures = measure(options.live, dead, silent, options.size)
        found.append(figures)
        print(", ".join(f"{name} {value:.4g}" for name, value in figures.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
