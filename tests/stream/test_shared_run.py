"""What the threads of a run share."""

from types import SimpleNamespace

import pytest
import torch

from streamseg.io import codec_pool
from streamseg.stream.shared_run import SharedRun, uses_codec_processes

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")


@pytest.mark.parametrize(("hardware", "apart"), [("", True), ("cuda", False)])
def test_a_hardware_decoder_runs_in_this_process(hardware, apart):
    shared = SimpleNamespace(on_device=True, device=torch.device("cpu"), hardware=hardware, codec_processes=True)
    assert SharedRun.decoding.fget(shared).process == apart


@pytest.mark.parametrize(
    ("on_device", "setting", "expected"),
    [(True, None, True), (False, None, False), (True, "threads", False), (False, "processes", True)],
)
def test_beside_a_gpu_codecs_have_processes(monkeypatch, on_device, setting, expected):
    monkeypatch.delenv("STREAMSEG_CODECS", raising=False)
    if setting:
        monkeypatch.setenv("STREAMSEG_CODECS", setting)
    assert uses_codec_processes(on_device) == expected
    monkeypatch.setattr(codec_pool, "are_possible", lambda: False)
    assert not uses_codec_processes(on_device)
