"""The package on other systems than Linux, without optional libraries, and in an editable install."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from commands import complaint, run

import streamseg
from streamseg.io import stores

PACKAGE = Path(streamseg.__file__).parent
ROOT = PACKAGE.parent

# modules of Python that only Unix has
UNIX = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")

# a program that imports every module of the package while these modules and all optional libraries are missing
ELSEWHERE = """
import importlib, pkgutil, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
for name in {missing}:
    sys.modules.pop(name, None)
import streamseg
for module in pkgutil.walk_packages(streamseg.__path__, "streamseg."):
    if not module.name.startswith("streamseg.serve") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import streamseg.train.runlog, streamseg.io.stores, streamseg.cli
print(streamseg.train.runlog.peak_memory.__name__)
"""


@pytest.mark.slow
def test_every_module_can_be_imported_without_unix_modules_and_optional_libraries():
    missing = (
        *UNIX,
        "av",
        "cv2",
        "fsspec",
        "matplotlib",
        "onnx",
        "onnxruntime",
        "openvino",
        "pyarrow",
        "ray",
        "scipy",
        "triton",
    )
    program = ELSEWHERE.format(missing=missing)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "peak_memory"


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_text_file_is_read_and_written_with_an_explicit_encoding(module):
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        mode = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        text = node.func.attr == "open" and mode in ("r", "w", "a", "x")
        if node.func.attr in ("read_text", "write_text") or text:
            assert "encoding" in [keyword.arg for keyword in node.keywords], f"{module}:{node.lineno}"


def test_local_files_need_no_fsspec_and_remote_ones_say_what_to_install(tmp_path, monkeypatch):
    for name in {"fsspec", *(name for name in sys.modules if name.startswith("fsspec."))}:
        monkeypatch.setitem(sys.modules, name, None)
    stores.write_text(f"{tmp_path}/new/text", "straße")
    assert stores.read_text(f"{tmp_path}/new/text") == "straße"
    assert stores.read_text(f"{tmp_path}/nothere") is None
    assert stores.read_range(f"{tmp_path}/new/text", 1, 3) == b"tra"
    with pytest.raises(OSError, match="cannot be read"):
        stores.read_range(f"{tmp_path}/nothere", 0, 1)
    for use in (stores.open_store, stores.read_text, lambda address: stores.read_range(address, 0, 1)):
        with pytest.raises(ImportError, match=r"s3://bucket/x needs fsspec: pip install 'streamseg\[stores\]'"):
            use("s3://bucket/x")


def test_every_imported_library_is_declared_in_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = sum(project["optional-dependencies"].values(), project["dependencies"])
    names = {word.split(">")[0].split("<")[0].split("[")[0].replace("-", "_").lower() for word in declared}
    names |= {"pil" if name == "pillow" else name for name in names}
    comes_with = {"starlette": "fastapi", "h11": "uvicorn", "triton": "torch", "tkinter": "python", "pandas": "ray"}
    comes_with |= {"cv2": "opencv_python_headless"}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for package in {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"streamseg"}:
                assert package.lower() in names or package in comes_with, f"{file} imports {package}"


# STREAMSEG_DEBUG


def test_an_error_is_one_sentence_unless_debugging_is_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STREAMSEG_DEBUG", raising=False)
    assert "Nothing at nothere.jpg" in complaint(monkeypatch, capsys, "segment", "nothere.jpg")
    monkeypatch.setenv("STREAMSEG_DEBUG", "0")
    assert "Nothing at nothere.jpg" in complaint(monkeypatch, capsys, "segment", "nothere.jpg")
    monkeypatch.setenv("STREAMSEG_DEBUG", "1")
    with pytest.raises(FileNotFoundError, match="Nothing at nothere.jpg"):
        run(monkeypatch, "segment", "nothere.jpg")


def test_out_of_memory_is_raised_when_debugging_is_on(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMSEG_DEBUG", "1")

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("streamseg.train.loop.train", full)
    with pytest.raises(torch.OutOfMemoryError):
        run(monkeypatch, "train", "folder-18", "--data", tmp_path, "--out", tmp_path / "run", "--device", "cpu")


# editable installs


def test_an_editable_install_is_a_path_and_needs_no_import_hook():
    """Import hooks come after all folders on the path.

    With a hook, Python started beside the clone would import the clone's folder as an empty namespace package.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert settings["package-dir"] == {"": "."}
    assert settings["packages"] == {"find": {"include": ["streamseg", "streamseg.*"]}}
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        assert (folder / "__init__.py").exists(), f"{folder} would be missing in a wheel"
