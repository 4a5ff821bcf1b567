"""Where compiled kernels are kept."""

import logging

import pytest

from streamseg.engine import kernels
from streamseg.engine.kernels import folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.delenv("TRITON_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_kernels_are_kept_where_triton_looks_for_them(home, monkeypatch):
    kernels.make_kernel_folder()
    assert kernels.kernel_folder() == home / ".triton" / "cache"
    assert kernels.kernel_folder().is_dir()
    monkeypatch.setenv("TRITON_HOME", str(home / "b"))
    assert kernels.kernel_folder() == home / "b" / ".triton" / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(home / "c"))
    assert kernels.kernel_folder() == home / "c"
    kernels.make_kernel_folder()
    assert list((home / "c").iterdir()) == []


def test_if_kernels_cannot_be_kept_those_that_are_there_are_used_with_a_sentence(home, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # restored at the end
    kept, told = kernels.kernel_folder(), []
    (kept / "ABC").mkdir(parents=True)
    (kept / "ABC" / "label_kernel.cubin").write_bytes(b"code")

    def refuse(dir):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(folder.tempfile, "TemporaryFile", refuse)
    warn = lambda sentence, *given: told.append(sentence % given)  # noqa: E731 (as the logger has it)
    monkeypatch.setattr(logging.getLogger("streamseg"), "warning", warn)
    kernels.make_kernel_folder()
    assert kernels.kernel_folder() != kept
    assert (kernels.kernel_folder() / "ABC" / "label_kernel.cubin").read_bytes() == b"code"
    assert told == [
        f"New kernels cannot be kept in {kept} (Read-only file system), so that each run compiles them again: set "
        "TRITON_CACHE_DIR to a folder that can be written."
    ]


def test_without_a_home_kernels_go_to_a_temporary_folder(home, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    (home / ".triton").write_text("a file where a folder should be")
    monkeypatch.setattr(logging.getLogger("streamseg"), "warning", lambda *given: None)
    kernels.make_kernel_folder()
    assert kernels.kernel_folder().is_dir()
    assert home not in kernels.kernel_folder().parents
