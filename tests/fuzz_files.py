"""Damage files of every kind that streamseg reads, and check how each damaged file is read.

    python tests/fuzz_files.py --files 2000

A damaged file must be read, or refused with one sentence that names it. A file with a checksum must be refused or give
exactly the original's content. Files are read in a child process, which shows crashes inside libraries, with a timeout,
which shows hangs. The same number and seed damage the same files in the same way.
"""

import argparse
import json
import os
import random
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from fuzz_kinds import KINDS, Kind, make_originals, read_untrusted

TIMEOUT = 120.0
"""Seconds in which a file of a few hundred kilobytes must have been read, on any slow machine."""

# damage


def flip(dice: random.Random, data: bytearray) -> None:
    for _ in range(dice.choice((1, 2, 20, 200))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def cut(dice: random.Random, data: bytearray) -> None:
    del data[dice.choice((dice.randrange(len(data)), len(data) - 1 - dice.randrange(min(len(data), 64)))) :]


def zero(dice: random.Random, data: bytearray) -> None:
    size = max(1, len(data) // dice.choice((8, 64, 1024)))
    start = dice.randrange(len(data) - size + 1)
    data[start : start + size] = bytes(size)


def swap(dice: random.Random, data: bytearray) -> None:
    size = max(1, len(data) // dice.choice((8, 32, 256)))
    one, other = (dice.randrange(len(data) - size + 1) for _ in range(2))
    data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]


def repeat(dice: random.Random, data: bytearray) -> None:
    start = dice.randrange(len(data))
    data[start:start] = data[start : start + dice.choice((1, 100, 5000))]


def remove(dice: random.Random, data: bytearray) -> None:
    start = dice.randrange(len(data))
    del data[start : start + dice.choice((1, 4, 512))]


def append(dice: random.Random, data: bytearray) -> None:
    data += dice.choice((dice.randbytes(300), bytes(300), bytes(data[:300]), b"\n", b"x"))


def prepend(dice: random.Random, data: bytearray) -> None:
    data[:0] = dice.choice((dice.randbytes(9), b"\xef\xbb\xbf", b"\n", bytes(512)))


def edit_head(dice: random.Random, data: bytearray) -> None:
    """Replace numbers in a header by extreme ones."""
    for _ in range(dice.choice((1, 3))):
        start = dice.randrange(min(len(data), dice.choice((16, 128, 2048))))
        data[start : start + 4] = dice.choice(
            (b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", dice.randbytes(4))
        )


def edit_text(dice: random.Random, data: bytearray) -> None:
    """Replace numbers and words of a text, such as JSON in a header."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?|[A-Za-z]\w{2,20}", bytes(data[:100_000])))
    if not found:
        return flip(dice, data)
    values = (
        b"-1",
        b"0",
        b"99999999999999999999",
        b"1e999",
        b"NaN",
        b"null",
        b"[]",
        b"{}",
        b"true",
        b'"',
        b"\\u0000",
        b"\x1b[2J",
        b"",
        b"#zzz",
        b"../../etc/passwd",
        "ü".encode("latin-1"),
        "ü\u202e".encode(),
    )
    for match in sorted(dice.sample(found, min(len(found), dice.choice((1, 2)))), key=lambda match: -match.start()):
        data[match.start() : match.end()] = dice.choice(values)
    return None


WAYS = (flip, flip, cut, zero, swap, repeat, remove, append, prepend, edit_head, edit_text)


def plan(files: int, seed: int) -> list[tuple[str, int]]:
    """Return the kind and the seed of each file: kinds by their share, each at least once if there are enough files."""
    names = [name for name, kind in KINDS.items() for _ in range(kind.share)]
    order = [*KINDS, *random.Random(seed).sample(names, len(names))]
    return [(order[i % len(order)], seed * 1_000_003 + i) for i in range(files)]


def damage(kind: Kind, originals: Path, folder: Path, number: int) -> tuple[Path, str]:
    """Copy a kind's files into a folder and damage one; returns its path and the names of the damage."""
    for name in kind.beside:
        (shutil.copytree if (originals / name).is_dir() else shutil.copyfile)(originals / name, folder / name)
    path = folder / kind.file
    path.parent.mkdir(parents=True, exist_ok=True)
    dice = random.Random(number)
    data = bytearray((originals / kind.file).read_bytes())
    ways = dice.sample(WAYS, dice.choice((1, 1, 1, 2)))
    for way in ways:
        if data:
            way(dice, data)
    path.write_bytes(data)
    return path, "+".join(way.__name__ for way in ways)


# the child process: a line of JSON in, a line of JSON out


def attempt(kind: Kind, path: Path, expected: str | None) -> tuple[str, str]:
    """Read a file; returns the outcome (same, different, refused, or a failure) and the error message."""
    try:
        found = repr(kind.read(path))
    except (ValueError, OSError, MemoryError) as error:  # those that the command line prints as a sentence
        text = str(error)
        folder = str(path.parent)
        fine = "\n" not in text and text.endswith(".") and (path.name in text or folder in text)
        return ("refused" if fine else "bad message"), text
    except BaseException as error:
        return "traceback", f"{type(error).__name__}: {error}"
    return ("same" if found == expected else "different"), ""


def serve_parent(originals: Path) -> None:
    """Read the damaged files that lines on standard input name, and print a line about each."""
    import logging
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep what libraries print out of the answers
    expected: dict[str, str] = {}
    for line in sys.stdin:
        name, number = json.loads(line)
        kind = KINDS[name]
        with tempfile.TemporaryDirectory() as place:
            if name not in expected:
                whole = Path(place) / "whole"
                whole.mkdir()
                for needed in {kind.file.partition("/")[0], *kind.beside}:
                    source = originals / needed
                    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, whole / needed)
                if kind.read is read_untrusted:
                    expected[name] = ""
                else:
                    expected[name] = repr(kind.read(whole / kind.file))
            folder = Path(place) / "damaged"
            folder.mkdir()
            path, ways = damage(kind, originals, folder, number)
            outcome, text = attempt(kind, path, expected[name])
            answers.write(json.dumps([outcome, ways, text.replace(place, "…")[:300]]) + "\n")
            answers.flush()


# the parent process


class Child:
    """The process that reads files; a crash or a hang ends it."""

    def __init__(self, originals: Path):
        command = [sys.executable, __file__, "--child", str(originals)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self.ready = selectors.DefaultSelector()
        self.ready.register(self.process.stdout, selectors.EVENT_READ)

    def ask(self, name: str, number: int) -> tuple[str, str, str]:
        """Return outcome, damage and message of a file."""
        try:
            self.process.stdin.write(json.dumps([name, number]).encode() + b"\n")
            self.process.stdin.flush()
            if not self.ready.select(TIMEOUT):
                return "hang", "", f"no answer in {TIMEOUT:.0f} s"
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            return "crash", "", f"the process ended with {self.process.wait()}"
        return tuple(json.loads(line))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.ready.close()
        self.process.stdin.close()
        self.process.stdout.close()


def fuzz(files: int, seed: int, originals: Path) -> Iterator[tuple[str, int, str, str, str]]:
    """Yield kind, seed, outcome, damage and message of each damaged file."""
    child = Child(originals)
    try:
        for name, number in plan(files, seed):
            outcome, ways, text = child.ask(name, number)
            yield name, number, outcome, ways, text
            if outcome in ("hang", "crash"):
                child.end()
                child = Child(originals)
    finally:
        child.end()


def is_wrong(name: str, outcome: str) -> bool:
    """Return whether an outcome is a failure."""
    failures = ("traceback", "bad message", "hang", "crash")
    return outcome in failures or (KINDS[name].has_checksum and outcome == "different")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--originals", type=Path, help="folder for the originals; those already there are used")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        serve_parent(given.child)
        return
    from exports import make

    with tempfile.TemporaryDirectory() as place:
        folder = given.originals or Path(place)
        if not (folder / "whole").exists():
            made = Path(place) / "exported"
            made.mkdir()
            folder.mkdir(exist_ok=True)
            make(made, "still")
            make(made, "fixed")
            make_originals(folder, made.joinpath)
            (folder / "whole").touch()
        began, counts, wrong = time.monotonic(), defaultdict(Counter), 0
        for number, (name, seed, outcome, ways, text) in enumerate(fuzz(given.files, given.seed, folder), start=1):
            counts[name][outcome] += 1
            if is_wrong(name, outcome):
                wrong += 1
                print(f"{outcome}: {name}, seed {seed}, {ways}: {text}", flush=True)
            if number % 100 == 0:
                print(f"{number} files, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    outcomes = ("refused", "same", "different", "bad message", "traceback", "crash", "hang")
    print(f"{'':26}" + "".join(f"{outcome:>13}" for outcome in outcomes))
    total: Counter = sum(counts.values(), Counter())
    for name, found in [*counts.items(), ("all", total)]:
        print(f"{name:26}" + "".join(f"{found[outcome]:>13}" for outcome in outcomes))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
