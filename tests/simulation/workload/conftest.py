"""Where are the recorded traces? Without them a test is skipped, but never in CI."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def traces() -> Path:
    folder = os.environ.get("HEADGATE_DATA")
    if folder is None and "CI" not in os.environ:
        pytest.skip("HEADGATE_DATA does not name a folder with recorded traces")
    assert folder is not None, "CI must name the folder with recorded traces in HEADGATE_DATA"
    return Path(folder) / "traces"
