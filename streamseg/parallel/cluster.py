"""Distribute work over the machines of a Ray cluster, with Ray Data."""

import logging
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from streamseg.io.tensors import short_error

LOCAL_CLUSTER = "local"
"""The address of a cluster of this machine only, started for a job and stopped after it."""

WORKERS_PER_GPU = 8
"""Workers that share a GPU: decoding and encoding take a core ten times as long as a GPU takes for a frame."""
MAX_BLOCKS = 10_000
"""The largest number of blocks that Ray Data manages."""
MAX_ATTEMPTS = 3
"""How often a row is tried if its worker dies."""
CONNECT_SECONDS = 20.0
"""Seconds within which a cluster must answer."""


@contextmanager
def ray_cluster(address: str) -> Iterator[None]:
    """Connect to a Ray cluster, for Ray Data: local, auto (the one running on this machine), HOST:PORT or ray://…."""
    require_ray()
    with join_cluster(address):
        yield


@contextmanager
def join_cluster(address: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Connect to a Ray cluster; the processes that are started for this one have some more environment variables."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors are reported here
    import ray

    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address not in (LOCAL_CLUSTER, "auto"):
        check_cluster_answers(address)
    try:
        ray.init(
            address,
            include_dashboard=False if address == LOCAL_CLUSTER else None,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {**environment}} if environment else None,
        )
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        if address == "auto":
            raise ConnectionError("No Ray cluster runs here: start one with ray start --head.") from None
        raise ConnectionError(f"The Ray cluster at {address} cannot be joined ({short_error(error)}).") from None
    try:
        yield
    finally:
        ray.shutdown()


def find_resources() -> dict[str, float]:
    """Return the resources of the cluster that was joined: CPU, the number of cores, GPU and others."""
    import ray

    return dict(ray.cluster_resources())


def require_ray() -> None:
    """Raise an ImportError that says what to install, if Ray Data is missing."""
    for module in ("ray", "pyarrow", "pandas"):
        if find_spec(module) is None:
            raise ImportError(f"--ray needs {module}: pip install 'streamseg[distributed]'")


def check_cluster_answers(address: str) -> None:
    """Raise a ConnectionError if no Ray cluster answers at an address. Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"--ray is {address!r:.80}; expected local, auto, HOST:PORT or ray://HOST:PORT.")
    problem = (
        f"No Ray cluster answers at {address} within {CONNECT_SECONDS:.0f} s: is it running, and is this its port?"
    )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS / 2).close()
        if not address.startswith("ray://"):
            ask = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
            subprocess.run(ask, timeout=CONNECT_SECONDS, check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        if b"AuthenticationError" in (getattr(error, "stderr", None) or b""):
            problem = f"The Ray cluster at {address} requires a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
        raise ConnectionError(problem) from None


def map_on_cluster(
    worker: type, given: Sequence[Any], rows: Sequence[dict[str, Any]], *, gpus: bool
) -> Iterator[dict[str, Any]]:
    """Yield the results of rows, in the order in which workers, one a process, finish them.

    A row whose worker dies is tried again elsewhere. One that fails, or keeps killing its workers, yields nothing.

    Args:
        worker: A class whose instances turn a row into a result. Its last constructor argument is the device.
        given: The constructor arguments before the device.
        gpus: Whether to use the GPUs of the cluster, if it has any.
    """
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1
    # a long video must not count as a stall; Ray 2.40 lacks this option
    if hasattr(context, "execution_no_progress_timeout_s"):
        context.execution_no_progress_timeout_s = -1
    found = ray.cluster_resources()
    shares = round(WORKERS_PER_GPU * found.get("GPU", 0)) if gpus else 0
    workers = min(len(rows), shares or int(found.get("CPU", 1)))
    with warnings.catch_warnings():
        # Ray 2.64 deprecates max_task_retries
        warnings.simplefilter("ignore", DeprecationWarning)
        data = ray.data.from_items(list(rows), override_num_blocks=min(len(rows), MAX_BLOCKS)).map(
            worker,
            fn_constructor_args=(*given, "cuda:0" if shares else "cpu"),
            # so that no row waits behind a long one while another worker is idle
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
            num_cpus=1,
            num_gpus=1 / WORKERS_PER_GPU if shares else 0,
            max_task_retries=MAX_ATTEMPTS - 1,
        )
    try:
        yield from data.iter_rows()
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise OSError(f"The Ray job failed ({short_error(error)}): finished results are kept, run it again.") from error
