"""Fixtures of all tests: small random networks, pictures and data sets; nothing is downloaded."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# tests start many processes that import torch: where Python may not write bytecode beside the sources, keep it in
# another folder instead of compiling it in each process
if sys.dont_write_bytecode:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parent.parent / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

import numpy
import pytest
import torch
from PIL import Image

import streamseg

# torch's objects stay: the garbage collector need not visit them
gc.freeze()
# test processes and their children share the cores
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# keep freed memory for the next test instead of returning it to the system
os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
# without a GPU Triton kernels run in its interpreter, which must be set before Triton is imported
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Start with the longest test, so that no process waits for it at the end.

    Tests that need exported files follow, in one process: two processes would wait for the same file.
    """
    items.sort(key=lambda item: (item.path.stem != "test_distributed", "exported" not in item.fixturenames))


@pytest.fixture(scope="session", autouse=True)
def restore_ctrl_c() -> Iterator[None]:
    """Undo that a shell lets background processes, and their children, ignore Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def restore_pixel_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo that --tile raises the limit for the whole process."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)


@pytest.fixture(scope="session")
def model() -> streamseg.FANet:
    """FANet-18 for CamVid's classes: random weights, with batch norm statistics as after training."""
    torch.manual_seed(0)
    return warm_up(streamseg.fanet18(classes=11))


@pytest.fixture(scope="session")
def plus() -> streamseg.FANetPlus:
    """FANet+ with a ResNet-18, like `model`; its attention has its usual share, so that a past shows."""
    torch.manual_seed(0)
    network = streamseg.fanetplus18(classes=11)
    for attend in network.attentions:
        torch.nn.init.ones_(attend.out[1].weight)
    return warm_up(network)


def warm_up(network):
    """Set the statistics of batch norm, and return the network in evaluation mode."""
    with torch.no_grad():
        for _ in range(20):
            network(255 * torch.rand(2, 3, 64, 96))
    return network.eval()


@pytest.fixture
def image() -> torch.Tensor:
    return torch.randint(0, 256, (1, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def paint() -> Callable[[Path, list[tuple[int, int]]], Path]:
    """Write a data set in the layout of `folder`: red boxes and blue discs on grey, with noise."""

    def paint(folder: Path, sizes: list[tuple[int, int]]) -> Path:
        random = numpy.random.default_rng(0)
        colours = numpy.array([[90, 90, 90], [200, 60, 60], [60, 60, 200]])
        for kind in ("images", "labels"):
            (folder / kind).mkdir(parents=True)
        (folder / "classes.txt").write_text("ground\nbox\ndisc #0000ff\n")
        for i, (height, width) in enumerate(sizes):
            y, x = numpy.mgrid[:height, :width]
            top, left, radius = random.integers(4, height // 2), random.integers(4, width // 2), height // 4
            labels = numpy.zeros((height, width), numpy.uint8)
            labels[top : top + height // 3, left : left + width // 3] = 1
            labels[(y - height + radius) ** 2 + (x - width + radius + left // 2) ** 2 < radius**2] = 2
            picture = (colours[labels] + random.normal(0, 20, (height, width, 3))).clip(0, 255)
            Image.fromarray(picture.astype(numpy.uint8)).save(folder / "images" / f"{i}.png")
            Image.fromarray(labels).save(folder / "labels" / f"{i}.png")
        return folder

    return paint


@pytest.fixture(scope="session")
def toy(paint, tmp_path_factory) -> Path:
    """A data set of 8 pictures and 3 classes; 7 pictures are train, one is val."""
    return paint(tmp_path_factory.mktemp("data") / "toy", [(64, 96)] * 8)


@pytest.fixture(scope="session")
def drive(tmp_path_factory) -> Path:
    """CamVid in miniature: recordings of 4 and 3 frames at 1 Hz for train, one of 3 for val; each frame one grey."""
    folder = tmp_path_factory.mktemp("data") / "drive"
    names = {
        "train": [f"0001TP_{30 * i:06}" for i in range(4)] + [f"0006R0_f{30 * i:05}" for i in range(3)],
        "val": [f"0016E5_{7959 + 2 * i:05}" for i in range(3)],
    }
    random = numpy.random.default_rng(0)
    for split, stems in names.items():
        for part in (split, f"{split}annot"):
            (folder / part).mkdir(parents=True)
        (folder / f"{split}.txt").write_text("\n".join(stems) + "\n")
        for i, stem in enumerate(stems):
            Image.new("RGB", (96, 72), (20 * i + 10,) * 3).save(folder / split / f"{stem}.png")
            labels = random.integers(0, 12, (72, 96), dtype=numpy.uint8)
            Image.fromarray(labels).save(folder / f"{split}annot" / f"{stem}.png")
    return folder
