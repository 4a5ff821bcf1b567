"""mutate.py makes edits that change the program, and only in its copy of the project."""

import ast

import mutate
import pytest

SOURCE = '''"""Docstring 1."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from x import y

LIMIT: "list[3]" = 5


def f(a: int, b=2.0, *, flag=True) -> "tuple[7]":
    """Docstring 2."""
    if a < b and not flag:
        raise ValueError(f"{a + 1} is too small")
    total = (a) + b  # é
    total += 1
    print(total, a, sep="")
    return -total if a is not b else 0
'''


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """Kind and resulting program of each edit of SOURCE."""
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(SOURCE)
    return [(edit.what, edit.apply(SOURCE)) for edit in mutate.find_edits(mutate.Path("a.py"))]


@pytest.mark.parametrize(
    ("what", "old", "new"),
    [
        ("comparison", "a < b", "a <= b"),
        ("comparison", "a is not b", "a is b"),
        ("and/or", "a < b and not flag", "a < b or not flag"),
        ("sign", "not flag", "(flag)"),
        ("sign", "-total", "(total)"),
        ("negated", "if a < b and not flag:", "if not (a < b and not flag):"),
        ("operator", "(a) + b", "(a) - b"),
        ("constant", "= 5", "= 6"),
        ("constant", "b=2.0", "b=3.0"),
        ("constant", "flag=True", "flag=False"),
        ("dropped", "total += 1", "pass"),
        ("dropped", 'raise ValueError(f"{a + 1} is too small")', "pass"),
        ("dropped", 'print(total, a, sep="")', "pass"),
        ("arguments swapped", "print(total, a,", "print(a, total,"),
        ("argument dropped", 'sep="")', ")"),
    ],
)
def test_an_edit_changes_one_thing(edited, what, old, new):
    assert SOURCE.count(old) == 1
    assert (what, SOURCE.replace(old, new)) in edited


def test_every_edit_gives_a_different_program_with_the_same_texts_and_types(edited):
    programs = [program for _, program in edited]
    assert len({*programs}) == len(programs)
    for program in programs:
        assert ast.dump(ast.parse(program)) != ast.dump(ast.parse(SOURCE))
        for text in ('"""Docstring 1."""', '"""Docstring 2."""', '"list[3]"', '"tuple[7]"', "if TYPE_CHECKING:", "# é"):
            assert text in program


def test_the_listed_edits_still_fit_the_code():
    edits = mutate.read_edits(mutate.ROOT / "tests" / "wrong_edits.toml")
    assert len(edits) >= 22
    for edit in edits:
        source = (mutate.ROOT / edit.path).read_text()
        assert edit.apply(source) != source
        assert mutate.is_program(edit.apply(source))
        assert mutate.find_tests(edit.path)


@pytest.mark.slow
def test_an_edit_that_no_test_notices_survives_and_the_project_is_unchanged(tmp_path, monkeypatch):
    (tmp_path / "streamseg").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "streamseg" / "__init__.py").touch()
    (tmp_path / "streamseg" / "a.py").write_text("LOW = 1\nHIGH = 2\n")
    (tmp_path / "tests" / "test_a.py").write_text(
        "from streamseg.a import LOW\n\ndef test_it():\n    assert LOW == 1\n"
    )
    (tmp_path / "pyproject.toml").touch()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "git", lambda *_: "\0".join(path.relative_to(tmp_path).as_posix() for path in before))
    monkeypatch.setattr(mutate, "PACKAGE", mutate.Path("streamseg"))
    edits = mutate.find_edits(mutate.PACKAGE / "a.py")
    found = {edit.new: noticed for edit, noticed in mutate.try_edits(edits)}
    assert found == {"2": "tests/test_a.py", "3": ""}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
