import errno
from importlib.util import find_spec
from pathlib import Path

import pytest

from streamseg.io.stores import (
    folder_of_pattern,
    list_files,
    local_copy,
    open_store,
    read_range,
    read_text,
    write_folder,
    write_text,
)
from streamseg.io.web import restore_address


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    """A folder on a disk, and one in a store."""
    return str(tmp_path / "place") if request.param == "disk" else f"memory://{tmp_path.name}"


def test_texts_and_parts_of_them_are_read_as_they_were_written(place):
    assert read_text(f"{place}/a.json") is None
    write_text(f"{place}/a.json", "0123456789")
    assert read_text(f"{place}/a.json") == "0123456789"
    assert read_range(f"{place}/a.json", 3, 4) == b"3456"
    with pytest.raises(OSError, match="b.json cannot be read"):
        read_range(f"{place}/b.json", 0, 1)


def test_a_folder_appears_whole_and_its_last_file_last(place):
    store, path = open_store(place)
    with write_folder(f"{place}/result", last="a") as folder:
        for name in "abc":
            (folder / name).write_text(name)
        assert not store.exists(f"{path}/result")
    assert [read_text(f"{place}/result/{name}") for name in "abc"] == ["a", "b", "c"]
    assert not folder.exists()


def test_after_an_error_there_is_no_folder(place):
    store, path = open_store(place)
    with pytest.raises(ValueError, match="^bad$"), write_folder(f"{place}/result", last="a") as folder:
        (folder / "a").write_text("a")
        raise ValueError("bad")
    assert not folder.exists()
    assert not store.exists(f"{path}/result")


def test_a_full_disk_is_told_of_by_the_name_of_the_result(tmp_path):
    target = f"{tmp_path}/result"
    with pytest.raises(OSError, match=f"^Could not write {target}: No space left.$"), write_folder(target, last="a"):
        raise OSError(errno.ENOSPC, "No space left", "something")
    with pytest.raises(OSError, match=f"^Could not write {target}/a: Full.$"), write_folder(target, last="a") as folder:
        raise OSError(f"Could not write {folder}/a: Full.")
    assert list(tmp_path.iterdir()) == []


def test_a_file_elsewhere_is_copied_and_the_copy_removed(place):
    write_text(f"{place}/a.txt", "a")
    with local_copy(f"{place}/a.txt") as path:
        assert path.read_text() == "a"
    assert path.exists() == (not place.startswith("memory:"))


def test_a_file_that_cannot_be_fetched_is_a_sentence():
    with (
        pytest.raises(ValueError, match="^memory://nothing/a.mp4 cannot be fetched"),
        local_copy("memory://nothing/a.mp4"),
    ):
        pass


def test_files_are_found_by_name_by_folder_and_by_pattern(place):
    for name in ("a.mp4", "day1/b.MP4", "day1/c.txt", "day2/x/d.mp4", "day2/.streamseg-e.mp4"):
        write_text(f"{place}/{name}", name)
    for name, found, fixed in (
        ("a.mp4", ["a.mp4"], ""),
        ("", ["a.mp4"], ""),
        ("day1", ["day1/b.MP4"], "/day1"),
        ("**/*", ["a.mp4", "day1/b.MP4", "day2/x/d.mp4"], ""),
        ("day2/*/*.mp4", ["day2/x/d.mp4"], "/day2"),
        ("none", [], ""),
    ):
        store, path = open_store(f"{place}/{name}")
        root = open_store(place)[1]
        sizes = list_files(store, path, (".mp4",))
        assert sizes == {f"{root}/{each}": len(each) for each in found}
        assert folder_of_pattern(store, path) == root + fixed


def test_an_address_that_was_taken_for_a_path_is_one_again():
    assert restore_address(Path("s3://bucket/folder")) == "s3://bucket/folder"
    assert restore_address(Path("/data/folder")) == "/data/folder"
    assert restore_address(Path("folder")) == "folder"


def test_a_store_that_is_not_known_is_told_in_a_sentence():
    with pytest.raises(ValueError, match="^none://user cannot be reached: Protocol not known: none"):
        open_store("none://user")


@pytest.mark.skipif(find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_library_that_is_missing_is_named():
    with pytest.raises(ImportError, match="^s3://bucket/folder needs s3fs: pip install s3fs$"):
        open_store("s3://bucket/folder")
