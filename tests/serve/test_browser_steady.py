"""Files that keep labels steady, in the browser of the page."""

from dataclasses import replace

import numpy
import pytest
import torch
from browsing import browser as browser
from exports import SIZE, moving, small_plus
from serving import WINDOW, run_server
from waiting import PATIENCE

import streamseg
from streamseg import STEADY_HIGH, LastFrames
from streamseg.deploy.export import export_model
from streamseg.engine.runtime import open_exported
from streamseg.io.masks import to_mask
from streamseg.serve import page
from streamseg.stream.label_frames import label_frames

FRAMES = moving(9)
TIMES = [0.0, 0.05, 0.1, 0.15, 0.35, 0.4, 2.0, 2.05, 2.04]
"""Some frames come late: first of these for less share, then for none mirrored; and the clock goes back."""
LABEL = """async ([frames, times, height, width]) => {
    const { BrowserEngine } = await import("/engines.js");
    const model = await (await fetch("browser")).json();
    model.library = new URL(model.library, location.href).href;
    const engine = await BrowserEngine.open(model, "", () => {}), found = [];
    await engine.reset();
    for (let i = 0; i < frames.length; i++) {
        const canvas = new OffscreenCanvas(width, height);
        canvas.getContext("2d").putImageData(new ImageData(Uint8ClampedArray.from(frames[i]), width, height), 0, 0);
        found.push([...await engine.label(canvas, false, times[i])]);
    }
    return found;
}"""


@pytest.fixture(scope="module")
def steady_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("steady") / "steady.onnx"
    export_model(small_plus(), streamseg.CAMVID, path, size=SIZE, video=True, steady=STEADY_HIGH, window=WINDOW)
    return path


def label_in_browser(browser, path, steady):
    """Labels (N, H, W) of the frames by the network in the page."""
    with run_server(weights=path, steady=steady) as running:
        tab = browser.new_page()
        tab.set_default_timeout(1000 * PATIENCE)
        tab.goto(f"http://127.0.0.1:{running.port}/")
        opaque = [torch.cat([frame, torch.full_like(frame[:1], 255)]).permute(1, 2, 0) for frame in FRAMES]
        found = tab.evaluate(LABEL, [[frame.flatten().tolist() for frame in opaque], TIMES, *SIZE])
        tab.close()
    return numpy.array(found, numpy.uint8).reshape(len(FRAMES), *SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("steady", [STEADY_HIGH, replace(STEADY_HIGH, mirror=False), 0.0], ids=str)
def test_a_steady_file_labels_in_the_browser_as_in_a_stream_of_the_server(browser, steady_file, steady):
    if page.find_library() is None:
        pytest.skip("onnxruntime-web is missing: python -m streamseg.serve.page downloads it")
    found = label_in_browser(browser, steady_file, steady)
    engine = open_exported(steady_file)
    expected, others = (
        torch.stack([x for _, x in label_frames(engine, FRAMES, LastFrames(WINDOW, steady=way), times=TIMES)]).numpy()
        for way in (steady, 0.0 if steady else STEADY_HIGH)
    )
    assert (found == expected).mean() > 0.999
    assert (found == others).mean() < 0.99


def test_a_browser_is_told_that_it_cannot_hide_what_a_mask_hides(steady_file):
    with run_server(weights=steady_file, mask=to_mask(torch.ones(4, 4, dtype=torch.bool).tril())) as running:
        answer = running.ask("/browser")
        assert answer.status == 404
        assert answer.json["error"] == "The server hides pixels by a mask, which the network in a browser would see."
