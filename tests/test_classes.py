import hashlib

import pytest

import streamseg
from streamseg import Classes
from streamseg.classes import CAMVID, name_key


@pytest.mark.parametrize(
    ("classes", "count", "first", "last"),
    [
        (streamseg.CITYSCAPES, 19, ("road", (128, 64, 128)), ("bicycle", (119, 11, 32))),
        (streamseg.CAMVID, 11, ("Sky", (128, 128, 128)), ("Bicyclist", (0, 128, 192))),
        (streamseg.COCO_STUFF, 171, ("person", (220, 20, 60)), ("wood", (224, 224, 192))),
        (streamseg.COCO_STUFF_182, 182, ("person", (220, 20, 60)), ("wood", (224, 224, 192))),
        (streamseg.ADE20K, 150, ("wall", (120, 120, 120)), ("flag", (92, 0, 255))),
    ],
)
def test_a_class_set_has_its_known_names_and_colours(classes, count, first, last):
    assert len(classes) == len(classes.colours) == count
    assert (classes.names[0], classes.colours[0]) == first
    assert (classes.names[-1], classes.colours[-1]) == last


@pytest.mark.parametrize(
    ("classes", "digits"),
    [
        (streamseg.CITYSCAPES, "6bc05427e895b9b0"),
        (streamseg.CAMVID, "609c991886c44b03"),
        (streamseg.COCO_STUFF, "089c5cf1d27cc04e"),
        (streamseg.COCO_STUFF_182, "0626433b06fda93c"),
        (streamseg.ADE20K, "f8d53c12034fb25e"),
    ],
)
def test_names_and_colours_have_not_changed(classes, digits):
    table = repr(list(zip(classes.names, classes.colours, strict=True)))
    assert hashlib.sha256(table.encode()).hexdigest()[:16] == digits


def test_lists_become_tuples():
    assert Classes(["a", "b"], [[0, 0, 0], (1, 2, 3)]) == Classes(("a", "b"), ((0, 0, 0), (1, 2, 3)))
    assert hash(Classes(["a"], [[0, 0, 0]])) == hash(Classes(("a",), ((0, 0, 0),)))


def test_coco_stuff_is_its_182_ids_without_the_eleven_never_annotated():
    unused = set(streamseg.COCO_STUFF_182.names) - set(streamseg.COCO_STUFF.names)
    # by COCO-Stuff's ids, which start at 1
    assert {streamseg.COCO_STUFF_182.names.index(name) + 1 for name in unused} == {
        *(12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)
    }
    assert streamseg.COCO_STUFF_182.names.index("banner") + 1 == 92
    assert streamseg.COCO_STUFF_182.names.index("road") + 1 == 149


def test_colours_are_unique():
    for classes in (streamseg.CITYSCAPES, streamseg.CAMVID, streamseg.COCO_STUFF_182):
        assert len(set(classes.colours)) == len(classes)


@pytest.mark.parametrize(
    ("names", "colours", "sentence"),
    [
        ((), (), "0 classes; expected 1 to 255"),
        (tuple(map(str, range(256))), ((0, 0, 0),) * 256, "256 classes; expected 1 to 255"),
        (("a", "b"), ((0, 0, 0),), "2 class names but 1 colours"),
        (("a", "a"), ((0, 0, 0),) * 2, "Two classes are called 'a'"),
        (("a", " "), ((0, 0, 0),) * 2, "' ' is not a class name"),
        (("a", "b\n"), ((0, 0, 0),) * 2, "is not a class name"),
        (("a",), ((0, 0, 256),), "is not a colour"),
        (("a",), ((0, 0),), "is not a colour"),
        (("a",), ((0.5, 0, 0),), "is not a colour"),
        (("a",), (5,), "5 is not a colour"),
        (("a",), ("abc",), "'abc' is not a colour"),
        ("abc", ((0, 0, 0),) * 3, "are not lists"),
        (("a",), "a", "are not lists"),
        (None, None, "are not lists"),
    ],
)
def test_a_wrong_class_set_is_refused_in_a_sentence(names, colours, sentence):
    with pytest.raises(ValueError, match=sentence):
        Classes(names, colours)


def test_case_spaces_hyphens_and_underscores_make_no_difference_between_names():
    assert {*map(name_key, ("LaneMarking", "lane marking", " Lane_marking", "lane-  marking"))} == {"lanemarking"}
    for classes in (streamseg.CITYSCAPES, streamseg.CAMVID, streamseg.COMMA10K, streamseg.COCO_STUFF, streamseg.ADE20K):
        assert len({*map(name_key, classes.names)}) == len(classes)


def test_a_class_is_found_by_its_name_in_upper_or_lower_case():
    assert [CAMVID.find(name) for name in ("Sky", " road", "BICYCLIST ")] == [0, 3, 10]
    with pytest.raises(ValueError, match="No class is called 'Rad'; there are Sky, Building"):
        CAMVID.find("Rad")
