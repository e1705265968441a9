"""Prints facts about the container as JSON: user, writable paths, leftovers of the build, packages of extras."""

import importlib
import json
import os
import re
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

PATHS = ("/", "/etc", "/etc/headgate", "/home", "/run", "/tmp", "/var/lib", "/var/tmp", "/venv")  # noqa: S108 - which of these are writable is reported
LEFTOVERS = ("/build", "/wheels", "/etc/pip.conf")
MOUNT_POINT = Path("/mnt")
"""Directory of the wheels during the build."""


def can_write(directory: str) -> bool:
    try:
        path = Path(directory) / "headgate-write-test"
        path.touch()
        path.unlink()
    except OSError:
        return False
    return True


def failed_imports(package: str) -> list[str]:
    """Import the modules of a package and return those that cannot be imported."""
    modules = {module for module, owners in packages_distributions().items() if package in map(normalized, owners)}
    failed = [] if modules else ["has no modules"]
    for module in sorted(modules):
        try:
            importlib.import_module(module)
        except ImportError as error:
            failed.append(f"{module}: {error}")
    return failed


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def packages_of_extras() -> list[str]:
    found = [requirement for requirement in requires("headgate") or [] if "extra ==" in requirement]
    return sorted({normalized(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in found})


def problems_of(package: str) -> list[str]:
    try:
        distribution(package)
    except PackageNotFoundError:
        return ["is not installed"]
    return failed_imports(package)


if __name__ == "__main__":
    facts = {
        "user": f"{os.getuid()}:{os.getgid()}",
        "groups": os.getgroups(),
        "writable": [path for path in PATHS if Path(path).exists() and can_write(path)],
        "leftovers": [*(path for path in LEFTOVERS if Path(path).exists()), *map(str, MOUNT_POINT.iterdir())],
        "build_tools": [name for name in ("pip", "setuptools", "wheel") if find_spec(name)],
        "extras": {package: problems_of(package) for package in packages_of_extras()},
    }
    print(json.dumps(facts))
