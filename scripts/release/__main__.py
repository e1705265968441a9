"""Build the release files of the current commit into dist/ (docs/project/releasing.md).

Uncommitted changes are not part of the release files. Nothing is uploaded.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.release.build import ReleaseError, build_release, files_in
from scripts.release.check import (
    FIRST_ANSWER_S_MAX,
    check_metadata,
    check_sums,
    differing_files,
    first_answer_seconds,
    installs_on,
    interpreters,
)
from scripts.release.requirement_files import PROJECT

OUTPUT = PROJECT / "dist"


def main() -> int:
    parser = argparse.ArgumentParser(prog="just release", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="Build twice and run the quickstart from each file.")
    parser.add_argument("--pure", action="store_true", help="Leave out the compiled wheel, which takes minutes.")
    arguments = parser.parse_args()
    if subprocess.run(["git", "status", "--porcelain"], cwd=PROJECT, capture_output=True, check=True).stdout:
        print("release: uncommitted changes are not part of the release files", file=sys.stderr)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    try:
        version = build_release(OUTPUT, compiled=not arguments.pure)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    check_sums(OUTPUT)
    check_metadata(OUTPUT)
    for path in files_in(OUTPUT):
        print(f"{path.stat().st_size:>10,}  dist/{path.name}")
    return check(compiled=not arguments.pure) if arguments.check else _done(version)


def _done(version: str) -> int:
    print(f"release: built {version}; nothing was uploaded")
    return 0


def check(*, compiled: bool) -> int:
    """Compare with a second build, which compiles again, and run the quickstart. The last line is JSON."""
    with tempfile.TemporaryDirectory(prefix="headgate-release-") as name:
        second = Path(name)
        build_release(second / "dist", compiled=compiled, cache=second / "cache")
        differing = differing_files(OUTPUT, second / "dist")
    for each in differing:
        print(f"release: two builds of {each} differ", file=sys.stderr)
    seconds = {
        f"{path.name} on Python {version}": first_answer_seconds(path, python)
        for path in files_in(OUTPUT)
        if path.suffix in {".gz", ".whl"}
        for version, python in interpreters().items()
        if installs_on(path, version)
    }
    for name, each in seconds.items():
        print(f"{each:>8.1f} s  {name}")
    slowest = max(seconds.values())
    figures = {"first_answer_s": round(slowest, 1), "identical": not differing, "differing_files": len(differing)}
    print(json.dumps(figures))
    return 0 if not differing and slowest <= FIRST_ANSWER_S_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
