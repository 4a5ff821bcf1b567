"""The verb serve on a Ray cluster: several replicas of the server behind one address."""

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamseg.cli.messages import open_messages, print_error

if TYPE_CHECKING:
    from streamseg.serve import Limits, ServedModel


def serve_replicas(
    open_model: "Callable[[], ServedModel]",
    limits: "Limits",
    *,
    host: str,
    port: int,
    token: str,
    batch: int,
    count: str,
    gpu_share: float | None,
    gpus: bool,
    address: str,
    quiet: bool,
) -> int:
    """Serve with replicas on a Ray cluster; return the exit status.

    On a cluster of this machine only, until a signal; on one that runs already the replicas stay, and the same command
    replaces them one after the other.

    Args:
        count: The number of replicas, such as 2, or a range, such as 1-8.
        gpu_share: As gpus, see plan_replicas.
        address: The address of the cluster; see cluster.join_cluster.
    """
    from streamseg.parallel import cluster
    from streamseg.parallel.proxy import PROXY_ENVIRONMENT
    from streamseg.serve import replicas

    replicas.require_ray_serve()
    least, most = replicas.parse_replicas(count)
    replicas.check_gpu_share(gpu_share, gpus=gpus)
    local = address == cluster.LOCAL_CLUSTER
    if local:
        port, private = check_address(host, port)
    weights = open_model().weights.name  # as each replica will do: errors show at once
    settings = replicas.ReplicaSettings(open_model, limits, token, batch)
    with cluster.join_cluster(address, PROXY_ENVIRONMENT):
        plan = replicas.plan_replicas(least, most, gpu_share, cluster.find_resources(), gpus=gpus)
        running = replicas.is_serving()
        if not (local or running):
            port, private = check_address(host, port)
        replicas.deploy(replicas.build_application(settings, plan), host, port, every_machine=not local)
        shown = f"{'[' + host + ']' if ':' in host else host}:{port}"
        number = f"{least} to {most} replicas" if most > least else f"{least} replica{'s' if least > 1 else ''}"
        messages = open_messages(quiet)
        if running:
            print(f"{number} of {weights} replaced those that ran, at the same address.", file=messages)
        else:
            end = "Ctrl-C stops them." if local else "serve shutdown stops them."
            print(f"http://{shown} serves {weights} with {number}. {end}", file=messages, flush=True)
        if not (token or running or private):
            print_error("Everybody who can reach this machine can use the server: give --token to restrict it.")
        if not local:
            return 0
        caught = wait_for_signal()
        replicas.shut_down()
    return 128 + caught


def check_address(host: str, port: int) -> tuple[int, bool]:
    """Return a port that is free on this machine, and whether only this machine can connect to it."""
    from streamseg import serve as server

    with server.listen(host, port) as listening:
        return listening.getsockname()[1], server.is_private(listening)


def wait_for_signal() -> int:
    """Wait for Ctrl-C or SIGTERM; return the number of the signal."""
    caught: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: caught.append(number))
    stop = threading.Event()
    while not caught:
        stop.wait(0.2)  # a wait without end would not let the handlers run on Windows
    return caught[0]
