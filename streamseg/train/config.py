"""How networks are trained: the settings of a run, and the recipes. Standard library only."""

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

FANET_OPTIONS = ("window", "attention", "key_channels", "reduction", "reduce_by", "averages")
"""The settings that rivals of FANet have no use for."""


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a training run. A run writes its own beside its weights."""

    dataset: Literal["cityscapes", "camvid", "coco-stuff", "ade20k", "folder"]
    """Which data set, and so which layout of the data folder."""
    network: Literal[
        "fanet18",
        "fanet34",
        "segnet",
        "enet",
        "icnet",
        "erfnet",
        "bisenet18",
        "shelfnet18",
        "swiftnet18",
        "fcn16s",
        "fcn8s",
        "deeplab",
    ]
    """Which network: a FANet, or one of its rivals, which take none of the options of FANets."""
    crop: tuple[int, int]
    """Height and width of the training crops."""
    iterations: int
    """How many batches to train on."""
    split: str = "train"
    """The part of the data set to train on."""
    leave_out: str = ""
    """Leave out frames whose file name starts so: a recording to measure on."""
    validate: str = "val"
    """The part to measure on while training; empty for none."""
    validate_every: int = 1000
    """Iterations between measurements; there is one at the end too."""
    batch: int = 16
    """Images a batch, over all processes."""
    accumulate: int = 1
    """Compute each batch in so many parts, where memory does not hold it at once; batch norm sees a part at a time."""
    scale: tuple[float, float] = (0.75, 2.0)
    """Range of the random scale."""
    jitter: float = 0.5
    """Brightness, contrast and saturation are multiplied by 1 ± this."""
    mixing: float = 0.0
    """Share of the images that get half of the classes from another one of the batch (ClassMix); none in clips."""
    window: int = 1
    """How many frames of a video a clip has; each clip looks at 1 to so many of them, so that any number works."""
    attention: Literal["fast", "dot", "self", "channel", "none"] = "fast"
    """Which attention a FANet has; dot is fast without the L2 normalisation, self has a softmax."""
    key_channels: int = 32
    """Channels of a FANet's query and key, the paper's c'."""
    reduction: Literal["None", "Conv-0", "Res-1", "Res-2", "Res-3", "Res-4"] = "Res-1"
    """Where a FANet has its extra spatial reduction."""
    reduce_by: Literal["stride", "average", "max"] = "stride"
    """How it reduces: by a doubled stride, or by a pooling."""
    averages: bool = False
    """Whether the network attends to the mean of the frames in the window, rather than to their sum."""
    gentle: bool = False
    """Whether a FANet from ImageNet begins close to the network that it comes from: Res-1's new shortcut passes on what
    it is given, and attention adds little."""
    optimiser: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum 0.9, or AdamW."""
    rate: float = 1e-2
    """Learning rate at the start; it falls as (1 - progress)^0.9."""
    encoder_rate: float = 1.0
    """Learning rate of the encoder, as a share of the rate."""
    weight_decay: float = 5e-4
    """Of convolutions; batch norm has none."""
    warm_up: float = 0.0
    """Share of the iterations in which the rate rises from 0."""
    clip: float = 0.0
    """Largest norm of the gradient; 0 for no limit."""
    auxiliary: float = 0.0
    """Weight of the losses of auxiliary heads on the deep maps, in a FANet those of Res-3 and Res-4."""
    hard_pixels: float = 0.0
    """Count only pixels whose class has less than this probability (OHEM); 0 counts all."""
    class_weighting: float = 0.0
    """Weigh classes by their frequency to the power of minus this; 0 weighs all alike."""
    overlap: float = 0.0
    """Weight of a soft IoU loss."""
    steadiness: float = 0.0
    """Weight of a loss for probabilities that change when the camera moves a little."""
    ema: float = 0.0
    """Keep a moving average of the weights with this memory, and measure and save that; 0 for none."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Of the network's arithmetic on a GPU; the CPU computes in fp32."""
    seed: int = 0
    """Of everything random."""

    def check(self) -> None:
        """Raise a ValueError if no run can have such settings."""
        fanet = self.network.startswith("fanet")
        at_once = self.batch // max(1, self.accumulate)
        usual = {field.name: field.default for field in fields(self) if field.name in FANET_OPTIONS}
        for name, fine, expected in (
            *(
                (name, fanet or getattr(self, name) == value, f"{value}: only FANets have this option")
                for name, value in usual.items()
            ),
            ("crop", min(self.crop) >= 32, "32 pixels or more each way"),
            ("iterations", self.iterations >= 1, "1 or more"),
            ("validate_every", self.validate_every >= 1, "1 or more"),
            ("batch", self.batch >= 1, "1 or more"),
            ("accumulate", self.accumulate >= 1, "1 or more"),
            ("accumulate", self.batch % max(1, self.accumulate) == 0, f"a part of the batch of {self.batch}"),
            ("batch", at_once > 1 or max(self.crop) > 64, "2 or more with so small a crop, for batch norm"),
            (
                "batch",
                at_once > 1 or self.network not in ("bisenet18", "shelfnet18"),
                f"2 or more for {self.network}, which has batch norm of one number an image",
            ),
            ("scale", 0 < self.scale[0] <= self.scale[1] < math.inf, "two numbers above 0, the lower one first"),
            ("jitter", 0 <= self.jitter <= 1, "0 to 1"),
            ("mixing", 0 <= self.mixing <= 1, "0 to 1"),
            ("window", 1 <= self.window <= 1024, "1 to 1024"),
            ("window", self.window == 1 or self.attention in ("fast", "dot"), "1: this attention has no past"),
            ("key_channels", 1 <= self.key_channels <= 1024, "1 to 1024"),
            ("mixing", not self.mixing or self.window == 1, "0 with a window: frames of a video are not mixed"),
            ("rate", 0 < self.rate < math.inf, "more than 0"),
            ("encoder_rate", 0 <= self.encoder_rate < math.inf, "0 or more"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "0 or more"),
            ("warm_up", 0 <= self.warm_up < 1, "0 to less than 1"),
            ("clip", 0 <= self.clip < math.inf, "0 or more"),
            ("auxiliary", 0 <= self.auxiliary < math.inf, "0 or more"),
            ("hard_pixels", 0 <= self.hard_pixels < 1, "0 to less than 1"),
            ("class_weighting", 0 <= self.class_weighting <= 1, "0 to 1"),
            ("overlap", 0 <= self.overlap < math.inf, "0 or more"),
            ("steadiness", 0 <= self.steadiness < math.inf, "0 or more"),
            ("ema", 0 <= self.ema < 1, "0 to less than 1"),
        ):
            if not fine:
                raise ValueError(f"{name} is {getattr(self, name)}; expected {expected}.")


class Recipe(NamedTuple):
    """A way to train."""

    about: str
    config: TrainConfig


def better(config: TrainConfig) -> TrainConfig:
    """A recipe of the paper with what we change of it; docs/training.md has what each change gave."""
    return replace(
        config,
        scale=(0.5, 2.0),
        mixing=0.5,
        optimiser="adamw",
        rate=2e-3,
        encoder_rate=0.25,
        weight_decay=0.05,
        warm_up=0.03,
        clip=5.0,
        auxiliary=0.4,
        class_weighting=0.4,
        overlap=1.0,
        ema=0.999,
    )


def video(config: TrainConfig) -> TrainConfig:
    """A recipe that goes on from weights of single images, on clips."""
    return replace(better(config), mixing=0.0, window=4, averages=True, rate=5e-4)


CAMVID = TrainConfig(dataset="camvid", network="fanet18", crop=(720, 960), iterations=6_000)
CITYSCAPES = TrainConfig(dataset="cityscapes", network="fanet18", crop=(768, 1536), iterations=40_000)
COCO_STUFF = TrainConfig(dataset="coco-stuff", network="fanet18", crop=(640, 640), iterations=40_000)
FOLDER = TrainConfig(dataset="folder", network="fanet18", crop=(512, 512), iterations=2_000)

RECIPES = {
    "camvid-18": Recipe(
        "FANet-18 on CamVid, our best: the beginning of the weights that ship, 8 minutes on an H200.",
        better(replace(CAMVID, iterations=10_000)),
    ),
    "camvid-34": Recipe("FANet-34 on CamVid, our best.", better(replace(CAMVID, iterations=10_000, network="fanet34"))),
    "camvid-video-18": Recipe(
        "FANet-18 on clips of CamVid, from image weights (--initial FILE): the end of the weights that ship.",
        video(replace(CAMVID, iterations=3_000)),
    ),
    "camvid-video-34": Recipe(
        "FANet-34 on clips of CamVid, from image weights: --initial FILE.",
        video(replace(CAMVID, iterations=3_000, network="fanet34")),
    ),
    "cityscapes-18": Recipe("FANet-18 on Cityscapes, as our best on CamVid.", better(CITYSCAPES)),
    "cityscapes-34": Recipe(
        "FANet-34 on Cityscapes, as our best on CamVid.", better(replace(CITYSCAPES, network="fanet34"))
    ),
    "cityscapes-video-18": Recipe(
        "FANet-18 on clips of Cityscapes' leftImg8bit_sequence, from image weights: --initial FILE.",
        video(replace(CITYSCAPES, iterations=10_000)),
    ),
    "cityscapes-video-34": Recipe(
        "FANet-34 on clips of Cityscapes' leftImg8bit_sequence, from image weights: --initial FILE.",
        video(replace(CITYSCAPES, iterations=10_000, network="fanet34")),
    ),
    "folder-18": Recipe("FANet-18 on one's own pictures.", replace(better(FOLDER), gentle=True)),
    "paper-camvid-18": Recipe("FANet-18 on CamVid as in the paper (69.0 mIoU on test there).", CAMVID),
    "paper-camvid-34": Recipe(
        "FANet-34 on CamVid as in the paper (70.1 mIoU on test there).", replace(CAMVID, network="fanet34")
    ),
    "paper-cityscapes-18": Recipe("FANet-18 on Cityscapes as in the paper (75.0 mIoU on val there).", CITYSCAPES),
    "paper-cityscapes-34": Recipe(
        "FANet-34 on Cityscapes as in the paper (76.3 mIoU on val there).", replace(CITYSCAPES, network="fanet34")
    ),
    "paper-coco-stuff-18": Recipe("FANet-18 on COCO-Stuff 10k as in the paper (27.8 mIoU there).", COCO_STUFF),
    "paper-coco-stuff-34": Recipe(
        "FANet-34 on COCO-Stuff 10k as in the paper (29.5 mIoU there).", replace(COCO_STUFF, network="fanet34")
    ),
}
