import re
import sys

import pytest
from exports import exported as exported
from serving import WINDOW, run_server

from streamseg.serve import page


@pytest.fixture
def no_library(tmp_path, monkeypatch):
    """A machine without onnxruntime-web and offline."""
    monkeypatch.setattr(page, "BUNDLED_LIBRARY", tmp_path / "none" / "library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:9")
    return tmp_path


@pytest.fixture
def library(no_library):
    """A machine with files in the place of onnxruntime-web, and offline."""
    (no_library / "none" / "library").mkdir(parents=True)
    for name in page.LIBRARY_FILES:
        (no_library / "none" / "library" / name).write_text(name)
    return no_library


def test_a_browser_is_told_that_the_library_is_missing(no_library, exported):
    with run_server(weights=exported("any.onnx")) as running:
        answer = running.ask("/browser")
        assert answer.status == 503
        sentence = answer.json["error"]
        assert sentence.startswith("The network cannot run in your browser: onnxruntime-web could not be downloaded")
        assert sentence.endswith("and run: python -m streamseg.serve.page")
        assert running.ask(f"/library/{page.VERSION}/{page.LIBRARY_FILES[0]}").status == 404


def test_a_browser_is_told_that_it_cannot_run_a_file(library):
    with run_server(weights=library / "model.xml") as running:
        answer = running.ask("/browser")
        assert (answer.status, answer.headers.get("retry-after")) == (404, None)
        assert answer.json["error"] == "model.xml cannot run in a browser: serve a checkpoint or an .onnx file."
        assert running.ask("/model.onnx").status == 404


def test_a_browser_gets_the_onnx_file_that_is_served(library, exported):
    with run_server(weights=exported("any.onnx")) as running:
        description = running.ask("/browser").json
        assert (description["size"], description["averages"], description["window"]) == (None, True, WINDOW)
        assert description["min_side"] == 65
        assert [tuple(shape) for shape in description["state"]] == [(8, 64), (8, 128), (8, 256), (8, 512)]
        assert running.ask(f"/{description['model']}").body == exported("any.onnx").read_bytes()
        file = running.ask(f"/{description['library']}/{page.LIBRARY_FILES[0]}")
        assert file.body == page.LIBRARY_FILES[0].encode()
        assert file.headers["content-type"].startswith("text/javascript")


def test_a_checkpoint_is_exported_for_browsers_once(library, exported, monkeypatch):
    """A script takes the place of export, which takes half a minute and has its own tests."""
    weights = library / "weights.safetensors"
    weights.write_bytes(b"weights")
    program = library / "python"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {library}/calls\n'
        f'[ -e {library}/broken ] && echo "streamseg: It went wrong." >&2 && exit 2\n'
        f'cp {exported("any.onnx")} "$5"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    (library / "broken").touch()
    with run_server(weights=weights) as running:
        sentence = running.ask("/browser").json["error"]
        assert sentence == "The network cannot run in your browser: It went wrong."
    (library / "broken").unlink()
    for _ in range(2):
        with run_server(weights=weights) as running:
            address = f"/{running.ask('/browser').json['model']}"
            assert running.ask(address).body == exported("any.onnx").read_bytes()
    with run_server(weights=weights) as another_replica:
        assert another_replica.ask(address).body == exported("any.onnx").read_bytes()
    calls = (library / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert re.fullmatch(rf"-m streamseg export {weights} {library}/cache/streamseg/\w+\.onnx --video", calls[0])
