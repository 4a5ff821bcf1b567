"""Class sets: names and colours of the classes of a data set."""

from dataclasses import dataclass

IGNORE = 255
"""The label of a pixel that belongs to no class."""

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Classes:
    """The classes of a data set: label i is called names[i] and drawn in colours[i], red, green and blue in 0–255."""

    names: tuple[str, ...]
    colours: tuple[Colour, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.names, (tuple, list)) or not isinstance(self.colours, (tuple, list)):
            raise ValueError("Names and colours are not lists; expected one name and one colour for each class.")
        object.__setattr__(self, "names", tuple(self.names))
        colours = tuple(tuple(colour) if isinstance(colour, list) else colour for colour in self.colours)
        object.__setattr__(self, "colours", colours)
        if not 1 <= len(self.names) <= IGNORE:
            raise ValueError(
                f"{len(self.names)} classes; expected 1 to {IGNORE}: labels are bytes, and {IGNORE} means ignore."
            )
        if len(self.colours) != len(self.names):
            raise ValueError(f"{len(self.names)} class names but {len(self.colours)} colours; give one for each.")
        for name in self.names:
            # names are printed on terminals: no control characters
            if not (isinstance(name, str) and name.strip() and name.isprintable()):
                raise ValueError(f"{name!r:.80} is not a class name; expected printable text.")
            if self.names.count(name) > 1:
                raise ValueError(f"Two classes are called {name!r:.80}; names must differ.")
        for colour in self.colours:
            is_triple = isinstance(colour, tuple) and len(colour) == 3
            if not is_triple or not all(type(part) is int and 0 <= part <= 255 for part in colour):
                raise ValueError(f"{colour!r:.80} is not a colour; expected red, green and blue in 0–255.")

    def __len__(self) -> int:
        return len(self.names)

    def find(self, name: str) -> int:
        """Return the label of the class of a name; upper and lower case are the same."""
        for label, known in enumerate(self.names):
            if known.lower() == name.strip().lower():
                return label
        raise ValueError(f"No class is called {name.strip()!r:.80}; there are {', '.join(self.names)}.")


def parse_classes(text: str) -> Classes:
    """Parse classes from "name rrggbb, name rrggbb, …"."""
    pairs = [entry.strip().rsplit(" ", 1) for entry in text.split(",")]
    return Classes(tuple(name for name, _ in pairs), tuple(parse_colour(code) for _, code in pairs))


def parse_colour(code: str) -> Colour:
    """Parse a colour from six hexadecimal digits, with or without # in front."""
    try:
        red, green, blue = bytes.fromhex(code.removeprefix("#"))
    except ValueError:
        raise ValueError(f"{code!r:.80} is not a colour; expected six hexadecimal digits, such as #804080.") from None
    return red, green, blue


def name_key(name: str) -> str:
    """Return a name without what makes no difference: case, spaces, hyphens and underscores."""
    return "".join(name.casefold().replace("-", " ").replace("_", " ").split())


def without_classes(classes: Classes, names: str) -> Classes:
    """Remove the classes "name, name, …"; the labels after a removed one move up."""
    kept = [i for i, name in enumerate(classes.names) if name not in names.split(", ")]
    return Classes(tuple(classes.names[i] for i in kept), tuple(classes.colours[i] for i in kept))


CITYSCAPES = parse_classes("""
    road 804080, sidewalk f423e8, building 464646, wall 66669c, fence be9999, pole 999999, traffic light faaa1e,
    traffic sign dcdc00, vegetation 6b8e23, terrain 98fb98, sky 4682b4, person dc143c, rider ff0000, car 00008e,
    truck 000046, bus 003c64, train 005064, motorcycle 0000e6, bicycle 770b20
""")
"""Cityscapes' 19 classes for evaluation, in its own colours."""

CAMVID = parse_classes("""
    Sky 808080, Building 800000, Pole c0c080, Road 804080, Pavement 0000c0, Tree 808000, SignSymbol c08080,
    Fence 404080, Car 400080, Pedestrian 404000, Bicyclist 0080c0
""")
"""CamVid's usual 11 classes, in the colours of the original label files."""

COMMA10K = parse_classes("""
    road 402020, lane marking ff0000, undrivable 808060, movable 00ff66, my car cc00ff
""")
"""comma10k's 5 classes, in the colours of its masks."""

COCO_STUFF_182 = parse_classes("""
    person dc143c, bicycle 770b20, car 00008e, motorcycle 0000e6, airplane 6a00e4, bus 003c64, train 005064,
    truck 000046, boat 0000c0, traffic light faaa1e, fire hydrant 64aa1e, street sign 200000, stop sign dcdc00,
    parking meter af74af, bench fa001e, bird a52a2a, cat ff4dff, dog 00e2fc, horse b6b6ff, sheep 005200, cow 78a69d,
    elephant 6e4c00, bear ae39ff, zebra c76400, giraffe 480076, hat e0e040, backpack ffb3f0, umbrella 007d5c,
    shoe 40e000, eye glasses 00e040, handbag d10097, tie bcd0b6, suitcase 00dcb0, frisbee ff63a4, skis 5c0049,
    snowboard 8581ff, sports ball 4eb4ff, kite 00e400, baseball bat aefff3, baseball glove 2d59ff,
    skateboard 868667, surfboard 9194ae, tennis racket ffd0ba, bottle c5e2ff, plate 80e040, wine glass ab8601,
    cup 6d3f36, fork cf8aff, knife 97005f, spoon 09503d, bowl 546933, banana 4a4169, apple a6c466, sandwich d0c3d2,
    orange ff6d41, broccoli 008f95, carrot b300c2, hot dog d1636a, pizza 057900, donut e3ffcd, cake 93bad0,
    chair 994501, couch 035fa1, potted plant a3ff00, bed 7700aa, mirror 40c0c0, dining table 00b6c7, window c00000,
    desk 4000c0, toilet 00a578, door 408000, tv b78258, laptop 5f2000, mouse 827287, remote 6e8185, keyboard a64a76,
    cell phone db8eb9, microwave 4fd272, oven b25a3e, toaster 41460f, sink 7fa773, refrigerator 3b696a,
    blender e020c0, book 8e6c2d, clock c4ac00, vase 5f3650, scissors 804cff, teddy bear c93901, hair drier f6007a,
    toothbrush bfa2d0, hair brush 40e040, banner ffff80, blanket 93d3cb, branch 40a080, bridge 966464,
    building-other 747000, bush 20e080, cabinet 86c79c, cage 2040c0, cardboard a8abac, carpet 202040,
    ceiling-other 928b8d, ceiling-tile 0080c0, cloth c0c040, clothes 20c000, clouds 002000, counter 9270c6,
    cupboard 6020c0, curtain d2aa64, desk-stuff 00a040, dirt d0e5e4, door-stuff 5c8859, fence be9999,
    floor-marble e04040, floor-other 60246c, floor-stone e04080, floor-tile a02080, floor-wood da58b8,
    flower f18100, fog 208040, food-other 98a140, fruit d911ff, furniture-other 80a000, grass 98fb98, gravel 7c4ab5,
    ground-other 204080, hill 800080, house 464646, leaves e0a040, light ffe4ff, mat 20a0c0, metal 00a000,
    mirror-stuff 9ad000, moss a040c0, mountain 40aa40, mud 20c040, napkin 60c040, net c1005c, paper cebaab,
    pavement 606060, pillow 4c5b71, plant-other 208080, plastic 80e080, platform ffb4c3, playingfield 6a9ab0,
    railing a02000, railroad e6968c, river 3c8fff, road 804080, rock 00728f, roof 5c5237, rug fa8dff, salad 60c000,
    sand fed47c, sea 494dae, shelf ffa062, sky-other 4682b4, skyscraper 204000, snow ffffff, solid-other c0c080,
    stairs 68546d, stone 20e0c0, straw 800000, structural-other 800040, table d1e28c, tent a9a483,
    textile-other 200080, towel e1c7ff, tree 6b8e23, vegetable 002080, wall-brick 89364a, wall-concrete 6060c0,
    wall-other 66669c, wall-panel e02000, wall-stone 879edf, wall-tile 07f6e7, wall-wood 6bffc8, water-other 3a2995,
    waterdrops 60e0c0, window-blind b7798e, window-other ff4961, wood e0e0c0
""")
"""COCO-Stuff in its original numbering, less one: 91 things, 91 stuffs; COCO's panoptic colours where it has one."""

COCO_STUFF = without_classes(
    COCO_STUFF_182, "street sign, hat, shoe, eye glasses, plate, mirror, window, desk, door, blender, hair brush"
)
"""COCO-Stuff's 171 classes that occur: the 182 without the eleven things that were never annotated."""

ADE20K = parse_classes("""
    wall 787878, building b47878, sky 06e6e6, floor 503232, tree 04c803, ceiling 787850, road 8c8c8c, bed cc05ff,
    windowpane e6e6e6, grass 04fa07, cabinet e005ff, sidewalk ebff07, person 96053d, earth 787846, door 08ff33,
    table ff0652, mountain 8fff8c, plant ccff04, curtain ff3307, chair cc4603, car 0066c8, water 3de6fa,
    painting ff0633, sofa 0b66ff, shelf ff0747, house ff09e0, sea 0907e6, mirror dcdcdc, rug ff095c, field 7009ff,
    armchair 08ffd6, seat 07ffe0, fence ffb806, desk 0aff47, rock ff290a, wardrobe 07ffff, lamp e0ff08,
    bathtub 6608ff, railing ff3d06, cushion ffc207, base ff7a08, box 00ff14, column ff0829, signboard ff0599,
    chest of drawers 0633ff, counter eb0cff, sand a09614, sink 00a3ff, skyscraper 8c8c8c, fireplace fa0a0f,
    refrigerator 14ff00, grandstand 1fff00, path ff1f00, stairs ffe000, runway 99ff00, case 0000ff,
    pool table ff4700, pillow 00ebff, screen door 00adff, stairway 1f00ff, river 0bc8c8, bridge ff5200,
    bookcase 00fff5, blind 003dff, coffee table 00ff70, toilet 00ff85, flower ff0000, book ffa300, hill ff6600,
    bench c2ff00, countertop 008fff, stove 33ff00, palm 0052ff, kitchen island 00ff29, computer 00ffad,
    swivel chair 0a00ff, boat adff00, bar 00ff99, arcade machine ff5c00, hovel ff00ff, bus ff00f5, towel ff0066,
    light ffad00, truck ff0014, tower ffb8b8, chandelier 001fff, awning 00ff3d, streetlight 0047ff, booth ff00cc,
    television receiver 00ffc2, airplane 00ff52, dirt track 000aff, apparel 0070ff, pole 3300ff, land 00c2ff,
    bannister 007aff, escalator 00ffa3, ottoman ff9900, bottle 00ff0a, buffet ff7000, poster 8fff00, stage 5200ff,
    van a3ff00, ship ffeb00, fountain 08b8aa, conveyer belt 8500ff, canopy 00ff5c, washer b800ff, plaything ff001f,
    swimming pool 00b8ff, stool 00d6ff, barrel ff0070, basket 5cff00, waterfall 00e0ff, tent 70e0ff, bag 46b8a0,
    minibike a300ff, cradle 9900ff, oven 47ff00, ball ff00a3, food ffcc00, step ff008f, tank 00ffeb,
    trade name 85ff00, microwave ff00eb, pot f500ff, animal ff007a, bicycle fff500, lake 0abed4, dishwasher d6ff00,
    screen 00ccff, blanket 1400ff, sculpture ffff00, hood 0099ff, sconce 0029ff, vase 00ffcc, traffic light 2900ff,
    tray 29ff00, ashcan ad00ff, fan 00f5ff, pier 4700ff, crt screen 7a00ff, plate 00ffb8, monitor 005cff,
    bulletin board b8ff00, shower 0085ff, radiator ffd600, glass 19c2c2, clock 66ff00, flag 5c00ff
""")
"""ADE20K's 150 classes of the scene parsing challenge, in its colours; two of them, road and skyscraper, share one."""
