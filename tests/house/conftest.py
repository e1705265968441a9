"""Fixtures for testing the project's own rules."""

from pathlib import Path

import pytest

from tests.house.small_tree import SmallTree, a_small_tree


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    return a_small_tree(tmp_path)
