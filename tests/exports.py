"""A small network and its exported files, shared by tests because tracing is slow for any network."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from torch.nn import functional as F

import streamseg
from streamseg.deploy.export import export_program, quiet_exporters, write_onnx, write_openvino, write_torch
from streamseg.engine.runtime import Manifest
from streamseg.models.encoder import ResNet

SIZE = (72, 96)


def small(seed=0):
    """Return a FANet for CamVid with one block per stage, which averages over its window."""
    torch.manual_seed(seed)
    encoder = ResNet((1, 1, 1, 1), "Res-1", "stride")
    return warm_up(streamseg.FANet(encoder, 11, streamseg.FastAttention, key_channels=8, averages=True))


def small_plus(seed=0):
    """Return a FANet+ like small(); its attention has its usual share, so that the past shows."""
    torch.manual_seed(seed)
    encoder = ResNet((1, 1, 1, 1), "Res-4", "average")
    network = streamseg.FANetPlus(encoder, 11, streamseg.FastAttention, key_channels=8, averages=True)
    for attend in network.attentions:
        torch.nn.init.constant_(attend.out[1].weight, 3.0)
    return warm_up(network)


def warm_up(network):
    with torch.no_grad():
        for _ in range(20):
            network(255 * torch.rand(2, 3, *SIZE))
    return network.eval()


def moving(number, height=SIZE[0], width=SIZE[1]):
    """Return frames of a panning camera: each is two pixels further to the right in a wide picture."""
    coarse = 255 * torch.rand(1, 3, height // 8, 2 * width // 8, generator=torch.Generator().manual_seed(0))
    wide = F.interpolate(coarse, (height, 2 * width + 2 * number), mode="bilinear")[0].byte()
    return [wide[:, :, 2 * i : 2 * i + width].contiguous() for i in range(number)]


def manifest(network, size, video):
    """Return the manifest of an exported network; a video one has the state of a stream and confidence."""
    return Manifest(
        classes=streamseg.CAMVID,
        size=size,
        state=tuple(attend.context_shape for attend in network.attentions) if video else (),
        confidence=video,
        window=3,
        averages=network.averages,
        precision="fp32",
        source="a test",
        min_side=network.min_free_side,
    )


def make(folder, kind):
    """Write the files of a kind (any, fixed, still, plus, plus-any; see exported) into a folder, unless they exist."""
    with FileLock(folder / f"{kind}.lock"), quiet_exporters():
        if (folder / f"{kind}.done").exists():
            return
        network = small_plus() if kind.startswith("plus") else small()
        about = manifest(network, None if kind.endswith("any") else SIZE, video=kind != "still")
        program = export_program(network, about)
        if kind in ("fixed", "plus"):
            write_torch(program, about, folder / f"{kind}.pt2")
            write_openvino(program, about, folder / f"{kind}.xml")
        else:
            write_onnx(program, about, folder / f"{kind}.onnx")
        (folder / f"{kind}.done").touch()


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that gives the path of an exported file of small(), written once for all test processes.

    any.onnx takes frames of any size and has the state of a stream; fixed.xml (with fixed.bin) and fixed.pt2 have it
    for frames of SIZE; still.onnx, also for SIZE, does not. plus-any.onnx, plus.xml and plus.pt2 are of small_plus().
    """
    for library in ("onnx", "onnxscript", "onnxruntime", "openvino"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install 'streamseg[export]'")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exported"
    folder.mkdir(exist_ok=True)

    def path_of(name: str) -> Path:
        make(folder, Path(name).stem)
        return folder / name

    return path_of
