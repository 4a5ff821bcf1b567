import socket
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from streamseg import cli
from streamseg.parallel import cluster


def test_without_ray_one_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(cluster, "find_spec", lambda name: None if name == "ray" else name)
    monkeypatch.setattr(sys, "argv", ["streamseg", "segment", "a.mp4", "out", "--ray"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == "streamseg: --ray needs ray: pip install 'streamseg[distributed]'\n"


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_a_cluster_that_is_not_there_is_told_of_in_time(prefix, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 2.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"{prefix}127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"^No Ray cluster answers at {address} within 2 s: is it running"):
            cluster.check_cluster_answers(address)


def test_another_server_is_no_cluster(monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="^No Ray cluster answers at 127.0.0.1:"):
            cluster.check_cluster_answers(address)

        def wait(command, timeout, **options):
            assert (command[-1], timeout) == (address, 2.0)
            raise subprocess.TimeoutExpired(command, timeout)

        # nor is a program waited for that asks it and hears nothing
        monkeypatch.setattr(subprocess, "run", wait)
        with pytest.raises(ConnectionError, match="^No Ray cluster answers at 127.0.0.1:"):
            cluster.check_cluster_answers(address)


def test_a_cluster_that_wants_a_token_says_so(monkeypatch):
    def refuse(command, **options):
        raise subprocess.CalledProcessError(1, command, stderr=b"ray.exceptions.AuthenticationError: RPC error")

    monkeypatch.setattr(subprocess, "run", refuse)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"^The Ray cluster at {address} requires a token: set RAY_AUTH_MODE"):
            cluster.check_cluster_answers(address)


@pytest.mark.parametrize("address", ["nowhere", "host:port", ":6379", "host:99999"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="expected local, auto, HOST:PORT or ray://HOST:PORT.$"):
        cluster.check_cluster_answers(address)


class Died(Exception):  # noqa: N818 (no error, but what becomes of a worker)
    """The process of a worker is gone."""


class FakeRay:
    """Ray Data in this process: rows go to workers one by one; one that dies is begun again as often as was told."""

    def __init__(self, **resources):
        self.context = SimpleNamespace(max_errored_blocks=0)
        self.resources, self.options = resources, {}
        data = SimpleNamespace(
            DataContext=SimpleNamespace(get_current=lambda: self.context),
            ActorPoolStrategy=SimpleNamespace,
            from_items=self.from_items,
        )
        self.module = SimpleNamespace(
            data=data, cluster_resources=lambda: resources, exceptions=SimpleNamespace(RayError=LookupError)
        )

    def from_items(self, rows, override_num_blocks):
        self.rows, self.blocks = rows, override_num_blocks
        return self

    def map(self, worker, *, fn_constructor_args, compute, num_cpus, num_gpus, max_task_retries):
        self.make, self.tries = lambda: worker(*fn_constructor_args), max_task_retries + 1
        self.workers, self.in_flight, self.gpus = compute.size, compute.max_tasks_in_flight_per_actor, num_gpus
        return self

    def iter_rows(self):
        for row in self.rows:
            for _ in range(self.tries):
                try:
                    yield self.make()(row)
                    break
                except Died:
                    continue
                except Exception as error:
                    if self.context.max_errored_blocks != -1:
                        raise RuntimeError from error
                    break


@pytest.fixture
def fake(monkeypatch):
    def install(**resources):
        found = FakeRay(**resources)
        monkeypatch.setitem(sys.modules, "ray", found.module)
        monkeypatch.setitem(sys.modules, "ray.data", found.module.data)
        return found

    return install


def test_work_whose_worker_dies_is_begun_again_and_a_failure_costs_no_other(fake):
    begun = Counter()

    class Worker:
        def __init__(self, factor, device):
            self.factor, self.device = factor, device

        def __call__(self, row):
            begun[row["number"]] += 1
            if begun[row["number"]] <= row["deaths"]:
                raise Died
            if row["number"] == 3:
                raise ValueError("it is damaged")
            return {"number": self.factor * row["number"], "device": self.device}

    fake(CPU=4.0)
    rows = [{"number": number, "deaths": deaths} for number, deaths in ((1, 0), (2, 1), (3, 0), (4, 2), (5, 9), (6, 0))]
    found = list(cluster.map_on_cluster(Worker, (10,), rows, gpus=True))
    assert [row["number"] for row in found] == [10, 20, 40, 60]
    assert {row["device"] for row in found} == {"cpu"}
    assert begun == {1: 1, 2: 2, 3: 1, 4: 3, 5: cluster.MAX_ATTEMPTS, 6: 1}


@pytest.mark.parametrize(
    ("resources", "rows", "gpus", "workers", "share"),
    [
        ({"CPU": 4.0}, 9, True, 4, 0),
        ({"CPU": 4.0}, 3, True, 3, 0),
        ({"CPU": 64.0, "GPU": 2.0}, 99, True, 2 * cluster.WORKERS_PER_GPU, 1 / cluster.WORKERS_PER_GPU),
        ({"CPU": 64.0, "GPU": 2.0}, 99, False, 64, 0),
    ],
)
def test_there_are_as_many_workers_as_there_is_work_and_room_for(fake, resources, rows, gpus, workers, share):
    class Worker:
        def __init__(self, device):
            self.device = device

        def __call__(self, row):
            return {"device": self.device}

    ray = fake(**resources)
    found = list(cluster.map_on_cluster(Worker, (), [{"number": i} for i in range(rows)], gpus=gpus))
    assert (ray.workers, ray.in_flight, ray.gpus, ray.blocks) == (workers, 1, share, rows)
    assert [row["device"] for row in found] == ["cuda:0" if share else "cpu"] * rows
