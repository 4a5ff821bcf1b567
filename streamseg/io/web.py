"""Web addresses without their passwords, and requests to web servers."""

import os
import re
import shutil
import struct
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, responses
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import (
    HTTPBasicAuthHandler,
    HTTPDigestAuthHandler,
    HTTPPasswordMgrWithDefaultRealm,
    Request,
    build_opener,
)

SCHEMES = ("rtsp", "rtsps", "http", "https")

TIMEOUT = 10.0
"""Seconds within which a server must answer."""
FETCH_SECONDS = 60.0
FETCH_BYTES = 256 * 2**20
"""The limits of time and size for fetching a picture or a playlist."""
DISK_RESERVE = 256 * 2**20
"""Bytes of the disk that a download leaves free."""

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
STREAM_KEY = re.compile(r"(rtmps?://[^\s/?]+/(?:[^\s?]*/)?)[^\s/?]*[^\s/?.:,;]", re.IGNORECASE)
"""The last part of the path of an RTMP address, and all before it. Punctuation after it belongs to a sentence."""
# after a colon that is not followed by a port, a password may hold any character
CREDENTIALS = re.compile(r"(?<=://)([^\s/?#]*|[^\s/?#:]*:(?!\d+[/?#])\S*)@")


def is_address(name: str) -> bool:
    """Return whether a name is an address, not a file."""
    return SCHEME.match(name) is not None


def restore_address(path: Path) -> str:
    """Return the address that was parsed as a path, which turns // into /."""
    return re.sub(r"^([A-Za-z][\w+.-]+:)/+(?=[^/])", r"\1//", path.as_posix())


def redact(address: str) -> str:
    """Return an address without user, password, RTMP stream key and query, which may hold a password too."""
    if not is_address(address):
        return address
    before, mark, _ = redact_text(address).partition("?")
    return f"{before}?…" if mark else before


def redact_text(text: str) -> str:
    """Return a text without the users, passwords and RTMP stream keys of the addresses in it."""
    return STREAM_KEY.sub(r"\1…", CREDENTIALS.sub("", text))


def redact_address_in(text: str, address: str) -> str:
    """Return a text without the secrets of an address that it may quote."""
    return redact_text(text.replace(address, redact(address)))


def split_if_valid(address: str) -> SplitResult | None:
    """Return the parts of an address; None if its host or port is not valid.

    The message of urlsplit may hold a part of the password, so that callers have their own.
    """
    try:
        parts = urlsplit(address)
        _ = parts.hostname, parts.port
    except ValueError:
        return None
    return parts


def split_address(address: str) -> SplitResult:
    """Return the parts of an address; a ValueError if it cannot be read."""
    scheme, shown = address.partition("://")[0].lower(), redact(address)
    if scheme not in SCHEMES:
        raise ValueError(
            f"{shown} is no address that can be read: expected rtsp://, rtsps://, http://, https:// or a file's name."
        )
    parts = split_if_valid(address)
    if parts is None:
        raise ValueError(
            f"{shown} is no address that can be read: expected {scheme}://host:port/path, with a password's / ? # @ "
            "written as %2F %3F %23 %40."
        )
    if not parts.hostname:
        raise ValueError(f"{shown} names no host: expected an address such as {scheme}://host/path.")
    return parts


def join_address(parts: SplitResult) -> str:
    """Return the address of its parts, quoted so that servers, urllib and FFmpeg accept it."""
    safe = "%/:=&?~+!$,;'@()*[]"
    return urlunsplit(parts._replace(path=quote(parts.path, safe), query=quote(parts.query, safe)))


def without_login(parts: SplitResult) -> str:
    """Return the address of its parts without user and password."""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


@contextmanager
def open_address(address: str, part: str = "") -> Iterator[HTTPResponse]:
    """Request an address, or a part of it by a Range header; errors name the address without its password."""
    parts = urlsplit(address)
    bare = without_login(parts)
    passwords = HTTPPasswordMgrWithDefaultRealm()
    if parts.username:
        passwords.add_password(None, bare, unquote(parts.username), unquote(parts.password or ""))
    opener = build_opener(HTTPBasicAuthHandler(passwords), HTTPDigestAuthHandler(passwords))
    try:
        headers = {"User-Agent": "streamseg"} | ({"Range": part} if part else {})
        response = opener.open(Request(bare, headers=headers), timeout=TIMEOUT)
    except (OSError, HTTPException, ValueError) as error:
        raise response_error(address, error) from None
    with response:
        try:
            yield response
        except (OSError, HTTPException) as error:
            raise response_error(address, error) from None


def response_error(address: str, error: Exception, failure: str = "cannot be read") -> OSError:
    """Return why a request failed.

    Args:
        failure: What to say of an address that does not answer.
    """
    if isinstance(error, HTTPError):
        error.close()
        login = " Is it the right user and password, as in http://user:password@host/path?"
        # not the server's message, which may be anything
        answer = f"answered {error.code} {responses.get(error.code, '')}".rstrip()
        return OSError(f"{redact(address)} {answer}.{login if error.code == 401 else ''}")
    reason = error.reason if isinstance(error, URLError) else error
    words = (reason.strerror if isinstance(reason, OSError) else None) or str(reason) or type(reason).__name__
    return OSError(f"{redact(address)} {failure}: {words}.")


def content_type(response: HTTPResponse) -> str:
    """Return the content type of a response."""
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def fetch(address: str) -> bytes:
    """Return the bytes of a picture on a web server."""
    with open_address(address) as response:
        if content_type(response).startswith("multipart/"):
            raise ValueError(f"{redact(address)} is an endless stream, not a picture.")
        return read_all(response, address)


def has_end(response: HTTPResponse, address: str) -> bool:
    """Return whether a playlist is complete; if it lists alternatives, whether the first of them is."""
    text = read_all(response, address).decode(errors="replace")
    if "#EXT-X-STREAM-INF" not in text:
        return "#EXT-X-ENDLIST" in text
    lines = [line.strip() for line in text.splitlines()]
    for choice in lines:
        if choice and not choice.startswith("#"):
            # split_address refuses other targets, such as local files
            with open_address(join_address(split_address(urljoin(address, choice)))) as chosen:
                return b"#EXT-X-ENDLIST" in read_all(chosen, address)
    return False


def read_all(response: HTTPResponse, address: str) -> bytes:
    """Return the whole response; a ValueError if it is too large or too slow."""
    data, deadline = bytearray(), time.monotonic() + FETCH_SECONDS
    while part := response.read1(2**20):
        data += part
        if len(data) > FETCH_BYTES:
            raise ValueError(
                f"{redact(address)} is larger than {FETCH_BYTES:,} bytes: too large for a picture or a playlist."
            )
        if time.monotonic() > deadline:
            raise ValueError(f"{redact(address)} did not arrive within {FETCH_SECONDS:.0f} s.")
    return bytes(data)


class TemporaryCopy:
    """A temporary file, removed with this object or at the end of the process."""

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="streamseg-")
        os.close(handle)
        self.path = Path(name)
        self.remove = weakref.finalize(self, self.path.unlink, missing_ok=True)


def copy_if_needed(address: str) -> TemporaryCopy | None:
    """Return a local copy of a video that cannot be read directly; None for all others.

    That is an MP4 with its index after its frames, on a server that sends no parts of files.
    """
    with open_address(address, "bytes=0-") as response:
        if response.status == HTTPStatus.PARTIAL_CONTENT:
            return None
        head = response.read(4096)
        return download(response, head, address) if index_is_last(head) else None


def index_is_last(head: bytes) -> bool:
    """Return whether a file with this beginning is an MP4 whose frames come before its index."""
    place = 0
    while place + 8 <= len(head):
        size, kind = struct.unpack_from(">I4s", head, place)
        if kind in (b"moov", b"mdat"):
            return kind == b"mdat"
        place += max(8, size)
    return False


def download(response: HTTPResponse, head: bytes, address: str) -> TemporaryCopy:
    """Download the rest of a response; head is what was read already."""
    copy, part = TemporaryCopy(), head
    try:
        room = shutil.disk_usage(copy.path.parent).free - DISK_RESERVE
        with copy.path.open("wb") as file:
            while part:
                size = file.tell() + len(part) + (response.length or 0)
                if size > room:
                    raise ValueError(
                        f"{redact(address)} has to be downloaded first, and its {size / 1e6:,.0f} MB do not fit into "
                        f"{copy.path.parent}: set TMPDIR to a larger folder."
                    )
                file.write(part)
                part = response.read(2**20)
        if response.length:
            raise ValueError(f"{redact(address)} is cut short: {response.length:,} bytes are missing.")
    except BaseException:
        copy.remove()
        raise
    return copy
