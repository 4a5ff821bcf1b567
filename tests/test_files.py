import stat

import pytest

from streamseg.files import written_whole


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


def test_a_folder_that_is_missing_or_in_the_way_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="No folder .*missing"), written_whole(tmp_path / "missing" / "result"):
        pass
    with pytest.raises(IsADirectoryError, match="is a folder"), written_whole(tmp_path):
        pass
