"""A run with one mark selects all tests that have it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = [file for folder in ("tests", "testing", "bench") for file in (ROOT / folder).rglob("*.py")]


def test_conftest_files_do_not_add_marks() -> None:
    by_others = [str(file) for file in TESTS if file.name == "conftest.py" and "add_marker" in file.read_text()]
    assert by_others == [], "a run with only that mark would skip these tests; see conftest.py"


def test_marks_are_not_imported() -> None:
    by_others = [
        str(file) for file in TESTS if "pytest.mark." in file.read_text() and not file.name.startswith("test_")
    ]
    assert by_others == [], "a run with only that mark would skip the tests that import it"
