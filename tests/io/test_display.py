import os
import shutil
import subprocess
import sys

import pytest
import torch
from PIL import ImageGrab

from streamseg.io.display import DisplayWindow, shrink_to_fit


@pytest.fixture(scope="module")
def screen():
    """A screen of 800 x 600 pixels that nobody sees."""
    if not shutil.which("Xvfb"):
        pytest.skip("Xvfb is not installed")
    pytest.importorskip("tkinter")
    reading, writing = os.pipe()
    command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "800x600x24", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as file:
        number = file.readline().strip()
    yield f":{number}"
    server.terminate()
    server.wait()


@pytest.fixture
def window(screen, monkeypatch):
    monkeypatch.setenv("DISPLAY", screen)
    window = DisplayWindow("a test")
    yield window
    window.close()


@pytest.fixture
def frame():
    """Red, green and blue side by side, 300 pixels high and 400 wide."""
    frame = torch.zeros(3, 300, 400, dtype=torch.uint8)
    frame[0, :, :100] = 255
    frame[1, :, 100:200] = 255
    frame[2, :, 200:] = 255
    return frame


def seen(window, screen):
    """What the window shows on the screen, (3, H, W)."""
    window.update()
    left, top = window.root.winfo_rootx(), window.root.winfo_rooty()
    right, bottom = left + window.root.winfo_width(), top + window.root.winfo_height()
    picture = ImageGrab.grab((left, top, right, bottom), xdisplay=screen).convert("RGB")
    return (
        torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(*picture.size[::-1], 3).permute(2, 0, 1)
    )


def test_a_frame_is_shown_as_it_is(window, screen, frame):
    window.show(frame)
    assert seen(window, screen).equal(frame)
    assert window.root.title() == "a test"
    window.show(frame.flip(2).permute(1, 2, 0).contiguous().permute(2, 0, 1))
    assert seen(window, screen).equal(frame.flip(2))


def test_a_frame_larger_than_the_screen_is_made_smaller(window, screen, frame):
    window.show(frame.repeat_interleave(10, dim=1).repeat_interleave(10, dim=2))
    shown = seen(window, screen)
    assert shown.shape == (3, 540, 720)
    assert shown[:, 100, 90].tolist() == [255, 0, 0]
    assert shown[:, 100, 700].tolist() == [0, 0, 255]


@pytest.mark.parametrize("key", ["q", "Q", "Escape"])
def test_a_key_closes_the_window(window, frame, key):
    window.show(frame)
    assert not window.closed
    window.root.focus_force()
    window.root.event_generate("<KeyPress>", keysym=key)
    window.update()
    assert window.closed


def test_other_keys_do_not(window, frame):
    window.show(frame)
    window.root.focus_force()
    window.root.event_generate("<KeyPress>", keysym="a")
    window.update()
    assert not window.closed


def test_a_window_stays_until_its_user_closes_it(window, frame):
    window.show(frame)
    window.root.focus_force()
    window.root.after(200, lambda: window.root.event_generate("<KeyPress>", keysym="q"))
    window.wait()
    assert window.closed
    window.wait()


def test_its_user_closes_the_window_and_nothing_more_is_shown(window, frame):
    window.show(frame)
    window.root.tk.call(window.root.protocol("WM_DELETE_WINDOW"))
    assert window.closed
    window.show(frame)
    window.update()
    window.close()


@pytest.mark.parametrize("room", [(100, 1000), (1000, 100), (37, 59), (300, 400)])
def test_a_frame_keeps_its_proportions_in_any_room(frame, room):
    shown = shrink_to_fit(frame, room)
    assert shown.dtype == torch.uint8
    _, height, width = shown.shape
    assert height <= room[0]
    assert width <= room[1]
    assert max(height - room[0], width - room[1]) == 0
    assert abs(height * 4 - width * 3) <= 4


@pytest.mark.skipif(sys.platform != "linux", reason="this system always has a display")
def test_without_a_display_a_sentence_says_so(monkeypatch):
    pytest.importorskip("tkinter")
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(OSError, match=r"^There is no display for --show: no display name .*\. Run it on a desktop"):
        DisplayWindow("a test")


def test_without_tkinter_a_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "tkinter", None)
    with pytest.raises(OSError, match=r"^There is no display for --show: this Python comes without tkinter\. Install"):
        DisplayWindow("a test")
