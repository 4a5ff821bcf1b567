"""DVSNet: each cell of a grid is segmented, or warped from its own key frame, as a decision network expects.

Y. Xu, T. Fu, H. Yang, C. Lee, "Dynamic Video Segmentation Network", 2018. Layers of the decision network as in the
authors' code.

    cell ───┬─flow network──▶ flow ──▶ warp(logits of the key cell) ──× scale──▶ logits    if expected to be good
    key  ───┘      └──conv6──▶ decision network ──▶ expected confidence score
    cell ──backbone──▶ logits, new key cell                                              otherwise

The score is the percentage of a cell's pixels on which both paths agree. Cells of a frame overlap; there the larger
score of a class wins. Differences: the backbone is one of this package instead of "DeepLab-fast", and it keeps its
logits at its own size. With an interval of 1 it is the backbone on each cell, and with one cell the backbone
itself. The target's optional drift is left out.

Shapes: B batch, R cells of it (B times those of the grid), K classes, H x W the image, h x w the map of the logits.

Golden: the decision network has 4,538,485 parameters.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.checks import check_count
from streamseg.models.layers import MIN_SIDE, resize
from streamseg.models.video.flownet import FlowNetS, FlowOutputs, flownet_slim
from streamseg.models.video.schedule import check_target, chosen_entries, put_entries, take_chosen
from streamseg.models.video.scheme import VideoMethod, sizes, warp


class DVSNetState(NamedTuple):
    """The key frame of each cell."""

    cells: Tensor
    """(R, 3, ...)."""
    logits: Tensor
    """(R, K, h, w)."""
    segmented: int
    """Cells that the last frame has segmented."""
    position: int
    """Frames since all cells had the same key frame."""
    streams: int
    height: int
    width: int


class DVSNet(VideoMethod[DVSNetState]):
    """A segmentation path and a flow path, chosen cell by cell.

    Args:
        target: Expected confidence score, 0 to 100, below which a cell is segmented; 100 segments all of them, 0 none
            after the first frame.
        interval: The most frames from one frame that is segmented whole to the next; None for no limit.
        grid: Rows and columns of cells.
        overlap: Pixels by which neighbours overlap.
    """

    state_type = DVSNetState
    kind = "dvsnet"
    decides_by = "target"
    trained = ("backbone", "flow", "scale", "decide")

    def __init__(
        self,
        network: nn.Module,
        flow: FlowNetS,
        target: float = 90,
        interval: int | None = None,
        grid: tuple[int, int] = (2, 2),
        overlap: int = 64,
    ):
        super().__init__(network, interval)
        check_target(target)
        for count in grid:
            check_count("grid", count)
        self.target = target
        self.grid, self.overlap = grid, overlap
        self.flow = flow
        self.scale = nn.Conv2d(flow.detail_channels, self.classes, 3, padding=1)
        nn.init.zeros_(self.scale.weight)
        nn.init.ones_(self.scale.bias)  # type: ignore[arg-type] # it has a bias
        self.decide = DecisionNet(flow.deep_channels)

    def key_frame(self, image: Tensor) -> tuple[Tensor, DVSNetState]:
        cells = self.cut(image)
        logits = self.segment(cells)
        state = DVSNetState(cells, logits, len(cells), 0, *sizes(image))
        return self.join(resize(logits, cells), image), state

    def next_frame(self, image: Tensor, state: DVSNetState) -> tuple[Tensor, DVSNetState]:
        cells = self.cut(image)
        outputs = self.flow.outputs(cells, state.cells)
        score = self.decide(outputs.deep).clamp(min=0)
        chosen = chosen_entries((score < self.target) | (self.target >= 100), default=self.target >= 100)
        logits = resize(self.propagate(state.logits, outputs), cells)
        if chosen:
            fresh = take_chosen(cells, chosen)
            segmented = self.segment(fresh)
            logits = put_entries(logits, chosen, resize(segmented, cells))
            state = state._replace(
                cells=put_entries(state.cells, chosen, fresh),
                logits=put_entries(state.logits, chosen, segmented),
            )
        position = 0 if len(chosen) == len(cells) else state.position + 1
        return self.join(logits, image), state._replace(segmented=len(chosen), position=position)

    def key_share(self, state: DVSNetState) -> float:
        return state.segmented / len(state.cells)

    def segment(self, cells: Tensor) -> Tensor:
        """Return the logits (R, K, h, w) of cells by the backbone."""
        return self.backbone.head(self.backbone.features(cells))

    def propagate(self, logits: Tensor, outputs: FlowOutputs) -> Tensor:
        """Return logits of key cells, warped to the current ones, at the size of the flow."""
        return warp(resize(logits, outputs.flow), outputs.flow) * self.scale(outputs.detail)

    def cut(self, image: Tensor) -> Tensor:
        """Return the cells (R, 3, ...) of images, one after the other, all of one size."""
        return torch.cat([image[..., rows, columns] for rows, columns in self.slices(image)])

    def join(self, cells: Tensor, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of cells; where these overlap, the one with the higher maximum counts."""
        slices = self.slices(image)
        if len(slices) == 1:
            return cells
        whole = cells.new_full((len(image), cells.shape[1], *image.shape[2:]), -torch.inf)
        for (rows, columns), part in zip(slices, cells.chunk(len(slices)), strict=True):
            before = whole[..., rows, columns]
            higher = part.amax(dim=1, keepdim=True) > before.amax(dim=1, keepdim=True)
            whole[..., rows, columns] = torch.where(higher, part, before)
        return whole

    def slices(self, image: Tensor) -> list[tuple[slice, slice]]:
        """Return the rows and columns of each cell of an image."""
        rows, columns = (
            cut_side(side, count, self.overlap) for side, count in zip(image.shape[2:], self.grid, strict=True)
        )
        return [(row, column) for row in rows for column in columns]

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the last frame, warped from the first, and the loss of the decision network.

        A crop is one cell. The decision network learns the share of pixels on which both paths agree.
        """
        outputs = self.flow.outputs(clip[-1], clip[0])
        logits = self.propagate(self.segment(clip[0]), outputs)
        with torch.no_grad():
            labels = resize(self.segment(clip[-1]), logits).argmax(dim=1)
            agreement = (logits.argmax(dim=1) == labels).flatten(1).float().mean(dim=1)
        # the decision network reads the flow network, and does not train it
        return logits, F.mse_loss(self.decide(outputs.deep.detach()).float() / 100, agreement)


class DecisionNet(nn.Module):
    """Expects the confidence score (R,) of a warped cell from the flow network's deepest map."""

    def __init__(self, channels: int, grid: tuple[int, int] = (4, 8)):
        super().__init__()
        self.grid = grid
        self.conv = nn.Conv2d(channels, 96, 3, padding=1)
        widths = (96 * grid[0] * grid[1], 1024, 1024, 10)
        self.layers = nn.Sequential()
        for inputs, outputs in pairwise(widths):
            self.layers.extend([nn.Linear(inputs, outputs), nn.LeakyReLU(0.1), nn.Dropout(0.5)])
        self.score = nn.Linear(widths[-1], 1)

    def forward(self, deep: Tensor) -> Tensor:
        x = F.interpolate(deep, self.grid, mode="bilinear", align_corners=False)
        x = F.leaky_relu(self.conv(x), 0.1).flatten(1)
        # in percent; the layers learn shares of 1
        return 100 * F.leaky_relu(self.score(self.layers(x)), 0.1)[:, 0]


def cut_side(side: int, count: int, overlap: int) -> list[slice]:
    """Return `count` slices of a side, of one length, that overlap by about so many pixels; fewer if it is short."""
    count = max(1, min(count, side // MIN_SIDE))
    length = min(side, -(-(side + (count - 1) * overlap) // count))
    starts = [round(number * (side - length) / max(1, count - 1)) for number in range(count)]
    return [slice(start, start + length) for start in starts]


def dvsnet(network: nn.Module, interval: int | None = None) -> DVSNet:
    """DVSNet with a slim FlowNetS: 63.2 % mIoU on Cityscapes val at 30.4 fps in its publication."""
    return DVSNet(network, flownet_slim(), interval=interval)
