"""The colours of overlays: bright, and distinct for everybody."""

from itertools import combinations

import pytest
import torch

from streamseg import ADE20K, CAMVID, CITYSCAPES, COCO_STUFF, COMMA10K, Classes, bright_colours
from streamseg.class_table import STREET_TABLE

STREET = STREET_TABLE.classes
MAIN = ["Road", "Car", "Pavement", "Pedestrian", "LaneMarking", "OwnCar", "Sky", "Tree"]

# G. Machado, M. Oliveira, L. Fernandes, "A physiologically-based model for simulation of color vision deficiency",
# 2009: how linear red, green and blue look without one kind of cone
VISION = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# linear sRGB to XYZ, divided by the white of D65
TO_XYZ = torch.tensor(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = torch.tensor([0.95047, 1.0, 1.08883])


def to_lab(colour, vision):
    """A colour in CIELAB, as somebody with this vision sees it."""
    parts = torch.tensor(colour) / 255
    linear = torch.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ (torch.tensor(VISION[vision], dtype=torch.float32) @ linear).clamp(0, 1) / WHITE
    x, y, z = torch.where(xyz > 216 / 24389, xyz ** (1 / 3), (24389 / 27 * xyz + 16) / 116)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(classes, names, vision, alpha=1.0):
    """The smallest distance between two classes, drawn over mid-grey things."""
    colours = dict(zip(classes.names, classes.colours, strict=True))
    seen = [to_lab([alpha * part + (1 - alpha) * 128 for part in colours[name]], vision) for name in names]
    return min(float((x - y).norm()) for x, y in combinations(seen, 2))


def test_distances_are_those_of_cielab():
    assert to_lab((255, 255, 255), "normal").tolist() == pytest.approx([100, 0, 0], abs=0.02)
    assert to_lab((255, 0, 0), "normal").tolist() == pytest.approx([53.24, 80.09, 67.20], abs=0.02)
    # red and green of equal lightness are alike without the cones that tell them apart
    red, green = (200, 90, 90), (60, 132, 60)
    assert nearest(Classes(("a", "b"), (red, green)), "ab", "normal") > 70
    assert nearest(Classes(("a", "b"), (red, green)), "ab", "deutan") < 30


@pytest.mark.parametrize("vision", VISION)
def test_the_main_things_of_a_street_differ_for_every_kind_of_vision(vision):
    drawn = bright_colours(STREET)
    assert nearest(drawn, MAIN, vision) > 25
    assert nearest(drawn, MAIN, vision, alpha=0.5) > 14
    assert nearest(drawn, ("Road", "Car"), vision) > 60
    assert nearest(drawn, STREET.names, vision) > 16
    assert nearest(bright_colours(CITYSCAPES), CITYSCAPES.names, vision) > 15


def test_the_data_sets_own_colours_are_nearer_to_each_other():
    shared = [name for name in MAIN if name in CAMVID.names]
    assert min(nearest(CAMVID, shared, vision) for vision in VISION) < 12
    assert min(nearest(CAMVID, CAMVID.names, vision) for vision in VISION) < 8


def test_things_have_one_colour_in_all_class_sets():
    camvid, cityscapes, comma10k, street = (
        dict(zip(drawn.names, drawn.colours, strict=True))
        for drawn in map(bright_colours, (CAMVID, CITYSCAPES, COMMA10K, STREET))
    )
    for one, other in (
        (camvid["Road"], cityscapes["road"]),
        (camvid["Pavement"], cityscapes["sidewalk"]),
        (camvid["Tree"], cityscapes["vegetation"]),
        (camvid["Car"], cityscapes["car"]),
        (camvid["Car"], comma10k["movable"]),
        (camvid["Pedestrian"], cityscapes["person"]),
        (street["LaneMarking"], comma10k["lane marking"]),
        (street["OwnCar"], comma10k["my car"]),
        (street["Road"], comma10k["road"]),
    ):
        assert one == other


@pytest.mark.parametrize("classes", [CAMVID, CITYSCAPES, COMMA10K, STREET])
def test_names_stay_and_no_two_classes_have_one_colour(classes):
    drawn = bright_colours(classes)
    assert drawn.names == classes.names
    assert drawn.colours != classes.colours
    assert len({*drawn.colours}) == len(classes)
    assert bright_colours(drawn) == drawn


@pytest.mark.parametrize(
    "classes",
    [
        COCO_STUFF,
        ADE20K,
        Classes(("road", "cow"), ((1, 2, 3), (4, 5, 6))),
        Classes(("Road", "road"), ((1, 2, 3), (4, 5, 6))),
        Classes(("person", "pedestrian"), ((1, 2, 3), (4, 5, 6))),
    ],
)
def test_other_class_sets_keep_their_own_colours(classes):
    assert bright_colours(classes) is classes
