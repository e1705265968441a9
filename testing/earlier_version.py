"""Source of an earlier commit, to run its gateway beside this version's.

    source = earlier_source(folder)
    ChildProcess("earlier", [*HEADGATE, "serve"], {"PYTHONPATH": str(source)})

A shallow clone fetches the commit from its origin.
"""

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

from testing.processes import MissingProgram, ProcessFailedError
from testing.simulated_engines import HEADGATE

SCHEMA_2 = "421709dc2fdf119f101ed9e668093e5c7ee4a343"
"""Last commit with schema 2. It rejects every migration in `headgate.migrations` that it does not know.

Its cell protocol has version 3, the one before this version's.
"""


class NoHistory(MissingProgram):
    """The clone is shallow, and the commit cannot be fetched."""


_ROOT = Path(__file__).resolve().parents[1]


def earlier_source(folder: Path, commit: str = SCHEMA_2) -> Path:
    """Extracts the commit's package into the folder. Returns the path to set as PYTHONPATH."""
    packed = _git("archive", "--format=tar", commit, "src")
    if packed.returncode:
        _git("fetch", "--quiet", "--depth", "1", "origin", commit)
        packed = _git("archive", "--format=tar", commit, "src")
    if packed.returncode:
        shallow = _git("rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
        problem = NoHistory if shallow else MissingProgram
        raise problem(f"commit {commit} is not in this clone; run `git fetch origin {commit}`")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        raise MissingProgram("git is not installed; install it to run an earlier commit") from None


def migrate_with(source: Path, url: str) -> None:
    """Creates the schema of an earlier commit, with that commit's own command."""
    file = source.parent / "database.yaml"
    file.write_text(json.dumps({"database": url}))
    command = [*HEADGATE, "ledger", "migrate", "--config", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProcessFailedError(f"the earlier commit could not create its schema:\n{done.stderr}")
