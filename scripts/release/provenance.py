"""Provenance of the release files: an in-toto statement with SLSA's provenance predicate, version 1.

It names each file with its hash, the commit and the tools. It is not signed.
"""

import hashlib
import platform
import shlex
import subprocess
import sysconfig
import zlib
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

LOCKS = ("base.txt", "dev.txt", "image.txt", "release.txt")
BUILD_TYPE = "headgate:just-release/v1"
"""Documented in docs/project/releasing.md."""


def provenance(checkout: Path, files: Sequence[Path], *, version: str, commit: str, epoch: int) -> dict[str, Any]:
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": sha256(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"commit": commit, "version": version},
                "internalParameters": {"SOURCE_DATE_EPOCH": str(epoch), "tools": tools()},
                "resolvedDependencies": [
                    {"name": "headgate", "uri": f"git+commit:{commit}", "digest": {"gitCommit": commit}},
                    *(
                        {"name": f"requirements/{lock}", "digest": {"sha256": sha256(checkout / "requirements" / lock)}}
                        for lock in LOCKS
                    ),
                ],
            },
            "runDetails": {"builder": {"id": BUILD_TYPE}},
        },
    }


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tools() -> dict[str, str]:
    """Return the versions that determine the bytes of the release files."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    try:
        run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
        compiler_version = run.stdout.partition("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        compiler_version = "none"
    return {
        "python": platform.python_version(),
        "platform": sysconfig.get_platform(),
        "libc": " ".join(platform.libc_ver()),
        "compiler": compiler_version,
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        **{name: installed_version(name) for name in ("hatchling", "mypy", "setuptools")},
    }
