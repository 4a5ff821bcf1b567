"""The files of deploy/ and the clients of examples/clients, with a real server."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from clips import make_clip
from serving import FRAME, PICTURE, read_labels, run_server, running as running
from websockets.sync.client import connect

from streamseg.serve import Limits

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'streamseg[docs]'")

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
BOARD = json.loads((DEPLOY / "grafana/boards/streamseg.json").read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def read_yaml(path):
    return yaml.safe_load((DEPLOY / path).read_text())


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """The metrics of a server that reads a source, has answered a picture and a frame of a stream, and refused one."""
    clip = tmp_path_factory.mktemp("clip") / "in.mp4"
    make_clip(clip, 3)
    with run_server(sources={"yard": str(clip)}) as server:
        assert server.ask("/segment", PICTURE).status == 200
        with connect(server.stream + "?name=front") as stream:
            stream.send(PICTURE)
            stream.recv()
            stream.recv()
            text = server.ask("/metrics").body.decode()
    with run_server(Limits(queue=0)) as busy:
        assert busy.ask("/segment", PICTURE).status == 503
        return text + busy.ask("/metrics").body.decode()


def test_each_metric_on_the_board_is_one_of_the_server(metrics):
    known = {*re.findall(r"^# TYPE (\w+) \w+$", metrics, re.MULTILINE)}
    histograms = {*re.findall(r"^# TYPE (\w+) histogram$", metrics, re.MULTILINE)}
    known |= {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    shown = {name for expression in EXPRESSIONS for name in re.findall(r"\bstreamseg_\w+", expression)}
    assert len(shown) >= 12
    assert shown <= known - histograms


def test_each_label_on_the_board_is_one_of_its_metrics(metrics):
    for expression in EXPRESSIONS:
        for by, metric, selected in re.findall(r"sum by \(([\w, ]+)\) \(rate\((\w+)(\{[^}]*\})?", expression):
            wanted = {*by.split(", ")} | {*re.findall(r"(\w+)=", selected)}
            [line, *_] = re.findall(rf"^{metric}\{{(.*)\}} ", metrics, re.MULTILINE)
            assert wanted <= {*re.findall(r'(\w+)="', line)}, metric
    legends = [target["legendFormat"] for panel in BOARD["panels"] for target in panel["targets"]]
    for expression, legend in zip(EXPRESSIONS, legends, strict=True):
        assert all(re.search(rf"\bby \([^)]*\b{name}\b", expression) for name in re.findall(r"\{\{(\w+)\}\}", legend))


def test_the_panels_of_the_board_do_not_overlap_and_say_what_they_show():
    cells = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own
        assert panel["title"]
        assert panel["description"]
        assert all(target["datasource"]["uid"] == "prometheus" for target in panel["targets"])
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_the_services_find_each_other_and_their_files():
    services = COMPOSE["services"]
    [scrape] = read_yaml("prometheus.yaml")["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["server:8000"]}]
    assert scrape["authorization"] == {"credentials_file": "/run/secrets/token"}
    assert COMPOSE["secrets"] == {"token": {"environment": "STREAMSEG_TOKEN"}}
    assert services["prometheus"]["secrets"] == ["token"]
    assert f'up{{job="{scrape["job_name"]}"}}' in EXPRESSIONS
    [source] = read_yaml("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert (source["url"], source["uid"]) == ("http://prometheus:9090", "prometheus")
    [provider] = read_yaml("grafana/provisioning/dashboards/boards.yaml")["providers"]
    mounts = [volume.split(":") for service in services.values() for volume in service.get("volumes", ())]
    boards = {target: name for name, target, *_ in mounts if name.startswith("./")}
    assert all((DEPLOY / name).exists() for name in boards.values())
    folder = DEPLOY / boards[provider["options"]["path"]]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / Path(home).name).is_file()
    assert (DEPLOY / services["server"]["build"]["context"] / "Dockerfile").is_file()
    named = {name for name, *_ in mounts if re.fullmatch(r"\w+", name)} | {"weights"}
    assert named == {*COMPOSE["volumes"]}


def test_only_the_server_is_reached_from_other_machines_and_it_needs_a_token():
    services = COMPOSE["services"]
    assert [port for name in services if name != "server" for port in services[name].get("ports", ())] == [
        "127.0.0.1:3000:3000"
    ]
    assert services["server"]["environment"]["STREAMSEG_TOKEN"].startswith("${STREAMSEG_TOKEN:?")
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", services[name]["image"])


CLIENTS = {
    "segment.py": [sys.executable],
    "segment.mjs": ["node"],
    "Segment.java": ["java"],
    "segment.sh": ["sh"],
}


UNUSED_PORT = 9  # discard, which no machine of today serves


def run_client(name, port, *pictures, token=""):
    program = CLIENTS[name][0]
    needed = {"segment.sh": ("sh", "curl")}.get(name, (program,))
    for each in needed:
        if shutil.which(each) is None:
            pytest.skip(f"{each} is not installed")
    if name.endswith(".mjs"):
        version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
        if int(re.match(r"v(\d+)", version)[1]) < 18:
            pytest.skip(f"node is {version.strip()}, expected 18 or newer")
    if name.endswith(".java"):
        version = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
        if int(re.search(r'version "(\d+)', version)[1]) < 17 or shutil.which("javac") is None:
            pytest.skip("the JDK is older than 17, or has no compiler")
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return subprocess.run(
        [*CLIENTS[name], str(ROOT / "examples/clients" / name), f"http://127.0.0.1:{port}/", *map(str, pictures)],
        capture_output=True,
        text=True,
        env=environment | {"STREAMSEG_TOKEN": token},
        timeout=120,
        check=False,
    )


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "my street.png"
    path.write_bytes(PICTURE)
    return path


@pytest.fixture(scope="module")
def guarded():
    with run_server(token="secret") as server:
        yield server


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gets_the_shares_and_the_labels(name, guarded, picture):
    done = run_client(name, guarded.port, picture, token="secret")
    assert done.returncode == 0, done.stderr
    answer = guarded.ask("/segment", PICTURE, Accept="application/json", Authorization="Bearer secret")
    shares = {entry["name"]: entry["share"] for entry in answer.json["classes"] if entry["share"]}
    if name == "segment.sh":
        shown = {entry["name"]: entry["share"] for entry in json.loads(done.stdout)["classes"] if entry["share"]}
        assert shown == shares
    else:
        shown = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
        assert {*shown} == {*shares}
        for label, share in shares.items():
            assert abs(float(shown[label].removesuffix("%")) - 100 * share) <= 0.051
    labels = read_labels((picture.parent / "my street-labels.png").read_bytes())
    expected = guarded.ask("/segment", PICTURE, Authorization="Bearer secret").body
    assert torch.equal(labels, read_labels(expected))
    assert labels.shape == FRAME.shape[1:]
    assert sorted(path.name for path in picture.parent.iterdir()) == ["my street-labels.png", "my street.png"]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_says_what_the_server_says(name, guarded, picture):
    done = run_client(name, guarded.port, picture, token="wrong")
    assert done.returncode == 1
    assert done.stderr.startswith("401: ")
    picture.write_bytes(b"no picture")
    done = run_client(name, guarded.port, picture, token="secret")
    assert done.returncode == 1
    assert done.stderr.startswith("415: ")
    assert "send a PNG, JPEG" in done.stderr
    assert [path.name for path in picture.parent.iterdir()] == ["my street.png"]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_says_what_is_missing(name, picture):
    done = run_client(name, UNUSED_PORT, picture)
    assert done.returncode == 1
    assert f"http://127.0.0.1:{UNUSED_PORT}" in done.stderr
    assert "cannot be reached" in done.stderr
    assert done.stderr.endswith("start it with streamseg serve.\n")
    for pictures in ((), (picture.parent / "nowhere.png",)):
        done = run_client(name, UNUSED_PORT, *pictures)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("Give the address of a server and a picture: ")
    assert [path.name for path in picture.parent.iterdir()] == ["my street.png"]


def test_the_addresses_that_the_clients_use_are_in_the_description(running):
    described = running.ask("/openapi.json").json["paths"]
    for name in CLIENTS:
        text = (ROOT / "examples/clients" / name).read_text()
        assert "/segment" in text
        assert "/openapi.json" in text
    answers = described["/segment"]["post"]["responses"]["200"]["content"]
    assert {"image/png", "application/json"} <= {*answers}
    assert "503" in described["/segment"]["post"]["responses"]
