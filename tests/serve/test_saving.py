import io
import json
import os

import numpy
import pytest
import torch
from PIL import Image
from serving import PICTURE, ZONE, run_server, send_zones

import streamseg
from streamseg.data.datasets import folder as read_folder
from streamseg.io.files import UNFINISHED
from streamseg.io.images import read_image, write_labels
from streamseg.regions.zones import read_zones
from streamseg.serve import DataFolder, saving

BOUNDARY = "----boundary"
SIZE = Image.open(io.BytesIO(PICTURE)).size[::-1]


def form(**parts):
    """A form with files."""
    body = b""
    for name, data in parts.items():
        body += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n\r\n'.encode()
        body += data + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def label_file(labels):
    file = io.BytesIO()
    write_labels(file, torch.as_tensor(labels, dtype=torch.uint8), streamseg.CAMVID)
    return file.getvalue()


def picture_file(format="PNG", colour=(10, 20, 30)):
    file = io.BytesIO()
    Image.new("RGB", SIZE[::-1], colour).save(file, format=format)
    return file.getvalue()


def save(server, name="street", **parts):
    return server.ask(f"/data/{name}", form(**parts), "PUT", Content_Type=f"multipart/form-data; boundary={BOUNDARY}")


LABELS = numpy.arange(SIZE[0] * SIZE[1]).reshape(SIZE) % 11


@pytest.fixture
def saved(tmp_path):
    """A server that saves into an empty folder, and the folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    with run_server(folder=folder) as server:
        yield server, folder


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_saved_pictures_are_a_data_set(saved):
    server, folder = saved
    for i in range(5):
        answer = save(server, f"street-{i}", picture=picture_file(colour=(i, 0, 0)), labels=label_file(LABELS))
        assert (answer.status, answer.json) == (200, {"saved": [f"images/street-{i}.png", f"labels/street-{i}.png"]})
    data = read_folder(folder, "val")
    assert data.classes == streamseg.CAMVID
    (pair,) = data.pairs
    assert numpy.array_equal(data.read_labels(pair.labels).numpy(), LABELS)
    assert read_image(pair.image)[0, 0, 0] == 4


def test_a_picture_keeps_its_bytes_and_its_labels_can_be_corrected_again(saved):
    server, folder = saved
    jpeg = picture_file("JPEG")
    assert save(server, picture=jpeg, labels=label_file(LABELS)).json["saved"][0] == "images/street.jpg"
    changed = LABELS.copy()
    changed[:4] = 255
    assert save(server, picture=jpeg, labels=label_file(changed)).status == 200
    assert files(folder) == ["classes.txt", "images/street.jpg", "labels/street.png"]
    assert (folder / "images/street.jpg").read_bytes() == jpeg
    assert numpy.array_equal(numpy.array(Image.open(folder / "labels/street.png")), changed)
    assert save(server, "photo", picture=picture_file("WEBP"), labels=label_file(LABELS)).status == 200
    assert Image.open(folder / "images/photo.png").format == "PNG"


def test_another_picture_of_the_same_name_is_not_overwritten(saved):
    server, folder = saved
    first = picture_file()
    save(server, picture=first, labels=label_file(LABELS))
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    for name, data in (
        ("street", picture_file(colour=(9, 9, 9))),
        ("STREET", first),
        ("street", picture_file("JPEG", (99, 0, 0))),
    ):
        answer = save(server, name, picture=data, labels=label_file(LABELS * 0))
        assert answer.status == 409
        assert answer.json["error"] == "The data folder has another picture called street.png: give another name."
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


ESCAPES = ("..%2fout", "..", ".hidden", "a%2fb", "%2fetc%2fpasswd", "a%5cb", "a%00b")
UNFIT = ("x" * 101, "con", "NUL.txt", "a.", "%20", "stra%C3%9Fe")


@pytest.mark.parametrize("name", [*ESCAPES, *UNFIT])
def test_a_name_cannot_lead_out_of_the_folder(saved, name):
    server, folder = saved
    for answer in (
        save(server, name, picture=PICTURE, labels=label_file(LABELS)),
        send_zones(server, {"zone": [ZONE]}, f"/zones/{name}", "PUT"),
    ):
        assert answer.status in (404, 405, 422)
        assert answer.json["error"].endswith(".")
    assert files(folder.parent) == []


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
@pytest.mark.parametrize("link", ["images", "labels", "labels/street.png", "images/street.png", "zones"])
def test_links_that_lead_out_of_the_folder_are_not_followed(saved, tmp_path, link):
    server, folder = saved
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"mine")
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(outside / "file" if link.endswith(".png") else outside)
    if link == "zones":
        answer = send_zones(server, {"zone": [ZONE]}, "/zones/street", "PUT")
    else:
        answer = save(server, picture=PICTURE, labels=label_file(LABELS))
    assert answer.status == 409
    assert "is a link out of the data folder: give another name." in answer.json["error"]
    assert [path.read_bytes() for path in outside.iterdir()] == [b"mine"]


def test_labels_of_another_size_are_one_sentence(saved):
    server, folder = saved
    answer = save(server, picture=PICTURE, labels=label_file(numpy.zeros((7, 9))))
    height, width = SIZE
    expected = f"The labels are 7 x 9, the picture is {height} x {width}: send labels of the picture's size."
    assert (answer.status, answer.json) == (422, {"error": expected})
    assert files(folder) == []


def test_labels_of_foreign_classes_are_one_sentence(saved):
    server, folder = saved
    answer = save(server, picture=PICTURE, labels=label_file(LABELS + 2))
    expected = "The labels hold 11–12; expected classes 0 to 10, or 255 for pixels without a class."
    assert answer.status == 422
    assert answer.json["error"].replace("-", "–") == expected
    names = json.dumps(["road", "car"]).encode()
    answer = save(server, picture=PICTURE, labels=label_file(LABELS), classes=names)
    assert answer.status == 422
    assert answer.json["error"].startswith("The labels are of other classes (road, car) than the data folder (Sky, ")
    assert answer.json["error"].endswith("load the page again.")
    assert save(server, picture=PICTURE, labels=label_file(LABELS), classes=b"[").status == 422
    assert files(folder) == []
    right = json.dumps(streamseg.CAMVID.names).encode()
    assert save(server, picture=PICTURE, labels=label_file(LABELS), classes=right).status == 200


@pytest.mark.parametrize(
    ("parts", "status", "sentence"),
    [
        ({"labels": label_file(LABELS)}, 400, "The form has no picture: send the files picture and labels."),
        ({"picture": PICTURE}, 400, "The form has no labels: send the files picture and labels."),
        ({"picture": b"hello", "labels": label_file(LABELS)}, 415, "The data is no picture"),
        ({"picture": PICTURE, "labels": b"hello"}, 415, "The data is no picture"),
        ({"picture": PICTURE, "labels": PICTURE}, 400, "The labels' file is a colour picture (RGB), expected ids"),
        ({"picture": PICTURE, "labels": picture_file("JPEG")}, 415, "The labels' file is no PNG: send one"),
        ({"picture": PICTURE[:200], "labels": label_file(LABELS)}, 400, "The picture is damaged"),
    ],
)
def test_a_wrong_form_is_one_sentence(saved, parts, status, sentence):
    server, folder = saved
    answer = save(server, **parts)
    assert answer.status == status
    assert answer.json["error"].startswith(sentence)
    assert server.ask("/data/street", b"no form", "PUT").status == 400
    assert files(folder) == []


def test_a_failed_save_leaves_nothing_behind(saved, monkeypatch):
    server, folder = saved

    def fail(path, labels, classes):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_labels", fail)
    answer = save(server, picture=PICTURE, labels=label_file(LABELS))
    assert (answer.status, answer.json["error"]) == (
        507,
        "street could not be saved (No space left on device): see the server's log.",
    )
    assert files(folder) == ["classes.txt"]
    assert not [path for path in folder.rglob("*") if path.name.startswith(UNFINISHED)]


def test_zones_are_saved_as_a_file_that_segment_reads(saved):
    server, folder = saved
    answer = send_zones(server, {"zone": [ZONE]}, "/zones/door", "PUT")
    assert (answer.status, answer.json) == (200, {"saved": ["zones/door.json"]})
    (zone,) = read_zones(folder / "zones" / "door.json")
    assert (zone.name, zone.classes) == ("a", ("car",))
    assert send_zones(server, {"zone": [ZONE | {"points": [[0, 0]]}]}, "/zones/door", "PUT").status == 422
    assert len(read_zones(folder / "zones" / "door.json")) == 1


def test_pages_of_other_sites_and_clients_without_the_token_save_nothing(tmp_path):
    with run_server(folder=tmp_path, token="secret") as server:
        assert save(server, picture=PICTURE, labels=label_file(LABELS)).status == 401
        for path in ("/data/a", "/zones/a"):
            answer = server.ask(path, b"{}", "PUT", Authorization="Bearer secret", Origin="http://elsewhere")
            assert answer.status == 403
    assert files(tmp_path) == []


def test_a_server_without_a_folder_saves_nothing():
    with run_server() as server:
        for path in ("/data/a", "/zones/a"):
            answer = server.ask(path, b"{}", "PUT")
            expected = "This server saves nothing: start it with --save FOLDER."
            assert (answer.status, answer.json) == (404, {"error": expected})


def test_a_folder_that_does_not_fit_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="No folder .*none to save into: create it first"):
        DataFolder(tmp_path / "none", streamseg.CAMVID)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is a file; expected a folder to save into"):
        DataFolder(tmp_path / "file", streamseg.CAMVID)
    (tmp_path / "classes.txt").write_text("road\ncar\n")
    with pytest.raises(
        ValueError, match="classes.txt lists road, car; the network has Sky, .*: give another folder for --save"
    ):
        DataFolder(tmp_path, streamseg.CAMVID)
    (tmp_path / "images" / "train").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"has splits \(train\), and pictures cannot be added beside them"):
        DataFolder(tmp_path, streamseg.CAMVID)
