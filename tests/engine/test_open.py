import pytest
import torch
from exports import exported as exported

import streamseg
from streamseg.engine.engine import EagerEngine, ImageEngine
from streamseg.engine.fast import FastEngine
from streamseg.engine.open import open_engine
from streamseg.engine.runtime import ExportedEngine
from streamseg.models import baselines
from streamseg.models.bundled import find_weights

CPU = torch.device("cpu")


def test_without_a_file_the_bundled_weights_are_opened_in_their_fast_form():
    engine, classes, window = open_engine(None, CPU)
    assert isinstance(engine, FastEngine)
    assert classes == streamseg.load()[1]
    assert window == streamseg.describe(find_weights()).window


def test_eager_keeps_the_network_itself_in_the_wanted_precision():
    engine, *_ = open_engine(None, CPU, "bf16", eager=True)
    assert isinstance(engine, EagerEngine)
    assert engine.model.mean.dtype == torch.bfloat16


def test_a_checkpoint_says_how_many_frames_it_was_trained_on(model, tmp_path):
    streamseg.save(model, streamseg.CAMVID, tmp_path / "a.safetensors", window=3)
    assert open_engine(tmp_path / "a.safetensors", CPU).window == 3


def test_a_baseline_is_an_engine_without_context(tmp_path):
    streamseg.save(baselines.enet(11).eval(), streamseg.CAMVID, tmp_path / "a.safetensors")
    engine, *_ = open_engine(tmp_path / "a.safetensors", CPU)
    assert isinstance(engine, ImageEngine)
    assert engine.context_shape == (0, 0)


@pytest.mark.parametrize("name", ["any.onnx"])
def test_an_exported_file_without_state_has_a_window_of_one(exported, name):
    engine, classes, window = open_engine(exported(name), CPU)
    assert isinstance(engine, ExportedEngine)
    assert classes == engine.manifest.classes
    assert window == (engine.manifest.window if engine.manifest.state else 1)
