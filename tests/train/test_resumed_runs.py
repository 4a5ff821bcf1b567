"""Runs that are stopped, killed or damaged, and then resumed."""

import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from runs import EVERY, TINY, assert_same_run, run

from streamseg.train import loop
from streamseg.train.config import OLD_NAMES
from streamseg.train.feed import batch_indices

pytestmark = pytest.mark.usefixtures("frequent_entries", "no_plots")

# runs in its own process, which is killed when half of a state is written
KILLED = """
import json, os, signal, sys
from pathlib import Path
import torch
from streamseg.train import runlog
from streamseg.train.config import TrainConfig
from streamseg.train.loop import train

torch.set_num_threads(1)
runlog.EVERY = int(sys.argv[4])
save = torch.save

def save_and_die(state, path):
    save(state, path)
    if state["step"] == 3:
        path.write_bytes(path.read_bytes()[:1_000_000])
        os.kill(os.getpid(), signal.SIGKILL)

torch.save = save_and_die
config = TrainConfig(**{name: tuple(x) if type(x) is list else x for name, x in json.loads(sys.argv[3]).items()})
train(config, Path(sys.argv[1]), Path(sys.argv[2]), device=torch.device("cpu"), initial="nothing", save_seconds=0)
"""


def interrupt(monkeypatch, at, act):
    """Call a function in the middle of an iteration."""
    original = loop.update_ema

    def update_and_act(ema, current, decay, step):
        original(ema, current, decay, step)
        if step + 1 == at:
            act()

    monkeypatch.setattr(loop, "update_ema", update_and_act)


@pytest.mark.slow
def test_a_run_killed_during_a_save_resumes_to_the_same_weights_and_log(toy, alone, tmp_path):
    command = [sys.executable, "-c", KILLED, toy, tmp_path, json.dumps(asdict(TINY)), str(EVERY)]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".*.pt"))) == 1
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 2
    run(toy, tmp_path, resume=True)
    assert_same_run(tmp_path, alone)
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(("number", "at"), [(signal.SIGTERM, 5), (signal.SIGINT, 3)])
def test_a_run_stopped_by_a_signal_can_be_resumed(toy, alone, tmp_path, monkeypatch, capsys, number, at):
    before = signal.getsignal(number)
    interrupt(monkeypatch, at, lambda: os.kill(os.getpid(), number))
    with pytest.raises(loop.TrainingStopped) as stop:
        run(toy, tmp_path)
    assert stop.value.signal == number
    assert f"Stopped at iteration {at} of 6: continue with --resume." in capsys.readouterr().err
    assert signal.getsignal(number) is before
    assert not (tmp_path / "weights.safetensors").exists()
    run(toy, tmp_path, resume=True)
    assert_same_run(tmp_path, alone)
    assert len(json.loads((tmp_path / "run.json").read_text())["sessions"]) == 2


def test_a_run_stopped_before_settings_were_renamed_can_be_resumed(toy, alone, tmp_path, monkeypatch):
    interrupt(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(loop.TrainingStopped):
        run(toy, tmp_path)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    old_of = {new: old for old, new in OLD_NAMES.items()}
    settings = {old_of.get(name, name): value for name, value in json.loads(state["settings"]).items()}
    assert set(OLD_NAMES) <= set(settings)
    torch.save({**state, "settings": json.dumps(settings)}, tmp_path / "state.pt")
    run(toy, tmp_path, resume=True)
    assert_same_run(tmp_path, alone)


def test_a_second_signal_stops_at_once(toy, tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    interrupt(monkeypatch, 1, twice)
    with pytest.raises(KeyboardInterrupt):
        run(toy, tmp_path)


def test_resuming_a_finished_run_changes_nothing(toy, alone, tmp_path):
    for path in alone.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    run(toy, tmp_path, resume=True)
    assert_same_run(tmp_path, alone)


def test_a_run_that_met_a_damaged_picture_can_be_resumed(paint, tmp_path):
    data = paint(tmp_path / "data", [(64, 96), (80, 72), (40, 120), (64, 64), (96, 96)])  # streamed
    broken, whole = data / "images" / "1.png", (data / "images" / "1.png").read_bytes()
    config = replace(TINY, iterations=8, class_weighting=0.0, validate="")
    first = next(step for step in range(8) if (0, 1) in batch_indices(step, [4], config))
    broken.write_bytes(whole[:200])
    with pytest.raises(ValueError, match="1.png is damaged or cut short"):
        run(data, tmp_path / "out", config, threads=1)
    broken.write_bytes(whole)
    assert first == 0 or (tmp_path / "out" / "state.pt").exists()
    run(data, tmp_path / "out", config, resume=first > 0)
    run(data, tmp_path / "alone", config)
    assert_same_run(tmp_path / "out", tmp_path / "alone")


@pytest.mark.slow
def test_a_run_whose_validation_failed_can_be_resumed(paint, tmp_path):
    data = paint(tmp_path / "data", [(64, 96)] * 5)
    validation = data / "images" / "4.png"
    whole = validation.read_bytes()
    validation.write_bytes(whole[:200])
    with pytest.raises(ValueError, match="4.png is damaged or cut short"):
        run(data, tmp_path / "out")
    validation.write_bytes(whole)
    run(data, tmp_path / "out", resume=True)
    run(data, tmp_path / "alone")
    assert_same_run(tmp_path / "out", tmp_path / "alone")


class Hostile:
    def __reduce__(self):
        return Path.touch, (Path("hacked"),)


def pickled(state):
    state["settings"] = Hostile()


def of_another_network(state):
    state["trainee"] = {}


@pytest.mark.parametrize("spoil", [None, pickled, of_another_network, dict.clear])
def test_a_damaged_or_hostile_state_is_refused_and_its_code_never_runs(toy, alone, tmp_path, monkeypatch, spoil):
    monkeypatch.chdir(tmp_path)
    state = torch.load(alone / "state.pt", weights_only=True)
    if spoil:
        spoil(state)
    torch.save(state, "state.pt", pickle_module=pickle)
    if not spoil:
        Path("state.pt").write_bytes(Path("state.pt").read_bytes()[:1000])
    with pytest.raises(ValueError, match="^state.pt is not the state of a run, or is damaged: start again"):
        run(toy, Path(), resume=True)
    assert not Path("hacked").exists()


def test_a_run_is_only_resumed_with_its_own_settings_and_data(toy, alone, paint, tmp_path):
    before = (alone / "state.pt").read_bytes()
    with pytest.raises(
        ValueError, match="was started with other settings: continue with --batch 2 --learning-rate 0.002 --resume.$"
    ):
        run(toy, alone, replace(TINY, learning_rate=1.0, batch=4), resume=True)
    other = paint(tmp_path / "other", [(64, 96)] * 9)
    with pytest.raises(ValueError, match="was started with other frames or classes: give the same --data to resume.$"):
        run(other, alone, resume=True)
    assert (alone / "state.pt").read_bytes() == before


def test_a_folder_with_a_run_is_not_overwritten(toy, alone, tmp_path):
    with pytest.raises(ValueError, match="alone already holds a run: continue with --resume, or give another --out.$"):
        run(toy, alone)
    (tmp_path / "weights.safetensors").write_text("of months of work")
    with pytest.raises(ValueError, match="already holds a run"):
        run(toy, tmp_path)


def test_more_iterations_of_a_finished_run_are_refused_with_what_to_do(toy, alone):
    with pytest.raises(
        ValueError, match=r"is finished, after 6 iterations: to train on, .*--initial .*weights\.safete"
    ):
        run(toy, alone, replace(TINY, iterations=9), resume=True)
