import pytest

from streamseg.class_table import (
    STREET_TABLE,
    find_translation,
    open_class_table,
    open_table_of,
    parse_class_table,
    read_class_table,
)
from streamseg.classes import CAMVID, CITYSCAPES, COMMA10K, IGNORE, Classes

ABC = Classes(("a", "b", "c"), ((0, 0, 0), (1, 1, 1), (2, 2, 2)))
TABLE = "class, colour, one, two\nx, #010203, a, p\ny, 040506, a, q\nz, 070809, b, q\nw, ffffff, c, -\n"


def test_a_table_has_a_row_for_each_class_and_a_column_for_each_data_set():
    table = parse_class_table(TABLE, "it")
    assert table.classes == Classes(("x", "y", "z", "w"), ((1, 2, 3), (4, 5, 6), (7, 8, 9), (255, 255, 255)))
    assert table.columns == {"one": ("a", "a", "b", "c"), "two": ("p", "q", "q", "-")}


def test_each_class_has_the_label_in_its_row():
    assert parse_class_table(TABLE, "it").label_of("one", ABC) == (0, 0, 1, 2)
    pq = Classes(("q", "p"), ((0, 0, 0), (1, 1, 1)))
    assert parse_class_table(TABLE, "it").label_of("two", pq) == (1, 0, 0, IGNORE)


def test_street_keeps_the_labels_of_camvid():
    assert STREET_TABLE.classes.names[:11] == CAMVID.names
    assert STREET_TABLE.classes.colours[:11] == CAMVID.colours
    assert STREET_TABLE.label_of("camvid", CAMVID) == (*range(11), CAMVID.names.index("Road"), IGNORE)
    of_comma = [COMMA10K.names[label] for label in STREET_TABLE.label_of("comma10k", COMMA10K)]
    assert dict(zip(STREET_TABLE.classes.names, of_comma, strict=True)) == {
        **dict.fromkeys(CAMVID.names, "undrivable"),
        "Road": "road",
        **dict.fromkeys(("Car", "Pedestrian", "Bicyclist"), "movable"),
        "LaneMarking": "lane marking",
        "OwnCar": "my car",
    }
    STREET_TABLE.check_teachable(["camvid", "comma10k"])


def test_a_translation_is_known_for_the_same_classes_and_for_a_table_with_both():
    same = find_translation(CAMVID, "camvid", CAMVID)
    assert (same.label_of, same.labels, same.renamed()) == (tuple(range(11)), CAMVID, {})
    street = find_translation(STREET_TABLE.classes, "camvid", CAMVID)
    assert (street.label_of, street.labels) == ((*range(11), 3, IGNORE), CAMVID)
    assert (street.renamed(), street.missing()) == ({"LaneMarking": "Road", "OwnCar": None}, [])
    assert find_translation(STREET_TABLE.classes, "cityscapes", CITYSCAPES) is None


def test_labels_that_the_network_cannot_tell_apart_are_joined():
    found = find_translation(CAMVID, "comma10k", COMMA10K)
    assert found.labels.names == ("road + lane marking", "undrivable", "movable", "my car")
    assert found.labels.colours[0] == COMMA10K.colours[0]
    assert (found.joined, found.missing()) == ((0, 0, 1, 2, 3), ["my car"])
    of_class = {name: found.labels.names[label] for name, label in zip(CAMVID.names, found.label_of, strict=True)}
    assert {name for name in of_class if of_class[name] == "movable"} == {"Car", "Pedestrian", "Bicyclist"}
    assert of_class["Road"] == "road + lane marking"
    other = find_translation(COMMA10K, "camvid", CAMVID)
    assert other.labels.names == (
        "Sky + Building + Pole + Pavement + Tree + SignSymbol + Fence",
        "Road",
        "Car + Pedestrian + Bicyclist",
    )
    assert other.label_of == (1, 1, 0, 2, IGNORE)


def test_labels_are_joined_through_several_classes():
    rows = (
        "class, colour, net, data",
        *(f"{i}, 000000, {row}" for i, row in enumerate(("n, a", "n, b", "m, b", "m, c", "k, d"))),
    )
    table = parse_class_table("\n".join(rows), "it")
    names = [Classes(tuple(names), ((0, 0, 0),) * len(names)) for names in ("nmk", "abcd")]
    found = find_translation(names[0], "data", names[1], table)
    assert (found.labels.names, found.label_of, found.joined) == (("a + b + c", "d"), (0, 0, 1), (0, 0, 0, 1))


def test_names_may_differ_in_case_spaces_and_order():
    names = tuple(name.upper().replace("SIGN", "sign_").replace("FENCE", "f e nce") for name in CAMVID.names)
    found = find_translation(Classes(names[::-1], CAMVID.colours), "camvid", CAMVID)
    assert (found.label_of, found.labels, found.renamed()) == (tuple(range(11))[::-1], CAMVID, {})


def test_the_column_of_the_data_set_comes_before_others_with_the_same_labels():
    table = parse_class_table("class, colour, one, two\na, 000000, b, a\nb, 000000, a, b\n", "it")
    assert find_translation(table.classes, "one", table.classes, table).label_of == (1, 0)
    assert find_translation(table.classes, "two", table.classes, table).label_of == (0, 1)
    with pytest.raises(ValueError, match="the label 'b' in column one, which is none of its labels"):
        find_translation(table.classes, "one", Classes(("a", "c"), ((0, 0, 0),) * 2), table)


def test_names_that_differ_in_case_only_stay_apart():
    labels = Classes(("car", "Car"), ((0, 0, 0),) * 2)
    assert find_translation(labels, "it", labels).label_of == (0, 1)


def test_a_given_table_is_used_and_must_have_both_class_sets():
    table = parse_class_table(TABLE, "it")
    pq = Classes(("q", "p"), ((0, 0, 0), (1, 1, 1)))
    assert find_translation(table.classes, "one", ABC, table).label_of == (0, 0, 1, 2)
    assert find_translation(table.classes, "any name", ABC, table).label_of == (0, 0, 1, 2)
    assert find_translation(pq, "one", ABC, table).labels.names == ("a + b", "c")
    with pytest.raises(ValueError, match="neither as classes nor in a column those of the network, Sky, Building"):
        find_translation(CAMVID, "one", ABC, table)
    with pytest.raises(ValueError, match="no column camvid, only one, two"):
        find_translation(pq, "camvid", CAMVID, table)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        (["two"], "No label of two means the class 'w'"),
        (["one"], "'x' and 'y' have the same labels in one, which cannot tell them apart"),
    ],
)
def test_classes_that_the_data_sets_cannot_teach_are_refused(datasets, message):
    with pytest.raises(ValueError, match=message):
        parse_class_table(TABLE, "it").check_teachable(datasets)
    parse_class_table(TABLE, "it").check_teachable(["one", "two"])


@pytest.mark.parametrize(
    ("column", "names", "message"),
    [
        ("three", "abc", "no column three, only one, two"),
        ("one", "abcd", "no class for the label 'd' of one"),
        ("one", "ab", "the label 'c' in column one, which is none of its labels"),
    ],
)
def test_a_table_that_does_not_fit_the_data_set_is_refused(column, names, message):
    labels = Classes(tuple(names), ((0, 0, 0),) * len(names))
    with pytest.raises(ValueError, match=message):
        parse_class_table(TABLE, "it").label_of(column, labels)


def test_a_misspelt_label_gets_a_suggestion():
    table = parse_class_table("class, colour, camvid\nx, 000000, Raod\n", "it")
    with pytest.raises(ValueError, match="Did you mean 'Road'"):
        table.label_of("camvid", CAMVID)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no class table"),
        ("name, colour, camvid\n", "no class table"),
        ("class, colour\nx, 000000\n", "no class table"),
        ("class, colour, a, a\nx, 000000, p, p\n", "two columns of the same name"),
        ("class, colour, a\nx, 000000\n", "expected 3 cells"),
        ("class, colour, a\nx, 000000,\n", "expected 3 cells"),
        ("class, colour, a\nx, purple, p\n", "'purple' is not a colour"),
        ("class, colour, a\nx, 000000, p\nx, 000000, q\n", "Two classes are called 'x'"),
        ("class, colour, a\n", "0 classes"),
    ],
)
def test_a_damaged_table_gets_one_sentence(text, message):
    with pytest.raises(ValueError, match=message):
        parse_class_table(text, "it")


def test_tables_are_opened_by_name_or_read_from_a_file(tmp_path):
    assert open_class_table("street") is STREET_TABLE
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    assert open_class_table(str(path)) == read_class_table(path) == parse_class_table(TABLE, "it")
    with pytest.raises(ValueError, match="No class table is called 'steet': did you mean street"):
        open_class_table("steet")
    with pytest.raises(FileNotFoundError, match="No class table at"):
        open_class_table(str(tmp_path / "none.csv"))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_class_table(path)


TWO_FOLDERS = """class, colour, folder, folder2
Road, 804080, road, {}
Forklift, ff8000, truck, {}
Person, dc143c, person, {}
"""
FOLDER = Classes(("road", "truck", "person"), ((0, 0, 0), (1, 1, 1), (2, 2, 2)))


def test_the_column_of_two_folders_whose_labels_fit_is_found():
    table = parse_class_table(TWO_FOLDERS.format("lane", "machine", "machine"), "it")
    second = Classes(("machine", "lane"), ((0, 0, 0), (1, 1, 1)))
    assert find_translation(table.classes, "folder", FOLDER, table).label_of == (0, 1, 2)
    assert find_translation(table.classes, "folder", second, table).label_of == (1, 0, 0)
    with pytest.raises(ValueError, match="^The class table has the label 'road' in column folder, which is none of "):
        find_translation(table.classes, "folder", CAMVID, table)


def test_one_of_two_columns_with_the_same_labels_in_other_rows_must_be_named(tmp_path):
    file = tmp_path / "table.txt"
    file.write_text(TWO_FOLDERS.format("road", "person", "truck"))
    table = read_class_table(file)
    with pytest.raises(
        ValueError,
        match="^road, truck, person are in the columns folder and folder2 of the class table, in different rows: give a"
        " table with one of these columns, or name it: --class-table FILE:folder2.$",
    ):
        find_translation(table.classes, "folder", FOLDER, table)
    with pytest.raises(ValueError, match="in different rows: give a table with one of these columns.$"):
        find_translation(FOLDER, "camvid", FOLDER, table)
    for column, expected in (("folder", (0, 1, 2)), ("folder2", (0, 2, 1))):
        named = open_table_of(f"{file}:{column}", "folder")
        assert find_translation(table.classes, "folder", FOLDER, named).label_of == expected
    assert open_table_of(str(file), "folder") == table
    assert open_table_of("street:comma10k", "comma10k") == STREET_TABLE
    with pytest.raises(ValueError, match="table.txt has no column 'folder3', only folder, folder2.$"):
        open_table_of(f"{file}:folder3", "folder")
    with pytest.raises(FileNotFoundError, match="^No class table at C:"):
        open_table_of("C:\\table.txt", "folder")
    # the same rows in both are no question
    same = parse_class_table(TWO_FOLDERS.format("road", "truck", "person"), "it")
    assert find_translation(same.classes, "folder", FOLDER, same).label_of == (0, 1, 2)
