"""evaluate --video: the steadiness of labels on a video without true ones."""

import json

import pytest
import torch
from clips import cut, make_clip
from commands import complaint, run
from textures import texture

from streamseg.io.images import read_image, write_image
from streamseg.io.video_writing import write_frames


@pytest.fixture
def clip(tmp_path, weights, monkeypatch):
    """A small video of a camera that turns, beside weights, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "camvid.safetensors").symlink_to(weights)
    wall = texture(64, 160)
    write_frames(tmp_path / "drive.mkv", [wall[:, :, 4 * i : 4 * i + 96] for i in range(5)], 15)
    return tmp_path / "drive.mkv"


def test_the_steadiness_of_a_video_is_printed_written_and_drawn(clip, monkeypatch, capsys):
    given = ("evaluate", "camvid.safetensors", "--video", "drive.mkv", "--device", "cpu")
    more = ("--steady", "2", "--json", "a.json", "--slice", "a.png", "--row", "20")
    assert run(monkeypatch, *given, *more) == 0
    shown = capsys.readouterr().out
    assert "frame by frame  with these options" in shown
    assert "5 frames of 64 x 96" in shown
    found = json.loads((clip.parent / "a.json").read_text())
    assert found["consistency"] >= found["frame_by_frame"]["consistency"]
    assert found["flip_rate"] < found["frame_by_frame"]["flip_rate"]
    drawn = read_image(clip.parent / "a.png")
    assert drawn.shape[2] == 96
    # without an option there is nothing to compare with: the same labels as frame by frame
    assert run(monkeypatch, *given, "--json", "-", "--quiet") == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone == {name: found["frame_by_frame"].get(name, found[name]) for name in alone}
    assert "frame_by_frame" not in alone


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--video none.mp4", "Nothing at none.mp4"),
        ("--video a.png", "a.png is a picture; expected a video"),
        ("--video one.mp4", "The video has 1 frame; steadiness is measured"),
        ("--video sizes.ts", "sizes.ts changes its size from 48 x 64 to 96 x 160 pixels"),
        ("--video drive.mkv --data x --flip", "leave out --data, --flip."),
        ("--video drive.mkv --row 3", "--row is the row of a slice: give --slice FILE too."),
        ("--video drive.mkv --slice a.png --row 64", "The row is 64; expected 0 to 63"),
        ("--video drive.mkv --slice a.txt", "a.txt does not have the suffix of a picture"),
        ("--video drive.mkv --slice no/a.png", "No folder no to write a.png into"),
        ("--video drive.mkv --json no/a.json", "No folder no to write a.json into"),
        ("--video drive.mkv --window 0", "window is 0; expected a whole number"),
        ("--video drive.mkv --window 2 --half-life 1", "not both"),
        ("--slice a.png --data x --dataset camvid", "--slice is for a video: give --video FILE too."),
        ("", "streamseg evaluate needs --data DIR and --dataset NAME, or --video FILE: see streamseg evaluate --help."),
        ("--dataset camvid", "streamseg evaluate needs --data DIR, or --video FILE: see streamseg evaluate --help."),
    ],
)
def test_bad_input_is_one_sentence(clip, monkeypatch, capsys, given, said):
    folder = clip.parent
    if "one.mp4" in given:
        make_clip(folder / "one.mp4", 1)
    if "a.png" in given and "--slice" not in given:
        write_image(folder / "a.png", torch.zeros(3, 64, 96, dtype=torch.uint8))
    if "sizes" in given:
        parts = [make_clip(folder / "a.h264", 3), make_clip(folder / "b.h264", 3, size=(96, 160))]
        (folder / "sizes.ts").write_bytes(b"".join(part.read_bytes() for part in parts))
    before = {*folder.iterdir()}
    shown = complaint(monkeypatch, capsys, "evaluate", "camvid.safetensors", "--device", "cpu", *given.split())
    assert said in shown
    assert {*folder.iterdir()} == before


def test_a_damaged_video_is_measured_up_to_its_damage(clip, monkeypatch, capsys):
    path = cut(make_clip(clip.parent / "long.mkv", 40), 0.7)
    given = ("--video", path, "--device", "cpu", "--json", "a.json")
    assert run(monkeypatch, "evaluate", "camvid.safetensors", *given) == 1
    assert 2 <= json.loads((clip.parent / "a.json").read_text())["frames"] < 40
    assert "long.mkv" in capsys.readouterr().err
