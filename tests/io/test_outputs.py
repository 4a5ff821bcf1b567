import os
import time
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch
from clips import make_clip, picture
from limits import full_disk
from PIL import Image

import streamseg
from streamseg.io.images import write_image
from streamseg.io.outputs import FrameOutput, OutputFiles, check_json_lines, open_writer, plan_outputs, share_plan
from streamseg.io.resolve import find_sources
from streamseg.io.sources import Capture, RawFrames
from streamseg.io.video_reading import open_video, read_label_video
from streamseg.io.video_writing import open_video_writer


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a picture, pictures in another, a video, and numbered pictures; it is the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "x/b.png", "x/c.jpg", "n/f_0007.png", "n/f_0008.png"):
        Path(name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (64, 48)).save(name)
    make_clip(Path("v.mp4"), 3)
    return tmp_path


def planned(*names, out="", **options):
    """The files that sources are to become, as text: those of all, or of the only source."""
    sources = find_sources(names, raw_size=(48, 64))
    files = [[str(path) for path in places.paths] for places in plan_outputs(sources, out, **options)]
    return files[0] if len(files) == 1 else files


ALL = {"labels": True, "confidence": True}


@pytest.mark.parametrize(
    ("names", "out", "files"),
    [
        (["a.png"], "", ["{name}-overlay.png", "{name}-labels.png", "{name}-confidence.png"]),
        (["a.png"], "r.jpg", ["r.jpg", "r-labels.png", "r-confidence.png"]),
        (["a.png"], "a-overlay.png", ["a-overlay.png", "a-labels.png", "a-confidence.png"]),
        (["a.png"], "x", ["x/{name}-overlay.png", "x/{name}-labels.png", "x/{name}-confidence.png"]),
        (["a.png"], "y.z/", ["y.z/{name}-overlay.png", "y.z/{name}-labels.png", "y.z/{name}-confidence.png"]),
        (["a.png"], "y/z", ["y/z/{name}-overlay.png", "y/z/{name}-labels.png", "y/z/{name}-confidence.png"]),
        (
            ["x"],
            "",
            ["segmented/{name}-overlay.png", "segmented/{name}-labels.png", "segmented/{name}-confidence.png"],
        ),
        (["x"], "r_%02d.png", ["r_%02d.png", "r_%02d-labels.png", "r_%02d-confidence.png"]),
        (["v.mp4"], "", ["v-overlay.mp4", "v-labels.mkv", "v-confidence.mkv"]),
        (["v.mp4"], "r.webm", ["r.webm", "r-labels.mkv", "r-confidence.mkv"]),
        (["v.mp4"], "r%d.mp4", ["r%d.mp4", "r%d-labels.mkv", "r%d-confidence.mkv"]),
        (["v.mp4"], "r_%05d.jpg", ["r_%05d.jpg", "r_%05d-labels.png", "r_%05d-confidence.png"]),
        (["n/f_%04d.png"], "", ["f-overlay.mp4", "f-labels.mkv", "f-confidence.mkv"]),
        (["-"], "r.mov", ["r.mov", "r-labels.mkv", "r-confidence.mkv"]),
        (["0"], "y", ["y/camera0-overlay.mp4", "y/camera0-labels.mkv", "y/camera0-confidence.mkv"]),
    ],
)
def test_the_results_go_where_they_are_told(here, names, out, files):
    before = sorted(here.rglob("*"))
    assert planned(*names, out=out, **ALL) == files
    assert sorted(here.rglob("*")) == before  # nothing is made before there is something to write


def test_only_what_is_wanted_is_written(here):
    assert planned("a.png") == ["{name}-overlay.png"]
    assert planned("a.png", labels=True) == ["{name}-overlay.png", "{name}-labels.png"]
    assert planned("v.mp4", overlay=False, confidence=True) == ["v-confidence.mkv"]
    assert planned("v.mp4", overlay=False) == []
    assert planned("v.mp4", out="-") == []
    with pytest.raises(ValueError, match="Standard output takes raw labels only"):
        planned("v.mp4", out="-", labels=True)


def test_each_of_several_sources_has_files_of_its_own(here):
    make_clip(Path("x/v.mp4"), 3)
    assert planned("v.mp4", "a.png", "x", "n/f_%04d.png", out="y") == [
        [f"y/{here.name}_v-overlay.mp4"],
        ["y/{name}-overlay.png"],
        ["y/x_v-overlay.mp4"],
        ["y/f-overlay.mp4"],
    ]


def test_a_file_of_a_frame_has_its_name_and_number():
    capture = Capture(picture(0), "a%d{name}", 12, 0.48, 0.0)
    assert OutputFiles(Path("y%d/{name}-overlay.png")).for_capture(capture).overlay == Path("y%d/a%d{name}-overlay.png")
    assert OutputFiles(labels=Path("f_%05d.png")).for_capture(capture).labels == Path("f_00012.png")
    assert OutputFiles(labels=Path("f%d.png")).for_capture(capture) == OutputFiles(labels=Path("f12.png"))


def test_the_next_part_of_a_video_takes_no_file_that_is_planned(here):
    first, second = share_plan([OutputFiles(Path("a.mp4")), OutputFiles(Path("a-2.mp4").absolute())])
    assert first.next_part().paths == [Path("a-3.mp4")]
    assert second.next_part().paths == [Path("a-2-2.mp4").absolute()]


def test_what_is_missing_changes_nothing_about_where_the_others_go(here):
    assert planned("a.png", out="r.png") == ["r.png"]
    assert planned("a.png", missing=1) == ["segmented/{name}-overlay.png"]
    assert planned("x", out="r_%d.png") == ["r_%d.png"]
    for names, out in ((["a.png"], "r.png"), (["x"], "r_%d.png")):
        with pytest.raises(ValueError, match="is one file, and there are several to write"):
            planned(*names, out=out, missing=1)
    with pytest.raises(ValueError, match="The labels of 2 sources cannot share standard output"):
        planned("a.png", out="-", missing=1)


@pytest.mark.parametrize(
    ("names", "out", "sentence"),
    [
        (["a.png"], "a.png", "a.png is an input: give another name to write to."),
        (["a.png"], "./x/../a.png", "a.png is an input"),
        (["v.mp4"], "v.mp4", "v.mp4 is an input"),
        (["a.png", "x"], "x/b.png", "x/b.png is one file, and there are several to write: the last name"),
        (["a.png", "v.mp4"], "r.mp4", "r.mp4 is one file, and there are several to write"),
        (["x"], "r.png", "r.png is one file, and there are several to write"),
        (["n/f_%04d.png"], "n/f_%04d.png", "n/f_0007.png is an input"),
        (["v.mp4"], "n/f_%04d.png", "n/f_0007.png exists and was not written by streamseg"),
        (["x"], "n/%d.png", None),
        (["v.mp4"], "r.png", "r.png is one picture, and v has many: give a video, or r_%05d.png."),
        (["a.png"], "r.mp4", "r.mp4 does not have the suffix of a picture; expected one of .png"),
        (["v.mp4"], "r.avi", "r.avi does not have the suffix of a video; expected one of .mp4"),
        (["a.png"], "x/b.png", "x/b.png exists and was not written by streamseg"),
        (["a.png"], "nowhere/r.png", "No folder nowhere to write r.png into: create it first."),
        (["v.mp4"], "nowhere/r.mp4", "No folder nowhere to write r.mp4 into: create it first."),
        (["a.png", "v.mp4"], "-", "The labels of 2 sources cannot share standard output: give a folder."),
    ],
)
def test_what_cannot_be_written_or_would_destroy_something_is_refused(here, names, out, sentence):
    before = sorted(here.rglob("*"))
    if sentence is None:
        planned(*names, out=out)
    else:
        with pytest.raises((ValueError, OSError)) as problem:
            planned(*names, out=out)
        assert sentence in str(problem.value)
    assert sorted(here.rglob("*")) == before


def test_no_source_is_overwritten_by_what_becomes_of_another(here):
    for name in ("a-overlay.png", "b.png"):
        write_image(Path(name), picture(0))
    for names in (["a.png", "a-overlay.png"], ["a-overlay.png", "a.png"], ["a.png", "b.png", "x", "a-overlay.png"]):
        with pytest.raises(ValueError, match="a-overlay.png is an input: give another name to write to"):
            planned(*names, out=".")
    # what was written before, and is not read, may be written again
    assert planned("a.png", out="a-overlay.png") == ["a-overlay.png"]


def test_a_video_does_not_overwrite_another_source(here):
    make_clip(Path("w.mp4"), 2)
    Path("v.mp4").replace("w-overlay.mp4")
    with pytest.raises(ValueError, match="w-overlay.mp4 is an input"):
        planned("w.mp4", "w-overlay.mp4", out=".")


def test_a_link_to_what_is_read_is_refused(here):
    Path("link.png").symlink_to("a.png")
    with pytest.raises(ValueError, match="link.png is an input"):
        planned("a.png", out="link.png")
    os.link("a.png", "twin.png")
    with pytest.raises(ValueError, match="twin.png exists and was not written by streamseg"):
        planned("a.png", out="twin.png")


def test_what_streamseg_wrote_is_replaced_and_labels_beside_it_are_looked_at_too(here):
    for name in ("r.png", "r.bmp", "r.jpg"):
        write_image(Path(name), picture(0))
        assert planned("a.png", out=name) == [name]
    with open_video_writer(Path("r.mp4"), (48, 64), Fraction(25)) as video:
        video.write(picture(0), 0.0)
    for i in range(3):
        write_image(Path(f"r_{i}.png"), picture(i))
    assert planned("v.mp4", out="r.mp4") == ["r.mp4"]
    assert planned("v.mp4", out="r_%d.png") == ["r_%d.png"]
    Path("r-labels.png").write_bytes(b"my own")
    Path("r-labels.mkv").write_bytes(b"my own")
    with pytest.raises(ValueError, match="r-labels.png exists"):
        planned("a.png", out="r.png", labels=True)
    with pytest.raises(ValueError, match="r-labels.mkv exists"):
        planned("v.mp4", out="r.mp4", labels=True)


def test_what_streamseg_wrote_is_kept_while_it_is_read(here):
    for i in range(2):
        write_image(Path(f"r_{i}.png"), picture(i))
    with pytest.raises(ValueError, match="r_0.png is an input"):
        planned("r_%d.png", out="r_%d.png")
    with pytest.raises(ValueError, match="r_0.png is an input"):
        planned("r_0.png", "a.png", out="r_%d.png")


@pytest.mark.parametrize(
    ("path", "content", "sentence"),
    [
        ("r.json", None, None),
        ("r.json", "", None),
        ("r.json", '{"source": "v", "mask_age_ms": 1.0}\n{"summary": {}}\n', None),
        ("r.json", '{"summary": {}}\n', None),
        ("r.json", '{"my own": 1}\n', "r.json exists and was not written by streamseg: give another name"),
        ("r.json", "[" * 100_000, "r.json exists and was not written by streamseg"),
        ("notes.txt", "my own", "notes.txt exists and was not written by streamseg"),
        ("x/b.png", None, "x/b.png is an input or output already: give another name for --json."),
        ("y/c-overlay.png", None, "y/c-overlay.png is an input or output already"),
        ("nowhere/r.json", None, "No folder nowhere to write r.json into: create it first."),
    ],
)
def test_lines_of_json_take_the_place_of_their_like_alone(here, path, content, sentence):
    Path("y").mkdir()
    if content is not None:
        Path(path).write_text(content)
    sources = find_sources(["x"])
    if sentence is None:
        check_json_lines(Path(path), sources, plan_outputs(sources, "y"))
    else:
        with pytest.raises((ValueError, OSError)) as problem:
            check_json_lines(Path(path), sources, plan_outputs(sources, "y"))
        assert sentence in str(problem.value)


def drawn(i, size=(48, 64)):
    """A frame of a number and what is drawn of it; labels and confidence are its number."""
    capture = Capture(picture(i, size), f"p{i}", i, i / 10, time.monotonic())
    flat = torch.full(size, i, dtype=torch.uint8)
    return FrameOutput(capture, capture.frame, flat, flat + 100)


SOURCE = RawFrames((48, 64), Fraction(10))
EVERY = OutputFiles(Path("y/r.mp4"), Path("y/r-labels.mkv"), Path("y/r-confidence.mkv"))


def test_pictures_appear_one_by_one(here):
    places = OutputFiles(Path("y/{name}.png"), Path("y/{name}-labels.png"), Path("y/{name}-confidence.png"))
    with open_writer(places, SOURCE, streamseg.CAMVID) as write:
        assert not Path("y").exists()
        for i in range(3):
            write(drawn(i))
            assert streamseg.read_image(f"y/p{i}.png").equal(picture(i))
            labels = Image.open(f"y/p{i}-labels.png")
            assert (labels.mode, labels.getextrema()) == ("P", (i, i))
            confidence = Image.open(f"y/p{i}-confidence.png")
            assert (confidence.mode, confidence.getextrema()) == ("L", (100 + i, 100 + i))
            assert len(list(Path("y").iterdir())) == 3 * (i + 1)


def test_a_video_appears_at_the_end_with_its_times(here):
    with open_writer(EVERY, SOURCE, streamseg.CAMVID) as write:
        for i in range(4):
            write(drawn(i))
            assert not [path for path in Path("y").iterdir() if not path.name.startswith(".streamseg-")]
    assert sorted(Path("y").iterdir()) == sorted(EVERY.paths)
    with open_video("y/r.mp4") as video:
        assert (video.size, video.rate) == ((48, 64), 10)
        assert [seconds for _, seconds in video] == pytest.approx([0, 0.1, 0.2, 0.3])
    for path, first in ((EVERY.labels, 0), (EVERY.confidence, 100)):
        found = list(read_label_video(path))
        assert [labels.unique().tolist() for labels, _ in found] == [[first + i] for i in range(4)]
        assert [seconds for _, seconds in found] == pytest.approx([0, 0.1, 0.2, 0.3], abs=1e-3)


def test_a_video_begins_with_the_first_frame_that_is_written(here):
    # of a live source those before it may have been dropped
    with open_writer(EVERY, SOURCE, streamseg.CAMVID) as write:
        for i in range(7, 10):
            write(drawn(i))
    for path in EVERY.paths:
        with av.open(str(path)) as container:
            assert not container.streams.video[0].start_time
            assert container.duration / av.time_base == pytest.approx(0.3, abs=2e-3)


def test_without_a_frame_nothing_appears(here):
    with open_writer(EVERY, SOURCE, streamseg.CAMVID):
        pass
    assert not Path("y").exists()


def test_after_an_error_no_video_appears(here):
    with pytest.raises(ZeroDivisionError), open_writer(EVERY, SOURCE, streamseg.CAMVID) as write:
        write(drawn(0))
        raise ZeroDivisionError
    assert list(Path("y").iterdir()) == []


def test_on_a_full_disk_all_videos_of_a_source_are_given_up(here):
    noise = torch.randint(0, 256, (480, 640), dtype=torch.uint8)
    with (
        pytest.raises(OSError, match=r"^Could not write y/r-(labels|confidence)\.mkv: File too large\.$"),
        full_disk(200_000),
        open_writer(EVERY, SOURCE, streamseg.CAMVID) as write,
    ):
        for i in range(20):
            entry = drawn(i, (480, 640))
            write(FrameOutput(entry.capture, entry.overlay, noise, noise))
    assert list(Path("y").iterdir()) == []


def test_on_a_full_disk_a_picture_and_its_labels_are_given_up_together(here):
    noise = torch.randint(0, 256, (480, 640), dtype=torch.uint8)
    places = OutputFiles(Path("r.png"), Path("r-labels.png"))
    with (
        full_disk(100_000),
        open_writer(places, SOURCE, streamseg.CAMVID) as write,
        pytest.raises(OSError, match=r"^Could not write r-labels\.png: File too large\.$"),
    ):
        write(FrameOutput(drawn(0).capture, picture(0), noise, None))
    assert not list(here.glob("r*"))
    assert not list(here.glob(".streamseg-*"))


@pytest.mark.parametrize("folder", ["a.png/y", "/proc/y"])
def test_a_folder_that_cannot_be_made_is_a_sentence(here, folder):
    places = OutputFiles(Path(folder) / "r.png")
    with (
        open_writer(places, SOURCE, streamseg.CAMVID) as write,
        pytest.raises(OSError, match=f"^Could not make the folder {folder}: .*\\.$"),
    ):
        write(drawn(0))
