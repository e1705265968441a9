"""Import and --help are fast enough for use in a shell."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.house.small_tree import BIN

pytestmark = [pytest.mark.process, pytest.mark.timing]

IMPORT_SECONDS_MAX = 0.3
HELP_SECONDS_MAX = 0.5


def best_of_five_seconds(*command: str | Path) -> float:
    """Return the shortest of five runs, to exclude delays caused by other work. An earlier run writes the bytecode."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds: list[float] = []
    for _ in range(6):
        started = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def test_package_import_is_fast() -> None:
    assert best_of_five_seconds(sys.executable, "-c", "import headgate") < IMPORT_SECONDS_MAX


def test_help_is_fast() -> None:
    assert best_of_five_seconds(BIN / "headgate", "--help") < HELP_SECONDS_MAX
