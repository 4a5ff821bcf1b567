"""Regions as detections of supervision, for its annotators, trackers and counters."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy

from streamseg.regions.regions import Region

if TYPE_CHECKING:
    from supervision import Detections


def to_detections(regions: Sequence[Region]) -> "Detections":
    """Return regions as supervision.Detections: boxes, masks (N, H, W), class numbers and data["class_name"].

    Regions of a RegionTracker have their ids as tracker_id. Boxes are left, top, right and bottom in pixels; right and
    bottom are outside.
    """
    if find_spec("supervision") is None:
        raise ImportError("to_detections needs supervision: pip install 'streamseg[supervision]'")
    from supervision import Detections

    regions = list(regions)
    if not regions:
        return Detections.empty()
    sizes = {region.size for region in regions}
    if len(sizes) > 1:
        raise ValueError(f"The regions are of frames of {len(sizes)} sizes; expected those of one frame.")
    ids = [region.id for region in regions]
    tracked = [number for number in ids if number is not None]
    if tracked and len(tracked) < len(ids):
        raise ValueError("Some of the regions have an id, and some have none; expected those of one frame.")
    return Detections(
        xyxy=numpy.array([region.box for region in regions], dtype=numpy.float32),
        mask=numpy.stack([region.mask() for region in regions]),
        class_id=numpy.array([region.label for region in regions]),
        tracker_id=numpy.array(tracked) if tracked else None,
        data={"class_name": numpy.array([region.name for region in regions])},
    )
