"""Every file named in the docs exists, and each step in life-of-a-request.md names a source file."""

import re

from tests.docs.pages import PAGES_AND_CHANGELOG, problems_by_page
from tests.house.small_tree import PROJECT

DIRECTORIES = "bench|console|deploy|docs|fuzz|scenarios|scripts|src|testing|tests"
PLACEHOLDER = re.compile(r"\.\.\.|[A-Z]{3,}(?!\.md|file)")


def test_files_named_on_pages_exist() -> None:
    def missing(text: str) -> list[str]:
        named = re.findall(rf"`((?:{DIRECTORIES})/[\w./-]+)`", text)
        return [name for name in named if not (PROJECT / name).exists() and not PLACEHOLDER.search(name)]

    assert problems_by_page(missing, PAGES_AND_CHANGELOG) == {}


def test_files_in_commands_on_pages_exist() -> None:
    def missing(text: str) -> list[str]:
        commands = re.findall(r"(?:pytest|python)(?: -\S+)* ((?:bench|scripts|tests)/[\w./-]+)", text)
        return [name for name in commands if not (PROJECT / name).exists()]

    assert problems_by_page(missing, PAGES_AND_CHANGELOG) == {}


def test_modules_in_commands_on_pages_exist() -> None:
    def missing(text: str) -> list[str]:
        modules = re.findall(r"python -m ((?:bench|fuzz|scripts|testing|tests)[\w.]*)", text)
        places = {module: PROJECT / module.rstrip(".").replace(".", "/") for module in modules}
        return [name for name, place in places.items() if not (place.is_dir() or place.with_suffix(".py").is_file())]

    assert problems_by_page(missing, PAGES_AND_CHANGELOG) == {}


def test_links_on_pages_resolve() -> None:
    broken = {
        page: missing
        for page, text in PAGES_AND_CHANGELOG.items()
        if (
            missing := [
                link
                for link in re.findall(r"\]\((?!https?:)([^)#]+)", text)
                if not (PROJECT / page).parent.joinpath(link).exists()
            ]
        )
    }
    assert broken == {}


def test_each_step_in_life_of_a_request_page_names_a_source_file() -> None:
    steps = re.findall(r"^## (.+)$", PAGES_AND_CHANGELOG["docs/project/life-of-a-request.md"], re.MULTILINE)
    assert [number.split(".")[0] for number in steps] == [str(number) for number in range(1, len(steps) + 1)]
    for step in steps:
        [file] = re.findall(r"`(src/headgate/[\w./]+\.py)`$", step)
        assert (PROJECT / file).is_file(), step
