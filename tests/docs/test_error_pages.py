"""Every outcome has an error page that matches the outcome table, and every page belongs to an outcome."""

import io
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from headgate.model.outcome import HTTP_REPLIES, Outcome
from tests.house.small_tree import PROJECT, script

FOLDER = PROJECT / "docs" / "reference" / "errors"
HEADINGS = ["What the caller sees", "Why it happens", "What the caller can do", "What the operator can do"]
NOT_YET = "No part of this version gives this answer yet"
WITHOUT_A_BODY_OF_OURS = {Outcome.COMPLETED, Outcome.CANCELLED, Outcome.ENGINE_REJECTED}


def page_of(outcome: Outcome) -> str:
    return (FOLDER / f"{outcome}.md").read_text()


def checked(folder: Path) -> tuple[int, str]:
    """Run the generator script with --check; return its exit status and output."""
    complaints = io.StringIO()
    with redirect_stdout(complaints):
        status = script("write_error_pages").main(["--check", str(folder)])
    return status, complaints.getvalue()


def test_error_pages_match_the_outcomes() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*Outcome, "README"}


def test_committed_error_pages_are_up_to_date() -> None:
    done = checked(FOLDER)

    assert done == (0, "")


def test_check_reports_an_outdated_error_page(tmp_path: Path) -> None:
    folder = tmp_path / "errors"
    shutil.copytree(FOLDER, folder)
    (folder / "queue_full.md").write_text(page_of(Outcome.QUEUE_FULL).replace("429", "430"))

    done = checked(folder)

    assert done == (1, "queue_full.md: is not what the table says; run `just docs`\n")


@pytest.mark.parametrize("outcome", Outcome)
def test_error_page_has_all_sections_with_content(outcome: Outcome) -> None:
    title, *sections = re.split(r"^## ", page_of(outcome), flags=re.MULTILINE)

    assert title.startswith(f"# {outcome}\n\n")
    assert [section.partition("\n")[0] for section in sections] == HEADINGS
    assert [section for section in sections if len(section.partition("\n")[2].strip()) < 20] == []
    assert "To be written" not in page_of(outcome)


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - WITHOUT_A_BODY_OF_OURS))
def test_error_page_shows_status_code_and_type(outcome: Outcome) -> None:
    face = HTTP_REPLIES[outcome]

    assert f"| status | {face.status} |\n| `code` | `{face.code}` |\n| `type` | `{face.type}` |\n" in page_of(outcome)


def test_error_page_says_so_if_no_code_produces_the_outcome() -> None:
    sources = [
        path.read_text() for room in ("core", "edge") for path in (PROJECT / "src/headgate" / room).rglob("*.py")
    ]
    given = {name for text in sources for name in re.findall(r"Outcome\.([A-Z_]+)", text)}

    assert {outcome for outcome in Outcome if NOT_YET in page_of(outcome)} == {
        outcome for outcome in Outcome if outcome.name not in given
    }


@pytest.mark.parametrize("outcome", Outcome)
def test_settings_linked_from_an_error_page_exist(outcome: Outcome) -> None:
    reference = (PROJECT / "docs/reference/configuration.md").read_text()
    headings = re.findall(r"^#+ (.+)$", reference, re.MULTILINE)
    anchors = {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}

    assert set(re.findall(r"configuration\.md#([\w-]+)", page_of(outcome))) <= anchors
