"""Replicas of the server on a Ray cluster, with Ray Serve: processes with the whole application and a network each.

    client ──▶ proxy, one on each machine ──▶ of two replicas, the one with fewer open requests

A stream is a single request, however long it lasts: all of its frames go to the replica that holds its state. Ray
starts a replica again that dies or fails its health check, adds and removes replicas by the number of open requests,
and replaces them one after the other when the application is deployed again.
"""

import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from starlette.types import ASGIApp

from streamseg.io.pictures import allow_large_pictures
from streamseg.io.tensors import short_error
from streamseg.serve.app import build_app
from streamseg.serve.batches import LabelRequest
from streamseg.serve.counters import MetricLines, merge_metrics
from streamseg.serve.gate import Limits, RequestGate, ServedModel
from streamseg.serve.server import MAX_REQUESTS, HttpMiddleware

APPLICATION, DEPLOYMENT = "streamseg", "Replica"
"""Names in Ray Serve, as `serve status` lists them."""
UPSCALE_SECONDS, DOWNSCALE_SECONDS = 10.0, 120.0
"""How long the load must be high before a replica is added, or low before one is removed."""
HEALTH_SECONDS = 5.0
"""Time between two health checks of a replica."""
METRICS_SECONDS = 5.0
"""Timeout for collecting the metrics of all replicas."""
START_ATTEMPTS = 2
"""How often Ray tries to start a replica before the application counts as failed."""


@dataclass(frozen=True)
class Replicas:
    """How many replicas there are, and what each of them takes."""

    least: int = 1
    most: int = 1
    """More than least: as many as the number of open requests asks for."""
    gpu_share: float = 0.0
    """Of one GPU; 0 for replicas on the CPU, with one core each."""


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica is made with."""

    open_model: Callable[[], ServedModel]
    """Opens the network, in the process of the replica."""
    limits: Limits
    token: str = ""
    batch: int = 8


def require_ray_serve() -> None:
    """Raise an ImportError that says what to install, if Ray Serve is missing."""
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")  # errors are reported here
    try:
        import ray.serve  # noqa: F401 (Ray without its extra serve has the module, but not what that needs)
    except ImportError as error:
        missing = (error.name or "ray").partition(".")[0]
        raise ImportError(f"--replicas needs {missing}: pip install 'streamseg[ray]'") from None


class ReplicaGate(RequestGate):
    """A gate whose metrics are those of all replicas."""

    async def read_metrics(self) -> str:
        from ray import serve

        handle = serve.get_deployment_handle(DEPLOYMENT, APPLICATION)
        answers = handle.broadcast("list_metrics").results_async(timeout_s=METRICS_SECONDS, return_exceptions=True)
        # without replicas that died just now
        return merge_metrics(dict(answer for answer in await answers if not isinstance(answer, BaseException)))


class Replica:
    """One process of the server: the application that `streamseg serve` runs."""

    def __init__(self, settings: ReplicaSettings):
        allow_large_pictures()  # the server has limits of its own
        # a replica has one core
        self.gate = ReplicaGate(settings.open_model(), settings.limits, settings.token, settings.batch, processes=0)
        self.oldest: LabelRequest | None = None
        self.oldest_since = monotonic()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return HttpMiddleware(build_app(self.gate), self.gate)

    def check_health(self) -> None:
        """Raise a RuntimeError if the network labels nothing more; Ray then replaces this replica."""
        batcher, now = self.gate.batcher, monotonic()
        if not batcher.thread.is_alive():
            raise RuntimeError("The thread that labels frames has ended.")
        with batcher.change:
            oldest = batcher.queue[0] if batcher.queue else None
        if oldest is None or oldest is not self.oldest:
            self.oldest, self.oldest_since = oldest, now
        elif now - self.oldest_since > self.gate.limits.seconds:
            raise RuntimeError(f"The oldest frame has waited {now - self.oldest_since:.0f} s: the network hangs.")

    def list_metrics(self) -> tuple[str, list[MetricLines]]:
        """Return the name of this replica, and its metrics."""
        from ray import serve

        return serve.get_replica_context().replica_id.unique_id, [[*metric.lines()] for metric in self.gate.metrics]


def parse_replicas(text: str) -> tuple[int, int]:
    """Return the least and the largest number of replicas in "2" or "1-8"."""
    found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text, re.ASCII)
    least = int(found[1]) if found else 0
    most = int(found[2] or found[1]) if found else 0
    if not 1 <= least <= most:
        raise ValueError(f"--replicas is {text!r:.80}; expected a number, such as 2, or a range, such as 1-8.")
    return least, most


def check_gpu_share(share: float | None, *, gpus: bool) -> None:
    """Raise a ValueError if a share of a GPU is none, or if GPUs are not used."""
    if share is None:
        return
    if not 0 < share <= 1:
        raise ValueError(f"--gpu-share is {share:g}; expected more than 0, up to 1.")
    if not gpus:
        raise ValueError("--gpu-share is for replicas on a GPU: leave it out, or serve a checkpoint on cuda.")


def plan_replicas(
    least: int, most: int, gpu_share: float | None, resources: Mapping[str, float], *, gpus: bool = True
) -> Replicas:
    """Return the replicas for a cluster, or raise a ValueError if it has no room for the least number of them.

    Args:
        gpu_share: The share of a GPU for each replica; None to divide the GPUs evenly, if there are any.
        resources: CPU and GPU, the numbers of cores and GPUs in the cluster.
        gpus: Whether to use GPUs.
    """
    check_gpu_share(gpu_share, gpus=gpus)
    cores, found = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    if gpu_share is not None and not found:
        raise ValueError(f"--gpu-share is {gpu_share:g}, but the cluster has no GPU: leave it out, to use the CPU.")
    if gpu_share is None:
        gpu_share = 1 / math.ceil(most / found) if found and gpus else 0.0
    if gpu_share:
        each = math.floor(1 / gpu_share + 1e-6)
        needed = math.ceil(least / each)
        if needed > found:
            raise ValueError(
                f"{least} replicas with {gpu_share:g} of a GPU each need {needed} GPUs, and the cluster has {found}: "
                "give fewer --replicas, or a smaller --gpu-share."
            )
    if least > cores:
        raise ValueError(
            f"{least} replicas need as many cores, and the cluster has {cores}: give fewer --replicas, or start "
            "Ray on more machines."
        )
    return Replicas(least, most, gpu_share)


def build_application(settings: ReplicaSettings, replicas: Replicas) -> Any:
    """Return the application for Ray Serve."""
    from ray import serve

    scaling: dict[str, Any] = {"num_replicas": replicas.least}
    if replicas.most > replicas.least:
        autoscaling = {
            "min_replicas": replicas.least,
            "max_replicas": replicas.most,
            # received, queued and running, and open streams: more than a batch of them, and another replica helps
            "target_ongoing_requests": settings.batch,
            "upscale_delay_s": UPSCALE_SECONDS,
            "downscale_delay_s": DOWNSCALE_SECONDS,
        }
        scaling = {"autoscaling_config": autoscaling}
    limits = settings.limits
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=DEPLOYMENT,
        ray_actor_options={"num_cpus": 1, "num_gpus": replicas.gpu_share},
        # above the limits of the gate, which answers with a sentence and a Retry-After
        max_ongoing_requests=MAX_REQUESTS + limits.queue,
        max_queued_requests=MAX_REQUESTS,
        health_check_period_s=HEALTH_SECONDS,
        health_check_timeout_s=limits.seconds,
        # open requests and streams of a replica that is replaced may go on for this long
        graceful_shutdown_timeout_s=limits.seconds,
        max_constructor_retry_count=START_ATTEMPTS,
        **scaling,
    )
    return deployment.bind(settings)


def is_serving() -> bool:
    """Whether Ray Serve runs on the cluster; its port is then fixed."""
    from ray import serve

    return bool(serve.status().proxies)


def deploy(application: Any, host: str, port: int, *, every_machine: bool) -> None:
    """Start the application, or replace the one that runs replica by replica; return when all replicas are ready."""
    from ray import exceptions, serve

    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    location = "EveryNode" if every_machine else "HeadOnly"
    try:
        serve.start(proxy_location=location, http_options={"host": host, "port": port})
        serve.run(application, name=APPLICATION, route_prefix="/")
    except (RuntimeError, TimeoutError, exceptions.RayError) as error:
        raise OSError(f"The replicas could not be started: {explain_failure(error)}") from None


def explain_failure(error: Exception) -> str:
    """Return the reason why a deployment failed: the last line of a replica's traceback, if there is one."""
    from ray import serve

    failed = serve.status().applications.get(APPLICATION)
    messages = [failed.message, *(part.message for part in failed.deployments.values())] if failed else []
    for message in messages:
        if found := re.findall(r"^(?:\w+\.)*\w+Error: (.+)$", message, re.MULTILINE):
            return str(found[-1])
    return f"{short_error(error)}."


def shut_down() -> None:
    """Stop the replicas and the proxies."""
    from ray import serve

    serve.shutdown()
