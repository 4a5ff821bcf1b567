"""Settings of a training run, and the recipes. Standard library only."""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

FANET_OPTIONS = ("window", "attention", "key_channels", "reduction", "reduce_by", "averages")
"""Settings that only FANets have; for a baseline they must keep their defaults."""

REDUCTION_OPTIONS = ("reduction", "reduce_by")
"""Those that must keep their defaults for a FANet+ too, whose reduction is fixed."""

OLD_NAMES = {
    "mixing": "classmix",
    "gentle": "identity_init",
    "rate": "learning_rate",
    "encoder_rate": "encoder_rate_factor",
    "clip": "grad_clip",
    "auxiliary": "auxiliary_loss",
    "hard_pixels": "ohem_threshold",
    "overlap": "iou_loss",
    "steadiness": "consistency_loss",
    "ema": "ema_decay",
}
"""Former names of settings: runs that were started before, and commands that were written before, use them."""


ALONE = "without a second data set: name it with --with"
"""Why an option of the second data set is refused."""

OPTION_NAMES = {"with_dataset": "with"}
"""Names of options that cannot be names in Python."""


def rename_old_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, as its files hold them, under the present names."""
    return {OLD_NAMES.get(name, name): value for name, value in settings.items()}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run. A run writes its settings beside its weights."""

    dataset: Literal["cityscapes", "camvid", "comma10k", "coco-stuff", "ade20k", "folder"]
    """Data set, which also sets the expected layout of the data folder."""
    network: Literal[
        "fanet18",
        "fanet34",
        "fanetplus18",
        "fanetplus34",
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
        "copy-swiftnet18",
        "clockwork-swiftnet18",
        "clockwork-pipelined-swiftnet18",
        "clockwork-adaptive-swiftnet18",
        "dff-swiftnet18",
        "accel-swiftnet18",
        "low-latency-swiftnet18",
        "dvsnet-swiftnet18",
        "netwarp-swiftnet18",
        "grfp-swiftnet18",
        "pearl-swiftnet18",
        "copy-fanet18",
        "clockwork-fanet18",
        "clockwork-pipelined-fanet18",
        "clockwork-adaptive-fanet18",
        "dff-fanet18",
        "accel-fanet18",
        "low-latency-fanet18",
        "dvsnet-fanet18",
        "netwarp-fanet18",
        "grfp-fanet18",
        "pearl-fanet18",
    ]
    """Network: a FANet, a FANet+, a baseline, or a video method on a backbone; only the first two have the FANet
    options, and a video method has a window."""
    crop: tuple[int, int]
    """Height and width of the training crops."""
    iterations: int
    """Number of batches to train on."""
    split: str = "train"
    """Split to train on."""
    leave_out: str = ""
    """Leave out frames whose file name starts with this, such as a recording to evaluate on, or devices of comma10k;
    several with commas between them."""
    with_dataset: Literal["none", "cityscapes", "camvid", "comma10k", "coco-stuff", "ade20k", "folder"] = "none"
    """Second data set to train on, in the folder --with-data."""
    with_split: str = "train"
    """Split of the second data set to train on."""
    with_leave_out: str = ""
    """Leave out frames of the second data set, in the same way."""
    with_share: float = 0.5
    """Share of the images of each batch that is taken from the second data set."""
    class_table: str = ""
    """The class table, which has the data sets' labels for each class of the network: street, or a file; empty if
    the labels are the classes."""
    mask: str = ""
    """A picture whose black pixels are ignored in frames, labels and contexts of the first data set, such as the own
    car; empty for none."""
    validate: str = "val"
    """Split to validate on, also of the second data set if it has one; empty for none."""
    validate_every: int = 1000
    """Iterations between validations; there is one at the end too."""
    batch: int = 16
    """Images per batch, over all processes."""
    accumulate: int = 1
    """Compute each batch in this many parts, if it does not fit into memory at once; batch norm sees one part at a
    time."""
    scale: tuple[float, float] = (0.75, 2.0)
    """Range of the random scale."""
    jitter: float = 0.5
    """Brightness, contrast and saturation are multiplied by 1 ± this."""
    light: float = 0.0
    """Strength of the changes of light, from 0 to 1: gamma, colour temperature, night, blur and noise."""
    classmix: float = 0.0
    """Share of the images that get half of the classes of another image in the batch (ClassMix); not with clips."""
    window: int = 1
    """Frames per video clip; each clip uses a random number of them, from 1 to this, so that any window works later."""
    moved_clips: bool = False
    """Make the frames before each frame of a video method's clip by small camera motions of the frame itself, for data
    whose frames are far apart, such as CamVid's train, with one a second."""
    attention: Literal["fast", "dot", "self", "channel", "none"] = "fast"
    """Attention of a FANet; dot is fast without the L2 normalisation, self has a softmax."""
    key_channels: int = 32
    """Channels of a FANet's query and key, the paper's c'."""
    reduction: Literal["None", "Conv-0", "Res-1", "Res-2", "Res-3", "Res-4"] = "Res-1"
    """Stage of a FANet with the extra spatial reduction; in a FANet+ it is always Res-4, by average pooling."""
    reduce_by: Literal["stride", "average", "max"] = "stride"
    """Kind of the extra reduction: a doubled stride, or average or max pooling."""
    averages: bool = False
    """Attend to the mean of the contexts in the window instead of their sum."""
    identity_init: bool = False
    """Start a FANet close to its ImageNet encoder: Res-1's new shortcut starts as the identity, and attention adds
    little. A FANet+ always starts so."""
    optimiser: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum 0.9, or AdamW."""
    learning_rate: float = 1e-2
    """Learning rate at the start; it decays as (1 - progress)^0.9."""
    encoder_rate_factor: float = 1.0
    """Learning rate of the encoder, relative to the learning rate."""
    weight_decay: float = 5e-4
    """Weight decay of convolutions; batch norm has none."""
    warm_up: float = 0.0
    """Share of the iterations in which the learning rate rises from 0."""
    grad_clip: float = 0.0
    """Maximum norm of the gradient; 0 for no limit."""
    auxiliary_loss: float = 0.0
    """Weight of the losses of the auxiliary heads on the deep feature maps, in a FANet those of Res-3 and Res-4."""
    ohem_threshold: float = 0.0
    """Count only pixels whose true class has a lower probability than this (OHEM); 0 counts all."""
    class_weighting: float = 0.0
    """Weight classes by frequency^-this; 0 gives all the same weight."""
    iou_loss: float = 0.0
    """Weight of a soft IoU loss."""
    consistency_loss: float = 0.0
    """Weight of a loss on probabilities that change when the camera moves a little."""
    teachers: tuple[str, ...] = ()
    """Checkpoints of trained networks with the same classes, whose mean probabilities are a second target of training
    (distillation)."""
    teacher_scales: tuple[float, ...] = (1.0,)
    """Scales at which each teacher sees the images; the mean is over all of them."""
    distillation_loss: float = 1.0
    """Weight of the loss on the divergence from the teachers."""
    loss_stride: int = 1
    """Compute the loss at every n-th pixel of each row and column, from a random one on, to save time."""
    auxiliary_stride: int = 1
    """The same for the losses of the auxiliary heads."""
    ema_decay: float = 0.0
    """Decay of an exponential moving average (EMA) of the weights, which is then validated and saved; 0 for none."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Precision of the network on a GPU; the CPU computes in fp32."""
    seed: int = 0
    """Seed of all random numbers."""

    def check(self) -> None:
        """Raise a ValueError if a run cannot have these settings."""
        fanet, plus = self.network.startswith("fanet"), self.network.startswith("fanetplus")
        method = "-" in self.network
        part_size = self.batch // max(1, self.accumulate)
        defaults = {field.name: field.default for field in fields(self)}
        # one pixel of Res-4 would be all that batch norm sees; a FANet+ shrinks the crop to 3/4
        small = 85 if plus else 64
        for name, fine, expected in (
            *(
                (
                    name,
                    has or (method and name == "window") or getattr(self, name) == defaults[name],
                    f"{defaults[name]}: {why}",
                )
                for names, has, why in (
                    (FANET_OPTIONS, fanet, "only FANets have this option"),
                    (REDUCTION_OPTIONS, not plus, "the reduction of a FANet+ is fixed"),
                )
                for name in names
            ),
            ("crop", min(self.crop) >= 32, "at least 32 x 32 pixels"),
            ("iterations", self.iterations >= 1, "1 or more"),
            ("validate_every", self.validate_every >= 1, "1 or more"),
            ("batch", self.batch >= 1, "1 or more"),
            ("accumulate", self.accumulate >= 1, "1 or more"),
            ("accumulate", self.batch % max(1, self.accumulate) == 0, f"a divisor of the batch of {self.batch}"),
            ("batch", part_size > 1 or max(self.crop) > small, "2 or more with a crop this small, for batch norm"),
            (
                "batch",
                part_size > 1 or self.network not in ("bisenet18", "shelfnet18"),
                f"2 or more for {self.network}, which has batch norm on one value per image",
            ),
            ("scale", 0 < self.scale[0] <= self.scale[1] < math.inf, "two numbers above 0, the lower first"),
            ("jitter", 0 <= self.jitter <= 1, "0 to 1"),
            *(
                (name, self.with_dataset != "none" or getattr(self, name) == defaults[name], expected)
                for name, expected in (
                    ("with_split", f"{defaults['with_split']} {ALONE}"),
                    ("with_leave_out", f"nothing {ALONE}"),
                )
            ),
            ("with_share", 0 < self.with_share < 1, "more than 0 and less than 1"),
            ("light", 0 <= self.light <= 1, "0 to 1"),
            ("classmix", 0 <= self.classmix <= 1, "0 to 1"),
            ("window", 1 <= self.window <= 1024, "1 to 1024"),
            ("window", not method or self.window > 1, "2 or more for a video method, its key interval or clip"),
            ("moved_clips", method or not self.moved_clips, "False: only video methods have this option"),
            ("consistency_loss", not (method and self.consistency_loss), "0 for a video method"),
            ("window", self.window == 1 or self.attention in ("fast", "dot"), "1: this attention has no past"),
            ("key_channels", 1 <= self.key_channels <= 1024, "1 to 1024"),
            ("classmix", not self.classmix or self.window == 1, "0 with a window: frames of a video are not mixed"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "more than 0"),
            ("encoder_rate_factor", 0 <= self.encoder_rate_factor < math.inf, "0 or more"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "0 or more"),
            ("warm_up", 0 <= self.warm_up < 1, "0 to less than 1"),
            ("grad_clip", 0 <= self.grad_clip < math.inf, "0 or more"),
            ("auxiliary_loss", 0 <= self.auxiliary_loss < math.inf, "0 or more"),
            ("ohem_threshold", 0 <= self.ohem_threshold < 1, "0 to less than 1"),
            ("class_weighting", 0 <= self.class_weighting <= 1, "0 to 1"),
            ("iou_loss", 0 <= self.iou_loss < math.inf, "0 or more"),
            ("consistency_loss", 0 <= self.consistency_loss < math.inf, "0 or more"),
            ("distillation_loss", 0 < self.distillation_loss < math.inf, "more than 0"),
            ("teachers", not (method and self.teachers), "none for a video method"),
            (
                "teachers",
                not any(name.startswith("-") for name in self.teachers),
                "names that do not start with a dash: write ./-NAME",
            ),
            ("teachers", self.window == 1 or not self.teachers, "none with a window: teachers see single images"),
            (
                "teacher_scales",
                bool(self.teacher_scales) and all(0.25 <= scale <= 4 for scale in self.teacher_scales),
                "one or more numbers from 0.25 to 4",
            ),
            ("teacher_scales", bool(self.teachers) or self.teacher_scales == (1.0,), "1.0 without teachers"),
            ("distillation_loss", bool(self.teachers) or self.distillation_loss == 1.0, "1.0 without teachers"),
            ("ema_decay", 0 <= self.ema_decay < 1, "0 to less than 1"),
            *(
                (
                    name,
                    value >= 1 and not any(side % value for side in self.crop),
                    "a divisor of both sides of the crop",
                )
                for name, value in (("loss_stride", self.loss_stride), ("auxiliary_stride", self.auxiliary_stride))
            ),
        ):
            if not fine:
                raise ValueError(f"{name} is {getattr(self, name)}; expected {expected}.")


def check_second_folder(config: TrainConfig, with_data: Path | None) -> None:
    """Raise a ValueError if a second data set has no folder, or the folder no data set."""
    if config.with_dataset != "none" and with_data is None:
        raise ValueError(f"A run with {config.with_dataset} needs its folder: give --with-data DIR.")
    if config.with_dataset == "none" and with_data is not None:
        raise ValueError(f"{with_data} is the folder of no data set: name the data set with --with NAME.")


def check_share(config: TrainConfig, recipe: TrainConfig) -> None:
    """Raise a ValueError if a run on one data set has another share of the second one than its recipe."""
    if config.with_dataset == "none" and config.with_share != recipe.with_share:
        raise ValueError(f"with_share is {config.with_share}; expected {recipe.with_share} {ALONE}.")


class Recipe(NamedTuple):
    """Settings for a data set and a network, and a sentence about them."""

    about: str
    config: TrainConfig


def with_our_settings(config: TrainConfig) -> TrainConfig:
    """Return a recipe of the paper with our changes; docs/training.md shows what each of them gave."""
    return replace(
        config,
        scale=(0.5, 2.0),
        classmix=0.5,
        optimiser="adamw",
        learning_rate=2e-3,
        encoder_rate_factor=0.25,
        weight_decay=0.05,
        warm_up=0.03,
        grad_clip=5.0,
        auxiliary_loss=0.4,
        class_weighting=0.4,
        iou_loss=1.0,
        ema_decay=0.999,
    )


def for_video(config: TrainConfig) -> TrainConfig:
    """Return a recipe that fine-tunes image weights on clips."""
    return replace(with_our_settings(config), classmix=0.0, window=4, averages=True, learning_rate=5e-4)


def for_other_roads(config: TrainConfig) -> TrainConfig:
    """Return a recipe with our settings for roads and light that the data do not show, and a loss that saves time."""
    # averages changes nothing for images, and makes the weights fit any window
    return replace(with_our_settings(config), light=1.0, averages=True, loss_stride=2, auxiliary_stride=8)


def for_method(config: TrainConfig) -> TrainConfig:
    """Return a recipe that trains a video method on clips, from the weights of its backbone."""
    return replace(for_video(config), network="dff-swiftnet18", window=5, averages=False, auxiliary_loss=0.0)


CAMVID_CONFIG = TrainConfig(dataset="camvid", network="fanet18", crop=(720, 960), iterations=6_000)
CITYSCAPES_CONFIG = TrainConfig(dataset="cityscapes", network="fanet18", crop=(768, 1536), iterations=40_000)
COCO_STUFF_CONFIG = TrainConfig(dataset="coco-stuff", network="fanet18", crop=(640, 640), iterations=40_000)
COMMA10K_CONFIG = TrainConfig(dataset="comma10k", network="fanetplus18", crop=(512, 768), iterations=6_000)
FOLDER_CONFIG = TrainConfig(dataset="folder", network="fanetplus18", crop=(512, 512), iterations=2_000)

RECIPES = {
    "camvid-18": Recipe(
        "FANet-18 on CamVid, our best, 8 minutes on an H200.",
        with_our_settings(replace(CAMVID_CONFIG, iterations=10_000)),
    ),
    "camvid-34": Recipe(
        "FANet-34 on CamVid, our best.", with_our_settings(replace(CAMVID_CONFIG, iterations=10_000, network="fanet34"))
    ),
    "camvid-video-18": Recipe(
        "FANet-18 on clips of CamVid, from image weights: --initial FILE.",
        for_video(replace(CAMVID_CONFIG, iterations=3_000)),
    ),
    "camvid-video-34": Recipe(
        "FANet-34 on clips of CamVid, from image weights: --initial FILE.",
        for_video(replace(CAMVID_CONFIG, iterations=3_000, network="fanet34")),
    ),
    "camvid-method": Recipe(
        "A video method on clips of CamVid, from the weights of its backbone: --network NAME --initial FILE.",
        for_method(replace(CAMVID_CONFIG, iterations=2_000)),
    ),
    "cityscapes-18": Recipe(
        "FANet-18 on Cityscapes, with the settings of our best on CamVid.", with_our_settings(CITYSCAPES_CONFIG)
    ),
    "cityscapes-34": Recipe(
        "FANet-34 on Cityscapes, with the settings of our best on CamVid.",
        with_our_settings(replace(CITYSCAPES_CONFIG, network="fanet34")),
    ),
    "cityscapes-video-18": Recipe(
        "FANet-18 on clips of Cityscapes' leftImg8bit_sequence, from image weights: --initial FILE.",
        for_video(replace(CITYSCAPES_CONFIG, iterations=10_000)),
    ),
    "cityscapes-video-34": Recipe(
        "FANet-34 on clips of Cityscapes' leftImg8bit_sequence, from image weights: --initial FILE.",
        for_video(replace(CITYSCAPES_CONFIG, iterations=10_000, network="fanet34")),
    ),
    "cityscapes-method": Recipe(
        "A video method on clips of Cityscapes, from the weights of its backbone: --network NAME --initial FILE.",
        for_method(replace(CITYSCAPES_CONFIG, iterations=10_000)),
    ),
    "street-18": Recipe(
        "The bundled weights street: FANet+-18 on CamVid (--data) and comma10k (--with-data).",
        for_other_roads(
            replace(
                CAMVID_CONFIG,
                network="fanetplus18",
                iterations=9_000,
                with_dataset="comma10k",
                with_share=0.4,
                class_table="street",
            )
        ),
    ),
    "road-18": Recipe("The bundled weights road: FANet+-18 on comma10k.", for_other_roads(COMMA10K_CONFIG)),
    "folder-18": Recipe("FANet+-18 on your own pictures.", with_our_settings(FOLDER_CONFIG)),
    "paper-camvid-18": Recipe("FANet-18 on CamVid as in the paper (69.0 mIoU on test there).", CAMVID_CONFIG),
    "paper-camvid-34": Recipe(
        "FANet-34 on CamVid as in the paper (70.1 mIoU on test there).", replace(CAMVID_CONFIG, network="fanet34")
    ),
    "paper-cityscapes-18": Recipe(
        "FANet-18 on Cityscapes as in the paper (75.0 mIoU on val there).", CITYSCAPES_CONFIG
    ),
    "paper-cityscapes-34": Recipe(
        "FANet-34 on Cityscapes as in the paper (76.3 mIoU on val there).",
        replace(CITYSCAPES_CONFIG, network="fanet34"),
    ),
    "paper-coco-stuff-18": Recipe("FANet-18 on COCO-Stuff 10k as in the paper (27.8 mIoU there).", COCO_STUFF_CONFIG),
    "paper-coco-stuff-34": Recipe(
        "FANet-34 on COCO-Stuff 10k as in the paper (29.5 mIoU there).", replace(COCO_STUFF_CONFIG, network="fanet34")
    ),
}
