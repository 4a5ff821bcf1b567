import gc
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import numpy
import pytest
import torch
from clips import TURNS, cut, make_clip, number, picture, turn
from PIL import Image
from servers import RtspServer, file_server
from waiting import PATIENCE, until

import streamseg
from streamseg import cli
from streamseg.engine.folded import Folded
from streamseg.io import sources
from streamseg.io.images import write_image
from streamseg.io.video_reading import open_video, read_label_video
from streamseg.stream import network_thread


@pytest.fixture(scope="module")
def weights(model, tmp_path_factory):
    """A checkpoint of the small random network."""
    path = tmp_path_factory.mktemp("weights") / "camvid.safetensors"
    streamseg.save(model, streamseg.CAMVID, path)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, which is the current one; no proxy stands between it and its servers, and no screen is near."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return tmp_path


@pytest.fixture
def segment(here, monkeypatch, weights):
    """Runs the verb in this process and gives its exit status; what it prints is for capsys."""

    def segment(*arguments):
        defaults = {"--weights": weights, "--device": "cpu"}
        options = [part for option in defaults.items() if option[0] not in arguments for part in option]
        monkeypatch.setattr(sys, "argv", ["streamseg", "segment", *map(str, [*arguments, *options])])
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code
        return 0

    return segment


def start(weights, *arguments, **pipes):
    """Start the verb in a process of its own."""
    command = [sys.executable, "-m", "streamseg", "segment", *map(str, arguments), "--weights", weights]
    return subprocess.Popen([*command, "--device", "cpu"], **pipes)


def paint(path, i=0, size=(48, 64)):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(i, size).permute(1, 2, 0).numpy()).save(path)
    return Path(path)


def overlay_of(model, frame, **options):
    """The picture that is to be written of a frame."""
    return streamseg.overlay(frame, streamseg.segment(frame, model), streamseg.CAMVID, **options)


def watch(path):
    """The frames and times of a video."""
    with open_video(path) as video:
        return list(video)


def duration(path):
    """How long a video is, in seconds, as a player sees it."""
    with av.open(str(path)) as container:
        return container.duration / av.time_base


def made(folder, *besides):
    """The files in a folder, but for those named."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    return sorted(found - set(besides))


# every kind of source


def test_a_picture_becomes_an_overlay_and_nothing_else(here, segment, model, capsys):
    paint("street.png", 9)
    assert segment("street.png") == 0
    assert made(here) == ["street-overlay.png", "street.png"]
    assert streamseg.read_image("street-overlay.png").equal(overlay_of(model, picture(9)))
    shown = capsys.readouterr()
    assert shown.out.startswith("street: ")
    assert "%" in shown.out
    assert shown.out.endswith("\n  street-overlay.png\n")
    assert shown.err == ""


@pytest.mark.parametrize(
    "names", [["x/a.png", "x/b.jpg"], ["x"], ["x/*.*g"], ["list.txt"], ["**/*.*g"], ["x/b.jpg", "x"]]
)
def test_several_pictures_become_an_overlay_each(here, segment, model, names):
    paint("x/a.png", 3)
    paint("x/b.jpg", 20, (64, 96))
    Path("list.txt").write_text("x/a.png\n# and\nx/b.jpg\n")
    assert segment(*names, "out") == 0
    assert made(here / "out") == ["a-overlay.png", "b-overlay.png"]
    for name in ("a.png", "b.jpg"):
        frame = streamseg.read_image(f"x/{name}")
        assert streamseg.read_image(f"out/{name[0]}-overlay.png").equal(overlay_of(model, frame))


def test_several_results_have_a_folder_of_their_own(here, segment):
    paint("x/a.png")
    paint("x/b.png")
    assert segment("x") == 0
    assert made(here / "segmented") == ["a-overlay.png", "b-overlay.png"]


def test_a_folder_of_pictures_and_videos_becomes_both(here, segment):
    paint("x/a.png")
    make_clip(Path("x/v.mp4"), 3)
    make_clip(Path("x/w.mkv"), 4, size=(64, 96))
    assert segment("x", "out", "--labels") == 0
    assert made(here / "out") == [
        "a-labels.png",
        "a-overlay.png",
        *("v-labels.mkv", "v-overlay.mp4"),
        *("w-labels.mkv", "w-overlay.mp4"),
    ]
    assert [len(watch(f"out/{name}-overlay.mp4")) for name in "vw"] == [3, 4]


def save_upside_down(path):
    exif = Image.Exif()
    exif[0x0112] = 8  # a quarter turn
    Image.fromarray(picture(3).permute(1, 2, 0).numpy()).save(path, exif=exif)


def save_in_mode(path, mode):
    Image.fromarray(picture(3).permute(1, 2, 0).numpy()).convert(mode).save(path)


def save_16_bits(path):
    Image.fromarray(numpy.arange(48 * 64, dtype=numpy.uint16).reshape(48, 64) * 20).save(path)


@pytest.mark.parametrize(
    ("name", "save", "size"),
    [
        ("turned.jpg", save_upside_down, (64, 48)),
        ("grey.png", partial(save_in_mode, mode="L"), (48, 64)),
        ("bits.png", partial(save_in_mode, mode="1"), (48, 64)),
        ("clear.png", partial(save_in_mode, mode="RGBA"), (48, 64)),
        ("indexed.png", partial(save_in_mode, mode="P"), (48, 64)),
        ("sixteen.png", save_16_bits, (48, 64)),
        ("sixteen.tiff", save_16_bits, (48, 64)),
        ("print.jpg", partial(save_in_mode, mode="CMYK"), (48, 64)),
        ("tiny.png", lambda path: Image.new("RGB", (1, 1)).save(path), (1, 1)),
        ("strip.bmp", lambda path: Image.new("RGB", (3, 500)).save(path), (500, 3)),
    ],
)
def test_every_kind_of_picture_becomes_an_upright_overlay(here, segment, model, name, save, size):
    save(name)
    assert segment(name, "out.png", "--labels") == 0
    frame = streamseg.read_image(name)
    assert frame.shape[1:] == size
    assert streamseg.read_image("out.png").equal(overlay_of(model, frame))
    assert Image.open("out-labels.png").size == size[::-1]


def test_the_first_picture_of_an_animation_is_used_with_a_note(here, segment, model, capsys):
    first, second = (Image.fromarray(picture(i).permute(1, 2, 0).numpy()) for i in (3, 20))
    first.save("a.gif", save_all=True, append_images=[second])
    assert segment("a.gif") == 0
    assert streamseg.read_image("a-overlay.png").equal(overlay_of(model, streamseg.read_image("a.gif")))
    assert capsys.readouterr().err == "streamseg: a.gif holds several pictures: the first is used.\n"


@pytest.mark.parametrize("name", ["out.mp4", "out.mov", "out.mkv"])
def test_a_written_video_has_the_frames_the_rate_the_length_and_the_sound_of_the_one_read(here, segment, name, capsys):
    make_clip(Path("a.mp4"), 24, rate=Fraction(30000, 1001), sound="aac")
    assert segment("a.mp4", name, "--alpha", "0") == 0
    before, after = watch("a.mp4"), watch(name)
    assert [number(frame) for frame, _ in after] == [number(frame) for frame, _ in before] == list(range(24))
    assert [seconds for _, seconds in after] == pytest.approx([seconds for _, seconds in before], abs=2e-3)
    with open_video("a.mp4") as source, open_video(name) as written:
        assert (written.size, written.has_audio) == (source.size, True)
        assert float(written.rate) == pytest.approx(float(source.rate), rel=1e-3)
    assert duration(name) == pytest.approx(duration("a.mp4"), abs=0.06)
    shown = capsys.readouterr().out
    assert shown.startswith(f"a: {name}\n\nall frames: ")
    assert "seen at 48 x 64\n" in shown
    assert "24 read, 24 labelled, 24 written" in shown
    assert "Bottleneck: " in shown


def test_a_turned_video_becomes_an_upright_one(here, segment):
    turn(make_clip(Path("a.mp4"), 5), TURNS["a quarter clockwise"])
    assert segment("a.mp4", "out.mp4", "--labels", "--alpha", "0") == 0
    with open_video("a.mp4") as source, open_video("out.mp4") as written:
        assert written.size == source.size == (64, 48)
        for (before, _), (after, _) in zip(source, written, strict=True):
            assert (before.int() - after.int()).abs().float().mean() < 8
    assert all(labels.shape == (64, 48) for labels, _ in read_label_video("out-labels.mkv"))


def test_the_times_of_a_variable_frame_rate_are_kept(here, segment):
    times = [0.0, 0.04, 0.3, 0.31, 0.5, 1.5, 1.6]
    make_clip(Path("a.mp4"), times=times)
    assert segment("a.mp4", "out.mp4", "--labels") == 0
    assert [seconds for _, seconds in watch("out.mp4")] == pytest.approx(times, abs=2e-3)
    assert [seconds for _, seconds in read_label_video("out-labels.mkv")] == pytest.approx(times, abs=2e-3)


def test_pictures_and_videos_come_from_a_web_server(here, segment, model):
    paint("x/a.png", 7)
    make_clip(Path("x/v.mp4"), 5, sound="aac")
    with file_server(here / "x") as url:
        assert segment(f"{url}/a.png", f"{url}/v.mp4", "out", "--alpha", "0") == 0
    assert made(here / "out") == ["127-0-0-1_v-overlay.mp4", "a-overlay.png"]
    assert streamseg.read_image("out/a-overlay.png").equal(picture(7))
    assert [number(frame) for frame, _ in watch("out/127-0-0-1_v-overlay.mp4")] == list(range(5))
    with open_video("out/127-0-0-1_v-overlay.mp4") as video:
        assert video.has_audio


def test_a_network_camera_that_goes_away_for_good_keeps_its_video(here, segment, monkeypatch, capsys):
    monkeypatch.setattr(sources, "RECONNECT_DELAYS", (0.01, 0.02))
    frames = [picture(i).permute(1, 2, 0).contiguous().numpy() for i in range(12)]
    with RtspServer(frames, visits=[60, 60]) as server:
        assert segment(server.address, "out.mp4", "--json", "a.json") == 1
    *records, last = map(json.loads, Path("a.json").read_text().splitlines())
    counts = last["summary"]["frames"]
    assert counts["read"] == counts["labelled"] + counts["dropped"]
    assert len(watch("out.mp4")) == len(records) == counts["labelled"]
    indices = [record["frame"] for record in records]
    assert indices == sorted(set(indices))
    shown = capsys.readouterr()
    assert f"streamseg: {server.address} was lost after {counts['read']} frames and did not come back" in shown.err
    assert "127-0-0-1_live: out.mp4\n" in shown.out
    assert made(here) == ["a.json", "out.mp4"]


def test_numbered_pictures_become_a_video_and_a_video_numbered_pictures(here, segment):
    for i in range(5):
        paint(f"x/f_{i + 7:03d}.png", i)
    assert segment("x/f_%03d.png", "out.mp4", "--alpha", "0", "--rate", "10") == 0
    frames = watch("out.mp4")
    assert [number(frame) for frame, _ in frames] == list(range(5))
    assert [seconds for _, seconds in frames] == pytest.approx([i / 10 for i in range(5)], abs=1e-3)
    Path("y").mkdir()
    assert segment("out.mp4", "y/g_%05d.png", "--alpha", "0", "--labels") == 0
    assert made(here / "y") == sorted(f"g_{i:05d}{kind}.png" for i in range(5) for kind in ("", "-labels"))
    assert [number(streamseg.read_image(f"y/g_{i:05d}.png")) for i in range(5)] == list(range(5))


def test_raw_frames_come_through_a_pipe_and_raw_labels_leave_through_another(here, weights, model):
    frames = [picture(i) for i in range(6)]
    data = b"".join(frame.permute(1, 2, 0).contiguous().numpy().tobytes() for frame in frames)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start(weights, "-", "-", "--raw-size", "48x64", "--window", "2", **pipes)
    out, err = process.communicate(data, PATIENCE)
    expected = [labels for _, labels in streamseg.label_frames(model, frames, 2)]
    assert process.returncode == 0
    assert len(out) == 6 * 48 * 64
    found = torch.frombuffer(bytearray(out), dtype=torch.uint8).view(6, 48, 64)
    # another process may round in another way
    assert (found == torch.stack(expected)).float().mean() > 0.99
    assert b"all frames: " in err
    assert made(here) == []


# results


def test_label_pictures_are_what_the_network_says(here, segment, model):
    paint("a.png", 4)
    assert segment("a.png", "--labels") == 0
    written = Image.open("a-labels.png")
    assert (written.mode, written.getpalette()[:33]) == ("P", [x for c in streamseg.CAMVID.colours for x in c])
    assert torch.from_numpy(numpy.array(written)).equal(streamseg.segment(picture(4), model))


@pytest.mark.parametrize("window", [1, 3])
def test_label_videos_are_what_the_network_says_of_each_frame(here, segment, model, window):
    make_clip(Path("a.mp4"), 6)
    assert segment("a.mp4", "--labels", "--window", window) == 0
    expected = [labels for _, labels in streamseg.label_frames(model, streamseg.read_frames("a.mp4"), window)]
    written = [labels for labels, _ in read_label_video("a-labels.mkv")]
    assert len(written) == 6
    assert all(map(torch.equal, written, expected))


@pytest.mark.slow
def test_the_window_is_that_of_the_weights_unless_told_otherwise(here, segment, model, weights):
    streamseg.save(model, streamseg.CAMVID, "video.safetensors", window=3)
    make_clip(Path("a.mp4"), 6)
    trained = ("--weights", "video.safetensors")
    steady = streamseg.LastFrames(3, steady=0.1), (*trained, "--steady", "0.1")
    for name, window, options in (
        ("a", 3, trained),
        ("b", 2, (*trained, "--window", "2")),
        ("c", 1, ()),
        ("s", *steady),
    ):
        assert segment("a.mp4", f"{name}.mp4", "--no-overlay", "--labels", *options) == 0
        expected = [labels for _, labels in streamseg.label_frames(model, streamseg.read_frames("a.mp4"), window)]
        assert all(map(torch.equal, (labels for labels, _ in read_label_video(f"{name}-labels.mkv")), expected)), name
    assert segment("a.mp4", "d.mp4", *trained, "--half-life", "1") == 0


def test_names_may_stand_anywhere(here, segment, model):
    paint("a.png", 4)
    paint("b.png", 5)
    for arguments in (
        ["a.png", "--alpha", "0", "out.png"],
        ["--alpha", "0", "a.png", "--labels", "out.png"],
        ["--labels", "a.png", "--alpha=0", "out.png", "--no-confidence"],
        ["--no-labels", "--alpha", "0", "a.png", "out.png"],
    ):
        assert segment(*arguments) == 0
        assert streamseg.read_image("out.png").equal(picture(4))
    assert segment("a.png", "--alpha", "0", "b.png", "--legend", "out") == 0
    assert made(here / "out") == ["a-overlay.png", "b-overlay.png"]


@pytest.mark.slow
def test_several_videos_at_once_become_what_each_becomes_alone(here, segment, monkeypatch):
    step, batches = network_thread.step_batch, []

    def counted(model, images, *rest, **options):
        batches.append(len(images))
        return step(model, images, *rest, **options)

    monkeypatch.setattr(network_thread, "step_batch", counted)
    # each shows something else, so that a state of another would be seen
    for name, frames, way in (("a", 9, "upright"), ("b", 5, "half"), ("c", 7, "mirrored")):
        turn(make_clip(Path(f"{name}.mp4"), frames), TURNS[way])
    names = ["a.mp4", "b.mp4", "c.mp4"]
    for name in names:
        assert segment(name, "alone", "--labels", "--window", "3") == 0
    assert max(batches) == 1
    batches.clear()
    assert segment(*names, "together", "--labels", "--window", "3") == 0
    assert sum(batches) == 21
    assert max(batches) > 1
    for name in "abc":
        alone, together = (list(read_label_video(f"{place}/{name}-labels.mkv")) for place in ("alone", "together"))
        assert [seconds for _, seconds in alone] == [seconds for _, seconds in together]
        # a batch rounds otherwise than a single frame; the state of another would change one label in twenty
        assert all((x == y).float().mean() > 0.995 for (x, _), (y, _) in zip(alone, together, strict=True))


def test_confidence_is_written_exactly_for_pictures_and_videos(here, segment, model):
    paint("a.png", 4)
    make_clip(Path("v.mp4"), 2)
    assert segment("a.png", "v.mp4", "out", "--confidence") == 0
    frames = [picture(4), *streamseg.read_frames("v.mp4")]
    assert Image.open("out/a-confidence.png").mode == "L"
    found = [streamseg.read_image("out/a-confidence.png")[0]]
    found += [confidence for confidence, _ in read_label_video("out/v-confidence.mkv")]
    for frame, confidence in zip(frames, found, strict=True):
        with torch.inference_mode():
            highest = model(frame[None])[0].softmax(dim=0).max(dim=0).values
        assert (confidence - 255 * highest).abs().max() < 1


def test_the_frame_stands_beside_its_overlay(here, segment, model):
    paint("a.png", 4)
    make_clip(Path("v.mp4"), 2)
    assert segment("a.png", "v.mp4", "out", "--side-by-side") == 0
    both = streamseg.read_image("out/a-overlay.png")
    assert both.equal(torch.cat([picture(4), overlay_of(model, picture(4))], dim=2))
    assert watch("out/v-overlay.mp4")[0][0].shape == (3, 48, 128)


def test_a_legend_names_the_colours(here, segment, model):
    paint("a.png", 4, (300, 400))
    assert segment("a.png", "--legend") == 0
    changed = (streamseg.read_image("a-overlay.png") != overlay_of(model, picture(4, (300, 400)))).any(dim=0)
    rows, columns = changed.nonzero(as_tuple=True)
    assert rows.min() > 100
    assert columns.max() < 250


def test_chosen_classes_alone_are_coloured(here, segment, model):
    paint("a.png", 4)
    present = streamseg.segment(picture(4), model).unique().tolist()
    names = ",".join(streamseg.CAMVID.names[i].upper() for i in present[:2])
    assert segment("a.png", "--classes", names, "--alpha", "0.8") == 0
    expected = overlay_of(model, picture(4), alpha=0.8, only=present[:2])
    assert streamseg.read_image("a-overlay.png").equal(expected)


def test_only_what_is_wanted_is_written(here, segment):
    paint("a.png")
    assert segment("a.png", "--no-overlay", "--labels") == 0
    assert made(here) == ["a-labels.png", "a.png"]
    make_clip(Path("v.mp4"), 2)
    assert segment("v.mp4", "--no-overlay", "--confidence", "--json", "v.json") == 0
    assert made(here, "a-labels.png", "a.png") == ["v-confidence.mkv", "v.json", "v.mp4"]


def test_json_tells_of_each_frame_and_at_the_end_of_all(here, segment):
    make_clip(Path("v.mp4"), 7, rate=Fraction(10))
    paint("a.png")
    assert segment("v.mp4", "a.png", "out", "--json", "a.json") == 0
    *records, last = map(json.loads, Path("a.json").read_text().splitlines())
    of_video = [record for record in records if record["source"] == "v"]
    (of_picture,) = (record for record in records if record["source"] != "v")
    assert [record["frame"] for record in of_video] == list(range(7))
    assert [record["seconds"] for record in of_video] == pytest.approx([i / 10 for i in range(7)])
    assert (of_picture["name"], of_picture["frame"], of_picture["seconds"]) == ("a", 0, 0.0)
    for record in records:
        assert sum(record["shares"].values()) == pytest.approx(1, abs=1e-4)
        assert set(record["shares"]) <= set(streamseg.CAMVID.names)
        assert 0 < record["latency_ms"] <= record["mask_age_ms"]
    summary = last["summary"]
    assert summary["frames"] == {"read": 8, "labelled": 8, "written": 8, "dropped": 0}
    assert {tuple(record["size"]) for record in records} == {(48, 64)}
    assert set(summary["stages"]) == {"decode", "network", "draw", "encode"}
    assert 0 < summary["latency_ms"]["p50"] <= summary["latency_ms"]["max"]


def test_standard_output_has_the_labels_and_nothing_else(here, segment, model, capsysbinary):
    paint("x/a.png", 1)
    paint("x/b.png", 2, (64, 96))
    assert segment("x", "-") == 0
    shown = capsysbinary.readouterr()
    expected = [streamseg.segment(picture(1), model), streamseg.segment(picture(2, (64, 96)), model)]
    assert shown.out == b"".join(labels.numpy().tobytes() for labels in expected)
    assert b"2 read, 2 labelled, 2 written" in shown.err
    assert made(here) == ["x/a.png", "x/b.png"]


def test_frames_are_seen_at_the_size_that_is_given(here, segment, model, capsys):
    make_clip(Path("v.mp4"), 2, size=(96, 128))
    assert segment("v.mp4", "--labels", "--size", "64x96") == 0
    assert "seen at 64 x 96\n" in capsys.readouterr().out
    frames = streamseg.read_frames("v.mp4")
    expected = [labels for _, labels in streamseg.label_frames(model, frames, size=(64, 96))]
    assert all(map(torch.equal, (labels for labels, _ in read_label_video("v-labels.mkv")), expected))


def test_a_deadline_is_told_of(here, segment, capsys):
    make_clip(Path("v.mp4"), 4)
    assert segment("v.mp4", "--deadline", "60000") == 0
    told = "deadline of 60000 ms held by 100.0 % of the frames, the smallest of them seen at 48 x 64\n"
    assert told in capsys.readouterr().out


def test_a_deadline_that_cannot_be_held_is_told_of_with_the_sizes(here, segment, capsys):
    make_clip(Path("v.mp4"), 40, size=(192, 320))
    assert segment("v.mp4", "--deadline", "0.001", "--json", "v.json") == 0
    shown = capsys.readouterr()
    *records, _ = map(json.loads, Path("v.json").read_text().splitlines())
    sizes = [tuple(record["size"]) for record in records]
    small = min(sizes, key=math.prod)  # what saves time is for this machine to say
    told = ", ".join(f"{h} x {w} in {sizes.count((h, w))} frames" for h, w in sorted({*sizes}, reverse=True))
    assert (
        "deadline of 0.001 ms could not be held: 100.0 % of the frames were late, though seen as small as "
        f"{small[0]} x {small[1]} ({told}); give a longer one" in shown.out
    )
    assert small >= (96, 160)  # no smaller, where labels would be poor and late
    assert shown.err == ""


def test_the_line_while_it_runs_shows_how_far_it_is(here, segment, monkeypatch, capsys):
    look = Folded.run_stem

    def slowly(*arguments):
        time.sleep(0.05)
        return look(*arguments)

    make_clip(Path("v.mp4"), 15)
    monkeypatch.setattr(Folded, "run_stem", slowly)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert segment("v.mp4") == 0
    assert re.search(r"\rframe \d+/15 \(\d+ %\) · ", capsys.readouterr().err.replace("\x1b[K", ""))


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_other_precisions_see_the_same(here, segment, precision):
    make_clip(Path("v.mp4"), 3)
    assert segment("v.mp4", "whole", "--labels", "--window", "3") == 0
    assert segment("v.mp4", "half", "--labels", "--window", "3", "--precision", precision) == 0
    for (x, _), (y, _) in zip(*(read_label_video(f"{name}/v-labels.mkv") for name in ("whole", "half")), strict=True):
        assert (x == y).float().mean() > 0.8


def test_a_past_that_fades_and_scenes_that_change_are_seen_to(here, segment, model):
    make_clip(Path("v.mp4"), 4)
    assert segment("v.mp4", "--labels", "--half-life", "0.1", "--cut", "0.5") == 0
    policy = streamseg.FadingInTime(0.1)
    times = [i / 25 for i in range(4)]
    labelled = streamseg.label_frames(model, streamseg.read_frames("v.mp4"), policy, times=times, cut=0.5)
    for (_, expected), (labels, _) in zip(labelled, read_label_video("v-labels.mkv"), strict=True):
        assert labels.equal(expected)


def test_large_pictures_are_seen_tile_by_tile(here, segment, model, monkeypatch):
    monkeypatch.setattr(network_thread, "MAX_PIXELS", 10_000)
    paint("a.png", 3, (128, 192))
    assert segment("a.png", "--labels", "--tile") == 0
    expected, _ = streamseg.label_tiled(model, picture(3, (128, 192)))
    assert torch.from_numpy(numpy.array(Image.open("a-labels.png"))).equal(expected)


def test_without_weights_it_takes_those_that_ship(here, monkeypatch):
    paint("a.png")
    monkeypatch.setattr(sys, "argv", ["streamseg", "segment", "a.png", "--device", "cpu"])
    cli.main()
    assert Path("a-overlay.png").exists()


def test_a_second_run_replaces_what_the_first_wrote(here, segment):
    paint("a.png")
    make_clip(Path("v.mp4"), 2)
    for _ in range(2):
        assert segment("a.png", "v.mp4", "out", "--labels", "--confidence", "--json", "a.json") == 0
    assert len(made(here / "out")) == 6


# stopping


def check_stopped(here, process, number, frames):
    """A process that a signal stopped has finished its video, of at least so many frames."""
    process.send_signal(number)
    assert process.wait(PATIENCE) == 128 + number
    assert made(here) == ["out-labels.mkv", "out.mp4"]
    assert len(watch("out.mp4")) == len(list(read_label_video(Path("out-labels.mkv")))) >= frames


def test_ctrl_c_finishes_the_video_while_frames_come_through_a_pipe(here, weights):
    frame = picture(3).permute(1, 2, 0).contiguous().numpy().tobytes()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with start(weights, "-", "out.mp4", "--labels", "--raw-size", "48x64", **pipes) as process:
        for _ in range(60):  # of which the pipe holds no more than 7
            process.stdin.write(frame)
            process.stdin.flush()
        check_stopped(here, process, signal.SIGINT, 30)
        assert re.fullmatch(
            rb"streamseg: Stopped after \d+ frames: what was written holds those.\n", process.stderr.read()
        )


def test_sigterm_finishes_the_video_of_a_network_camera(here, weights):
    frames = [picture(i).permute(1, 2, 0).contiguous().numpy() for i in range(12)]
    with (
        RtspServer(frames, visits=[None]) as server,
        start(weights, server.address, "out.mp4", "--labels", stdout=subprocess.DEVNULL) as process,
    ):
        until(lambda: list(here.glob(".streamseg-*.mkv")) or process.poll() is not None)
        check_stopped(here, process, signal.SIGTERM, 1)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_between_pictures_keeps_those_that_are_written(here, segment, monkeypatch, number, status):
    for i in range(40):
        paint(f"x/{i}.png", i)
    read = sources.PictureFile.read

    def read_slowly(self):
        if self.name == "5":
            os.kill(os.getpid(), number)
        if int(self.name) > 5:
            time.sleep(0.5)  # within which, or a few of which, it is heard
        return read(self)

    monkeypatch.setattr(sources.PictureFile, "read", read_slowly)
    assert segment("x", "out") == status
    written = made(here / "out")
    assert 5 <= len(written) < 40
    assert written == sorted(f"{i}-overlay.png" for i in range(len(written)))


def test_ctrl_c_before_the_first_frame_is_quiet(here, segment, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    paint("a.png")
    monkeypatch.setattr("streamseg.models.checkpoint.read_checkpoint", interrupted)
    assert segment("a.png") == 130
    assert capsys.readouterr() == ("", "")


# what breaks off


def test_a_video_that_is_cut_short_gives_what_can_be_read(here, segment, capsys):
    cut(make_clip(Path("a.mkv"), 40), 0.7)
    make_clip(Path("b.mp4"), 3)
    assert segment("a.mkv", "b.mp4", "out") == 1
    shown = capsys.readouterr()
    frames = len(watch("out/a-overlay.mp4"))
    assert 3 < frames < 40
    assert len(watch("out/b-overlay.mp4")) == 3
    assert shown.err.startswith("streamseg: a.mkv ")
    assert f"{frames} frames" in shown.err
    assert shown.err.count("\n") == 1
    assert made(here / "out") == ["a-overlay.mp4", "b-overlay.mp4"]


def test_raw_frames_that_end_within_one_give_those_before(here, segment, monkeypatch, capsys):
    Path("raw").write_bytes(bytes(48 * 64 * 3 * 2 + 100))
    with Path("raw").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert segment("-", "out.mp4", "--raw-size", "48x64") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("streamseg: Standard input ended within a frame of 48 x 64 pixels (100 of 9216 bytes)")
    assert len(watch("out.mp4")) == 2


def test_a_picture_that_cannot_be_read_loses_no_other(here, segment, capsys):
    for i in range(3):
        paint(f"x/{i}.png", i)
    Path("x/1.png").write_bytes(Path("x/1.png").read_bytes()[:60])
    assert segment("x", "out") == 1
    assert made(here / "out") == ["0-overlay.png", "2-overlay.png"]
    shown = capsys.readouterr().err
    assert shown.startswith("streamseg: 1 of 3 pictures could not be read, the first one: x/1.png is damaged")
    assert shown.count("\n") == 1


def test_a_source_without_a_frame_is_named_and_loses_no_other(here, segment, capsys):
    make_clip(Path("a.mp4"), 3)
    Path("b.mp4").write_text("no video")
    assert segment("a.mp4", "b.mp4", "out") == 1
    shown = capsys.readouterr()
    assert made(here / "out") == ["a-overlay.mp4"]
    assert "b.mp4 is not a video that can be read" in shown.err
    assert "b-overlay" not in shown.out


def test_a_name_for_nothing_is_named_and_loses_no_other(here, segment, capsys):
    paint("a.png")
    make_clip(Path("v.mp4"), 3)
    Path("list.txt").write_text("v.mp4\ngone.png\n")
    assert segment("a.png", "nowhere.mp4", "list.txt", "out") == 1
    shown = capsys.readouterr()
    assert made(here / "out") == ["a-overlay.png", "v-overlay.mp4"]
    assert shown.err.splitlines() == [
        "streamseg: Nothing at nowhere.mp4: expected a picture, a video, a folder or a list of names.",
        "streamseg: Line 2 of list.txt: Nothing at gone.png: expected a picture, a video, a folder or a list of names.",
    ]


def test_a_video_that_the_decoder_mended_is_damaged(here, segment, capsys):
    wide = torch.randint(0, 256, (3, 12, 60), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    wide = wide.repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
    streamseg.write_frames("a.mkv", [wide[:, :, 4 * i : 4 * i + 128] for i in range(30)], 25)
    with av.open("a.mkv") as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][10]
    data = bytearray(Path("a.mkv").read_bytes())
    data[packet.pos + packet.size // 2 : packet.pos + packet.size] = bytes(packet.size - packet.size // 2)
    Path("a.mkv").write_bytes(data)
    assert segment("a.mkv", "out.mp4") == 1
    assert re.fullmatch(
        r"streamseg: a.mkv is damaged: \d+ frames could be read, \d+ of them with faults.*\n", capsys.readouterr().err
    )
    assert len(watch("out.mp4")) >= 28


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def complaint(capsys, status):
    """The one line that the verb complains with."""
    shown = capsys.readouterr()
    assert status == 2
    assert shown.err.startswith("streamseg: ")
    assert shown.err.count("\n") == 1
    assert shown.err.removesuffix("\n").isprintable()
    return shown.err


NO_MEMORY = [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")]


@pytest.mark.parametrize("error", [*NO_MEMORY, MemoryError()])
def test_a_network_without_memory_is_a_sentence_and_leaves_nothing(here, segment, monkeypatch, capsys, error):
    make_clip(Path("a.mp4"), 5)
    monkeypatch.setattr(Folded, "run_stem", failing(error))
    status = segment("a.mp4", "out", "--labels", "--json", "a.json")
    assert "There is not enough memory for pictures of this size" in complaint(capsys, status)
    assert made(here) == ["a.mp4"]


def test_a_fault_of_our_own_is_not_hidden_and_leaves_nothing(here, segment, monkeypatch):
    make_clip(Path("a.mp4"), 5)
    monkeypatch.setattr(Folded, "run_stem", failing(RuntimeError("size mismatch")))
    with pytest.raises(RuntimeError, match="size mismatch"):
        segment("a.mp4", "out.mp4", "--labels", "--json", "a.json")
    assert made(here) == ["a.mp4"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ImportError("Reading and writing video needs PyAV: pip install x"), "pip install x"),
        (ValueError("one\ntwo\x1b[31m\tthree"), "streamseg: one two [31m three\n"),
    ],
)
def test_every_complaint_is_one_printable_line(here, segment, monkeypatch, capsys, error, shown):
    paint("a.png")
    monkeypatch.setattr("streamseg.io.sources.PictureFile.read", failing(error))
    assert shown in complaint(capsys, segment("a.png"))


def test_pictures_need_no_library_for_video_and_videos_say_which_they_need(here, segment, monkeypatch, capsys):
    paint("a.png")
    make_clip(Path("v.mp4"), 2)
    gc.collect()  # videos of other tests, which end with the library they began with
    monkeypatch.setattr("streamseg.io.pyav.av", None)
    for _ in range(2):
        assert segment("a.png", "--labels") == 0
    capsys.readouterr()
    assert "Reading and writing video needs PyAV: pip install 'streamseg[video]'" in complaint(
        capsys, segment("v.mp4", "out.mp4")
    )
    assert "a.png is an input" in complaint(capsys, segment("a.png", "a.png"))
    paint("b.png")
    assert "b.png exists and was not written by streamseg" in complaint(capsys, segment("a.png", "b.png"))


@pytest.fixture
def full_disk():
    """Within it files can hold so many bytes; a real error of the system, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("name", "out", "most"), [("a.png", "out.png", 100), ("a.mp4", "out.mp4", 2000), ("a.mp4", "x/%d.png", 100)]
)
def test_a_full_disk_is_a_sentence_and_leaves_nothing(here, segment, capsys, full_disk, name, out, most):
    paint("a.png")
    make_clip(Path("a.mp4"), 60)
    Path("x").mkdir()
    full_disk(most)
    told = complaint(capsys, segment(name, out, "--no-labels"))
    assert "streamseg: Could not write " in told
    assert "File too large" in told
    assert made(here) == ["a.mp4", "a.png"]


def test_a_closed_standard_error_or_output_is_no_fault(here, segment, monkeypatch):
    make_clip(Path("a.mp4"), 3)
    for name in ("stderr", "stdout"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, None)
            assert segment("a.mp4", "out.mp4") == 0
            getattr(sys, name).close()
    assert len(watch("out.mp4")) == 3


def test_a_full_disk_under_the_json_is_a_sentence(here, segment, capsys, full_disk):
    paint("a.png")
    full_disk(60)
    assert "Could not write a.json: File too large." in complaint(
        capsys, segment("a.png", "--no-overlay", "--json", "a.json")
    )
    assert made(here) == ["a.png"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_standard_output_is_a_sentence(here, segment, monkeypatch, capsys):
    paint("a.png")
    with open("/dev/full", "w") as full:  # noqa: PTH123 (a device)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            status = segment("a.png", "-")
        told = complaint(capsys, status)
        assert told == "streamseg: Could not write to standard output: No space left on device.\n"
        with suppress(OSError):  # what is left in its buffer
            full.close()


def test_who_reads_the_labels_may_stop(here, weights):
    make_clip(Path("a.mp4"), 60, size=(240, 320))
    process = start(weights, "a.mp4", "-", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert len(process.stdout.read(1000)) == 1000
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 0


# bad input


def bomb():
    Image.new("1", (30_000, 3_000)).save("bomb.png")


def own():
    write_image(Path("own.png"), picture(0))


def empty_folder():
    Path("empty").mkdir()


def other_checkpoint():
    Path("other.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")


def text(name, words="no video"):
    return lambda: Path(name).write_text(words)


@pytest.mark.parametrize(
    ("prepare", "arguments", "sentence"),
    [
        (None, "", "Nothing to read: give a picture, a video"),
        (None, "nowhere.png", "Nothing at nowhere.png"),
        (None, "nowhere.mp4 *.gif out", "Nothing at nowhere.mp4"),
        (None, "a.png nowhere.png out.png", "out.png is one file, and there are several to write"),
        (None, "a.png v.mp4 out --show", "--show has one window, and there are 2 sources: give one, or leave it out."),
        (None, "nowhere", "Nothing at nowhere"),
        (empty_folder, "empty", "No picture and no video in empty"),
        (None, "*.gif", "No picture and no video matches *.gif"),
        (text("b.txt", "nowhere.png"), "b.txt", "Line 1 of b.txt: Nothing at nowhere.png"),
        (text("b.mp4"), "b.mp4", "b.mp4 is not a video that can be read"),
        (text("b.mp4"), "b.mp4 out --labels --json b.json", "b.mp4 is not a video that can be read"),
        (text("b.mp4", ""), "b.mp4", "b.mp4 is not a video that can be read"),
        (text("b.png"), "b.png", "b.png is not a picture that can be read"),
        (lambda: cut(Path("a.png"), 0.5), "a.png", "a.png is damaged or cut short"),
        (text("b.dat"), "b.dat", "b.dat is neither a picture nor a video"),
        (None, "a.png a.png", "a.png is an input"),
        (None, "v.mp4 v.mp4", "v.mp4 is an input"),
        (own, "a.png own.png --json a.png", "a.png is an input or output already"),
        (None, "v.mp4 out.mp4 --json out.mp4", "out.mp4 is an input or output already"),
        (own, "own.png own.png", "own.png is an input"),
        (None, "a.png /proc/out.png", "Could not write /proc/out.png: "),
        (None, "v.mp4 /proc/out.mp4", "Could not write /proc/out.mp4: "),
        (None, "a.png /proc/out", "Could not make the folder /proc/out: "),
        (None, "a.png nowhere/out.png", "No folder nowhere to write out.png into: create it first."),
        (None, "v.mp4 nowhere/out.mp4", "No folder nowhere to write out.mp4 into: create it first."),
        (None, "a.png --json nowhere/a.json", "No folder nowhere to write a.json into: create it first."),
        (None, "v.mp4 out.png", "out.png is one picture, and v has many: give a video, or out_%05d.png."),
        (None, "a.png out.mp4", "out.mp4 does not have the suffix of a picture"),
        (None, "v.mp4 out.xyz", "out.xyz does not have the suffix of a video"),
        (None, "a.png v.mp4 out.mp4", "out.mp4 is one file, and there are several to write"),
        (None, "a.png v.mp4 -", "The labels of 2 sources cannot share standard output"),
        (text("b.png"), "a.png b.png", "b.png exists and was not written by streamseg"),
        (text("b.mp4"), "v.mp4 b.mp4", "b.mp4 exists and was not written by streamseg"),
        (None, "a.png out --size 20x64", "--size is '20x64'; expected a height and a width from 32 up"),
        (None, "a.png out --size large", "--size is 'large'"),
        (None, "- out.mp4 --raw-size 64", "--raw-size is '64'"),
        (None, "- out.mp4", "Raw frames on standard input need their size: --raw-size HEIGHTxWIDTH"),
        (None, "a.png out --classes zebra", "No class is called 'zebra'; there are Sky, Building, "),
        (None, "a.png out --alpha 1.5", "alpha is 1.5; expected the opacity of the colours, from 0 to 1."),
        (None, "a.png out --alpha nan", "alpha is nan"),
        (None, "a.png out --precision int4", "precision is 'int4'; choose one of: 'fp32', 'fp16', 'bf16', 'int8'."),
        (None, "v.mp4 out --window 0", "window is 0; expected a whole number, 1 or more."),
        (None, "v.mp4 out --half-life -1", "half_life is -1.0; expected a number above 0."),
        (None, "v.mp4 out --deadline 0", "deadline is 0.0; expected a number above 0."),
        (None, "v.mp4 out --cut nan", "cut is nan; expected a number above 0."),
        (None, "v.mp4 out --steady -1", "steady is -1.0; expected a number from 0 up, such as 1."),
        (None, "v.mp4 out --window 1 --half-life 1", "Give --window or --half-life, not both."),
        (None, "v.mp4 out --rate 0", "A rate of 0.0 frames a second; expected 0.001 to 1000."),
        (None, "v.mp4 out --rate 1e300", "A rate of 1e+300 frames a second"),
        (None, "v.mp4 out --window 2 --half-life 1", "Give --window or --half-life, not both."),
        (text("b.json", "mine"), "v.mp4 out --json b.json", "b.json exists and was not written by streamseg"),
        (None, "v.mp4 out --tile --window 2", "--tile sees single pictures at full size: leave out"),
        (None, "a.png out --device abacus", "'abacus' is no device"),
        (None, "a.png out --device cuda:99", "no GPU for --device cuda:99"),
        (None, "a.png out --weights nowhere.safetensors", "No weights at nowhere.safetensors"),
        (other_checkpoint, "a.png out --weights other.safetensors", "other.safetensors was not written by streamseg"),
        (None, "a.png out --weights a.png", "a.png is no safetensors file"),
        (None, "a.png out --show --json a.json", "There is no display for --show"),
        (None, "97 out.mp4", "amera 97"),
        (None, "/dev/video97 out.mp4", "No camera at /dev/video97"),
        (None, "rtsp://127.0.0.1:9/live out.mp4", "rtsp://127.0.0.1:9/live cannot be read"),
        (None, "http://127.0.0.1:9/v.mp4 out.mp4", "http://127.0.0.1:9/v.mp4 cannot be read: Connection refused."),
        (None, "ftp://127.0.0.1/v.mp4 out.mp4", "ftp://127.0.0.1/v.mp4 is no address"),
        (bomb, "bomb.png", "bomb.png has more than 89,478,485 pixels"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2_and_leaves_nothing(here, segment, capsys, prepare, arguments, sentence):
    paint("a.png")
    make_clip(Path("v.mp4"), 3)
    if prepare:
        prepare()
    before = {path: path.read_bytes() if path.is_file() else None for path in here.rglob("*")}
    assert sentence in complaint(capsys, segment(*arguments.split()))
    assert {path: path.read_bytes() if path.is_file() else None for path in here.rglob("*")} == before


def test_nothing_is_read_where_nothing_can_be_written(here, segment, monkeypatch, capsys):
    paint("a.png")
    monkeypatch.setattr("streamseg.io.sources.PictureFile.read", failing(AssertionError("was read")))
    assert "No folder nowhere" in complaint(capsys, segment("a.png", "nowhere/out.png"))


def test_a_file_of_ones_own_is_never_written_over(here, segment, capsys):
    paint("street.png")
    Path("street-overlay.png").write_text("my own")
    before = {path: path.read_bytes() for path in here.iterdir()}
    assert "exists and was not written" in complaint(capsys, segment("street.png"))
    assert {path: path.read_bytes() for path in here.iterdir()} == before


def test_a_run_leaves_torchs_threads_as_they_were_and_none_of_its_own(here, segment):
    make_clip(Path("v.mp4"), 3)
    before, others = torch.get_num_threads(), threading.enumerate()
    assert segment("v.mp4", "out.mp4") == 0
    assert torch.get_num_threads() == before
    assert [thread for thread in threading.enumerate() if not thread.daemon and thread not in others] == []
