"""A picture of a video over time."""

import pytest
import torch

import streamseg
from streamseg.evaluate import slice as slices
from streamseg.evaluate.slice import SLICE_HEIGHT, SliceRecorder, check_slice, write_slice
from streamseg.io.images import read_image

CLASSES = streamseg.CAMVID


def recorded(frames, row=None, alone=True, size=(8, 300)):
    """A recorder after frames whose pixels are their number, in the given row; elsewhere they are 200."""
    recorder = SliceRecorder(row)
    for i in range(frames):
        picture = torch.full((3, *size), 200, dtype=torch.uint8)
        picture[:, size[0] // 2 if row is None else row] = i
        labels = torch.full(size, i % 2, dtype=torch.uint8)
        recorder.add(picture, labels, labels + 2 if alone else None)
    return recorder


@pytest.mark.parametrize("row", [None, 0, 7])
def test_a_slice_has_one_row_of_every_frame_in_order(row):
    found = recorded(5, row).result()
    assert found.pictures.tolist() == [[[i] * 300 for i in range(5)]] * 3
    assert found.labels[:, 0].tolist() == [0, 1, 0, 1, 0]
    assert found.alone[:, 0].tolist() == [2, 3, 2, 3, 2]


@pytest.mark.parametrize("row", [-1, 8])
def test_a_row_that_the_frames_do_not_have_is_refused(row):
    with pytest.raises(ValueError, match=f"^The row is {row}; expected 0 to 7, as the frames have 8 rows.$"):
        SliceRecorder(row).add(torch.zeros(3, 8, 9), torch.zeros(8, 9), None)


def test_a_long_video_is_sliced_at_its_beginning(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_FRAMES", 4)
    assert recorded(9).result().pictures[0, :, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("frames", "times"), [(5, 40), (150, 2), (250, 1)])
def test_a_slice_is_drawn_below_its_pictures_frame_by_frame_and_as_measured(tmp_path, frames, times):
    write_slice(tmp_path / "a.png", recorded(frames).result(), CLASSES)
    drawn, height = read_image(tmp_path / "a.png"), frames * times
    assert height >= SLICE_HEIGHT
    title = drawn.shape[1] // 3 - height
    assert drawn.shape == (3, 3 * (title + height), 300)
    colours = streamseg.bright_colours(CLASSES).colours
    last = frames - 1
    for part, expected in enumerate([(last, last, last), colours[last % 2 + 2], colours[last % 2]]):
        bottom = (part + 1) * (title + height) - 1
        assert tuple(drawn[:, bottom, 150].tolist()) == tuple(expected)
    assert drawn[0, title : title + times, 150].tolist() == [0] * times


def test_without_another_prediction_there_are_two_parts(tmp_path):
    write_slice(tmp_path / "a.png", recorded(200, alone=False).result(), CLASSES)
    write_slice(tmp_path / "b.png", recorded(200).result(), CLASSES)
    two, three = (read_image(tmp_path / name).shape[1] for name in ("a.png", "b.png"))
    assert 3 * two == 2 * three


def test_a_narrow_video_has_its_titles_cropped(tmp_path):
    write_slice(tmp_path / "a.png", recorded(3, size=(8, 20)).result(), CLASSES)
    assert read_image(tmp_path / "a.png").shape[2] == 20


def test_a_slice_overwrites_no_frame_and_needs_a_place(tmp_path):
    frame = tmp_path / "1.png"
    frame.write_bytes(b"")
    with pytest.raises(ValueError, match=r"1\.png is a frame of the video: give another name for the slice\.$"):
        check_slice(tmp_path / "." / "1.png", [frame])
    with pytest.raises(ValueError, match="does not have the suffix of a picture"):
        check_slice(tmp_path / "a.mp4", [frame])
    with pytest.raises(FileNotFoundError, match="No folder"):
        check_slice(tmp_path / "none" / "a.png", [frame])
    check_slice(tmp_path / "2.png", [frame, tmp_path / "gone.png"])
