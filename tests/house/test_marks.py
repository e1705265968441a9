"""Does a run of one mark find all tests that have it?"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = [file for folder in ("tests", "testing", "bench") for file in (ROOT / folder).rglob("*.py")]


def test_no_test_is_marked_from_outside_its_file() -> None:
    by_others = [str(file) for file in TESTS if file.name == "conftest.py" and "add_marker" in file.read_text()]
    assert by_others == [], "a run of that mark alone would pass these tests over: see conftest.py"


def test_no_mark_comes_by_import() -> None:
    by_others = [
        str(file) for file in TESTS if "pytest.mark." in file.read_text() and not file.name.startswith("test_")
    ]
    assert by_others == [], "a run of that mark alone would pass over the tests that import it"
