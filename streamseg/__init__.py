"""Real-time semantic segmentation of images and video with fast attention.

The public names, each imported when it is first used, so that `streamseg --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from streamseg.classes import (
        ADE20K as ADE20K,
        CAMVID as CAMVID,
        CITYSCAPES as CITYSCAPES,
        COCO_STUFF as COCO_STUFF,
        COCO_STUFF_182 as COCO_STUFF_182,
        COMMA10K as COMMA10K,
        Classes as Classes,
    )
    from streamseg.data.datasets import (
        ade20k as ade20k,
        camvid as camvid,
        cityscapes as cityscapes,
        coco_stuff as coco_stuff,
        comma10k as comma10k,
        folder as folder,
    )
    from streamseg.deploy.export import export_model as export_model
    from streamseg.deploy.hub import push_to_hub as push_to_hub
    from streamseg.draw import overlay as overlay, show as show
    from streamseg.engine.pick import accelerate as accelerate
    from streamseg.engine.runtime import open_exported as open_exported
    from streamseg.engine.steadying import (
        STEADY_HIGH as STEADY_HIGH,
        STEADY_LOW as STEADY_LOW,
        Steadiness as Steadiness,
    )
    from streamseg.engine.tiles import label_tiled as label_tiled
    from streamseg.evaluate.benchmark import count_macs as count_macs
    from streamseg.io.bgr import from_bgr as from_bgr, to_bgr as to_bgr
    from streamseg.io.images import read_image as read_image
    from streamseg.io.masks import Mask as Mask, read_mask as read_mask
    from streamseg.io.resolve import read_frames as read_frames
    from streamseg.io.video_writing import write_frames as write_frames
    from streamseg.models.attention import (
        ChannelAttention as ChannelAttention,
        DotAttention as DotAttention,
        FastAttention as FastAttention,
        NoAttention as NoAttention,
        SelfAttention as SelfAttention,
        fast_attention as fast_attention,
    )
    from streamseg.models.checkpoint import describe as describe, load as load, save as save
    from streamseg.models.encoder import load_imagenet as load_imagenet
    from streamseg.models.fanet import FANet as FANet, fanet18 as fanet18, fanet34 as fanet34
    from streamseg.models.fanet_plus import (
        FANetPlus as FANetPlus,
        fanetplus18 as fanetplus18,
        fanetplus34 as fanetplus34,
    )
    from streamseg.palette import bright_colours as bright_colours
    from streamseg.regions.coco import decode_rle as decode_rle, encode_rle as encode_rle
    from streamseg.regions.detections import to_detections as to_detections
    from streamseg.regions.events import Event as Event, Reading as Reading, ZoneMonitor as ZoneMonitor
    from streamseg.regions.polygons import region_polygon as region_polygon
    from streamseg.regions.regions import Region as Region, find_regions as find_regions
    from streamseg.regions.tracking import RegionTracker as RegionTracker
    from streamseg.regions.zones import Lane as Lane, Zone as Zone, read_zones as read_zones
    from streamseg.stream.label_frames import (
        label_frame as label_frame,
        label_frames as label_frames,
        segment as segment,
    )
    from streamseg.stream.state import (
        Fading as Fading,
        FadingInTime as FadingInTime,
        LastFrames as LastFrames,
        State as State,
        load_state as load_state,
        save_state as save_state,
    )
    from streamseg.stream.together import label_together as label_together

# the same for the running program; a test keeps the two alike
MODULES = {
    "classes": "ADE20K CAMVID CITYSCAPES COCO_STUFF COCO_STUFF_182 COMMA10K Classes",
    "data.datasets": "ade20k camvid cityscapes coco_stuff comma10k folder",
    "deploy.export": "export_model",
    "deploy.hub": "push_to_hub",
    "draw": "overlay show",
    "engine.pick": "accelerate",
    "engine.runtime": "open_exported",
    "engine.steadying": "STEADY_HIGH STEADY_LOW Steadiness",
    "engine.tiles": "label_tiled",
    "evaluate.benchmark": "count_macs",
    "io.bgr": "from_bgr to_bgr",
    "io.images": "read_image",
    "io.masks": "Mask read_mask",
    "io.resolve": "read_frames",
    "io.video_writing": "write_frames",
    "models.attention": "ChannelAttention DotAttention FastAttention NoAttention SelfAttention fast_attention",
    "models.checkpoint": "describe load save",
    "models.encoder": "load_imagenet",
    "models.fanet": "FANet fanet18 fanet34",
    "models.fanet_plus": "FANetPlus fanetplus18 fanetplus34",
    "palette": "bright_colours",
    "regions.coco": "decode_rle encode_rle",
    "regions.detections": "to_detections",
    "regions.events": "Event Reading ZoneMonitor",
    "regions.polygons": "region_polygon",
    "regions.regions": "Region find_regions",
    "regions.tracking": "RegionTracker",
    "regions.zones": "Lane Zone read_zones",
    "stream.label_frames": "label_frame label_frames segment",
    "stream.state": "Fading FadingInTime LastFrames State load_state save_state",
    "stream.together": "label_together",
}
MODULE_OF = {name: module for module, names in MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in MODULE_OF:
        raise AttributeError(f"module 'streamseg' has no attribute {name!r}")
    return getattr(import_module(f"streamseg.{MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*MODULE_OF]
