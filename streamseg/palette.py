"""Bright colours for drawing, which stay distinct for colour-blind readers.

Checkpoints, data sets and label files keep the data sets' own colours.
"""

from streamseg.classes import Classes, name_key, parse_classes

# Chosen by a search for colours that differ in CIELAB under normal, protan, deutan and tritan vision (Machado et al.,
# 2009), opaque and blended with grey: by 26 or more among road, car, pavement, pedestrian, lane marking, own car, sky
# and tree, by 16 among the classes of the bundled weights, and by 15 among Cityscapes' 19. In the data sets' own
# colours the nearest two classes differ by 6 (CamVid) and 3 (Cityscapes).
DRAWN = parse_classes("""
    road 651ffb, pavement d85cff, lane marking ffffff, sky 84ccff, tree 2a7060, building c68871, fence 4e427f,
    pole b0bdc8, sign symbol faeb00, car ff9800, pedestrian da060d, bicyclist 3aeaa6, own car 06113a
""")
"""The colours of the main things on a street."""

RELATED = parse_classes("""
    wall a47d92, terrain 8eff63, traffic light c05b3f, truck f2b871, bus f15f00, train 5e132b, motorcycle 0693b6,
    bicycle 5561c5
""")
"""Further classes of Cityscapes."""

SAME = {
    "sidewalk": "pavement",
    "vegetation": "tree",
    "traffic sign": "sign symbol",
    "person": "pedestrian",
    "rider": "bicyclist",
    "movable": "car",
    "my car": "own car",
    "undrivable": "sky",
}
"""Other names of the same things."""


def bright_colours(classes: Classes) -> Classes:
    """Return a class set in bright colours for drawing, if it knows all the names; any other in its own colours.

    It knows the classes of CamVid, Cityscapes, comma10k and the bundled weights, in upper or lower case, with or
    without spaces.
    """
    known = {
        name_key(name): colour
        for drawn in (DRAWN, RELATED)
        for name, colour in zip(drawn.names, drawn.colours, strict=True)
    }
    known |= {name_key(name): known[name_key(other)] for name, other in SAME.items()}
    colours = [known[name_key(name)] for name in classes.names if name_key(name) in known]
    # colours of two palettes together would not be distinct, and neither would two names of one thing
    if len({*colours}) < len(classes):
        return classes
    return Classes(classes.names, tuple(colours))
