"""Many cameras of segment: fleet files, statistics of each, and failures of their own."""

import json
import re
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from clips import make_clip, picture
from commands import error_line
from segment_run import made, watch
from servers import RtspServer

from streamseg.io import sources
from streamseg.io.video_reading import read_label_video

FRAMES = [picture(i).permute(1, 2, 0).numpy() for i in range(4)]


@pytest.fixture(autouse=True)
def brief_waits(monkeypatch):
    """Live sources are given up soon."""
    monkeypatch.setattr(sources, "RECONNECT_DELAYS", (0.01, 0.02))


def dead_address():
    """An RTSP address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"rtsp://127.0.0.1:{listener.getsockname()[1]}/live"


def fleet(*cameras, head=""):
    """Write a fleet file with cameras of (name, address, further lines)."""
    tables = [f'[[camera]]\nname = "{name}"\naddress = "{address}"\n{more}\n' for name, address, more in cameras]
    Path("fleet.toml").write_text("\n".join([head, *tables]))


def test_what_could_not_be_found_counts_among_the_sources_that_failed(here, segment, capsys):
    with RtspServer(FRAMES, visits=[3]) as one, RtspServer(FRAMES, visits=[3]) as other:
        assert segment("nowhere.mp4", one.address, other.address, "-o", "out", "--size", "32x32") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"streamseg: 3 of 3 sources failed: .+, .+, and 1 that could not be found\.", last)


def test_half_of_a_fleet_is_dead_and_the_others_go_on(here, segment, capsys):
    with ExitStack() as stack:
        servers = [stack.enter_context(RtspServer(FRAMES, visits=[30])) for _ in range(3)]
        live = [(f"live{i}", server.address.replace("://", "://me:secret@"), "") for i, server in enumerate(servers)]
        dead = [(f"dead{i}", dead_address(), "") for i in range(3)]
        fleet(*(camera for pair in zip(live, dead, strict=True) for camera in pair))
        assert segment("--fleet", "fleet.toml", "--size", "32x32", "--json", "log.jsonl") == 1
    shown = capsys.readouterr()
    assert "secret" not in shown.out + shown.err
    assert made(here / "segmented") == [f"live{i}-overlay.mp4" for i in range(3)]
    lines = shown.err.splitlines()
    for name, address, _ in dead:
        assert f"streamseg: {name}: {address} cannot be read: Connection refused." in lines
    for i, server in enumerate(servers):
        assert sum(line.startswith(f"streamseg: live{i}: {server.address} was lost after") for line in lines) == 1
    assert re.search(r"6 of 6 sources failed: ", lines[-1])
    records = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    assert {record["source"] for record in records[:-1]} == {"live0", "live1", "live2"}
    streams = records[-1]["summary"]["streams"]
    assert {name for name, stream in streams.items() if stream["labelled"]} == {"live0", "live1", "live2"}
    assert all(stream["latency_ms"]["p95"] > 0 for name, stream in streams.items() if name.startswith("live"))
    assert re.search(r"^stream +frames +dropped +p50 +p95 +reconnects$", shown.out, re.MULTILINE)
    assert re.search(r"^live0 +\d+ +[\d.]+ % +[\d.]+ ms", shown.out, re.MULTILINE)
    assert re.search(r"^dead1 +0 +0\.0 % +- +- +0$", shown.out, re.MULTILINE)


def test_each_camera_of_a_fleet_has_its_own_settings_and_files(here, segment, model):
    for name in ("a", "b", "c"):
        make_clip(Path(f"{name}.mp4"), 3, size=(48, 64))
    fleet(
        ("first", "a.mp4", 'classes = ["road"]'),
        ("second", "b.mp4", 'size = "64x96"\nout = "b-out.mp4"'),
        ("third", "c.mp4", 'out = "frames_%02d.png"\noverlay = false\nlabels = true\nconfidence = true'),
        head='[defaults]\nsize = "32x32"\nout = "recordings"\n',
    )
    assert segment("--fleet", "fleet.toml", "--json", "log.jsonl") == 0
    files = ["a.mp4", "b.mp4", "c.mp4", "fleet.toml", "log.jsonl"]
    assert made(here, *files) == [
        "b-out.mp4",
        *(f"frames_{i:02d}-{part}.png" for i in range(3) for part in ("confidence", "labels")),
        "recordings/first-overlay.mp4",
    ]
    records = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()][:-1]
    sizes = {record["source"]: tuple(record["size"]) for record in records}
    assert sizes == {"first": (32, 32), "second": (64, 96), "third": (32, 32)}
    # only one class is coloured in the one, all in the other
    first, second = (watch(path)[0][0] for path in ("recordings/first-overlay.mp4", "b-out.mp4"))
    plain = watch("a.mp4")[0][0]
    changed = [(frame.int() - plain.int()).abs().amax(0).gt(60).float().mean() for frame in (first, second)]
    assert changed[0] < changed[1]


@pytest.mark.parametrize(
    ("arguments", "more", "sentence"),
    [
        ("v.mp4", "", "--fleet names the sources: leave out 'v.mp4', and give OUT with -o."),
        ("-o -", "", "A fleet is written to files: give a folder with -o"),
        ("--tile", "", "--tile processes single pictures"),
        ("-o out --ray local", "", "--ray labels videos into a folder: leave out --fleet"),
        ("", 'size = "3x3"', "fleet.toml, camera 'one': size is '3x3'; expected a height and a width from 32 up"),
        ("", 'classes = ["rode"]', "Camera 'one': No class is called 'rode'; there are "),
        ("", 'out = "x.gif"', "fleet.toml, camera 'one': "),
        ("", 'out = "both.mp4"', "fleet.toml, camera 'one': both.mp4 belongs to another camera too"),
        (
            "",
            'out = "udp://host:9"',
            "fleet.toml, camera 'one': udp://host:9 belongs to another camera too: give each its own",
        ),
        ("", "overlay = false", "fleet.toml, camera 'one': there is nothing to write without an overlay"),
        ("", 'out = "-"', "fleet.toml, camera 'one': out is '-'"),
        ("", "sise = 3", "fleet.toml, camera 'one': there is no key 'sise': did you mean size?"),
    ],
)
def test_bad_input_of_a_fleet_is_one_sentence(here, segment, capsys, arguments, more, sentence):
    make_clip(Path("v.mp4"), 3)
    make_clip(Path("w.mp4"), 3)
    fleet(("one", "v.mp4", more), ("two", "w.mp4", more if "udp" in more else 'out = "both.mp4"'))
    assert sentence in error_line(capsys, segment(*arguments.split(), "--fleet", "fleet.toml"))
    assert made(here) == ["fleet.toml", "v.mp4", "w.mp4"]


def test_a_fleet_whose_cameras_are_all_away_says_so(here, segment, capsys):
    fleet(("desk", "/dev/video97", ""))
    assert "desk: No camera at /dev/video97" in error_line(capsys, segment("--fleet", "fleet.toml"))


def test_cameras_by_name_need_no_fleet_file(here, segment, capsys):
    with RtspServer(FRAMES, visits=[20]) as one, RtspServer(FRAMES, visits=[20]) as other:
        addresses = [one.address, other.address.replace("/live", "/yard")]
        assert segment(*addresses, "-o", "out", "--size", "32x32", "--labels") == 1
    names = made(here / "out")
    assert names == [f"127-0-0-1_{name}-{part}" for name in ("live", "yard") for part in ("labels.mkv", "overlay.mp4")]
    assert {labels.shape for labels, _ in read_label_video(here / "out" / names[0])} == {picture(0).shape[1:]}
    shown = capsys.readouterr().err
    assert f"127-0-0-1_yard: {addresses[1]} was lost after" in shown
