"""Hook of MkDocs: which files of the repository the site holds, and where.

Every page keeps the path that it has in the repository, so that a relative link works on the site, on GitHub and in an
editor. A link to source code leads to a page that shows the code; a link to a notebook, to a page with its cells.
"""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

PAGES = ("*.md", "docs/*.md", "samples/*.md")
ASSETS = ("docs/*.gif", "docs/*.jpg", "docs/*.png", "docs/*.svg", "docs/*.css", "docs/*.js", "docs/measured/*.json")
LANGUAGES = {".py": "python", ".cpp": "cpp"}
LONGEST_NAME = 32
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")


def on_config(config: MkDocsConfig) -> None:
    """Leave out the page for dead links: it needs a server, and its own links assume the root of that server."""
    config.theme.static_templates.discard("404.html")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the whole repository that belong to the site."""
    root = root_of(config)
    for file in [file for file in files if file.abs_src_path and Path(file.abs_src_path).is_relative_to(root / "docs")]:
        files.remove(file)

    def add(path: str) -> None:
        files.append(File(path, str(root), config.site_dir, config.use_directory_urls))

    for pattern in (*PAGES, *ASSETS, "notebooks/*.ipynb"):
        for path in sorted(root.glob(pattern)):
            add(path.relative_to(root).as_posix())
    for notebook in sorted(root.glob("notebooks/*.ipynb")):
        path = notebook.relative_to(root).as_posix()
        files.append(File.generated(config, f"{path}.md", content=notebook_markdown(notebook)))
    for path in sorted(linked_sources(root)):
        page = File.generated(config, f"{path}.md", content=source_markdown(root, path))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to source files and notebooks to the pages that show them."""
    if page.file.generated_by:
        return markdown
    folder = posixpath.dirname(page.file.src_uri)

    def to_page(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[0]))
        return f"{link[0]}.md" if path.endswith((*LANGUAGES, ".ipynb")) else link[0]

    return LINK.sub(to_page, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark cells of tables that hold sentences, which may wrap; names and numbers stay on one line."""

    def mark(cell: re.Match[str]) -> str:
        text = re.sub("<[^>]*>", "", cell[1])
        return f'<td class="text">{cell[1]}</td>' if len(text) > LONGEST_NAME else cell[0]

    return re.sub("<td>(.*)</td>", mark, html)


def root_of(config: MkDocsConfig) -> Path:
    """Return the folder of the repository."""
    return Path(config.config_file_path).parent


def linked_sources(root: Path) -> set[str]:
    """Return the source files that pages link to."""
    found = set()
    for page in (page for pattern in PAGES for page in root.glob(pattern)):
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            file = (page.parent / target).resolve()
            if file.suffix in LANGUAGES and file.is_file() and file.is_relative_to(root.resolve()):
                found.add(file.relative_to(root.resolve()).as_posix())
    return found


def source_markdown(root: Path, path: str) -> str:
    """Return a page that shows a source file; search leaves it out."""
    language = LANGUAGES[Path(path).suffix]
    code = (root / path).read_text(encoding="utf-8")
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n~~~~{language}\n{code}~~~~\n"


def notebook_markdown(notebook: Path) -> str:
    """Return the cells of a notebook as Markdown, with a link to the file after the title."""
    form = {"markdown": "{}", "code": "```python\n{}\n```"}
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    title, *rest = (form[cell["cell_type"]].format("".join(cell["source"])) for cell in cells)
    return "\n\n".join([title, f"[Download the notebook]({notebook.name})", *rest])
