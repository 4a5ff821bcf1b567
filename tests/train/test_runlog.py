import hashlib
import json
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from streamseg.class_table import ClassTable
from streamseg.classes import Classes
from streamseg.data.datasets import folder
from streamseg.evaluate.images import Score
from streamseg.train.config import TrainConfig
from streamseg.train.runlog import EVERY, MAX_SILENCE, RunLog, hash_files, hash_names, summarise
from streamseg.train.unions import TrainingData

CPU = torch.device("cpu")
CONFIG = TrainConfig(dataset="folder", network="fanet18", crop=(64, 64), iterations=2000, batch=4)


def data_of(toy):
    return TrainingData((toy,), (folder(toy, "train"),), (), None)


def steps(out):
    return [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"sessions": 3}', '{"initial": "nothing", "sessions": 3}', "{}", "[" * 100_000]
)
def test_a_resumed_run_refuses_a_damaged_run_json_and_keeps_it(tmp_path, toy, text):
    (tmp_path / "run.json").write_text(text)
    log = RunLog(tmp_path, 100, False)
    with pytest.raises(ValueError, match="run.json is damaged: move it away, and resume the run without it.$"):
        log.describe_run(CONFIG, data_of(toy), CPU, "nothing", 1)
    assert (tmp_path / "run.json").read_text() == text


@pytest.mark.parametrize("line", ["5", "[]", '{"step": "50"}', '{"step": null}', '{"loss": 1}', "[" * 100_000])
def test_a_damaged_log_entry_is_skipped(tmp_path, line):
    RunLog(tmp_path, 0, False).write({"step": 50, "loss": 1.0})
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(line + "\n")
    assert summarise(tmp_path / "log.jsonl")["iterations"] == 50
    RunLog(tmp_path, 100, False)
    assert steps(tmp_path) == [50]


def test_an_entry_is_written_to_the_file_at_once(tmp_path):
    log = RunLog(tmp_path / "new" / "run", 0, False)
    for step in (50, 100):
        log.write({"step": step, "loss": 0.5})
        assert steps(tmp_path / "new" / "run")[-1] == step


def test_a_resumed_run_drops_the_entries_after_its_state(tmp_path):
    log = RunLog(tmp_path, 0, False)
    for step in (50, 100, 150):
        log.write({"step": step, "loss": 1 / step})
    resumed = RunLog(tmp_path, 100, False)
    assert steps(tmp_path) == [50, 100]
    resumed.write({"step": 150, "loss": 0.25})
    assert steps(tmp_path) == [50, 100, 150]


@pytest.mark.parametrize("rest", ['{"step": 1', '{"step": 100, "val_iou": {"a": 1}', "\x00\x00", "{", "{}}", "{}"])
def test_a_last_line_that_was_cut_short_is_skipped(tmp_path, rest):
    RunLog(tmp_path, 0, False).write({"step": 50, "loss": 1.0})
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(rest)
    RunLog(tmp_path, 100, False).write({"step": 150, "loss": 0.5})
    assert steps(tmp_path) == [50, 150]


def test_the_first_run_of_a_folder_starts_an_empty_log(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 50, "loss": 1.0}\n')
    RunLog(tmp_path, 0, False)
    assert steps(tmp_path) == []


def test_unfinished_files_of_a_killed_run_are_deleted(tmp_path):
    (tmp_path / ".streamseg-4f6a.pt").touch()
    (tmp_path / ".streamseg-77.jsonl").touch()
    (tmp_path / ".mine").touch()
    (tmp_path / "state.pt").touch()
    RunLog(tmp_path, 100, False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine", "log.jsonl", "state.pt"]


def test_run_json_has_every_command_of_a_run(toy, tmp_path, monkeypatch):
    for first, command in ((0, ["a"]), (50, ["b"])):
        monkeypatch.setattr(sys, "argv", command)
        RunLog(tmp_path, first, False).describe_run(CONFIG, data_of(toy), CPU, "nothing", 1)
    assert [run["command"] for run in json.loads((tmp_path / "run.json").read_text())["sessions"]] == [["a"], ["b"]]


def test_a_resumed_run_keeps_what_it_started_from_and_a_finished_one_says_so(toy, tmp_path, capsys):
    for first, initial in ((0, "nothing"), (50, "imagenet"), (CONFIG.iterations, "imagenet")):
        RunLog(tmp_path, first, False).describe_run(CONFIG, data_of(toy), CPU, initial, 1)
        assert json.loads((tmp_path / "run.json").read_text())["initial"] == "nothing"
    printed = capsys.readouterr().err
    assert printed.count("fanet18 from nothing") == 2
    assert printed.count("The run is finished: 2000 iterations are done.") == 1


def test_the_hash_of_files_depends_on_files_but_not_on_their_folder(toy, paint, tmp_path):
    dataset = folder(toy, "train")
    moved = folder(paint(tmp_path / "moved", [(64, 96)] * 8), "train")
    assert hash_files(moved) == hash_files(dataset)
    assert hash_files(replace(dataset, pairs=dataset.pairs[1:])) != hash_files(dataset)


def test_the_hash_of_names_depends_on_names_and_classes_but_not_on_contents(toy, paint, tmp_path):
    dataset = folder(toy, "train")
    changed = folder(paint(tmp_path / "changed", [(72, 96)] * 8), "train")
    assert hash_names([changed]) == hash_names([dataset])
    assert hash_names([replace(dataset, pairs=dataset.pairs[1:])]) != hash_names([dataset])
    classes = Classes(("a", "b", "c"), dataset.classes.colours)
    assert hash_names([replace(dataset, classes=classes)]) != hash_names([dataset])
    assert hash_names([dataset, changed]) != hash_names([dataset])
    table = ClassTable(dataset.classes, {"folder": dataset.classes.names})
    other = ClassTable(dataset.classes, {"folder": dataset.classes.names[::-1]})
    assert len({hash_names([dataset], found) for found in (None, table, other)}) == 3


def test_the_hash_of_one_data_set_is_that_of_runs_before_there_were_several(toy):
    dataset = folder(toy, "train")
    names = ["ground", "box", "disc", "0.png", "1.png", "2.png", "3.png", "5.png", "6.png", "7.png"]
    assert hash_names([dataset]) == hashlib.sha256("\n".join(names).encode()).hexdigest()


def test_the_accuracy_on_a_second_data_set_is_in_the_same_entry(tmp_path, capsys):
    log = RunLog(tmp_path, 0, False)
    log.validated(50, [Score(70.0, {"a": 70.0}), Score(80.5, {"b": 80.5})])
    assert log.entries == [
        {"step": 50, "val_miou": 70.0, "val_iou": {"a": 70.0}, "with_val_miou": 80.5, "with_val_iou": {"b": 80.5}}
    ]
    assert summarise(tmp_path / "log.jsonl")["val_miou"] == 70.0
    told = "iteration 50: mIoU 70.00 on the validation split, 80.50 on that of the second data set"
    assert capsys.readouterr().err.strip() == told


def test_without_a_terminal_each_entry_is_a_line(tmp_path, capsys):
    log = RunLog(tmp_path, 0, False)
    for done in range(EVERY, 201, EVERY):
        log.step(CONFIG, done, 0.5, 0.001, CPU)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["50/2000", "100/2000", "150/2000", "200/2000"]
    assert "loss 0.500  rate 1.0e-03" in lines[0]
    assert "images/s" in lines[0]
    assert lines[3].endswith(" GB")


def test_the_speed_does_not_count_validation(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    log = RunLog(tmp_path, 0, False)
    for done, seconds in ((50, 100.0), (100, 10.0)):
        now[0] += seconds
        log.step(CONFIG, done, 0.5, 0.001, CPU)
    now[0] += 1000
    log.validated(100, [Score(50.0, {})])
    now[0] += 20
    log.step(CONFIG, 150, 0.5, 0.001, CPU)
    speeds = [entry["images_per_second"] for entry in log.entries if "loss" in entry]
    assert speeds == [2.0, 20.0, 10.0]
    assert log.has_validation(100)
    assert not log.has_validation(150)


def test_progress_is_shown_after_the_first_iteration_and_then_often(tmp_path, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    log = RunLog(tmp_path, 20, False)
    shown = []
    for done in range(21, EVERY):  # three seconds each, on a slow CPU
        now[0] += 3
        if log.is_due(done):
            log.live(CONFIG, done, 1.25, 0.001)
            shown.append((done, now[0]))
    assert [done for done, _ in shown[:3]] == [21, 25, 29]
    assert max(after[1] - before[1] for before, after in pairwise([(20, 0.0), *shown])) < MAX_SILENCE + 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "21/2000  loss 1.250  rate 1.0e-03"
    assert len(lines) == len(shown)
    assert steps(tmp_path) == []  # no entries yet: there is one every EVERY iterations
    log.step(CONFIG, EVERY, 0.5, 0.001, CPU)
    now[0] += MAX_SILENCE / 2
    assert not log.is_due(EVERY + 1)


def test_progress_leaves_out_an_unknown_memory(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("streamseg.machine.peak_memory", lambda: 0.0)
    RunLog(tmp_path, 0, False).step(CONFIG, EVERY, 0.5, 0.001, CPU)
    assert capsys.readouterr().err.endswith(" left\n")


def test_on_a_terminal_progress_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    log = RunLog(tmp_path, 0, False)
    for done in (EVERY, 2 * EVERY, 2000):
        log.step(CONFIG, done, 0.5, 0.001, CPU)
    shown = capsys.readouterr().err
    assert shown.count("\r\x1b[K") == 3
    assert shown.count("\n") == 1
    assert shown.endswith(" GB\n")


def test_tensorboard_gets_the_numbers_of_each_entry(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = RunLog(tmp_path, 0, True)
    log.write({"step": 50, "loss": 0.5, "val_iou": {"a": 1.0}})
    log.finish()
    events = loader.EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(50, 0.5)]


def test_without_tensorboard_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"^TensorBoard is not installed: pip install 'streamseg\[train\]'$"):
        RunLog(tmp_path, 0, True)
