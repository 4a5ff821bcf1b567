"""The package's own order: who may import whom, and which names are public."""

import ast
from pathlib import Path

import pytest

import streamseg

PACKAGE = Path(streamseg.__file__).parent
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__"))
MODULES += sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))

# imports point from right to left
LAYERS = [
    [
        "checks",
        "checksums",
        "classes",
        "config",
        "containers",
        "counters",
        "files",
        "kernels",
        "layers",
        "machine",
        "paper",
        "rounding",
        "scratch",
        "signals",
        "sizes",
        "web",
    ],
    [
        "attention",
        "augment",
        "convolutions",
        "crew",
        "deadline",
        "distributed",
        "images",
        "latency",
        "losses",
        "metrics",
        "onnx_int8",
        "page",
        "restart",
        "show",
        "tensors",
    ],
    ["cluster", "draw", "encoder", "labels", "stores", "video"],
    ["layouts", "model", "peers", "plot", "sources"],
    ["datasets", "results", "tiles"],
    ["check", "checkpoint", "feed", "folded", "runlog", "shards", "trainee"],
    ["engines"],
    ["stream"],
    ["batches", "fast", "runtime"],
    ["benchmark", "evaluate", "pipeline"],
    ["archive", "evaluate_video"],
    ["export", "reproduce", "train"],
    ["serve"],
    ["cli"],
]

# third-party packages that live behind one door, or two
DOORS = {
    "PIL": "images",
    "av": "video",
    "fastapi": "serve",
    "fsspec": "stores",
    "h11": "serve",
    "matplotlib": "plot",
    "numpy": "images",
    "onnx": "export onnx_int8",
    "onnxruntime": "export onnx_int8 runtime",  # the one writes files, the other runs them
    "openvino": "export runtime",
    "pyarrow": "archive",
    "ray": "cluster",
    "safetensors": "tensors",
    "scipy": "labels",
    "starlette": "serve",
    "tkinter": "show",
    "triton": "kernels",
    "tyro": "cli",
    "uvicorn": "serve",
}


def imports(module):
    """Every module that a module, or any file of a folder, imports, in functions too."""
    files = [PACKAGE / f"{module}.py"] if (PACKAGE / f"{module}.py").exists() else (PACKAGE / module).glob("*.py")
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "streamseg":
            yield from (f"streamseg.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_every_module_has_a_layer_and_a_test():
    assert sorted(module for layer in LAYERS for module in layer) == sorted(MODULES)
    for module in MODULES:
        assert (Path(__file__).parent / f"test_{module}.py").exists(), module


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module):
    layer = next(i for i, layer in enumerate(LAYERS) if module in layer)
    below = {f"streamseg.{name}" for lower in LAYERS[:layer] for name in lower}
    ours = {name for name in imports(module) if name.startswith("streamseg.")}
    assert {name for name in ours if not f"{name}.".startswith(f"streamseg.{module}.")} <= below


def test_the_rivals_are_built_from_the_shared_parts_alone():
    ours = {name for name in imports("peers") if name.startswith("streamseg.")}
    assert {name for name in ours if not name.startswith("streamseg.peers.")} <= {
        f"streamseg.{name}" for name in ("attention", "checks", "encoder", "layers")
    }


@pytest.mark.parametrize("module", MODULES)
def test_third_party_packages_live_behind_one_door(module):
    for name in imports(module):
        package = name.partition(".")[0]
        assert module in DOORS.get(package, module).split()


def test_the_public_names_exist_and_are_the_same_for_type_checkers():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname: node.module for node in block.body for alias in node.names}
    assert typed == {name: f"streamseg.{module}" for name, module in streamseg.MODULE_OF.items()}
    for name in streamseg.MODULE_OF:
        assert getattr(streamseg, name) is not None
    assert set(dir(streamseg)) == set(typed)


def test_a_name_that_does_not_exist_says_so():
    with pytest.raises(AttributeError, match="no attribute 'fanet19'"):
        _ = streamseg.fanet19
