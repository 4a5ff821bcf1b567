"""Make small wrong edits, one at a time, in a copy of the project, and print those that no test notices.

    python tests/mutate.py                        # 20 edits, anywhere in the package
    python tests/mutate.py train/losses serve/gate -n 60 --seed 3
    python tests/mutate.py --since main           # in the modules that changed since a commit
    python tests/mutate.py --edits tests/wrong_edits.toml

An edit that survives shows a missing test, or changes nothing that matters; the exit status is then 1.
"""

import argparse
import ast
import importlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/streamseg" if (ROOT / "src").is_dir() else "streamseg")


@dataclass(frozen=True)
class Edit:
    """A replacement of part of a file."""

    path: Path
    start: int
    end: int
    new: str
    what: str = ""
    tests: tuple[str, ...] = ()

    def apply(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]

    def show(self, source: str) -> str:
        """Return the edited line, before and after."""
        begin, after = source.rfind("\n", 0, self.start) + 1, source.find("\n", self.end)
        old, new = source[begin:after], self.apply(source)[begin : after + len(self.new) - self.end + self.start]
        line = source.count("\n", 0, self.start) + 1
        return f"{self.path}:{line} {self.what}\n" + shorten("    - ", old) + "\n" + shorten("    + ", new)


def shorten(mark: str, text: str) -> str:
    return mark + re.sub(r"\s+", " ", text.strip())[:160]


COMPARISONS: dict[type, str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATORS: dict[type, str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}


class Finder(ast.NodeVisitor):
    """Collects the edits of a file: start, end, new text and kind of each."""

    def __init__(self, source: str):
        self.source = source
        lengths = [0]
        for line in source.splitlines(keepends=True):
            lengths.append(lengths[-1] + len(line))
        self.lines, self.starts = source.splitlines(keepends=True), lengths
        self.found: list[tuple[int, int, str, str]] = []

    def place(self, line: int, column: int) -> int:
        """Return the index of a line and column; ast counts columns in bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno or 0, node.end_col_offset or 0)

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def add(self, node: ast.expr | ast.stmt, new: str, what: str) -> None:
        self.found.append((*self.span(node), new, what))

    def between(self, left: ast.expr, right: ast.expr, new: str, what: str) -> None:
        """Replace the operator between two operands, and keep the parentheses around it."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[start:end]
        if match := re.search(r"[^\s()#\\]+(?:\s+(?:not|in)\b)?", gap):
            self.found.append((start + match.start(), start + match.end(), new, what))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for child in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(child)  # neither annotations nor decorators

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 (ast's name)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Drop the raise; leave the message alone."""
        self.add(node, "pass", "dropped")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts alone."""

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in self.text(node.test):
            self.add(node.test, f"not ({self.text(node.test)})", "negated")
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add(node.test, f"not ({self.text(node.test)})", "negated")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.Not, ast.USub)):
            self.add(node, f"({self.text(node.operand)})", "sign")
        self.visit(node.operand)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            self.between(left, right, COMPARISONS[type(op)], "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        new = "or" if isinstance(node.op, ast.And) else "and"
        self.between(*node.values[:2], new, "and/or")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        strings = any(isinstance(x, ast.JoinedStr) or is_text(x) for x in (node.left, node.right))
        if type(node.op) in OPERATORS and not strings:
            self.between(node.left, node.right, OPERATORS[type(node.op)], "operator")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, str(not node.value), "constant")
        elif isinstance(node.value, int):
            self.add(node, str(node.value + 1), "constant")
        elif isinstance(node.value, float):
            self.add(node, repr(1.5 * node.value or 1.0), "constant")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        self.add(node, "pass", "dropped")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass", "dropped")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        args = node.args
        if (
            len(args) > 1
            and self.text(node.func) not in ("isinstance", "getattr", "hasattr", "setattr")
            and not any(isinstance(arg, ast.Starred) for arg in args[:2])
        ):
            one, other = self.text(args[0]), self.text(args[1])
            between = self.source[self.span(args[0])[1] : self.span(args[1])[0]]
            if one != other:
                begin, end = self.span(args[0])[0], self.span(args[1])[1]
                self.found.append((begin, end, other + between + one, "arguments swapped"))
        for keyword in node.keywords:
            if keyword.arg:
                start, end = self.place(keyword.lineno, keyword.col_offset), self.span(keyword.value)[1]
                if self.source[end] == ",":
                    end += 1
                self.found.append((start, end, "", "argument dropped"))
        self.generic_visit(node)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def find_edits(path: Path) -> list[Edit]:
    """Return all edits of a file after which it still compiles."""
    source = (ROOT / path).read_text()
    finder = Finder(source)
    finder.visit(ast.parse(source))
    edits = [Edit(path, start, end, new, what) for start, end, new, what in dict.fromkeys(finder.found)]
    return [edit for edit in edits if is_program(edit.apply(source))]


def is_program(source: str) -> bool:
    try:
        compile(source, "edited", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def read_edits(path: Path) -> list[Edit]:
    """Read a list of edits; each names a text that occurs once in its file."""
    edits = []
    for entry in tomllib.loads(path.read_text())["edit"]:
        file = PACKAGE / entry["file"]
        source, old = (ROOT / file).read_text(), entry["old"]
        if source.count(old) != 1:
            raise ValueError(f"{file} holds {old!r} {source.count(old)} times, expected once: correct {path}.")
        start = source.index(old)
        edits.append(Edit(file, start, start + len(old), entry["new"], entry["harm"], tuple(entry.get("tests", ()))))
    return edits


def modules(names: Sequence[str], since: str) -> list[Path]:
    """Return the files of the package by name, or those changed since a commit, or all."""
    files = sorted(path.relative_to(ROOT) for path in (ROOT / PACKAGE).rglob("*.py"))
    if since:
        changed = git("diff", "--name-only", since, "--").split()
        files = [path for path in files if path.as_posix() in changed]
    if names:
        wanted = {(PACKAGE / name.removesuffix(".py").removeprefix(f"{PACKAGE}/")).as_posix() for name in names}
        if unknown := wanted - {path.with_suffix("").as_posix() for path in files}:
            raise ValueError(f"No module {', '.join(sorted(unknown))}.")
        files = [path for path in files if path.with_suffix("").as_posix() in wanted]
    return files


def find_tests(path: Path, wide: bool = False) -> list[str]:
    """Return the test files named after a module or its folder; if there are none, or if wide, all that import it."""
    inside = path.relative_to(PACKAGE).with_suffix("")
    folder, name = Path("tests", *inside.parts[:1]), inside.name
    own = [folder / f"test_{part}.py" for part in (*reversed(inside.parts), name.partition("_")[0])]
    dotted = ".".join(("streamseg", *inside.parts))
    parent, _, name = dotted.rpartition(".")
    importing = re.compile(
        rf"^(?:from {re.escape(dotted)}\b|import {re.escape(dotted)}\b|from {re.escape(parent)} import .*\b{name}\b)",
        re.MULTILINE,
    )
    others = [file.relative_to(ROOT) for file in sorted((ROOT / "tests").rglob("test_*.py"))]
    others = [file for file in others if importing.search((ROOT / file).read_text())]
    own = [file for file in own if (ROOT / file).exists()]
    return [*dict.fromkeys(file.as_posix() for file in (own + others if wide or not own else own))]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def copy_project(folder: Path) -> None:
    """Copy everything that git would commit, and the downloaded browser library if there is one."""
    for name in git("ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    vendor = PACKAGE / "serve" / "page" / "vendor"
    if (ROOT / vendor).is_dir():
        shutil.copytree(ROOT / vendor, folder / vendor, dirs_exist_ok=True)


def passes(folder: Path, tests: Sequence[str], seconds: float) -> bool | None:
    """Return whether tests pass in a copy of the project; None after a timeout."""
    options = ["-n", "0", "-x", "-p", "no:cacheprovider", *tests]
    # fork this process, which has imported torch: the import takes longer than most tests
    child = multiprocessing.get_context("fork").Process(target=run_tests, args=(folder, options))
    child.start()
    child.join(seconds)
    ended = child.exitcode
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid or 0, signal.SIGKILL)  # and what the tests started
    child.join()
    return None if ended is None else ended in (0, 5)  # 5: all tests were skipped


def run_tests(folder: Path, options: list[str]) -> None:
    """Run pytest in a copy of the project and exit with its status; import nothing from the original."""
    os.setsid()
    os.chdir(folder)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    here = Path(__file__).resolve().parent
    ours = {"", str(here), str(here.parent), str(here.parent / "src")}
    sys.path[:] = [str(folder / PACKAGE.parent), *(path for path in sys.path if path not in ours)]
    for name, module in [*sys.modules.items()]:
        file = str(getattr(module, "__file__", None) or "")
        if name.partition(".")[0] == PACKAGE.name or file.startswith(f"{here}{os.sep}"):
            del sys.modules[name]
    os.environ["PYTHONPATH"] = str(folder / PACKAGE.parent)
    import pytest

    os._exit(int(pytest.main(options)))


def try_edits(edits: Sequence[Edit], seconds: float = 300.0, wide: bool = False) -> Iterator[tuple[Edit, str]]:
    """Yield each edit and the test file that noticed it; an empty name if none did.

    A test file hangs if it takes longer than the given seconds and than five times its usual time.
    """
    usual: dict[str, float] = {}
    for library in ("numpy", "PIL.Image", "torch", "pytest"):
        importlib.import_module(library)  # once for all copies of this process
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_project(folder)
        for number, edit in enumerate(edits):
            source = (ROOT / edit.path).read_text()
            noticed = ""
            for test in edit.tests or find_tests(edit.path, wide):
                if test not in usual:
                    begin = time.monotonic()
                    if not passes(folder, test.split(), 3600.0):
                        raise RuntimeError(f"{test} fails without any edit: fix that first.")
                    usual[test] = time.monotonic() - begin
                (folder / edit.path).write_text(edit.apply(source))
                # a different time for each edit, or Python would reuse the bytecode of another one of the same length
                os.utime(folder / edit.path, (10**9 + number, 10**9 + number))
                passed = passes(folder, test.split(), max(seconds, 5 * usual[test]))
                shutil.copy2(ROOT / edit.path, folder / edit.path)
                if not passed:
                    noticed = test if passed is False else f"{test}, by a timeout"
                    break
            yield edit, noticed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("module", nargs="*", help="such as train/losses or serve/gate; default: all")
    parser.add_argument("-n", "--number", type=int, default=20, help="number of edits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--since", default="", metavar="COMMIT", help="only modules that changed since this commit")
    parser.add_argument("--edits", type=Path, help="file with a list of edits to make instead")
    parser.add_argument("--skip", type=int, default=0, help="leave out this many edits at the start")
    parser.add_argument("--only", default="", help="only edits whose file or line contains this text")
    parser.add_argument("--wide", action="store_true", help="run every test file that imports the module")
    parser.add_argument("--seconds", type=float, default=300.0, help="timeout of a test file")
    parser.add_argument("--list", action="store_true", help="print the edits and run nothing")
    given = parser.parse_args()
    if given.edits:
        edits = read_edits(given.edits)
    else:
        dice = random.Random(given.seed)
        # one edit per module in turn, so that large modules do not dominate
        piles = [
            dice.sample(pile, len(pile)) for path in modules(given.module, given.since) if (pile := find_edits(path))
        ]
        edits = []
        while len(edits) < given.number and any(piles):
            edits += [pile.pop() for pile in dice.sample(piles, len(piles)) if pile]
        edits = edits[: given.number]
    edits = [edit for edit in edits[given.skip :] if given.only in edit.show((ROOT / edit.path).read_text())]
    if given.list:
        for edit in edits:
            print(edit.show((ROOT / edit.path).read_text()))
        return 0
    survivors = 0
    for number, (edit, noticed) in enumerate(try_edits(edits, given.seconds, given.wide), 1):
        survivors += not noticed
        what = f"noticed by {noticed}" if noticed else "SURVIVED"
        print(f"{number}/{len(edits)} {what}: {edit.show((ROOT / edit.path).read_text())}", flush=True)
    print(f"{len(edits) - survivors} of {len(edits)} edits were noticed.")
    return 1 if survivors else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, RuntimeError) as error:
        sys.exit(f"mutate: {error}")
