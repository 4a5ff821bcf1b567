"""The visitor's camera on the page."""

import pytest
from browsing import browser as browser, open_page
from exports import exported as exported
from serving import run_server
from waiting import until

from streamseg.serve import page


@pytest.fixture(scope="module")
def running():
    with run_server() as server:
        yield server


@pytest.fixture
def tab(browser, running):
    with open_page(browser, running) as found:
        yield found


def test_a_frame_of_the_camera_can_be_corrected(tab):
    tab.click("#camera")
    tab.wait_for_selector("#rate:text('fps')")
    assert tab.is_hidden("#player")
    tab.click("#paint-panel summary")
    tab.click("#paint")
    tab.wait_for_selector("#paint[aria-pressed=true]")
    assert tab.input_value("#save-name").startswith("camera-20")
    assert tab.evaluate("document.getElementById('video').srcObject") is None


def test_a_run_that_waits_for_a_frame_ends_when_a_picture_is_opened(tab):
    sent = []
    tab.on("websocket", lambda socket: socket.on("framesent", lambda _: sent.append(socket)))
    tab.evaluate("""() => { // the camera gives a frame when this test says so
        HTMLVideoElement.prototype.requestVideoFrameCallback = (then) => { window.giveFrame = then; };
        const wait = window.setTimeout;
        window.setTimeout = (then, time) => time === 250 ? 0 : wait(then, time);
    }""")

    def give_frame():
        return tab.evaluate("() => { const then = window.giveFrame; window.giveFrame = null; then?.(); }")

    tab.click("#camera")
    until(lambda: "fps" in tab.inner_text("#rate") or give_frame())
    until(lambda: tab.evaluate("Boolean(window.giveFrame)"))
    tab.click("#paint-panel summary")
    tab.click("#paint")
    tab.wait_for_selector("#paint[aria-pressed=true]")
    give_frame()
    tab.wait_for_timeout(500)
    assert sent.count(sent[-1]) == 1


def test_the_page_says_that_the_camera_was_disconnected(tab):
    tab.click("#camera")
    tab.wait_for_selector("#rate:text('fps')")
    tab.evaluate("document.getElementById('video').srcObject.getVideoTracks()[0].dispatchEvent(new Event('ended'))")
    tab.wait_for_selector("#message.error:text('was disconnected')")


@pytest.mark.slow
def test_the_camera_is_labelled_in_this_browser(browser, exported):
    if page.find_library() is None:
        pytest.skip("onnxruntime-web is missing: python -m streamseg.serve.page downloads it")
    with run_server(weights=exported("any.onnx")) as running, open_page(browser, running) as tab:
        tab.click("#camera-here")
        tab.wait_for_selector("#where:text('in this browser')")
        tab.wait_for_selector("#rate:text('fps')")
        assert tab.inner_text("#privacy") == "Nothing leaves this computer."
        assert tab.url.endswith("#place=browser")
        assert running.gate.streams == 0
