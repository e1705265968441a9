"""Programs and files from the environment "deploy" (scripts/tool_env)."""

import subprocess
from functools import cache
from pathlib import Path

from tests.house.small_tree import PROJECT


@cache
def tools() -> Path:
    """Create the environment if it is missing, and return its directory."""
    printed = subprocess.run([PROJECT / "scripts/tool_env", "deploy"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(printed.stdout.strip())
