"""The structure of the package: which folder may import which, and which names are public."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import streamseg
from streamseg.engine import kernels

PACKAGE = Path(streamseg.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")

# a folder, or a module beside the folders, may import from itself and from the lines above it
LAYERS = """
checks classes machine torch_parts
class_table early early_operators palette
io
regions
parallel data models
engine
draw
stream
evaluate
train deploy
serve
cli
__main__
"""

# the only place that imports a third-party package
DOORS = {
    "PIL": "io.captions io.images io.pictures",
    "av": "io.codec_process io.hardware io.live_process io.pyav io.video_reading io.video_streams io.video_writing",
    "cv2": "models.video.dis",
    "cyclopts": "cli",
    "fastapi": "serve",
    "fsspec": "io.stores",
    "h11": "serve",
    "huggingface_hub": "io.hub",
    "matplotlib": "evaluate.plot",
    "numpy": "data.formats io.bgr io.captions io.codec_client io.codec_process io.codec_slots io.images "
    "io.picture_process io.pictures io.pyav io.video_writing regions serve.codecs",
    "onnx": "deploy",
    "onnxruntime": "deploy engine.runtime",  # the one writes files, the other runs them
    "openvino": "deploy engine.runtime",
    "paho": "io.live_lines",
    "pyarrow": "deploy.archive",
    "ray": "parallel.cluster serve.replicas",  # Ray Data, Ray Serve
    "safetensors": "io.tensors",
    "scipy": "data.labels",
    "starlette": "parallel.proxy serve",
    "supervision": "regions.detections",
    "tkinter": "io.display",
    "triton": "engine.kernels",
    "uvicorn": "serve",
    "websockets": "io.live_lines",
}


def imports(path):
    """Yield every module that a file imports, also inside functions."""
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "streamseg":
            yield from (f"streamseg.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def folder_of(path):
    return path.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_one_way(path):
    layers = [line.split() for line in LAYERS.split("\n")]
    own = next(i for i, layer in enumerate(layers) if folder_of(path) in layer)
    below = {name for layer in layers[:own] for name in layer} | {folder_of(path), "__version__"}
    assert {name.split(".")[1] for name in imports(path) if name.startswith("streamseg.")} <= below


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] not in ("cli", "__main__.py")], ids=str)
def test_every_module_has_a_test(path):
    if path.parts[:2] in (("models", "baselines"), ("engine", "kernels"), ("serve", "page"), ("data", "formats")):
        path = path.parent.with_suffix(".py")  # one test file for the whole folder
    assert (Path(__file__).parent / path.parent / f"test_{path.name}").exists()


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_the_baselines_import_only_the_shared_building_blocks(path):
    if path.parts[:2] == ("models", "baselines"):
        parts = ("checks", "models.attention", "models.encoder", "models.layers", "models.baselines")
        ours = (name for name in imports(path) if name.startswith("streamseg."))
        assert all(name.startswith(tuple(f"streamseg.{part}" for part in parts)) for name in ours)


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] == "regions"], ids=str)
def test_regions_need_no_network(path):
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("streamseg.")}
    assert ours <= {"checks", "classes", "io", "regions"}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_third_party_packages_are_imported_in_one_place(path):
    module = ".".join(path.with_suffix("").parts)
    for name in imports(path):
        doors = DOORS.get(name.partition(".")[0], module).split()
        assert any(f"{module}.".startswith(f"{door}.") for door in doors), name


def test_the_public_names_exist_and_are_the_same_for_type_checkers():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname: node.module for node in block.body for alias in node.names}
    assert typed == {name: f"streamseg.{module}" for name, module in streamseg.MODULE_OF.items()}
    for name in streamseg.MODULE_OF:
        assert getattr(streamseg, name) is not None
    assert set(dir(streamseg)) == set(typed)


def test_the_names_of_the_kernels_are_the_same_for_type_checkers():
    tree = ast.parse((PACKAGE / "engine" / "kernels" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname: node.module for node in block.body for alias in node.names}
    assert typed == {name: f"streamseg.engine.kernels.{module}" for name, module in kernels.MODULE_OF.items()}
    for name in kernels.MODULE_OF:
        assert getattr(kernels, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'attention_kernel'"):
        _ = kernels.attention_kernel


def test_the_first_labels_do_not_wait_for_the_import_of_triton():
    program = (
        "import sys, torch, streamseg.engine.open, streamseg.engine.prepare, streamseg.stream.pipeline\n"
        "from streamseg.engine.kernels import backend, blend_labels, to_rgb, to_yuv\n"
        "backend.has_triton()\nsys.exit('triton' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fanet19'"):
        _ = streamseg.fanet19
