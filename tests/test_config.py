import re
import subprocess
import sys
from dataclasses import replace

import pytest

from streamseg.checkpoint import NETWORKS
from streamseg.config import RECIPES
from streamseg.datasets import DATASETS
from streamseg.train import PRECISIONS


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_be_run(name):
    config = RECIPES[name].config
    config.check()
    assert config.dataset in DATASETS
    assert config.precision in PRECISIONS
    assert config.network in NETWORKS


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_called_after_its_data_set_and_network(name):
    config = RECIPES[name].config
    clips = "video-" if config.window > 1 else ""
    assert name.removeprefix("paper-") == f"{config.dataset}-{clips}{config.network.removeprefix('fanet')}"


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("paper-")])
def test_a_recipe_of_the_paper_has_the_papers_settings(name):
    config = RECIPES[name].config
    assert (config.optimiser, config.rate, config.weight_decay) == ("sgd", 1e-2, 5e-4)
    assert (config.batch, config.scale) == (16, (0.75, 2.0))
    assert config.crop == {"camvid": (720, 960), "cityscapes": (768, 1536), "coco-stuff": (640, 640)}[config.dataset]
    # and nothing that the paper does not speak of
    ours = ("mixing", "warm_up", "clip", "auxiliary", "hard_pixels", "class_weighting", "overlap", "ema")
    assert all(getattr(config, name) == 0 for name in ours)
    assert (config.encoder_rate, config.jitter, config.split) == (1, 0.5, "train")
    assert (config.window, config.averages) == (1, False)


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("crop", (16, 64), "32 pixels or more each way"),
        ("iterations", 0, "1 or more"),
        ("window", 0, "1 to 1024"),
        ("validate_every", 0, "1 or more"),
        ("batch", -2, "1 or more"),
        ("scale", (2.0, 0.5), "two numbers above 0, the lower one first"),
        ("scale", (0.0, 1.0), "two numbers above 0, the lower one first"),
        ("jitter", 1.5, "0 to 1"),
        ("rate", 0.0, "more than 0"),
        ("rate", float("nan"), "more than 0"),
        ("ema", 1.0, "0 to less than 1"),
        ("warm_up", 1.0, "0 to less than 1"),
        ("warm_up", -0.1, "0 to less than 1"),
        ("hard_pixels", 70.0, "0 to less than 1"),
        ("mixing", 7.0, "0 to 1"),
        ("class_weighting", -3.0, "0 to 1"),
        ("overlap", -1.0, "0 or more"),
        ("clip", -1.0, "0 or more"),
        ("weight_decay", -1.0, "0 or more"),
        ("encoder_rate", -1.0, "0 or more"),
        ("auxiliary", float("nan"), "0 or more"),
        ("rate", float("inf"), "more than 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(setting, value, expected):
    config = replace(RECIPES["folder-18"].config, **{setting: value})
    with pytest.raises(ValueError, match=re.escape(f"{setting} is {value}; expected {expected}.")):
        config.check()


def test_the_settings_need_the_standard_library_only():
    program = "import sys; before = set(sys.modules); import streamseg.config; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()} - {"streamseg"}
    assert packages <= sys.stdlib_module_names
