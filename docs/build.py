"""Builds the site, in site/: make docs

Every Markdown file and notebook of the list below becomes a page at the place that it has in the repository, so that
links lead where they lead there. A link to a file or a heading that does not exist is an error, and nothing is built.
"""

import json
import posixpath
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent
NAVIGATION = {
    "Begin": {
        "README.md": "What it is",
        "docs/quickstart.md": "Quickstart",
        "docs/own-data.md": "Your own data",
        "notebooks/segment-a-video.ipynb": "Notebook: segment a video",
        "notebooks/train-on-your-own-data.ipynb": "Notebook: train on your own data",
        "docs/troubleshooting.md": "Troubleshooting",
    },
    "Use": {
        "docs/segment.md": "Segment",
        "docs/python.md": "From Python",
        "docs/video.md": "Video and windows",
        "docs/training.md": "Train",
        "docs/deploy.md": "Deploy",
        "docs/serve.md": "Serve",
        "docs/scale.md": "Scale",
        "docs/command-line.md": "The command line",
        "docs/options.md": "All options",
    },
    "Know": {
        "docs/how-it-works.md": "How it works",
        "docs/results.md": "Results",
        "docs/performance.md": "Performance",
        "docs/reproduce.md": "Reproduce the paper",
    },
    "Take part": {
        "CONTRIBUTING.md": "Contributing",
        "docs/style.md": "Style",
        "CHANGELOG.md": "Changes",
        "samples/LICENCES.md": "The sample pictures",
    },
}
PAGES = [path for group in NAVIGATION.values() for path in group]
PICTURES = (".gif", ".jpg", ".png", ".svg")
EXTERNAL = re.compile(r"https://[\w-]+(\.[\w-]+)+(/\S*)?")


@dataclass(frozen=True)
class Heading:
    """A heading: its depth, its text and the anchor that leads to it."""

    depth: int
    text: str
    anchor: str


@dataclass(frozen=True)
class Page:
    """A page: where its text is in the repository, the text as tokens, and its headings."""

    path: str
    tokens: list[Token]
    headings: list[Heading]


class Problem(ValueError):  # noqa: N818 (it is one)
    """What is wrong with a page."""


def colour(code: str, language: str, _: str = "") -> str:
    """Code as HTML, its words marked for the style sheet."""
    lexer = get_lexer_by_name({"sh": "bash", "": "text"}.get(language, language))
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


MARKDOWN = MarkdownIt("commonmark", {"html": False, "highlight": colour}).enable("table")


def read_text(path: str) -> str:
    """The Markdown of a page; that of a notebook is its texts, with its code in between."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if not path.endswith(".ipynb"):
        return text
    kinds = {"markdown": "{}", "code": "```python\n{}\n```"}
    cells = (kinds[cell["cell_type"]].format("".join(cell["source"])) for cell in json.loads(text)["cells"])
    first, *rest = cells
    return "\n\n".join([first, f"(The [notebook itself]({posixpath.basename(path)}), to run.)", *rest])


def read(path: str) -> Page:
    """A page with its headings, which get anchors as GitHub gives them; cells of tables with much text are marked."""
    tokens = MARKDOWN.parse(read_text(path))
    headings: list[Heading] = []
    seen: Counter[str] = Counter()
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(part.content for part in inline.children or [] if part.type in ("text", "code_inline"))
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            anchor = f"{name}-{seen[name]}" if seen[name] else name
            seen[name] += 1
            opening.attrSet("id", anchor)
            headings.append(Heading(int(opening.tag[1]), text, anchor))
        if opening.type == "td_open" and len(inline.content) > 40:
            opening.attrSet("class", "long")
    return Page(path, tokens, headings)


def links(page: Page) -> Iterator[tuple[Token, str]]:
    """Everything in a page that leads elsewhere, with the attribute that says where."""
    for token in page.tokens:
        for part in token.children or []:
            if part.type in ("link_open", "image"):
                yield part, "href" if part.type == "link_open" else "src"


def follow(target: str, page: str, pages: dict[str, Page]) -> tuple[str, str]:
    """The file in the repository that a link leads to, and the heading in it; a Problem if there is none."""
    name, _, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), name)) if name else page
    if path.startswith("..") or not (ROOT / path).is_file():
        raise Problem(f"{page}: {target} leads to no file of the repository")
    if anchor and (path not in pages or anchor not in {heading.anchor for heading in pages[path].headings}):
        raise Problem(f"{page}: {target} leads to no heading of {path}")
    return path, anchor


def check(pages: dict[str, Page]) -> list[str]:
    """What is wrong with the links of all pages, and which page nobody would find."""
    problems = [f"{path} is in no navigation" for path in sorted(find_pages() - {*PAGES})]
    for page in pages.values():
        for part, attribute in links(page):
            target = str(part.attrGet(attribute))
            if "://" in target:
                if not EXTERNAL.fullmatch(target):
                    problems.append(f"{page.path}: {target} is no address of the form https://HOST/PATH")
                continue
            try:
                follow(target, page.path, pages)
            except Problem as problem:
                problems.append(str(problem))
    return problems


def find_pages() -> set[str]:
    """Every document of the repository."""
    patterns = ("*.md", "docs/*.md", "samples/*.md", "notebooks/*.ipynb")
    return {path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)}


def place(path: str) -> str:
    """Where a file of the repository is in the site; code becomes a page too."""
    if path == "README.md":
        return "index.html"
    if path.endswith(PICTURES):
        return path
    return f"{path.removesuffix('.md').removesuffix('.ipynb')}.html"


def render(page: Page, pages: dict[str, Page]) -> tuple[str, set[str]]:
    """The HTML of a page's text, and the files that it leads to which are no pages."""
    others = set()
    for part, attribute in links(page):
        target = str(part.attrGet(attribute))
        if "://" not in target:
            path, anchor = follow(target, page.path, pages)
            itself = path == page.path and path.endswith(".ipynb")
            if path not in pages or itself:
                others.add(path)
            leads_to = path if itself else place(path)
            away = posixpath.relpath(leads_to, posixpath.dirname(place(page.path)) or ".")
            part.attrSet(attribute, f"{away}#{anchor}" if anchor else away)
    html = str(MARKDOWN.renderer.render(page.tokens, MARKDOWN.options, {}))
    html = html.replace("<table>", '<div class="table" tabindex="0"><table>').replace("</table>", "</table></div>")
    html = html.replace("<pre>", '<pre tabindex="0">')
    for heading in page.headings[1:]:
        link = f' <a class="anchor" href="#{heading.anchor}" aria-label="Link to this heading">#</a>'
        closing = f"</h{heading.depth}>"
        before, opening, after = html.partition(f'id="{heading.anchor}"')
        html = before + opening + after.replace(closing, link + closing, 1)
    return html, others


def navigate(here: Page, root: str) -> str:
    """The list of all pages, with the headings of the one that is shown."""
    parts = []
    for group, members in NAVIGATION.items():
        parts.append(f"<h2>{group}</h2><ul>")
        for path, name in members.items():
            current = ' aria-current="page"' if path == here.path else ""
            parts.append(f'<li><a href="{root}{place(path)}"{current}>{escape(name)}</a>')
            if current:
                within = (heading for heading in here.headings if heading.depth == 2)
                entries = [f'<li><a href="#{heading.anchor}">{escape(heading.text)}</a></li>' for heading in within]
                parts.append(f"<ul>{''.join(entries)}</ul>" if entries else "")
            parts.append("</li>")
        parts.append("</ul>")
    return "".join(parts)


def frame(page: Page, body: str) -> str:
    """A whole HTML page."""
    root = "../" * place(page.path).count("/")
    title = page.headings[0].text
    title = title if title == "streamseg" else f"{title} – streamseg"
    template = Template((ROOT / "docs" / "site.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(title), root=root, navigation=navigate(page, root), body=body)


def build(site: Path) -> int:
    """Build the site into a folder, and say how many pages it has; a Problem says which links are dead."""
    pages = {path: read(path) for path in PAGES}
    if problems := check(pages):
        raise Problem("\n".join(problems))

    def write(path: str, text: str) -> None:
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")

    others = set()
    for path, page in pages.items():
        body, led_to = render(page, pages)
        others |= led_to
        write(place(path), frame(page, body))
    for path in sorted(others):
        if path.endswith((*PICTURES, ".ipynb")):
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, site / path)
        else:
            code = highlight(
                (ROOT / path).read_text(encoding="utf-8"), get_lexer_for_filename(path), HtmlFormatter(nowrap=True)
            )
            listing = Page(path, [], [Heading(1, path, "")])
            write(place(path), frame(listing, f'<h1>{path}</h1><pre tabindex="0"><code>{code}</code></pre>'))
    shutil.copyfile(ROOT / "docs" / "site.css", site / "site.css")
    shutil.copyfile(ROOT / "streamseg" / "serve" / "page" / "icon.svg", site / "icon.svg")
    return len(pages)


if __name__ == "__main__":
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    try:
        print(f"site/index.html: {build(ROOT / 'site')} pages")
    except Problem as problem:
        sys.exit(str(problem))
