"""Bare decoding and encoding, to which the pipeline is compared."""

from fractions import Fraction

import pytest
import torch
from clips import cut, make_clip, read

from streamseg.evaluate.bare_video import (
    copy_start,
    count_frames,
    describe_video,
    encode_labels,
    exact_rate,
    to_label_frames,
    transcode,
)
from streamseg.io.video_reading import open_video, read_label_video


def test_a_video_is_described(tmp_path):
    info = describe_video(make_clip(tmp_path / "a.mp4", 3, rate=Fraction(30000, 1001)))
    assert (info.name, info.codec, info.pixels, info.height, info.width) == ("a.mp4", "h264", "yuv420p", 48, 64)
    assert exact_rate(info.rate) == Fraction(30000, 1001)


def test_a_bare_transcode_keeps_every_frame_and_the_codec_of_an_overlay(tmp_path):
    path, out = make_clip(tmp_path / "a.mp4", 12, codec="mpeg4"), tmp_path / "b.mp4"
    assert transcode(path, out, 25.0) == 12
    assert read(out) == (list(range(12)), pytest.approx([i / 25 for i in range(12)], abs=1e-3))
    assert describe_video(out).codec == "h264"


@pytest.mark.parametrize(
    ("size", "pixels", "stored"),
    [((48, 64), "yuv444p", (48, 64)), ((49, 65), "yuv444p", (50, 66)), ((48, 64), "yuv420p10le", (48, 64))],
)
def test_only_frames_that_the_encoder_cannot_take_are_converted(tmp_path, size, pixels, stored):
    path, out = make_clip(tmp_path / "a.mkv", 4, size=size, pixels=pixels), tmp_path / "b.mp4"
    assert transcode(path, out, 25.0) == 4
    info = describe_video(out)
    assert (info.pixels, (info.height, info.width)) == ("yuv420p", stored)


def test_the_encoder_chooses_key_frames_anew(tmp_path):
    path = make_clip(tmp_path / "a.mkv", 12, codec="ffv1")  # each frame is a key frame
    transcode(path, tmp_path / "b.mp4", 25.0)
    with open_video(tmp_path / "b.mp4") as video:
        assert [bool(frame.key_frame) for frame in video.decoded] == [True] + 11 * [False]


def test_ready_labels_are_encoded_without_loss_as_often_as_the_video_has_frames(tmp_path):
    path, out = make_clip(tmp_path / "a.mp4", 7), tmp_path / "labels.mkv"
    maps = [torch.randint(0, 19, (48, 64), dtype=torch.uint8) for _ in range(3)]
    assert encode_labels(path, to_label_frames(maps), out, 25.0) == 7
    found = [labels for labels, _ in read_label_video(out)]
    assert len(found) == 7
    assert all(labels.equal(maps[i % 3]) for i, labels in enumerate(found))


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.avi", "mpeg4"), ("a.webm", "libvpx-vp9")])
def test_the_start_of_a_video_is_copied(tmp_path, name, codec):
    path, out = make_clip(tmp_path / name, 12, codec=codec, sound=None), tmp_path / "start.mkv"
    copy_start(path, out, 5)
    assert count_frames(out) == 5
    copy_start(path, out, 100)
    assert count_frames(out) == 12


def test_a_damaged_video_ends_in_a_sentence_and_no_thread_stays(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 12)
    data = bytearray(path.read_bytes())
    middle = data.index(b"mdat") + 300
    data[middle : middle + 400] = bytes(400)
    path.write_bytes(data)
    with pytest.raises(ValueError, match="^a.mp4 is damaged .*give another video.$"):
        transcode(path, tmp_path / "b.mp4", 25.0)


def test_a_video_that_is_cut_off_cannot_be_described(tmp_path):
    with pytest.raises((ValueError, OSError), match="a.mkv"):
        describe_video(cut(make_clip(tmp_path / "a.mkv", 12), 0.05))
