"""Processes of codecs (codec_process.py), as the process that starts them sees them: jobs, answers, their end.

A process is kept for the next video. It ends with this one, and so does the memory that both share, which has no name
in the system: nothing can be left behind. Nothing here needs torch: processes can start while it is imported.
"""

import atexit
import builtins
import json
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamseg import checks

MAX_IDLE = 16
"""Processes that are kept for the next videos: as many as decode and encode the files that are read at once."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Of numpy, which only copies; codecs have threads of their own."""

END_SECONDS = 2.0
"""How long a process has to end by itself."""
MAX_READ = 2**16
"""Bytes of answers that are read at once."""


class ProcessDied(OSError):  # noqa: N818 (told as any OSError)
    """A process has ended in the middle of its job."""


def read_job(address: str, name: str, hardware: str, planes: bool) -> dict[str, Any]:
    """Return the job to decode a video (codec_process.py)."""
    return {"address": address, "name": name, "hardware": hardware, "planes": planes}


def are_possible() -> bool:
    """Return whether codecs can run in processes here: on Linux, which has memory without a name, by Python itself."""
    is_python = bool(sys.executable) and not getattr(sys, "frozen", False)
    return hasattr(os, "memfd_create") and is_python


class CodecProcess:
    """A process that decodes or encodes one video after the other."""

    def __init__(self) -> None:
        path = os.pathsep.join(part or str(Path.cwd()) for part in sys.path)
        self.file = os.memfd_create("streamseg")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "streamseg.io.codec_process", str(self.file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(self.file,),
                start_new_session=True,  # a Ctrl-C in the terminal must not end it while it starts
                env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **ONE_THREAD},
            )
        except BaseException:
            os.close(self.file)
            raise

        assert self.process.stdout
        self.listener = select.poll()
        self.listener.register(self.process.stdout, select.POLLIN)
        self.received = b""
        """What has come of the next answers."""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def has_answered(self, seconds: float) -> bool:
        """Return whether there is an answer, or the process has ended; wait for some seconds at most."""
        return b"\n" in self.received or bool(self.listener.poll(1000 * seconds))

    def send(self, message: dict[str, Any]) -> None:
        """Send a line; what became of a process that has gone is told by its answer."""
        assert self.process.stdin
        with suppress(OSError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def answer(self, name: str) -> dict[str, Any]:
        """Wait for a line; raise the error that it tells of, after which the process waits for the next job.

        Args:
            name: The video, for the message if the process has died.
        """
        assert self.process.stdout
        while b"\n" not in self.received and (more := os.read(self.process.stdout.fileno(), MAX_READ)):
            self.received += more
        line, end, self.received = self.received.partition(b"\n")
        if not end:
            status = self.process.wait()
            hint = (
                ": is there enough memory?" if status == -signal.SIGKILL else "; STREAMSEG_CODECS=threads does without."
            )
            raise ProcessDied(f"{name}: the process of its codec ended with status {status}{hint}")
        message = json.loads(line)
        if "error" in message:
            raise to_error(message)
        return message

    def end(self) -> None:
        """End the process, and free the memory."""
        process = self.process
        assert process.stdin
        assert process.stdout
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        os.close(self.file)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the process so far; it is alive."""
        # after the name, which may hold anything, from the third field on
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.end()


def in_this_folder(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job whose names of files are relative to the folder that is the current one now."""
    with suppress(OSError):  # a folder that was deleted
        return job | {"folder": str(Path.cwd())}
    return job


class Idle:
    """Processes that wait for the next video, and those that have begun to read it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.processes: list[CodecProcess] = []
        self.begun: list[tuple[dict[str, Any], CodecProcess]] = []
        """Messages with a job that no one has asked for yet, and the processes that work on it."""

    def begin(self, kind: str, job: dict[str, Any]) -> None:
        """Let a process begin a job before start_job asks for it, once."""
        message, process = {kind: in_this_folder(job)}, self.take()
        process.send(message)
        with self.lock:
            self.begun.append((message, process))

    def start_job(self, kind: str, job: dict[str, Any]) -> CodecProcess:
        """Return a process that works on a job; its names of files are relative to the current folder."""
        message = {kind: in_this_folder(job)}
        with self.lock:
            found = next((entry for entry in self.begun if entry[0] == message), None)
            if found:
                self.begun.remove(found)
        if found and found[1].alive:
            return found[1]
        if found:
            found[1].end()
        process = self.take()
        process.send(message)
        return process

    def drop_begun(self) -> None:
        """End the jobs that no one has asked for. They only read, and would first finish what they have begun."""
        with self.lock:
            begun, self.begun = self.begun, []
        for _, process in begun:
            process.kill()

    def take(self) -> CodecProcess:
        """Return a process that waits, or a new one."""
        with self.lock:
            while self.processes:
                process = self.processes.pop()
                if process.alive:
                    return process
                process.end()
        return CodecProcess()

    def give_back(self, process: CodecProcess) -> None:
        """Keep a process that has finished its job."""
        with self.lock:
            if len(self.processes) < MAX_IDLE and process.alive:
                self.processes.append(process)
                return
        process.end()

    def start(self, count: int) -> None:
        """Start processes ahead, until a number of them waits or has begun."""
        for _ in range(min(count, MAX_IDLE) - len(self.processes) - len(self.begun)):
            self.give_back(CodecProcess())

    def end(self) -> None:
        """End all that wait, or have begun."""
        self.drop_begun()
        with self.lock:
            processes, self.processes = self.processes, []
        for process in processes:
            process.process.stdin.close()  # type: ignore[union-attr]  # all at once, then wait for each
        for process in processes:
            process.end()


IDLE = Idle()
atexit.register(IDLE.end)


def to_error(message: dict[str, Any]) -> Exception:
    """Return the error that a message of a process tells of."""
    kind = getattr(checks, message["error"], None) or getattr(builtins, message["error"], None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):  # one of FFmpeg's
        kind = OSError if message["errno"] else ValueError
    if message["errno"] and issubclass(kind, OSError):
        return kind(message["errno"], message["strerror"])
    return kind(message["text"])
