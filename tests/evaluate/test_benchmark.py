import json

import pytest
import torch
from exports import SIZE, exported as exported

import streamseg
from streamseg import cli
from streamseg.evaluate import benchmark

CPU = torch.device("cpu")


@pytest.mark.slow
def test_macs_and_parameters_are_those_of_the_network():
    cost = benchmark.measure_cost("fanet18", (64, 96), 1, CPU, seconds=0.01)
    network = streamseg.fanet18()
    assert cost.parameters == sum(x.numel() for x in network.parameters())
    assert cost.gmacs == pytest.approx(streamseg.count_macs(network, (1, 3, 64, 96)) / 1e9)
    assert cost.paper_fps is None


def test_the_paper_s_speed_is_given_for_its_networks_and_sizes():
    assert benchmark.paper_fps("fanet18", (1024, 2048)) == 72
    assert benchmark.paper_fps("fanet34", (1024, 2048)) == 58
    assert benchmark.paper_fps("fanet18", (64, 96)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision", "ways"),
    [
        ("fanet18", "", ["fast, fp32", "fast, fp32, video", "plain", "network alone, fp32"]),
        ("fanet18", "int8", ["fast, int8", "fast, int8, video", "plain", "network alone, fp32"]),
        ("fanetplus18", "", ["fast, fp32", "fast, fp32, video", "plain", "network alone, fp32"]),
        ("enet", "", ["plain", "network alone, fp32"]),
    ],
)
def test_every_path_is_timed(name, precision, ways):
    cost = benchmark.measure_cost(name, (64, 96), 2, CPU, precision, seconds=0.01)
    assert [timing.way for timing in cost.timings] == ways
    for timing in cost.timings:
        assert 0 < timing.median <= timing.p95 <= timing.p99
        assert timing.fps == pytest.approx(2000 / timing.median)
        assert timing.rounds >= 5
    assert bool(cost.stages) == (name != "enet")
    assert not cost.stages or sum(cost.stages.values()) == pytest.approx(1)


@pytest.mark.slow
def test_the_verb_prints_a_table_and_writes_json_and_a_plot(tmp_path, monkeypatch, capsys):
    names = [str(tmp_path / name) for name in ("a.json", "a.png", "weights.safetensors")]
    streamseg.save(streamseg.fanet18(classes=11), streamseg.CAMVID, names[2])
    options = ["--size", "64x96", "--seconds", "0.01", "--json", names[0], "--plot", names[1], "--profile"]
    monkeypatch.setattr("sys.argv", ["streamseg", "benchmark", names[2], "enet", *options])
    cli.main()
    printed = capsys.readouterr().out
    assert "fanet18: " in printed
    assert "enet: 364,311 parameters" in printed
    assert "the ten most expensive" in printed
    entry = json.loads((tmp_path / "a.json").read_text())
    assert entry["size"] == [64, 96]
    assert [network["network"] for network in entry["networks"]] == ["fanet18", "enet"]
    assert entry["machine"]["torch"] == torch.__version__
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [("any.onnx", "ONNX Runtime, fp32"), ("fixed.xml", "OpenVINO, fp32"), ("fixed.pt2", "torch, fp32")],
)
def test_an_exported_file_is_timed_from_frame_to_labels(exported, name, way):
    cost = benchmark.measure_cost(str(exported(name)), SIZE, 2, CPU, seconds=0.01, trust=True)
    assert (cost.parameters, cost.gmacs, cost.stages, cost.paper_fps) == (None, None, {}, None)
    (timing,) = cost.timings
    assert timing.way == way
    assert timing.fps == pytest.approx(2000 / timing.median)
    shown = benchmark.format_costs([cost], SIZE, 2, benchmark.describe_machine(CPU))
    assert f"{name}: - parameters, - GMACs\n" in shown
    assert "fast path: -" in shown


@pytest.mark.slow
def test_the_verb_takes_exported_files_and_networks(exported, monkeypatch, capsys):
    names = [str(exported("fixed.pt2")), str(exported("still.onnx"))]
    command = ["streamseg", "benchmark", *names, "enet", "--seconds", "0.01"]
    monkeypatch.setattr("sys.argv", [*command, "--size", "72x96", "--trust"])
    cli.main()
    shown = capsys.readouterr().out
    for name in names:
        assert f"{name}: - parameters" in shown
    for options, sentence in (
        (["--size", "72x96"], "fixed.pt2 is a program, which runs when it is opened"),
        (["--size", "64x64", "--trust"], "fixed.pt2 only takes frames of 72 x 96: give --size 72x96."),
    ):
        monkeypatch.setattr("sys.argv", [*command, *options])
        with pytest.raises(SystemExit, match="2"):
            cli.main()
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["fanet19"],
            "'fanet19' is neither a file nor one of the networks fanet18, fanet34, fanetplus18",
        ),
        (["fanet18", "--size", "20x20"], "expected a height and a width from 32 up"),
        (
            ["fanet18", "--precision", "fp16", "--device", "cpu"],
            "precision is 'fp16'; on this device choose one of: fp32",
        ),
        (["fanet18", "--batch", "0"], "batch is 0; expected a whole number, 1 or more"),
        (["fanet18", "--json", "nowhere/a.json"], "nowhere"),
    ],
)
def test_errors_of_the_verb_are_one_sentence(monkeypatch, capsys, arguments, sentence):
    monkeypatch.setattr("sys.argv", ["streamseg", "benchmark", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["fanet18", "fanetplus18"])
def test_the_paths_on_a_gpu_are_timed_with_their_memory(name):
    cost = benchmark.measure_cost(name, (128, 256), 1, torch.device("cuda"), compiled=True, seconds=0.2)
    ways = ["fast, fp16", "fast, fp16, video", "torch.compile", "plain", "network alone, fp32"]
    assert [timing.way for timing in cost.timings] == ways
    assert all(timing.memory_mb > 1 for timing in cost.timings)
    assert "driver_version" in benchmark.describe_machine(torch.device("cuda"))
