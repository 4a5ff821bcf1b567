"""Bad input of segment."""

import threading
from pathlib import Path

import pytest
import torch
from clips import cut, make_clip, picture
from commands import error_line, failing
from PIL import Image
from segment_run import paint

from streamseg.io.images import write_image


def bomb():
    Image.new("1", (30_000, 3_000)).save("bomb.png")


def own():
    write_image(Path("own.png"), picture(0))


def empty_folder():
    Path("empty").mkdir()


def other_checkpoint():
    Path("other.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")


def text(name, words="no video"):
    return lambda: Path(name).write_text(words)


@pytest.mark.parametrize(
    ("prepare", "arguments", "sentence"),
    [
        (None, "", "Nothing to read: give a picture, a video"),
        (None, "nowhere.png", "Nothing at nowhere.png"),
        (None, "nowhere.mp4 *.gif out", "Nothing at nowhere.mp4"),
        (None, "a.png nowhere.png out.png", "out.png is one file, and there are several to write"),
        (None, "nowhere", "Nothing at nowhere"),
        (empty_folder, "empty", "No picture and no video in empty"),
        (None, "*.gif", "No picture and no video matches *.gif"),
        (text("b.txt", "nowhere.png"), "b.txt", "Line 1 of b.txt: Nothing at nowhere.png"),
        (text("b.mp4"), "b.mp4", "b.mp4 is not a video that can be read"),
        (text("b.mp4"), "b.mp4 out --labels --json b.json", "b.mp4 is not a video that can be read"),
        (text("b.mp4", ""), "b.mp4", "b.mp4 is not a video that can be read"),
        (text("b.png"), "b.png", "b.png is not a picture that can be read"),
        (lambda: cut(Path("a.png"), 0.5), "a.png", "a.png is damaged or cut short"),
        (text("b.dat"), "b.dat", "b.dat is neither a picture nor a video"),
        (None, "a.png a.png", "a.png is an input"),
        (None, "v.mp4 v.mp4", "v.mp4 is an input"),
        (own, "a.png own.png --json a.png", "a.png is an input or output already"),
        (None, "v.mp4 out.mp4 --json out.mp4", "out.mp4 is an input or output already"),
        (own, "own.png own.png", "own.png is an input"),
        (None, "a.png /proc/out.png", "Could not write /proc/out.png: "),
        (None, "v.mp4 /proc/out.mp4", "Could not write /proc/out.mp4: "),
        (None, "a.png /proc/out", "Could not make the folder /proc/out: "),
        (None, "a.png nowhere/out.png", "No folder nowhere to write out.png into: create it first."),
        (None, "v.mp4 nowhere/out.mp4", "No folder nowhere to write out.mp4 into: create it first."),
        (None, "a.png --json nowhere/a.json", "No folder nowhere to write a.json into: create it first."),
        (None, "v.mp4 out.png", "out.png is one picture, and v has many: give a video, or out_%05d.png."),
        (None, "a.png out.mp4", "out.mp4 does not have the suffix of a picture"),
        (None, "v.mp4 out.xyz", "out.xyz does not have the suffix of a video"),
        (None, "a.png v.mp4 out.mp4", "out.mp4 is one file, and there are several to write"),
        (None, "a.png v.mp4 -", "The labels of 2 sources cannot share standard output"),
        (text("b.png"), "a.png b.png", "b.png exists and was not written by streamseg"),
        (text("b.mp4"), "v.mp4 b.mp4", "b.mp4 exists and was not written by streamseg"),
        (text("b.png"), "a.png b.png", "or name the place to write with -o."),
        (text("b.png"), "a.png v.mp4 b.png", "name a folder with -o OUT."),
        (None, "a.png out.png -o x.png", "OUT is given twice, as out.png and as --out x.png: leave out one."),
        (text("b.png"), "a.png -o b.png", "b.png exists and was not written by streamseg"),
        (None, "nowhere.png -o x.png", "Nothing at nowhere.png"),
        (None, "a.png out --size 20x64", "--size is '20x64'; expected a height and a width from 32 up"),
        (None, "a.png out --size large", "--size is 'large'"),
        (None, "- out.mp4 --raw-size 64", "--raw-size is '64'"),
        (None, "- out.mp4", "Raw frames on standard input need their size: --raw-size HEIGHTxWIDTH"),
        (None, "a.png out --classes zebra", "No class is called 'zebra'; there are Sky, Building, "),
        (None, "a.png out --alpha 1.5", "alpha is 1.5; expected the opacity of the colours, from 0 to 1."),
        (None, "a.png out --alpha nan", "alpha is nan"),
        (None, "a.png out --precision int4", "precision is 'int4'; choose one of: 'fp32', 'fp16', 'bf16', 'int8'."),
        (None, "v.mp4 out --window 0", "window is 0; expected a whole number, 1 or more."),
        (None, "v.mp4 out --half-life -1", "half_life is -1.0; expected a number above 0."),
        (None, "v.mp4 out --deadline 0", "deadline is 0.0; expected a number above 0."),
        (None, "v.mp4 out --cut nan", "cut is nan; expected a number above 0."),
        (None, "v.mp4 out --steady -1", "steady is -1.0; expected a number from 0 up, such as 1."),
        (None, "v.mp4 out --window 1 --half-life 1", "Give --window or --half-life, not both."),
        (None, "v.mp4 out --rate 0", "A rate of 0.0 frames a second; expected 0.001 to 1000."),
        (None, "v.mp4 out --rate 1e300", "A rate of 1e+300 frames a second"),
        (None, "v.mp4 out --window 2 --half-life 1", "Give --window or --half-life, not both."),
        (text("b.json", "mine"), "v.mp4 out --json b.json", "b.json exists and was not written by streamseg"),
        (None, "v.mp4 out --tile --window 2", "--tile processes single pictures at full size: leave out"),
        (None, "a.png out --device abacus", "'abacus' is no device"),
        (None, "a.png out --device cuda:99", "no GPU for --device cuda:99"),
        (None, "a.png out --weights nowhere.safetensors", "No weights at nowhere.safetensors"),
        (other_checkpoint, "a.png out --weights other.safetensors", "other.safetensors was not written by streamseg"),
        (None, "a.png out --weights a.png", "a.png is no safetensors file"),
        (None, "a.png out --show --json a.json", "There is no display for --show"),
        (None, "97 out.mp4", "amera 97"),
        (None, "/dev/video97 out.mp4", "No camera at /dev/video97"),
        (None, "rtsp://127.0.0.1:9/live out.mp4", "rtsp://127.0.0.1:9/live cannot be read"),
        (None, "http://127.0.0.1:9/v.mp4 out.mp4", "http://127.0.0.1:9/v.mp4 cannot be read: Connection refused."),
        (None, "ftp://127.0.0.1/v.mp4 out.mp4", "ftp://127.0.0.1/v.mp4 is no address"),
        (bomb, "bomb.png", "bomb.png has more than 89,478,485 pixels"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2_and_leaves_nothing(here, segment, capsys, prepare, arguments, sentence):
    paint("a.png")
    make_clip(Path("v.mp4"), 3)
    if prepare:
        prepare()
    before = {path: path.read_bytes() if path.is_file() else None for path in here.rglob("*")}
    assert sentence in error_line(capsys, segment(*arguments.split()))
    assert {path: path.read_bytes() if path.is_file() else None for path in here.rglob("*")} == before


def test_nothing_is_read_where_nothing_can_be_written(here, segment, monkeypatch, capsys):
    paint("a.png")
    monkeypatch.setattr("streamseg.io.sources.PictureFile.read", failing(AssertionError("was read")))
    assert "No folder nowhere" in error_line(capsys, segment("a.png", "nowhere/out.png"))


@pytest.mark.parametrize(
    "option", ["--window 0", "--half-life -1", "--window 3 --half-life 2", "--size 3", "--steady no"]
)
def test_a_wrong_option_is_told_before_weights_are_downloaded(here, segment, monkeypatch, capsys, option):
    paint("a.png")
    monkeypatch.setattr("streamseg.models.bundled.download_weights", failing(AssertionError("was downloaded")))
    assert "was downloaded" not in error_line(capsys, segment("a.png", "--weights", "hf:me/streets", *option.split()))


def test_a_file_of_the_user_is_never_overwritten(here, segment, capsys):
    paint("street.png")
    Path("street-overlay.png").write_text("my own")
    before = {path: path.read_bytes() for path in here.iterdir()}
    assert "exists and was not written" in error_line(capsys, segment("street.png"))
    assert {path: path.read_bytes() for path in here.iterdir()} == before


def test_a_run_leaves_torchs_threads_as_they_were_and_none_of_its_own(here, segment):
    make_clip(Path("v.mp4"), 3)
    before, others = torch.get_num_threads(), threading.enumerate()
    assert segment("v.mp4", "out.mp4") == 0
    assert torch.get_num_threads() == before
    assert [thread for thread in threading.enumerate() if not thread.daemon and thread not in others] == []
