"""The speed of segment from file to file, beside bare codecs: structure and ratios, never times."""

import json
import math
import tempfile
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from clips import make_clip
from commands import complaint, run
from PIL import Image
from preparing import SlowEngine

import streamseg
from streamseg.engine.engine import EagerEngine
from streamseg.engine.prepare import PreparingEngine
from streamseg.evaluate import pipeline_benchmark
from streamseg.evaluate.pipeline_benchmark import (
    Case,
    Run,
    check_video,
    host_times,
    measure_pipeline,
    request_batch_sizes,
    run_in_turn,
    run_segment,
    summarise_speed,
    summarise_stages,
    wait_until_prepared,
)
from streamseg.evaluate.pipeline_samples import Samples
from streamseg.io.video_reading import read_label_video
from streamseg.stream.device_work import DeviceTimes
from streamseg.stream.latency import Stage, Summary
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.state import LastFrames

CASES = [
    "decode",
    "network",
    "decode, encode labels",
    "labels",
    "decode, encode",
    "overlay",
    "2 x decode, encode",
    "overlay, 2 streams",
]
SUMMARY = Summary(2.0, 10, 10, 10, 0, None, None, {"decode": Stage(0.01, 0.1), "network": Stage(0.18, 0.9)}, {}, {})


@pytest.fixture
def settings(model):
    return LabelSettings(model, streamseg.CAMVID, LastFrames(1), size=(32, 32))


def test_every_case_takes_the_same_frames_and_is_compared_in_the_same_run(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    video, steps, so_far = make_clip(tmp_path / "drive.mp4", 20), [], []
    figures = measure_pipeline(
        video,
        settings,
        DrawStyle(),
        frames=12,
        streams=2,
        rounds=2,
        progress=lambda done, total: steps.append((done, total)),
        each=so_far.append,
    )
    assert steps == [(i, 16) for i in range(16)]
    assert [len(one.speeds) for one in so_far] == [*range(1, 9), *[8] * 8]
    assert so_far[-1] == figures
    assert (figures.video.name, figures.frames, figures.streams, figures.rounds) == ("drive.mp4", 12, 2, 2)
    assert [speed.way for speed in figures.speeds] == CASES
    for speed in figures.speeds:
        assert len(speed.rounds) == 2
        assert 0 < min(speed.rounds) <= speed.fps <= max(speed.rounds) < math.inf
        assert speed.cores > 0
        ratios = (speed.of_bare, speed.of_network)
        assert all(0 < ratio < math.inf for ratio in ratios) if speed.bare else ratios == (None, None)
    assert [stages.way for stages in figures.stages] == ["labels", "overlay", "overlay, 2 streams"]
    for stages in figures.stages:
        assert set(stages.ms) == set(stages.busy) == {"decode", "network", "draw", "encode"}
        assert stages.slowest in stages.ms
        assert 0 < stages.of_slowest <= 1.01
        assert stages.bottleneck.startswith("Bottleneck: ")
    assert min(figures.first_labels_seconds, figures.next_first_labels_seconds) > 0
    json.dumps(asdict(figures))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drive.mp4"]  # the rest was removed


def test_the_pipeline_of_a_way_writes_what_segment_writes(settings, tmp_path):
    video = make_clip(tmp_path / "drive.mp4", 6)
    run = run_segment([video], "labels", settings, DrawStyle(), tmp_path)
    assert run.frames == 6
    assert len(list(read_label_video(tmp_path / "labels-0.mkv"))) == 6
    run = run_segment([video] * 3, "overlay", settings, DrawStyle(), tmp_path)
    assert run.frames == 18
    assert [len(list(streamseg.read_frames(tmp_path / f"overlay-{i}.mp4"))) for i in range(3)] == [6, 6, 6]
    assert run.first_labels > 0


def test_a_damaged_video_is_an_error_and_no_speed(settings, tmp_path):
    video = make_clip(tmp_path / "drive.mp4", 12)
    data = bytearray(video.read_bytes())
    data[data.index(b"mdat") + 400 :] = bytes(len(data) - data.index(b"mdat") - 400)
    video.write_bytes(data)
    with pytest.raises((ValueError, OSError), match="drive.mp4|stream"):
        run_segment([video], "labels", settings, DrawStyle(), tmp_path)


def test_a_run_that_is_stopped_is_no_measurement(settings, tmp_path, monkeypatch):
    stopped = SimpleNamespace(signal=2, problems=[], frames=1)
    monkeypatch.setattr(pipeline_benchmark.Pipeline, "run", lambda self: stopped)
    with pytest.raises(KeyboardInterrupt):
        run_segment([make_clip(tmp_path / "drive.mp4", 3)], "labels", settings, DrawStyle(), tmp_path)


def test_the_cases_run_in_turn():
    order = []

    def case(name):
        return Case(name, lambda: order.append(name) or Run(3))

    so_far = run_in_turn([case("a"), case("b")], 2, lambda done, total: None)
    assert list(next(so_far)) == ["a"]  # each is there as soon as it has run
    *_, runs = so_far
    assert order == ["a", "b", "a", "b"]
    assert [run.frames for found in runs.values() for run in found] == [3, 3, 3, 3]
    assert all(run.seconds > 0 for found in runs.values() for run in found)


def test_a_ratio_is_the_median_of_the_ratios_of_each_round():
    # the machine was ten times as slow in the second round: the ratio is not
    own = [Run(10, 2.0, 1.0), Run(10, 20.0, 10.0), Run(10, 2.0, 1.0)]
    bare = [Run(10, 1.0, 1.0), Run(10, 10.0, 10.0), Run(10, 1.25, 1.0)]
    speed = summarise_speed(Case("ours", lambda: Run(1), "bare"), {"ours": own, "bare": bare, "network": own})
    assert (speed.fps, speed.rounds, speed.of_bare, speed.of_network) == (5.0, (5.0, 0.5, 5.0), 0.5, 1.0)
    assert speed.cores == pytest.approx(0.5)
    alone = summarise_speed(Case("bare", lambda: Run(1)), {"bare": bare})
    assert (alone.of_bare, alone.of_network) == (None, None)


def test_the_whole_is_compared_with_its_slowest_stage():
    later = replace(SUMMARY, stages={"decode": Stage(0.03, 0.3), "network": Stage(0.16, 0.8)})
    runs = [
        Run(10, 2.0, summary=SUMMARY, samples=Samples({"decode, network": [1.0]}, lock_waits=[0.002])),
        Run(10, 2.0, summary=later),
    ]
    stages = summarise_stages("overlay", runs)
    assert stages.ms == pytest.approx({"decode": 20.0, "network": 170.0})
    assert (stages.slowest, stages.of_slowest, stages.ms_per_frame) == ("network", pytest.approx(0.85), 200.0)
    assert stages.waits == ("decode waits for network (queue 100 % full)",)
    assert stages.lock_ms == pytest.approx({"mean": 2.0, "p95": 2.0})
    assert stages.host_ms == {}


def test_the_work_of_a_gpu_is_told_apart_from_python_and_from_waiting_for_it():
    times = [DeviceTimes(3, 12, device=0.003, enqueue=0.006, wait=0.001), DeviceTimes(1, 4, 0.001, 0.002, 0.003)]
    expected = {"device": 1.0, "enqueue": 2.0, "wait": 1.0, "frames": 4.0, "waits": 4}
    assert host_times(times) == pytest.approx(expected)
    assert host_times([]) == {}


def test_the_bottleneck_is_that_of_the_round_of_median_speed():
    disturbed = replace(SUMMARY, stages={"decode": Stage(0.9, 0.95), "network": Stage(0.18, 0.1)})
    runs = [Run(10, 2.0, summary=SUMMARY), Run(10, 1.9, summary=SUMMARY), Run(10, 20.0, summary=disturbed)]
    assert summarise_stages("overlay", runs).bottleneck.startswith("Bottleneck: network, busy 90 % of the time")


def test_all_batch_sizes_of_the_streams_are_prepared_before_anything_is_timed(model, settings):
    slow = SlowEngine(model)
    slow.may_go_on.set()
    engine = PreparingEngine(EagerEngine(model), slow)
    request_batch_sizes(replace(settings, model=engine), (48, 64), 6)
    wait_until_prepared(replace(settings, model=engine))
    assert slow.asked == [(torch.Size((count, 3, 32, 32)), False, False, False, None) for count in (1, 2, 4)]
    request_batch_sizes(settings, (48, 64), 6)  # this one prepares nothing


def test_an_engine_that_prepares_itself_in_the_background_is_waited_for(monkeypatch, settings):
    waiting = ["size"]
    engine = SimpleNamespace(preparation=SimpleNamespace(waiting=waiting, failed=set()))
    monkeypatch.setattr(pipeline_benchmark.time, "sleep", lambda seconds: waiting.clear())
    wait_until_prepared(replace(settings, model=engine))
    assert not waiting
    wait_until_prepared(settings)  # one that does not


@pytest.mark.parametrize(
    ("waiting", "failed", "sentence"), [(["size"], [], "was not prepared within 0 s"), ([], ["size"], "could not be")]
)
def test_an_engine_that_does_not_get_ready_is_not_measured(monkeypatch, settings, waiting, failed, sentence):
    engine = SimpleNamespace(preparation=SimpleNamespace(waiting=waiting, failed=failed))
    monkeypatch.setattr(pipeline_benchmark, "PREPARATION_SECONDS", 0.0)
    with pytest.raises(OSError, match=f"The fast engine {sentence}"):
        wait_until_prepared(replace(settings, model=engine))


def test_a_video_file_is_found(tmp_path):
    path = make_clip(tmp_path / "drive.mp4", 3)
    assert check_video(str(path)) == path


def test_anything_but_a_video_of_some_length_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 48)).save("photo.png")
    make_clip(tmp_path / "short.mp4", 5)
    make_clip(tmp_path / "drive.mp4", 9)
    (tmp_path / "noise.mp4").write_bytes(b"no video" * 100)
    (tmp_path / "empty").mkdir()
    for arguments, sentence in {
        ("nowhere.mp4",): "Nothing at nowhere.mp4: expected a picture, a video",
        ("photo.png",): "photo.png is no video: the pipeline is measured on one video file",
        ("0",): "0 is a camera: the pipeline is measured on one video file",
        ("rtsp://user:secret@host/live",): "is an address, whose speed is the network's: give a video file.",
        ("empty",): "No picture and no video in empty",
        ("*.mp4",): "*.mp4 is 3 sources",
        ("noise.mp4",): "noise.mp4 is not a video that can be read",
        ("short.mp4",): "short.mp4 has 5 frames, too few to measure: give a video of at least 8.",
        ("drive.mp4", "--streams", "16"): "drive.mp4 has 9 frames, too few to measure: give a video of at least 16.",
        ("drive.mp4", "--frames", "0"): "frames is 0; expected a whole number, 1 or more.",
        ("drive.mp4", "--rounds", "0"): "rounds is 0",
        ("drive.mp4", "--size", "1x1"): "--size is '1x1'",
        ("drive.mp4", "--weights", "none.safetensors"): "No weights at none.safetensors",
        ("drive.mp4", "--json", "nowhere/a.json"): "No folder nowhere",
        ("drive.mp4", "--batch", "2", "--seconds", "3"): "--pipeline measures segment: leave out --batch, --seconds.",
        ("drive.mp4", "fanet18"): "--pipeline measures segment: leave out MODEL.",
    }.items():
        shown = complaint(monkeypatch, capsys, "benchmark", "--pipeline", *arguments, "--device", "cpu")
        assert sentence in shown
        assert "secret" not in shown
    shown = complaint(monkeypatch, capsys, "benchmark", "fanet18", "--frames", "9")
    assert "Networks alone are measured without --pipeline VIDEO: leave out --frames." in shown


def test_the_verb_prints_tables_and_writes_json_and_a_plot(tmp_path, model, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_clip(tmp_path / "drive.mp4", 10)
    streamseg.save(model, streamseg.CAMVID, "weights.safetensors")
    options = ["--weights", "weights.safetensors", "--device", "cpu", "--size", "32x32", "--rounds", "1"]
    more = ["--frames", "8", "--streams", "2", "--json", "a.json", "--plot", "a.png"]
    assert run(monkeypatch, "benchmark", "--pipeline", "drive.mp4", *options, *more) == 0
    shown = capsys.readouterr().out
    assert "8 frames of drive.mp4 (h264, 48 x 64), 1 round in turn" in shown
    assert all(f"\n  {way}" in shown for way in CASES)
    assert "First labels" in shown
    entry = json.loads((tmp_path / "a.json").read_text())
    assert entry.keys() >= {"machine", "network", "video", "frames", "speeds", "stages", "first_labels_seconds"}
    assert entry["network"]["size"] == [32, 32]
    assert [speed["way"] for speed in entry["speeds"]] == CASES
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    names = {"drive.mp4", "weights.safetensors", "a.json", "a.png"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_has_stages_for_the_copies_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_clip(tmp_path / "drive.mp4", 40, size=(128, 256))
    options = ["--device", "cuda", "--rounds", "2", "--frames", "40", "--json", "a.json"]
    assert run(monkeypatch, "benchmark", "--pipeline", "drive.mp4", *options) == 0
    entry = json.loads((tmp_path / "a.json").read_text())
    assert all({"network", "upload", "download"} <= set(stages["ms"]) for stages in entry["stages"])
    assert all(speed["of_bare"] > 0 for speed in entry["speeds"] if speed["bare"])
