"""A small source tree for testing the project's linters.

The tree contains a package with the project's name and subpackages in a temporary directory, and is checked with the
project's real configuration.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CONFIGURATION = ("pyproject.toml", "src/headgate/core/ruff.toml", "src/headgate/model/ruff.toml")
ROOMS = ("core", "edge", "engines", "hosts", "loadtest", "model", "planning", "ports", "simulation", "wire")


@dataclass(frozen=True, slots=True)
class Verdict:
    passed: bool
    said: str


@dataclass(frozen=True, slots=True)
class SmallTree:
    root: Path

    def write(self, name: str, *lines: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(('"""Which question?"""', "", *lines)).rstrip() + "\n")

    def lint_imports(self) -> Verdict:
        # The current directory comes first on the tool's path, before the installed package of the same name.
        command = [BIN / "lint-imports", "--no-cache", "--config", self.root / "pyproject.toml"]
        return self._run(command, cwd=self.root / "src")

    def ruff(self) -> Verdict:
        return self._run([BIN / "ruff", "check", "--no-cache", "--output-format", "concise"], cwd=self.root)

    def shape(self) -> Verdict:
        """Run the checks in scripts/check_structure.py on every file in the tree."""
        names = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())
        complaints = list(script("check_structure").violations(self.root, names))
        return Verdict(passed=not complaints, said="\n".join(complaints))

    def tracked_shape(self) -> Verdict:
        """Run scripts/check_structure.py on the files that git would track."""
        subprocess.run(["git", "init", "--quiet", self.root], check=True)
        command = [sys.executable, PROJECT / "scripts/check_structure.py", self.root]
        return self._run(command, cwd=self.root)

    def _run(self, command: list[str | Path], *, cwd: Path) -> Verdict:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=50)
        return Verdict(passed=done.returncode == 0, said=done.stdout + done.stderr)


@cache
def script(name: str) -> ModuleType:
    """Import a program from the directory `scripts`, to call it without a subprocess."""
    spec = spec_from_file_location(name, PROJECT / f"scripts/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_small_tree(root: Path) -> SmallTree:
    tree = SmallTree(root)
    for room in ROOMS:
        tree.write(f"src/headgate/{room}/__init__.py")
    tree.write("src/headgate/__init__.py")
    tree.write(
        "src/headgate/compose.py",
        "from headgate.edge import app",
        "from headgate.hosts import loop",
        "",
        "PARTS = (app, loop)",
    )
    tree.write(
        "src/headgate/edge/app.py",
        "from headgate.core import scheduler",
        "from headgate.wire import sse",
        "",
        "USES = (scheduler, sse)",
    )
    tree.write(
        "src/headgate/hosts/loop.py",
        "import asyncio",
        "",
        "from headgate.core import scheduler",
        "",
        "USES = (asyncio, scheduler)",
    )
    tree.write("src/headgate/wire/sse.py", "from headgate.model import units", "", "USES = (units,)")
    tree.write(
        "src/headgate/core/scheduler.py",
        "from math import sqrt",
        "",
        "from headgate.model import units",
        "",
        "USES = (sqrt, units)",
    )
    tree.write("src/headgate/model/units.py", "from typing import NewType", "", 'Instant = NewType("Instant", int)')
    tree.write("src/headgate/simulation/engine.py", "import random", "", "USES = (random,)")
    tree.write("src/headgate/planning/plan.py", "from headgate.simulation import engine", "", "USES = (engine,)")
    for name in CONFIGURATION:
        shutil.copy(PROJECT / name, root / name)
    return tree
