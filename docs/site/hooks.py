"""Hooks of MkDocs: the README is the first page, copies of files outside docs/, a drawn diagram, and llms.txt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[#)])")
_DIAGRAM = re.compile(r"```mermaid\n.*?```", re.DOTALL)
_INDEX = "index.md"
_listed: dict[str, list[str]] = {}


def anchor(text: str, separator: str) -> str:
    """The anchor of a heading, as the pages link to it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, and what pages link to outside docs/."""
    files.append(File.generated(config, _INDEX, content=(ROOT / "README.md").read_text()))
    for file in list(files.documentation_pages()):
        for target in _LINK.findall(file.content_string):
            path = _outside(target, file.src_uri)
            if path is not None and path.is_file() and files.get_file_from_path(_copy(path)) is None:
                copy = File(_copy(path), str(ROOT), config.site_dir, False, dest_uri=_copy(path))
                copy.abs_src_path = str(path)
                files.append(copy)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Point links at the copies. A link to a folder leads to the first page. A diagram becomes its picture.

    Mermaid is not on the site: it is 3 MB of JavaScript, or a request to another host.
    """
    src_uri = page.file.src_uri
    up = "../" * src_uri.count("/")

    def copied(match: re.Match[str]) -> str:
        target = match[1]
        path = _outside(target, src_uri)
        if path is None:
            return target.removeprefix("docs/") if src_uri == _INDEX else target
        return up + _copy(path) if path.is_file() else up + _INDEX

    return _DIAGRAM.sub("![The processes, and what goes between them](overview.svg)", _LINK.sub(copied, markdown))


def on_nav(nav: Navigation, **_: object) -> None:
    """Note the pages of each section of the navigation for llms.txt (llmstxt.org)."""
    _listed.clear()
    for page in nav.pages:
        section = page.ancestors[-1].title if page.ancestors else ""
        _listed.setdefault(section, []).append(page.file.src_uri)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write llms.txt: the title and first sentence of each page, by sections."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section, pages in _listed.items():
        lines += ["", f"## {section}", ""] if section else []
        lines += map(_entry, pages)
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n")


def _entry(src_uri: str) -> str:
    """The line of a page in llms.txt."""
    text = (ROOT / "README.md" if src_uri == _INDEX else DOCS / src_uri).read_text()
    title, *paragraphs = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).strip().split("\n\n")
    first = next(one for one in paragraphs if not one.lstrip().startswith("#"))
    sentence = re.split(r"(?<=[.?])\s", " ".join(first.split()))[0]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)
    return f"- [{title.lstrip('# ').replace('`', '')}]({src_uri.removesuffix('.md')}.html): {plain}"


def _outside(target: str, src_uri: str) -> Path | None:
    """The file or folder that a link means, if that is not in docs/."""
    if re.match(r"[a-z]+:", target):
        return None
    page = ROOT / "README.md" if src_uri == _INDEX else DOCS / src_uri
    path = (page.parent / target).resolve()
    return None if path.is_relative_to(DOCS) else path


def _copy(path: Path) -> str:
    """The path of a file's copy. MkDocs would make a page of Markdown, with links that lead nowhere."""
    copy = f"source/{path.relative_to(ROOT)}"
    return f"{copy}.txt" if path.suffix == ".md" else copy
