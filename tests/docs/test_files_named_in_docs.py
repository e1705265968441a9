"""Every file named in the docs exists, and each step in life-of-a-request.md names a source file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DIRECTORIES = "bench|console|deploy|docs|fuzz|scenarios|scripts|src|testing|tests"
PLACEHOLDER = re.compile(r"\.\.\.|[A-Z]{3,}(?!\.md|file)")
LIFE = (ROOT / "docs" / "project" / "life-of-a-request.md").read_text()


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_on_a_page_exist(page: Path) -> None:
    named = re.findall(rf"`((?:{DIRECTORIES})/[\w./-]+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists() and not PLACEHOLDER.search(name)] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_in_commands_on_a_page_exist(page: Path) -> None:
    commands = re.findall(r"(?:pytest|python)(?: -\S+)* ((?:bench|scripts|tests)/[\w./-]+)", page.read_text())
    modules = re.findall(r"python -m ((?:bench|fuzz|scripts|testing|tests)[\w.]*)", page.read_text())
    assert [name for name in commands if not (ROOT / name).exists()] == []
    places = [ROOT / module.rstrip(".").replace(".", "/") for module in modules]
    assert [place for place in places if not (place.is_dir() or place.with_suffix(".py").is_file())] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_on_a_page_resolve(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_each_step_in_life_of_a_request_page_names_a_source_file() -> None:
    steps = re.findall(r"^## (.+)$", LIFE, re.MULTILINE)
    assert [number.split(".")[0] for number in steps] == [str(number) for number in range(1, len(steps) + 1)]
    for step in steps:
        [file] = re.findall(r"`(src/headgate/[\w./]+\.py)`$", step)
        assert (ROOT / file).is_file(), step
