"""HLS: the playlist and its segments can be played, need the token, and leave nothing behind."""

import io
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import av
import numpy
import pytest
import torch
from clips import make_clip
from serving import run_server
from waiting import PATIENCE, until

from streamseg.serve import hls
from streamseg.serve.hls import HlsStream

RED = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None].expand(3, 48, 64)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return str(make_clip(tmp_path_factory.mktemp("clips") / "road.mp4", 10, size=(48, 64)))


@pytest.fixture
def stream():
    made = HlsStream("road")
    yield made
    made.close()


def write(stream, until_there, picture=RED):
    """Add pictures, which are red, until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not until_there():
        assert time.monotonic() < end
        stream.put(picture)
        time.sleep(0.05)


def get(server, path):
    """Return the type and the body of an answer; ask again on a machine that is too busy to begin the stream."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=PATIENCE) as response:
                return response.headers["Content-Type"], response.read()
        except HTTPError as error:
            if error.code != 503 or time.monotonic() > end:
                raise


def refusal(server, path):
    with pytest.raises(HTTPError) as caught:
        get(server, path)
    return caught.value.code


def frames_of(segment):
    with av.open(io.BytesIO(segment), format="mpegts") as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_the_pictures_are_in_the_segments_and_the_end_removes_the_folder(stream):
    stream.put(RED)  # before anybody has asked: nothing is written
    assert not stream.running
    folder = stream.ask()
    assert stream.ask() == folder
    write(stream, (folder / hls.PLAYLIST).exists)
    names = [line for line in (folder / hls.PLAYLIST).read_text().splitlines() if not line.startswith("#")]
    segment = stream.read_segment(names[0])
    frame = frames_of(segment)[0]
    assert frame.shape == (48, 64, 3)
    assert numpy.abs(frame.mean((0, 1)) - [255, 0, 0]).max() < 12
    stream.close()
    assert not folder.exists()
    assert stream.read_segment(names[0]) is None


@pytest.mark.parametrize("name", ["../0.ts", "stream.m3u8", "/etc/passwd", "0.ts\n", "", "99.ts", "\u0661.ts"])
def test_other_files_are_no_segments(stream, name):
    stream.ask()
    assert stream.read_segment(name) is None


def test_a_stream_that_nobody_asks_for_ends(stream, monkeypatch):
    folder = stream.ask()
    monkeypatch.setattr(hls, "IDLE_SECONDS", -1.0)
    stream.put(RED)
    assert not stream.running
    assert not folder.exists()


def test_a_source_that_changes_its_size_continues_the_playlist(stream):
    playlist = stream.ask() / hls.PLAYLIST
    write(stream, playlist.exists)
    first = segments_of(playlist)
    before = playlist.read_text().count("#EXT-X-DISCONTINUITY")
    write(stream, lambda: playlist.read_text().count("#EXT-X-DISCONTINUITY") > before, RED[:, :32, :32])
    after = segments_of(playlist)
    assert after[: len(first)] == first
    assert after == [f"{number}.ts" for number in range(len(after))]
    assert frames_of(stream.read_segment(after[-1]))[0].shape == (32, 32, 3)


def segments_of(playlist):
    return [line for line in playlist.read_text().splitlines() if not line.startswith("#")]


def test_a_stream_of_a_lost_source_that_nobody_asks_for_ends(stream, monkeypatch):
    folder = stream.ask()
    stream.end_if_idle()
    assert stream.running
    monkeypatch.setattr(hls, "IDLE_SECONDS", -1.0)
    stream.end_if_idle()
    assert not folder.exists()


def test_a_program_that_ends_at_once_removes_the_folder():
    program = "from streamseg.serve.hls import HlsStream\nprint(HlsStream('road').ask())\nraise SystemExit"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert Path(done.stdout.strip()).name.startswith("streamseg-hls-")
    assert not Path(done.stdout.strip()).exists()


def test_a_player_reads_the_overlay_and_the_end_of_the_server_removes_it(clip):
    with run_server(sources={"road": clip}) as server:
        source = server.gate.sources["road"]
        until(lambda: not source.problem)
        kind, playlist = get(server, "/streams/road/hls/stream.m3u8")
        assert kind.startswith("application/vnd.apple.mpegurl")
        name = next(line for line in playlist.decode().splitlines() if not line.startswith("#"))
        kind, segment = get(server, f"/streams/road/hls/{name}")
        assert kind == "video/mp2t"
        assert frames_of(segment)[0].shape == (48, 64, 3)
        assert refusal(server, "/streams/road/hls/..%2F..%2Fpasswd") == 404
        assert refusal(server, "/streams/road/hls/123456.ts") == 404
        assert refusal(server, "/streams/other/hls/stream.m3u8") == 404
        assert source.viewers == 0
        folder = source.hls.folder
    assert not folder.exists()


def test_the_token_of_the_playlist_is_in_its_segments(clip):
    with run_server(sources={"road": clip}, token="se cret") as server:
        until(lambda: not server.gate.sources["road"].problem)
        assert refusal(server, "/streams/road/hls/stream.m3u8") == 401
        _, playlist = get(server, "/streams/road/hls/stream.m3u8?token=se%20cret")
        name = next(line for line in playlist.decode().splitlines() if not line.startswith("#"))
        assert name.endswith(".ts?token=se%20cret")
        assert refusal(server, f"/streams/road/hls/{name.partition('?')[0]}") == 401
        _, segment = get(server, f"/streams/road/hls/{name}")
        assert frames_of(segment)
