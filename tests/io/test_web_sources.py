import gc
import shutil
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import av
import numpy
import pytest
from PIL import Image
from servers import file_server
from source_files import HEIGHT, WIDTH, film, number, numbers, only, paint, shade
from waiting import PATIENCE

from streamseg.checks import CutShort
from streamseg.io import resolve, web
from streamseg.io.resolve import find_sources, resolve_sources
from streamseg.io.sources import LiveSource, VideoFile, open_stream


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


def test_many_addresses_are_asked_at_once_and_a_dead_one_holds_up_no_other(here, monkeypatch):
    meeting, asked = threading.Barrier(12), []

    def find_address(address):
        asked.append(address)
        meeting.wait(PATIENCE)  # nobody has an answer before all have been asked
        if "dead" in address:
            raise OSError(f"{address} cannot be read: it did not answer.")
        return LiveSource(address[7:], address, open_stream)

    monkeypatch.setattr(resolve, "find_address", find_address)
    names = [f"http://{'dead' if i % 2 else 'live'}{i}" for i in range(12)]
    Path("list.txt").write_text("\n".join([*names[6:], names[0]]))
    found, problems = resolve_sources([*names[:6], "list.txt"])
    assert [source.name for source in found] == [f"live{i}" for i in range(0, 12, 2)]
    assert sorted(asked) == sorted(names)
    assert [str(problem) for problem in problems] == [
        f"{f'Line {i - 5} of list.txt: ' if i > 5 else ''}http://dead{i} cannot be read: it did not answer."
        for i in range(1, 12, 2)
    ]


def test_an_animation_from_a_web_server_is_told(here):
    Image.fromarray(shade(2)).save("a.gif", save_all=True, append_images=[Image.fromarray(shade(9))])
    with file_server(here) as url:
        (capture,) = only(f"{url}/a.gif").captures()
    assert capture.note.endswith("/a.gif holds several pictures: the first is used.")


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
            f"{url}/a.mp4 was downloaded first: its index comes last, and its server sends no parts."
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
        (
            {},
            2**20,
            "has to be downloaded first, and its 1 MB do not fit into .*temporary: set TMPDIR to a larger",
        ),
        ({"length": False}, 2**20, "has to be downloaded first, and its 1 MB do not fit into .*temporary: set TMPDIR"),
        ({"share": 0.9}, 2**30, r"is cut short: \d\d\d,\d\d\d bytes are missing\."),
    ],
)
def test_what_cannot_be_copied_is_told_and_leaves_nothing(here, temporary, monkeypatch, options, room, sentence):
    shoot("a.mp4")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=web.DISK_RESERVE + room))
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
