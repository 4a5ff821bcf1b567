import socket
import subprocess
import sys
import time

import pytest

from streamseg import cli, cluster


def test_without_ray_one_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(cluster, "find_spec", lambda name: None if name == "ray" else name)
    monkeypatch.setattr(sys, "argv", ["streamseg", "segment", "a.mp4", "out", "--ray"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == "streamseg: --ray needs ray: pip install 'streamseg[distributed]'\n"


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_a_cluster_that_is_not_there_is_told_of_in_time(prefix, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 2.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"{prefix}127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"^No Ray cluster answers at {address} within 2 s: is it running"):
            cluster.check_answers(address)


def test_another_server_is_no_cluster(monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        began = time.monotonic()
        with pytest.raises(ConnectionError, match="^No Ray cluster answers at 127.0.0.1:"):
            cluster.check_answers(f"127.0.0.1:{other.getsockname()[1]}")
        assert time.monotonic() - began < 10


def test_a_cluster_that_wants_a_token_says_so(monkeypatch):
    def refuse(command, **options):
        raise subprocess.CalledProcessError(1, command, stderr=b"ray.exceptions.AuthenticationError: RPC error")

    monkeypatch.setattr(subprocess, "run", refuse)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"^The Ray cluster at {address} wants a token: set RAY_AUTH_MODE"):
            cluster.check_answers(address)


@pytest.mark.parametrize("address", ["nowhere", "host:port", ":6379", "host:99999"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="expected local, auto, HOST:PORT or ray://HOST:PORT.$"):
        cluster.check_answers(address)
