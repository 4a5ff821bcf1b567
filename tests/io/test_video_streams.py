"""Videos as FFmpeg opens them, and what their streams declare."""

from fractions import Fraction
from types import SimpleNamespace

import pytest
from clips import even, make_clip, read, write

from streamseg.io.video_reading import open_video
from streamseg.io.video_streams import frame_rate, has_known_length, video_made_by_streamseg
from streamseg.io.video_writing import VIDEO_FORMATS


def test_a_rate_that_is_not_credible_does_not_count():
    rates = SimpleNamespace(average_rate=Fraction(90000), guessed_rate=None, base_rate=Fraction(30))
    assert frame_rate(rates) == 30
    rates.base_rate = Fraction(0)
    assert frame_rate(rates) == 25


def test_a_file_has_a_known_length(tmp_path):
    assert has_known_length(str(make_clip(tmp_path / "a.mp4", 3)))
    (tmp_path / "text.mp4").write_text("no video")
    assert not has_known_length(str(tmp_path / "text.mp4"))


def test_a_missing_video_a_folder_and_a_pipe_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No video at .*nowhere\.mp4: check the path\."):
        open_video(tmp_path / "nowhere.mp4")
    with pytest.raises(IsADirectoryError, match="is a folder: give a video"):
        open_video(tmp_path)
    with pytest.raises(ValueError, match="is a device or a pipe"):
        open_video("/dev/null")


def test_a_name_may_look_like_an_address(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 3).rename(tmp_path / "http:%03d?.mp4")
    assert read(path)[0] == [0, 1, 2]


def test_written_videos_are_recognised(tmp_path):
    make_clip(tmp_path / "other.mp4", 3)
    (tmp_path / "text.mp4").write_text("no video")
    for suffix in VIDEO_FORMATS:
        assert video_made_by_streamseg(write(tmp_path / f"a{suffix}", even(3)))
    for name in ("other.mp4", "text.mp4", "nowhere.mp4"):
        assert not video_made_by_streamseg(tmp_path / name)
