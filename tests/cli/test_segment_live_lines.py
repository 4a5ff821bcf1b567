"""Lines of JSON in a file while segment runs: of live sources at once, of files at the end."""

import base64
import json
import signal
import subprocess
import threading
import zlib
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from clips import make_clip, picture
from commands import error_line, failing
from limits import full_disk
from segment_run import made, start
from servers import RtspServer
from waiting import PATIENCE, until

import streamseg
from streamseg.cli import records
from streamseg.io import line_thread, sources
from streamseg.stream import pipeline

OLD = '{"summary": {"frames": {"written": 7}}}\n'
"""What a run before has left in a file of lines."""
OLD_REGIONS = '{"source": "old", "regions": []}\n'


def lines_of(path):
    """The lines that can be read from a file, which may not be there; a line without its end is none."""
    return Path(path).read_text().split("\n")[:-1] if Path(path).exists() else []


@pytest.fixture
def live(monkeypatch):
    """Let all cameras deliver three frames and go, each after a function was called with the frame's number."""

    def live(before_frame):
        def frames(address, decoding):
            for i in range(3):
                before_frame(address, i)
                yield picture(i), i / 25
            before_frame(address, 3)

        def open_camera(address, hardware):
            return nullcontext(SimpleNamespace(note="", pictures=partial(frames, address)))

        monkeypatch.setattr("streamseg.io.resolve.open_camera", open_camera)
        monkeypatch.setattr(sources, "RECONNECT_DELAYS", ())

    return live


@pytest.mark.parametrize(("option", "old"), [("--json", OLD), ("--regions", OLD_REGIONS)])
def test_the_lines_of_a_camera_can_be_read_before_its_next_frame(here, segment, live, option, old):
    Path("a.jsonl").write_text(old)
    Path("a.jsonl").chmod(0o640)
    Path("link.jsonl").symlink_to("a.jsonl")
    read = []

    def before_frame(address, i):
        if i == 0:
            assert Path("a.jsonl").read_text() == old
        else:
            until(lambda: [json.loads(line).get("frame") for line in lines_of("a.jsonl")] == [*range(i)])
        read.append(i)

    live(before_frame)
    assert segment("0", "--no-overlay", option, "link.jsonl") == 1  # the camera was lost in the end
    assert read == [0, 1, 2, 3]
    assert len(lines_of("a.jsonl")) == 3 + (option == "--json")  # with the summary
    assert made(here) == ["a.jsonl", "link.jsonl"]
    assert Path("link.jsonl").is_symlink()
    assert Path("a.jsonl").stat().st_mode & 0o777 == 0o640


def test_two_cameras_and_a_video_share_a_file_that_can_be_read_meanwhile(here, segment, live):
    make_clip(Path("v.mp4"), 3)

    def before_frame(address, i):
        def written():
            records = map(json.loads, lines_of("a.jsonl"))
            return sum(record.get("source") == f"camera{address}" for record in records)

        until(lambda: written() == i)

    live(before_frame)
    assert segment("0", "1", "v.mp4", "-o", "out", "--no-overlay", "--json", "a.jsonl") == 1
    *records, last = map(json.loads, lines_of("a.jsonl"))
    counted = [sum(record["source"] == name for record in records) for name in ("camera0", "camera1", "v")]
    assert counted == [3, 3, 3]
    assert last["summary"]["frames"]["written"] == 9


def test_a_killed_run_leaves_the_lines_of_a_network_camera(here, weights):
    frames = [picture(i).permute(1, 2, 0).contiguous().numpy() for i in range(4)]
    with RtspServer(frames, visits=[None]) as server:
        arguments = (server.address, "--no-overlay", "--json", "a.jsonl")
        with start(weights, *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            until(lambda: len(lines_of("a.jsonl")) > 1 or process.poll() is not None)
            process.kill()
            assert process.wait(PATIENCE) == -9
    assert made(here) == ["a.jsonl"]
    assert all(json.loads(line).keys() & {"shares", "statistics"} for line in lines_of("a.jsonl"))


@pytest.mark.parametrize("old", [OLD, None])
def test_a_camera_that_cannot_be_opened_leaves_the_file_as_it_was(here, segment, monkeypatch, capsys, old):
    monkeypatch.setattr(pipeline, "STATISTICS_SECONDS", 0.0)
    if old:
        Path("a.jsonl").write_text(old)
    monkeypatch.setattr("streamseg.io.resolve.open_camera", failing(OSError("camera0 is away.")))
    assert "camera0 is away." in error_line(capsys, segment("0", "--no-overlay", "--json", "a.jsonl"))
    assert made(here) == (["a.jsonl"] if old else [])
    assert not old or Path("a.jsonl").read_text() == old


def test_the_file_of_a_video_stays_as_it_was_until_the_end(here, segment, monkeypatch):
    make_clip(Path("v.mp4"), 3)
    Path("a.jsonl").write_text(OLD)
    write, held = json.dumps, []

    def dumps(entry, **options):
        held.append(Path("a.jsonl").read_text())
        return write(entry, **options)

    monkeypatch.setattr(json, "dumps", dumps)
    assert segment("v.mp4", "--no-overlay", "--json", "a.jsonl") == 0
    assert len(held) >= 4  # three frames and the summary
    assert {*held} == {OLD}
    assert len(lines_of("a.jsonl")) == 4


@pytest.mark.parametrize("cameras", ["0", "0 1"])
def test_a_full_disk_under_the_lines_of_cameras_is_a_sentence(here, segment, live, capsys, cameras):
    live(lambda address, i: None)
    with full_disk(60):
        status = segment(*cameras.split(), "--no-overlay", "--json", "a.jsonl", "--quiet")
    assert status == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "streamseg: Could not write a.jsonl: File too large."
    assert all(line.endswith("Could not write a.jsonl: File too large.") for line in lines)


def test_a_missing_folder_or_a_locked_file_is_a_sentence_before_a_camera_is_opened(here, segment, monkeypatch, capsys):
    monkeypatch.setattr("streamseg.io.resolve.open_camera", failing(AssertionError("opened")))
    missing = error_line(capsys, segment("0", "--no-overlay", "--json", "nowhere/a.jsonl"))
    assert "No folder nowhere to write a.jsonl into: create it first." in missing
    monkeypatch.setattr("streamseg.cli.records.LiveTextFile", failing(PermissionError(13, "Permission denied")))
    locked = error_line(capsys, segment("0", "--no-overlay", "--json", "a.jsonl"))
    assert locked == "streamseg: Could not write a.jsonl: Permission denied.\n"


@pytest.mark.parametrize("option", ["--json", "--regions"])
def test_a_reader_of_standard_output_who_does_not_read_holds_up_no_camera(
    here, segment, live, monkeypatch, capsys, option
):
    reading = threading.Event()
    monkeypatch.setattr(records.StandardOutput, "write", lambda *_: reading.wait(PATIENCE))
    monkeypatch.setattr(line_thread, "CLOSE_SECONDS", 0.05)
    live(lambda address, i: None)
    assert segment("0", "1", "-o", "out", option, "-") == 1  # the cameras were lost in the end
    assert made(here) == ["out/camera0-overlay.mp4", "out/camera1-overlay.mp4"]
    assert "Standard output took lines too slowly: " in capsys.readouterr().err
    reading.set()


def test_a_process_that_reads_the_lines_of_a_network_camera_gets_each_at_once(here, weights):
    frames = [picture(i).permute(1, 2, 0).contiguous().numpy() for i in range(4)]
    with RtspServer(frames, visits=[None]) as server:
        arguments = (server.address, "--no-overlay", "--json", "-")
        with start(weights, *arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert "shares" in json.loads(process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            *_, last = process.stdout
            assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert "summary" in json.loads(last)


def test_the_lines_of_cameras_tell_their_statistics_now_and_then(here, segment, live, monkeypatch):
    monkeypatch.setattr(pipeline, "STATISTICS_SECONDS", 0.0)

    def before_frame(address, i):
        def told():
            entries = [json.loads(line).get("statistics") for line in lines_of("a.jsonl")]
            return any(entry and entry["streams"].get("camera0", {}).get("labelled") == i for entry in entries)

        until(lambda: i == 0 or told())

    live(before_frame)
    assert segment("0", "--no-overlay", "--json", "a.jsonl") == 1
    *_, last = map(json.loads, lines_of("a.jsonl"))
    assert last["summary"]["streams"]["camera0"]["labelled"] == 3


@pytest.mark.parametrize("line", [{"statistics": {}}, {"source": "a", "mask_age_ms": 1.5, "labels": 2**17 * "x"}])
def test_lines_of_a_run_before_are_replaced(here, segment, line):
    make_clip(Path("v.mp4"), 1)
    Path("a.jsonl").write_text(json.dumps(line) + "\n")
    assert segment("v.mp4", "--no-overlay", "--json", "a.jsonl") == 0
    assert len(lines_of("a.jsonl")) == 2


def test_a_signal_while_a_disk_hangs_does_not_wait_for_it(here, monkeypatch):
    reading = threading.Event()
    monkeypatch.setattr(records.LiveTextFile, "write", lambda *_: reading.wait(PATIENCE))
    monkeypatch.setattr(records.LiveTextFile, "close", failing(AssertionError("It was waited for.")))
    with pytest.raises(KeyboardInterrupt), records.open_live_text(Path("a.jsonl"), pytest.fail) as lines:
        lines.write("a line\n")
        monkeypatch.setattr(lines.ended, "wait", failing(KeyboardInterrupt()))
    monkeypatch.undo()
    reading.set()
    assert lines.ended.wait(PATIENCE)
    lines.place.close()


def test_lines_hold_the_labels_if_they_are_asked_for(here, segment, model, capsys):
    make_clip(Path("v.mp4"), 3)
    assert segment("v.mp4", "--no-overlay", "--json", "-", "--json-labels", "--steady", "off") == 0
    *entries, _ = map(json.loads, capsys.readouterr().out.splitlines())
    for record, frame in zip(entries, streamseg.read_frames("v.mp4"), strict=True):
        labels = numpy.frombuffer(zlib.decompress(base64.b64decode(record["labels"])), numpy.uint8)
        expected = streamseg.segment(frame, model)
        assert (labels.reshape(record["height"], record["width"]) == expected.numpy()).mean() > 0.99
    message = error_line(capsys, segment("v.mp4", "-o", "b.mp4", "--json-labels"))
    assert "--json-labels adds labels to the lines of --json: give a file or an address for them." in message
