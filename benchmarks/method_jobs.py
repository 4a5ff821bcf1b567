"""Runs the jobs of benchmarks/video_methods.py: several processes at once, after those they need, until a deadline."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 30
"""Time that a process gets to save its state when it is told to stop."""

CUDA_CHECK = "import torch; torch.zeros(1).cuda().item()"


@dataclass(frozen=True)
class Job:
    """A command, with its output in a file; one that was stopped before continues by itself."""

    name: str
    command: Sequence[str]
    output: Path
    result: Path
    """The file that it writes last: where it is there, the job is done."""
    needs: tuple[str, ...] = ()
    """Names of the jobs that have to succeed before it."""


class JobRunner:
    """Runs jobs until a deadline; running ones are then told to stop, and the others are left out.

    Args:
        at_once: Processes at a time.
        deadline: By time.monotonic().
        done: Called after each job that succeeded, one call at a time.
    """

    def __init__(self, at_once: int, deadline: float, environment: Mapping[str, str], done: Callable[[Job], None]):
        self.at_once, self.deadline, self.environment, self.done = at_once, deadline, environment, done
        self.running: set[subprocess.Popen] = set()
        self.lock = threading.Lock()

    def run(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Run jobs, of which each comes after those that it needs; return what kept each from success, if anything."""
        futures: dict[str, Future[str]] = {}
        before = signal.signal(signal.SIGTERM, lambda *_: self.stop())
        try:
            with ThreadPoolExecutor(self.at_once) as pool:
                for job in jobs:
                    needs = {name: futures[name] for name in job.needs}
                    futures[job.name] = pool.submit(self.run_job, job, needs)
                try:
                    return {name: future.result() for name, future in futures.items()}
                except KeyboardInterrupt:
                    self.stop()
                    return {name: future.result() for name, future in futures.items()}
        finally:
            signal.signal(signal.SIGTERM, before)

    def stop(self) -> None:
        """Tell running jobs to save their state and stop; those that wait are left out."""
        self.deadline = min(self.deadline, time.monotonic())
        for process in [*self.running]:
            process.terminate()

    def run_job(self, job: Job, needs: Mapping[str, "Future[str]"]) -> str:
        """Run a job when those that it needs are done; return what kept it from success, or an empty text."""
        failed = [name for name, future in needs.items() if future.result()]
        start = time.monotonic()
        if job.result.exists():
            return ""
        if failed:
            problem = f"left out: it needs {', '.join(failed)}"
        elif start >= self.deadline:
            problem = "left out for lack of time"
        else:
            problem = self.run_command(job)
        print(f"{job.name}: {problem or 'done'}, {time.monotonic() - start:.0f} s", flush=True)
        if not problem:
            with self.lock:
                self.done(job)
        return problem

    def run_command(self, job: Job) -> str:
        job.output.parent.mkdir(parents=True, exist_ok=True)
        with job.output.open("a", encoding="utf-8") as output:
            process = subprocess.Popen(job.command, stdout=output, stderr=output, env=dict(self.environment))
            self.running.add(process)
            try:
                status = process.wait(max(0.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                return "stopped for lack of time; the same command continues it"
            finally:
                self.running.discard(process)
        return f"failed with status {status}, see {job.output}" if status else ""


class SharedGPU:
    """Runs the MPS daemon meanwhile, if it works here, so that kernels of several processes run at the same time."""

    def __init__(self, at_once: int):
        self.control = shutil.which("nvidia-cuda-mps-control") if at_once > 1 else None
        threads = str(max(1, (os.cpu_count() or 1) // max(1, at_once)))
        self.environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}

    def __enter__(self) -> dict[str, str]:
        if self.control:
            subprocess.run([self.control, "-d"], check=False)
            if subprocess.run([sys.executable, "-c", CUDA_CHECK], capture_output=True, check=False).returncode:
                print("MPS does not work here: the processes share the GPU without it.", flush=True)
                self.quit()
        return self.environment

    def __exit__(self, *_: object) -> None:
        if self.control:
            self.quit()

    def quit(self) -> None:
        """End the daemon."""
        subprocess.run([str(self.control)], input="quit\n", text=True, check=False)
        self.control = None
