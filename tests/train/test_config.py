import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from streamseg.data.datasets import DATASETS
from streamseg.models.attention import ATTENTIONS
from streamseg.models.baselines import BASELINES
from streamseg.models.checkpoint import FANETS
from streamseg.models.encoder import ReduceBy, Reduction
from streamseg.models.video import VIDEO_METHODS
from streamseg.train.config import OLD_NAMES, RECIPES, TrainConfig, check_share
from streamseg.train.setup import ATTENTION_OPTIONS as NAMES, AUTOCAST_DTYPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_be_run(name):
    config = RECIPES[name].config
    config.check()
    assert config.dataset in DATASETS
    assert config.precision in AUTOCAST_DTYPES
    assert config.network in FANETS


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_named_after_its_data_set_and_network(name):
    config = RECIPES[name].config
    clips = "video-" if config.window > 1 else ""
    data = {"street": ("camvid", "comma10k"), "road": ("comma10k", "none")}
    named = data.get(name.partition("-")[0], (name.removeprefix("paper-").removesuffix(f"-{name[-2:]}"), "none"))
    assert (config.dataset + ("-video" if clips else ""), config.with_dataset) == named
    assert name.endswith(f"-{clips}{config.network[-2:]}")


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("paper-")])
def test_a_recipe_of_the_paper_has_the_papers_settings(name):
    config = RECIPES[name].config
    assert (config.optimiser, config.learning_rate, config.weight_decay) == ("sgd", 1e-2, 5e-4)
    assert (config.batch, config.scale) == (16, (0.75, 2.0))
    assert config.crop == {"camvid": (720, 960), "cityscapes": (768, 1536), "coco-stuff": (640, 640)}[config.dataset]
    # and nothing that is not in the paper
    ours = (
        "classmix",
        "warm_up",
        "grad_clip",
        "auxiliary_loss",
        "ohem_threshold",
        "class_weighting",
        "iou_loss",
        "ema_decay",
    )
    assert all(getattr(config, name) == 0 for name in ours)
    assert (config.encoder_rate_factor, config.jitter, config.split) == (1, 0.5, "train")
    assert (config.window, config.averages) == (1, False)
    assert (config.with_dataset, config.class_table, config.light) == ("none", "", 0)
    assert (config.loss_stride, config.auxiliary_stride) == (1, 1)


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("crop", (16, 64), "at least 32 x 32 pixels"),
        ("iterations", 0, "1 or more"),
        ("window", 0, "1 to 1024"),
        ("validate_every", 0, "1 or more"),
        ("batch", -2, "1 or more"),
        ("scale", (2.0, 0.5), "two numbers above 0, the lower first"),
        ("scale", (0.0, 1.0), "two numbers above 0, the lower first"),
        ("jitter", 1.5, "0 to 1"),
        ("learning_rate", 0.0, "more than 0"),
        ("learning_rate", float("nan"), "more than 0"),
        ("ema_decay", 1.0, "0 to less than 1"),
        ("warm_up", 1.0, "0 to less than 1"),
        ("warm_up", -0.1, "0 to less than 1"),
        ("ohem_threshold", 70.0, "0 to less than 1"),
        ("classmix", 7.0, "0 to 1"),
        ("class_weighting", -3.0, "0 to 1"),
        ("iou_loss", -1.0, "0 or more"),
        ("grad_clip", -1.0, "0 or more"),
        ("weight_decay", -1.0, "0 or more"),
        ("encoder_rate_factor", -1.0, "0 or more"),
        ("auxiliary_loss", float("nan"), "0 or more"),
        ("learning_rate", float("inf"), "more than 0"),
        ("key_channels", 0, "1 to 1024"),
        ("light", 1.5, "0 to 1"),
        ("with_share", 0.0, "more than 0 and less than 1"),
        ("with_share", 1.0, "more than 0 and less than 1"),
        ("loss_stride", 0, "a divisor of both sides of the crop"),
        ("loss_stride", 3, "a divisor of both sides of the crop"),
        ("auxiliary_stride", 1024, "a divisor of both sides of the crop"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(setting, value, expected):
    config = replace(RECIPES["folder-18"].config, **{setting: value})
    with pytest.raises(ValueError, match=re.escape(f"{setting} is {value}; expected {expected}.")):
        config.check()


def test_the_choices_of_a_config_are_all_that_can_be_built():
    choices = {name: get_args(hint) for name, hint in get_type_hints(TrainConfig).items()}
    assert choices["network"] == (*FANETS, *BASELINES, *VIDEO_METHODS)
    assert choices["attention"] == tuple(NAMES)
    assert set(NAMES.values()) == set(ATTENTIONS)
    assert choices["reduction"] == get_args(Reduction)
    assert choices["reduce_by"] == get_args(ReduceBy)
    assert choices["dataset"] == tuple(DATASETS)
    assert choices["with_dataset"] == ("none", *DATASETS)
    assert choices["precision"] == tuple(AUTOCAST_DTYPES)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"network": "erfnet", "window": 4, "classmix": 0.0}, "window is 4; expected 1: only FANets have this option."),
        ({"network": "erfnet", "attention": "self"}, "attention is self; expected fast: only FANets have this option."),
        ({"network": "icnet", "key_channels": 8}, "key_channels is 8; expected 32: only FANets have this option."),
        ({"network": "icnet", "averages": True}, "averages is True; expected False: only FANets have this option."),
        ({"attention": "none", "window": 4, "classmix": 0.0}, "window is 4; expected 1: this attention has no past."),
        (
            {"network": "fanetplus18", "reduction": "Res-4"},
            "reduction is Res-4; expected Res-1: the reduction of a FANet+ is fixed.",
        ),
        (
            {"network": "fanetplus34", "reduce_by": "average"},
            "reduce_by is average; expected stride: the reduction of a FANet+ is fixed.",
        ),
        (
            {"network": "fanetplus18", "batch": 1, "crop": (85, 64)},
            "batch is 1; expected 2 or more with a crop this small, for batch norm.",
        ),
        (
            {"network": "bisenet18", "batch": 1},
            "batch is 1; expected 2 or more for bisenet18, which has batch norm on one value per image.",
        ),
        (
            {"with_split": "val"},
            "with_split is val; expected train without a second data set: name it with --with.",
        ),
        (
            {"with_leave_out": "a"},
            "with_leave_out is a; expected nothing without a second data set: name it with --with.",
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        replace(RECIPES["camvid-18"].config, **settings).check()


@pytest.mark.parametrize("settings", [{"window": 4, "averages": True, "classmix": 0.0}, {"identity_init": True}])
def test_a_fanet_plus_has_the_other_options_of_a_fanet(settings):
    config = replace(RECIPES["camvid-18"].config, network="fanetplus18", attention="dot", key_channels=8)
    replace(config, **settings).check()


def test_the_page_on_training_lists_the_former_names():
    page = (Path(__file__).parents[2] / "docs/training.md").read_text()
    listed = re.findall(r"^\| `--([a-z-]+)` \| `--([a-z-]+)` \|$", page, re.MULTILINE)
    assert {old.replace("-", "_"): new.replace("-", "_") for new, old in listed} == OLD_NAMES


def test_every_former_name_maps_to_one_setting():
    names = get_type_hints(TrainConfig)
    assert set(OLD_NAMES.values()) <= set(names)
    assert not set(OLD_NAMES) & set(names)
    assert len(set(OLD_NAMES.values())) == len(OLD_NAMES)


def test_the_config_imports_only_the_standard_library():
    loaded = "print(*(set(sys.modules) - before))"
    program = f"import sys; before = set(sys.modules); import streamseg.train.config; {loaded}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()} - {"streamseg"}
    assert packages <= sys.stdlib_module_names


def test_options_of_the_second_data_set_are_for_runs_with_one():
    street, mine = RECIPES["street-18"].config, RECIPES["folder-18"].config
    replace(street, with_dataset="none").check()  # which keeps the share of the recipe
    check_share(replace(street, with_dataset="none"), street)
    check_share(replace(mine, with_dataset="comma10k", with_share=0.3), mine)
    replace(mine, with_dataset="comma10k", with_split="val", with_leave_out="a").check()
    with pytest.raises(ValueError, match=r"^with_share is 0.3; expected 0.5 without a second data set: name it with "):
        check_share(replace(mine, with_share=0.3), mine)
