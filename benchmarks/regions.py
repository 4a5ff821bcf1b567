"""Time the regions of real labels, for docs/regions.md: python benchmarks/regions.py [HEIGHT WIDTH].

The samples are scaled to a size, 1024 x 2048 by default, and labelled with the bundled weights. For each: how long
find_regions takes of one core (processor time, the median and the least of 100 calls), the same with ids, polygons,
COCO's masks, and a frame written in each format of --regions (10 calls); whether the regions are those of scipy, if
that is installed; and which share of the pixels the polygons keep.
"""

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy
import torch
from torch.nn.functional import interpolate

import streamseg
from streamseg.evaluate.benchmark import describe_load, describe_machine
from streamseg.regions.coco import region_rle
from streamseg.regions.defaults import SUFFIXES
from streamseg.regions.polygons import TOLERANCE, rasterise, region_polygons
from streamseg.regions.regions import Region
from streamseg.regions.writing import FrameRegions, region_writer

SAMPLES = Path(__file__).parent.parent / "samples"
NAMES = ("suburb-1", "suburb-3", "city-traffic", "street-market")


def main(height: int = 1024, width: int = 2048) -> None:
    torch.set_num_threads(1)
    model, classes = streamseg.load()
    machine = describe_machine(torch.device("cpu"))
    print(f"{machine['device']}, {machine['threads']} thread, numpy {numpy.__version__}; load {describe_load()}")
    for name in NAMES:
        frame = streamseg.read_image(SAMPLES / f"{name}.jpg")[None].float()
        frame = interpolate(frame, (height, width), mode="bilinear")[0].round().byte()
        labels = streamseg.label_frame(model, frame)[0].byte().numpy()
        every = streamseg.find_regions(labels, classes, min_area=1)
        regions = streamseg.find_regions(labels, classes)
        print(
            f"{name}: {len(regions)} regions of 64 pixels and more, {len(every)} of any size; {compare(labels, every)}"
        )
        print(f"  find_regions               {timed(lambda labels=labels: streamseg.find_regions(labels, classes))}")
        print(f"  find_regions, min_area=1   {timed(lambda x=labels: streamseg.find_regions(x, classes, min_area=1))}")
        tracker = streamseg.RegionTracker()
        print(f"  RegionTracker.update       {timed(lambda regions=regions, t=tracker: t.update(regions))}")
        for tolerance in (TOLERANCE, 1.0):
            polygons = region_polygons(regions, tolerance)
            points = sum(len(ring) for rings in polygons for ring in rings)
            kept = f"{100 * kept_share(regions, polygons):.2f} % of the pixels, {points:,} points"
            took = timed(lambda x=regions, t=tolerance: region_polygons(x, t), 10)
            print(f"  polygons, tolerance {tolerance:<5}  {took}; {kept}", flush=True)
        print(f"  COCO's masks               {timed(lambda x=regions: [region_rle(one) for one in x], 10)}")
        frame = FrameRegions(name, name, 0, 0.0, (height, width), regions)
        for form in SUFFIXES:
            with region_writer(io.StringIO(), form, classes) as write:
                print(f"  a frame as {form:<16}{timed(lambda x=frame, w=write: w(x), 10)}", flush=True)


def timed(work: Callable[[], object], calls: int = 100) -> str:
    """Return the median and the least of the processor times of calls, which other programs hardly change."""
    seconds = []
    for _ in range(calls):
        begin = time.thread_time()
        work()
        seconds.append(time.thread_time() - begin)
    return f"{1000 * median(seconds):6.2f} ms, at best {1000 * min(seconds):.2f}"


def compare(labels: numpy.ndarray, regions: list[Region]) -> str:
    """Return whether the regions are those that scipy finds, class by class."""
    try:
        from scipy import ndimage
    except ImportError:
        return "scipy is not installed"
    ours = numpy.zeros(labels.shape, dtype=int)
    for number, region in enumerate(regions, 1):
        ours[region.mask()] = number
    count = 0
    for label in numpy.unique(labels):
        found, parts = ndimage.label(labels == label)
        inside = found > 0
        pairs = numpy.unique(numpy.stack([found[inside], ours[inside]]), axis=1).shape[1]
        if pairs != parts:
            return "NOT those of scipy"
        count += parts
    return "those of scipy" if count == len(regions) else "NOT those of scipy"


def kept_share(regions: list[Region], polygons: list) -> float:
    """Return the IoU of regions and their rasterised polygons, over all pixels together."""
    common = either = 0
    for region, rings in zip(regions, polygons, strict=True):
        drawn, mask = rasterise(rings, *region.size), region.mask()
        common += (drawn & mask).sum()
        either += (drawn | mask).sum()
    return common / either


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
