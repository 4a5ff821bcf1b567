"""Every kind of source of segment."""

import json
import subprocess
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy
import pytest
import torch
from clips import TURNS, make_clip, number, picture, turn
from PIL import Image
from segment_run import duration, made, overlay_of, paint, start, watch
from servers import RtspServer, file_server
from waiting import PATIENCE

import streamseg
from streamseg.io import sources
from streamseg.io.video_reading import open_video, read_label_video


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


def test_of_an_animation_the_first_picture_is_taken_with_a_note(here, segment, model, capsys):
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
    assert "network input 48 x 64\n" in shown
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
    process = start(weights, "-", "-", "--raw-size", "48x64", "--window", "2", "--steady", "off", **pipes)
    out, err = process.communicate(data, PATIENCE)
    expected = [labels for _, labels in streamseg.label_frames(model, frames, 2)]
    assert process.returncode == 0
    assert len(out) == 6 * 48 * 64
    found = torch.frombuffer(bytearray(out), dtype=torch.uint8).view(6, 48, 64)
    # another process may round in another way
    assert (found == torch.stack(expected)).float().mean() > 0.99
    assert b"all frames: " in err
    assert made(here) == []


def test_without_a_hardware_decoder_the_cpu_decodes_and_says_so(here, segment, monkeypatch, capsys):
    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", list)
    make_clip(Path("a.mp4"), 3)
    assert segment("a.mp4", "b.mp4", "--hardware-decoding", "auto") == 0
    assert "a.mp4 is decoded on the CPU: this machine, or this PyAV, has no hardware decoder" in capsys.readouterr().err
    with open_video("b.mp4") as video:
        assert len(list(video)) == 3
    assert segment("a.mp4", "b.mp4", "--hardware-decoding", "nvdec") != 0
    assert "'nvdec'" in capsys.readouterr().err
