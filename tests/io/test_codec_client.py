"""Videos that processes of their own decode and encode are those of this process."""

import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from clips import REPRODUCIBLE, TURNS, cut, make_clip, picture, turn
from limits import full_disk
from waiting import PATIENCE

from streamseg.checks import CutShort
from streamseg.io import codec_pool
from streamseg.io.codec_client import ProcessVideo, ProcessWriter
from streamseg.io.codec_pool import IDLE
from streamseg.io.codec_slots import SLOTS
from streamseg.io.planes import Orientation
from streamseg.io.sources import Decoding, VideoFile
from streamseg.io.video_reading import open_video, read_label_video
from streamseg.io.video_writing import open_label_writer, open_video_writer
from streamseg.io.yuv import BT709, Yuv420, to_yuv

pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")
PLANES, RGB = Decoding(planes=True, process=True), Decoding(process=True)


@pytest.fixture(autouse=True)
def no_processes_before_and_after():
    IDLE.end()
    yield
    IDLE.end()


def read_apart(path, decoding):
    with ProcessVideo(str(path), path.name, decoding) as video:
        return list(video.pictures(decoding))


def assert_same(found, expected):
    assert len(found) == len(expected) > 0
    for (pixels, seconds), (others, at) in zip(found, expected, strict=True):
        assert seconds == at
        assert type(pixels) is type(others)
        if isinstance(pixels, Yuv420):
            assert pixels.pixels.equal(others.pixels)
            assert pixels.with_pixels(None).__dict__ == others.with_pixels(None).__dict__
        else:
            assert pixels.equal(others)


@pytest.mark.parametrize("decoding", [PLANES, RGB])
@pytest.mark.parametrize(
    ("name", "codec", "pixels"),
    [("a.mp4", "libx264", "yuv420p"), ("a.mkv", "libx264", "yuv420p10le"), ("a.mkv", "ffv1", "bgr0")]
    + [("a.mov", "mjpeg", "yuvj420p")],
)
def test_a_process_decodes_the_same_frames(tmp_path, name, codec, pixels, decoding):
    path = make_clip(tmp_path / name, 2 * SLOTS + 1, codec=codec, pixels=pixels)
    with open_video(path) as video:
        expected = list(video.pictures(decoding))
    assert_same(read_apart(path, decoding), expected)


def test_a_process_decodes_a_video_that_is_turned(tmp_path):
    path = turn(make_clip(tmp_path / "a.mp4", 3), TURNS["a quarter clockwise"])
    with open_video(path) as video:
        expected, orientation = list(video.pictures(PLANES)), video.orientation
    assert_same(read_apart(path, PLANES), expected)
    assert expected[0][0].orientation == orientation != Orientation()


def test_a_source_read_apart_has_the_same_captures(tmp_path):
    source = VideoFile("a", str(make_clip(tmp_path / "a.mp4", 5)))
    found, expected = list(source.captures(RGB)), list(source.captures())
    assert [(one.index, one.seconds, one.total, one.note) for one in found] == [
        (one.index, one.seconds, one.total, one.note) for one in expected
    ]


def broken(folder):
    (folder / "text.mp4").write_text("no video")
    return {
        "missing": folder / "none.mp4",
        "text": folder / "text.mp4",
        "folder": folder,
        "cut": cut(make_clip(folder / "a.mkv", 30), 0.6),
    }


@pytest.mark.parametrize("kind", ["missing", "text", "folder", "cut"])
def test_a_video_that_cannot_be_read_gives_the_same_error_and_the_process_goes_on(tmp_path, kind):
    path = broken(tmp_path)[kind]
    source = VideoFile("a", str(path))
    with pytest.raises((OSError, ValueError)) as expected:
        list(source.captures())
    with pytest.raises(type(expected.value)) as found:
        list(source.captures(RGB))
    assert type(found.value) is type(expected.value)
    assert str(found.value) == str(expected.value)
    assert isinstance(found.value, CutShort) == (kind == "cut")
    (process,) = IDLE.processes
    assert len(read_apart(make_clip(tmp_path / "b.mp4", 3), RGB)) == 3
    assert IDLE.processes == [process]


def test_a_process_that_dies_is_one_sentence_with_the_name_of_its_video(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 50)
    with ProcessVideo(str(path), "front", PLANES) as video:
        pictures = video.pictures(PLANES)
        next(pictures)
        os.kill(video.process.process.pid, signal.SIGKILL)
        with pytest.raises(OSError, match=r"^front: the process of its codec ended with status -9: .*\?$"):
            list(pictures)
    assert IDLE.processes == []
    assert len(read_apart(path, PLANES)) == 50


def test_a_writer_that_dies_names_the_file_that_was_asked_for(tmp_path):
    writer = ProcessWriter(tmp_path / ".a.mp4", (32, 48), Fraction(25), labels=False, name="drive.mp4")
    os.kill(writer.process.process.pid, signal.SIGKILL)
    with pytest.raises(OSError, match=r"^drive\.mp4: the process of its codec ended"):
        writer.close()
    assert IDLE.processes == []


def test_a_video_that_is_not_read_to_its_end_leaves_no_process_and_no_open_file(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 50)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ProcessVideo(str(path), "a", PLANES) as video:
        next(video.pictures(PLANES))
    assert not video.process.alive
    del video
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("size", [REPRODUCIBLE, (REPRODUCIBLE[0] - 1, REPRODUCIBLE[1] - 1)])
@pytest.mark.parametrize("kind", ["planes", "rgb", "labels"])
def test_a_process_writes_the_same_file(tmp_path, kind, size):
    rgb = [picture(i, size) for i in range(2 * SLOTS + 1)]
    frames = {"planes": [to_yuv(one, BT709) for one in rgb], "rgb": rgb, "labels": [one[0] for one in rgb]}[kind]
    suffix, labels = (".mkv", True) if kind == "labels" else (".mp4", False)
    shape, rate = tuple(frames[0].shape[-2:]), Fraction(25)
    ours, theirs = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    with (
        (open_label_writer if labels else open_video_writer)(ours, shape, rate) as here,
        ProcessWriter(theirs, shape, rate, labels=labels) as apart,
    ):
        for i, frame in enumerate(frames):
            here.write(frame, i / 25)
            apart.write(frame, i / 25)
    assert theirs.read_bytes() == ours.read_bytes()
    if labels:
        assert all(found.equal(frame) for (found, _), frame in zip(read_label_video(theirs), frames, strict=True))
    assert len(IDLE.processes) == 1


def test_a_process_keeps_the_audio(tmp_path):
    source = make_clip(tmp_path / "a.mp4", 12, sound="aac")
    out = tmp_path / "b.mp4"
    with ProcessWriter(out, (48, 64), Fraction(25), labels=False, audio_from=source) as writer:
        for i in range(10):
            writer.write(picture(i), i / 25)
    with open_video(out) as video:
        assert video.has_audio


def test_on_a_full_disk_a_process_tells_the_same_error(tmp_path):
    path, noise = tmp_path / "a.mkv", torch.randint(0, 256, (480, 640), dtype=torch.uint8)
    with (
        full_disk(200_000),  # before the process is started
        pytest.raises(OSError, match="File too large") as problem,
        ProcessWriter(path, (480, 640), Fraction(25), labels=True) as writer,
    ):
        for i in range(30):
            writer.write(noise, i / 25)
    assert problem.value.filename == str(path)
    assert IDLE.processes == []


def test_a_frame_of_another_size_is_refused_and_what_was_written_is_whole(tmp_path):
    path = tmp_path / "a.mkv"
    with pytest.raises(ValueError, match="does not fit"), ProcessWriter(path, (48, 64), Fraction(25), labels=True) as a:
        a.write(torch.ones(48, 64, dtype=torch.uint8), 0)
        a.write(torch.ones(64, 48, dtype=torch.uint8), 1)
    assert len(list(read_label_video(path))) == 1


def test_a_path_that_cannot_be_written_is_an_error_at_once(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        ProcessWriter(tmp_path / "none" / "a.mkv", (48, 64), Fraction(25), labels=True)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_process_ends_with_the_one_that_started_it_and_not_by_a_signal(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 50)
    program = (
        "import sys, time\n"
        "from streamseg.io.codec_client import ProcessVideo\n"
        "from streamseg.io.sources import TO_RGB\n"
        f"video = ProcessVideo({str(path)!r}, 'a', TO_RGB)\n"
        "print(video.process.process.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        time.sleep(0.1)
        assert is_running(pid)
        parent.kill()
    deadline = time.monotonic() + PATIENCE
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(pid)


def test_the_processor_time_of_a_process_grows_with_what_it_decodes(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 30, size=(480, 640))
    read_apart(path, RGB)
    (process,) = IDLE.processes
    before = process.cpu_seconds
    for _ in range(3):
        read_apart(path, RGB)
    assert 0 < before < process.cpu_seconds


def test_names_are_those_of_the_current_folder_whenever_the_process_was_started(tmp_path, monkeypatch):
    IDLE.start(1)
    make_clip(tmp_path / "a.mp4", 3)
    monkeypatch.chdir(tmp_path)
    assert len(read_apart(Path("a.mp4"), RGB)) == 3
    with ProcessWriter(Path("b.mkv"), (48, 64), Fraction(25), labels=True) as writer:
        writer.write(torch.ones(48, 64, dtype=torch.uint8), 0)
    assert len(list(read_label_video(tmp_path / "b.mkv"))) == 1
