import resource
import signal
import threading

import pytest
import torch
from torch import nn

from streamseg import restart


def test_a_state_is_put_back_as_it_was(tmp_path):
    saved, other = nn.Linear(3, 2), nn.Linear(3, 2)
    restart.save_state(tmp_path, 7, {"batch": 2}, {"trainee": saved})
    assert restart.restore(tmp_path, {"batch": 2}, {"trainee": other}) == 7
    assert other.weight.equal(saved.weight)


def test_a_full_disk_is_a_sentence_and_the_last_state_is_still_there(tmp_path):
    (tmp_path / "state.pt").write_text("the last whole state")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(OSError, match="Could not write .*state.pt: make room on the disk"):
            restart.save_state(tmp_path, 3, {}, {"trainee": nn.Conv2d(512, 512, 3)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]
    assert (tmp_path / "state.pt").read_text() == "the last whole state"


def test_other_settings_are_refused_with_the_options_to_give(tmp_path):
    theirs = {"batch": 2, "crop": [64, 96], "leave_out": "", "data": "x"}
    restart.save_state(tmp_path, 7, theirs, {})
    ours = {"batch": 4, "crop": (64, 64), "leave_out": "a", "data": "x"}
    with pytest.raises(ValueError, match="go on with --batch 2 --crop 64 96 --leave-out '' --resume.$"):
        restart.restore(tmp_path, ours, {})
    with pytest.raises(ValueError, match="other frames or classes: give the same --data to go on.$"):
        restart.restore(tmp_path, {**theirs, "data": "y"}, {})


def test_a_run_goes_on_by_itself_only_if_torchrun_starts_it_again(tmp_path, monkeypatch):
    (tmp_path / "state.pt").write_text("a state")
    assert not restart.is_again(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not restart.is_again(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert restart.is_again(tmp_path)
    assert not restart.is_again(tmp_path / "elsewhere")


def test_in_another_thread_than_the_first_signals_stay_as_they_are():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with restart.stopping() as stop:
            seen.append((signal.getsignal(signal.SIGTERM), stop.signal))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, 0)]


def test_one_process_agrees_with_itself():
    assert restart.agree(0, 3, torch.device("cpu")) == 0
    assert restart.agree(15, 3, torch.device("cpu")) == 15
