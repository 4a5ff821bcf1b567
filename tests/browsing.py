"""A browser for tests of the web page, and what tests do with the page."""

import base64
import io
import shutil
from contextlib import contextmanager

import numpy
import pytest
from PIL import Image
from waiting import PATIENCE

FAKE_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", *FAKE_CAMERA])
        yield found
        found.close()


@contextmanager
def open_page(browser, running, fragment=""):
    """The page of a server, in a browser of its own; no error occurs in it."""
    wrong = []
    context = browser.new_context(viewport={"width": 1000, "height": 800}, permissions=["camera"])
    tab = context.new_page()
    tab.set_default_timeout(1000 * PATIENCE)
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.goto(f"http://127.0.0.1:{running.port}/{fragment}")
    tab.wait_for_selector("#classes li")
    yield tab
    context.close()
    assert wrong == []


def pixels(tab):
    """The picture on the page, (H, W, 3)."""
    data = tab.locator("#view").evaluate("canvas => canvas.toDataURL()").partition(",")[2]
    return numpy.array(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def download(tab, button, folder):
    with tab.expect_download() as found:
        tab.click(button)
    path = folder / found.value.suggested_filename
    found.value.save_as(path)
    return path


def wait_for_labels(tab, where):
    """Wait until a picture is labelled, on the server or in this browser."""
    tab.wait_for_selector(f"#where:text('{where}')")
    tab.wait_for_selector("#message:empty", state="attached")
    tab.wait_for_selector("#save-labels:enabled")
