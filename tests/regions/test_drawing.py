import torch

from streamseg.regions.drawing import ACTIVE, IDLE, caption, draw_zones
from streamseg.regions.events import Reading
from streamseg.regions.zones import Lane, Zone

SQUARE = ((0.2, 0.5), (0.8, 0.5), (0.8, 0.9), (0.2, 0.9))
ZONE = Zone("door", SQUARE, ("car",))


def test_the_outline_has_the_colour_of_the_state_and_the_inside_stays():
    for reading, colour in (
        (Reading("door", {"car": 0.0}, ()), IDLE),
        (Reading("door", {"car": 0.5}, ("car",)), ACTIVE),
    ):
        picture = draw_zones(torch.full((3, 100, 200), 90, dtype=torch.uint8), [ZONE], [reading])
        for row, column in ((60, 40), (89, 100), (60, 159)):
            assert picture[:, row - 2 : row + 2, column - 2 : column + 2].flatten(1).t().tolist().count(list(colour))
        assert (picture[:, 60:80, 60:140] == 90).all()
        assert (picture[:, :20] == 90).all()


def test_the_name_is_above_the_zone_and_within_the_picture():
    plain = torch.full((3, 100, 200), 90, dtype=torch.uint8)
    picture = draw_zones(plain.clone(), [ZONE], [Reading("door", {"car": 0.0}, ())])
    assert (picture != plain)[:, 20:48].any()
    full = Zone("everything", ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)), ("car",))
    picture = draw_zones(torch.full((3, 12, 9), 90, dtype=torch.uint8), [full], [Reading("everything", {}, ())])
    assert picture.shape == (3, 12, 9)


def test_captions_say_what_is_there():
    assert caption(Reading("door", {"car": 0.0, "bus": 0.004}, ())) == "door"
    assert caption(Reading("door", {"car": 0.5, "bus": 0.25}, ("car", "bus"))) == "door: car 50%, bus 25%"
    assert caption(Reading("lane", {}, (), 120)) == "lane: 120 px"
    assert caption(Reading("lane", {}, ("blocked",), 120, 14.52)) == "lane: 14.5 m blocked"


def test_planes_and_interleaved_pictures_are_drawn_alike():
    lane = Lane("lane", SQUARE, ("road",))
    planes = torch.randint(0, 256, (3, 60, 80), dtype=torch.uint8)
    interleaved = planes.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    drawn = [draw_zones(x, [lane], [Reading("lane", {}, (), 7)]) for x in (planes.clone(), interleaved)]
    assert torch.equal(*drawn)
