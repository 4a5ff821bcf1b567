"""What segment writes and reports."""

import json
import math
import re
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy
import pytest
import torch
from clips import TURNS, make_clip, picture, turn
from PIL import Image
from segment_run import DRAWN, made, overlay_of, paint, watch

import streamseg
from streamseg import cli
from streamseg.engine.folded import Folded
from streamseg.io.video_reading import read_label_video
from streamseg.models.video import VIDEO_METHODS
from streamseg.stream import network_thread


def test_label_pictures_are_what_the_network_predicts(here, segment, model):
    paint("a.png", 4)
    assert segment("a.png", "--labels") == 0
    written = Image.open("a-labels.png")
    assert (written.mode, written.getpalette()[:33]) == ("P", [x for c in streamseg.CAMVID.colours for x in c])
    assert torch.from_numpy(numpy.array(written)).equal(streamseg.segment(picture(4), model))


@pytest.mark.parametrize("window", [1, 3])
def test_label_videos_are_what_the_network_predicts_for_each_frame(here, segment, model, window):
    make_clip(Path("a.mp4"), 6)
    assert segment("a.mp4", "--labels", "--window", window, "--steady", "off") == 0
    expected = [labels for _, labels in streamseg.label_frames(model, streamseg.read_frames("a.mp4"), window)]
    written = [labels for labels, _ in read_label_video("a-labels.mkv")]
    assert len(written) == 6
    assert all(map(torch.equal, written, expected))


@pytest.mark.slow
def test_the_window_is_that_of_the_weights_unless_told_otherwise(here, segment, model, weights):
    streamseg.save(model, streamseg.CAMVID, "video.safetensors", window=3)
    make_clip(Path("a.mp4"), 6)
    trained = ("--weights", "video.safetensors")
    low, high = streamseg.STEADY_LOW, streamseg.STEADY_HIGH
    for name, window, options in (
        ("a", 3, (*trained, "--steady", "off")),
        ("b", 2, (*trained, "--window", "2", "--steady", "0")),
        ("c", 1, ("--steady", "off")),
        ("s", streamseg.LastFrames(3, steady=0.1), (*trained, "--steady", "0.1")),
        ("t", streamseg.LastFrames(3, steady=low), trained),
        ("u", streamseg.LastFrames(2, steady=high), (*trained, "--window", "2", "--steady", "high")),
    ):
        assert segment("a.mp4", f"{name}.mp4", "--no-overlay", "--labels", *options) == 0
        expected = [labels for _, labels in streamseg.label_frames(model, streamseg.read_frames("a.mp4"), window)]
        assert all(map(torch.equal, (labels for labels, _ in read_label_video(f"{name}-labels.mkv")), expected)), name
    assert segment("a.mp4", "d.mp4", *trained, "--half-life", "1") == 0


def test_with_o_all_names_are_sources_as_behind_a_pattern_of_the_shell(here, segment):
    paint("a.png", 4)
    paint("b.png", 5)
    assert segment("a.png", "b.png", "-o", "out") == 0
    assert made(here / "out") == ["a-overlay.png", "b-overlay.png"]
    assert segment("-o", "one.png", "a.png", "--alpha", "0") == 0
    assert streamseg.read_image("one.png").equal(picture(4))
    assert segment("a.png", "b.png", "nowhere.png", "b.png", "--out=some") == 1  # the last name is no OUT
    assert made(here / "some") == ["a-overlay.png", "b-overlay.png"]


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
    assert segment("a.png", "v.mp4", "out", "--confidence", "--steady", "off") == 0
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


def test_only_the_chosen_classes_are_coloured(here, segment, model):
    paint("a.png", 4)
    present = streamseg.segment(picture(4), model).unique().tolist()
    names = ",".join(streamseg.CAMVID.names[i].upper() for i in present[:2])
    assert segment("a.png", "--classes", names, "--alpha", "0.8") == 0
    expected = overlay_of(model, picture(4), alpha=0.8, only=present[:2])
    assert streamseg.read_image("a-overlay.png").equal(expected)


def test_overlays_have_the_data_sets_colours_or_no_borders_on_request(here, segment, model):
    paint("a.png", 4)
    for options, expected in (
        (["--palette", "own"], overlay_of(model, picture(4), streamseg.CAMVID)),
        (["--no-borders"], overlay_of(model, picture(4), borders=False)),
        (["--palette", "own", "--no-borders"], overlay_of(model, picture(4), streamseg.CAMVID, borders=False)),
    ):
        assert segment("a.png", "--labels", *options) == 0
        assert streamseg.read_image("a-overlay.png").equal(expected)
        # the label file keeps the data set's own colours
        assert Image.open("a-labels.png").getpalette()[:33] == [x for c in streamseg.CAMVID.colours for x in c]


def test_a_label_video_is_reported_with_a_hint_unless_there_is_one_to_watch(here, segment, capsys):
    make_clip(Path("v.mp4"), 3, size=(96, 128))
    assert segment("v.mp4", "--no-overlay", "--labels") == 0
    assert "v: v-labels.mkv  (class numbers; --colours writes a video to watch)\n" in capsys.readouterr().out
    assert segment("v.mp4", "--labels", "--colours") == 0
    assert "v: v-overlay.mp4  v-labels.mkv  v-colours.mp4\n" in capsys.readouterr().out


def test_the_colours_of_the_labels_are_written_for_pictures_and_videos(here, segment, model):
    paint("a.png", 4)
    make_clip(Path("v.mp4"), 3, size=(96, 128))
    assert segment("a.png", "v.mp4", "out", "--no-overlay", "--labels", "--colours") == 0
    assert made(here / "out") == ["a-colours.png", "a-labels.png", "v-colours.mp4", "v-labels.mkv"]
    drawn = torch.tensor(DRAWN.colours, dtype=torch.uint8)
    labels = streamseg.segment(picture(4), model).long()
    assert streamseg.read_image("out/a-colours.png").equal(drawn[labels].permute(2, 0, 1))
    shown = [frame for frame, _ in watch("out/v-colours.mp4")]
    exact = [drawn[labels.long()].permute(2, 0, 1) for labels, _ in read_label_video("out/v-labels.mkv")]
    assert len(shown) == 3
    # H.264 changes the colours a little, most of all at edges
    assert all((x.float() - y.float()).abs().mean() < 20 for x, y in zip(shown, exact, strict=True))


def test_only_what_was_asked_for_is_written(here, segment):
    paint("a.png")
    assert segment("a.png", "--no-overlay", "--labels") == 0
    assert made(here) == ["a-labels.png", "a.png"]
    make_clip(Path("v.mp4"), 2)
    assert segment("v.mp4", "--no-overlay", "--confidence", "--json", "v.json") == 0
    assert made(here, "a-labels.png", "a.png") == ["v-confidence.mkv", "v.json", "v.mp4"]


def test_json_has_a_line_for_each_frame_and_a_summary(here, segment):
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


def test_the_network_input_has_the_size_that_is_given(here, segment, model, capsys):
    make_clip(Path("v.mp4"), 2, size=(96, 128))
    assert segment("v.mp4", "--labels", "--size", "64x96", "--steady", "off") == 0
    assert "network input 64 x 96\n" in capsys.readouterr().out
    frames = streamseg.read_frames("v.mp4")
    expected = [labels for _, labels in streamseg.label_frames(model, frames, size=(64, 96))]
    assert all(map(torch.equal, (labels for labels, _ in read_label_video("v-labels.mkv")), expected))


def test_a_deadline_that_was_met_is_reported(here, segment, capsys):
    make_clip(Path("v.mp4"), 4)
    assert segment("v.mp4", "--deadline", "60000") == 0
    told = "deadline of 60000 ms met by 100.0 % of the frames, smallest network input 48 x 64\n"
    assert told in capsys.readouterr().out


def test_a_deadline_that_was_not_met_is_reported_with_the_sizes(here, segment, capsys):
    make_clip(Path("v.mp4"), 40, size=(192, 320))
    assert segment("v.mp4", "--deadline", "0.001", "--json", "v.json") == 0
    shown = capsys.readouterr()
    *records, _ = map(json.loads, Path("v.json").read_text().splitlines())
    sizes = [tuple(record["size"]) for record in records]
    small = min(sizes, key=math.prod)  # what saves time is for this machine to say
    told = ", ".join(f"{h} x {w} in {sizes.count((h, w))} frames" for h, w in sorted({*sizes}, reverse=True))
    assert (
        "deadline of 0.001 ms not met: 100.0 % of the frames were late, even at a network input of "
        f"{small[0]} x {small[1]} ({told}); give a longer one" in shown.out
    )
    assert small >= (96, 160)  # no smaller, where labels would be poor and late
    assert shown.err == ""


def test_the_line_while_it_runs_shows_how_far_it_is(here, segment, monkeypatch, capsys):
    run_stem = Folded.run_stem

    def slowly(*arguments):
        time.sleep(0.05)
        return run_stem(*arguments)

    make_clip(Path("v.mp4"), 15)
    monkeypatch.setattr(Folded, "run_stem", slowly)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert segment("v.mp4") == 0
    assert re.search(r"\rframe \d+/15 \(\d+ %\) · ", capsys.readouterr().err.replace("\x1b[K", ""))


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_other_precisions_give_nearly_the_same_labels(here, segment, precision):
    make_clip(Path("v.mp4"), 3)
    assert segment("v.mp4", "whole", "--labels", "--window", "3") == 0
    assert segment("v.mp4", "half", "--labels", "--window", "3", "--precision", precision) == 0
    for (x, _), (y, _) in zip(*(read_label_video(f"{name}/v-labels.mkv") for name in ("whole", "half")), strict=True):
        assert (x == y).float().mean() > 0.8


def test_a_half_life_and_a_cut_are_those_of_label_frames(here, segment, model):
    make_clip(Path("v.mp4"), 4)
    assert segment("v.mp4", "--labels", "--half-life", "0.1", "--cut", "0.5") == 0
    policy = streamseg.FadingInTime(0.1, steady=streamseg.STEADY_LOW)
    times = [i / 25 for i in range(4)]
    labelled = streamseg.label_frames(model, streamseg.read_frames("v.mp4"), policy, times=times, cut=0.5)
    for (_, expected), (labels, _) in zip(labelled, read_label_video("v-labels.mkv"), strict=True):
        assert labels.equal(expected)


def test_large_pictures_are_labelled_tile_by_tile(here, segment, model, monkeypatch):
    monkeypatch.setattr(network_thread, "MAX_PIXELS", 10_000)
    paint("a.png", 3, (128, 192))
    assert segment("a.png", "--labels", "--tile") == 0
    expected, _ = streamseg.label_tiled(model, picture(3, (128, 192)))
    assert torch.from_numpy(numpy.array(Image.open("a-labels.png"))).equal(expected)


def test_without_weights_it_takes_the_bundled_ones(here, monkeypatch):
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


def test_a_video_method_labels_a_video_with_the_window_as_its_key_interval(here, segment):
    torch.manual_seed(0)
    streamseg.save(VIDEO_METHODS["copy-swiftnet18"](11), streamseg.CAMVID, "copy.safetensors")
    make_clip(Path("in.mp4"), 4)
    assert segment("in.mp4", "--labels", "--weights", "copy.safetensors", "--window", "2") == 0
    first, second, third, fourth = (labels for labels, _ in read_label_video(Path("in-labels.mkv")))
    assert first.equal(second)
    assert third.equal(fourth)
    assert not second.equal(third)
