"""segment --mask and --together."""

import json
from pathlib import Path

import pytest
import torch
from clips import make_clip
from commands import error_line, run
from PIL import Image
from segment_run import paint

import streamseg
from streamseg.data.datasets import folder
from streamseg.io.images import read_label_ids
from streamseg.io.video_reading import read_label_video
from streamseg.stream.together import label_together

SIZE = (48, 64)


def draw_mask(path="mask.png", size=SIZE, black=16):
    height, width = size
    drawn = Image.new("L", (width, height), 255)
    drawn.paste(0, (0, height - black, width, height))
    drawn.save(path)


def read_labels(path):
    return [labels for labels, *_ in read_label_video(Path(path))]


def read_records(path="log.jsonl"):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_what_a_mask_hides_has_no_class_and_counts_nowhere(here, segment, model):
    paint("a.png", size=SIZE)
    draw_mask()
    options = ("--labels", "--json", "log.jsonl", "--regions", "regions.jsonl", "--min-area", "1")
    assert segment("a.png", "out", "--mask", "mask.png", *options) == 0
    labels = read_label_ids(Path("out/a-labels.png"))
    expected = streamseg.segment("a.png", model, mask="mask.png")
    assert labels.eq(expected).float().mean() > 0.99
    assert labels[32:].eq(255).all()
    assert labels[:32].ne(255).all()
    shares = read_records()[0]["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    regions = read_records("regions.jsonl")[0]["regions"]
    assert sum(region["area"] for region in regions) == 32 * 64
    # the picture shows through
    drawn = streamseg.read_image("out/a-overlay.png")
    assert drawn[:, 34:].equal(streamseg.read_image("a.png")[:, 34:])


def test_a_mask_holds_for_every_frame_of_a_video_with_its_window(here, segment, model):
    make_clip(Path("a.mp4"), 4, size=SIZE)
    draw_mask(size=(96, 128), black=32)  # of the same proportions
    options = ("--labels", "--no-overlay", "--window", "2", "--steady", "off")
    assert segment("a.mp4", "out", "--mask", "mask.png", *options) == 0
    found = read_labels("out/a-labels.mkv")
    expected = [x for _, x in streamseg.label_frames(model, streamseg.read_frames("a.mp4"), 2, mask="mask.png")]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[32:].eq(255).all()
        assert ours.eq(theirs).float().mean() > 0.99


def test_a_fleet_has_a_mask_for_each_camera(here, segment):
    for name in ("a", "b"):
        make_clip(Path(f"{name}.mp4"), 2, size=SIZE)
    draw_mask()
    Path("fleet.toml").write_text(
        '[[camera]]\nname = "front"\naddress = "a.mp4"\nmask = "mask.png"\nlabels = true\n'
        '[[camera]]\nname = "rear"\naddress = "b.mp4"\nlabels = true\n'
    )
    assert segment("--fleet", "fleet.toml", "--no-overlay") == 0
    front, rear = (read_labels(f"segmented/{name}-labels.mkv")[0] for name in ("front", "rear"))
    assert front[32:].eq(255).all()
    assert rear.ne(255).all()


def test_cameras_that_look_together_label_as_label_together_does(here, segment, model):
    for name, count in (("a", 3), ("b", 2)):  # one ends before the other
        make_clip(Path(f"{name}.mp4"), count, size=SIZE)
    options = ("--labels", "--no-overlay", "--window", "2", "--steady", "off", "--together")
    assert segment("a.mp4", "b.mp4", "out", *options) == 0
    found = {name: read_labels(f"out/{name}-labels.mkv") for name in ("a", "b")}
    assert {name: len(labels) for name, labels in found.items()} == {"a": 3, "b": 2}
    states = None
    frames = zip(streamseg.read_frames("a.mp4"), streamseg.read_frames("b.mp4"), strict=False)
    for number, pair in enumerate(frames):
        labels, states = label_together(model, pair, states, 2)
        for name, expected in zip(("a", "b"), labels, strict=True):
            assert found[name][number].eq(expected).float().mean() > 0.99


def test_bonnet_is_the_own_car_as_the_network_sees_it(here, segment, model, capsys):
    make_clip(Path("a.mp4"), 3, size=SIZE)
    frames = [labels for _, labels in streamseg.label_frames(model, streamseg.read_frames("a.mp4"))]
    common = torch.stack(frames)[:, 24:].flatten().bincount(minlength=11).argmax().item()
    names = tuple("OwnCar" if i == common else f"class{i}" for i in range(11))
    classes = streamseg.Classes(names, streamseg.CAMVID.colours)
    streamseg.save(model, classes, "own.safetensors")
    assert segment("a.mp4", "out", "--labels", "--mask", "bonnet", "--weights", "own.safetensors") == 0
    assert "% of the frame, is left out." in capsys.readouterr().err
    labels = read_labels("out/a-labels.mkv")[0]
    assert labels.eq(255).any()
    assert labels[:20].ne(255).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "a.png --mask away.png",
            "There is no mask at away.png: give a picture whose black pixels are ignored, or bonnet",
        ),
        ("a.png --mask black.png", "black.png is all black, so every pixel would be ignored"),
        (
            "a.png --mask square.png",
            "square.png has 48 x 48 pixels and the frames 48 x 64, which are other proportions",
        ),
        (
            "a.png --mask bonnet",
            "--mask bonnet needs weights with a class of the own car, and these have Sky, Building",
        ),
        ("a.png out --together", "--together is for videos and cameras, frame by frame, and a is none"),
        ("a.mp4 out --together", "--together needs two or more cameras"),
        (
            "a.mp4 b.mp4 out --together",
            "The cameras look together at one network input size, but theirs are 32 x 32 and",
        ),
        ("a.png out --tile --together", "--tile processes single pictures: leave out --together."),
        ("a.mp4 out --ray local --mask black.png", "--ray labels videos into a folder: leave out --mask."),
    ],
)
def test_wrong_masks_and_cameras_are_one_sentence(here, segment, capsys, arguments, sentence):
    paint("a.png", size=SIZE)
    make_clip(Path("a.mp4"), 2, size=SIZE)
    make_clip(Path("b.mp4"), 2, size=(32, 32))
    draw_mask("black.png", black=48)
    draw_mask("square.png", size=(48, 48))
    assert sentence in error_line(capsys, segment(*arguments.split()))


def test_evaluate_leaves_out_what_a_mask_hides(toy, monkeypatch, capsys, tmp_path):
    draw_mask(tmp_path / "mask.png", size=(64, 96), black=32)
    dataset = folder(toy, "val")
    model = streamseg.fanet18(len(dataset.classes)).eval()
    streamseg.save(model, dataset.classes, tmp_path / "own.safetensors")
    options = ("--dataset", "folder", "--data", toy, "--json", "-", "--device", "cpu")
    command = ("evaluate", tmp_path / "own.safetensors", *options)
    pixels = []
    for more in ((), ("--mask", tmp_path / "mask.png")):
        assert run(monkeypatch, *command, *more) == 0
        pixels.append(sum(map(sum, json.loads(capsys.readouterr().out)["confusion"])))
    labels = torch.stack([dataset[i][1] for i in range(len(dataset))])
    assert pixels == [int(labels.ne(255).sum()), int(labels[:, :32].ne(255).sum())]
    status = run(monkeypatch, *command, "--mask", tmp_path / "mask.png", "--flip")
    assert "--mask is for one run of each frame" in error_line(capsys, status)
    status = run(monkeypatch, *command, "--mask", "bonnet")
    assert "--mask bonnet is for segment and evaluate --video: give a picture here" in error_line(capsys, status)
