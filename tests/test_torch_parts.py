"""Torch without some of its parts: it works, and what uses a part gets it."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec

import pytest
from clips import make_clip
from PIL import Image

from streamseg import early, torch_parts

needs_known = pytest.mark.skipif(not torch_parts.is_known_version(), reason="this version of torch is imported whole")

START = """
import sys
from streamseg import torch_parts

torch_parts.defer_parts()
import torch

def deferred():
    return [isinstance(sys.modules[name], torch_parts.DeferredModule) for name in torch_parts.PARTS]

assert torch.nn.functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)).item() == 9
assert all(deferred()), deferred()
"""
LOADED = "\nassert not any(deferred()), deferred()"

USES = {
    "an attribute": "assert torch.distributions.Normal(0.0, 1.0).mean == 0",
    "an imported name": "from torch.export import Dim; assert Dim('a').__name__ == 'a'",
    "an imported module": "import torch.export.unflatten; assert torch.export.unflatten.UnflattenedModule",
    "all names": "from torch.distributions import *; assert Normal(0.0, 1.0).mean == 0",
    "the compiler": "assert torch.compile(lambda x: x + 1, backend='aot_eager')(torch.ones(2)).sum() == 4",
    "a module that parts import": "import torch._prims; assert torch._prims.__spec__.origin == torch._prims.__file__",
    "a module that is looked for": """
from importlib.util import find_spec
assert find_spec('torch._prims').origin and find_spec('torch._prims').submodule_search_locations
assert find_spec('torch.export').origin
assert all(deferred())
import torch._prims
assert find_spec('torch._prims').origin == torch._prims.__file__
assert type(torch._prims.__loader__) is type(torch._prims.__spec__.loader) is type(torch.nn.__loader__)""",
    "a module of the compiler": "import torch._dynamo",
    "the exporter": """
class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x
assert torch.export.export(Twice(), (torch.ones(2),)).module()(torch.ones(2)).sum() == 4""",
    "threads at the same time": """
from concurrent.futures import ThreadPoolExecutor
sys.setswitchinterval(1e-5)
with ThreadPoolExecutor(8) as pool:
    uses = [lambda: torch.export.Dim, lambda: torch.distributions.Normal] * 4
    assert len({*pool.map(lambda use: use(), uses)}) == 2""",
}


def run_python(*arguments):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@needs_known
@pytest.mark.parametrize("use", USES)
def test_what_uses_a_part_loads_all_of_them(use):
    run_python("-c", START + USES[use] + LOADED)


@needs_known
def test_asking_all_modules_for_their_file_is_no_use():
    run_python(
        "-c",
        START + "import inspect; inspect.getmodule(inspect.currentframe()); assert all(deferred())\n"
        "assert not hasattr(torch.export, '__nothing__')",
    )


@needs_known
@pytest.mark.parametrize("options", [[], ["--steady", "high"], ["--precision", "int8"], ["--tile"]])
def test_segment_loads_none_of_them_for_pictures(options, tmp_path):
    Image.new("RGB", (96, 64)).save(tmp_path / "a.png")
    assert parts_of_segment(tmp_path / "a.png", tmp_path / "out.png", *options) == "deferred"


@needs_known
def test_segment_loads_none_of_them_for_videos(tmp_path):
    make_clip(tmp_path / "a.mp4", 3)
    assert parts_of_segment(tmp_path / "a.mp4", tmp_path / "out.mp4") == "deferred"


# whether the parts are there at the end
SEGMENT = """
import os, sys
from streamseg import __main__, cli, torch_parts

run_program = cli.run_program

def run_and_tell():
    try:
        run_program()
    finally:
        with open(os.environ["PARTS"], "w") as file:
            file.write("deferred" if torch_parts.are_deferred() and "torch._prims" not in sys.modules else "loaded")

cli.run_program = run_and_tell
__main__.run_program()
"""


def parts_of_segment(source, out, *options):
    """Return "deferred" or "loaded": what the parts of torch are after a run of segment."""
    file = out.parent / "parts"
    done = subprocess.run(
        [sys.executable, "-c", SEGMENT, "segment", str(source), "-o", str(out), "--device", "cpu", *options],
        env=os.environ | {"PARTS": str(file)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert out.exists()
    return file.read_text(encoding="utf-8")


def test_torch_is_imported_whole_in_an_unknown_version_and_left_alone_once_imported(monkeypatch):
    before = {name: sys.modules.get(name) for name in torch_parts.PARTS}
    torch_parts.defer_parts()  # these tests have imported it
    assert {name: sys.modules.get(name) for name in torch_parts.PARTS} == before
    monkeypatch.delitem(sys.modules, "torch")
    for unknown in ("2.110.0", None):  # None: the installation is damaged
        monkeypatch.setattr(torch_parts, "version", lambda name, unknown=unknown: unknown)
        torch_parts.defer_parts()
        assert {name: sys.modules.get(name) for name in torch_parts.PARTS} == before


def test_without_torch_nothing_is_deferred(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    before = dict(sys.modules)
    monkeypatch.setattr(torch_parts, "version", missing)
    monkeypatch.delitem(sys.modules, "torch")
    torch_parts.defer_parts()
    assert sys.modules == {name: module for name, module in before.items() if name != "torch"}


@needs_known
def test_a_network_is_made_without_data_and_moved_without_them():
    run_python(
        "-c",
        START + "with torch.device('meta'): layer = torch.nn.Conv2d(3, 8, 3)\n"
        "layer.to_empty(device='cpu'); assert all(deferred())",
    )


@needs_known
def test_torch_imports_what_is_imported_while_its_libraries_are_loaded():
    installed = {name for name in early.TORCH_MODULES if find_spec(name)}
    run_python("-c", f"import sys, torch; assert {{*sys.modules}} >= {installed}")
