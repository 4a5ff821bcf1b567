"""Segment with live outputs: video to addresses, lines of JSON to servers."""

import json
from pathlib import Path

import pytest
from clips import make_clip
from commands import error_line
from listeners import LOCALHOST, free_port, receiving, rtmp_receiver, rtsp_receiver, websocket_server
from segment_run import overlay_of, paint, watch
from waiting import until

import streamseg
from streamseg.io.web import redact
from streamseg.stream import shared_run


@pytest.mark.parametrize("receiver", [rtmp_receiver, rtsp_receiver])
@pytest.mark.parametrize("on_device", [False, True], ids=["CPU", "as on a GPU"])
def test_the_overlay_of_a_video_is_sent_to_an_address(here, segment, model, capsys, monkeypatch, receiver, on_device):
    monkeypatch.setattr(shared_run, "works_on_device", lambda device: on_device)
    make_clip(Path("drive.mp4"), 60, rate=20)
    with receiving(receiver()) as peer:
        assert segment("drive.mp4", peer.address, "--steady", "off") == 0
    shown = capsys.readouterr()
    assert f"drive: {redact(peer.address)}  (" in shown.out
    assert len(peer.frames) > 0
    frame, _ = watch(Path("drive.mp4"))[-1]
    expected = overlay_of(model, frame).permute(1, 2, 0).numpy()
    found = peer.frames[-1].to_ndarray(format="rgb24")
    assert abs(expected.astype(int) - found).mean() < 12
    assert sorted(Path().iterdir()) == [Path("drive.mp4")]


def test_a_refusing_address_is_one_sentence_and_the_other_source_goes_on(here, segment, capsys):
    for name in ("a", "b"):
        make_clip(Path(f"{name}.mp4"), 40, rate=20)
    dead = free_port()
    with receiving(rtmp_receiver()) as peer:
        # {name} is in the place of the port, so that one of the two is dead
        port = peer.address.split(":")[2].split("/")[0]
        Path("a.mp4").rename(f"{port}.mp4")
        Path("b.mp4").rename(f"{dead}.mp4")
        out = f"rtmp://user:secret@{LOCALHOST}:{{name}}/live/road"
        assert segment(f"{port}.mp4", f"{dead}.mp4", "-o", out, "--json", "a.json") == 1
    shown = capsys.readouterr()
    assert f"streamseg: {dead}: rtmp://{LOCALHOST}:{dead}/live/… could not be reached: " in shown.err
    assert f"{port}: rtmp://{LOCALHOST}:{port}/live/…  (" in shown.out
    assert f"{dead}: \n" not in shown.out
    assert "secret" not in shown.out + shown.err
    assert len(peer.frames) > 0
    summary = json.loads(Path("a.json").read_text().splitlines()[-1])["summary"]
    assert summary["sent"][str(dead)]["sent"] == 0
    assert summary["sent"][str(dead)]["dropped"] > 0
    assert summary["sent"][port]["sent"] > 0


def test_the_labels_of_a_video_are_sent_in_colours(here, segment, model):
    make_clip(Path("drive.mp4"), 30, rate=20)
    with receiving(rtmp_receiver()) as peer:
        assert segment("drive.mp4", peer.address, "--colours", "--no-overlay") == 0
    frame, _ = watch(Path("drive.mp4"))[-1]
    labels = streamseg.segment(frame, model)
    drawn = streamseg.bright_colours(streamseg.CAMVID)
    colours = {tuple(drawn.colours[i]) for i in labels.unique().tolist()}
    pixels = peer.frames[-1].to_ndarray(format="rgb24").reshape(-1, 3).astype(int)
    distances = [abs(pixels - colour).sum(1) for colour in colours]
    assert sum(near < 60 for near in map(min, zip(*distances, strict=True))) > 0.7 * len(pixels)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("v.mp4", "rtsp://u:secret@h/x", "--labels"),
            "Labels cannot be sent to rtsp://h/x, as its video is not lossless",
        ),
        (("v.mp4", "rtsp://h/x", "--confidence"), "Labels cannot be sent to rtsp://h/x"),
        (("v.mp4", "rtsp://h/x", "--colours"), "rtsp://h/x takes one video: leave out --colours, or add --no-overlay"),
        (("v.mp4", "w.mp4", "rtsp://h/x"), "rtsp://h/x is one address, and there are several sources: put {name} into"),
        (("a.png", "rtsp://h/x"), "a is a picture, and rtsp://h/x takes video"),
        (("v.mp4", "http://h/x"), "http://h/x is no address to send to: expected rtsp://, rtmp://, udp:// or srt://"),
        (("v.mp4", "udp://h"), "udp://h is no address to send to: expected udp://host:port"),
        (("v.mp4", "rtsp://h/x", "--no-overlay"), "There is nothing to write with --no-overlay alone"),
    ],
)
def test_what_cannot_be_sent_is_one_sentence(here, segment, capsys, arguments, expected):
    for name in ("v.mp4", "w.mp4"):
        make_clip(Path(name), 2)
    paint("a.png")
    message = error_line(capsys, segment(*arguments))
    assert expected in message
    assert "secret" not in message


def test_the_lines_of_a_run_go_to_a_websocket(here, segment, capsys):
    pytest.importorskip("websockets")
    make_clip(Path("drive.mp4"), 4)
    with websocket_server() as (address, messages):
        assert segment("drive.mp4", "--no-overlay", "--json", address) == 0
        until(lambda: len(messages) == 5)
    *frames, last = map(json.loads, messages)
    assert [entry["frame"] for entry in frames] == [0, 1, 2, 3]
    assert last["summary"]["frames"]["written"] == 4
    assert f"--json: {address}  (5 lines sent)" in capsys.readouterr().out


def test_lines_that_nobody_takes_are_one_sentence_and_the_video_is_written(here, segment, capsys):
    pytest.importorskip("websockets")
    make_clip(Path("drive.mp4"), 4)
    port = free_port()
    assert segment("drive.mp4", "out.mp4", "--json", f"ws://user:secret@{LOCALHOST}:{port}/x") == 1
    shown = capsys.readouterr()
    assert f"streamseg: --json: ws://{LOCALHOST}:{port}/x could not be reached: Connection refused." in shown.err
    assert "secret" not in shown.err + shown.out
    assert len(watch(Path("out.mp4"))) == 4


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://u:secret@h/x", "http://h/x is no address for lines of JSON"),
        ("mqtt://u:secret@h", "mqtt://h is no address for lines of JSON: expected mqtt://host:port/topic"),
    ],
)
def test_an_address_that_takes_no_lines_is_one_sentence(here, segment, capsys, address, expected):
    paint("a.png")
    message = error_line(capsys, segment("a.png", "--json", address))
    assert expected in message
    assert "secret" not in message
