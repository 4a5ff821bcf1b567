"""serve --fleet: the cameras of a fleet file as sources."""

import base64
import json
import re
import signal
import subprocess
import sys
import zlib
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import numpy
import pytest
import torch
from clips import make_clip
from commands import complaint
from exports import exported as exported
from PIL import Image
from serving import leave, next_picture, open_view
from waiting import PATIENCE, until
from websockets.sync.client import connect

import streamseg
from streamseg.cli.fleets import fleet_settings
from streamseg.draw import overlay
from streamseg.engine.engine import EagerEngine
from streamseg.engine.open import open_engine
from streamseg.io.fleet import read_fleet
from streamseg.io.sources import VideoFile
from streamseg.stream.bonnet import find_bonnet
from streamseg.stream.label_frames import label_frame
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.state import LastFrames

SIZE = (48, 64)
FRAMES = 6
FLEET = """
[defaults]
size = "64x96"
out = "-"
labels = true

[[camera]]
name = "small"
address = "road.mp4"
size = "32x32"

[[camera]]
name = "masked"
address = "road.mp4"
mask = "mask.png"

[[camera]]
name = "coloured"
address = "road.mp4"
classes = ["OwnCar"]
overlay = false

[[camera]]
name = "bonnet"
address = "road.mp4"
mask = "bonnet"

[[camera]]
name = "square"
address = "road.mp4"
mask = "square.png"

[[camera]]
name = "gate"
address = "rtsp://me:secret@127.0.0.1:9/live"
"""
ZONE = '[[zone]]\nname = "all"\npoints = [[0, 0], [1, 0], [1, 1], [0, 1]]\nclasses = ["OwnCar"]\n'


@dataclass(frozen=True)
class ServedFleet:
    """A running command, its video, and the classes of its network, one of which is the own car."""

    process: subprocess.Popen
    port: int
    video: Path
    classes: streamseg.Classes
    log: Path

    def get(self, path):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def receive(self, name):
        """Return the next event of a source, and its labels."""
        until(lambda: json.loads(self.get("/streams"))[name]["up"])
        with connect(f"ws://127.0.0.1:{self.port}/streams/{name}/events?labels=true") as events:
            event = json.loads(events.recv(PATIENCE))
        labels = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(event["labels"]))), dtype=torch.uint8)
        return event, labels.view(event["height"], event["width"])

    def picture(self, name):
        """Return the next overlay of a source."""
        until(lambda: json.loads(self.get("/streams"))[name]["up"])
        connection, response = open_view(self, name)
        picture = next_picture(response)
        leave(connection, response)
        return torch.from_numpy(numpy.array(picture)).permute(2, 0, 1)

    def frame(self, index):
        return list(streamseg.read_frames(self.video))[index]

    def overlays(self, model, size, only):
        """Return the overlay of each frame, with the classes of these numbers."""
        labelled = [(frame, label_frame(model, frame, size=size)[0]) for frame in streamseg.read_frames(self.video)]
        return [overlay(frame, labels, self.classes, only=only, borders=True) for frame, labels in labelled]


def draw_mask(path, size=SIZE):
    """The lower half is black."""
    height, width = size
    mask = Image.new("L", (width, height), 255)
    mask.paste(0, (0, height // 2, width, height))
    mask.save(path)


def find_lower_class(model, video):
    """Return the most frequent class in the lower half of a video."""
    labels = [labels[SIZE[0] // 2 :] for _, labels in streamseg.label_frames(model, streamseg.read_frames(video))]
    return torch.stack(labels).flatten().bincount(minlength=11).argmax().item()


@pytest.fixture(scope="module")
def served(model, tmp_path_factory):
    """The command with a fleet in another folder, one more source and a zone, until Ctrl-C."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "cameras").mkdir()
    video = make_clip(folder / "cameras/road.mp4", FRAMES, size=SIZE)
    draw_mask(folder / "cameras/mask.png")
    draw_mask(folder / "cameras/square.png", (48, 48))
    (folder / "cameras/fleet.toml").write_text(FLEET)
    (folder / "zone.toml").write_text(ZONE)
    car = find_lower_class(model, video)
    names = tuple("OwnCar" if i == car else f"class{i}" for i in range(11))
    classes = streamseg.Classes(names, streamseg.CAMVID.colours)
    streamseg.save(model, classes, folder / "own.safetensors")
    command = [sys.executable, "-m", "streamseg", "serve", "own.safetensors", "--port", "0", "--device", "cpu"]
    command += ["--fleet", "cameras/fleet.toml", "--source", "more=cameras/road.mp4", "--zones", "small=zone.toml"]
    command += ["--steady", "off", "--window", "1", "--hardware-decoding", "auto", "--palette", "own"]
    log = folder / "log.txt"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            port = int(re.search(r":(\d+) serves own\.safetensors\.", process.stdout.readline())[1])
            yield ServedFleet(process, port, video, classes, log)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 128 + signal.SIGINT
        finally:
            process.kill()
    assert sorted(path.name for path in folder.rglob("*")) == sorted(
        ["cameras", "fleet.toml", "mask.png", "square.png", "road.mp4", "own.safetensors", "zone.toml", "log.txt"]
    )


def agree(labels, expected):
    return (labels == expected).float().mean() > 0.99


def min_distance(picture, others):
    """Return the distance of a picture, which was a JPEG, to the nearest of others."""
    return min((picture.float() - other).abs().mean().item() for other in others)


def test_cameras_and_sources_add_up(served):
    names = ["small", "masked", "coloured", "bonnet", "square", "gate", "more"]
    assert json.loads(served.get("/info"))["sources"] == names
    assert [*json.loads(served.get("/streams"))] == names


def test_a_camera_has_its_own_network_input_size(served, model):
    for name, size in (("small", (32, 32)), ("coloured", (64, 96)), ("more", SIZE)):
        event, labels = served.receive(name)
        frame = served.frame(event["frame"])
        expected = {given: label_frame(model, frame, size=given)[0] for given in ((32, 32), (64, 96), SIZE)}
        assert [given for given in expected if agree(labels, expected[given])] == [size]


def test_a_camera_has_its_own_mask(served, model):
    event, labels = served.receive("masked")
    looked_at = torch.zeros(SIZE, dtype=torch.bool)
    looked_at[: SIZE[0] // 2] = True
    frame = served.frame(event["frame"])
    assert agree(labels, label_frame(model, frame, size=(64, 96), mask=looked_at)[0])
    assert labels.eq(255).equal(~looked_at)
    assert served.receive("more")[1].ne(255).all()


def test_a_camera_whose_mask_has_other_proportions_is_told_and_the_others_go_on(served):
    until(lambda: "square.png has 48 x 48 pixels and the frames 48 x 64" in served.get("/streams/square.mjpeg"))
    assert json.loads(served.get("/streams"))["square"]["up"] is False
    served.receive("more")


def test_a_camera_has_its_own_coloured_classes(served, model):
    car = served.classes.find("OwnCar")
    for name, size, only, other in (("coloured", (64, 96), (car,), ()), ("more", SIZE, (), (car,))):
        picture = served.picture(name)
        near, far = (min_distance(picture, served.overlays(model, size, numbers)) for numbers in (only, other))
        assert 3 * near < far


def test_the_own_car_of_a_camera_is_found_in_its_first_frames(served, model):
    _, labels = served.receive("bonnet")
    mask = find_bonnet(EagerEngine(model), served.classes, VideoFile("a", str(served.video)), (64, 96))
    assert mask.hides
    assert agree(labels.eq(255), ~mask.looked_at)
    hidden = 1 - mask.looked_at.double().mean()
    assert f"streamseg: bonnet: the own car, {hidden:.0%} of the frame, is left out.\n" in served.log.read_text()


def test_a_camera_has_zones_by_its_name(served):
    until(lambda: json.loads(served.get("/streams/small/zones")).get("zones"))
    assert json.loads(served.get("/streams/small/zones"))["zones"][0]["zone"] == "all"
    assert "masked has no zones" in served.get("/streams/masked/zones")


def test_a_camera_that_is_away_gets_a_sentence_without_its_password(served):
    until(lambda: "Connection refused" in served.get("/streams/gate.mjpeg"))
    until(lambda: "gate delivers no frames: rtsp://127.0.0.1:9/live cannot be read" in served.log.read_text())
    shown = [served.get(path) for path in ("/streams", "/streams/gate.mjpeg", "/info", "/metrics")]
    assert "secret" not in "".join([*shown, served.log.read_text()])


@pytest.mark.parametrize(
    ("line", "arguments", "sentence"),
    [
        ("sise = 3", "", "fleet.toml, camera 'one': there is no key 'sise': did you mean size?"),
        ('size = "3x3"', "", "fleet.toml, camera 'one': size is '3x3'; expected a height and a width"),
        ('mask = "away.png"', "", "fleet.toml, camera 'one': There is no mask at away.png"),
        ('mask = "bonnet"', "", "--mask bonnet needs weights with a class of the own car, and these have Sky"),
        ('classes = ["rode"]', "", "Camera 'one': No class is called 'rode'; there are "),
        ("", "--source one=road.mp4", "Two sources are called one: give each a name of its own."),
        (
            '[[camera]]\nname = "back yard"\naddress = 0',
            "",
            "fleet.toml, camera 'back yard': serve has the name in its addresses; expected letters, digits, _ and -.",
        ),
        (
            '[[camera]]\nname = "desk"\naddress = "/dev/video97"',
            "",
            "desk: No camera at /dev/video97: is it plugged in?",
        ),
        (
            '[[camera]]\nname = "b"\naddress = "ftp://me:secret@h/x"',
            "",
            "fleet.toml, camera 'b': ftp://h/x is no address",
        ),
    ],
)
def test_what_is_wrong_with_a_served_fleet_is_one_sentence(
    model, tmp_path, monkeypatch, capsys, line, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    make_clip(Path("road.mp4"), 2)
    streamseg.save(model, streamseg.CAMVID, "w.safetensors")
    Path("fleet.toml").write_text(f'[[camera]]\nname = "one"\naddress = "road.mp4"\n{line}\n')
    options = ("w.safetensors", "--port", "0", "--device", "cpu", "--fleet", "fleet.toml", *arguments.split())
    shown = complaint(monkeypatch, capsys, "serve", *options)
    assert shown.startswith(f"streamseg: {sentence}")
    assert "secret" not in shown


def test_an_exported_file_takes_no_mask_of_a_camera(exported, tmp_path):
    make_clip(tmp_path / "road.mp4", 2)
    draw_mask(tmp_path / "mask.png")
    fleet = tmp_path / "fleet.toml"
    fleet.write_text('[[camera]]\nname = "one"\naddress = "road.mp4"\nmask = "mask.png"\n')
    engine, classes, _ = open_engine(exported("still.onnx"), torch.device("cpu"))
    settings = LabelSettings(engine, classes, LastFrames(1))
    with pytest.raises(ValueError, match="^The weights are an exported file: leave out the mask of 'one'"):
        fleet_settings(read_fleet(fleet)[0], settings, DrawStyle())
