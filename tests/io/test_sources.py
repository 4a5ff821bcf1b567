import io
import os
import random
import re
import subprocess
import sys
from contextlib import nullcontext
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from PIL import Image
from servers import RtspServer, motion_jpeg_server
from source_files import damage, film, number, numbers, only, paint, shade
from waiting import until

from streamseg.checks import CutShort
from streamseg.io.resolve import find_sources, read_frames
from streamseg.io.sources import LiveSource, NumberedPictures, play


def test_a_picture_becomes_one_frame(here):
    paint("a.png", 3)
    source = only("a.png")
    (capture,) = source.captures()
    assert capture.frame.equal(torch.from_numpy(shade(3)).permute(2, 0, 1))
    assert (capture.name, capture.index, capture.seconds, capture.note) == ("a", 0, 0.0, "")
    assert (source.name, source.live, source.moving, source.rate) == ("a", False, False, None)
    assert source.paths == (Path("a.png"),)


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tiff"])
def test_the_first_picture_of_an_animation_is_used_with_a_note(here, name):
    first, second = Image.fromarray(shade(2)), Image.fromarray(shade(9))
    first.save(name, save_all=True, append_images=[second])
    (capture,) = only(name).captures()
    assert number(capture.frame) == 2
    assert capture.note == f"{name} holds several pictures: the first is used."


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tiff"])
def test_a_single_picture_has_no_note(here, name):
    paint(name)
    assert [capture.note for capture in only(name).captures()] == [""]


def test_a_picture_that_cannot_be_read_loses_no_other(here):
    for i in range(4):
        paint(f"{i}.png", i)
    source, seen = only("."), []
    Path("1.png").write_bytes(b"nothing")
    Path("2.png").unlink()
    with pytest.raises(CutShort, match=r"2 of 4 pictures could not be read, the first one: 1\.png is not a picture"):
        seen.extend((capture.index, number(capture.frame)) for capture in source.captures())
    assert seen == [(0, 0), (3, 3)]


def test_a_single_picture_that_cannot_be_read_says_why(here):
    Path("a.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"^a\.png is not a picture that can be read"):
        next(only("a.png").captures())


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.mov", "a.MP4"])
def test_a_video_becomes_its_frames(here, name):
    film(name)
    source = only(name)
    captures = list(source.captures())
    assert [number(capture.frame) for capture in captures] == list(range(6))
    assert [capture.seconds for capture in captures] == pytest.approx([i / 25 for i in range(6)], abs=1e-3)
    assert [capture.index for capture in captures] == list(range(6))
    assert {(capture.name, capture.total) for capture in captures} == {("a", 6)}
    assert captures[0].captured <= captures[-1].captured
    assert (source.rate, source.live, source.moving, source.audio_from) == (25, False, True, name)
    assert source.paths == (Path(name),)


def test_a_video_that_cannot_be_read_has_no_rate_and_says_why_on_reading(here):
    Path("a.mp4").write_text("no video")
    source = only("a.mp4")
    assert source.rate is None
    with pytest.raises(ValueError, match=r"a\.mp4"):
        next(source.captures())


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_closing_the_captures_closes_the_video(here):
    def held():
        return [path for path in Path("/proc/self/fd").iterdir() if path.resolve() == here / "a.mp4"]

    film("a.mp4", count=100)
    captures = only("a.mp4").captures()
    next(captures)
    assert held()
    captures.close()
    assert not held()


@pytest.mark.parametrize(
    ("pattern", "first"), [("f_%04d.png", 0), ("f_%04d.jpg", 0), ("f_%04d.png", 9_998), ("f%d.png", 8)]
)
def test_numbered_pictures_are_one_moving_source(here, pattern, first):
    for i in range(4):
        paint(f"x/{pattern % (first + i)}", i)
    paint("x/f_7.png", 9)  # no zeros before it, or a line too much
    source = only(f"x/{pattern}")
    assert isinstance(source, NumberedPictures)
    assert numbers(source) == [0, 1, 2, 3]
    assert [capture.seconds for capture in source.captures()] == pytest.approx([0, 0.04, 0.08, 0.12])
    assert {capture.total for capture in source.captures()} == {4}
    assert (source.name, source.moving, source.live, source.rate) == ("f", True, False, 25)


def test_numbered_pictures_have_the_rate_that_is_given(here):
    paint("1.png")
    paint("2.png")
    source = only("%d.png", rate=29.97)
    assert source.rate == Fraction(2997, 100)
    assert [capture.seconds for capture in source.captures()] == pytest.approx([0, 1 / 29.97])


def test_a_damaged_numbered_picture_ends_the_frames(here):
    paint("1.png", 1)
    Path("2.png").write_bytes(b"nothing")
    captures = only("%d.png").captures()
    next(captures)
    with pytest.raises(CutShort, match=r"%d\.png ends after 1 frame: 2\.png is not a picture"):
        next(captures)
    Path("1.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"1\.png is not a picture"):
        next(only("%d.png").captures())


@pytest.mark.parametrize("name", ["97", "/dev/null"])
def test_a_camera_that_is_not_there_is_told_on_use(here, name):
    source = only(name)
    assert source.live
    assert source.name == ("null" if name == "/dev/null" else f"camera{name}")
    with pytest.raises(OSError, match=name):
        next(source.captures())


@pytest.fixture
def piped(monkeypatch):
    """Puts bytes on standard input, through a pipe, and gives the source of frames of a size."""

    def pipe(data, size):
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        monkeypatch.setattr(sys, "stdin", open(read))  # noqa: PTH123, SIM115 (a pipe, which the test's end closes)
        return only("-", raw_size=size, rate=10)

    return pipe


def test_standard_input_of_a_process_is_frame_after_frame():
    data = numpy.random.default_rng(0).integers(0, 256, (5, 200, 300, 3), numpy.uint8).tobytes()
    code = """
import sys
from streamseg.io.resolve import find_sources
(source,) = find_sources(["-"], raw_size=(200, 300))
for capture in source.captures():
    sys.stdout.buffer.write(capture.frame.permute(1, 2, 0).contiguous().numpy().tobytes())
"""
    assert subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True).stdout == data


def test_raw_frames_are_numbered_and_timed(piped):
    captures = list(piped(bytes(range(36)), (2, 3)).captures())
    assert [(capture.name, capture.index, capture.seconds) for capture in captures] == [
        ("stdin", 0, 0),
        ("stdin", 1, 0.1),
    ]
    assert captures[0].frame.tolist() == [
        [[0, 3, 6], [9, 12, 15]],
        [[1, 4, 7], [10, 13, 16]],
        [[2, 5, 8], [11, 14, 17]],
    ]
    assert all(capture.frame.is_contiguous() for capture in captures)


def test_a_raw_frame_that_is_not_whole_is_told(piped):
    captures = piped(bytes(range(18)) + b"abc", (2, 3)).captures()
    next(captures)
    with pytest.raises(CutShort, match=r"within a frame of 2 x 3 pixels \(3 of 18 bytes\), after 1 whole frame: check"):
        next(captures)


def test_an_empty_standard_input_is_told(piped):
    with pytest.raises(ValueError, match="Standard input was empty: expected raw RGB frames of 2 x 3 pixels"):
        next(piped(b"", (2, 3)).captures())


def test_raw_frames_share_no_memory(piped):
    assert [capture.frame.flatten().tolist() for capture in piped(b"abcdef", (1, 1)).captures()] == [
        [97, 98, 99],
        [100, 101, 102],
    ]


def test_raw_frames_need_a_size():
    with pytest.raises(ValueError, match="--raw-size HEIGHTxWIDTH"):
        find_sources(["-"])
    with pytest.raises(ValueError, match="Raw frames of 0 x 4 pixels"):
        find_sources(["-"], raw_size=(0, 4))


SHADES = [shade(i) for i in range(12)]


def watch(source):
    """The captures of a live source until it stays away, and what is then said."""
    captures = []
    with pytest.raises(CutShort) as problem:
        captures.extend(source.captures())
    return captures, str(problem.value)


def visits(captures):
    """The numbers of the shades of each visit, which begins with a note; each visit follows the shades in order."""
    starts = [i for i, capture in enumerate(captures) if capture.note]
    parts = [captures[i:j] for i, j in zip([0, *starts], [*starts, len(captures)], strict=True)]
    found = [[number(capture.frame) for capture in part] for part in parts]
    assert all((after - before) % 12 == 1 for part in found for before, after in pairwise(part))
    return found


def test_a_stream_of_pictures_is_live_and_comes_back(here, brief_waits):
    # the first visit looks what it is
    with motion_jpeg_server(SHADES, visits=[1, 60, 60]) as url:
        source = only(f"{url}/camera?password=secret")
        captures, sentence = watch(source)
    assert (source.live, source.moving, source.name) == (True, True, "127-0-0-1_camera")
    assert len(visits(captures)) == 2
    note = next(capture.note for capture in captures if capture.note)
    shown = re.escape(f"{url}/camera?…")
    assert re.fullmatch(rf"{shown} was lost and came back after \d\.\d s\.", note)
    away = f"was lost after {len(captures)} frames and did not come back"
    assert re.fullmatch(rf"{shown} {away} within \d s\.", sentence)


def test_a_network_camera_is_read_until_it_stays_away(brief_waits):
    with RtspServer(SHADES, visits=[60]) as server:
        source = only(server.address)
        captures, sentence = watch(source)
    (seen,) = visits(captures)
    assert seen[-1] == 59 % 12
    assert [capture.index for capture in captures] == list(range(len(captures)))
    assert (source.live, source.moving, source.name) == (True, True, "127-0-0-1_live")
    assert sentence.startswith(f"{server.address} was lost after {len(seen)} frames and did not come back within ")
    assert server.requests[-4:] == ["OPTIONS", "DESCRIBE", "SETUP", "PLAY"]


def test_a_network_camera_that_comes_back_is_read_again(brief_waits):
    with RtspServer(SHADES, visits=[60, 50, 40]) as server:
        captures, sentence = watch(only(server.address))
    assert [part[-1] for part in visits(captures)] == [59 % 12, 49 % 12, 39 % 12]
    assert [capture.index for capture in captures] == list(range(len(captures)))
    note = next(capture.note for capture in captures if capture.note)
    assert note.startswith(f"{server.address} was lost and came back after ")
    seconds = [capture.seconds for capture in captures]
    assert seconds == sorted(set(seconds))
    assert seconds[0] == 0.0
    assert f"was lost after {len(captures)} frames" in sentence
    assert [capture.reconnected for capture in captures] == [bool(capture.note) for capture in captures]


def test_a_note_on_the_first_frame_is_no_reconnection(monkeypatch):
    monkeypatch.setattr("streamseg.io.sources.RECONNECT_DELAYS", ())
    opened = SimpleNamespace(note="decoded on the CPU", pictures=lambda decoding: [(torch.zeros(3, 2, 2), 0.0)])
    captures = LiveSource("cam", "rtsp://host/x", lambda address, hardware: nullcontext(opened)).captures()
    capture = next(captures)
    assert (capture.note, capture.reconnected) == ("decoded on the CPU", False)


def test_the_waits_begin_anew_when_a_frame_has_come(brief_waits):
    with RtspServer(SHADES, visits=[40] * 6) as server:
        captures, _ = watch(only(server.address))
    assert len(visits(captures)) == 6


def test_reading_a_network_camera_can_be_stopped():
    with RtspServer(SHADES, visits=[None, None]) as server:
        captures = only(server.address).captures()
        visits(list(islice(captures, 20)))
        captures.close()
        frames = read_frames(server.address)
        next(frames)
        frames.close()
        until(lambda: server.requests.count("TEARDOWN") == 2)


@pytest.mark.parametrize("path", ["live", ""])
def test_a_network_camera_that_is_not_there_is_told_at_once(path):
    with RtspServer([shade(0)], visits=[1]) as server:
        pass
    address = server.address.replace("live", path)
    with pytest.raises(OSError, match=address) as problem:
        next(only(address.replace("://", "://me:secret@")).captures())
    assert "secret" not in str(problem.value)
    assert not isinstance(problem.value, CutShort)


def test_a_password_opens_a_network_camera_and_is_shown_nowhere(brief_waits):
    with RtspServer(SHADES, visits=[60], login="me:secret") as server:
        source = only(server.address.replace("://", "://me:secret@"))
        captures, sentence = watch(source)
        assert len(visits(captures)) == 1
        assert sentence.startswith(server.address)
        assert "secret" not in f"{sentence} {source} {source.name}"


def test_a_wrong_password_is_told_and_not_shown():
    with RtspServer([shade(0)], visits=[1], login="me:secret") as server:
        with pytest.raises((OSError, ValueError), match=server.address) as problem:
            next(only(server.address.replace("://", "://me:wrong@")).captures())
        assert "wrong@" not in str(problem.value)


def spoil(data, dice):
    """Return damaged data, in which a piece may be repeated as well."""
    data = bytearray(damage(data, dice))
    if dice.random() < 0.1:
        data[dice.randrange(len(data) + 1) : 0] = data[: dice.randrange(len(data) + 1)]
    return bytes(data)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.tiff", "a.gif"])
def test_a_damaged_picture_gives_a_frame_or_an_error_in_one_sentence(here, name):
    dice = random.Random(name)
    picture = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (9, 13, 3), numpy.uint8))
    more = {"save_all": True, "append_images": [picture.rotate(180)]} if name != "a.jpg" else {}
    kept = io.BytesIO()
    picture.save(kept, format="JPEG" if name == "a.jpg" else name[2:].upper(), **more)
    frames, sentences = [], []
    for _ in range(200):
        Path(name).write_bytes(spoil(kept.getvalue(), dice))
        try:
            frames += [capture.frame for capture in only(name).captures()]
        except ValueError as problem:
            sentences.append(str(problem))
    assert len(frames) + len(sentences) == 200
    assert min(len(frames), len(sentences)) > 5
    assert all(frame.dtype == torch.uint8 and frame.ndim == 3 and frame.shape[0] == 3 for frame in frames)
    assert [line for line in sentences if not re.fullmatch(rf"{re.escape(name)} (is|has) .*\.", line)] == []


def test_a_played_video_is_read_at_its_own_pace(here):
    film("a.mp4", 6)
    source = only("a.mp4")
    played = play(source)
    assert (played.live, played.name, played.rate, played.paths) == (True, "a", source.rate, source.paths)
    captures = list(played.captures())
    for capture, other in zip(captures, source.captures(), strict=True):
        assert capture.frame.equal(other.frame)
        assert (capture.seconds, capture.index, capture.total) == (other.seconds, other.index, other.total)
        # never before it is due; how much later depends on the machine
        assert capture.captured - captures[0].captured >= capture.seconds - 0.001
