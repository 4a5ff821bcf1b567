import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest
import torch
from clips import make_clip
from commands import complaint, failing, run
from make_datasets import make_camvid
from PIL import Image
from waiting import PATIENCE

import streamseg
from streamseg.cli.options import pick_device
from streamseg.data import datasets
from streamseg.evaluate.engines import averaging_engine


@pytest.fixture
def folder(tmp_path, monkeypatch, weights):
    """A working folder with a checkpoint."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(weights, "camvid.safetensors")
    return tmp_path


@pytest.mark.slow
def test_a_quiet_verb_prints_nothing_and_its_figures_are_in_a_file(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for again, command, figures in (
        (True, ("check", "folder", "--data", toy), {"frames", "pixels", "errors", "warnings"}),
        (False, ("pack", "folder", "shards", "--data", toy), {"out", "frames"}),
        (False, ("train", "folder-18", "--data", toy, "--out", "run", *SHORT), {"weights", "iterations", "val_miou"}),
        (True, ("evaluate", "run/weights.safetensors", "--data", toy, "--dataset", "folder"), {"miou", "iou"}),
        (True, ("benchmark", "enet", "--size", "64x64", "--seconds", "0.01"), {"machine", "networks"}),
    ):
        assert run(monkeypatch, *command, "--quiet", "--json", "figures.json") == 0
        assert capsys.readouterr() == ("", "")
        assert json.loads(Path("figures.json").read_text()).keys() >= figures
        if again:  # the others do not write over what is there
            assert run(monkeypatch, *command, "--json", "-") == 0
            shown = capsys.readouterr()
            assert json.loads(shown.out).keys() >= figures
            assert shown.err


def test_a_quiet_check_still_tells_by_its_exit_status(paint, tmp_path, monkeypatch, capsys):
    data = paint(tmp_path / "data", [(64, 96)] * 2)
    for path in (data / "labels").iterdir():
        path.unlink()
    assert run(monkeypatch, "check", "folder", "--data", data, "--quiet", "--json", tmp_path / "a.json") == 1
    assert capsys.readouterr() == ("", "")
    assert json.loads((tmp_path / "a.json").read_text())["errors"]


def test_a_table_is_reproduced_as_json(monkeypatch, capsys):
    assert run(monkeypatch, "reproduce", "I", "--json", "-", "--quiet", "--device", "cpu") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)[0]["table"] == "I"
    assert not shown.err


def test_lines_of_json_can_go_to_standard_output_and_all_words_away(folder, toy, monkeypatch, capsys):
    segmented = ("segment", toy / "images" / "0.png", toy / "images" / "1.png", "out", "--no-overlay", "--json", "-")
    assert run(monkeypatch, *segmented, "--weights", "camvid.safetensors") == 0
    shown = capsys.readouterr()
    frames = [json.loads(line) for line in shown.out.splitlines()]
    assert [frame.get("name") for frame in frames] == ["0", "1", None]
    assert frames[-1]["summary"]["frames"]["labelled"] == 2
    assert "all frames: " in shown.err
    assert run(monkeypatch, *segmented, "--weights", "camvid.safetensors", "--quiet") == 0
    assert capsys.readouterr().err == ""
    assert run(monkeypatch, "segment", toy / "images" / "0.png", "nowhere.png", "out", "--quiet") == 1
    told, complained = capsys.readouterr()
    assert told == ""
    assert complained.startswith("streamseg: Nothing at nowhere.png")
    assert complained.count("\n") == 1


def test_ctrl_c_is_exit_130(monkeypatch, toy, capsys):
    monkeypatch.setattr("streamseg.evaluate.check.check_dataset", failing(KeyboardInterrupt()))
    assert run(monkeypatch, "check", "folder", "--data", toy) == 130
    assert capsys.readouterr() == ("", "")


def test_the_demo_films_pictures_and_tells_classes_and_latency(folder, monkeypatch, capsys):
    demo = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "demo.py"))
    Image.fromarray(numpy.random.default_rng(0).integers(256, size=(72, 128, 3), dtype=numpy.uint8)).save("a.png")
    frames = list(demo["drive"]([Path("a.png")], frames=3, size=(36, 64)))
    assert [frame.shape for frame in frames] == [(3, 36, 64)] * 3
    assert not frames[0].equal(frames[1])
    asked = ("--no-overlay", "--weights", "camvid.safetensors", "--quiet", "--json", "a.jsonl")
    monkeypatch.setattr(sys, "argv", [])
    demo["run"]("segment", "a.png", *asked)
    demo["print_reports"]({"pictures": Path("a.jsonl")})
    shown = capsys.readouterr().out
    assert shown.startswith(f"$ streamseg segment a.png {' '.join(asked)}\n")
    shares = [float(share) for share in re.findall(r"^\w+ +([\d.]+) %$", shown, re.MULTILINE)]
    assert sum(shares) == pytest.approx(100, abs=1)
    assert re.search(r"^latency, p50 +\d+ ms$", shown, re.MULTILINE)


SHORT = ["--initial", "nothing", "--crop", "64", "64", "--batch", "2", "--iterations", "2", "--device", "cpu"]


@pytest.mark.slow
def test_ones_own_pictures_are_checked_trained_on_evaluated_and_segmented_in_a_row(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "check", "folder", "--data", toy, "--sheet", "sheet.png") == 0
    assert capsys.readouterr().out.endswith("0 errors, 0 warnings\nsheet.png\n")
    assert run(monkeypatch, "train", "folder-18", "--data", toy, "--out", "run", *SHORT) == 0
    assert capsys.readouterr().out == "run/weights.safetensors\n"
    weights = Path("run/weights.safetensors")
    wanted = ("--data", toy, "--dataset", "folder", "--json", "val.json", "--plots", "plots", "--flip")
    assert run(monkeypatch, "evaluate", weights, *wanted, "--scales", "1", "0.75") == 0
    assert "mean IoU" in capsys.readouterr().out
    told = json.loads(Path("val.json").read_text())
    assert list(told["iou"]) == ["ground", "box", "disc"]
    assert told["miou"] == pytest.approx(sum(share for share in told["iou"].values() if share is not None) / 3)
    assert run(monkeypatch, "segment", toy / "images" / "0.png", "--weights", weights, "--labels") == 0
    for written in ("sheet.png", "plots/confusion.png", "plots/worst.png", "0-overlay.png", "0-labels.png"):
        assert streamseg.read_image(written).shape[0] == 3


def test_a_data_set_with_errors_is_exit_1_even_if_no_frame_can_be_drawn(paint, tmp_path, monkeypatch, capsys):
    data = paint(tmp_path / "data", [(64, 96)] * 2)
    for path in (data / "labels").iterdir():
        path.unlink()
    assert run(monkeypatch, "check", "folder", "--data", data, "--sheet", tmp_path / "sheet.png") == 1
    assert "error: " in capsys.readouterr().out
    assert not (tmp_path / "sheet.png").exists()


def test_the_plots_of_an_evaluation_look_as_the_evaluation_did(folder, toy, monkeypatch, capsys):
    seen, wanted = [], []
    monkeypatch.setattr("streamseg.evaluate.images.write_plots", lambda *given: seen.append(given[2]))
    monkeypatch.setattr(
        "streamseg.evaluate.engines.averaging_engine",
        lambda *given: wanted.append(averaging_engine(*given)) or wanted[0],
    )
    streamseg.save(streamseg.fanet18(classes=3), folder_classes(toy), "toy.safetensors")
    scales = ("--scales", "0.5", "1.0", "--flip", "--plots", "plots")
    assert run(monkeypatch, "evaluate", "toy.safetensors", "--data", toy, "--dataset", "folder", *scales) == 0
    assert seen == wanted
    assert wanted[0].score.keywords == {"scales": (0.5, 1.0), "flip": True}


def folder_classes(toy):
    return datasets.folder(toy, "val").classes


def test_a_left_out_recording_can_be_measured_alone(tmp_path, paint, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = paint(tmp_path / "data", [(64, 96)] * 8)
    model = streamseg.fanet18(classes=3).eval()
    classes = streamseg.folder(data, "all").classes
    streamseg.save(model, classes, "toy.safetensors")
    command = [
        "evaluate",
        "toy.safetensors",
        "--data",
        data,
        "--dataset",
        "folder",
        "--split",
        "all",
        "--json",
        "a.json",
    ]
    for only, images in (([], 8), (["--only", "3"], 1), (["--only", "3,5"], 2)):
        assert run(monkeypatch, *command, *only) == 0
        assert json.loads(Path("a.json").read_text())["images"] == images
    for only in ("zebra", "3,zebra"):
        assert run(monkeypatch, *command, "--only", only) == 2
        assert "No frame of folder all has a name that begins with --only 'zebra'" in capsys.readouterr().err


@pytest.mark.slow
def test_sequences_are_measured_in_order(folder, monkeypatch, capsys):
    names = [f"0016E5_{number:05}" for number in range(7959, 7979, 2)]
    make_camvid(folder / "data", "val", names, size=(32, 48))
    command = ["evaluate", "camvid.safetensors", "--data", "data", "--dataset", "camvid", "--json", "a.json"]
    told = {}
    for past in ((), ("--window", "1"), ("--window", "3"), ("--half-life", "0.1")):
        assert run(monkeypatch, *command, *past) == 0
        shown = capsys.readouterr().out
        assert ("mVC8" in shown) == ("a frame takes" in shown) == bool(past)
        told[past] = json.loads(Path("a.json").read_text())
    alone, image, video, fading = told.values()
    assert alone["miou"] == image["miou"] != video["miou"] != fading["miou"]
    for found in (image, video, fading):
        assert {*found} > {*alone}
        assert 0 < found["strict_mvc8"] < found["mvc8"] < 100
        assert found["mvc16"] is found["strict_mvc16"] is None
        assert 0 < found["flip_rate_still"] < 100
        assert (found["images"], found["sequences"], found["device"]) == (10, 1, "cpu")
    assert run(monkeypatch, *command, "--window", "2", "--plots", "plots") == 0
    assert sorted(path.name for path in Path("plots").iterdir()) == ["confusion.png", "worst.png"]


def test_a_terminal_that_lacks_a_letter_gets_a_question_mark(toy):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "streamseg", "check", "folder", "--data", toy]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "????" in done.stdout


@pytest.mark.slow
def test_a_rival_is_evaluated_and_segments_frame_by_frame_and_only_so(tmp_path, toy, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "train", "folder-18", "--network", "enet", "--data", toy, "--out", "run", *SHORT) == 0
    evaluated = ("evaluate", "run/weights.safetensors", "--data", toy, "--dataset", "folder")
    assert run(monkeypatch, *evaluated, "--plots", "plots") == 0
    assert "mean IoU" in capsys.readouterr().out
    baseline, _ = streamseg.load("run/weights.safetensors")
    make_clip(Path("in.mp4"), 3)
    for source in (toy / "images" / "0.png", "in.mp4"):
        segmented = ("segment", source, "--weights", "run/weights.safetensors", "--no-overlay", "--labels")
        assert run(monkeypatch, *segmented) == 0
    with Image.open("0-labels.png") as labels:
        expected = baseline(streamseg.read_image(toy / "images" / "0.png")[None])[0].argmax(dim=0)
        assert numpy.array_equal(numpy.asarray(labels), expected.numpy())
    assert len(list(streamseg.read_frames("in-labels.mkv"))) == 3
    for command in (evaluated, segmented):
        for option in (("--window", "2"), ("--half-life", "1")):
            shown = complaint(monkeypatch, capsys, *command, *option)
            assert "The network labels each frame alone: leave out the window, or give FANet weights or" in shown
    shown = complaint(monkeypatch, capsys, *segmented, "--tile")
    assert "--tile needs a FANet, but these weights are of enet: give weights of a FANet." in shown
    assert "This enet has no fast form" in complaint(monkeypatch, capsys, *evaluated, "--precision", "fp32")


def test_the_fast_form_is_evaluated_in_the_precision_that_is_asked_for(folder, drive, monkeypatch, capsys):
    told = {}
    for precision in ("", "fp32", "int8"):
        command = ("evaluate", "camvid.safetensors", "--data", drive, "--dataset", "camvid", "--json", "a.json")
        assert run(monkeypatch, *command, "--device", "cpu", *(["--precision", precision] if precision else [])) == 0
        told[precision] = json.loads(Path("a.json").read_text())
    assert told["fp32"]["miou"] == pytest.approx(told[""]["miou"], abs=0.1)
    assert told["int8"]["miou"] == pytest.approx(told[""]["miou"], abs=5)
    assert told["int8"]["confusion"] != told[""]["confusion"]


def test_an_evaluation_on_a_cluster_has_the_figures_of_one_process(folder, drive, monkeypatch, capsys):
    def spread(worker, given, rows, *, gpus):
        work = worker(*given, "cpu")
        yield from (work(row) for row in reversed(rows))

    monkeypatch.setattr("streamseg.parallel.cluster.ray_cluster", lambda address: nullcontext())
    monkeypatch.setattr("streamseg.parallel.cluster.map_on_cluster", spread)
    monkeypatch.setattr("streamseg.evaluate.images.SHARD", 2)
    asked = ["evaluate", "camvid.safetensors", "--dataset", "camvid", "--data", drive, "--split", "train"]
    assert run(monkeypatch, *asked, "--json", "alone.json") == 0
    assert run(monkeypatch, *asked, "--json", "spread.json", "--ray") == 0
    assert Path("spread.json").read_text() == Path("alone.json").read_text()
    monkeypatch.setattr("streamseg.parallel.cluster.map_on_cluster", lambda *_, **__: iter(()))
    assert "7 frames were not evaluated" in complaint(monkeypatch, capsys, *asked, "--ray")
    assert "leave out --ray" in complaint(monkeypatch, capsys, *asked, "--ray", "--window", "2")


def test_a_data_set_is_packed_and_measured_in_shards(folder, drive, monkeypatch, capsys):
    assert run(monkeypatch, "pack", "camvid", "--data", drive, "shards", "--splits", "val") == 0
    assert "shards: 3 frames of val" in capsys.readouterr().out
    for data, name in ((drive, "files.json"), ("shards", "shards.json")):
        asked = ["evaluate", "camvid.safetensors", "--dataset", "camvid", "--data", data, "--json", name]
        assert run(monkeypatch, *asked) == 0
    assert Path("shards.json").read_text() == Path("files.json").read_text()


def test_a_checkpoint_of_other_classes_is_not_evaluated(folder, toy, monkeypatch, capsys):
    shown = complaint(monkeypatch, capsys, "evaluate", "camvid.safetensors", "--data", toy, "--dataset", "folder")
    assert "other classes than those of folder val: class 0 is Sky in the network and ground in the data set;" in shown
    fewer = streamseg.Classes(("ground", "box"), ((0, 0, 0), (1, 1, 1)))
    streamseg.save(streamseg.fanet18(classes=2), fewer, "fewer.safetensors")
    shown = complaint(monkeypatch, capsys, "evaluate", "fewer.safetensors", "--data", toy, "--dataset", "folder")
    assert "class 2 is missing in the network and disc in the data set;" in shown


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("check folder --data nowhere", "No data set of kind folder in nowhere"),
        ("check kitti --data TOY", "dataset is 'kitti'; choose one of"),
        ("check folder --data TOY --sheet nowhere/sheet.png", "No folder nowhere to write sheet.png into"),
        ("check folder --data TOY --sheet sheet.mp4", "does not have the suffix of a picture"),
        ("evaluate camvid.safetensors --data TOY --dataset kitti", "dataset is 'kitti'; choose one of"),
        ("evaluate camvid.safetensors --data TOY --dataset folder --split test", "No split 'test'"),
        ("evaluate camvid.safetensors --data TOY --dataset folder --json a/b.json", "No folder a to write b.json into"),
        ("evaluate nowhere.safetensors --data TOY --dataset folder", "No weights at nowhere.safetensors"),
        ("evaluate camvid.safetensors --data TOY --dataset folder --device abacus", "'abacus' is no device"),
        ("evaluate camvid.safetensors --data TOY --dataset folder --window 0", "window is 0; expected a whole number"),
        (
            "evaluate camvid.safetensors --data TOY --dataset folder --half-life 0",
            "half_life is 0.0; expected a number",
        ),
        ("evaluate camvid.safetensors --data TOY --dataset folder --window 2 --half-life 1", "not both"),
        ("evaluate camvid.safetensors --data TOY --dataset folder --steady 1", "give --window or --half-life too"),
        ("evaluate camvid.safetensors --data TOY --dataset folder --window 2 --flip", "leave out --scales and --flip"),
        ("evaluate camvid.safetensors --data TOY --dataset folder --window 2 --scales 1 2", "leave out --scales and"),
        ("evaluate camvid.safetensors --data TOY --dataset folder --device cuda:99", "no GPU for --device cuda:99"),
        (
            "evaluate camvid.safetensors --data DRIVE --dataset camvid --device cpu --precision fp8",
            "choose one of: 'fp32'",
        ),
        ("evaluate camvid.safetensors --data DRIVE --dataset camvid --precision fp32 --flip", "leave out --scales and"),
        ("train folder-18 --data nowhere --out run", "No data set of kind folder in nowhere"),
        ("train folder-18 --data TOY --out run --resume", "to resume from: start the run without --resume."),
        ("train folder-18 --data TOY --out run --batch 0", "batch is 0; expected 1 or more."),
        (
            "train folder-18 --data TOY --out run --network bisenet18 --batch 1",
            "batch is 1; expected 2 or more for bise",
        ),
        ("train folder-18 --data TOY --out run --network enet --attention self", "only FANets have this option."),
        (
            "train folder-18 --data TOY --out run --initial camvid.safetensors --network fanet34",
            "another kind of network",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing(
    folder, toy, drive, monkeypatch, capsys, command, sentence
):
    before = sorted(folder.iterdir())
    command = command.replace("TOY", str(toy)).replace("DRIVE", str(drive))
    assert sentence in complaint(monkeypatch, capsys, *command.split())
    assert sorted(folder.iterdir()) == before


NO_MEMORY = [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")]


@pytest.mark.parametrize("error", NO_MEMORY)
def test_a_training_without_memory_says_what_would_fit(toy, tmp_path, monkeypatch, capsys, error):
    monkeypatch.setattr("streamseg.train.loop.train", failing(error))
    wanted = ("train", "folder-18", "--data", toy, "--out", tmp_path / "run", *SHORT)
    shown = complaint(monkeypatch, capsys, *wanted)
    assert "The memory of the cpu does not hold a batch of 2 crops of 64 x 64: try --batch 1; " in shown
    larger = ("--batch", "1", "--crop", "128", "128")
    assert "try --crop 64 64; " in complaint(monkeypatch, capsys, *wanted, *larger)


def test_each_process_of_torchrun_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert pick_device("") == pick_device("cuda") == torch.device("cuda:3")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["segment", "--help"], ["train", "folder-18", "--help"], ["completion", "bash"]],
)
def test_help_and_version_need_no_heavy_import(arguments):
    program = "import sys; from streamseg.cli import main\ntry: main()\nfinally: print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    for heavy in ("torch", "numpy", "PIL", "safetensors", "matplotlib"):
        assert f"'{heavy}'" not in done.stdout


def test_the_installed_command_and_the_module_are_the_same_program():
    for command in ([sys.executable, "-m", "streamseg"], [Path(sys.executable).with_name("streamseg")]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"streamseg {streamseg.__version__}\n"


# a verb that leaves a thread behind, as a reader that waits for a camera is
LEAVES_A_THREAD = """
import atexit, sys, threading
from streamseg import cli

def verb(arguments):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("done", end="")  # no line end: it must be flushed
    return int(arguments[0])

atexit.register(lambda: print(", cleaned up", end=""))
cli.run = verb
cli.run_program()
"""


@pytest.mark.parametrize("status", [0, 1, 143])
def test_a_thread_that_still_waits_does_not_change_how_the_process_ends(status):
    command = [sys.executable, "-c", LEAVES_A_THREAD, str(status)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (status, "done, cleaned up", "")
