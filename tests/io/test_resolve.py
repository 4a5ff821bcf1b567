import os
import re
from pathlib import Path

import pytest
from PIL import Image
from source_files import film, names, number, numbers, only, paint, shade

from streamseg.io.resolve import find_sources, read_frames, resolve_sources
from streamseg.io.sources import LiveSource, Pictures, VideoFile


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


def test_a_picture_without_a_suffix_is_known_by_its_content(here):
    Image.fromarray(shade(4)).save("photo", format="PNG")
    assert numbers(only("photo")) == [4]


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


def test_read_frames_gives_the_frames_of_anything(here):
    paint("x/1.png", 1)
    film("x/2.mp4", count=3)
    assert [number(frame) for frame in read_frames("x")] == [1, 0, 1, 2]
    assert [number(frame) for frame in read_frames(here / "x" / "1.png")] == [1]
    with pytest.raises(FileNotFoundError, match="Nothing at nowhere.png"):
        read_frames("nowhere.png")


@pytest.mark.parametrize("source", [0.5, None, True, ["a.png"], b"a.png"])
def test_a_source_of_another_type_is_refused(source):
    with pytest.raises(ValueError, match=f"^The source is {re.escape(repr(source))}, a .*; expected a path"):
        read_frames(source)


def test_a_number_is_a_camera(here):
    with pytest.raises(OSError, match="amera 97"):
        next(read_frames(97))


def test_names_that_cannot_be_resolved_do_not_affect_others(here):
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


def test_numbered_pictures_end_at_a_gap_and_say_so(here):
    for i in (3, 4, 6, 7):
        paint(f"{i}.png", i)
    captures = list(only("%d.png").captures())
    assert [number(capture.frame) for capture in captures] == [3, 4]
    assert [capture.note for capture in captures] == [
        "5.png is missing: the video ends before it, ignoring 2 later pictures.",
        "",
    ]


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


def test_a_folder_without_pictures_or_videos_is_refused(here):
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
    assert isinstance(stream, LiveSource)


@pytest.mark.parametrize(
    ("content", "error", "sentence"),
    [
        (b"a.png\n\nb.png\n", FileNotFoundError, r"^Line 3 of list\.txt: Nothing at b\.png"),
        (b"other.txt\n", ValueError, r"^Line 1 of list\.txt: other\.txt is a list in a list"),
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
def test_a_name_that_cannot_be_resolved_is_an_error_in_one_sentence(here, name, error, sentence):
    with pytest.raises(error, match=sentence):
        find_sources([name])


def test_an_empty_list_of_names_is_refused():
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
