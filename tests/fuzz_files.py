"""Damage files of every kind that is read, and see that each is told in a sentence or read as it was.

    python tests/fuzz_files.py --files 2000

Each file is read in a child process, so that a crash inside a library is seen, and under a watchdog, so that a hang is.
A file that holds a checksum must be refused, or give exactly what the whole one gives; of the others it is enough that
they are refused in one sentence or read. The same number and seed damage the same files in the same way.
"""

import argparse
import hashlib
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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

WATCHDOG = 120.0
"""Seconds in which a file of a few hundred kilobytes must have been read: far more than on any slow machine."""


@dataclass(frozen=True)
class Kind:
    """A kind of file that is read."""

    file: str
    """The one to damage, within the folder of the originals."""
    read: Callable[[Path], object]
    """Reads the damaged file at a path, all of it; what it gives is compared as text."""
    has_checksum: bool = False
    beside: tuple[str, ...] = ()
    """Files and folders that it is read with."""
    share: int = 4
    """How often it is damaged, compared with other kinds."""


# originals, made once


def make_originals(folder: Path, exported: Callable[[str], Path]) -> None:
    """A small file of each kind."""
    import torch
    from clips import make_clip, picture
    from PIL import Image
    from torch import nn

    import streamseg
    from streamseg.data import shards
    from streamseg.deploy import archive
    from streamseg.io.images import write_image
    from streamseg.io.tensors import write_tensors
    from streamseg.io.video_writing import write_label_video
    from streamseg.models.encoder import resnet18
    from streamseg.stream.state import LastFrames, State
    from streamseg.train import resume

    torch.manual_seed(0)
    streamseg.save(
        streamseg.models.baselines.enet(3),
        streamseg.Classes(("a", "b", "c"), ((1, 2, 3),) * 3),
        folder / "w.safetensors",
    )
    streamseg.save_state(
        State(torch.rand(2, 8, 96), (1.0, 1.0), 0.5, torch.zeros(9, 9).byte()), folder / "s.safetensors"
    )
    shutil.copyfile(streamseg.models.checkpoint.BUNDLED, folder / "bundled.safetensors")
    for name in ("still.onnx", "fixed.xml", "fixed.bin", "fixed.pt2"):
        shutil.copyfile(exported(name), folder / name)
    strip_checksum(folder / "still.onnx", folder / "older.onnx")
    encoder = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in resnet18().state_dict().items()
    }
    torch.save(encoder, folder / "encoder.pth")
    write_tensors(folder / "encoder.safetensors", encoder, {"format": "pt"})
    resume.save_state(folder, 7, {"batch": 2, "leave_out": ""}, {"trainee": nn.Linear(64, 64)})
    (folder / "log.jsonl").write_text("".join(json.dumps({"step": i, "loss": 1 / i}) + "\n" for i in range(1, 9)))
    (folder / "run.json").write_text(
        json.dumps({"config": {"dataset": "folder", "split": "train", "iterations": 6}, "sessions": [{"a": 1}]})
    )

    data = folder / "data"
    for kind in ("images", "labels"):
        (data / kind).mkdir(parents=True)
    (data / "classes.txt").write_text("ground #804080\nbox\ndisc #0000ff\n")
    for i in range(6):
        noise = torch.randint(256, (40, 56, 3), dtype=torch.uint8)
        Image.fromarray(noise.numpy()).save(data / "images" / f"{i}.png")
        Image.fromarray((noise[:, :, 0] % 3).numpy()).save(data / "labels" / f"{i}.png")
    (data / "train.txt").write_text("0\n1\n2.png\n3\n")
    (data / "val.txt").write_text("4\n5\n")
    shards.pack("folder", data, folder / "shards")

    frame = torch.randint(256, (3, 40, 56), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for suffix in ("png", "jpg", "webp", "bmp", "tiff"):
        write_image(folder / f"a.{suffix}", frame)
    Image.fromarray(frame[0].numpy().astype("uint16") * 257).save(folder / "deep.png")
    Image.fromarray(frame.permute(1, 2, 0).numpy()).save(folder / "a.gif")
    (folder / "list.txt").write_text("a.png\na.jpg\n")
    for name, codec in (
        ("a.mp4", "libx264"),
        ("a.mkv", "libx264"),
        ("a.webm", "libvpx-vp9"),
        ("a.avi", "mpeg4"),
        ("a.ts", "libx264"),
    ):
        make_clip(folder / name, 25, codec=codec)
    make_clip(folder / "sound.mp4", 25, sound="aac")
    with write_label_video(folder / "labels.mkv", (40, 56), Fraction(25)) as writer:
        for i in range(9):
            writer.write(picture(i, (40, 56))[0] % 11, i / 25)

    archive.open_archive(
        str(folder / "archive"), archive.describe_archive(archive.ArchiveSettings(None, LastFrames(1)), "/videos")
    )
    rows = [{"frame": i, "seconds": i / 25, "latency_ms": 1.0, "shares": {}} for i in range(9)]
    archive.write_statistics(folder / "archive" / "frames.parquet", iter(rows), streamseg.CAMVID)


def strip_checksum(source: Path, target: Path) -> None:
    """An ONNX file as it was before files had checksums."""
    import onnx

    model = onnx.load(source)
    entry = json.loads(model.metadata_props[0].value)
    del entry["checksum"]
    model.metadata_props[0].value = json.dumps(entry)
    onnx.save(model, target)


# readers, in the child


def tensors_text(tensors: dict) -> str:
    """What tells tensors from others."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].contiguous().cpu()
        found.update(f"{name} {array.dtype} {tuple(array.shape)}".encode() + array.view(-1).numpy().tobytes())
    return found.hexdigest()


def read_weights(path: Path) -> object:
    from streamseg.models import checkpoint

    model, description = checkpoint.read_checkpoint(path)
    assert checkpoint.describe(path) == description
    return tensors_text(model.state_dict()), description


def read_stream_state(path: Path) -> object:
    import streamseg

    state = streamseg.load_state(path)
    return tensors_text({"contexts": state.contexts, "coarse": state.low_res_labels}), state.weights, state.seconds


def read_exported(path: Path) -> object:
    import torch

    from streamseg import label_frame
    from streamseg.engine.runtime import open_exported

    path = path.with_name("fixed.xml") if path.suffix == ".bin" else path
    file = open_exported(path, trust=True)
    frame = torch.randint(256, (3, 72, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return file.manifest, tensors_text({"labels": label_frame(file, frame)[0]})


def read_untrusted(path: Path) -> object:
    from streamseg.engine.runtime import open_exported

    open_exported(path)
    raise AssertionError("A program ran that nobody trusts.")


def read_encoder(path: Path) -> object:
    import torch

    from streamseg.models.encoder import load_imagenet, resnet18

    torch.manual_seed(0)
    encoder = resnet18()
    load_imagenet(encoder, path)
    return tensors_text(encoder.state_dict())


def read_training_state(path: Path) -> object:
    import torch
    from torch import nn

    from streamseg.train import resume

    torch.manual_seed(1)
    part = nn.Linear(64, 64)
    step = resume.restore_state(path.parent, {"batch": 2, "leave_out": ""}, {"trainee": part})
    return step, tensors_text(part.state_dict())


def read_run(path: Path) -> object:
    from streamseg.evaluate import reproduce
    from streamseg.train import runlog

    if path.name == "run.json":
        with suppress(ValueError):
            reproduce.read_run_summary(path)
        return runlog.read_sessions(path)
    runlog.RunLog(path.parent, 7, False)
    return runlog.summarise(path)


def read_data(path: Path) -> object:
    from streamseg.data.datasets import DATASETS
    from streamseg.evaluate.check import check, format_report

    data = next(folder for folder in path.parents if folder.name == "data")
    told = format_report(check("folder", data)).replace(str(data), "data")
    return told, sum(len(labels) for split in ("train", "val") for _, labels in DATASETS["folder"](data, split))


def read_shards(path: Path) -> object:
    from streamseg.data.shards import open_dataset

    found = {}
    for split in ("train", "val"):
        dataset = open_dataset("folder", path.parent, split)
        for i, (frame, labels) in enumerate(dataset):
            found |= {f"{split}{i}": frame, f"{split}{i}labels": labels}
    return tensors_text(found), dataset.classes


def read_picture(path: Path) -> object:
    from streamseg.io.images import decode_upload, read_image, read_label_ids

    for read in (read_label_ids, lambda path: decode_upload(path.read_bytes(), 10**7)):
        with suppress(ValueError):
            read(path)
    return tensors_text({"": read_image(path)})


def read_named(path: Path) -> object:
    from streamseg import read_frames

    return [tensors_text({"": frame}) for frame in read_frames(path)]


def read_labels(path: Path) -> object:
    from streamseg.io.video_reading import read_label_video

    return [tensors_text({"": labels}) for labels, _ in read_label_video(path)]


def read_archive(path: Path) -> object:
    from streamseg.deploy import archive
    from streamseg.stream.state import LastFrames

    out = str(path.parent)
    archive.open_archive(out, archive.describe_archive(archive.ArchiveSettings(None, LastFrames(1)), "/videos"))
    return archive.count_frames(out), archive.find_finished(out)


DATA = ("data",)
KINDS = {
    "weights": Kind("w.safetensors", read_weights, True, share=12),
    "bundled weights": Kind("bundled.safetensors", read_weights, True, share=2),
    "state of a stream": Kind("s.safetensors", read_stream_state, True, share=8),
    "ONNX": Kind("still.onnx", read_exported, True, share=6),
    "ONNX without a checksum": Kind("older.onnx", read_exported, share=6),
    "OpenVINO .xml": Kind("fixed.xml", read_exported, True, ("fixed.bin",)),
    "OpenVINO .bin": Kind("fixed.bin", read_exported, True, ("fixed.xml",)),
    ".pt2, not trusted": Kind("fixed.pt2", read_untrusted, share=2),
    ".pt2, trusted": Kind("fixed.pt2", read_exported, True, share=2),
    "encoder .pth": Kind("encoder.pth", read_encoder, True, share=2),
    "encoder .safetensors": Kind("encoder.safetensors", read_encoder, share=2),
    "state of a training": Kind("state.pt", read_training_state, True, share=8),
    "run.json": Kind("run.json", read_run),
    "log.jsonl": Kind("log.jsonl", read_run),
    "classes.txt": Kind("data/classes.txt", read_data, beside=DATA, share=8),
    "list of a split": Kind("data/train.txt", read_data, beside=DATA),
    "image of a data set": Kind("data/images/3.png", read_data, beside=DATA),
    "mask of a data set": Kind("data/labels/4.png", read_data, beside=DATA),
    "index of shards": Kind("shards/train.json", read_shards, True, ("shards",)),
    "shard": Kind("shards/train-00000.tar", read_shards, True, ("shards",)),
    "PNG": Kind("a.png", read_picture),
    "PNG of 16 bits": Kind("deep.png", read_picture),
    "JPEG": Kind("a.jpg", read_picture),
    "WebP": Kind("a.webp", read_picture),
    "BMP": Kind("a.bmp", read_picture, share=2),
    "TIFF": Kind("a.tiff", read_picture),
    "GIF": Kind("a.gif", read_named, share=2),
    "list of pictures": Kind("list.txt", read_named, beside=("a.png", "a.jpg")),
    "MP4": Kind("a.mp4", read_named, share=6),
    "MP4 with sound": Kind("sound.mp4", read_named),
    "MKV": Kind("a.mkv", read_named, share=6),
    "WebM": Kind("a.webm", read_named, share=6),
    "AVI": Kind("a.avi", read_named),
    "transport stream": Kind("a.ts", read_named),
    "video of labels": Kind("labels.mkv", read_labels, True),
    "settings of an archive": Kind("archive/archive.json", read_archive, beside=("archive",), share=2),
    "statistics of a video": Kind("archive/frames.parquet", read_archive, beside=("archive",), share=2),
}


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
    """Numbers in a header become extreme."""
    for _ in range(dice.choice((1, 3))):
        start = dice.randrange(min(len(data), dice.choice((16, 128, 2048))))
        data[start : start + 4] = dice.choice(
            (b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", dice.randbytes(4))
        )


def edit_text(dice: random.Random, data: bytearray) -> None:
    """Numbers and words of a text, such as JSON in a header, become others."""
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
    """Which kind is damaged, and with which seed: each kind by its share, and each at least once if there is room."""
    names = [name for name, kind in KINDS.items() for _ in range(kind.share)]
    order = [*KINDS, *random.Random(seed).sample(names, len(names))]
    return [(order[i % len(order)], seed * 1_000_003 + i) for i in range(files)]


def damage(kind: Kind, originals: Path, folder: Path, number: int) -> tuple[Path, str]:
    """Copy what a kind needs into a folder and damage it; returns its path, and how it was damaged."""
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


# the child: a line in, a line out


def attempt(kind: Kind, path: Path, expected: str | None) -> tuple[str, str]:
    """What came of reading a file: same, other, told, or what must not be; and a sentence about it."""
    try:
        found = repr(kind.read(path))
    except (ValueError, OSError, MemoryError) as error:  # what the command line says in a sentence
        text = str(error)
        folder = str(path.parent)
        # the command line leaves out what a terminal cannot show
        fine = "\n" not in text and text.endswith(".") and (path.name in text or folder in text)
        return ("told" if fine else "badly told"), text
    except BaseException as error:
        return "traceback", f"{type(error).__name__}: {error}"
    return ("same" if found == expected else "other"), ""


def child(originals: Path) -> None:
    """Read damaged files, each named in a line on standard input, and answer each in a line."""
    import logging
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
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


# the parent


class Child:
    """The process that reads; a new one after each crash or hang."""

    def __init__(self, originals: Path):
        command = [sys.executable, __file__, "--child", str(originals)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self.ready = selectors.DefaultSelector()
        self.ready.register(self.process.stdout, selectors.EVENT_READ)

    def ask(self, name: str, number: int) -> tuple[str, str, str]:
        """What came of a file."""
        try:
            self.process.stdin.write(json.dumps([name, number]).encode() + b"\n")
            self.process.stdin.flush()
            if not self.ready.select(WATCHDOG):
                return "hang", "", f"no answer in {WATCHDOG:.0f} s"
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
    """Kind, seed, outcome, damage and sentence of each of so many damaged files."""
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
    """Whether what came of a file must not be."""
    return outcome in ("traceback", "badly told", "hang", "crash") or (KINDS[name].has_checksum and outcome == "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--originals", type=Path, help="keep the whole files here, and use those that are there")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child)
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
    outcomes = ("told", "same", "other", "badly told", "traceback", "crash", "hang")
    print(f"{'':26}" + "".join(f"{outcome:>11}" for outcome in outcomes))
    total: Counter = sum(counts.values(), Counter())
    for name, found in [*counts.items(), ("all", total)]:
        print(f"{name:26}" + "".join(f"{found[outcome]:>11}" for outcome in outcomes))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
