"""The tools of the page: thumbnails, regions, zones, corrections, and the link to its settings."""

import json
from urllib.parse import quote

import numpy
import pytest
from browsing import browser as browser, download, open_page, pixels, wait_for_labels
from clips import make_clip
from exports import exported as exported, moving, small
from PIL import Image
from serving import run_server

import streamseg
from streamseg.io.images import read_image
from streamseg.regions.events import ZoneMonitor
from streamseg.regions.regions import find_regions
from streamseg.regions.tracking import RegionTracker
from streamseg.regions.zones import Lane, Zone, fit_area, read_zones
from streamseg.serve import ServedZones
from streamseg.stream.label_frames import label_frame

CLASSES = streamseg.CAMVID
FRAME = moving(1, 120, 160)[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server that saves into a folder, and the folder."""
    folder = tmp_path_factory.mktemp("data")
    with run_server(folder=folder) as running:
        yield running, folder


@pytest.fixture
def tab(browser, served):
    with open_page(browser, served[0]) as found:
        yield found


@pytest.fixture
def street(tab, tmp_path):
    """The page with a labelled picture."""
    show_picture(tab, tmp_path)
    return tab


def show_picture(tab, folder):
    Image.fromarray(FRAME.permute(1, 2, 0).numpy()).save(folder / "street.png")
    tab.set_input_files("#file", folder / "street.png")
    wait_for_labels(tab, "on the server")


@pytest.fixture(scope="module")
def labels():
    return label_frame(small(), FRAME)[0].numpy()


def place(tab, x, y):
    """A point of the picture on the screen."""
    box = tab.locator("#layer").bounding_box()
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def blobs(seed, height=40, width=60, classes=5):
    """Random labels with large and small regions, and pixels without a class."""
    generator = numpy.random.default_rng(seed)
    coarse = generator.integers(0, classes, (height // 5, width // 5), dtype=numpy.uint8)
    labels = coarse.repeat(5, axis=0).repeat(5, axis=1)
    spots = generator.random((height, width)) < 0.1
    labels[spots] = generator.choice([0, 1, 255], spots.sum())
    return labels


def call(tab, module, expression, *arguments):
    """Evaluate an expression with a module of the page, m, and arguments, a."""
    script = f"async (a) => {{ const m = await import('/{module}'); return {expression}; }}"
    return tab.evaluate(script, list(arguments))


def test_regions_of_the_page_are_those_of_find_regions(tab):
    for seed in range(3):
        labels = blobs(seed)
        found = call(
            tab, "regions.js", "m.findRegions(new Uint8Array(a[0]), a[1], () => true, 3).regions",
            labels.ravel().tolist(), labels.shape[1],
        )  # fmt: skip
        expected = find_regions(labels, CLASSES, min_area=3)
        assert [(r["label"], r["area"], tuple(r["box"])) for r in found] == [(r.label, r.area, r.box) for r in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours["x"], ours["y"]) == pytest.approx(theirs.centroid)
    assert len(expected) > 20


def test_regions_of_the_page_keep_their_numbers_as_those_of_the_tracker(tab):
    frames = []
    for i in range(4):
        labels = numpy.zeros((40, 60), dtype=numpy.uint8)
        labels[5:15, 3 + 2 * i : 18 + 2 * i] = 1
        labels[22:30, 40 - i : 50 - i] = 1
        if i == 2:
            labels[32:38, 2:12] = 2
        frames.append(labels)
    script = """((tracker) => a[0].map((frame) => {
        const found = m.findRegions(new Uint8Array(frame), 60, () => true, 1);
        return tracker.update(found).map(({ id }) => id);
    }))(new m.RegionTracker())"""
    found = call(tab, "regions.js", script, [frame.ravel().tolist() for frame in frames])
    tracker = RegionTracker()
    expected = [[r.id for r in tracker.update(find_regions(frame, CLASSES, min_area=1))] for frame in frames]
    assert found == expected


POLYGONS = [
    ((0.1, 0.2), (0.9, 0.1), (0.7, 0.95)),
    ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)),
    ((0.05, 0.9), (0.2, 0.13), (0.5, 0.6), (0.83, 0.07), (0.97, 0.9)),
]


@pytest.mark.parametrize("points", POLYGONS)
def test_zones_of_the_page_are_measured_as_by_a_monitor(tab, points):
    labels = blobs(7, 45, 70)
    zone = Zone("zone", points, CLASSES.names[:4], present=0.2, debounce=0.0)
    lane = Lane("lane", points, CLASSES.names[:4], row_share=0.6)
    (reading, ahead), _ = ZoneMonitor([zone, lane], CLASSES).update(labels, 0.0)
    script = "a[0].map((area) => m.measure(area, a[1], new Uint8Array(a[2]), 70, 45, a[3]))"
    areas = [{"classes": [*zone.classes], "present": 0.2}, {"drivable": [*lane.drivable], "row_share": 0.6}]
    found = call(tab, "zones.js", script, areas, points, labels.ravel().tolist(), [*CLASSES.names])
    assert found[0]["shares"] == pytest.approx(reading.shares)
    assert tuple(found[0]["active"]) == reading.active
    assert found[1]["free"] * len(fit_area(lane, 45, 70).mask) == pytest.approx(ahead.pixels, abs=1e-6)


def test_the_first_screen_shows_thumbnails_that_open(tab):
    info = tab.evaluate("fetch('info').then((answer) => answer.json())")
    pictures = tab.locator("#thumbnails img")
    assert pictures.count() == len(info["samples"])
    pictures.first.scroll_into_view_if_needed()
    tab.wait_for_function("document.querySelector('#thumbnails img').naturalWidth === 320")
    tab.locator("#thumbnails button").last.click()
    wait_for_labels(tab, "on the server")
    assert not tab.is_visible("#thumbnails")
    assert tab.url.endswith(f"#sample={info['samples'][-1]}")


def test_regions_are_listed_and_outlined(street, labels):
    street.check("#show-regions")
    expected = find_regions(labels, CLASSES)
    assert street.inner_text("#region-count") == str(len(expected))
    entries = street.locator("#region-list button")
    largest = max(expected, key=lambda region: region.area)
    assert entries.first.inner_text().startswith(largest.name)
    entries.first.click()
    box = street.locator("#layer-regions rect")
    found = [float(box.get_attribute(name)) for name in ("x", "y", "width", "height")]
    left, top, right, bottom = (side * 1000 / 160 for side in largest.box)
    assert found == pytest.approx([left, top, right - left, bottom - top])
    # the regions of hidden classes are not listed
    street.locator("#classes input").nth(largest.label).uncheck()
    shown = [region for region in expected if region.label != largest.label]
    assert street.inner_text("#region-count") == str(len(shown))
    street.uncheck("#show-regions")
    assert street.locator("#layer-regions text").count() == 0


def test_a_zone_is_drawn_corrected_and_downloaded(street, labels, tmp_path):
    street.click("#zone-panel summary")
    street.click("#zone-draw")
    assert street.inner_text("#message.error") == "Choose the classes to watch first, then draw the zone."
    watched = CLASSES.names[int(numpy.bincount(labels.ravel()).argmax())]
    street.select_option("#zone-classes", [watched])
    street.fill("#zone-name", "middle")
    street.click("#zone-draw")
    for x, y in ((0.2, 0.2), (0.8, 0.8), (0.8, 0.2), (0.2, 0.8)):
        street.mouse.click(*place(street, x, y))
    street.keyboard.press("Enter")
    expected = "Zone 'middle' crosses itself, between its points 1 and 3: give the corners in order."
    street.wait_for_selector(f'#message.error:text-is("{expected}")')
    assert street.locator("#layer-draft circle").count() == 4  # nothing is lost
    for _ in range(3):
        street.keyboard.press("Backspace")
    for x, y in ((0.8, 0.2), (0.8, 0.8), (0.2, 0.8), (0.2, 0.2)):  # the last click closes it
        street.mouse.click(*place(street, x, y))
    street.wait_for_selector("#zone-list li")
    assert street.locator("#layer-zones polygon").count() == 1
    assert street.locator("#layer-draft circle").count() == 0
    (zone,) = read_zones(download(street, "#zone-download", tmp_path))
    assert (zone.name, zone.classes) == ("middle", (watched,))
    assert numpy.abs(numpy.array(zone.points) - [(0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8)]).max() < 0.01
    monitor = ZoneMonitor([zone], CLASSES)
    ((reading,), _) = monitor.update(labels, 0.0)
    _, (event,) = monitor.update(labels, 1.0)  # after its debounce
    assert (event.zone, event.kind, event.class_name) == ("middle", "enter", watched)
    share = float(street.inner_text("#zone-list .share").split()[1])
    assert share == pytest.approx(100 * reading.shares[watched], abs=1)
    # the overlay that is saved has its outline
    plain = pixels(street).astype(int)
    saved = numpy.array(Image.open(download(street, "#save-overlay", tmp_path)).convert("RGB")).astype(int)
    changed = numpy.abs(saved - plain).sum(axis=2) > 30
    assert changed[96 - 2 : 96 + 2, 40:120].any(axis=0).mean() > 0.9
    assert not changed[40:80, 60:100].any()
    street.click("[aria-label='Remove middle']")
    street.wait_for_selector("#zone-list li", state="detached")
    assert street.locator("#layer-zones polygon").count() == 0


def test_a_zone_without_its_class_has_a_share_of_nothing(street, labels, tmp_path):
    absent = next(name for i, name in enumerate(CLASSES.names) if not (labels == i).any())
    path = tmp_path / "zones.toml"
    path.write_text(f'[[zone]]\nname = "all"\npoints = [[0, 0], [1, 0], [1, 1], [0, 1]]\nclasses = ["{absent}"]\n')
    street.set_input_files("#zone-file", path)
    street.wait_for_selector("#zone-list li", state="attached")
    assert street.text_content("#zone-list .share") == f"{absent} 0 %"
    assert street.text_content("#layer-zones text") == "all"


@pytest.mark.parametrize("width", [320, 390])
def test_nothing_is_wider_than_a_phone(street, width):
    street.check("#show-regions")
    street.click("#zone-panel summary")
    street.click("#paint-panel summary")
    street.set_viewport_size({"width": width, "height": 800})
    street.wait_for_timeout(200)
    assert street.evaluate("document.documentElement.scrollWidth") <= width
    beyond = """aside => {
        const edge = aside.getBoundingClientRect().right - parseFloat(getComputedStyle(aside).paddingRight);
        const children = [...aside.children];
        return children.filter(child => child.getBoundingClientRect().right > edge + 1).map(child => child.id);
    }"""
    assert street.locator("aside").evaluate(beyond) == []
    # the region captions are redrawn by the next change, and stay on the picture
    street.uncheck("#show-regions")
    street.check("#show-regions")
    outside = """layer => {
        const { left, right } = layer.getBoundingClientRect();
        const boxes = [...layer.querySelectorAll("text.region")].map(text => text.getBoundingClientRect());
        return boxes.filter(box => box.left < left - 4 || box.right > right + 4).length;
    }"""
    assert street.locator("#layer").evaluate(outside) == 0


def test_a_zone_is_drawn_with_the_keyboard_and_saved_on_the_server(street, served):
    street.click("#zone-panel summary")
    street.select_option("#zone-classes", ["Road", "Car"])
    street.select_option("#zone-kind", "lane")
    street.locator("#zone-draw").focus()
    street.keyboard.press("Enter")
    for moves in (["Space"], ["Shift+ArrowRight", "Space"], ["Shift+ArrowDown", "Space"], ["Enter"]):
        for key in moves:
            street.keyboard.press(key)
    street.wait_for_selector("#zone-list li:has-text('free')")
    street.click("#zone-save")
    street.wait_for_selector("#message:text('Saved zones/street.json in the data folder of the server.')")
    (lane,) = read_zones(served[1] / "zones" / "street.json")
    assert (lane.name, lane.drivable) == ("lane 1", ("Road", "Car"))
    assert lane.points == ((0.5, 0.5), (0.6, 0.5), (0.6, 0.6))


def test_a_file_of_zones_is_opened_or_refused_with_a_sentence(street, tmp_path):
    path = tmp_path / "zones.toml"
    path.write_text('[[zone]]\nname = "left"\npoints = [[0, 0], [80, 0], [80, 120]]\nclasses = ["Car"]\n')
    street.set_input_files("#zone-file", path)
    street.wait_for_selector("#layer-zones polygon")
    points = [float(part) for part in street.get_attribute("#layer-zones polygon", "points").replace(",", " ").split()]
    assert points == pytest.approx([0, 0, 500, 0, 500, 750])  # pixels of the picture, 160 x 120
    path.write_text('[[zone]]\nname = "left"\npoints = [[0, 0], [1, 0], [1, 1]]\nclasses = ["Submarine"]\n')
    street.set_input_files("#zone-file", path)
    street.wait_for_selector("#message.error:text(\"Zone 'left': No class is called 'Submarine'\")")
    assert street.locator("#layer-zones polygon").count() == 1
    path.write_text('[[zone]]\nname = "far"\npoints = [[0, 0], [900, 0], [900, 120]]\nclasses = ["Car"]\n')
    street.set_input_files("#zone-file", path)
    street.wait_for_selector("#zone-panel:has-text('reaches out of the frame')", state="attached")


def paint_region(tab, labels):
    """Give the region in the middle another class; return the labels that the picture then has."""
    region = next(r for r in find_regions(labels, CLASSES, min_area=1) if r.mask()[60, 80])
    other = (region.label + 1) % len(CLASSES)
    tab.click("#paint-panel summary")
    tab.click("#paint")
    tab.select_option("#paint-class", str(other))
    tab.mouse.click(*place(tab, 80.5 / 160, 60.5 / 120))
    return numpy.where(region.mask(), other, labels).astype(numpy.uint8)


def test_a_region_gets_another_class_and_is_saved_into_the_data_folder(street, served, labels):
    _, folder = served
    before = pixels(street)
    expected = paint_region(street, labels)
    assert not numpy.array_equal(pixels(street), before)
    street.click("#paint-undo")
    assert numpy.array_equal(pixels(street), before)
    street.mouse.click(*place(street, 80.5 / 160, 60.5 / 120))
    # a stroke of the brush, by keyboard, at the place of the cross
    street.check("#paint-brush", force=True)
    street.select_option("#paint-class", "255")
    street.locator("#layer").focus()
    street.keyboard.press("Shift+ArrowLeft")
    street.keyboard.press("Space")
    street.fill("#save-name", "../street")
    street.click("#paint-save")
    street.wait_for_selector("#message.error:text('cannot be a name here')")
    street.fill("#save-name", "corrected")
    street.click("#paint-save")
    street.wait_for_selector("#message:text('Saved images/corrected.png and labels/corrected.png')")
    saved = numpy.array(Image.open(folder / "labels" / "corrected.png"))
    assert read_image(folder / "images" / "corrected.png").equal(FRAME)
    erased = saved == 255
    rows, columns = numpy.nonzero(erased)
    assert (rows.mean(), columns.mean()) == pytest.approx((59.5, 63.5), abs=1.5)
    assert (saved[~erased] == expected[~erased]).mean() > 0.999
    assert (folder / "classes.txt").read_text().startswith("Sky #808080\n")


def test_without_a_folder_corrected_labels_are_downloaded_and_not_lost(browser, labels, tmp_path):
    with run_server() as running, open_page(browser, running) as tab:
        show_picture(tab, tmp_path)
        expected = paint_region(tab, labels)
        assert not tab.is_visible("#paint-save")
        asked = []
        tab.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        tab.select_option("#resolution-choice", "0.1")  # labels the picture anew
        assert asked == ["The corrections of this picture are not saved. Discard them?"]
        assert tab.input_value("#resolution-choice") == ""
        found = numpy.array(Image.open(download(tab, "#paint-download", tmp_path)))
        assert (found == expected).mean() > 0.999
        tab.select_option("#resolution-choice", "2")  # now they are saved
        wait_for_labels(tab, "on the server")
        assert len(asked) == 1


def test_a_link_has_the_settings(browser, served):
    with open_page(browser, served[0]) as tab:
        tab.locator("#thumbnails button").last.click()
        wait_for_labels(tab, "on the server")
        tab.locator("#opacity").fill("35")
        tab.locator("#opacity").dispatch_event("change")
        tab.locator("#classes input").nth(3).uncheck()
        tab.check("#show-regions")
        before = tab.inner_text("#resolution")
        tab.select_option("#resolution-choice", "0.1")
        tab.wait_for_function(
            "(before) => !['–', before].includes(document.getElementById('resolution').textContent)", arg=before
        )
        address, shown = tab.url, pixels(tab)
    fragment = address.partition("/#")[2]
    assert "opacity=35" in fragment
    assert "hide=Road" in fragment
    with open_page(browser, served[0], f"#{fragment}") as tab:
        wait_for_labels(tab, "on the server")
        assert tab.inner_text("#opacity-value") == "35 %"
        assert not tab.locator("#classes input").nth(3).is_checked()
        assert tab.locator("#region-list li").count() > 0
        assert numpy.array_equal(pixels(tab), shown)
        assert tab.url == address


CROSSED = {"zone": [{"name": "a", "points": [[0, 0], [1, 1], [1, 0], [0, 1]], "classes": ["Car"]}]}


@pytest.mark.parametrize(
    ("fragment", "sentence"),
    [
        ("hide=Sky&hide=Cat&opacity=999", "This link has settings that are unknown here: hide=Cat, opacity=999."),
        ("sample=..%2fsecret&x=1", "This link has settings that are unknown here: sample=../secret, x=1."),
        ("place=moon", "This link has settings that are unknown here: place=moon."),
        (
            f"zones={quote(json.dumps(CROSSED))}",
            "The zones of this link are not used: The file of zones: Zone 'a' crosses itself",
        ),
    ],
)
def test_a_link_with_unknown_settings_is_one_sentence(browser, served, fragment, sentence):
    with open_page(browser, served[0], f"#{fragment}") as tab:
        tab.wait_for_selector("#message.error")
        assert tab.inner_text("#message").startswith(sentence)
        assert tab.locator("#classes input").first.is_checked() == ("hide=Sky" not in fragment)


def test_a_frame_of_a_served_source_is_opened_with_its_zones(browser, tmp_path):
    clip = make_clip(tmp_path / "road.mp4", 5, size=(48, 64))
    zone = Zone("door", ((0.1, 0.1), (0.9, 0.1), (0.5, 0.9)), ("Car",))
    zones = ServedZones({"road": (zone,)})
    with run_server(sources={"road": str(clip)}, zones=zones) as running, open_page(browser, running) as tab:
        tab.click("#thumbnails button:has-text('live: road')")
        wait_for_labels(tab, "on the server")
        assert tab.inner_text("#resolution") == "64 × 48"
        assert tab.locator("#layer-zones text").text_content().startswith("door")
        assert tab.url.endswith("#source=road")
