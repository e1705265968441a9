"""The documentation pages, their code and a check of every page."""

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache

from tests.house.small_tree import PROJECT

_PATHS = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])
PAGES_AND_CHANGELOG = {path.relative_to(PROJECT).as_posix(): path.read_text() for path in _PATHS}
"""Text by path. A check of one page takes less time than a test, so each test checks all pages."""
PAGES = {page: text for page, text in PAGES_AND_CHANGELOG.items() if page != "CHANGELOG.md"}
"""The pages about the present version."""


def problems_by_page(
    problems_of: Callable[[str], Collection[object]], pages: Mapping[str, str] = PAGES
) -> dict[str, Collection[object]]:
    """Return the pages with problems. `problems_of` receives the text of a page."""
    return {page: found for page, text in pages.items() if (found := problems_of(text))}


def fenced_blocks(text: str) -> list[str]:
    return re.findall(r"^ *```(?:bash|console|)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


def without_blocks(text: str) -> str:
    return re.sub(r"^ *```\w*\n.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def code_spans(text: str) -> list[str]:
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", without_blocks(text))]
