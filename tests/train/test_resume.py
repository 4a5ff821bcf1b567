import json
import shlex
from dataclasses import asdict, fields, replace
from typing import get_args, get_origin

import pytest
import torch
from limits import full_disk
from torch import nn

from streamseg import cli
from streamseg.cli import training
from streamseg.train import resume
from streamseg.train.config import OLD_NAMES, RECIPES, TrainConfig


def test_a_state_is_restored(tmp_path):
    saved, other = nn.Linear(3, 2), nn.Linear(3, 2)
    resume.save_training_state(tmp_path, 7, {"batch": 2}, {"trainee": saved})
    assert resume.restore_training_state(tmp_path, {"batch": 2}, {"trainee": other}) == 7
    assert other.weight.equal(saved.weight)


def test_a_full_disk_is_reported_and_the_last_state_is_kept(tmp_path):
    (tmp_path / "state.pt").write_text("the last whole state")
    with full_disk(1_000_000), pytest.raises(OSError, match="Could not write .*state.pt: make room on the disk"):
        resume.save_training_state(tmp_path, 3, {}, {"trainee": nn.Conv2d(512, 512, 3)})
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]
    assert (tmp_path / "state.pt").read_text() == "the last whole state"


def test_other_settings_are_refused_with_the_options_that_resume(tmp_path):
    theirs = {"batch": 2, "crop": [64, 96], "leave_out": "", "data": "x"}
    resume.save_training_state(tmp_path, 7, theirs, {})
    ours = {"batch": 4, "crop": (64, 64), "leave_out": "a", "data": "x"}
    with pytest.raises(ValueError, match="continue with --batch 2 --crop 64 96 --leave-out '' --resume.$"):
        resume.restore_training_state(tmp_path, ours, {})
    with pytest.raises(ValueError, match="other frames or classes: give the same --data to resume.$"):
        resume.restore_training_state(tmp_path, {**theirs, "data": "y"}, {})


def other_values(config, field):
    """Return values that a setting can be changed to."""
    value = getattr(config, field.name)
    if get_origin(field.type) is not None and isinstance(value, str):
        return [choice for choice in get_args(field.type) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if field.name == "teachers":
        return [("a",), ("with spaces", "it's")]
    if isinstance(value, tuple):
        return [tuple(2 * part for part in value)]
    if isinstance(value, str):
        return [f"{value}x", "with spaces", "it's", "-dashed", "--resume", "$HOME", "a;b", "" if value else "x"]
    return [2 * value + 1, 1e-7] if isinstance(value, float) else [value + 3]


def parse(monkeypatch, recipe, options):
    """Return the config and the options that the train verb would run."""
    runs = []
    monkeypatch.setattr(training, "pick_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(
        "streamseg.train.loop.train", lambda config, data, out, **more: runs.append((config, more)) or out
    )
    monkeypatch.setattr("streamseg.train.runlog.summarise", lambda path: {})
    # only parsing is tested: not whether a run can have these settings, or has data
    monkeypatch.setattr(TrainConfig, "check", lambda config: None)
    checks = (
        "check_data",
        "check_weights",
        "check_second_folder",
        "check_share",
        "open_class_table",
        "check_mask_file",
    )
    for check in checks:
        monkeypatch.setattr(training, check, lambda *_, **__: None)
    cli.run(["train", recipe, "--data", "mine", "--out", "run", *options])
    return runs.pop()


@pytest.mark.parametrize("field", fields(TrainConfig), ids=lambda field: field.name)
def test_the_options_in_the_error_resume_the_run(field, tmp_path, monkeypatch, capsys):
    for recipe in RECIPES if field.name in ("identity_init", "averages") else ("folder-18",):
        ours = RECIPES[recipe].config
        for value in other_values(ours, field):
            theirs = replace(ours, **{field.name: value})
            resume.save_training_state(tmp_path, 7, {**asdict(theirs), "data": "x"}, {})
            with pytest.raises(ValueError, match="started with other settings") as refused:
                resume.restore_training_state(tmp_path, {**asdict(ours), "data": "x"}, {})
            told = str(refused.value).partition("continue with ")[2].removesuffix(".")
            config, more = parse(monkeypatch, recipe, shlex.split(told))
            assert json.dumps(asdict(config)) == json.dumps(asdict(theirs)), told
            assert more["resume"]
    capsys.readouterr()


def test_a_run_without_teachers_is_resumed_without_them(tmp_path, monkeypatch, capsys):
    ours = RECIPES["folder-18"].config
    resume.save_training_state(tmp_path, 7, {**asdict(ours), "data": "x"}, {})
    with pytest.raises(ValueError, match="continue with --no-teachers --resume.$"):
        resume.restore_training_state(tmp_path, {**asdict(replace(ours, teachers=("a",))), "data": "x"}, {})
    config, _ = parse(monkeypatch, "folder-18", ["--no-teachers", "--resume"])
    assert config.teachers == ()
    capsys.readouterr()


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_error_gives_all_settings_that_differ_as_options(recipe, tmp_path, monkeypatch, capsys):
    ours = RECIPES[recipe].config
    theirs = replace(ours, **{field.name: other_values(ours, field)[-1] for field in fields(TrainConfig)})
    resume.save_training_state(tmp_path, 7, asdict(theirs), {})
    with pytest.raises(ValueError, match="started with other settings") as refused:
        resume.restore_training_state(tmp_path, asdict(ours), {})
    config, _ = parse(
        monkeypatch, recipe, shlex.split(str(refused.value).partition("continue with ")[2].removesuffix("."))
    )
    assert json.dumps(asdict(config)) == json.dumps(asdict(theirs))
    capsys.readouterr()


def test_a_setting_that_a_state_lacks_had_its_default(tmp_path):
    settings = asdict(RECIPES["paper-camvid-18"].config)
    older = {name: value for name, value in settings.items() if name not in ("identity_init", "consistency_loss")}
    resume.save_training_state(tmp_path, 7, older, {})
    assert resume.restore_training_state(tmp_path, settings, {}) == 7
    with pytest.raises(ValueError, match="continue with --no-identity-init --resume.$"):
        resume.restore_training_state(tmp_path, {**settings, "identity_init": True}, {})


def test_a_state_with_the_former_names_of_settings_is_restored(tmp_path):
    settings = asdict(RECIPES["folder-18"].config)
    old_of = {new: old for old, new in OLD_NAMES.items()}
    older = {old_of.get(name, name): value for name, value in settings.items()}
    assert set(OLD_NAMES) <= set(older)
    resume.save_training_state(tmp_path, 7, older, {})
    assert resume.restore_training_state(tmp_path, settings, {}) == 7
    with pytest.raises(ValueError, match="continue with --no-identity-init --iou-loss 1.0 --resume.$"):
        resume.restore_training_state(tmp_path, {**settings, "iou_loss": 0.5, "identity_init": True}, {})


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_state_with_one_wrong_byte_is_refused(tmp_path, place):
    resume.save_training_state(tmp_path, 7, {"batch": 2}, {"trainee": nn.Linear(300, 200)})
    path = tmp_path / "state.pt"
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 4
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is not the state of a run, or is damaged"):
        resume.restore_training_state(tmp_path, {"batch": 2}, {"trainee": nn.Linear(300, 200)})


def test_only_a_restart_by_torchrun_resumes_by_itself(tmp_path, monkeypatch):
    (tmp_path / "state.pt").write_text("a state")
    assert not resume.is_restarted(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not resume.is_restarted(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert resume.is_restarted(tmp_path)
    assert not resume.is_restarted(tmp_path / "elsewhere")


def test_one_process_needs_no_others_to_stop():
    assert resume.sync_stop_signal(0, 3, torch.device("cpu")) == 0
    assert resume.sync_stop_signal(15, 3, torch.device("cpu")) == 15
