"""evaluate --video: the steadiness of labels on a video without true ones."""

import json
import re

import pytest
import torch
from clips import cut, make_clip
from commands import complaint, run
from exports import SIZE, small_plus
from textures import texture

import streamseg
from streamseg.deploy.export import export_model
from streamseg.engine.engine import EagerEngine
from streamseg.evaluate.video_file import evaluate_video_file, find_video, read_video, video_file_evaluation_to_json
from streamseg.io.images import read_image, write_image
from streamseg.io.video_writing import write_frames
from streamseg.stream.bonnet import find_bonnet
from streamseg.stream.state import LastFrames


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
    assert alone == {name: found["frame_by_frame"].get(name, found[name]) for name in alone} | {"steady": "off"}
    assert "frame_by_frame" not in alone


def draw_mask(path, size=(64, 96)):
    """Write a mask that hides the lower quarter."""
    mask = torch.full((3, *size), 255, dtype=torch.uint8)
    mask[:, 3 * size[0] // 4 :] = 0
    write_image(path, mask)


def test_what_a_mask_hides_counts_in_no_figure_and_has_no_class_in_the_slice(clip, monkeypatch, capsys, model):
    draw_mask(clip.parent / "mask.png", (32, 48))  # of the same proportions
    given = ("--video", "drive.mkv", "--mask", "mask.png", "--steady", "low", "--device", "cpu", "--json", "a.json")
    assert run(monkeypatch, "evaluate", "camvid.safetensors", *given, "--slice", "a.png", "--row", "50") == 0
    policy, frames = LastFrames(1, steady=streamseg.STEADY_LOW), read_video(find_video("drive.mkv"))
    expected = evaluate_video_file(model, frames, policy, mask="mask.png")
    assert "% of the pixels compared; --steady low" in capsys.readouterr().out
    assert json.loads((clip.parent / "a.json").read_text()) == video_file_evaluation_to_json(expected)
    drawn, parts = read_image(clip.parent / "a.png"), 3
    for bottom in (2 * drawn.shape[1] // parts - 1, drawn.shape[1] - 1):
        assert not drawn[:, bottom].any()
    assert drawn[:, drawn.shape[1] // parts - 1].any()


def test_bonnet_is_a_mask_of_the_own_car_here_too(clip, monkeypatch, capsys, model):
    frames = [labels for _, labels in streamseg.label_frames(model, streamseg.read_frames("drive.mkv"))]
    common = torch.stack(frames)[:, 32:].flatten().bincount(minlength=11).argmax().item()
    names = tuple("OwnCar" if i == common else f"class{i}" for i in range(11))
    classes = streamseg.Classes(names, streamseg.CAMVID.colours)
    streamseg.save(model, classes, "own.safetensors")
    given = ("--video", "drive.mkv", "--mask", "bonnet", "--device", "cpu", "--json", "-", "--quiet")
    assert run(monkeypatch, "evaluate", "own.safetensors", *given) == 0
    printed = capsys.readouterr()
    assert re.fullmatch(r"streamseg: drive: the own car, \d+% of the frame, is left out.\n", printed.err)
    source = find_video("drive.mkv")
    mask = find_bonnet(EagerEngine(model), classes, source)
    expected = evaluate_video_file(model, read_video(source), 1, mask=mask)
    assert json.loads(printed.out) == video_file_evaluation_to_json(expected)
    assert expected != evaluate_video_file(model, read_video(source), 1)


def test_a_file_that_keeps_labels_steady_is_measured_as_it_is_asked_to(clip, monkeypatch, capsys):
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install 'streamseg[export]'")
    options = {"size": SIZE, "video": True, "steady": streamseg.STEADY_LOW, "window": 2}
    # not small(): its scores hardly differ over the picture, so that rounding would decide labels
    export_model(small_plus(), streamseg.CAMVID, clip.parent / "a.onnx", **options)
    found, said = {}, {}
    for how in ("", "off", "low"):
        given = ("--video", "drive.mkv", "--json", "-", *(("--steady", how) if how else ()))
        assert run(monkeypatch, "evaluate", "a.onnx", *given) == 0
        printed = capsys.readouterr()
        found[how], said[how] = json.loads(printed.out), printed.err
    assert [figures["steady"] for figures in found.values()] == ["off", "off", "low"]
    assert found[""] == found["off"]
    assert found["low"]["flip_rate"] < found["off"]["flip_rate"]
    assert all(f"% of the pixels compared; --steady {how or 'off'}" in text for how, text in said.items())
    note = "a.onnx was exported with --steady low and is measured frame by frame: give --steady low"
    assert [note in text for text in said.values()] == [True, False, False]
    draw_mask(clip.parent / "mask.png")
    for refused, sentence in ((("--steady", "high"), "in another way"), (("--mask", "mask.png"), "at all pixels")):
        assert sentence in complaint(monkeypatch, capsys, "evaluate", "a.onnx", "--video", "drive.mkv", *refused)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--video none.mp4", "Nothing at none.mp4"),
        ("--video a.png", "a.png is a picture; expected a video"),
        ("--video one.mp4", "The video has 1 frame; steadiness is measured"),
        ("--video sizes.ts", "sizes.ts changes its size from 48 x 64 to 96 x 160 pixels"),
        ("--video drive.mkv --data x --flip", "leave out --data, --flip."),
        ("--video drive.mkv --row 3", "--row is the row of a slice: give --slice FILE too."),
        ("--video drive.mkv --mask none.png", "There is no mask at none.png: give a picture whose black pixels"),
        ("--video drive.mkv --mask bonnet", "--mask bonnet needs weights with a class of the own car"),
        ("--video drive.mkv --mask square.png", "square.png has 64 x 64 pixels and the frames 64 x 96, which are"),
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
    if "square" in given:
        draw_mask(folder / "square.png", (64, 64))
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
