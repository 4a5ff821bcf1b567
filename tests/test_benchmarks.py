"""The programs in benchmarks/ that measure the whole road: what they count and write, never how fast they are."""

import json
import sys
import time
from pathlib import Path

import pytest
import torch
from clips import make_clip
from make_datasets import make_changing_camvid

import streamseg
import streamseg.io.video_reading
from streamseg.evaluate.lag import HELD
from streamseg.evaluate.video import evaluate_video
from streamseg.stream.settings import LabelSettings
from streamseg.stream.state import LastFrames

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import cameras  # noqa: E402 (scripts of a folder that is no package)
import file_to_file  # noqa: E402
import lock_emulation  # noqa: E402
import lock_variants  # noqa: E402
import scene  # noqa: E402
import segment_start  # noqa: E402
import serve as serve_benchmark  # noqa: E402
import steady  # noqa: E402


def test_a_scene_moves_has_detail_and_is_the_same_in_every_run():
    frames, again = (list(scene.moving_scene((48, 80), 4)) for _ in range(2))
    assert [frame.shape for frame in frames] == 4 * [(3, 48, 80)]
    assert all(frame.dtype == torch.uint8 and frame.float().std() > 20 for frame in frames)
    assert all(one.equal(other) for one, other in zip(frames, again, strict=True))
    assert not frames[0].equal(frames[1])


def test_a_camera_that_pans_stays_within_the_picture():
    assert [scene.bounce(place, 3) for place in range(8)] == [0, 1, 2, 3, 2, 1, 0, 1]
    assert scene.bounce(5, 0) == 0


def test_a_video_to_measure_with_is_made_from_the_scene_or_from_a_clip(tmp_path):
    made = scene.make_video(tmp_path / "a.mp4", (48, 80), 5)
    assert [frame.shape for frame in streamseg.read_frames(made)] == 5 * [(3, 48, 80)]
    clip = make_clip(tmp_path / "clip.mp4", 3)
    again = scene.make_video(tmp_path / "b.mp4", (32, 40), 7, clip)
    assert [frame.shape for frame in streamseg.read_frames(again)] == 7 * [(3, 32, 40)]


def test_a_long_video_repeats_its_first_frames_and_is_whole(tmp_path):
    made = scene.make_video(tmp_path / "a.mp4", (48, 80), 11, distinct=4)
    with streamseg.io.video_reading.open_video(made) as video:
        frames, times = zip(*video, strict=True)  # it would say so if it was damaged
    assert len(frames) == 11
    assert times == pytest.approx([i / 30 for i in range(11)], abs=1e-3)
    assert all(frames[i].equal(frames[i % 4]) for i in range(11))
    assert not frames[0].equal(frames[1])


def test_a_virtual_camera_delivers_its_frames_when_they_are_due():
    begin = time.monotonic() - 10  # all are due already
    camera = cameras.VirtualCamera("camera 1", [torch.zeros(3, 8, 8), torch.ones(3, 8, 8)], 4, 3, begin)
    found = list(camera.captures())
    assert [capture.index for capture in found] == [0, 1, 2]
    assert [capture.captured - begin for capture in found] == pytest.approx([0, 0.25, 0.5])
    assert [capture.frame.max().item() for capture in found] == [0, 1, 0]


def test_cameras_go_through_the_real_pipeline_and_every_frame_is_counted(model):
    settings = LabelSettings(model, streamseg.CAMVID, LastFrames(1), size=(32, 32))
    figures = cameras.measure(settings, (48, 64), 2, 5.0, 0.6, 0.2)
    assert (figures.cameras, figures.expected) == (2, 6)
    assert figures.labelled + figures.dropped == 6
    assert figures.labelled >= 2
    assert figures.summary["latency_ms"].keys() == {"p50", "p95", "p99", "max"}
    assert figures.memory_mb.keys() == {"resident start", "resident end"}
    assert figures.first_labels_seconds > 0
    assert not figures.problems
    assert "from capture to labels: p50 " in cameras.report(figures)


def test_the_figures_of_cameras_are_written(tmp_path, model, monkeypatch, capsys):
    streamseg.save(model, streamseg.CAMVID, tmp_path / "weights.safetensors")
    options = "--cameras 2 --rate 5 --seconds 0.4 --warm-up 0.2 --size 48x64 --input-size 32x32 --device cpu"
    files = ["--weights", str(tmp_path / "weights.safetensors"), "--json", str(tmp_path / "a.json")]
    monkeypatch.setattr(sys, "argv", ["cameras.py", *options.split(), *files])
    cameras.main()
    assert "2 cameras, 5 frames a second each" in capsys.readouterr().out
    entry = json.loads((tmp_path / "a.json").read_text())
    assert entry.keys() == {"machine", "runs"}
    assert entry["runs"][0]["expected"] == 4


def test_steady_labels_have_the_figures_of_evaluate(tmp_path, model, monkeypatch):
    streamseg.save(model, streamseg.CAMVID, tmp_path / "weights.safetensors")
    data = make_changing_camvid(tmp_path / "camvid", (48, 64))
    stream = list(range(12)), [i / steady.RATE for i in range(12)]
    ways = {"off": 0.0, "2": 2.0, "low": streamseg.STEADY_LOW}
    monkeypatch.setattr(steady, "streams", lambda frames: {"15 a second": stream})
    monkeypatch.setattr(steady, "DEVICE", "cpu")
    rows = steady.measure_network(str(data), ways, str(tmp_path / "weights.safetensors"))
    for (_, name, figures), way in zip(rows, ways, strict=True):
        found = evaluate_video(model, streamseg.camvid(data, "val"), LastFrames(1, steady=ways[way]))
        assert name == way
        expected = (found.miou, found.flip_rate_still, found.mvc8, found.lag.median, found.lag.mean)
        assert figures == pytest.approx(expected, rel=0.01)


def test_ways_of_labelling_are_told_from_weights():
    assert steady.split_ways(["a.safetensors"]) == (["a.safetensors"], steady.WAYS)
    weights, ways = steady.split_ways(["20", "a.safetensors", "0.8,10,5.7,60"])
    assert weights == ["20", "a.safetensors"]
    assert ways == {"off": 0.0, "0.8,10,5.7,60": streamseg.STEADY_HIGH}


def test_a_change_that_is_not_labelled_in_time_counts_in_the_lag_of_steady_labels():
    true = [torch.tensor([[int(i >= 3)] * 2]) for i in range(12)]
    late = [torch.tensor([[int(i >= 5), 0]]) for i in range(12)]
    assert steady.measure_lag(true, late).mean == (2 + HELD) / 2


def test_every_cache_of_kernels_is_in_the_given_folder(tmp_path):
    found = segment_start.with_cache(tmp_path)
    assert all(Path(found[name]).parent == tmp_path for name in segment_start.CACHES)
    assert "PATH" in found


def test_the_first_labels_are_timed_with_an_empty_and_with_a_filled_cache(monkeypatch):
    seen = []

    def run_segment(video, cache, *options):
        seen.append((cache, options))
        return {"frames": 3, "first_labels_seconds": float(len(seen))}

    monkeypatch.setattr(segment_start, "run_segment", run_segment)
    monkeypatch.setattr(segment_start, "time_import", lambda: 1.0)
    figures = segment_start.measure(Path("in.mp4"), 3, "--device", "cpu")
    folders = [cache for cache, _ in seen]
    assert folders[0] == folders[1] != folders[2] == folders[3] != folders[4] == folders[5]
    assert (figures["empty"]["first_labels_seconds"], figures["filled"]["first_labels_seconds"]) == (3.0, 4.0)
    assert (figures["empty"]["beyond_import_seconds"], figures["filled"]["beyond_import_seconds"]) == (2.0, 3.0)
    assert figures["bytecode_is_written"] is not sys.dont_write_bytecode
    assert not any(folder.exists() for folder in folders)
    assert {options for _, options in seen} == {("--device", "cpu")}


@pytest.mark.slow
def test_the_first_labels_of_a_new_process_are_timed(tmp_path):
    video = make_clip(tmp_path / "in.mp4", 5)
    (tmp_path / "cache").mkdir()
    found = segment_start.run_segment(video, tmp_path / "cache", "--device", "cpu", "--size", "32x32")
    assert found["frames"] == 5
    assert 0 < found["first_labels_seconds"] <= found["end_seconds"]
    assert found["longest_wait_seconds"] >= 0
    with pytest.raises(SystemExit, match="segment failed with status 2: streamseg: "):
        segment_start.run_segment(tmp_path / "none.mp4", tmp_path / "cache")


@pytest.mark.slow
def test_clients_in_processes_of_their_own_are_answered(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serve_benchmark, "CLIENT_PROCESSES", 1)
    serve_benchmark.clients(["cpu"], (48, 64), 2, 1.0, tmp_path / "a.json")
    entry = json.loads((tmp_path / "a.json").read_text())
    found = entry["devices"]["cpu"]
    assert found["errors"] == {}
    assert found["answered"] >= 1
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert "| cpu | " in capsys.readouterr().out


def test_a_lost_server_is_an_error_of_each_client():
    # nobody listens at port 1
    answers = serve_benchmark.send_from_process(1, b"", time.monotonic() + 60, 3)
    assert answers == 3 * [(0, 0.0)]


@pytest.mark.parametrize("quick", [True, False])
def test_each_part_has_a_command_that_its_program_takes(quick):
    videos = {part: Path(f"{part}.mp4") for part in file_to_file.SIZES}
    parts = file_to_file.commands(videos, quick)
    assert set(file_to_file.SIZES) < set(parts)
    for part, command in parts.items():
        assert f"\n{part} " in file_to_file.__doc__
        program = Path(command[1])
        assert command[1] == "-m" or program.is_file()
        if command[1] != "-m":
            known = program.read_text()
            assert all(f'"{word}"' in known for word in command if word.startswith("--"))


def test_a_part_that_fails_or_takes_too_long_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(file_to_file, "MIN_SECONDS", 0.2)

    def program(text):
        return [sys.executable, "-c", text]

    sleeper = "import time; time.sleep(600)"
    assert file_to_file.run_part(program("pass"), 60) == ""
    assert file_to_file.run_part(program("raise SystemExit(3)"), 60) == "ended with status 3"
    assert file_to_file.run_part(program(sleeper), 0.1) == "was left out for lack of time"
    assert file_to_file.run_part(program(sleeper), 0.3) == "did not end in time"
    write = "import sys; open(sys.argv[2], 'w').write('{}')"
    parts = {"one": program("raise SystemExit(3)"), "two": program(write)}
    assert file_to_file.run_parts(parts, tmp_path, time.monotonic() + 60) == {"one": "ended with status 3"}
    assert (tmp_path / "two.json").read_text() == "{}"
    monkeypatch.setattr(file_to_file, "PART_SECONDS", 0.3)  # one that hangs leaves time for the others
    assert file_to_file.run_parts({"one": program(sleeper)}, tmp_path, time.monotonic() + 600) == {
        "one": "did not end in time"
    }


@pytest.mark.parametrize(
    "script", [scene, cameras, segment_start, file_to_file, lock_emulation, lock_variants, serve_benchmark]
)
def test_a_benchmark_says_how_it_is_run(script):
    assert f"python benchmarks/{Path(script.__file__).name}" in script.__doc__


def test_the_emulation_runs_the_real_pipeline_in_all_ways(monkeypatch, tmp_path, capsys):
    options = ["--streams", "2", "1", "--frames", "6", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["lock_emulation.py", *options, "--json", str(tmp_path / "a.json")])
    lock_emulation.main()
    figures, single = json.loads((tmp_path / "a.json").read_text())
    assert set(figures["of_bare"]) == {"bare", "many threads", "one thread", "processes"}
    assert set(single["of_bare"]) == {*figures["of_bare"], "alone"}
    assert {"decode", "network", "encode"} <= set(single["runs"]["alone"][0]["stages_ms"])
    gpu = 1000 * (lock_emulation.GPU_SECONDS + 2 * lock_emulation.COPY_SECONDS)
    assert all(single["runs"][way][0]["stages_ms"]["network"] >= gpu for way in ("one thread", "processes", "alone"))
    assert all(ratio > 0 for ratio in figures["of_bare"].values())
    assert {"upload", "download"} <= set(figures["runs"]["one thread"][0]["stages_ms"])
    assert "2 streams" in capsys.readouterr().out


def test_an_emulated_process_works_beside_the_one_that_waits_for_it(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(lock_emulation.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(lock_emulation.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(lock_emulation, "call", lambda count: None)
    decoder, encoder = lock_emulation.EmulatedProcess(1.0), lock_emulation.EmulatedProcess(1.0)
    times = []
    for _ in range(4):
        decoder.decode()
        times.append(now[0])
        now[0] += 0.5  # work of the reader, while the process decodes the next frame
    assert times == [101.0, 102.0, 103.0, 104.0]
    now[0] = 200.0
    for _ in range(lock_emulation.SLOTS + 2):
        encoder.encode()
    assert now[0] == 201.0  # the encoder is a slot behind
    encoder.finish()
    assert now[0] == 200.0 + lock_emulation.SLOTS + 2


def test_the_variants_are_compared_and_leave_python_as_it_was(monkeypatch, tmp_path, capsys, model):
    settings = LabelSettings(model, streamseg.CAMVID, LastFrames(1), size=(32, 48))
    monkeypatch.setattr(lock_variants, "open_model", lambda options: (settings, None))
    monkeypatch.setattr(lock_variants.threads, "TURN_SECONDS", 1.0)  # restored after the test
    monkeypatch.setenv("STREAMSEG_CODECS", "")
    monkeypatch.setattr(lock_variants, "VARIANTS", lock_variants.VARIANTS[:2])
    options = [
        "--size",
        "48x64",
        "--frames",
        "8",
        "--streams",
        "2",
        "--cameras",
        "2",
        "--rate",
        "10",
        "--seconds",
        "0.3",
    ]
    monkeypatch.setattr(sys, "argv", ["lock_variants.py", *options, "--json", str(tmp_path / "a.json")])
    lock_variants.main()
    figures = json.loads((tmp_path / "a.json").read_text())["variants"]
    assert list(figures) == ["threads, 5 ms", "processes, 0.05 ms"]
    assert figures["threads, 5 ms"]["cameras"]["frames"]["read"] == 6
    assert capsys.readouterr().out.count("overlay, 2 streams") == 2


def test_the_emulation_of_cameras_counts_every_frame(monkeypatch, tmp_path):
    options = [
        "--cameras",
        "2",
        "--rate",
        "20",
        "--seconds",
        "0.2",
        "--rounds",
        "1",
        "--json",
        str(tmp_path / "a.json"),
    ]
    monkeypatch.setattr(sys, "argv", ["lock_emulation.py", *options, "--json", str(tmp_path / "a.json")])
    lock_emulation.main()
    (figures,) = json.loads((tmp_path / "a.json").read_text())
    assert [run["read"] for runs in figures["runs"].values() for run in runs] == [8, 8]
