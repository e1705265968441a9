"""Fixture for the directory of recorded traces. If HEADGATE_DATA is not set, tests are skipped, except in CI."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def traces() -> Path:
    folder = os.environ.get("HEADGATE_DATA")
    if folder is None and "CI" not in os.environ:
        pytest.skip("HEADGATE_DATA is not set to the directory of recorded traces")
    assert folder is not None, "CI must set HEADGATE_DATA to the directory of recorded traces"
    return Path(folder) / "traces"
