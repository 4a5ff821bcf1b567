"""The document site: complete, without dead links, and independent of other hosts."""

import logging
import os
import re
import shutil
from pathlib import Path

import pytest

import streamseg

os.environ["NO_MKDOCS_2_WARNING"] = "1"  # advice about another generator, of no use in a test
pytest.importorskip("material", reason="Material for MkDocs is not installed: pip install 'streamseg[docs]'")
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def links_of(page):
    return re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8"))


def test_the_site_has_every_document(site):
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("samples/*.md")]
    places = {path.relative_to(ROOT).with_suffix(".html").as_posix() for path in documents} - {"README.html"}
    notebooks = {f"notebooks/{path.name}.html" for path in ROOT.glob("notebooks/*.ipynb")}
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert places | notebooks | {"index.html"} <= pages


def test_no_link_on_the_site_is_dead(site):
    anchors = {
        page: set(re.findall(r'id="([^"]+)"', page.read_text(encoding="utf-8"))) for page in site.rglob("*.html")
    }
    for page in anchors:
        for target in links_of(page):
            if re.match(r"https://[\w-]+(\.[\w-]+)+(/|$)", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            file = file / "index.html" if file == site else file
            assert file.is_file(), (page, target)
            assert not anchor or anchor in anchors[file] or anchor.startswith("__"), (page, target)


def test_a_link_to_source_code_leads_to_a_page_that_shows_it(site):
    assert "../streamseg/models/fanet.py.html" in links_of(site / "docs/how-it-works.html")
    assert "FANet" in (site / "streamseg/models/fanet.py.html").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_api_reference(site):
    entries = re.findall(r'id="streamseg\.(\w+)"', (site / "docs/api.html").read_text(encoding="utf-8"))
    assert sorted(entries) == sorted(streamseg.MODULE_OF)


def test_the_site_names_no_other_host_to_load_from(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8"))
        assert [tag for tag in loaded if re.search(r'(?:src|href)="?(?:https?:)?//', tag)] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8"))


def test_pages_opened_from_the_disk_load_nothing_else_and_can_be_searched(site):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        requests, failures = [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: failures.append(f"{request.failure} {request.url}"))
        page.on("pageerror", lambda error: failures.append(str(error)))
        for name in ("index.html", "docs/api.html", "docs/how-it-works.html"):
            page.goto((site / name).as_uri())
        page.click("input.md-search__input")
        page.keyboard.type("attention")
        page.wait_for_selector(".md-search-result__item")
    assert len(requests) > 10
    assert [url for url in requests if not url.startswith("file:")] == []
    # a request that leaving the page cancels is aborted; a missing file is not
    assert [failure for failure in failures if not failure.startswith("net::ERR_ABORTED")] == []


# what stops the build: a small repository with the same settings


@pytest.fixture
def build_warnings(tmp_path):
    """Build a site of a few pages with the repository's settings; returns the warnings that stopped it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "code.py").write_text("x = 1\n")
    for name in ("mkdocs.yml", "docs/site_files.py"):
        shutil.copyfile(ROOT / name, tmp_path / name)

    def run(pages):
        for name, text in pages.items():
            (tmp_path / name).write_text(text)
        config = load_config(
            str(tmp_path / "mkdocs.yml"), nav=["README.md", "docs/a.md"], plugins=[], site_dir=str(tmp_path / "site")
        )
        handler = logging.Handler(logging.WARNING)
        messages = []
        handler.emit = lambda record: messages.append(record.getMessage())
        logging.getLogger("mkdocs").addHandler(handler)
        try:
            build(config)
        except Abort:
            return "\n".join(messages)
        finally:
            logging.getLogger("mkdocs").removeHandler(handler)
        return ""

    return run


PAGES = {
    "README.md": "# Home\n\n[a page](docs/a.md#why---size)\n",
    "docs/a.md": "# Page\n\n## Why `--size`?\n\n[home](../README.md), [code](../code.py)\n",
}


def test_pages_whose_links_lead_somewhere_are_built(build_warnings, tmp_path):
    assert build_warnings(PAGES) == ""
    assert (tmp_path / "site/code.py.html").is_file()


@pytest.mark.parametrize(
    "link",
    [
        "nowhere.md",
        "../../elsewhere.md",
        "../docs",
        "../README.md#nothing",
        "#nothing",
        "../nothing.py",
        "../code.py#nothing",
        "/absolute.md",
    ],
)
def test_a_dead_link_stops_the_build(build_warnings, link):
    text = PAGES["docs/a.md"] + f"\n[a link]({link})\n"
    warnings = build_warnings(PAGES | {"docs/a.md": text})
    assert "docs/a.md" in warnings
    assert all(part in warnings for part in link.split("#"))


def test_a_page_missing_from_the_navigation_stops_the_build(build_warnings):
    assert "docs/lost.md" in build_warnings(PAGES | {"docs/lost.md": "# Lost\n"})


def test_headings_have_the_anchors_that_github_gives_them(build_warnings, tmp_path):
    build_warnings(PAGES | {"docs/a.md": "# Why `--size`?\n\n## Eq. 2 → 3\n\n## A B\n"})
    page = (tmp_path / "site/docs/a.html").read_text(encoding="utf-8")
    assert re.findall(r'<h[12] id="([^"]+)"', page) == ["why---size", "eq-2--3", "a-b"]
