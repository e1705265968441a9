"""HTML reports in files."""

import sys
from importlib.util import find_spec
from pathlib import Path

from headgate.simulation.workload.error import WorkloadError


def check_html_file(file: Path) -> None:
    """Checks before a run that the page can be written afterwards."""
    if not file.parent.is_dir():
        raise WorkloadError(f"{file}: directory {file.parent} does not exist; create it first")
    if file.is_dir():
        raise WorkloadError(f"{file} is a directory; specify a file")
    if find_spec("matplotlib") is None:
        how = "pip install matplotlib (or, in a checkout, pip install '.[reports]')"
        raise WorkloadError(f"--html needs matplotlib, which is not installed; {how}")


def write_html_file(file: Path, page: str) -> None:
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"cannot write {file}: {error.strerror}") from None
    print(f"wrote {file}", file=sys.stderr)
