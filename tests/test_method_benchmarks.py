"""The programs in benchmarks/ that train the flow network and compare the video methods: all but the trainings."""

import importlib.util
import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from make_datasets import make_camvid

import streamseg
from streamseg.evaluate.video_methods import evaluate_distances
from streamseg.models.baselines import swiftnet18
from streamseg.models.video import METHODS, VIDEO_METHODS
from streamseg.models.video.flownet import FlowNetS
from streamseg.train.flow import make_optimiser

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import method_jobs  # noqa: E402 (scripts of a folder that is no package)
import method_table  # noqa: E402
import method_times  # noqa: E402
import train_flow  # noqa: E402

SIZE = (48, 64)


@pytest.fixture(scope="module")
def video_methods():
    """The script, whose name is also that of a module of the tests."""
    spec = importlib.util.spec_from_file_location("compare_methods", ROOT / "benchmarks" / "video_methods.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """CamVid in small: six frames of train, a second apart, and six of val, a fifteenth apart."""
    folder = tmp_path_factory.mktemp("camvid")
    make_camvid(folder, "train", [f"0001TP_{6690 + 30 * number:06}" for number in range(6)], size=SIZE)
    return make_camvid(folder, "val", [f"0016E5_{7959 + 2 * number:05}" for number in range(6)], size=SIZE)


def test_every_video_method_that_propagates_is_compared_with_copying_at_its_interval():
    def row(miou, mean, longest):
        return {"miou": [miou], "key_share": 20.0, "mean_ms": mean, "max_ms": longest}

    found = {
        "swiftnet18": row(60, 5.0, 5.0),
        "copy-swiftnet18": row(40, 1.0, 5.0),
        "copy-2-swiftnet18": row(50, 3.0, 5.0),
        "clockwork-swiftnet18": row(53, 4.0, 5.0),
        "low-latency-swiftnet18": row(46, 4.0, 5.0),
        "clockwork-fanet18": row(90, 1.0, 1.0),
    }
    clockwork, low_latency = method_table.verdicts(found)
    assert clockwork.startswith("- clockwork-swiftnet18 less copying: 3.0 mIoU")
    assert low_latency.startswith("- low-latency-swiftnet18 less copying: 6.0 mIoU")
    assert [*method_table.cost_verdicts(found)] == [
        "- clockwork-swiftnet18: the mean time is below the backbone's, the longest is not"
    ]


def test_a_table_has_a_dash_for_what_was_not_measured():
    text = method_table.format_table(
        {"dff-fanet18": {"miou": [50.0, 52.0], "by_distance": [52.0, 50.25], "mvc8": 80.0}}
    )
    assert "| dff-fanet18 | 51.0 ± 1.4 | 50.2 | – | – | – | – | – | 80.0 | – | – |" in text


def test_a_video_method_that_does_not_train_its_flow_network_needs_one(video_methods, capsys):
    with pytest.raises(SystemExit):
        video_methods.parse(["CamVid", "--out", "runs", "--only", "accel"])
    assert "accel do not train a flow network: give --clips DIR or --flow FILE" in capsys.readouterr().err


def test_decoded_frames_are_the_data_set_and_are_written_once(video_methods, data, tmp_path):
    video_methods.decode(data, tmp_path / "data", None, None)
    for split in ("train", "val"):
        given, found = streamseg.camvid(data, split), streamseg.camvid(tmp_path / "data", split)
        assert [pair.image.stem for pair in found.pairs] == [pair.image.stem for pair in given.pairs]
        assert all(a.equal(b) for i in range(len(given)) for a, b in zip(given[i], found[i], strict=True))
    assert {path.suffix for path in (tmp_path / "data" / "val").iterdir()} == {".bmp"}
    video_methods.decode(tmp_path / "nowhere", tmp_path / "data", None, None)
    video_methods.decode(data, tmp_path / "small", (24, 32), 2)
    small = streamseg.camvid(tmp_path / "small", "val")
    assert [tuple(x.shape) for x in small[1]] == [(3, 24, 32), (24, 32)]
    assert len(small) == 2


@pytest.fixture
def arguments(video_methods, data, tmp_path, monkeypatch):
    """Options of the script, with a folder of decoded frames."""
    given = [str(data), "--clips", "CLIPS", "--out", str(tmp_path / "runs"), "--size", "48", "64", "--", "--crop", "32"]
    monkeypatch.setattr(sys, "argv", ["video_methods.py", *given])
    arguments, options = video_methods.parse(given)
    assert options == ["--crop", "32"]
    video_methods.decode(data, arguments.out / "data", None, None)
    return arguments


def test_a_job_comes_after_those_that_it_needs(video_methods, arguments):
    rows = video_methods.list_rows(arguments)
    assert len(rows) == 2 * (1 + len(METHODS) + 1) + 3
    jobs = video_methods.list_jobs(arguments, rows)
    assert len(jobs) == 1 + 2 * len(rows)
    names = [job.name for job in jobs]
    for place, job in enumerate(jobs):
        assert {*job.needs} <= {*names[:place]}
    needs = {job.name: job.needs for job in jobs}
    assert needs["dff-fanet18-seed-1"] == ("fanet18-seed-1", "flow")
    assert needs["copy-2-swiftnet18-seed-0"] == ("swiftnet18-seed-0",)
    assert needs["fanet34-temp-seed-0"] == ("fanet34-seed-0",)
    assert jobs[-1].command[-5:] == ["fanet34-temp", "1", "--", "--crop", "32"]


@pytest.mark.parametrize("name", ["swiftnet18", "fanet34-temp", "dff-swiftnet18", "low-latency-fanet18"])
def test_the_command_of_a_training_is_one_of_streamseg(video_methods, arguments, name):
    command = [*map(str, video_methods.train_command(arguments, ["--batch", "2"], name, 1))]
    from streamseg.cli.parser import parse

    if "--initial" in command:
        assert Path(command[command.index("--initial") + 1]).parent.name == f"{video_methods.initial_of(name)}-seed-1"
    assert callable(parse(command))  # without an error
    assert command.count("--batch") == 1
    assert command[command.index("--iterations") + 1] == ("1000" if name == "swiftnet18" else "300")


def test_a_network_is_wrapped_tuned_evaluated_and_collected(video_methods, arguments, monkeypatch):
    """All steps of a job but training, of copying and of a method with a schedule."""
    out = video_methods.run_folder(arguments.out, "swiftnet18", 0)
    out.mkdir(parents=True)
    torch.manual_seed(0)
    streamseg.save(swiftnet18(11), streamseg.CAMVID, out / "weights.safetensors")
    assert video_methods.run_steps(arguments, ["--device", "cpu"], "copy-2-swiftnet18", 0) == 0
    out = video_methods.run_folder(arguments.out, "clockwork-adaptive-swiftnet18", 0)
    out.mkdir()
    adaptive = VIDEO_METHODS["clockwork-adaptive-swiftnet18"](11)
    streamseg.save(adaptive, streamseg.CAMVID, out / "weights.safetensors")
    monkeypatch.setattr(video_methods, "TUNING_CLIPS", 2)
    assert video_methods.run_steps(arguments, ["--device", "cpu"], "clockwork-adaptive-swiftnet18", 0) == 0
    tuned = json.loads((out / "tuned.json").read_text())
    assert streamseg.load(out / "weights.safetensors")[0].threshold == tuned["threshold"]

    video_methods.time_network(arguments, "copy-2-swiftnet18")
    rows = ["swiftnet18", "copy-2-swiftnet18", "clockwork-adaptive-swiftnet18"]
    found = video_methods.write_figures(arguments, rows)
    assert found == json.loads((arguments.out / "video-methods.json").read_text())
    assert [*found] == rows[1:]  # the backbone has not been evaluated
    copy = found["copy-2-swiftnet18"]
    method, _ = streamseg.load(video_methods.run_folder(arguments.out, rows[1], 0) / "weights.safetensors")
    expected = evaluate_distances(method, streamseg.camvid(arguments.out / "data", "val"), 2)
    assert copy["by_distance"] == pytest.approx(expected.mious)
    assert copy["miou"] == [pytest.approx(expected.mean)]
    assert copy["key_share"] == 50
    assert copy["max_ms"] > 0
    assert found["clockwork-adaptive-swiftnet18"]["threshold"] == tuned["threshold"]


def test_a_network_that_cannot_be_timed_leaves_the_others_alone(video_methods, arguments, capsys):
    out = video_methods.run_folder(arguments.out, "dff-fanet18", 0)
    out.mkdir(parents=True)
    for name in ("val.json", "cost.json"):
        (out / name).write_text("{}")
    (out / "weights.safetensors").write_bytes(b"no weights")
    video_methods.time_network(arguments, "dff-fanet18")
    assert "dff-fanet18: not timed, " in capsys.readouterr().out
    assert not (out / "times.json").exists()


def test_clips_to_tune_on_are_frames_of_train_that_move(video_methods, data):
    clips = video_methods.make_clips(streamseg.camvid(data, "train"), torch.device("cpu"))
    assert len(clips) == 6
    for index, clip in enumerate(clips):
        assert clip.shape == (11, 3, *SIZE)
        assert clip[-1].equal(streamseg.camvid(data, "train")[index][0].float())
        assert all((later - earlier).abs().max() > 1 for earlier, later in pairwise(clip))


def python(text, output, name="job", needs=()):
    return method_jobs.Job(name, [sys.executable, "-c", text], output, output.with_name(f"{name}.json"), needs)


def test_a_job_that_fails_leaves_only_those_out_that_need_it(tmp_path):
    output, done = tmp_path / "runs" / "output.txt", []
    jobs = [
        python("raise SystemExit(3)", output, "one"),
        python("print('here')", output, "two"),
        python("print('never')", output, "three", ("one",)),
        python("print('there')", output, "four", ("two",)),
    ]
    runner = method_jobs.JobRunner(2, time.monotonic() + 60, {}, lambda job: done.append(job.name))
    problems = runner.run(jobs)
    assert problems["one"] == f"failed with status 3, see {output}"
    assert problems["three"] == "left out: it needs one"
    assert (problems["two"], problems["four"]) == ("", "")
    assert done == ["two", "four"]
    assert {*output.read_text().split()} == {"here", "there"}
    (tmp_path / "runs" / "one.json").touch()  # done by now
    assert runner.run(jobs)["three"] == ""
    assert "never" in output.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals that a process can answer")
def test_at_the_deadline_jobs_save_their_state_and_others_are_left_out(tmp_path):
    output = tmp_path / "output.txt"
    patient = "import signal, time; signal.signal(15, lambda *_: (print('saved'), exit(0))); time.sleep(600)"
    runner = method_jobs.JobRunner(1, time.monotonic() + 3, {}, lambda job: None)
    start = time.monotonic()
    problems = runner.run([python(patient, output, "one"), python("pass", output, "two")])
    assert problems["one"].startswith("stopped for lack of time")
    assert problems["two"] == "left out for lack of time"
    assert time.monotonic() - start < 60


def test_a_flow_network_goes_on_where_it_was_stopped(tmp_path):
    networks = [FlowNetS((4, 8, 8, 8, 8, 8)) for _ in range(2)]
    optimisers = [make_optimiser(network, 1e-3) for network in networks]
    current = torch.rand(1, 3, 64, 64)
    networks[0](current, current).sum().backward()
    optimisers[0].step()
    file = train_flow.state_file(tmp_path / "flow.safetensors")
    assert train_flow.load_training(file, networks[1], optimisers[1]) == (0.0, 0)
    train_flow.save_training(file, networks[0], optimisers[0], 0.25, 7)
    assert train_flow.load_training(file, networks[1], optimisers[1]) == (0.25, 7)
    assert all(map(torch.equal, networks[1].state_dict().values(), networks[0].state_dict().values()))
    assert optimisers[1].state_dict()["state"].keys() == optimisers[0].state_dict()["state"].keys()


def test_a_flow_is_not_learned_from_frames_that_are_a_second_apart(data):
    assert [*train_flow.dense_sequences(streamseg.camvid(data, "train"))] == []
    (sequence,) = train_flow.dense_sequences(streamseg.camvid(data, "val"))
    assert len(sequence) == 6


def test_without_videos_and_sequences_there_are_no_pairs():
    frames = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    assert len(train_flow.make_pairs([frames], 3)) == 4
    assert len(train_flow.make_pairs([], 3)) == 0


def test_the_mean_has_the_work_after_the_labels_and_the_maximum_has_not():
    times = {"key frame": 6.0, "still frame": 2.0, "changed frame": 3.0, "changed frame, after its labels": 5.0}
    assert method_times.summarise(times, 0.25) == {"mean_ms": 0.25 * 8 + 0.75 * 2, "max_ms": 6.0}
