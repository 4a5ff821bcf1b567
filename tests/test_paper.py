import re
import subprocess
import sys

import pytest

from streamseg.attention import ATTENTIONS
from streamseg.checkpoint import FANETS, Variant
from streamseg.datasets import DATASETS
from streamseg.paper import DOWNLOADS, TABLES
from streamseg.peers import PEERS

PARTS = [table for parts in TABLES.values() for table in parts]


@pytest.mark.parametrize("table", PARTS, ids=lambda table: table.name)
def test_every_row_is_of_something_that_is_built_here_or_of_nothing(table):
    for row in table.rows:
        assert row.network in ("", *FANETS, *PEERS)
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
    for row in TABLES["VI"][0].rows:
        assert row.printed["avg_ms"] == pytest.approx(1000 / row.printed["fps"], rel=0.02)


def test_data_sets_say_where_they_come_from():
    assert {*DOWNLOADS} == {*DATASETS} - {"folder"}
    assert all(re.search("https?://", words) for words in DOWNLOADS.values())


def test_the_numbers_need_the_standard_library_only():
    program = "import sys; before = set(sys.modules); import streamseg.paper; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()} - {"streamseg"}
    assert packages <= sys.stdlib_module_names
