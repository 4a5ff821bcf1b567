from pathlib import Path

import pytest
from source_files import film, numbers, paint

from streamseg.io.fleet import read_fleet
from streamseg.io.sources import LiveSource, NumberedPictures, VideoFile

FLEET = """
[defaults]
size = "360x640"
out = "recordings"
labels = true

[[camera]]
name = "front"
address = "rtsp://me:secret@10.0.0.2/live"
classes = ["Road", "Car"]

[[camera]]
name = "rear"
address = "http://10.0.0.3/video?token=secret"
size = "180x320"
out = "rear.mp4"
labels = false
overlay = true
"""


def write(text):
    Path("fleet.toml").write_text(text, encoding="utf-8")
    return Path("fleet.toml")


def camera(*lines, name='"front"', address='"rtsp://h/live"'):
    """A fleet of one camera, with further lines."""
    return write("\n".join(["[[camera]]", f"name = {name}", f"address = {address}", *lines]))


def test_a_fleet_is_a_table_for_each_camera_over_the_defaults(here):
    (front, rear), missing = read_fleet(write(FLEET))
    assert missing == []
    assert (front.name, front.size, front.classes, front.out) == ("front", "360x640", ("Road", "Car"), "recordings")
    assert front.outputs == {"labels": True}
    assert (rear.name, rear.size, rear.classes, rear.out) == ("rear", "180x320", (), "rear.mp4")
    assert rear.outputs == {"labels": False, "overlay": True}
    for one in (front, rear):
        assert isinstance(one.source, LiveSource)
        assert one.source.name == one.name
        assert "secret" not in f"{one}"
    assert front.source.address == "rtsp://me:secret@10.0.0.2/live"


def test_network_addresses_are_not_asked(here, monkeypatch):
    def never(*_):
        raise AssertionError("was asked")

    monkeypatch.setattr("streamseg.io.web.open_address", never)
    (one,), _ = read_fleet(camera(address='"http://127.0.0.1:9/camera"'))
    assert one.source.live


def test_a_camera_of_this_machine_and_a_video_beside_the_file_belong_to_a_fleet_too(here):
    Path("sub").mkdir()
    film("sub/drive.mp4")
    text = '[[camera]]\nname = "desk"\naddress = 0\n[[camera]]\nname = "road"\naddress = "drive.mp4"\n'
    Path("sub/fleet.toml").write_text(text)
    (desk, road), _ = read_fleet(Path("sub/fleet.toml"))
    assert isinstance(desk.source, LiveSource)
    assert isinstance(road.source, VideoFile)
    assert (desk.source.name, desk.source.address, road.source.name) == ("desk", "0", "road")
    assert numbers(road.source) == list(range(6))


def test_numbered_pictures_beside_the_file_belong_to_a_fleet_too(here):
    Path("sub").mkdir()
    for number in range(3):
        paint(f"sub/frame_{number:04d}.png", number)
    Path("sub/fleet.toml").write_text('[[camera]]\nname = "road"\naddress = "frame_%04d.png"\n')
    (road,), _ = read_fleet(Path("sub/fleet.toml"))
    assert isinstance(road.source, NumberedPictures)
    assert numbers(road.source) == [0, 1, 2]


def test_a_camera_that_is_not_there_is_a_problem_of_its_own(here):
    text = '[[camera]]\nname = "desk"\naddress = "/dev/video97"\n'
    cameras, (problem,) = read_fleet(write(f"{FLEET}\n{text}"))
    assert [one.name for one in cameras] == ["front", "rear"]
    assert str(problem) == "desk: No camera at /dev/video97: is it plugged in?"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("camera = 3", r"^fleet.toml: camera is no list of tables; expected \[\[camera\]\], in double brackets"),
        ("[camera]\nname = 'a'", "^fleet.toml: camera is no list of tables"),
        ("defaults = 3", "^fleet.toml: defaults is no table"),
        ("[default]\nsize = '3x3'", "^fleet.toml: there is no key 'default': did you mean defaults"),
        ("[defaults]\nname = 'a'\n[[camera]]", r"^fleet.toml, \[defaults\]: there is no key 'name': .*Keys are size, "),
        ("", r"^fleet.toml names no camera: give each a table \[\[camera\]\] with a name and an address\.$"),
        ("[[camera]", r"^fleet.toml is not a fleet file that can be read: .*line 1.*\.$"),
        ("[[camera]]\naddress = 'rtsp://h/a'", "^fleet.toml, camera 1: it has no name: add one, such as name = "),
        ("[[camera]]\nname = 'a'", "^fleet.toml, camera 'a': it has no address: add one, such as address = "),
        ("[[camera]]\nname = 'a'\naddress = ''", "^fleet.toml, camera 'a': it has no address"),
        ("[[camera]]\nname = 'a/b'\naddress = '0'", "^fleet.toml, camera 'a/b': the name cannot be that of a file"),
        ("[[camera]]\nname = 3\naddress = '0'", "^fleet.toml, camera 1: name is 3; expected a text in quotation marks"),
        (
            "[[camera]]\nname = 'a'\naddress = '0'\n[[camera]]\nname = 'A'\naddress = '1'",
            "^fleet.toml, camera 'A': there are two cameras of this name: give each its own",
        ),
        ("[[camera]]\nname = 'a'\nadress = '0'", "camera 'a': there is no key 'adress': did you mean address"),
        ("[[camera]]\nname = 'a'\naddress = '0'\nsize = [3]", r"camera 'a': size is \[3\]; expected a text"),
        ("[[camera]]\nname = 'a'\naddress = '0'\nclasses = 'Road'", "classes is 'Road'; expected a list of names"),
        ("[[camera]]\nname = 'a'\naddress = '0'\nclasses = [3]", r"classes is \[3\]; expected a list of names"),
        ("[[camera]]\nname = 'a'\naddress = '0'\nlabels = 1", "labels is 1; expected true or false"),
        ("[[camera]]\nname = 'a'\naddress = true", "address is something else; expected a text in quotation marks, or"),
        ("[[camera]]\nname = 'a'\naddress = 'ftp://me:secret@h/a'", "camera 'a': ftp://h/a is no address that can be"),
        ("[[camera]]\nname = 'a'\naddress = 'rtsp://me:secret@:x/'", "camera 'a': rtsp://:x/ is no address"),
        ("[[camera]]\nname = 'a'\naddress = 'a.png'", "camera 'a': a.png is no camera and no video"),
        ("[[camera]]\nname = 'a'\naddress = 'sub'", "camera 'a': sub is no camera and no video"),
    ],
)
def test_what_is_wrong_with_a_fleet_file_is_one_sentence_with_its_place(here, lines, sentence):
    paint("a.png", 1)
    Path("sub").mkdir()
    paint("sub/a.png", 1)
    paint("sub/b.png", 1)
    with pytest.raises(ValueError, match=sentence) as problem:
        read_fleet(write(lines))
    assert "secret" not in str(problem.value)
    assert str(problem.value).endswith(".")
    assert "\n" not in str(problem.value)


def test_a_fleet_file_that_cannot_be_read_is_told(here):
    with pytest.raises(FileNotFoundError, match=r"^The fleet file nowhere\.toml cannot be read: No such file"):
        read_fleet(Path("nowhere.toml"))
    Path("b.toml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ValueError, match=r"^b\.toml is not a fleet file that can be read: it is no text in UTF-8\."):
        read_fleet(Path("b.toml"))
