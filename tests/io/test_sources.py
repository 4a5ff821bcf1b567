import gc
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import av
import numpy
import pytest
import torch
from PIL import Image
from servers import RtspServer, file_server, motion_jpeg_server

from streamseg.io import sources, web
from streamseg.io.sources import Live, NumberedPictures, Pictures, VideoFile, find_sources, read_frames, resolve_sources
from streamseg.io.video import CutShort

HEIGHT, WIDTH = 48, 64


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, which is the current one; no proxy stands between it and its servers."""
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return tmp_path


@pytest.fixture
def brief_waits(monkeypatch):
    """Live sources are given up soon."""
    monkeypatch.setattr(sources, "WAITS", (0.01, 0.02))


def shade(i):
    """A frame (H, W, 3) of one colour, which tells its number even after compression."""
    return numpy.full((HEIGHT, WIDTH, 3), (20 * i, 100, 255 - 20 * i), numpy.uint8)


def number(frame):
    """The number of a shade."""
    return round(frame[0].float().mean().item() / 20)


def paint(path, i=0, size=(WIDTH, HEIGHT)):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(shade(i)).resize(size).save(path)


def film(path, count=6, rate=25, movflags="faststart"):
    """A video of shades 0, 1, …, whose index comes first, so that it can be played as it arrives."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    options = {"movflags": movflags} if str(path).endswith(".mp4") else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=rate, width=WIDTH, height=HEIGHT, pix_fmt="yuv420p")
        stream.options = {"qscale": "2"}
        for i in range(count):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shade(i), format="rgb24")))
        container.mux(stream.encode(None))


def numbers(source):
    """The numbers of the shades that a source shows."""
    return [number(capture.frame) for capture in source.captures()]


def names(source):
    return [capture.name for capture in source.captures()]


def only(*arguments, **options):
    (source,) = find_sources(arguments, **options)
    return source


# pictures


def test_a_picture_becomes_one_frame(here):
    paint("a.png", 3)
    source = only("a.png")
    (capture,) = source.captures()
    assert capture.frame.equal(torch.from_numpy(shade(3)).permute(2, 0, 1))
    assert (capture.name, capture.index, capture.seconds, capture.note) == ("a", 0, 0.0, "")
    assert (source.name, source.live, source.moving, source.rate) == ("a", False, False, None)
    assert source.paths == (Path("a.png"),)


def test_several_pictures_are_one_source_in_the_order_given(here):
    for i, name in enumerate(["c.png", "a.png", "b.bmp"]):
        paint(name, i)
    source = only("c.png", "a.png", "b.bmp")
    assert numbers(source) == [0, 1, 2]
    assert names(source) == ["c", "a", "b"]
    assert [(capture.index, capture.total) for capture in source.captures()] == [(0, 3), (1, 3), (2, 3)]


def test_what_is_named_twice_is_taken_once(here):
    paint("a.png")
    paint("b.png")
    film("c.mp4")
    Path("x").mkdir()
    pictures, video = find_sources(["a.png", "./a.png", str(here / "a.png"), "*.png", ".", "c.mp4", "x/../c.mp4"])
    assert names(pictures) == ["a", "b"]
    assert video.name == "c"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["left/a.png", "right/a.png"], ["left_a", "right_a"]),
        (["a.png", "a.bmp"], ["a_png", "a_bmp"]),
        (["x/left/a.png", "y/left/a.png", "b.png"], ["x_left_a", "y_left_a", "b"]),
        (["left/a.png", "right/a.png", "left_a.png"], ["left_a", "right_a", "left_a_2"]),
        (["x/A.png", "y/a.png"], ["x_A", "y_a"]),
        (["1/frame.001.png", "1/frame.002.png"], ["frame.001", "frame.002"]),
    ],
)
def test_pictures_of_one_name_are_told_apart(here, given, expected):
    for name in given:
        paint(name)
    assert names(only(*given)) == expected


def test_sources_of_one_name_are_told_apart(here):
    film("left/a.mp4")
    film("right/a.mp4")
    paint("a.png")
    found = find_sources(["left/a.mp4", "right/a.mp4", "a.png", "0"])
    assert [source.name for source in found] == ["left_a", "right_a", "a", "camera0"]


def test_a_name_is_fit_for_every_file_system(here):
    long = "ä" * 120
    paint('w"h:y?.png')
    paint(f"{long}.png")
    assert names(only('w"h:y?.png', f"{long}.png")) == ["w_h_y_", "ä" * 100]


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tiff"])
def test_of_an_animation_the_first_picture_is_taken_and_that_is_said(here, name):
    first, second = Image.fromarray(shade(2)), Image.fromarray(shade(9))
    first.save(name, save_all=True, append_images=[second])
    (capture,) = only(name).captures()
    assert number(capture.frame) == 2
    assert capture.note == f"{name} holds several pictures: its first is taken."


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tiff"])
def test_nothing_is_said_of_a_single_picture(here, name):
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


def test_a_picture_without_a_suffix_is_known_by_its_content(here):
    Image.fromarray(shade(4)).save("photo", format="PNG")
    assert numbers(only("photo")) == [4]


# videos


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


def test_a_video_without_a_suffix_is_known_by_its_content(here):
    film("a.mkv")
    Path("a.mkv").rename("film")
    assert isinstance(only("film"), VideoFile)
    assert numbers(only("film")) == list(range(6))


@pytest.mark.parametrize("content", [b"", b"some words\n" * 100, bytes(1000)])
def test_what_is_neither_a_picture_nor_a_video_is_refused(here, content):
    Path("a.xyz").write_bytes(content)
    with pytest.raises(ValueError, match=r"^a\.xyz is neither a picture nor a video that can be read\.$"):
        find_sources(["a.xyz"])


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


def test_read_frames_gives_the_frames_of_anything(here):
    paint("x/1.png", 1)
    film("x/2.mp4", count=3)
    assert [number(frame) for frame in read_frames("x")] == [1, 0, 1, 2]
    assert [number(frame) for frame in read_frames(here / "x" / "1.png")] == [1]
    with pytest.raises(FileNotFoundError, match="Nothing at nowhere.png"):
        read_frames("nowhere.png")


@pytest.mark.parametrize("source", [0.5, None, True, ["a.png"], b"a.png"])
def test_what_is_no_name_is_told_so(source):
    with pytest.raises(ValueError, match=f"^The source is {re.escape(repr(source))}, a .*; expected a path"):
        read_frames(source)


def test_a_number_is_a_camera(here):
    with pytest.raises(OSError, match="amera 97"):
        next(read_frames(97))


def test_names_that_stand_for_nothing_lose_no_others(here):
    paint("a.png", 3)
    Path("list.txt").write_text("nowhere.png\na.png\n")
    film("b.mp4")
    (pictures, video), problems = resolve_sources(["list.txt", "*.gif", "b.mp4", "7.png"])
    assert (numbers(pictures), numbers(video)) == ([3], list(range(6)))
    assert [str(problem).partition(":")[0] for problem in problems] == [
        "Line 1 of list.txt",
        "No picture and no video matches *.gif",
        "Nothing at 7.png",
    ]
    with pytest.raises(FileNotFoundError, match="^Line 1 of list.txt: Nothing at nowhere.png"):
        find_sources(["list.txt", "b.mp4"])


def test_a_path_is_a_file_whatever_it_is_called(here):
    Image.fromarray(shade(5)).save("0", format="PNG")
    assert [number(frame) for frame in read_frames(Path("0"))] == [5]
    assert isinstance(only("0"), Pictures)
    with pytest.raises(FileNotFoundError, match="Nothing at .*7: expected"):
        read_frames(Path("7"))


# numbered pictures


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


def test_numbered_pictures_end_at_a_gap_and_say_so(here):
    for i in (3, 4, 6, 7):
        paint(f"{i}.png", i)
    captures = list(only("%d.png").captures())
    assert [number(capture.frame) for capture in captures] == [3, 4]
    assert [capture.note for capture in captures] == [
        "5.png is missing: frames end before it, without 2 later pictures.",
        "",
    ]


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


@pytest.mark.parametrize("pattern", ["x_%03d.png", "nowhere/%d.png"])
def test_numbered_pictures_that_are_missing_are_named(here, pattern):
    paint("x_1.png")
    with pytest.raises(FileNotFoundError, match=f"No picture is called {pattern}, with a number in place of %"):
        find_sources([pattern])


@pytest.mark.parametrize("pattern", ["%d_%d.png", "%d/a.png", "%d/%d.png"])
def test_one_number_is_expected_in_the_name_of_numbered_pictures(here, pattern):
    with pytest.raises(ValueError, match="needs one number in the name of its files"):
        find_sources([pattern])


def test_a_file_may_be_called_like_a_pattern(here):
    for i, name in enumerate(["a%d.png", "b[1].png", "c*.png"]):
        paint(name, i)
    assert numbers(only("a%d.png", "b[1].png", "c*.png")) == [0, 1, 2]


# folders, patterns and lists


def test_a_folder_gives_its_pictures_and_videos_in_the_order_people_count(here):
    for i, name in enumerate(["frame2.png", "frame10.png", "Frame11.jpg"]):
        paint(f"x/{name}", i)
    film("x/b10.mp4")
    film("x/b9.mp4")
    paint("x/.hidden.png")
    paint("x/.streamseg-1234.png")
    paint("x/deeper/z.png")
    Path("x/notes.md").write_text("notes")
    Path("x/list.txt").write_text("nowhere.png")
    Path("x/folder.png").mkdir()
    first, second, pictures = find_sources(["x"])
    assert [first.name, second.name, pictures.name] == ["b9", "b10", "x"]
    assert names(pictures) == ["frame2", "frame10", "Frame11"]


def test_a_folder_with_nothing_to_see_says_what_was_looked_for(here):
    Path("x").mkdir()
    Path("x/notes.md").write_text("notes")
    with pytest.raises(FileNotFoundError, match=r"No picture and no video in x: looked for \.png .*\.mp4"):
        find_sources(["x"])


def test_a_pattern_gives_what_it_matches(here):
    for i, name in enumerate(["x/2.png", "x/10.png", "x/y/1.png", "x/z/y/3.jpg"]):
        paint(name, i)
    film("x/y/4.mp4")
    Path("x/y/4.md").write_text("notes")
    assert numbers(only("x/*.png")) == [0, 1]
    assert numbers(only(str(here / "x" / "[0-9]*.png"))) == [0, 1]
    assert numbers(only("x/?.png")) == [0]
    everything = find_sources(["x/**/*"])
    assert [source.name for source in everything] == ["pictures", "4"]
    assert numbers(everything[0]) == [0, 1, 2, 3]


def test_a_pattern_takes_no_unfinished_file(here):
    paint("a.png")
    paint(".streamseg-1234.png")
    assert names(only("*.png")) == ["a"]
    with pytest.raises(FileNotFoundError, match="No picture and no video matches"):
        find_sources([".s*.png"])


def test_a_pattern_that_matches_nothing_says_so(here):
    Path("a.md").write_text("notes")
    with pytest.raises(FileNotFoundError, match=r"No picture and no video matches \*\.md"):
        find_sources(["*.md"])


def test_a_list_names_things_beside_it(here):
    paint("x/a.png", 1)
    paint("x/y/b.png", 2)
    paint(here / "c.png", 3)
    film("x/d.mp4")
    lines = ["# my pictures", "", "  y/b.png  ", "a.png", str(here / "c.png"), "d.mp4", "*.png", "rtsp://host/live"]
    Path("x/list.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    pictures, video, stream = find_sources(["x/list.txt"])
    assert numbers(pictures) == [2, 1, 3]
    assert numbers(video) == list(range(6))
    assert isinstance(stream, Live)


@pytest.mark.parametrize(
    ("content", "error", "sentence"),
    [
        (b"a.png\n\nb.png\n", FileNotFoundError, r"^Line 3 of list\.txt: Nothing at b\.png"),
        (b"other.txt\n", ValueError, r"^Line 1 of list\.txt: other\.txt is a list itself"),
        (b"# nothing\n\n", ValueError, r"^list\.txt lists nothing: expected"),
        (b"\xff\xfe\x00\xd8", ValueError, r"^list\.txt is no list of names: expected text in UTF-8"),
        (b"a.png\nb\x00.png\n", ValueError, r"^Line 2 of list\.txt: 'b\\x00\.png' is no name: expected text"),
        (b"-\n", ValueError, r"^Line 1 of list\.txt: Raw frames .* --raw-size HEIGHTxWIDTH"),
        (b"ftp://u:secret@h/a\n", ValueError, r"^Line 1 of list\.txt: ftp://h/a is no address"),
    ],
)
def test_a_list_that_is_wrong_says_where(here, content, error, sentence):
    paint("a.png")
    Path("other.txt").write_text("a.png")
    Path("list.txt").write_bytes(content)
    with pytest.raises(error, match=sentence):
        find_sources(["list.txt"])


# what is missing or wrong


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("nowhere.png", FileNotFoundError, "Nothing at nowhere.png: expected a picture, a video, a folder"),
        ("", FileNotFoundError, "Nothing at '': expected"),
        ("/dev/video99", FileNotFoundError, "No camera at /dev/video99"),
        ("ftp://host/a.png", ValueError, "ftp://host/a.png is no address that can be read: expected rtsp://"),
        ("file:///a.png", ValueError, "file:///a.png is no address"),
        ("http://", ValueError, "http:// names no host: expected an address such as http://host/path"),
        ("http://host:port/a.mp4", ValueError, "http://host:port/a.mp4 is no address that can be read"),
        ("http://me:sec/ret@host/a.mp4", ValueError, "^http://host/a.mp4 is no address that can be read: (?!.*sec)"),
        ("http://.host/a.mp4", OSError, "http://.host/a.mp4 cannot be read"),
        ("rtsp://[::1/a", ValueError, "is no address that can be read"),
        ("x" * 300 + ".png", OSError, "cannot be read: File name too long"),
    ],
)
def test_a_name_for_nothing_is_told_so_in_a_sentence(here, name, error, sentence):
    with pytest.raises(error, match=sentence):
        find_sources([name])


def test_no_name_at_all_is_told_so():
    with pytest.raises(ValueError, match="Nothing to read: give a picture"):
        find_sources([])


@pytest.mark.parametrize("rate", [0, -1.0, 1e-6, 1e7, float("nan"), float("inf")])
def test_a_rate_is_one_that_a_video_can_have(rate):
    with pytest.raises(ValueError, match="frames a second; expected 0.001 to 1000"):
        find_sources(["a.png"], rate=rate)


def test_a_named_pipe_is_no_file(here):
    os.mkfifo("pipe")
    with pytest.raises(ValueError, match="pipe is neither a file nor a camera"):
        find_sources(["pipe"])


@pytest.mark.parametrize("name", ["97", "/dev/null"])
def test_a_camera_that_is_not_there_is_told_on_use(here, name):
    source = only(name)
    assert source.live
    assert source.name == ("null" if name == "/dev/null" else f"camera{name}")
    with pytest.raises(OSError, match=name):
        next(source.captures())


# standard input


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
from streamseg.io.sources import find_sources
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
    with pytest.raises(
        CutShort, match=r"within a frame of 2 x 3 pixels \(3 of 18 bytes\), after 1 whole frame: was it"
    ):
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


# web servers


def test_a_picture_comes_from_a_web_server(here):
    paint("a.png", 4)
    paint("b.png", 5)
    Path("b.png").rename("snapshot")
    with file_server(here) as url, file_server(here, kind="image/png; charset=binary") as other:
        source = only(f"{url}/a.png", f"{other}/snapshot?size=1", "a.png")
        captures = list(source.captures())
    assert [number(capture.frame) for capture in captures] == [4, 5, 4]
    assert [capture.name for capture in captures] == ["127-0-0-1_a", "snapshot", f"{here.name}_a"]
    assert source.paths == (Path("a.png"),)


def test_an_animation_from_a_web_server_is_told(here):
    Image.fromarray(shade(2)).save("a.gif", save_all=True, append_images=[Image.fromarray(shade(9))])
    with file_server(here) as url:
        (capture,) = only(f"{url}/a.gif").captures()
    assert capture.note.endswith("/a.gif holds several pictures: its first is taken.")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_video_comes_from_a_web_server(here, ranges):
    film("a film.mp4")
    with file_server(here, ranges=ranges) as url:
        source = only(f"{url}/a film.mp4?x=1")
        assert isinstance(source, VideoFile)
        assert (source.name, source.rate) == ("127-0-0-1_a film", 25)
        assert numbers(source) == list(range(6))


def stream(path, format):
    """A video that is written from its beginning to its end, and does not know how long it will be."""
    options = {"movflags": "frag_keyframe+empty_moov"} if format == "mp4" else {}
    with (
        Path(path).open("wb") as file,
        av.open(SimpleNamespace(write=file.write), "w", format=format, container_options=options) as container,
    ):
        stream = container.add_stream("mpeg4", rate=25, width=WIDTH, height=HEIGHT, pix_fmt="yuv420p")
        stream.options = {"g": "5"}
        for i in range(100):
            noise = numpy.random.default_rng(i).integers(0, 256, (HEIGHT, WIDTH, 3), numpy.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        container.mux(stream.encode(None))


def test_a_web_server_that_does_not_tell_the_length_of_a_file_makes_no_live_stream_of_it(here):
    for name in ("a.mp4", "a.mkv", "a.ts"):
        film(name)
    Path("b").write_bytes(Path("a.mkv").read_bytes())
    for name, format in (("live.mkv", "matroska"), ("live", "mp4")):
        stream(name, format)
    with file_server(here, length=False, ranges=False) as url:
        assert {name: only(f"{url}/{name}").live for name in ("a.mp4", "a.mkv", "b", "live.mkv", "live", "a.ts")} == {
            **dict.fromkeys(("a.mp4", "a.mkv", "b"), False),
            **dict.fromkeys(("live.mkv", "live", "a.ts"), True),
        }
    with file_server(here, length=False) as url:
        assert not only(f"{url}/a.ts").live  # whose end FFmpeg has looked at


@pytest.fixture
def temporary(here, monkeypatch):
    """A folder for temporary files."""
    (here / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(here / "temporary"))
    return here / "temporary"


def shoot(path):
    """A video whose index comes last, and that is too large for FFmpeg to keep in mind."""
    film(path, movflags="-faststart")
    data = Path(path).read_bytes()
    place = data.index(b"mdat") - 4
    size = int.from_bytes(data[place : place + 4])
    # more behind the frames than the index knows of
    end = place + size
    longer = (size + 2**20).to_bytes(4)
    Path(path).write_bytes(data[:place] + longer + data[place + 4 : end] + bytes(2**20) + data[end:])


def test_a_video_whose_index_comes_last_is_copied_from_a_server_that_gives_no_parts(here, temporary):
    shoot("a.mp4")
    with file_server(here, ranges=False) as url:
        source = only(f"{url}/a.mp4")
        captures = list(source.captures())
        assert [number(capture.frame) for capture in captures] == list(range(6))
        (copy,) = temporary.iterdir()
        assert copy.read_bytes() == Path("a.mp4").read_bytes()
        assert (source.rate, source.audio_from) == (25, str(copy))
        assert [capture.note for capture in captures if capture.note] == [
            f"{url}/a.mp4 was downloaded first: its index comes last, and its server gives no parts."
        ]
    del source
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_video_that_can_be_read_as_it_comes_is_not_copied(here, temporary):
    film("a.mp4")
    shoot("b.mp4")
    Path("c.mp4").write_text("no video")
    with file_server(here) as url, file_server(here, ranges=False) as poor:
        for address in (f"{poor}/a.mp4", f"{url}/b.mp4"):
            source = only(address)
            assert numbers(source)
            assert source.audio_from == address
        with pytest.raises(ValueError, match=f"{poor}/c.mp4 is not a video that can be read"):
            numbers(only(f"{poor}/c.mp4"))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "room", "sentence"),
    [
        ({}, 2**20, "has to be downloaded first, and its 1 MB have no room in .*temporary: set TMPDIR to a folder"),
        ({"length": False}, 2**20, "has to be downloaded first, and its 1 MB have no room in .*temporary: set TMPDIR"),
        ({"share": 0.9}, 2**30, r"is cut short: \d\d\d,\d\d\d bytes of it did not come\."),
    ],
)
def test_what_cannot_be_copied_is_told_and_leaves_nothing(here, temporary, monkeypatch, options, room, sentence):
    shoot("a.mp4")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=web.ROOM + room))
    with (
        file_server(here, ranges=False, **options) as url,
        pytest.raises(ValueError, match=f"^{url}/a.mp4 {sentence}"),
    ):
        next(only(f"{url}/a.mp4").captures())
    assert list(temporary.iterdir()) == []


def test_a_video_that_stops_in_its_middle_gives_what_came(here):
    film("a.mp4", count=12)
    seen = []
    with file_server(here, share=0.7) as url, pytest.raises(CutShort, match=url):
        seen.extend(number(capture.frame) for capture in only(f"{url}/a.mp4").captures())
    assert 2 < len(seen) < 12
    assert seen[:-1] == list(range(len(seen) - 1))  # the last may be half there


def test_a_picture_that_stops_in_its_middle_is_refused(here):
    paint("a.png", size=(300, 300))
    with file_server(here, share=0.7) as url, pytest.raises(ValueError, match=f"{url}/a.png is damaged or cut short"):
        next(only(f"{url}/a.png").captures())


def test_what_a_web_server_does_not_have_is_told(here):
    with file_server(here) as url:
        with pytest.raises(OSError, match=f"^{url}/a.mp4 answered 404 Not Found.$"):
            find_sources([f"{url}/a.mp4"])
        with pytest.raises(OSError, match=f"^{url}/a.png answered 404 Not Found.$"):
            next(only(f"{url}/a.png").captures())
    for name in ("a.mp4", "a.png"):
        with pytest.raises(OSError, match=f"^{url}/{name} cannot be read: Connection refused.$"):
            next(only(f"{url}/{name}").captures())


@pytest.mark.parametrize(("kind", "word"), [("text/html", "a web page"), ("audio/mpeg", "sound")])
def test_what_is_no_video_on_a_web_server_is_told(here, kind, word):
    Path("a").write_text("hello")
    with file_server(here, kind=kind) as url, pytest.raises(ValueError, match=f"/a is {word}, not a video"):
        find_sources([f"{url}/a"])


@pytest.mark.parametrize(
    ("lists", "live"),
    [
        ({"a.m3u8": "#EXTM3U\n#EXTINF:1\n1.ts\n"}, True),
        ({"a.m3u8": "#EXTM3U\n#EXTINF:1\n1.ts\n#EXT-X-ENDLIST\n"}, False),
        ({"a.m3u8": "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nb.m3u8\n", "b.m3u8": "#EXTM3U\n#EXT-X-ENDLIST\n"}, False),
        ({"a.m3u8": "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nb.m3u8\n", "b.m3u8": "#EXTM3U\n"}, True),
    ],
)
def test_a_playlist_is_live_until_it_has_an_end(here, lists, live):
    for name, text in lists.items():
        Path(name).write_text(text)
    with file_server(here) as url:
        assert only(f"{url}/a.m3u8").live == live


def test_a_playlist_with_an_end_becomes_its_frames(here):
    film("1.ts")
    Path("a.m3u8").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.24\n1.ts\n#EXT-X-ENDLIST\n")
    with file_server(here) as url:
        assert numbers(only(f"{url}/a.m3u8")) == list(range(6))


def test_a_password_opens_a_web_server_and_is_shown_nowhere(here):
    paint("a.png", 4)
    film("a.mp4")
    with file_server(here, login="me:s€cret") as url:
        private = url.replace("://", "://me:s%E2%82%ACcret@")
        assert numbers(only(f"{private}/a.png")) == [4]
        video = only(f"{private}/a.mp4")
        assert numbers(video) == list(range(6))
        assert "cret" not in f"{video} {only(f'{private}/a.png')} {video.name}"
        for address in (f"{url}/a.mp4", f"{url.replace('://', '://me:wrong@')}/a.mp4"):
            with pytest.raises(
                OSError, match=f"^{url}/a.mp4 answered 401 Unauthorized. Is it the right user and password"
            ):
                find_sources([address])
        with pytest.raises(OSError, match=f"^{url}/b.mp4 answered 404"):
            find_sources([f"{private}/b.mp4"])


# live streams


SHADES = [shade(i) for i in range(12)]
"""What live streams show, again and again; their first frames go into finding out what they are."""


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
    assert re.fullmatch(rf"{shown} went away and came back after \d\.\d s\.", note)
    away = f"went away after {len(captures)} frames and did not come back"
    assert re.fullmatch(rf"{shown} {away} within \d s\.", sentence)


def test_a_network_camera_is_followed_until_it_stays_away(brief_waits):
    with RtspServer(SHADES, visits=[60]) as server:
        source = only(server.address)
        captures, sentence = watch(source)
    (seen,) = visits(captures)
    assert seen[-1] == 59 % 12
    assert [capture.index for capture in captures] == list(range(len(captures)))
    assert (source.live, source.moving, source.name) == (True, True, "127-0-0-1_live")
    assert sentence.startswith(f"{server.address} went away after {len(seen)} frames and did not come back within ")
    assert server.requests[-4:] == ["OPTIONS", "DESCRIBE", "SETUP", "PLAY"]


def test_a_network_camera_that_comes_back_is_followed_again(brief_waits):
    with RtspServer(SHADES, visits=[60, 50, 40]) as server:
        captures, sentence = watch(only(server.address))
    assert [part[-1] for part in visits(captures)] == [59 % 12, 49 % 12, 39 % 12]
    assert [capture.index for capture in captures] == list(range(len(captures)))
    note = next(capture.note for capture in captures if capture.note)
    assert note.startswith(f"{server.address} went away and came back after ")
    seconds = [capture.seconds for capture in captures]
    assert seconds == sorted(set(seconds))
    assert seconds[0] == 0.0
    assert f"went away after {len(captures)} frames" in sentence


def test_the_waits_begin_anew_when_a_frame_has_come(brief_waits):
    with RtspServer(SHADES, visits=[40] * 6) as server:
        captures, _ = watch(only(server.address))
    assert len(visits(captures)) == 6


def test_a_network_camera_that_goes_on_can_be_left():
    with RtspServer(SHADES, visits=[None, None]) as server:
        captures = only(server.address).captures()
        visits(list(islice(captures, 20)))
        captures.close()
        frames = read_frames(server.address)
        next(frames)
        frames.close()
    assert server.requests.count("TEARDOWN") == 2


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


# hostile files


def spoil(data, dice):
    """A file with some bits flipped, or cut, or both, or a piece of it repeated."""
    data = bytearray(data)
    for _ in range(dice.choice([0, 1, 3, 30])):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.3:
        del data[dice.randrange(len(data)) :]
    if dice.random() < 0.1:
        data[dice.randrange(len(data) + 1) : 0] = data[: dice.randrange(len(data) + 1)]
    return bytes(data)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.tiff", "a.gif"])
def test_a_spoilt_picture_gives_a_frame_or_a_sentence(here, name):
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
