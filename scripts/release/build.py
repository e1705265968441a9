"""Build the release files of a commit: source archive, wheels, chart, licences, SBOM, provenance and checksums."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hatch_build import project_version
from scripts.release.chart import package_chart
from scripts.release.provenance import provenance, sha256
from scripts.release.requirement_files import PROJECT
from scripts.release.sbom import LICENSES, bill_of_materials

CHECKSUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """The release files cannot be built. The message gives the reason and the next step."""


def build_release(output: Path, *, compiled: bool = True, cache: Path | None = None) -> str:
    """Write all release files of HEAD to `output` and return the version.

    The files depend only on the commit and the tools, because the build uses a clone in a temporary directory.
    `cache` is the directory of compiled modules (default: the user's).
    """
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="headgate-release-") as name:
        clone = Path(name) / "headgate"
        _run("git", "clone", "--quiet", "--shared", PROJECT, clone)
        version = project_version(clone)
        check_release_notes(version, clone)
        commit, seconds = _run("git", "show", "--no-patch", "--format=%H %ct", "HEAD", cwd=clone).split()
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("HEADGATE_", "PYTHON"))},
            **({"HEADGATE_CACHE": str(cache)} if cache else _kept("HEADGATE_CACHE")),
            "SOURCE_DATE_EPOCH": seconds,
        }
        hatchling = (sys.executable, "-m", "hatchling", "build", "--directory", output)
        _run(*hatchling, "--target", "sdist", "--target", "wheel", cwd=clone, env=environment)
        if compiled:
            environment["HEADGATE_COMPILE"] = "1"
            _run(*hatchling, "--target", "wheel", cwd=clone, env=environment)
        package_chart(clone, output, version, epoch=int(seconds))
        describe(clone, output, version, commit=commit, epoch=int(seconds))
    return version


def describe(checkout: Path, output: Path, version: str, *, commit: str, epoch: int) -> None:
    """Write licences, SBOM, provenance and checksums beside the built files."""
    timestamp = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    shutil.copyfile(checkout / LICENSES, output / LICENSES)
    materials = bill_of_materials(checkout, version, commit=commit, timestamp=timestamp)
    _write_json(output / f"headgate-{version}.cdx.json", materials)
    statement = provenance(checkout, files_in(output), version=version, commit=commit, epoch=epoch)
    _write_json(output / f"headgate-{version}.provenance.json", statement)
    sums = [f"{sha256(path)}  {path.name}\n" for path in files_in(output)]
    (output / CHECKSUMS).write_text("".join(sums))


def check_release_notes(version: str, checkout: Path) -> None:
    """Raise ReleaseError if a tagged version is not the prepared one or has no dated section in the changelog."""
    if "+" in version or ".dev" in version:
        return
    source = (checkout / "src" / "headgate" / "__init__.py").read_text()
    release = re.sub(r"(?:a|b|rc)\d+$", "", version)
    if f'__version__ = "{release}.dev0"' not in source:
        raise ReleaseError(
            f"tag v{version} does not match __version__ in src/headgate/__init__.py; "
            f'move the tag to a commit where it is "{release}.dev0"'
        )
    changelog = (checkout / "CHANGELOG.md").read_text()
    if release == version and not re.search(
        rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE
    ):
        raise ReleaseError(f'CHANGELOG.md has no section "## {version} (YYYY-MM-DD)"; add the date and move the tag')


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _kept(name: str) -> dict[str, str]:
    return {name: os.environ[name]} if name in os.environ else {}


def _run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options)
    return done.stdout
