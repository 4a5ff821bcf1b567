"""Runs the jobs of benchmarks/video_methods.py: several processes at once, after those they need, until a deadline.

A job is a function in a process of its own, forked from one that has imported everything already (a fork server):
importing torch and this package takes seconds, and there are dozens of jobs.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

STOP_SECONDS = 30
"""Time that a process gets to save its state when it is told to stop."""

CHECK_SECONDS = 120
"""Time that a first forked process gets, with all imports of the server."""

CUDA_CHECK = "import torch; torch.zeros(1).cuda().item()"


@dataclass(frozen=True)
class Job:
    """A function, with its output in a file; one that was stopped before continues by itself."""

    name: str
    work: Callable[[], int | None]
    """Returns the exit status; it is pickled, such as a functools.partial of a module's function."""
    output: Path
    result: Path
    """The file that it writes last: where it is there, the job is done."""
    needs: tuple[str, ...] = ()
    """Names of the jobs that have to succeed before it."""


@dataclass
class Running:
    """A job that has been started."""

    job: Job
    process: Any
    start: float
    terminated: float | None = None
    """When it was told to stop, by time.monotonic()."""


class JobRunner:
    """Runs jobs until a deadline; running ones are then told to stop, and the others are left out.

    The fork server starts at once, and imports while the caller goes on.

    Args:
        at_once: Processes at a time.
        deadline: By time.monotonic().
        done: Called after each job that succeeded.
        preload: Names of the modules that the fork server imports; none of them may start CUDA.
    """

    def __init__(self, at_once: int, deadline: float, done: Callable[[Job], object], preload: Sequence[str] = ()):
        self.at_once, self.deadline, self.done = at_once, deadline, done
        # the server sees the variables of now, and has no other way to find scripts of this folder
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        # by default torch starts CUDA to find out whether there is any, which no fork survives
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        self.context: Any = get_context("forkserver")
        self.context.set_forkserver_preload([*preload])
        self.check = self.context.Process(target=check_fork, daemon=True)
        self.check.start()

    def run(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Run each job when those that it needs are done; return what kept each from success, if anything."""
        self.check.join(CHECK_SECONDS)
        if self.check.exitcode != 0:
            self.check.kill()
            print("A forked process cannot use the GPU here: each job imports everything by itself.", flush=True)
            self.context = get_context("spawn")
        problems: dict[str, str] = {job.name: "" for job in jobs if job.result.exists()}
        waiting = [job for job in jobs if job.name not in problems]
        running: list[Running] = []
        before = signal.signal(signal.SIGTERM, self.stop)
        try:
            while waiting or running:
                try:
                    for one in [one for one in running if self.has_ended(one)]:
                        running.remove(one)
                        problems[one.job.name] = self.report(one)
                    waiting = [job for job in waiting if not self.advance(job, problems, running)]
                    time.sleep(0.05)
                except KeyboardInterrupt:
                    self.stop()
        finally:
            signal.signal(signal.SIGTERM, before)
        return {job.name: problems[job.name] for job in jobs}

    def stop(self, *_: object) -> None:
        """Let the time be over now."""
        self.deadline = min(self.deadline, time.monotonic())

    def advance(self, job: Job, problems: dict[str, str], running: list[Running]) -> bool:
        """Start a job that waits, or leave it out; return whether it waits no longer."""
        if failed := [name for name in job.needs if problems.get(name)]:
            problems[job.name] = f"left out: it needs {', '.join(failed)}"
        elif time.monotonic() >= self.deadline:
            problems[job.name] = "left out for lack of time"
        elif len(running) < self.at_once and all(name in problems for name in job.needs):
            process = self.context.Process(target=run_job, args=(job.work, job.output), daemon=True)
            process.start()
            running.append(Running(job, process, time.monotonic()))
            return True
        else:
            return False
        return True

    def has_ended(self, one: Running) -> bool:
        """Return whether a job has ended; after the deadline it is told to, and made to if it does not."""
        now = time.monotonic()
        if one.process.is_alive() and one.terminated is None and now >= self.deadline:
            one.terminated = now
            one.process.terminate()
        elif one.process.is_alive() and one.terminated is not None and now > one.terminated + STOP_SECONDS:
            one.process.kill()
        return not one.process.is_alive()

    def report(self, one: Running) -> str:
        """Print what became of a job that has ended, and return what kept it from success."""
        status, problem = one.process.exitcode, ""
        if one.terminated is not None and status:
            problem = "stopped for lack of time; the same command continues it"
        elif status:
            problem = f"failed with status {status}, see {one.job.output}"
        print(f"{one.job.name}: {problem or 'done'}, {time.monotonic() - one.start:.0f} s", flush=True)
        if not problem:
            self.done(one.job)
        return problem


def check_fork() -> None:
    """Use the GPU, if there is one: it fails in a process that is forked from one which has started CUDA."""
    import torch

    if torch.cuda.is_available():
        torch.ones(1, device="cuda").item()


def run_job(work: Callable[[], int | None], output: Path) -> None:
    """Run the function of a job in this process, with all that it prints in a file, and exit with its status."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    sys.exit(work())


class SharedGPU:
    """Runs the MPS daemon meanwhile, if it works here, so that kernels of several processes run at the same time.

    A daemon that runs already is used, and left running: other programs use it.
    """

    def __init__(self, at_once: int):
        self.control = shutil.which("nvidia-cuda-mps-control") if at_once > 1 else None

    def __enter__(self) -> None:
        if not self.control or self.ask("get_server_list"):
            self.control = None
            return
        started = subprocess.run([self.control, "-d"], check=False).returncode == 0
        works = started and not subprocess.run([sys.executable, "-c", CUDA_CHECK], capture_output=True).returncode
        if not works:
            print("MPS does not work here: the processes share the GPU without it.", flush=True)
            self.__exit__()

    def __exit__(self, *_: object) -> None:
        if self.control:
            self.ask("quit")
        self.control = None

    def ask(self, command: str) -> bool:
        """Give a command to the daemon; return whether there was one."""
        try:
            asked = subprocess.run(
                [str(self.control)], input=f"{command}\n", text=True, capture_output=True, timeout=20, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return asked.returncode == 0
