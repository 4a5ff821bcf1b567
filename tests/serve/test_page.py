import base64
import hashlib
import io
import tarfile
from functools import partial
from pathlib import Path

import numpy
import pytest
import torch
from browsing import browser as browser, download, pixels, wait_for_labels
from exports import exported as exported, moving, small
from PIL import Image
from servers import Files, serve_http
from waiting import PATIENCE

from streamseg.classes import IGNORE
from streamseg.engine.kernels import border_mask
from streamseg.serve import page
from streamseg.stream.label_frames import label_frame

# the library


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """An npm registry on this machine, with a library of small files; the machine has no copy of it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name in ("package.json", *(f"dist/{name}" for name in page.LIBRARY_FILES)):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    file = tmp_path / "registry" / page.LIBRARY / "-" / f"{page.LIBRARY}-{page.VERSION}.tgz"
    file.parent.mkdir(parents=True)
    file.write_bytes(data.getvalue())
    monkeypatch.setattr(
        page, "INTEGRITY", "sha512-" + base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
    )
    monkeypatch.setattr(page, "BUNDLED_LIBRARY", tmp_path / "package" / page.BUNDLED_LIBRARY.name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    with serve_http(partial(Files, folder=tmp_path / "registry")) as address:
        yield address


def test_the_library_is_downloaded_from_the_registry_of_npmrc_or_the_environment(registry, tmp_path, monkeypatch):
    assert page.registry_address() == "https://registry.npmjs.org"
    (tmp_path / ".npmrc").write_text(f"fund=false\nregistry = {registry}/\n")
    assert page.registry_address() == registry
    assert page.find_library() is None
    cached = page.fetch_library(page.cache_folder() / page.BUNDLED_LIBRARY.name)
    assert sorted(path.name for path in cached.iterdir()) == sorted(page.LIBRARY_FILES)
    assert (cached / page.LIBRARY_FILES[0]).read_text() == f"dist/{page.LIBRARY_FILES[0]}"
    assert page.find_library() == cached
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry)
    assert page.fetch_library(page.BUNDLED_LIBRARY) == page.find_library() == page.BUNDLED_LIBRARY


def test_a_library_with_a_wrong_hash_is_not_used(registry, monkeypatch):
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry)
    monkeypatch.setattr(page, "INTEGRITY", "sha512-AAAA")
    with pytest.raises(ValueError, match=f"is not {page.LIBRARY} {page.VERSION}: its hash is wrong"):
        page.fetch_library(page.BUNDLED_LIBRARY)
    assert page.find_library() is None


@pytest.mark.parametrize("where", ["http://127.0.0.1:9", "/nowhere"])
def test_a_library_that_cannot_be_downloaded_is_one_sentence(registry, monkeypatch, where):
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry + where if where.startswith("/") else where)
    with pytest.raises(OSError, match=r"could not be downloaded \(.*\): .*run: python -m streamseg.serve.page"):
        page.fetch_library(page.BUNDLED_LIBRARY)


# the page in a browser


@pytest.fixture
def visited(browser, exported):
    """A server with a token, and its page: it sends no request to other servers, and no error occurs in it."""
    serving = pytest.importorskip("serving")
    wrong = []
    with serving.run_server(weights=exported("any.onnx"), token="secret") as running:
        context = browser.new_context(viewport={"width": 1000, "height": 800})
        tab = context.new_page()
        tab.set_default_timeout(1000 * PATIENCE)
        own = (f"http://127.0.0.1:{running.port}/", f"blob:http://127.0.0.1:{running.port}/", "data:")
        tab.on("request", lambda request: None if request.url.startswith(own) else wrong.append(request.url))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.goto(own[0])
        tab.wait_for_selector("#token-dialog[open]")
        yield running, tab
        context.close()
    assert wrong == []


@pytest.fixture
def opened(visited):
    """The page after the token was given."""
    _, tab = visited
    give_token(tab, "secret")
    tab.wait_for_selector("#classes li")
    return tab


def give_token(tab, token):
    tab.fill("#token", token)
    tab.keyboard.press("Enter")


def handle(tab):
    """Where the handle of the slider begins and ends, in pixels from the left of the picture."""
    style = tab.locator("#frame").evaluate(
        "frame => (({ left, width }) => [left, width].map(parseFloat))(getComputedStyle(frame, '::after'))"
    )
    return style[0], sum(style)


@pytest.mark.slow
def test_a_picture_is_labelled_on_the_server_and_in_the_browser_alike(opened, exported, tmp_path):
    if page.find_library() is None:
        pytest.skip("onnxruntime-web is missing: python -m streamseg.serve.page downloads it")
    (frame,) = moving(1, 120, 160)
    picture = frame.permute(1, 2, 0).numpy()
    Image.fromarray(picture).save(tmp_path / "street.png")
    opened.set_input_files("#file", tmp_path / "street.png")
    wait_for_labels(opened, "on the server")
    expected, _ = label_frame(small(), frame)
    ours = numpy.array(Image.open(download(opened, "#save-labels", tmp_path)))
    assert (tmp_path / "street-labels.png").exists()
    assert (torch.from_numpy(ours) == expected).float().mean() > 0.999
    assert len(numpy.unique(ours)) > 2
    drawn = numpy.array(Image.open(download(opened, "#save-overlay", tmp_path)).convert("RGB"))
    assert drawn.shape == picture.shape
    assert numpy.array_equal(drawn, pixels(opened))
    assert numpy.abs(drawn.astype(int) - picture).mean() > 10

    # classes by keyboard: the pixels of a hidden class are those of the picture, except for its border
    largest = int(numpy.bincount(ours.ravel()).argmax())
    opened.locator("#classes input").nth(largest).focus()
    opened.keyboard.press("Space")
    left = pixels(opened)
    visible = numpy.where(ours == largest, IGNORE, ours)
    coloured = (visible != IGNORE) | (border_mask(torch.from_numpy(visible)).numpy() > 0)
    assert numpy.array_equal(left[~coloured], picture[~coloured])
    assert numpy.array_equal(left[coloured], drawn[coloured])
    assert (coloured & (ours == largest)).any()
    opened.click("#none")
    assert numpy.array_equal(pixels(opened), picture)
    opened.click("#all")
    assert numpy.array_equal(pixels(opened), drawn)

    # the slider by keyboard: no colours to its left, and the handle is inside the picture at both ends
    opened.locator("#split").focus()
    opened.keyboard.press("End")
    assert numpy.array_equal(pixels(opened), picture)
    room = opened.locator("#frame").evaluate("frame => frame.clientWidth")
    assert handle(opened) == pytest.approx((room - 40, room), abs=1)
    opened.keyboard.press("Home")
    assert handle(opened) == (0, 40)
    opened.locator("#opacity").fill("0")
    assert numpy.array_equal(pixels(opened), picture)

    opened.locator("[value=server]").focus()
    opened.keyboard.press("ArrowRight")
    wait_for_labels(opened, "in this browser")
    assert opened.inner_text("#privacy") == "Nothing leaves this computer."
    theirs = numpy.array(Image.open(download(opened, "#save-labels", tmp_path)))
    assert (ours == theirs).mean() >= 0.995


def test_a_wrong_token_is_reported_in_the_dialog_and_another_can_be_given(visited, tmp_path):
    running, tab = visited
    assert not tab.is_visible("#token-error")  # no token has been given yet
    for token, problem in (
        ("wrong", "Wrong token: check it and try again."),
        ("straße 1", "A token contains only letters, digits and . _ ~ + -: check it and try again."),
        ("secre", "Wrong token: check it and try again."),
    ):
        give_token(tab, token)
        tab.wait_for_selector(f"#token-dialog[open] #token-error:text('{problem}')")
        assert tab.get_attribute("#token", "aria-invalid") == "true"
        assert tab.evaluate("document.activeElement.id") == "token"
    give_token(tab, " secret ")  # copied with spaces
    tab.wait_for_selector("#classes li")
    assert not tab.is_visible("#token-dialog")

    # a server that was restarted with another token rejects the stream, and the browser does not say why
    running.gate.token = "other"
    (frame,) = moving(1, 120, 160)
    Image.fromarray(frame.permute(1, 2, 0).numpy()).save(tmp_path / "street.png")
    tab.set_input_files("#file", tmp_path / "street.png")
    tab.wait_for_selector("#token-dialog[open] #token-error:text('Wrong token')")
    give_token(tab, "other")
    wait_for_labels(tab, "on the server")


WATCH = """() => {
  window.changes = [];
  const note = () => changes.push([
    document.getElementById("message").textContent,
    document.getElementById("busy").hidden ? "no bar" : document.getElementById("bar").getAttribute("value"),
  ]);
  new MutationObserver(note).observe(
    document.querySelector(".stage"), { subtree: true, attributes: true, childList: true, characterData: true });
}"""


@pytest.mark.slow
def test_a_new_picture_is_shown_at_once_with_the_progress_of_the_browser_engine(opened, tmp_path):
    if page.find_library() is None:
        pytest.skip("onnxruntime-web is missing: python -m streamseg.serve.page downloads it")
    held = []
    opened.route("**/browser", lambda route: held.append(route))  # the server takes its time
    opened.evaluate(WATCH)
    opened.locator("[value=server]").focus()
    opened.keyboard.press("ArrowRight")
    frames = moving(2, 120, 160)
    for name, frame in zip(("one.png", "two.png"), frames, strict=True):
        picture = frame.permute(1, 2, 0).numpy()
        Image.fromarray(picture).save(tmp_path / name)
        opened.set_input_files("#file", tmp_path / name)
        opened.wait_for_selector("#message:text('The server is exporting the network for this browser')")
        opened.wait_for_selector(f"#view[width='{picture.shape[1]}']")
        assert numpy.array_equal(pixels(opened), picture)
        assert opened.is_visible("#bar")
        assert opened.get_attribute("#bar", "value") is None  # of unknown length
        assert opened.is_disabled("#save-labels")
    opened.wait_for_selector("#bar-value:text(' s')")  # the seconds so far
    assert len(held) == 1
    held[0].continue_()
    wait_for_labels(opened, "in this browser")
    assert not opened.is_visible("#bar")
    stages = {}
    for message, value in opened.evaluate("changes"):
        stages.setdefault(message, []).append(value)
    names = [name.split()[0] for name in stages if name and name.endswith("…")]
    assert names == ["The", "Downloading", "Compiling", "Labelling"]
    downloading = next(name for name in stages if name.startswith("Downloading the network and onnxruntime-web, "))
    shares = [float(value) for value in stages[downloading] if value not in (None, "no bar")]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5 < shares[-1] < 1
    assert None in stages["Compiling the network for this browser …"]


def test_a_video_is_labelled_live_and_a_file_that_is_neither_is_an_error(opened, tmp_path):
    Path(tmp_path / "a.txt").write_text("no picture")
    opened.set_input_files("#file", tmp_path / "a.txt")
    opened.wait_for_selector("#message.error:text('This browser cannot open a.txt')")
    clip = tmp_path / "clip.webm"
    write_clip(clip)
    opened.set_input_files("#file", clip)
    opened.wait_for_selector("#rate:text('fps')")
    assert opened.inner_text("#resolution") == "96 × 72"
    opened.click("#play")
    opened.wait_for_selector("#play:text('Play')")


def write_clip(path):
    """A second of video, in a format that every Chromium knows."""
    av = pytest.importorskip("av", reason="av is not installed: pip install 'streamseg[video]'")
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 72, "yuv420p"
        for frame in moving(10):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame.permute(1, 2, 0).contiguous().numpy())))
        file.mux(stream.encode())


RESET_DURING_A_FRAME = """async () => {
  const { ServerEngine } = await import("./engines.js");
  const canvas = (side) => Object.assign(document.createElement("canvas"), { width: side, height: side });
  const slow = { toBlob: (done, ...how) => setTimeout(() => canvas(64).toBlob(done, ...how), 500) };
  const engine = new ServerEngine("secret");
  await engine.reset();
  const first = engine.label(slow, false).then((labels) => labels.length, (error) => error.message);
  await engine.reset();
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const second = await engine.label(canvas(48), true);
  const found = [await first, second.length];
  engine.close();
  return found;
}"""


def test_a_frame_from_before_a_reset_does_not_take_the_answer_of_the_next(opened):
    assert opened.evaluate(RESET_DURING_A_FRAME) == ["The server has closed the stream.", 48 * 48]
