"""The encoder: ResNet-18 and ResNet-34 with torchvision's parameter names, and the paper's extra spatial reduction.

Shapes: B batch, H height, W width.
"""

import hashlib
from http.client import HTTPException
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from streamseg.checks import check_choice
from streamseg.io.tensors import check_state_dict, read_tensors, short_error

Maps = tuple[Tensor, Tensor, Tensor, Tensor]
"""The maps of Res-1 (shallow) … Res-4 (deep)."""

Reduction = Literal["None", "Conv-0", "Res-1", "Res-2", "Res-3", "Res-4"]
"""Layer with the extra spatial reduction (paper Sec. III-C), in the paper's names."""

ReduceBy = Literal["stride", "average", "max"]
"""Kind of reduction: a doubled stride of that layer's first convolution, or a pooling in front of it."""

# torchvision's IMAGENET1K_V1 files; the digits are the beginning of each file's SHA-256
PUBLISHED = {18: "resnet18-f37072fd.pth", 34: "resnet34-b627a593.pth"}
PUBLISHED_AT = "https://download.pytorch.org/models/"

PASS_A_FILE = "load_imagenet(encoder, FILE) or --encoder-weights FILE"


class Encoder(Protocol):
    """The interface of an encoder: an nn.Module with four stages.

    The sides of the maps are those of the image divided by 2, 4, 8, 16, 32 or 64, rounded up; label_tiled relies on it.
    """

    @property
    def channels(self) -> tuple[int, int, int, int]:
        """Channels of the maps of Res-1 … Res-4."""

    def __call__(self, x: Tensor) -> Maps:
        """Return the maps of Res-1 … Res-4 of normalised RGB images (B, 3, H, W)."""


class Block(nn.Module):
    """ResNet's basic block: two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.add(x))

    def add(self, x: Tensor) -> Tensor:
        """Return the sum of both branches, before the last ReLU."""
        y = self.relu(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(y)) + self.downsample(x)


class ResNet(nn.Module):
    """A ResNet of basic blocks, without its classifier.

    Its four feature maps, Res-1 (shallow) to Res-4 (deep), have 64, 128, 256 and 512 channels. Without the extra
    reduction they are at 1/4, 1/8, 1/16 and 1/32 of the image; from the reduction on, at half of that.
    """

    channels = (64, 128, 256, 512)

    def __init__(self, blocks: tuple[int, int, int, int], reduction: Reduction, reduce_by: ReduceBy):
        super().__init__()
        check_choice("reduction", reduction, get_args(Reduction))
        check_choice("reduce_by", reduce_by, get_args(ReduceBy))
        self.depth = 2 + 2 * sum(blocks)
        self.reduction = reduction
        self.reduce_by = reduce_by

        layers = get_args(Reduction)[1:]
        strides = [2, 1, 2, 2, 2]  # of Conv-0 and the first block of Res-1 … Res-4
        self.pool = nn.ModuleList(nn.Identity() for _ in layers)
        if reduction != "None":
            layer = layers.index(reduction)
            if reduce_by == "stride":
                strides[layer] *= 2
            else:
                # in front of the layer, so that all three kinds cost the same; ceil, as a strided convolution rounds
                pool = nn.AvgPool2d if reduce_by == "average" else nn.MaxPool2d
                self.pool[layer] = pool(2, ceil_mode=True)

        self.conv1 = nn.Conv2d(3, 64, 7, strides[0], padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = stage(64, 64, blocks[0], strides[1])
        self.layer2 = stage(64, 128, blocks[1], strides[2])
        self.layer3 = stage(128, 256, blocks[2], strides[3])
        self.layer4 = stage(256, 512, blocks[3], strides[4])
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Maps:
        x = self.stem(x)
        x1 = self.layer1(self.pool[1](x))
        x2 = self.layer2(self.pool[2](x1))
        x3 = self.layer3(self.pool[3](x2))
        x4 = self.layer4(self.pool[4](x3))
        return x1, x2, x3, x4

    def stem(self, x: Tensor) -> Tensor:
        """Apply Conv-0 and the pooling after it."""
        return self.maxpool(self.relu(self.bn1(self.conv1(self.pool[0](x)))))


def stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    """Build one of ResNet's four stages; its first block changes the size."""
    rest = [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Block(inputs, outputs, stride), *rest)


def resnet18(reduction: Reduction = "Res-1", reduce_by: ReduceBy = "stride") -> ResNet:
    """ResNet-18: 11,180,736 parameters with the extra reduction at Res-1."""
    return ResNet((2, 2, 2, 2), reduction, reduce_by)


def resnet34(reduction: Reduction = "Res-1", reduce_by: ReduceBy = "stride") -> ResNet:
    """ResNet-34: 21,288,896 parameters with the extra reduction at Res-1."""
    return ResNet((3, 4, 6, 3), reduction, reduce_by)


def load_imagenet(encoder: ResNet, file: str | Path | None = None) -> None:
    """Load ImageNet weights into a ResNet, in place.

    The shortcut that the extra reduction adds to Res-1 keeps its weights: ImageNet's ResNet does not have it.

    Args:
        file: A safetensors file or a torch file with torchvision's names. Without one, torchvision's published file is
            downloaded once and kept in torch's cache; its hash is checked at every use.
    """
    if not isinstance(encoder, ResNet):
        raise ValueError(f"The encoder is a {type(encoder).__name__}; expected a ResNet: use its load_state_dict().")
    check_choice("The encoder's depth", encoder.depth, tuple(PUBLISHED))
    path = download_imagenet(encoder.depth) if file is None else Path(file)
    try:
        found = {name: tensor for name, tensor in read_tensors(path).items() if not name.startswith("fc.")}
        expected = encoder.state_dict()
        kept = {name: expected[name] for name in expected if name.startswith("layer1.0.downsample.")}
        kept |= {name: expected[name] for name in expected if name.endswith("num_batches_tracked")}
        check_state_dict(f"{path} does not hold a ResNet-{encoder.depth}", {**kept, **found}, expected)
    except (ValueError, OSError) as error:
        raise type(error)(
            f"{error} Pass torchvision's {PUBLISHED[encoder.depth]} or the like: {PASS_A_FILE}."
        ) from None
    encoder.load_state_dict({**kept, **found})


def download_imagenet(depth: int) -> Path:
    """Return the path of torchvision's published ResNet file in torch's cache, downloading it if needed."""
    name = PUBLISHED[depth]
    digits = name.partition("-")[2].removesuffix(".pth")
    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    try:
        if not path.is_file() or not sha256(path).startswith(digits):
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(PUBLISHED_AT + name, str(path), digits, progress=False)
    # no network; an unusable cache; a response that is not HTTP; a file that does not match its hash
    except (OSError, HTTPException, RuntimeError) as error:
        raise OSError(
            f"Could not download ImageNet weights ({PUBLISHED_AT}{name}: {short_error(error)}): "
            f"download the file elsewhere and pass it, {PASS_A_FILE}; or train without it, --initial nothing."
        ) from error
    return path


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
