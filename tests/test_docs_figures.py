"""The figures in the documents are those that were measured, or that the code gives."""

import json
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import streamseg
from streamseg.evaluate.method_cost import count_method_macs
from streamseg.models.baselines import swiftnet18
from streamseg.models.video import METHODS
from streamseg.models.video.accel import accel
from streamseg.models.video.dff import dff
from streamseg.models.video.grfp import grfp
from streamseg.models.video.netwarp import netwarp
from streamseg.models.video.pearl import pearl

ROOT = Path(__file__).parent.parent


def test_the_tables_of_fanet_plus_are_the_measured_ones():
    page = (ROOT / "docs/how-it-works.md").read_text()
    measured = json.loads((ROOT / "docs/measured/fanetplus.json").read_text())
    for row in (row for rows in measured.values() for row in rows):
        name, gmacs, *numbers = row.values()
        cells = [name, f"{gmacs:.1f}", *(", ".join(f"{number:.1f}" for number in seeds) for seeds in numbers)]
        assert f"\n| {' | '.join(cells)} |\n" in page


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("clockwork", {"1 after": "other frames"}),
        ("clockwork-pipelined", {"still frame": "every frame"}),
        ("clockwork-adaptive", {"still frame": "still frame", "changed frame": "when it fires"}),
        ("low-latency", {"still frame": "still frame", "changed frame": "when it fires"}),
        ("dvsnet", {"still frame": "still frame", "changed frame": "when it fires"}),
    ],
)
def test_the_costs_of_the_schedules_are_correct(name, kinds):
    text = (ROOT / "docs/video-methods.md").read_text()
    with torch.device("meta"):
        built = [METHODS[name](backbone()).eval() for backbone in (swiftnet18, streamseg.fanet18)]
    macs = [count_method_macs(method, (1024, 2048)) for method in built]
    for kind, words in kinds.items():
        costs = " | ".join(f"{found[kind] / 1e9:.2f}" for found in macs)
        assert f"| `{name}`, {words} | {costs} |" in text


def test_the_costs_of_the_video_methods_are_correct():
    text = (ROOT / "docs/video-methods.md").read_text()
    backbones = (swiftnet18, streamseg.fanet18)
    keys = []
    for method in (dff, accel, netwarp, grfp, pearl):
        others = []
        for backbone in backbones:
            with torch.device("meta"):
                built, frame = method(backbone()).eval(), torch.empty(1, 3, 1024, 2048)
            with torch.no_grad(), FlopCounterMode(display=False) as key:
                _, state = built.step(frame)
            with torch.no_grad(), FlopCounterMode(display=False) as other:
                built.step(frame, state)
            keys.append(f"{key.get_total_flops() / 2e9:.2f}")
            others.append(f"{other.get_total_flops() / 2e9:.2f}")
        assert f"| `{method.__name__}`, other frames | {' | '.join(others)} |" in text
    assert keys == 5 * keys[:2]
    assert f"| backbone, and every key frame | {' | '.join(keys[:2])} |" in text


@pytest.mark.slow
def test_the_costs_in_how_it_works_are_correct():
    text = (ROOT / "docs/how-it-works.md").read_text()
    shape = (1, 3, 1024, 2048)

    def row(networks):
        return ", ".join(f"{streamseg.count_macs(network, shape) / 1e9:.2f}" for network in networks)

    attentions = (streamseg.NoAttention, streamseg.ChannelAttention, streamseg.SelfAttention)
    places = ("None", "Conv-0", "Res-1", "Res-2", "Res-3", "Res-4")
    with torch.device("meta"):  # the cost does not depend on the weights
        assert f"| {row([streamseg.fanet18()])} |" in text
        assert f"| {row([streamseg.fanet34()])} |" in text
        assert f"| {row(streamseg.fanet18(attention=kind) for kind in attentions)} |" in text
        assert f"| {row(streamseg.fanet18(key_channels=count) for count in (8, 16, 32, 64, 128))} |" in text
        assert f"| {row(streamseg.fanet18(reduction=place) for place in places)} |" in text


def test_the_ablations_and_baselines_in_the_results_are_the_measured_ones():
    measured, speeds = (
        json.loads((ROOT / "docs/measured" / name).read_text()) for name in ("ablations.json", "camvid.json")
    )
    text = (ROOT / "docs/results.md").read_text().replace("\u00a0", " ").replace("**", "").replace(" \\*", "")
    text = text.partition("trained alike\n")[2].partition("\n## ")[0]
    baselines, _, ablations = text.partition("### Ablations")
    shown = {row[0]: row[1:] for row in rows(baselines)}

    def figures(run):
        return [
            f"{fmean(measured[run][part]['miou']):.1f} ± {stdev(measured[run][part]['miou']):.1f}"
            for part in ("val", "0001TP")
        ]

    here = {row["name"]: row["here"] for row in speeds["rows"] if "miou" in row["here"]}
    assert {*shown} - {"network"} == {*here}
    for name, found in here.items():
        run = name.lower().replace("rn", "").replace("-", "")
        dusk = measured[run]["0001TP"]
        rest = fmean(fmean(ious) for label, ious in dusk.items() if label not in ("miou", "Sky"))
        fast = f"{found['fast_fps']:,.0f}" if "fast_fps" in found else "–"
        expected = [f"{found['gflops']:.1f}", f"{found['labels_fps']:,.0f}", fast, *figures(run), f"{rest:.1f}"]
        assert shown[name] == expected

    names = [
        *("attention-none", "attention-self", "attention-channel", "attention-dot", "fanet18"),
        *("keys-8", "keys-16", "fanet18", "keys-64", "keys-128"),
        *("reduction-None", "reduction-Conv-0", "fanet18", "reduction-Res-2", "reduction-Res-3", "reduction-Res-4"),
        *("fanet18", "reduce-average", "reduce-max"),
    ]
    assert [row[1:3] for row in rows(ablations) if "±" in row[1]] == [figures(run) for run in names]


def rows(text):
    """Return the cells of the tables in a text."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
