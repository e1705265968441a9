"""Does a run of one mark find all tests that have it?"""

from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_test_is_marked_from_outside_its_file() -> None:
    by_others = [str(file) for file in TESTS.rglob("conftest.py") if "add_marker" in file.read_text()]
    assert by_others == [], "a run of that mark alone would pass these tests over: see tests/conftest.py"


def test_no_mark_comes_by_import() -> None:
    by_others = [
        str(file)
        for file in TESTS.rglob("*.py")
        if "pytest.mark." in file.read_text() and not file.name.startswith("test_")
    ]
    assert by_others == [], "a run of that mark alone would pass over the tests that import it"
