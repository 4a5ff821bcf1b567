"""FANet+, a FANet beyond the paper's: more accurate on small things and unseen roads, with fewer multiply-accumulates.

It differs from FANet in four ways; docs/how-it-works.md has a figure, and a table of what each of them gave.

1. The image is shrunk to 3/4 of its sides, and the encoder keeps ImageNet's strides up to Res-3: the extra reduction is
   an average pooling before Res-4 instead of a doubled stride in Res-1.
2. Fast attention is on Res-3 and Res-4, where nearly all of its effect is. It starts with a tenth of its usual share.
3. Res-4 is averaged over grids of 8, 4 and 2 rows (pyramid pooling), for context at several sizes.
4. The decoder narrows each stage to 128 channels, 64 at Res-1, before it merges them: scores at 3/16 of the image.

Shapes: B batch, K classes, H height, W width.

Golden: 12,387,411 parameters and 43.45 GMACs at 1024 x 2048 for 19 classes (FANet-18: 13,080,128 and 47.1).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.checks import check_count
from streamseg.models.attention import Attention, FastAttention
from streamseg.models.encoder import Encoder, Maps, ResNet, resnet18, resnet34
from streamseg.models.fanet import FANet, check_contexts, check_encoder, init_as_identity, make_attention
from streamseg.models.layers import conv, init_network, initialise, normalise, resize


class FANetPlus(FANet):
    """FANet+: an encoder on a smaller image, attention on its deep stages, pyramid pooling, and a narrow decoder.

    It takes part wherever a FANet does; its contexts are those of Res-3 and Res-4.

    Args:
        encoder: Computes the four feature maps: a ResNet whose extra reduction is an average pooling before Res-4, or
            any module with the interface of Encoder.
        classes: Number of classes.
        attention: FastAttention, another attention of this package, or any module class with that interface.
        key_channels: Channels of query and key.
        averages: Attend to the mean over the frames in the window instead of their sum.
    """

    classify: nn.Conv2d  # type: ignore[assignment] # FANet's is a Sequential

    tile_grid = 256
    min_free_side = 86

    def __init__(
        self,
        encoder: Encoder,
        classes: int,
        attention: Callable[[int, int], Attention] = FastAttention,
        key_channels: int = 32,
        averages: bool = False,
    ):
        nn.Module.__init__(self)  # it shares FANet's interface for streams, but none of its layers
        init_network(self, classes)
        check_count("key_channels", key_channels)
        check_encoder(encoder)
        self.key_channels = key_channels
        self.averages = averages

        self.encoder = encoder
        self.deep_channels = encoder.channels[2:]
        c1, c2, c3, c4 = encoder.channels
        self.attend3 = make_attention(attention, c3, key_channels)
        self.attend4 = make_attention(attention, c4, key_channels)
        check_contexts(self.attentions)
        self.pool = PyramidPooling(c4, 128)
        self.narrow3 = conv(c3, 128, 1)
        self.smooth3 = conv(128, 128, 3)
        self.narrow2 = conv(c2, 128, 1)
        self.smooth2 = conv(128, 128, 3)
        self.narrow1 = conv(c1, 64, 1)
        self.blend1 = conv(128, 64, 1)
        self.smooth1 = conv(64, 64, 3)
        self.classify = nn.Conv2d(64, classes, 1)
        initialise(self.classify)
        init_as_identity(self)

    def encode(self, image: Tensor) -> Maps:
        """Return the encoder's maps of Res-1 … Res-4, which do not depend on the past."""
        return self.encoder(shrink(normalise(image, self.mean, self.std)))

    def merge(self, maps: Maps, pooled: Tensor | None = None) -> Maps:
        """Merge the maps from deep to shallow; Res-3 and Res-4 are returned unchanged, for auxiliary heads.

        Args:
            pooled: For a tile of an image, its part of the image's pyramid pooling; by default that of the map itself.
        """
        x1, x2, x3, x4 = maps
        y3 = self.narrow3(x3)
        y3 = self.smooth3(y3 + resize(self.pool(x4) if pooled is None else pooled, y3))
        y2 = self.narrow2(x2)
        y2 = self.smooth2(y2 + resize(y3, y2))
        y1 = self.narrow1(x1)
        y1 = self.smooth1(y1 + resize(self.blend1(y2), y1))
        return y1, y2, x3, x4

    def score(self, maps: Maps) -> Tensor:
        """Return logits (B, K, h, w) at the size of Res-1's map."""
        return self.classify(maps[0])

    @property
    def name(self) -> str:
        """The name of the function that builds it; that of the encoder's class if it is not one of this package."""
        encoder = self.encoder
        return f"fanetplus{encoder.depth}" if isinstance(encoder, ResNet) else f"FANet+ of {type(encoder).__name__}"

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention modules of Res-3 and Res-4."""
        return self.attend3, self.attend4


class PyramidPooling(nn.Module):
    """Concatenates a map with its averages over grids of 8, 4 and 2 rows of nearly square cells."""

    rows = (8, 4, 2)

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.narrow = conv(inputs, outputs, 1)
        self.levels = nn.ModuleList(conv(outputs, outputs // 4, 1) for _ in self.rows)
        self.fuse = conv(outputs + len(self.rows) * (outputs // 4), outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(x)
        levels = [x]
        for rows, level in zip(self.rows, self.levels, strict=True):
            levels.append(resize(level(average_cells(x, rows, pyramid_columns(rows, x))), x))
        return self.fuse(torch.cat(levels, dim=1))


def pyramid_columns(rows: int, x: Tensor) -> int:
    """Return the number of columns that makes the cells of a grid over a map (B, C, h, w) nearly square; at least 2."""
    height, width = x.shape[-2:]
    columns = (2 * rows * width + height) // (2 * height)
    # torch.compile knows max alone; torch.export, whose sizes are no int, would take a single column for a constant
    return max(2, columns) if isinstance(columns, int) else torch.sym_max(2, columns)


def average_cells(x: Tensor, rows: int, columns: int) -> Tensor:
    """Return the averages (B, C, rows, columns) of a map over a grid of cells, as adaptive_avg_pool2d does.

    By two matrix products: adaptive_avg_pool2d does not export to ONNX for every size, and its backward pass is not
    deterministic on a GPU.
    """
    return averaging_matrix(x.shape[-2], rows, x) @ x @ averaging_matrix(x.shape[-1], columns, x).T


def averaging_matrix(inputs: int, cells: int, like: Tensor) -> Tensor:
    """Return the matrix (cells, inputs) that averages a row over cells of nearly equal width, which may overlap."""
    precision = torch.promote_types(like.dtype, torch.float32)
    pixel = torch.arange(inputs, dtype=precision, device=like.device)
    cell = torch.arange(cells, dtype=precision, device=like.device)[:, None]
    # cell i reaches from floor(i * inputs / cells) to ceil((i + 1) * inputs / cells)
    inside = ((pixel + 1) * cells - cell * inputs).clamp(0, 1) * ((cell + 1) * inputs - pixel * cells).clamp(0, 1)
    return (inside / inside.sum(dim=1, keepdim=True)).to(like.dtype)


def shrink(image: Tensor) -> Tensor:
    """Return an image (B, 3, H, W) at 3/4 of its sides, rounded up."""
    size = shrunk_size(image.shape[-2], image.shape[-1])
    return F.interpolate(image, size=size, mode="bilinear", align_corners=False)


def shrunk_size(height: int, width: int) -> tuple[int, int]:
    """Return the height and width of the image that the encoder gets: 3/4 of its sides, rounded up."""
    # not -(-3 * side // 4), whose range torch.export cannot derive
    return (3 * height + 3) // 4, (3 * width + 3) // 4


def fanetplus18(
    classes: int = 19,
    *,
    attention: Callable[[int, int], Attention] = FastAttention,
    key_channels: int = 32,
    averages: bool = False,
) -> FANetPlus:
    """FANet+ with a ResNet-18: 43 GMACs at 1024 x 2048, where FANet-18 has 47."""
    return FANetPlus(resnet18("Res-4", "average"), classes, attention, key_channels, averages)


def fanetplus34(
    classes: int = 19,
    *,
    attention: Callable[[int, int], Attention] = FastAttention,
    key_channels: int = 32,
    averages: bool = False,
) -> FANetPlus:
    """FANet+ with a ResNet-34."""
    return FANetPlus(resnet34("Res-4", "average"), classes, attention, key_channels, averages)
