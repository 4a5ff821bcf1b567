import re
import sys
from pathlib import Path

import pytest
from serving import running as running

from streamseg import cli
from streamseg.serve import page


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/segment", 405, "This address does not accept this method: see /docs."),
        ("/stream", 426, "/stream is a WebSocket: see /docs."),
        ("/nowhere", 404, "No such address: see /docs."),
        ("/samples/..%2f..%2fpyproject.toml", 404, "No such address: see /docs."),
        ("/library/1.30.0/..%2f..%2f__init__.py", 404, "No such address: see /docs."),
        ("/__init__.py", 404, "No such address: see /docs."),
    ],
)
def test_a_wrong_address_gets_a_status_and_a_sentence(running, path, status, sentence):
    answer = running.ask(path)
    assert (answer.status, answer.json) == (status, {"error": sentence})


def test_the_page_loads_nothing_from_other_servers(running):
    answer = running.ask("/")
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-embedder-policy"] == "require-corp"
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
    for path in page.PAGE.glob("*.[hcjs]*"):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"(?:https?:)?//[a-z]", text) == [], path
        assert running.ask(f"/{path.name}").body == path.read_bytes()
    assert running.ask("/docs").body == (page.PAGE / "docs.html").read_bytes()


def test_openapi_lists_the_addresses_for_programs(running):
    paths = running.ask("/openapi.json").json["paths"]
    streams = {"/streams", "/streams/{name}.jpg", "/streams/{name}.mjpeg", "/streams/{name}/zones"}
    streams |= {"/streams/{name}/hls/stream.m3u8", "/streams/{name}/hls/{segment}"}
    saved = {"/zones", "/zones/{name}", "/data/{name}"}
    assert {*paths} == {"/segment", "/healthz", "/metrics", "/info", "/browser", "/model.onnx"} | streams | saved
    assert {*paths["/segment"]["post"]["responses"]} >= {"200", "400", "401", "406", "408", "413", "415", "503"}


def test_info_names_the_classes_and_the_samples(running):
    info = running.ask("/info").json
    assert info["classes"][1] == {"name": "Building", "colour": "#800000"}
    assert info["drawn"][1] == "#800000"
    assert running.ask(f"/samples/{info['samples'][0]}").headers["content-type"] == "image/jpeg"
    assert (info["sources"], info["saves"]) == ([], False)


def test_a_running_server_is_healthy(running):
    assert running.ask("/healthz").json == {"status": "ok"}


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/healthz", 200), ("/segment", 405), ("/nowhere", 404)])
def test_a_head_request_gets_the_headers_of_a_get(running, path, status):
    head, get = running.ask(path, method="HEAD"), running.ask(path)
    assert (head.status, head.body) == (status, b"")
    assert head.headers["content-length"] == str(len(get.body))
    assert head.headers["content-type"] == get.headers["content-type"]


def test_the_options_and_addresses_in_the_document_on_serving_exist(running, monkeypatch, capsys):
    document = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    monkeypatch.setattr(sys, "argv", ["streamseg", "serve", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    known = capsys.readouterr().out + "--data-binary"  # of curl
    for option in re.findall(r"(?<!-)--[a-z][a-z-]*", document):
        assert option in known, option
    addresses = re.findall(r"^curl localhost:8000(/[a-z.]+)", document, re.MULTILINE)
    paths = [path for path in running.ask("/openapi.json").json["paths"] if "{" not in path]
    assert {*addresses} > {*paths}
