"""What segment keeps when it is stopped, or when a source breaks off."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import pytest
import torch
from clips import cut, make_clip, picture
from segment_run import made, paint, start, watch
from servers import RtspServer
from waiting import PATIENCE, until

import streamseg
from streamseg.io import sources
from streamseg.io.video_reading import read_label_video


def check_stopped(here, process, number, frames):
    """A process that a signal stopped has finished its video, of at least so many frames."""
    process.send_signal(number)
    assert process.wait(PATIENCE) == 128 + number
    assert made(here) == ["out-labels.mkv", "out.mp4"]
    assert len(watch("out.mp4")) == len(list(read_label_video(Path("out-labels.mkv")))) >= frames


def test_ctrl_c_finishes_the_video_while_frames_come_through_a_pipe(here, weights):
    frame = picture(3).permute(1, 2, 0).contiguous().numpy().tobytes()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with start(weights, "-", "out.mp4", "--labels", "--raw-size", "48x64", **pipes) as process:
        for _ in range(60):  # of which the pipe holds no more than 7
            process.stdin.write(frame)
            process.stdin.flush()
        check_stopped(here, process, signal.SIGINT, 30)
        assert re.fullmatch(rb"streamseg: Stopped after \d+ frames: the files hold those.\n", process.stderr.read())


def test_sigterm_finishes_the_video_of_a_network_camera(here, weights):
    frames = [picture(i).permute(1, 2, 0).contiguous().numpy() for i in range(12)]
    with (
        RtspServer(frames, visits=[None]) as server,
        start(weights, server.address, "out.mp4", "--labels", stdout=subprocess.DEVNULL) as process,
    ):
        until(lambda: list(here.glob(".streamseg-*.mkv")) or process.poll() is not None)
        check_stopped(here, process, signal.SIGTERM, 1)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_between_pictures_keeps_those_that_are_written(here, segment, monkeypatch, number, status):
    for i in range(40):
        paint(f"x/{i}.png", i)
    read = sources.PictureFile.read

    def read_slowly(self):
        if self.name == "5":
            os.kill(os.getpid(), number)
        if int(self.name) > 5:
            time.sleep(0.5)  # within which, or a few of which, it is heard
        return read(self)

    monkeypatch.setattr(sources.PictureFile, "read", read_slowly)
    assert segment("x", "out") == status
    written = made(here / "out")
    assert 5 <= len(written) < 40
    assert written == sorted(f"{i}-overlay.png" for i in range(len(written)))


def test_ctrl_c_before_the_first_frame_is_quiet(here, segment, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    paint("a.png")
    monkeypatch.setattr("streamseg.models.checkpoint.read_checkpoint", interrupted)
    assert segment("a.png") == 130
    assert capsys.readouterr() == ("", "")


def test_a_video_that_is_cut_short_gives_what_can_be_read(here, segment, capsys):
    cut(make_clip(Path("a.mkv"), 40), 0.7)
    make_clip(Path("b.mp4"), 3)
    assert segment("a.mkv", "b.mp4", "out") == 1
    shown = capsys.readouterr()
    frames = len(watch("out/a-overlay.mp4"))
    assert 3 < frames < 40
    assert len(watch("out/b-overlay.mp4")) == 3
    assert shown.err.startswith("streamseg: a.mkv ")
    assert f"{frames} frames" in shown.err
    assert shown.err.count("\n") == 1
    assert made(here / "out") == ["a-overlay.mp4", "b-overlay.mp4"]


def test_raw_frames_that_end_within_one_give_those_before(here, segment, monkeypatch, capsys):
    Path("raw").write_bytes(bytes(48 * 64 * 3 * 2 + 100))
    with Path("raw").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert segment("-", "out.mp4", "--raw-size", "48x64") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("streamseg: Standard input ended within a frame of 48 x 64 pixels (100 of 9216 bytes)")
    assert len(watch("out.mp4")) == 2


def test_a_picture_that_cannot_be_read_loses_no_other(here, segment, capsys):
    for i in range(3):
        paint(f"x/{i}.png", i)
    Path("x/1.png").write_bytes(Path("x/1.png").read_bytes()[:60])
    assert segment("x", "out") == 1
    assert made(here / "out") == ["0-overlay.png", "2-overlay.png"]
    shown = capsys.readouterr().err
    assert shown.startswith("streamseg: 1 of 3 pictures could not be read, the first one: x/1.png is damaged")
    assert shown.count("\n") == 1


def test_a_source_without_a_frame_is_named_and_loses_no_other(here, segment, capsys):
    make_clip(Path("a.mp4"), 3)
    Path("b.mp4").write_text("no video")
    assert segment("a.mp4", "b.mp4", "out") == 1
    shown = capsys.readouterr()
    assert made(here / "out") == ["a-overlay.mp4"]
    assert "b.mp4 is not a video that can be read" in shown.err
    assert "b-overlay" not in shown.out


def test_a_name_for_nothing_is_named_and_loses_no_other(here, segment, capsys):
    paint("a.png")
    make_clip(Path("v.mp4"), 3)
    Path("list.txt").write_text("v.mp4\ngone.png\n")
    assert segment("a.png", "nowhere.mp4", "list.txt", "out") == 1
    shown = capsys.readouterr()
    assert made(here / "out") == ["a-overlay.png", "v-overlay.mp4"]
    assert shown.err.splitlines() == [
        "streamseg: Nothing at nowhere.mp4: expected a picture, a video, a folder or a list of names.",
        "streamseg: Line 2 of list.txt: Nothing at gone.png: expected a picture, a video, a folder or a list of names.",
    ]


def test_a_video_that_the_decoder_mended_is_damaged(here, segment, capsys):
    wide = torch.randint(0, 256, (3, 12, 60), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    wide = wide.repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
    streamseg.write_frames("a.mkv", [wide[:, :, 4 * i : 4 * i + 128] for i in range(30)], 25)
    with av.open("a.mkv") as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][10]
    data = bytearray(Path("a.mkv").read_bytes())
    data[packet.pos + packet.size // 2 : packet.pos + packet.size] = bytes(packet.size - packet.size // 2)
    Path("a.mkv").write_bytes(data)
    assert segment("a.mkv", "out.mp4") == 1
    assert re.fullmatch(
        r"streamseg: a.mkv is damaged: \d+ frames could be read, \d+ of them with faults.*\n", capsys.readouterr().err
    )
    assert len(watch("out.mp4")) >= 28
