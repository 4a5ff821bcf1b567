"""How many threads the command line leaves to a network on the CPU."""

from types import SimpleNamespace

import pytest
import torch

import streamseg
from streamseg.cli import options, segmenting, serving
from streamseg.engine.engine import to_engine
from streamseg.engine.steadying import STEADY_LOW
from streamseg.models.video import VIDEO_METHODS
from streamseg.stream.state import LastFrames


@pytest.mark.parametrize(
    ("cores", "steady", "chosen", "expected"),
    [(8, "", "", 7), (8, "high", "", 7), (8, "off", "", 8), (8, "1", "", 8), (8, "", "8", 8), (7, "", "", 7)],
)
def test_segment_and_serve_leave_a_core_of_many_to_steady_labels(
    monkeypatch, tmp_path, model, cores, steady, chosen, expected
):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    monkeypatch.setattr(options, "available_cores", lambda: cores)
    path = tmp_path / "weights.safetensors"
    streamseg.save(model, streamseg.CAMVID, path)
    try:
        for open_network in (
            lambda: segmenting.open_model(segmenting.SegmentOptions(weights=path, steady=steady, device="cpu")),
            lambda: serving.open_served(path, "cpu", "", None, False, "", steady=steady),
        ):
            torch.set_num_threads(8)
            open_network()
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_no_core_is_left_by_a_network_on_a_gpu_or_a_video_method(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr(options, "available_cores", lambda: 8)
    steady = LastFrames(1, steady=STEADY_LOW)
    method = to_engine(VIDEO_METHODS["copy-swiftnet18"](5).eval())
    try:
        torch.set_num_threads(8)
        options.leave_core(method, steady)
        options.leave_core(SimpleNamespace(device=torch.device("cuda")), steady)
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)
