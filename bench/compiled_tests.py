"""Run tests on the compiled build. The nightly run uses this for tests that take too long for CI.

python -m bench.compiled_tests PYTEST_ARGUMENT ...
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def main(words: Sequence[str]) -> int:
    tree = subprocess.run([ROOT / "scripts" / "compiled_tree"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": tree.strip()},
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
