"""The cost of video methods by the position in their key interval."""

import re
from pathlib import Path

import pytest
import torch
from commands import run

import streamseg
from streamseg.evaluate.benchmark import Timing, count_macs
from streamseg.evaluate.method_cost import (
    count_method_macs,
    mean_macs,
    measure_method,
    open_method,
    position_calls,
    summarise_positions,
    time_positions,
)
from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.video import VIDEO_METHODS
from streamseg.models.video.clockwork import AdaptiveClockwork, clockwork, clockwork_pipelined
from streamseg.models.video.low_latency import LowLatency

CPU = torch.device("cpu")
SIZE = (64, 96)


def test_a_key_frame_costs_the_backbone_and_the_frames_after_it_less():
    network = swiftnet18(4)
    macs = count_method_macs(clockwork(network, 3), SIZE)
    assert [*macs] == ["key frame", "1 after", "2 after"]
    assert macs["key frame"] == count_macs(network, (1, 3, *SIZE))
    assert macs["1 after"] == macs["2 after"] < macs["key frame"]
    assert mean_macs(macs, 0) == pytest.approx((macs["key frame"] + 2 * macs["1 after"]) / 3)


def test_where_a_schedule_decides_the_mean_follows_the_share_of_key_frames():
    method = AdaptiveClockwork(swiftnet18(4), threshold=0.2)
    macs = count_method_macs(method, SIZE)
    assert macs["still frame"] < macs["changed frame"] == macs["key frame"]
    assert mean_macs(macs, 0) == macs["still frame"]
    assert mean_macs(macs, 1) == macs["changed frame"]
    assert method.threshold == 0.2


@torch.no_grad()
def test_the_limit_of_a_schedule_is_no_fixed_interval():
    limited, unlimited = (AdaptiveClockwork(swiftnet18(4), 0.2, interval).eval() for interval in (10, None))
    assert count_method_macs(limited, SIZE) == count_method_macs(unlimited, SIZE)
    image = torch.randint(0, 256, (1, 3, *SIZE), dtype=torch.uint8)
    assert [*position_calls(limited, image)] == [*position_calls(unlimited, image)]


@torch.no_grad()
def test_every_position_has_a_call_and_work_after_the_labels_its_own():
    image = torch.randint(0, 256, (1, 3, *SIZE), dtype=torch.uint8)
    assert [*position_calls(clockwork(swiftnet18(4)).eval(), image)] == ["key frame", "1 after"]
    calls = position_calls(clockwork_pipelined(swiftnet18(4)).eval(), image)
    assert set(calls) == {
        "key frame",
        *(f"{name}{part}" for name in ("still frame", "changed frame") for part in ("", ", after its labels")),
    }
    for call in calls.values():
        call()


def timing(way, median):
    return Timing(way, median, median, median, 1000 / median, None, 5)


def test_the_mean_counts_the_work_after_the_labels_and_the_maximum_does_not():
    mean, slowest = summarise_positions(
        [timing("key frame", 6), timing("1 after", 2), timing("1 after, after its labels", 2)], 1
    )
    assert (mean.median, mean.fps) == (5, 200)
    assert (slowest.way, slowest.median) == ("maximum", 6)


def test_a_method_is_measured_by_position():
    torch.manual_seed(0)
    cost = measure_method(VIDEO_METHODS["copy-swiftnet18"](4).eval(), SIZE, 1, CPU, "", 0.0)
    assert [timing.way for timing in cost.timings] == [
        "key frame",
        *(f"{number} after" for number in range(1, 5)),
        "mean",
        "maximum",
    ]
    with pytest.raises(ValueError, match="precision is 'int8'"):
        measure_method(VIDEO_METHODS["copy-swiftnet18"](4).eval(), SIZE, 1, CPU, "int8", 0.0)


def test_methods_are_opened_by_name_and_from_a_file(tmp_path):
    streamseg.save(VIDEO_METHODS["clockwork-swiftnet18"](11), streamseg.CAMVID, tmp_path / "w.safetensors")
    assert open_method(str(tmp_path / "w.safetensors")).name == "clockwork-swiftnet18"
    assert open_method("fanet18") is None


def test_the_verb_benchmark_prints_mean_and_maximum(monkeypatch, capsys):
    options = ("--size", "64x96", "--seconds", "0.1", "--device", "cpu")
    assert run(monkeypatch, "benchmark", "clockwork-swiftnet18", *options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if " ms" in line] == ["key", "1", "mean", "maximum"]


def test_where_a_schedule_decides_the_mean_is_that_of_still_frames_with_their_own_later_work():
    times = [timing("key frame", 6), timing("still frame", 2), timing("changed frame", 3)]
    mean, _ = summarise_positions([*times, timing("changed frame, after its labels", 4)], 1)
    assert mean.median == 2
    mean, _ = summarise_positions([*times, timing("still frame, after its labels", 4)], 1)
    assert mean.median == 6


@torch.no_grad()
def test_a_schedule_fires_on_changed_frames_only_while_it_is_timed():
    image = torch.randint(0, 256, (1, 3, *SIZE), dtype=torch.uint8)
    method = LowLatency(swiftnet18(4), threshold=0.2, channels=8, kernel=3).eval()
    calls = position_calls(method, image)
    after = ", after its labels"  # of a still frame, the reading of the decision
    assert [*calls] == ["key frame", "still frame", "still frame" + after, "changed frame", "changed frame" + after]
    assert [calls[name]()[1].due.item() for name in ("still frame", "changed frame")] == [False, True]
    assert method.threshold == 0.2
    count_method_macs(plain := clockwork_pipelined(swiftnet18(4)), SIZE)
    assert not hasattr(plain, "threshold")


@torch.no_grad()
def test_the_maximum_is_of_all_times_and_the_mean_of_means():
    given = iter([[9.0, 30.0], [1.0, 2.0, 3.0]])
    found = time_positions(clockwork(swiftnet18(4)).eval(), SIZE, CPU, lambda call: next(given))
    assert found == {"max_ms": 30, "avg_ms": (19.5 + 2) / 2, "fps": pytest.approx(1000 / 10.75)}


@pytest.mark.parametrize("option", ["--compiled", "--profile"])
def test_options_that_a_method_has_not_are_refused(option, monkeypatch, capsys):
    assert run(monkeypatch, "benchmark", "copy-swiftnet18", "--size", "64x96", "--device", "cpu", option) != 0
    assert "copy-swiftnet18 is a video method, which" in capsys.readouterr().err


def document_rows():
    """The rows of the tables of GMACs in docs/video-methods.md: name, and a number a column."""
    text = (Path(__file__).parents[2] / "docs" / "video-methods.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split("|") for line in text.splitlines() if re.match(r"\| (`|backbone).*\| \d+\.\d+ \|", line)
    ]
    return [(name.strip(), *(cell.strip() for cell in cells)) for name, *cells in rows if len(cells) in (2, 3)]


@pytest.mark.parametrize("row", document_rows(), ids=lambda row: row[0])
def test_the_document_has_the_counted_gmacs_and_parameters(row):
    title, *cells = row
    name = title.split("`")[1] if "`" in title else "dff"
    positions = {"when it fires": "changed frame", "and every key frame": "key frame"}
    for backbone, cell in zip(("swiftnet18", "fanet18"), cells, strict=False):
        with torch.device("meta"):
            method = VIDEO_METHODS[f"{name}-{backbone}"](19)
        macs = count_method_macs(method, (1024, 2048))
        position = positions.get(title.split(", ")[1], "1 after" if method.interval else "still frame")
        assert cell == f"{macs[position] / 1e9:.2f}"
        if len(cells) == 3 and cells[2] and backbone == "swiftnet18":
            parts = (method, method.backbone)
            whole, own = (sum(x.numel() for x in part.parameters()) for part in parts)
            assert cells[2] == f"{(whole - own) / 1e6:.1f}"


def test_every_table_of_the_document_is_read():
    assert len(document_rows()) == 14
