import os
import stat
import tempfile
from pathlib import Path

import pytest

from streamseg.io.files import check_new_folder, check_writable, folder_written_whole, written_whole


def test_a_file_appears_when_it_is_whole_and_not_before(tmp_path):
    path = tmp_path / "result.txt"
    with written_whole(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.suffix == ".txt"
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_after_a_failure_the_old_file_is_still_there(tmp_path, failure):
    path = tmp_path / "result.txt"
    path.write_text("old")
    with pytest.raises(failure), written_whole(path) as temporary:
        temporary.write_text("half")
        raise failure
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "other").touch()
    with written_whole(tmp_path / "result"):
        pass
    assert stat.S_IMODE((tmp_path / "result").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_an_old_file_hands_its_permissions_on(tmp_path):
    path = tmp_path / "result"
    path.touch()
    path.chmod(0o640)
    with written_whole(path) as temporary:
        temporary.write_text("new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_is_followed_and_stays_one(tmp_path):
    (tmp_path / "far").mkdir()
    for target in ("old", "new"):
        (tmp_path / target).symlink_to(Path("far") / target)
    (tmp_path / "far" / "old").write_text("old")
    for link in (tmp_path / "old", tmp_path / "new"):
        with written_whole(link) as temporary:
            temporary.write_text("whole")
        assert link.is_symlink()
        assert (tmp_path / "far" / link.name).read_text() == "whole"
    assert len(list((tmp_path / "far").iterdir())) == 2


def test_a_pipe_or_a_device_is_refused_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(ValueError, match=f"{path} is a device or a pipe"), written_whole(path):
            pass
        assert not path.is_file()


def test_a_folder_that_may_not_be_written_to_is_named_by_the_wanted_path():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:  # whom no permission stops
            os.seteuid(65534)
        try:
            sentence = f"Could not write {folder / 'result'}: Permission denied"
            with pytest.raises(PermissionError, match=sentence), written_whole(folder / "result"):
                pass
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


def test_a_full_disk_is_named_by_the_wanted_path(tmp_path):
    path = tmp_path / "result"
    with pytest.raises(OSError, match=f"Could not write {path}: No space left on device"), written_whole(path):
        Path("/dev/full").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_another_file_is_left_as_it_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="other"), written_whole(tmp_path / "result"):
        (tmp_path / "other").read_text()


def test_a_folder_that_is_missing_or_in_the_way_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="No folder .*missing"), written_whole(tmp_path / "missing" / "result"):
        pass
    with pytest.raises(IsADirectoryError, match="is a folder"), written_whole(tmp_path):
        pass


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(NotADirectoryError, match=r"a is a file, not a folder: give another place to write b\.png\.$"):
        check_writable(tmp_path / "a" / "b.png")


def test_a_folder_appears_when_it_is_whole_and_not_before(tmp_path):
    path = tmp_path / "result"
    path.mkdir()
    with folder_written_whole(path) as temporary:
        (temporary / "a.txt").write_text("half")
        assert list(path.iterdir()) == []
    assert [file.name for file in path.iterdir()] == ["a.txt"]
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_a_folder_that_failed(tmp_path):
    def fail(folder):
        (folder / "a.txt").write_text("half")
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"), folder_written_whole(tmp_path / "result") as temporary:
        fail(temporary)
    with (
        pytest.raises(OSError, match=r"Could not write .*result: No such file or directory\.$"),
        folder_written_whole(tmp_path / "result") as temporary,
    ):
        (temporary / "missing" / "a.txt").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_takes_the_place_of_nothing(tmp_path):
    (tmp_path / "file").write_text("kept")
    for path, message in (
        (tmp_path, "is not empty: give a new folder"),
        (tmp_path / "file", "is a file: give a new folder"),
        (tmp_path / "no/new", "No folder .*no to write new into: create it first"),
    ):
        with pytest.raises(OSError, match=message):
            check_new_folder(path)
