"""Replicas on Ray: what they are planned and checked by everywhere, and the real ones where Ray Serve is installed."""

import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest
import torch
from commands import complaint
from exports import moving
from serving import PausableEngine, label_next, small_engine
from waiting import PATIENCE, until

import streamseg
from streamseg.parallel import cluster
from streamseg.parallel.proxy import PROXY_ENVIRONMENT
from streamseg.serve import Limits, RequestGate, ServedModel, replicas
from streamseg.stream.label_frames import label_frames

WINDOW = 3


@pytest.mark.parametrize(("text", "expected"), [("1", (1, 1)), ("12", (12, 12)), ("1-8", (1, 8)), ("3-3", (3, 3))])
def test_replicas_are_a_number_or_a_range(text, expected):
    assert replicas.parse_replicas(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "0-2", "8-1", "two", "1-", "1:8", "1.5", "٣", "99999"])
def test_other_numbers_of_replicas_are_errors(text):
    with pytest.raises(ValueError, match="^--replicas is .*; expected a number, such as 2, or a range, such as 1-8.$"):
        replicas.parse_replicas(text)


@pytest.mark.parametrize(
    ("least", "most", "asked", "resources", "gpus", "share"),
    [
        (2, 2, None, {"CPU": 2.0}, True, 0),
        (1, 8, None, {"CPU": 2.0}, True, 0),
        (2, 2, None, {"CPU": 8.0, "GPU": 1.0}, True, 1 / 2),
        (1, 8, None, {"CPU": 8.0, "GPU": 2.0}, True, 1 / 4),
        (1, 2, None, {"CPU": 8.0, "GPU": 4.0}, True, 1),
        (2, 2, None, {"CPU": 8.0, "GPU": 1.0}, False, 0),
        (3, 9, 0.3, {"CPU": 8.0, "GPU": 1.0}, True, 0.3),
        (10, 10, 0.1, {"CPU": 16.0, "GPU": 1.0}, True, 0.1),
    ],
)
def test_replicas_take_the_share_that_was_asked_for_or_divide_the_gpus(least, most, asked, resources, gpus, share):
    assert replicas.plan_replicas(least, most, asked, resources, gpus=gpus) == replicas.Replicas(least, most, share)


@pytest.mark.parametrize(
    ("least", "share", "resources", "gpus", "sentence"),
    [
        (1, 0.0, {"CPU": 2.0, "GPU": 1.0}, True, "--gpu-share is 0; expected more than 0, up to 1."),
        (1, 1.5, {"CPU": 2.0, "GPU": 2.0}, True, "--gpu-share is 1.5; expected more than 0, up to 1."),
        (1, float("nan"), {"CPU": 2.0, "GPU": 2.0}, True, "--gpu-share is nan; expected more than 0, up to 1."),
        (1, 0.5, {"CPU": 2.0}, True, "--gpu-share is 0.5, but the cluster has no GPU: leave it out, to use the CPU."),
        (1, 0.5, {"CPU": 2.0, "GPU": 1.0}, False, "--gpu-share is for replicas on a GPU: leave it out"),
        (
            3,
            0.5,
            {"CPU": 8.0, "GPU": 1.0},
            True,
            "3 replicas with 0.5 of a GPU each need 2 GPUs, and",
        ),
        # a replica takes its share of one GPU, not of two
        (
            4,
            0.4,
            {"CPU": 8.0, "GPU": 1.6},
            True,
            "4 replicas with 0.4 of a GPU each need 2 GPUs, and",
        ),
        (3, None, {"CPU": 2.0}, True, "3 replicas need as many cores, and the cluster has 2: give fewer --replicas"),
    ],
)
def test_replicas_without_room_are_refused_with_a_sentence(least, share, resources, gpus, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        replicas.plan_replicas(least, least, share, resources, gpus=gpus)


def test_the_command_line_refuses_what_does_not_fit_together(monkeypatch, capsys):
    say = partial(complaint, monkeypatch, capsys, "serve")
    monkeypatch.setattr(replicas, "require_ray_serve", lambda: None)
    assert "--gpu-share is for replicas: give --replicas too" in say("--gpu-share", "0.5")
    assert "--replicas is 'many'; expected a number" in say("--replicas", "many")
    assert "--gpu-share is 2; expected more than 0, up to 1." in say("--replicas", "2", "--gpu-share", "2")
    assert "leave it out, or serve a checkpoint" in say("--replicas", "2", "--gpu-share", "1", "--device", "cpu")
    assert "--source is for one process" in say("--replicas", "2", "--source", "front=rtsp://camera/1")
    assert "--fleet is for one process" in say("--replicas", "2", "--fleet", "fleet.toml")
    assert "--hardware-decoding is for one process" in say("--replicas", "2", "--hardware-decoding", "auto")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Could not listen on 127.0.0.1, port {port} (" in say("--replicas", "2", "--port", port)


@pytest.mark.parametrize("missing", ["ray", "aiohttp"])
def test_without_ray_serve_one_sentence_says_what_to_install(missing, monkeypatch, capsys):
    class Missing:
        """Ray, or what its extra serve adds, is not installed."""

        def find_spec(self, name, path=None, target=None):
            if name == "ray" and missing != "ray":
                raise ModuleNotFoundError(f"No module named {missing!r}", name=f"{missing}.web")
            if name == "ray":
                raise ModuleNotFoundError("No module named 'ray'", name="ray")

    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    shown = complaint(monkeypatch, capsys, "serve", "--replicas", "2")
    assert shown == f"streamseg: --replicas needs {missing}: pip install 'streamseg[ray]'\n"


def test_a_replica_is_unhealthy_if_its_network_hangs_or_its_thread_has_ended(monkeypatch):
    engine, now = PausableEngine(small_engine()), [0.0]
    monkeypatch.setattr(replicas, "monotonic", lambda: now[0])
    served = ServedModel(engine, streamseg.CAMVID, WINDOW, Path("small.onnx"))
    replica = replicas.Replica(replicas.ReplicaSettings(lambda: served, Limits(seconds=30)))
    batcher, frames = replica.gate.batcher, moving(3)
    replica.check_health()
    with engine.pause():
        batcher.submit(frames[0])
        assert engine.called.wait(PATIENCE)
        waiting = batcher.submit(frames[1])
        now[0] = 100.0  # it has just come: however long ago the last check was, the replica is well
        replica.check_health()
        now[0] = 129.0
        replica.check_health()
        now[0] = 131.0
        with pytest.raises(RuntimeError, match="^The oldest frame has waited 31 s: the network hangs.$"):
            replica.check_health()
    waiting.result(PATIENCE)
    replica.check_health()
    replica.gate.close()
    with pytest.raises(RuntimeError, match="thread that labels frames has ended"):
        replica.check_health()


def test_the_gate_of_a_replica_is_that_of_the_server():
    served = ServedModel(small_engine(), streamseg.CAMVID, WINDOW, Path("small.onnx"))
    replica = replicas.Replica(
        replicas.ReplicaSettings(lambda: served, Limits(queue=3, batch_seconds=0.2), "secret", 5)
    )
    gate, limit = replica.gate, replica.gate.batcher.limit
    assert isinstance(gate, RequestGate)
    assert (gate.limits.queue, gate.token, gate.served) == (3, "secret", served)
    assert (limit.max_frames, limit.budget) == (5, 0.2)
    gate.close()


# real replicas


@pytest.fixture(scope="module")
def checkpoints(model, tmp_path_factory):
    """Two networks that label the same pictures differently."""
    folder = tmp_path_factory.mktemp("weights")
    other = streamseg.fanet18(classes=11)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameters in list(other.parameters())[-2:]:
            parameters.copy_(parameters.roll(1, 0))
    for name, network in (("old", model), ("new", other.eval())):
        streamseg.save(network, streamseg.CAMVID, folder / f"{name}.safetensors")
    return {name: folder / f"{name}.safetensors" for name in ("old", "new")}


@pytest.fixture(scope="module")
def joined():
    """A Ray cluster of this machine."""
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'streamseg[ray]'")
    replicas.require_ray_serve()
    with cluster.join_cluster(cluster.LOCAL_CLUSTER, PROXY_ENVIRONMENT):
        yield
        replicas.shut_down()


@pytest.fixture(scope="module")
def port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture(scope="module")
def deploy(joined, port, checkpoints):
    """Deploys a checkpoint by name, and returns its network."""
    from streamseg.cli.serving import open_served

    def deploy(name, least=2, most=2):
        open_model = partial(open_served, checkpoints[name], "cpu", "", WINDOW, False, "bright")
        # one frame a batch: rounding, and with it labels, may depend on the number of frames
        settings = replicas.ReplicaSettings(open_model, Limits(seconds=60), batch=1)
        plan = replicas.plan_replicas(least, most, None, cluster.find_resources(), gpus=False)
        replicas.deploy(replicas.build_application(settings, plan), "127.0.0.1", port, every_machine=False)
        return open_model().engine

    return deploy


@pytest.fixture(scope="module")
def load():
    """The benchmark whose clients compare every answer."""
    sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
    import replicas as benchmark

    return benchmark


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of replicas in /proc")
def test_requests_and_streams_outlive_a_replica_and_an_update(deploy, port, load, checkpoints):
    engine = deploy("old")
    old = load.make_cases(streamseg.load(checkpoints["old"])[0], (64, 96), 4)
    outcomes = load.send_requests(port, old, 120, 4, partial(load.kill_one, os.getpid()))
    assert {*outcomes} <= {load.RIGHT, load.BUSY}
    assert sum(outcomes.values()) == 120
    # the killed replica had one request for each of 4 clients at most
    assert outcomes[load.BUSY] <= 4
    until(lambda: load.replicas_in_metrics(port) == 2)
    check_streams(port, engine)
    check_an_update(deploy, port, load, checkpoints, old)
    check_a_killed_stream(port, load)


def check_streams(port, engine):
    """Each of several streams has the labels that it has alone, and all of its frames are counted by one replica."""
    from websockets.sync.client import connect

    clips = [moving(5), moving(5)[::-1], moving(7)[2:]]
    with ExitStack() as opened:
        addresses = [f"ws://127.0.0.1:{port}/stream?name=camera-{i}" for i in range(3)]
        streams = [opened.enter_context(connect(address)) for address in addresses]
        rows = zip(*clips, strict=True)
        found = [[label_next(stream, frame) for stream, frame in zip(streams, row, strict=True)] for row in rows]
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/metrics")
        counted = connection.getresponse().read().decode().splitlines()
        connection.close()
    for i, (clip, labels) in enumerate(zip(clips, zip(*found, strict=True), strict=True)):
        expected = [expected for _, expected in label_frames(engine, clip, WINDOW)]
        assert all(a.equal(b) for a, b in zip(labels, expected, strict=True)), i
    for i in range(3):
        lines = [line for line in counted if "stream_frames_total{" in line and f'name="camera-{i}"' in line]
        assert [line.rpartition(" ")[2] for line in lines] == ["5"]


def check_an_update(deploy, port, load, checkpoints, old):
    """While replicas are replaced every answer is that of the old network or of the new one, then only of the new."""
    new = load.make_cases(streamseg.load(checkpoints["new"])[0], (64, 96), 4)
    either = [load.EitherCase(a.picture, a.labels, b.labels) for a, b in zip(old, new, strict=True)]
    update = threading.Thread(target=deploy, args=("new",))
    update.start()
    outcomes = load.send_requests(port, either, 100, 2)
    while update.is_alive():
        outcomes += load.send_requests(port, either, 20, 2)
    update.join()
    assert {*outcomes} <= {load.RIGHT, load.BUSY}
    assert outcomes[load.RIGHT] > 0
    assert load.send_requests(port, new, 20, 2) == {load.RIGHT: 20}


def check_a_killed_stream(port, load):
    """A stream whose replica dies is closed with the code of a restart, and can be opened again."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    (frame,) = moving(1)
    with connect(f"ws://127.0.0.1:{port}/stream") as stream:
        label_next(stream, frame)
        for process in load.find_replicas(os.getpid()):
            os.kill(process, signal.SIGKILL)
        with pytest.raises(ConnectionClosed):
            stream.recv(PATIENCE)
        assert stream.close_code == 1012
    until(lambda: load.replicas_in_metrics(port) == 2)
    with connect(f"ws://127.0.0.1:{port}/stream") as stream:
        assert label_next(stream, frame).shape == frame.shape[1:]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of replicas in /proc")
def test_a_replica_is_added_when_many_requests_are_open(deploy, port, load, checkpoints, monkeypatch):
    monkeypatch.setattr(replicas, "UPSCALE_SECONDS", 1.0)
    deploy("old", 1, 2)
    until(lambda: len(load.find_replicas(os.getpid())) == 1)
    cases = load.make_cases(streamseg.load(checkpoints["old"])[0], (64, 96), 4)
    outcomes = {}

    def two_after_more_requests():
        nonlocal outcomes
        outcomes = load.send_requests(port, cases, 60, 6)
        return load.replicas_in_metrics(port) == 2

    until(two_after_more_requests)
    assert {*outcomes} <= {load.RIGHT, load.BUSY}


@pytest.mark.slow
def test_weights_that_a_replica_cannot_open_are_named_in_one_sentence(joined, port, tmp_path):
    from streamseg.cli.serving import open_served

    settings = replicas.ReplicaSettings(
        partial(open_served, tmp_path / "none.safetensors", "cpu", "", None, False, "own"), Limits()
    )
    application = replicas.build_application(settings, replicas.Replicas())
    with pytest.raises(OSError, match="^The replicas could not be started: No weights at .*none.safetensors") as failed:
        replicas.deploy(application, "127.0.0.1", port, every_machine=False)
    assert "\n" not in str(failed.value)
