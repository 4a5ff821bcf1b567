import json
import re

import numpy
import pytest

from streamseg.regions.zones import Lane, Zone, cross, fit_area, ground_of_image, parse_zones, read_zones, zones_to_json

SQUARE = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
TABLE = {"name": "door", "points": [list(point) for point in SQUARE], "classes": ["Car"]}
CORNERS = [[0.2, 0.9], [0.8, 0.9], [0.6, 0.5], [0.4, 0.5]]
LANE = {"name": "lane", "points": CORNERS, "drivable": ["Road"]}
METRES = [[-2, 5], [2, 5], [2, 20], [-2, 20]]


def test_toml_and_json_give_the_same_zones(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"zone": [TABLE | {"share": 0.5}], "lane": [LANE]}))
    (tmp_path / "a.toml").write_text(
        '[[zone]]\nname = "door"\npoints = [[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75]]\n'
        'classes = ["Car"]\nshare = 0.5\n'
        '[[lane]]\nname = "lane"\npoints = [[0.2, 0.9], [0.8, 0.9], [0.6, 0.5], [0.4, 0.5]]\ndrivable = ["Road"]\n'
    )
    zones = read_zones(tmp_path / "a.json")
    assert zones == read_zones(tmp_path / "a.toml")
    assert zones == [
        Zone("door", SQUARE, ("Car",), share=0.5),
        Lane("lane", tuple(map(tuple, CORNERS)), ("Road",)),
    ]


def test_zones_as_json_are_the_same_zones_without_defaults():
    content = {"zone": [TABLE | {"share": 0.5}], "lane": [LANE | {"image": CORNERS, "ground": METRES}]}
    areas = parse_zones(content | {"zone": [TABLE | {"share": 0.5, "debounce": 0.5}]}, "it")
    assert json.loads(json.dumps(zones_to_json(areas))) == content
    assert parse_zones(json.loads(json.dumps(zones_to_json(areas))), "it") == areas
    assert zones_to_json([]) == {}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"points": [[0, 0], [1, 1], [1, 0], [0, 1]]}, "Zone 'door' crosses itself, between its points 1 and 3"),
        ({"points": [[0, 0], [1, 1]]}, "Zone 'door' has 2 points; expected three or more"),
        ({"points": [[0, 0], [0.5, 0.5], [1, 1]]}, "Zone 'door' has no area"),
        ({"points": [[0, 0], [0, 0], [1, 1], [1, 0]]}, "has the same point twice in a row"),
        ({"points": [[0, 0], [1, "a"], [1, 0]]}, "points is [[0, 0], [1, 'a'], [1, 0]]; expected a list of points"),
        ({"points": [[0, 0], [float("nan"), 1], [1, 0]]}, "expected a list of points"),
        ({"points": [[0, 0], [1.5, 0], [0.5, 0.5]]}, "has the point [1.5, 0.0], outside of the frame: fractions of"),
        ({"points": [[-0.1, 0], [1, 0], [0.5, 0.5]]}, "height are 0 to 1. For pixels give units = 'pixels'."),
        ({"points": [[0, 0], [9, 0], [9, 9]], "units": "fractions"}, "height are 0 to 1."),
        ({"points": 3}, "points is 3; expected a list of points [x, y]."),
        ({"classes": []}, "Zone 'door' watches no class"),
        ({"classes": "Car"}, "classes is 'Car'; expected a list of texts."),
        ({"share": 2}, "share is 2.0; expected above 0, up to 1."),
        ({"present": True}, "present is True; expected a number."),
        ({"events": ["arrive"]}, "an event is 'arrive'; choose one of: 'enter', 'leave', 'cover', 'uncover'."),
        ({"debounce": -1}, "debounce is -1.0; expected seconds, 0 or more."),
        ({"units": "feet"}, "units is 'feet'; choose one of"),
        ({"name": ""}, "'' is not the name of a zone"),
        ({"colour": "red"}, "Zone 'door' has the unknown entry 'colour'; known are name, points"),
    ],
)
def test_a_wrong_zone_is_one_sentence_with_its_file(tmp_path, table, sentence):
    path = tmp_path / "zones.json"
    path.write_text(json.dumps({"zone": [TABLE | table]}))
    with pytest.raises(ValueError, match=re.escape(f"{path}: ")) as caught:
        read_zones(path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"drivable": []}, "Lane 'lane' has no drivable class"),
        ({"row_share": 0}, "row_share is 0.0; expected above 0, up to 1."),
        ({"min_distance": 0}, "min_distance is 0.0; expected a number above 0."),
        ({"image": CORNERS[:3], "ground": METRES}, "has 3 points in image and 4 in ground; metres need four of each"),
        ({"image": [[0, 0]] * 4, "ground": METRES}, "no plane fits its image and ground points"),
        ({"image": CORNERS, "ground": [METRES[i] for i in (0, 2, 1, 3)]}, "no plane fits its image and ground points"),
    ],
)
def test_a_wrong_lane_is_one_sentence(tmp_path, table, sentence):
    path = tmp_path / "zones.json"
    path.write_text(json.dumps({"lane": [LANE | table]}))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_zones(path)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.toml", "[[zone]", "is neither TOML nor JSON that can be read"),
        ("a.json", "[" * 100_000, "is neither TOML nor JSON that can be read"),
        ("a.json", "[]", "holds no zones: expected tables called [[zone]] or [[lane]]"),
        ("a.toml", "", "holds no zones"),
        ("a.toml", "[[zones]]", "holds no zones"),
        ("a.toml", "zone = 3", "zone is no list of tables; write each as [[zone]]."),
        ("a.toml", '[[zone]]\nname = "a"', "Zone 'a' has no entry 'points'; needed are name, points, classes."),
        ("a.json", json.dumps({"zone": [TABLE, TABLE]}), "two zones are called 'door'; names must differ."),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_zones(tmp_path / name)


def test_one_text_instead_of_a_list_of_names_is_refused():
    with pytest.raises(ValueError, match=r"Zone 'a': classes is 'Car'; expected a list of texts, such as \['Car'\]"):
        Zone("a", SQUARE, "Car")
    with pytest.raises(ValueError, match="Zone 'a': events is 'enter'; expected a list"):
        Zone("a", SQUARE, ("Car",), events="enter")
    with pytest.raises(ValueError, match="Lane 'a': drivable is 'Road'; expected a list"):
        Lane("a", SQUARE, "Road")


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match="No file of zones at nowhere.toml: check the path."):
        read_zones("nowhere.toml")


def test_fractions_and_pixels_fit_the_same_pixels():
    fractions = fit_area(Zone("a", SQUARE, ("Car",)), 40, 80)
    pixels = fit_area(Zone("a", ((20, 10), (60, 10), (60, 30), (20, 30)), ("Car",)), 40, 80)
    for fitted in (fractions, pixels):
        assert (fitted.left, fitted.top, fitted.mask.shape, fitted.pixels) == (20, 10, (20, 40), 800)


def test_units_decide_where_small_numbers_could_be_either():
    unit = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
    assert fit_area(Zone("a", unit, ("Car",)), 4, 6).pixels == 24
    assert fit_area(Zone("a", unit, ("Car",), units="pixels"), 4, 6).pixels == 1


def test_a_zone_outside_of_the_frame_is_refused():
    zone = Zone("gate", ((20, 10), (600, 10), (60, 30)), ("Car",))
    with pytest.raises(ValueError, match=r"Zone 'gate' has the point \[600, 10\], outside of a frame that is 80 wide"):
        fit_area(zone, 40, 80)
    small = Zone("dot", ((0.1, 0.1), (0.2, 0.1), (0.2, 0.2)), ("Car",), units="pixels")
    with pytest.raises(ValueError, match="Zone 'dot' covers no pixel of a frame of 40 x 80"):
        fit_area(small, 40, 80)


def test_the_homography_maps_its_four_points():
    matrix = ground_of_image("a", numpy.array(CORNERS), numpy.array(METRES, dtype=float))
    mapped = matrix @ numpy.array([[*point, 1] for point in CORNERS]).T
    found = (mapped[:2] / mapped[2]).T
    assert found == pytest.approx(numpy.array(METRES))


def test_a_lane_beyond_the_horizon_is_refused():
    corners = tuple(map(tuple, CORNERS))
    tall = ((0.2, 0.9), (0.8, 0.9), (0.5, 0.1))
    lane = Lane("lane", tall, ("Road",), image=corners, ground=tuple(map(tuple, METRES)))
    with pytest.raises(ValueError, match="Lane 'lane' reaches the horizon of its ground points: end it below."):
        fit_area(lane, 100, 100)


@pytest.mark.parametrize(
    ("points", "meet"),
    [
        ([(0, 0), (2, 2), (0, 2), (2, 0)], True),
        ([(0, 0), (2, 0), (1, 0), (1, 2)], True),
        ([(0, 0), (2, 0), (1, 0), (3, 0)], True),
        ([(0, 0), (2, 0), (3, 0), (4, 0)], False),
        ([(0, 0), (2, 0), (0, 1), (2, 1)], False),
        ([(0, 0), (2, 0), (1, 1), (1, 3)], False),
    ],
)
def test_lines_that_cross_or_touch_are_found(points, meet):
    assert cross(*points) == meet
