"""Does every file that the docs name exist, and does the life of a request name one at each step?"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LIFE = (ROOT / "docs" / "project" / "life-of-a-request.md").read_text()


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_named_exists(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|scripts|docs)/[\w./-]+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_each_step_of_the_life_names_its_file() -> None:
    steps = re.findall(r"^## (.+)$", LIFE, re.MULTILINE)
    assert [number.split(".")[0] for number in steps] == [str(number) for number in range(1, len(steps) + 1)]
    for step in steps:
        [file] = re.findall(r"`(src/headgate/[\w./]+\.py)`$", step)
        assert (ROOT / file).is_file(), step
