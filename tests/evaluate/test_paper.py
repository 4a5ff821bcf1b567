import re
import subprocess
import sys

import pytest

from streamseg.data.datasets import DATASETS
from streamseg.evaluate.paper import DOWNLOADS, TABLES
from streamseg.models.attention import ATTENTIONS
from streamseg.models.baselines import BASELINES
from streamseg.models.checkpoint import FANETS, Variant
from streamseg.models.video import VIDEO_METHODS

PARTS = [table for parts in TABLES.values() for table in parts]


@pytest.mark.parametrize("table", PARTS, ids=lambda table: table.name)
def test_every_row_is_of_a_known_network_or_of_none(table):
    for row in table.rows:
        assert row.network in ("", *FANETS, *BASELINES, *VIDEO_METHODS)
        assert row.attention in ATTENTIONS
        Variant(row.attention, row.key_channels, row.reduction, row.reduce_by)
        assert (
            {*row.notes}
            <= {*row.printed}
            <= {*("gflops", "per_mpx", "fps", "miou_val", "miou_test", "avg_ms", "max_ms")}
        )
    assert table.dataset in ("", *DATASETS)


def test_the_paper_s_numbers_agree_with_each_other():
    rows = {(table.name, row.name): row for table in PARTS for row in table.rows}
    for one, other in (
        (("II", "c' = 32"), ("IV", "FANet-18")),
        (("III", "fast attention"), ("IV", "FANet-18")),
        (("reduction", "Res-1"), ("IV", "FANet-18")),
        (("VI", "FANet-18"), ("IV", "FANet-18")),
        (("VI", "FANet-34"), ("IV", "FANet-34")),
    ):
        ours, theirs = rows[one].printed, rows[other].printed
        assert all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())
    for row in TABLES["IV"][0].rows:
        megapixels = row.size[0] * row.size[1] / 2**20
        assert row.printed["per_mpx"] == pytest.approx(row.printed["gflops"] / megapixels, rel=0.01)
    for row in printed_video_rows():
        # PEARL's are 800 ms and 1.3 fps
        assert row.printed["avg_ms"] == pytest.approx(1000 / row.printed["fps"], rel=0.05)


def printed_video_rows():
    """The rows of Table VI with numbers of the paper; the others are there to compare with."""
    return [row for row in TABLES["VI"][0].rows if row.printed]


def test_the_video_table_is_that_of_the_paper():
    # name, mIoU, frames a second, mean and longest time in ms
    printed = """
        DVSNet-fast 63.2 30.4 33 -, Clockwork 64.4 5.6 177 221, DFF 69.2 5.7 175 644, Accel 72.1 2.9 340 575,
        Low-Latency 75.9 7.5 133 133, NetWarp 80.6 0.33 3004 3004, GRFP 73.6 3.5 286 286, PEARL 76.5 1.3 800 800,
        FANet-34 76.3 58 17 17, FANet-34+2 76.7 58 17 17,
        FANet-18 75.0 72 14 14, FANet-18+2 75.5 72 14 14"""
    for row, entry in zip(printed_video_rows(), printed.split(","), strict=True):
        name, *numbers = entry.split()
        assert row.name == name.replace("+", ", t = ")
        if name.startswith("FANet"):
            assert row.window == (2 if "+" in name else 1)
        expected = zip(("miou_val", "fps", "avg_ms", "max_ms"), numbers, strict=True)
        assert row.printed == {key: float(number) for key, number in expected if number != "-"}


@pytest.mark.parametrize("table", PARTS, ids=lambda table: table.name)
def test_percentages_are_below_100_and_mean_times_below_maximum_times(table):
    for row in table.rows:
        assert all(0 < row.printed.get(name, 50.0) < 100 for name in ("miou_val", "miou_test"))
        assert row.printed.get("max_ms", 1e9) >= row.printed.get("avg_ms", 0)


def test_every_data_set_has_a_download():
    assert {*DOWNLOADS} == {*DATASETS} - {"folder"}
    assert all(re.search("https?://", words) for words in DOWNLOADS.values())


def test_the_paper_module_imports_only_the_standard_library():
    loaded = "print(*(set(sys.modules) - before))"
    program = f"import sys; before = set(sys.modules); import streamseg.evaluate.paper; {loaded}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()} - {"streamseg"}
    assert packages <= sys.stdlib_module_names
