"""Does every outcome have a page that says what the table says, and every page an outcome?"""

import io
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from headgate.model.outcome import FACES, Outcome
from tests.house.small_tree import PROJECT, script

FOLDER = PROJECT / "docs" / "reference" / "errors"
HEADINGS = ["What the caller sees", "Why it happens", "What the caller can do", "What the operator can do"]
NOT_YET = "No part of this version gives this answer yet"
WITHOUT_A_BODY_OF_OURS = {Outcome.COMPLETED, Outcome.CANCELLED, Outcome.ENGINE_REFUSED}


def page_of(outcome: Outcome) -> str:
    return (FOLDER / f"{outcome}.md").read_text()


def checked(folder: Path) -> tuple[int, str]:
    """The exit status of the script that writes them, and its complaints."""
    complaints = io.StringIO()
    with redirect_stdout(complaints):
        status = script("write_error_pages").main(["--check", str(folder)])
    return status, complaints.getvalue()


def test_every_outcome_has_a_page_and_every_page_an_outcome() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*Outcome, "README"}


def test_writing_the_pages_anew_changes_nothing() -> None:
    done = checked(FOLDER)

    assert done == (0, "")


def test_a_page_that_differs_from_the_table_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "errors"
    shutil.copytree(FOLDER, folder)
    (folder / "queue_full.md").write_text(page_of(Outcome.QUEUE_FULL).replace("429", "430"))

    done = checked(folder)

    assert done == (1, "queue_full.md: is not what the table says; run `just docs`\n")


@pytest.mark.parametrize("outcome", Outcome)
def test_a_page_has_the_same_headings_as_all_others_and_something_below_each(outcome: Outcome) -> None:
    title, *sections = re.split(r"^## ", page_of(outcome), flags=re.MULTILINE)

    assert title.startswith(f"# {outcome}\n\n")
    assert [section.partition("\n")[0] for section in sections] == HEADINGS
    assert [section for section in sections if len(section.partition("\n")[2].strip()) < 20] == []
    assert "To be written" not in page_of(outcome)


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - WITHOUT_A_BODY_OF_OURS))
def test_a_page_shows_status_code_and_type(outcome: Outcome) -> None:
    face = FACES[outcome]

    assert f"| status | {face.status} |\n| `code` | `{face.code}` |\n| `type` | `{face.type}` |\n" in page_of(outcome)


def test_exactly_the_outcomes_that_no_code_gives_say_so() -> None:
    sources = [
        path.read_text() for room in ("core", "edge") for path in (PROJECT / "src/headgate" / room).rglob("*.py")
    ]
    given = {name for text in sources for name in re.findall(r"Outcome\.([A-Z_]+)", text)}

    assert {outcome for outcome in Outcome if NOT_YET in page_of(outcome)} == {
        outcome for outcome in Outcome if outcome.name not in given
    }


@pytest.mark.parametrize("outcome", Outcome)
def test_the_settings_that_a_page_links_to_exist(outcome: Outcome) -> None:
    reference = (PROJECT / "docs/reference/configuration.md").read_text()
    headings = re.findall(r"^#+ (.+)$", reference, re.MULTILINE)
    anchors = {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}

    assert set(re.findall(r"configuration\.md#([\w-]+)", page_of(outcome))) <= anchors
