import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from servers import file_server, serve_http

from streamseg.io import web


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder; no proxy stands between its server and us."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("rtsp://me:secret@host:554/live", "rtsp://host:554/live"),
        ("rtsp://me:s@cr:et@host/live", "rtsp://host/live"),
        ("rtsp://me:se/cr?et#@host/live", "rtsp://host/live"),
        ("rtsp://me@host/live", "rtsp://host/live"),
        ("rtsp://host:554/live@2", "rtsp://host:554/live@2"),
        ("http://host/live?user=me&password=secret", "http://host/live?…"),
        ("rtmp://host/live2/s3cr-et", "rtmp://host/live2/…"),
        ("RTMPS://me:pw@host:443/a/b/s3cret?x=1", "RTMPS://host:443/a/b/…?…"),
        ("rtmp://host/live2/…", "rtmp://host/live2/…"),
        ("rtmp://host", "rtmp://host"),
        ("a@b?.png", "a@b?.png"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address, shown):
    assert web.redact(address) == shown


def test_a_stream_key_is_hidden_within_a_sentence():
    sentence = "rtmp://host/live2/s3cret: Connection refused. See rtmp://host/live2/s3cret."
    expected = "rtmp://host/live2/…: Connection refused. See rtmp://host/live2/…."
    assert web.redact_text(sentence) == expected
    assert web.redact_text(expected) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("rtsp://host", True), ("HTTP://host", True), ("a.png", False), ("x/http://a", False)]
)
def test_an_address_begins_with_its_scheme(name, expected):
    assert web.is_address(name) == expected


def test_what_is_put_together_again_is_the_address_with_its_odd_letters_quoted():
    plain = "https://me:secret@host:1/a/b%20c.mp4?x=1&y=2"
    assert web.join_address(web.split_address(plain)) == plain
    assert web.join_address(web.split_address("http://host/a b<c>.mp4?q=ä")) == "http://host/a%20b%3Cc%3E.mp4?q=%C3%A4"


def test_what_is_fetched_is_what_the_server_has(here):
    (here / "a").write_bytes(bytes(range(256)) * 1000)
    with file_server(here) as url:
        assert web.fetch(f"{url}/a") == (here / "a").read_bytes()


def test_what_is_too_large_is_refused(here, monkeypatch):
    (here / "a").write_bytes(bytes(1000))
    monkeypatch.setattr(web, "FETCH_BYTES", 100)
    with file_server(here) as url, pytest.raises(ValueError, match=f"^{url}/a is larger than 100 bytes: too large for"):
        web.fetch(f"{url}/a")


def box(kind, size=8):
    return size.to_bytes(4) + kind + bytes(max(0, size - 8))


@pytest.mark.parametrize(
    ("head", "last"),
    [
        (box(b"ftyp", 32) + box(b"free") + box(b"mdat", 4000), True),
        (box(b"ftyp", 32) + box(b"moov", 900) + box(b"mdat"), False),
        (box(b"ftyp", 32) + (1).to_bytes(4) + b"mdat" + (2**33).to_bytes(8), True),
        (box(b"ftyp", 32) + (0).to_bytes(4) + b"mdat", True),
        (box(b"ftyp", 32) + box(b"moof", 90) + box(b"mdat"), True),
        (b"\x1aE\xdf\xa3\x01\0\0\0\0\0\0#B\x86\x81\x01mdat", False),
        (b"short", False),
        (b"", False),
    ],
)
def test_an_mp4_whose_frames_come_before_its_index_is_known_by_its_beginning(head, last):
    assert web.index_is_last(head) == last


def test_a_copy_is_gone_with_what_it_belongs_to_and_with_its_process(tmp_path):
    program = (
        "from streamseg.io.web import TemporaryCopy as Copy; copies = [Copy(), Copy()]; "
        "[print(copy.path) for copy in copies]; del copies[0]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 2
    assert not any(Path(name).exists() for name in done.stdout.split())
    copy = web.TemporaryCopy()
    path = copy.path
    assert path.exists()
    del copy
    assert not path.exists()


def open_playlist(address):
    with web.open_address(address) as response:
        return web.has_end(response, address)


@pytest.mark.parametrize("ask", [web.fetch, open_playlist])
def test_what_comes_too_slowly_is_given_up(here, monkeypatch, ask):
    class Slow(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b".")
                    time.sleep(0.02)
            except OSError:  # the client has left
                pass

        def log_message(self, *_):
            pass

    monkeypatch.setattr(web, "FETCH_SECONDS", 0.1)
    with serve_http(Slow) as url, pytest.raises(ValueError, match=f"^{url}/a did not arrive within 0 s"):
        ask(f"{url}/a")


def test_a_playlist_does_not_lead_to_files_of_this_machine(here):
    (here / "a.m3u8").write_text(f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{(here / 'b.m3u8').as_uri()}\n")
    (here / "b.m3u8").write_text("#EXTM3U\n#EXT-X-ENDLIST\n")
    with file_server(here) as url, pytest.raises(ValueError, match="^file://.* is no address that can be read"):
        open_playlist(f"{url}/a.m3u8")
