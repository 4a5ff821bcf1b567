"""Video files that are cut are told, or have all of their frames; no whole file is taken for a cut one."""

import io
import re
from fractions import Fraction

import av
import pytest
import torch
from clips import make_clip, picture

from streamseg.checks import CutShort
from streamseg.io.containers import is_cut, matroska_is_damaged
from streamseg.io.video_reading import open_video, read_label_video
from streamseg.io.video_writing import open_label_writer, write_frames

CLIPS = [
    ("a.mp4", "libx264", None),
    ("a.mov", "libx264", None),
    ("a.mkv", "libx264", None),
    ("sound.mkv", "libx264", "aac"),
    ("a.webm", "libvpx-vp9", None),
    ("sound.webm", "libvpx", "libopus"),
    ("a.avi", "mpeg4", None),
    ("a.ts", "libx264", None),
]


def read(path):
    """How many frames can be read, and whether it is told that there should be more."""
    count = 0
    try:
        with open_video(path) as video:
            for _ in video.read(video.to_frame):
                count += 1
    except (CutShort, ValueError):
        return count, True
    return count, False


@pytest.mark.parametrize(("name", "codec", "sound"), CLIPS)
def test_a_cut_file_is_told_or_has_all_of_its_frames(tmp_path, name, codec, sound):
    path = make_clip(tmp_path / name, 40, codec=codec, sound=sound)
    data = path.read_bytes()
    assert read(path) == (40, False)
    for percent in (10, 25, 40, 50, 60, 70, 80, 85, 90, 93, 95, 96, 97, 98, 99):
        end = len(data) * percent // 100
        path.write_bytes(data[: end + (end % 188 == 0)])  # whole packets of a transport stream are a shorter one
        count, told = read(path)
        assert told or count == 40, (percent, count)


@pytest.mark.parametrize("seconds", [4, 8, 30])
@pytest.mark.parametrize(("name", "codec"), [("a.mkv", "libx264"), ("a.webm", "libvpx-vp9")])
def test_matroska_and_webm_cut_at_97_percent_are_told_as_at_60(tmp_path, name, codec, seconds):
    path = make_clip(tmp_path / name, 10 * seconds, rate=10, codec=codec)
    data = path.read_bytes()
    for part in (0.6, 0.97):
        path.write_bytes(data[: round(part * len(data))])
        with (
            open_video(path) as video,
            pytest.raises(CutShort, match=rf"{name} is cut short: only \d+ frames could be read"),
        ):
            list(video)


@pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.mkv", "a.webm"])
def test_what_we_write_is_whole(tmp_path, name):
    write_frames(tmp_path / name, [picture(i) for i in range(5)], 25)
    assert not is_cut(tmp_path / name)
    assert read(tmp_path / name) == (5, False)


def mux(file, format, options, frames=30, codec="libx264"):
    """A video as other programs write it."""
    with av.open(file, "w", format=format, options=options) as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for i in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(i).permute(1, 2, 0).contiguous().numpy(), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


class Pipe(io.RawIOBase):
    """A file that can only be written on."""

    def __init__(self):
        self.data = bytearray()

    def writable(self):
        return True

    def seekable(self):
        return False

    def write(self, data):
        self.data += data
        return len(data)


WRITTEN = [
    ("matroska", {}),
    ("matroska", {"live": "1"}),
    ("matroska", {"cues_to_front": "1"}),
    ("matroska", {"reserve_index_space": "1000"}),
    ("mp4", {}),
    ("mp4", {"movflags": "faststart"}),
    ("mp4", {"movflags": "frag_keyframe+empty_moov"}),
    ("mp4", {"movflags": "dash"}),
    ("mov", {}),
    ("avi", {}),
    ("mpegts", {}),
    ("mpegts", {"mpegts_m2ts_mode": "1"}),
    ("flv", {}),
    ("nut", {}),
]


@pytest.mark.parametrize(("format", "options"), WRITTEN)
@pytest.mark.parametrize("seekable", [True, False])
def test_a_whole_file_of_another_program_is_not_taken_for_a_cut_one(tmp_path, format, options, seekable):
    path = tmp_path / "a.video"
    if seekable:
        mux(str(path), format, options)
    elif (format in ("mp4", "mov") and "+" not in options.get("movflags", "")) or "cues_to_front" in options:
        return  # they need to go back
    else:
        pipe = Pipe()
        mux(pipe, format, options)
        path.write_bytes(pipe.data)
    assert not is_cut(path)
    assert read(path) == (30, False)


def test_a_live_stream_that_ends_between_frames_is_whole_and_one_that_ends_within_one_is_not(tmp_path):
    pipe = Pipe()
    mux(pipe, "matroska", {"live": "1"})
    path = tmp_path / "live.mkv"
    cut = []
    for end in range(len(pipe.data) - 300, len(pipe.data) + 1):
        path.write_bytes(pipe.data[:end])
        cut.append(is_cut(path))
    assert not cut[-1]
    assert sum(cut) > 250


@pytest.mark.parametrize("name", ["a.mkv", "a.webm", "a.avi"])
def test_of_a_file_that_lacks_its_index_alone_nothing_is_said(tmp_path, name):
    codec = {"a.mkv": "libx264", "a.webm": "libvpx-vp9", "a.avi": "mpeg4"}[name]
    path = make_clip(tmp_path / name, 20, codec=codec)
    data = path.read_bytes()
    index = data.rindex(b"idx1" if name == "a.avi" else b"\x1c\x53\xbb\x6b")
    path.write_bytes(data[: index + 12])
    assert not is_cut(path)
    assert read(path) == (20, False)
    if name != "a.avi":
        # without its beginning it might as well be more frames
        path.write_bytes(data[:index])
        assert is_cut(path)


@pytest.mark.parametrize(
    "tail", [b"\0" * 100, b"\xff" * 100, b"\x7f\xff\xff\xffnote and more", b"camera notes, which are no box at all" * 9]
)
@pytest.mark.parametrize("name", ["a.mp4", "a.avi", "a.mkv"])
def test_what_a_camera_adds_behind_a_file_makes_it_no_cut_one(tmp_path, name, tail):
    path = make_clip(tmp_path / name, 5, codec="mpeg4" if name == "a.avi" else "libx264")
    path.write_bytes(path.read_bytes() + tail)
    assert not is_cut(path)


def test_one_wrong_bit_in_a_video_of_labels_is_told_wherever_it_is(tmp_path):
    path = tmp_path / "labels.mkv"
    with open_label_writer(path, (40, 56), Fraction(25)) as writer:
        for i in range(9):
            writer.write(picture(i, (40, 56))[0] % 11, i / 25)
    data, expected = path.read_bytes(), list(read_label_video(path))
    silent = 0
    marks = [match.start() for match in re.finditer(rb"\xbf\x84", data)]  # the beginnings of the checksums
    for place in [*marks, *range(0, len(data), 7)]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
        try:
            found = list(read_label_video(path))
        except (ValueError, OSError):
            continue
        silent += 1  # what is written to be left free, for one
        for (labels, seconds), (other, other_seconds) in zip(found, expected, strict=True):
            assert labels.equal(other)
            assert seconds == other_seconds
    assert silent < len(data) / 7 / 4
    # a checksum that cannot be found does not make the frames right
    wrong, cluster = bytearray(data), data.index(b"\x1f\x43\xb6\x75", 300)
    wrong[data.index(b"\xbf\x84", cluster)] ^= 16
    wrong[cluster + 400] ^= 16
    path.write_bytes(wrong)
    with pytest.raises(ValueError, match=r"labels\.mkv is damaged \(its checksum does not match\)"):
        list(read_label_video(path))


@pytest.mark.parametrize("seekable", [True, False])
def test_a_whole_matroska_file_is_not_taken_for_a_damaged_one(tmp_path, seekable):
    for number, (format, options) in enumerate(WRITTEN):
        path = tmp_path / f"{number}.mkv"
        if format == "matroska" and (seekable or "cues_to_front" not in options):
            mux(pipe := str(path) if seekable else Pipe(), format, options)
            if not seekable:
                path.write_bytes(pipe.data)
            assert not matroska_is_damaged(path), options


def test_anything_may_be_asked(tmp_path):
    random = torch.Generator().manual_seed(0)
    beginnings = [b"", b"\x1a\x45\xdf\xa3", b"RIFF\0\0\0\0AVI ", b"\0\0\0\x20ftyp", b"\0\0\0\x01mdat", b"\x47" * 600]
    for begin in beginnings:
        for size in (0, 1, 9, 40, 700):
            path = tmp_path / "x"
            path.write_bytes(begin + bytes(torch.randint(256, (size,), generator=random).tolist()))
            assert is_cut(path) in (True, False)
            assert matroska_is_damaged(path) in (True, False)
