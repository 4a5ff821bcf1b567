"""The programs in benchmarks/ that train the flow network and compare the video methods: all but the trainings."""

import importlib.util
import json
import re
import signal
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean

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

import method_copying  # noqa: E402 (scripts of a folder that is no package)
import method_jobs  # noqa: E402
import method_steps  # noqa: E402
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


def row(miou, share, mean=4.0, longest=5.0, **more):
    return {"miou": [miou], "key_share": [share], "mean_ms": mean, "max_ms": longest, **more}


def test_a_method_that_propagates_is_compared_with_copying_at_its_own_share_of_key_frames():
    curve = [[100.0, 60.0], [50.0, 50.0], [20.0, 41.0], [10.0, 31.0]]
    found = {
        "swiftnet18": row(60, 100.0, 5.0, copying=[curve]),
        "copy-swiftnet18": row(41, 20.0),
        "clockwork-swiftnet18": row(53, 50.0, longest=4.9),
        "low-latency-swiftnet18": row(46, 25.0, key_rate=[20.5]),
        "dvsnet-swiftnet18": row(30, 5.0),
        "clockwork-fanet18": row(90, 50.0),
    }
    clockwork, low_latency, dvsnet = method_table.verdicts(found)
    assert clockwork == "- clockwork-swiftnet18 less copying: 3.0 mIoU, with 50 % key frames"
    # 44 at an interval of 4, between 50 at 2 and 41 at 5
    assert low_latency == "- low-latency-swiftnet18 less copying: 2.0 mIoU, with 25 % key frames"
    assert dvsnet.endswith("-1.0 mIoU, with 5 % key frames; fewer than 10 % are compared with copying at 10 %")
    assert [*method_table.schedule_verdicts(found)] == [
        "- low-latency-swiftnet18: 20 % key frames on the clips that it was tuned on, 25 % on val"
    ]
    assert [*method_table.cost_verdicts(found)] == [
        "- clockwork-swiftnet18: the mean time is below the backbone's, the longest is not"
    ]


def test_without_a_curve_the_rows_of_copying_are_its_points():
    found = {
        "fanet18": {"miou": [60.0, 62.0], "key_share": [100.0, 100.0]},
        "copy-2-fanet18": {"miou": [50.0, 54.0], "key_share": [50.0, 50.0]},
        "copy-fanet18": {"miou": [41.0, 45.0], "key_share": [20.0, 20.0]},
        "dff-fanet18": {"miou": [43.0, 48.0], "key_share": [20.0, 20.0]},
    }
    assert [*method_table.verdicts(found)] == ["- dff-fanet18 less copying: 2.5 ± 0.5 mIoU, with 20 % key frames"]


def test_the_curve_of_copying_is_that_of_the_method_that_copies_at_each_interval(data, tmp_path):
    torch.manual_seed(0)
    network, val = swiftnet18(11).eval(), streamseg.camvid(data, "val")
    streamseg.save(network, streamseg.CAMVID, tmp_path / "weights.safetensors")
    curve = method_copying.measure_copying(tmp_path / "weights.safetensors", val)
    method = VIDEO_METHODS["copy-swiftnet18"](11).eval()
    method.backbone.network.load_state_dict(streamseg.load(tmp_path / "weights.safetensors")[0].state_dict())
    assert [share for share, _ in curve] == pytest.approx([100, 50, 100 / 3, 100 / 3, 100 / 3])  # of six frames
    for interval, (_, miou) in enumerate(curve, 1):
        assert miou == pytest.approx(evaluate_distances(method, val, interval).mean)


def test_a_table_has_a_dash_for_what_was_not_measured():
    text = method_table.format_table(
        {"dff-fanet18": {"miou": [50.0, 52.0], "by_distance": [52.0, 50.25], "mvc8": 80.0}}
    )
    assert "| dff-fanet18 | 51.0 ± 1.0 | 50.2 | – | – | – | – | – | 80.0 | – | – |" in text


def test_the_table_of_measured_figures_is_put_into_a_document(tmp_path, monkeypatch):
    figures, document = tmp_path / "figures.json", tmp_path / "page.md"
    figures.write_text(json.dumps({"settings": {}, "flow": {}, "rows": {"fanet18": {"miou": [70.0], "mvc8": [90.0]}}}))
    begin, end = method_table.MARKS
    document.write_text(f"Before.\n\n{begin}\nold\n{end}\n\nAfter.\n")
    monkeypatch.setattr(sys, "argv", ["method_table.py", str(figures), "--into", str(document)])
    for _ in range(2):
        method_table.main()
        before, row, after = document.read_text().partition("| fanet18 | 70.0 | – | – | – | – | – | – | 90.0 | – | – |")
        assert (before.startswith(f"Before.\n\n{begin}\n| "), bool(row)) == (True, True)
        assert after.endswith(f"{end}\n\nAfter.\n")
        assert "old" not in before
    with pytest.raises(ValueError, match="has no lines"):
        method_table.put_table("Nothing.", "")


def test_the_page_on_video_methods_has_the_measured_table_or_says_that_there_is_none():
    page = (ROOT / "docs" / "video-methods.md").read_text(encoding="utf-8")
    measured = ROOT / "docs" / "measured" / "video-methods.json"
    if measured.exists():
        rows = json.loads(measured.read_text(encoding="utf-8"))["rows"]
        assert page == method_table.put_table(page, method_table.format_table(rows))
    else:
        begin, end = method_table.MARKS
        assert "Nothing has been measured yet" in page[page.index(begin) : page.index(end)]


def test_the_page_on_video_methods_has_the_measured_figures_of_steady_labels():
    page = (ROOT / "docs" / "video-methods.md").read_text(encoding="utf-8")
    steady = json.loads((ROOT / "docs" / "measured" / "video-methods-steady.json").read_text(encoding="utf-8"))
    for name, found in steady.items():
        cells = f"{found['miou']:.1f} | {found['flip_rate']:.2f} | {found['flip_rate_still']:.2f} | {found['mvc8']:.1f}"
        assert f"| {name} | {cells} |" in page
    rows = json.loads((ROOT / "docs" / "measured" / "video-methods.json").read_text(encoding="utf-8"))["rows"]
    low = [found for name, found in steady.items() if name.endswith("low")]
    assert len(low) == 3
    assert all(max(row["miou"]) < min(found["miou"] for found in low) for row in rows.values())
    flips = fmean(found["flip_rate"] for found in low)
    fewer = [name for name, row in rows.items() if fmean(row["flip_rate"]) <= flips]
    assert fewer == ["copy-swiftnet18", "copy-fanet18"]


def test_every_propagation_beats_copying_in_the_measured_table():
    page = (ROOT / "docs" / "video-methods.md").read_text(encoding="utf-8")
    gains = re.findall(r"^- (\S+) less copying: (-?[\d.]+) ± ([\d.]+) mIoU", page, re.MULTILINE)
    methods = ("clockwork", "clockwork-adaptive", "dff", "accel", "low-latency", "dvsnet")
    assert {name for name, *_ in gains} == {f"{x}-{net}" for x in methods for net in ("swiftnet18", "fanet18")}
    assert all(float(gain) > float(spread) for _, gain, spread in gains)


def test_folders_that_do_not_fit_are_refused_at_once(video_methods, tmp_path, capsys):
    with pytest.raises(SystemExit):
        video_methods.parse(["CamVid", "--out", "runs", "--clips", str(tmp_path / "nowhere")])
    assert "nowhere is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="has 0 videos; expected two or more"):
        video_methods.parse(["CamVid", "--out", "runs", "--clips", str(tmp_path)])


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
def arguments(video_methods, data, tmp_path):
    """Options of the script, with a folder of decoded frames."""
    given = [str(data), "--out", str(tmp_path / "runs"), "--size", "48", "64", "--", "--crop", "32"]
    arguments, options = video_methods.parse(given)
    assert options == ["--crop", "32"]
    video_methods.decode(data, arguments.out / "data", None, None)
    return arguments


def test_a_job_comes_after_those_that_it_needs(video_methods, arguments):
    rows = video_methods.list_rows(arguments)
    assert len(rows) == 2 * (1 + len(METHODS) + 1) + 3
    jobs = video_methods.list_jobs(arguments, ["--crop", "32"], rows)
    assert len(jobs) == 1 + 2 * len(rows)
    names = [job.name for job in jobs]
    for place, job in enumerate(jobs):
        assert {*job.needs} <= {*names[:place]}
    needs = {job.name: job.needs for job in jobs}
    assert needs["dff-fanet18-seed-1"] == ("fanet18-seed-1", "flow")
    assert needs["copy-2-swiftnet18-seed-0"] == ("swiftnet18-seed-0",)
    assert needs["fanet34-temp-seed-0"] == ("fanet34-seed-0",)
    assert jobs[-1].work.args == (arguments, ["--crop", "32"], "fanet34-temp", 1)
    arguments.flow = Path("flow.safetensors")
    assert "flow" not in [job.name for job in video_methods.list_jobs(arguments, [], rows)]


@pytest.mark.parametrize("name", ["swiftnet18", "fanet34-temp", "dff-swiftnet18", "low-latency-fanet18"])
def test_the_command_of_a_training_is_one_of_streamseg(arguments, name):
    command = [*map(str, method_steps.train_command(arguments, ["--batch", "2"], name, 1))]
    from streamseg.cli.parser import parse

    if "--initial" in command:
        assert Path(command[command.index("--initial") + 1]).parent.name == f"{method_steps.initial_of(name)}-seed-1"
    assert callable(parse(command))  # without an error
    assert command.count("--batch") == 1
    assert command[command.index("--iterations") + 1] == ("2000" if name == "swiftnet18" else "300")
    assert command[command.index("--crop") + 1 :][:2] == ["360", "480"]
    assert command[command.index("--loss-stride") + 1] == "2"


def test_a_network_is_wrapped_tuned_evaluated_and_collected(video_methods, arguments, monkeypatch):
    """All steps of a job but training, of copying and of a method with a schedule."""
    out = video_methods.run_folder(arguments.out, "swiftnet18", 0)
    out.mkdir(parents=True)
    torch.manual_seed(0)
    streamseg.save(swiftnet18(11), streamseg.CAMVID, out / "weights.safetensors")
    assert method_steps.run_steps(arguments, ["--device", "cpu"], "copy-2-swiftnet18", 0) == 0
    out = video_methods.run_folder(arguments.out, "clockwork-adaptive-swiftnet18", 0)
    out.mkdir()
    adaptive = VIDEO_METHODS["clockwork-adaptive-swiftnet18"](11)
    streamseg.save(adaptive, streamseg.CAMVID, out / "weights.safetensors")
    monkeypatch.setattr(method_steps, "TUNING_CLIPS", 2)
    assert method_steps.run_steps(arguments, ["--device", "cpu"], "clockwork-adaptive-swiftnet18", 0) == 0
    tuned = json.loads((out / "tuned.json").read_text())
    assert streamseg.load(out / "weights.safetensors")[0].threshold == tuned["threshold"]

    video_methods.time_network(arguments, "copy-2-swiftnet18")
    rows = ["swiftnet18", "copy-2-swiftnet18", "clockwork-adaptive-swiftnet18"]
    found = video_methods.write_figures(arguments, rows)
    assert found == json.loads((arguments.out / "video-methods.json").read_text())["rows"]
    assert [*found] == rows[1:]  # the backbone has not been evaluated
    copy = found["copy-2-swiftnet18"]
    method, _ = streamseg.load(video_methods.run_folder(arguments.out, rows[1], 0) / "weights.safetensors")
    expected = evaluate_distances(method, streamseg.camvid(arguments.out / "data", "val"), 2)
    assert copy["by_distance"] == pytest.approx(expected.mious)
    assert copy["miou"] == [pytest.approx(expected.mean)]
    assert copy["key_share"] == [50]
    assert copy["max_ms"] > 0
    assert {"miou", "flip_rate", "mvc8", "mean_ms", "max_ms", "engine", "gmacs", "key_share"} <= {*copy}
    assert found["clockwork-adaptive-swiftnet18"]["threshold"] == [tuned["threshold"]]


def test_a_network_that_cannot_be_timed_leaves_the_others_alone(video_methods, arguments, capsys):
    out = video_methods.run_folder(arguments.out, "dff-fanet18", 0)
    out.mkdir(parents=True)
    for name in ("val.json", "cost.json"):
        (out / name).write_text("{}")
    (out / "weights.safetensors").write_bytes(b"no weights")
    video_methods.time_network(arguments, "dff-fanet18")
    assert "dff-fanet18: not timed, " in capsys.readouterr().out
    assert not (out / "times.json").exists()


def test_clips_to_tune_on_are_frames_of_train_that_move(data):
    clips = method_steps.make_clips(streamseg.camvid(data, "train"), torch.device("cpu"))
    assert len(clips) == 6
    for index, clip in enumerate(clips):
        assert clip.shape == (21, 3, *SIZE)
        assert clip[-1].equal(streamseg.camvid(data, "train")[index][0].float())
        assert all((later - earlier).abs().max() > 1 for earlier, later in pairwise(clip))


def say(text, status=0):
    """The work of a job: print a text, and return an exit status."""
    print(text)
    return status


def wait_for_signal():
    signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(143)))
    time.sleep(600)


def make_job(work, output, name, needs=()):
    return method_jobs.Job(name, work, output, output.with_name(f"{name}.json"), needs)


def test_a_job_that_fails_leaves_only_those_out_that_need_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    output, done = tmp_path / "runs" / "output.txt", []
    jobs = [
        make_job(partial(say, "fails", 3), output, "one"),
        make_job(partial(say, "never"), output, "two", ("one",)),
        make_job(partial(say, "there"), output, "three", ("four",)),  # it does not keep others from running
        make_job(partial(say, "here"), output, "four"),
    ]
    runner = method_jobs.JobRunner(1, time.monotonic() + 60, lambda job: done.append(job.name))
    problems = runner.run(jobs)
    assert problems["one"] == f"failed with status 3, see {output}"
    assert problems["two"] == "left out: it needs one"
    assert (problems["three"], problems["four"]) == ("", "")
    assert done == ["four", "three"]
    assert output.read_text().split() == ["fails", "here", "there"]
    (tmp_path / "runs" / "one.json").touch()  # done by now
    assert runner.run(jobs)["two"] == ""
    assert "never" in output.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals that a process can answer")
def test_at_the_deadline_jobs_save_their_state_and_others_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    output = tmp_path / "output.txt"
    runner = method_jobs.JobRunner(1, time.monotonic() + 25, lambda job: None)
    start = time.monotonic()
    runner.check.join()
    runner.deadline = time.monotonic() + 15
    problems = runner.run([make_job(wait_for_signal, output, "one"), make_job(partial(say, ""), output, "two")])
    assert problems["one"].startswith("stopped for lack of time")
    assert problems["two"] == "left out for lack of time"
    assert output.read_text() == "saved\n"
    assert time.monotonic() - start < 60


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for the control program")
@pytest.mark.parametrize("running", [True, False], ids=["another program's", "own"])
def test_only_an_mps_daemon_of_its_own_is_ended(tmp_path, monkeypatch, running):
    """It would take the GPU from the other programs that use the daemon."""
    commands, control = tmp_path / "commands", tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\nif [ "$1" = -d ]; then echo -d >> {commands}; touch {tmp_path}/up; exit 0; fi\n')
    with control.open("a") as script:
        script.write(f"read command; echo $command >> {commands}; test -e {tmp_path}/up\n")
    control.chmod(0o755)
    if running:
        (tmp_path / "up").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(method_jobs, "CUDA_CHECK", "pass")
    with method_jobs.SharedGPU(2):
        pass
    assert commands.read_text().split() == (["get_server_list"] if running else ["get_server_list", "-d", "quit"])


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


def test_without_pyav_a_flow_network_learns_pictures_alone_and_says_so(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("streamseg.io.pyav.av", None)
    clips = tmp_path / "clips"
    clips.mkdir()
    for name in ("one.mp4", "two.mp4"):
        (clips / name).touch()
    out = tmp_path / "flow.safetensors"
    options = ["--minutes", "0.01", "--size", "48", "64", "--crop", "32", "64", "--batch", "2"]
    train_flow.main([str(data), str(clips), "--out", str(out), *options])
    printed = capsys.readouterr().out
    assert "pip install 'streamseg[video]'. Without it the flow network learns from moved pictures alone." in printed
    assert "| end-point error" in printed
    assert "photometric" not in printed
    assert {*json.loads(out.with_suffix(".json").read_text())} == {"steps", "end_point_error"}


def test_the_mean_has_the_work_after_the_labels_and_the_maximum_has_not():
    times = {"key frame": 6.0, "still frame": 2.0, "changed frame": 3.0, "changed frame, after its labels": 5.0}
    assert method_times.summarise(times, 0.25) == {"mean_ms": 0.25 * 8 + 0.75 * 2, "max_ms": 6.0}
