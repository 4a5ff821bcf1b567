"""Some damaged files of every kind; `python tests/fuzz_files.py --files 2000` checks more."""

import random

import fuzz_files
import pytest
from exports import exported as exported
from fuzz_files import WAYS, Child, attempt, damage, fuzz, is_wrong, plan
from fuzz_kinds import KINDS, Kind, make_originals

pytest.importorskip("av", reason="PyAV is not installed: pip install 'streamseg[video]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'streamseg[distributed]'")


@pytest.fixture(scope="module")
def originals(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    make_originals(folder, exported)
    return folder


@pytest.mark.slow
def test_a_damaged_file_of_any_kind_is_read_or_refused_in_a_sentence(originals):
    outcomes = list(fuzz(150, 1, originals))
    assert [found for found in outcomes if is_wrong(found[0], found[2])] == []
    assert {name for name, *_ in outcomes} == {*KINDS}
    # most damage is noticed; otherwise the files were not read at all
    assert sum(outcome == "refused" for _, _, outcome, _, _ in outcomes) > 75


def raising(error):
    def read(path):
        raise error

    return Kind("a.png", read)


def test_failures_are_recognised(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    assert attempt(raising(KeyError("a.png.")), path, "")[0] == "traceback"
    assert attempt(raising(ValueError("Expecting value: line 1")), path, "")[0] == "bad message"
    assert attempt(raising(ValueError("a.png is no picture:\nline 1.")), path, "")[0] == "bad message"
    assert attempt(raising(ValueError("a.png is no picture.")), path, "")[0] == "refused"
    assert attempt(Kind("a.png", lambda path: 3), path, "3")[0] == "same"
    assert attempt(Kind("a.png", lambda path: 3), path, "4")[0] == "different"
    assert is_wrong("weights", "different")
    assert not is_wrong("JPEG", "different")
    assert all(is_wrong("JPEG", outcome) for outcome in ("traceback", "bad message", "crash", "hang"))
    monkeypatch.setattr(fuzz_files, "TIMEOUT", 0.0)
    child = Child(tmp_path)
    assert child.ask("JPEG", 1)[0] == "hang"
    child.process.kill()
    monkeypatch.undo()
    assert child.ask("JPEG", 1)[0] == "crash"
    child.end()


def test_every_way_of_damage_works_on_files_of_any_size():
    for way in WAYS:
        for size in (1, 2, 9, 5000):
            for seed in range(5):
                data = bytearray(random.Random(seed).randbytes(size))
                way(random.Random(seed), data)


def test_the_same_seed_damages_the_same_files_in_the_same_way(originals, tmp_path):
    assert plan(300, 7) == plan(300, 7) != plan(300, 8)
    made = []
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        path, ways = damage(KINDS["PNG"], originals, tmp_path / place, 3)
        made.append((path.read_bytes(), ways))
    assert made[0] == made[1]
