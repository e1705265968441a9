"""What holds for every test?"""

from pathlib import Path

import pytest
from hypothesis import settings

# No test fails because the machine was busy; pytest-timeout bounds the whole test instead. The rest is Hypothesis' own
# profile, which in CI is its "ci": the same examples every time, so that red means changed code.
settings.register_profile("headgate", settings(), deadline=None)
settings.load_profile("headgate")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whoever asks for the tests of one mark (`-m ray`) need not wait until all others have been read.

    So a mark stands in the file of the tests that have it (tests/house/test_marks.py).
    """
    mark: str = config.option.markexpr
    if not mark.isidentifier() or not collection_path.match("test_*.py"):
        return None
    return True if mark not in collection_path.read_text() else None
