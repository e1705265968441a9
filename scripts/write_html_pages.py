"""Render the Markdown pages in docs into the HTML pages that the gateway serves.

- src/headgate/edge/pages/errors: the error pages, which the data listener serves to callers.
- src/headgate/edge/pages/docs: the documentation, which the admin listener serves to operators. It does not include
  docs/project.

Each page is a single file without scripts or images. The gateway inserts the stylesheet (style.css) when it loads the
page. Links are relative. A link to a page outside the same tree becomes plain text.

Usage: write_html_pages.py [--check] [DIRECTORY]. With --check the script writes nothing and exits with status 1 if a
file is missing, out of date or left over.
"""

import html
import posixpath
import re
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, cast
from xml.etree.ElementTree import Element

import yaml
from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

PROJECT = Path(__file__).parent.parent
DOCS = PROJECT / "docs"
PAGES = PROJECT / "src" / "headgate" / "edge" / "pages"
ERRORS = "reference/errors/"
NOT_SERVED = "project/"
INDEX = "README.md"
START = "index.md"
_EXTERNAL = re.compile(r"[a-z]+:", re.IGNORECASE)

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title} - Headgate</title>
<style></style>
<nav>{crumbs}</nav>
<main>
{body}
</main>
</html>
"""


def served_path(source: str) -> str:
    """Page path relative to its root, for a source path in docs: `a/b` for `a/b.md`, `a/` for `a/README.md`."""
    folder, _, name = source.rpartition("/")
    above = f"{folder}/" if folder else ""
    return above if name in (INDEX, START) else above + name.removesuffix(".md")


def file_of(path: str) -> str:
    """File name for a page path."""
    return f"{path}index.html" if path == "" or path.endswith("/") else f"{path}.html"


def relative(path: str, *, start: str) -> str:
    """Relative link from the page `start` to the page `path`."""
    folder = posixpath.dirname(start)
    link = posixpath.relpath(f"/{path}", f"/{folder}")
    return f"{link}/" if path == "" or path.endswith("/") else link


class Tree:
    """Pages that are served under one path and link to each other."""

    def __init__(self, name: str, label: str, root: str, sources: Collection[str]) -> None:
        self.name = name
        """Directory for the HTML files."""
        self.label = label
        self._root = root
        """Directory in docs that page paths are relative to."""
        self.sources = sources

    def path(self, source: str) -> str:
        return served_path(source).removeprefix(self._root)

    def link(self, href: str, *, source: str) -> str | None:
        """HTML link for a Markdown link. None if the target is not served."""
        if _EXTERNAL.match(href) or href.startswith("#"):
            return href
        target, hash_, fragment = href.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if found not in self.sources:
            return None
        return relative(self.path(found), start=self.path(source)) + hash_ + fragment


class _Links(Treeprocessor):
    """Rewrites links and replaces images, which the pages do not include, with their alt text."""

    def __init__(self, link: Callable[[str], str | None]) -> None:
        super().__init__()
        self._link = link

    def run(self, root: Element) -> None:
        for anchor in root.iter("a"):
            found = self._link(anchor.get("href", ""))
            if found is None:
                anchor.tag, anchor.attrib = "span", {}
            else:
                anchor.set("href", found)
        for above in root.iter():
            for image in above.findall("img"):
                image.tag, image.text = "em", f"Figure (not shown here): {image.get('alt', '')}"
                image.attrib = {}


class _LinksExtension(Extension):
    def __init__(self, link: Callable[[str], str | None]) -> None:
        super().__init__()
        self._link = link

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (name in the library)
        md.treeprocessors.register(_Links(self._link), "links", 5)


def _diagram(source: str, *_: object, **__: object) -> str:
    """Render a diagram as its source text, because drawing it would require a script."""
    return f"<details><summary>Diagram (Mermaid source)</summary><pre>{html.escape(source)}</pre></details>"


def rendered(text: str, link: Callable[[str], str | None]) -> str:
    mermaid = {"name": "mermaid", "class": "mermaid", "format": _diagram}
    converter = Markdown(
        extensions=[
            *("admonition", "attr_list", "tables", "toc", "pymdownx.highlight", "pymdownx.superfences"),
            _LinksExtension(link),
        ],
        extension_configs={
            "pymdownx.highlight": {"use_pygments": False},
            "pymdownx.superfences": {"custom_fences": [mermaid]},
        },
    )
    body = converter.convert(re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL))
    # Remove the empty header that Markdown requires for tables without one, as in the error pages.
    body = re.sub(r"<thead>\s*<tr>\s*(<th[^>]*></th>\s*)+</tr>\s*</thead>\s*", "", body)
    body = re.sub(r'(<code) class="language-[\w-]+"', r"\1", body)
    return body.replace("<table>", '<div class="table">\n<table>').replace("</table>", "</table>\n</div>")


def title_of(text: str) -> str:
    return next(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")).replace("`", "")


def crumbs(tree: Tree, source: str) -> str:
    """Links to the tree's index page and, if it exists, the directory's index page."""
    path, links = tree.path(source), [("", tree.label)]
    above = posixpath.dirname(source) + "/" + INDEX
    if above != source and above in tree.sources and tree.path(above):
        links.append((tree.path(above), title_of((DOCS / above).read_text())))
    return " / ".join(f'<a href="{relative(to, start=path)}">{html.escape(label)}</a>' for to, label in links)


def page_of(tree: Tree, source: str) -> str:
    text = (DOCS / source).read_text()
    if source == START:
        # Remove the items for contributors, which link only to pages that are not served.
        text = re.sub(rf"^- .*\]\({NOT_SERVED}.*\n", "", text, flags=re.MULTILINE) + all_pages(tree)
    body = rendered(text, lambda href: tree.link(href, source=source))
    return PAGE.format(title=html.escape(title_of(text)), crumbs=crumbs(tree, source), body=body)


def all_pages(tree: Tree) -> str:
    """Table of contents from mkdocs.yml, as Markdown."""
    # The file contains a `!!python/name` tag that only MkDocs can load.
    text = re.sub(r"!!python/name:\S+", "null", (PROJECT / "mkdocs.yml").read_text())
    nav = cast("list[dict[str, Any]]", yaml.safe_load(text)["nav"])
    lines = ["\n## All pages\n"]
    for section in nav:
        [(label, entries)] = section.items()
        if isinstance(entries, str):
            continue
        pages = [(name, path) for each in entries for name, path in each.items() if path in tree.sources]
        if pages:
            lines += [f"\n### {label}\n", *(f"- [{name}]({path})" for name, path in pages)]
    return "\n".join(lines) + "\n"


def trees() -> tuple[Tree, ...]:
    sources = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    return (
        Tree("errors", "Headgate errors", ERRORS, [each for each in sources if each.startswith(ERRORS)]),
        Tree("docs", "Headgate documentation", "", [each for each in sources if not each.startswith(NOT_SERVED)]),
    )


def pages() -> Iterator[tuple[str, str]]:
    """Text of each page by file name in the output directory."""
    for tree in trees():
        for source in tree.sources:
            yield f"{tree.name}/{file_of(tree.path(source))}", page_of(tree, source)


def main(arguments: list[str]) -> int:
    only_check = "--check" in arguments
    named = [each for each in arguments if not each.startswith("-")]
    directory = Path(named[0]) if named else PAGES
    made = dict(pages())
    left_over = sorted({path.relative_to(directory).as_posix() for path in directory.rglob("*.html")} - made.keys())
    stale = [name for name, text in made.items() if not _is_current(directory / name, text)]
    for name in (*stale, *left_over):
        print(f"{name}: {'is not what docs makes; run `just docs`' if only_check else 'updated'}")
    if not only_check:
        for name in stale:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(made[name], encoding="utf-8")
        for name in left_over:
            (directory / name).unlink()
    return 1 if only_check and (stale or left_over) else 0


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
