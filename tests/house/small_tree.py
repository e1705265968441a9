"""How can a contract be seen to bite without breaking the real source?

A package of the same name and rooms in a temporary folder, under the project's own, real configuration.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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
        # The current folder comes first on the tool's path, before the installed package of the same name.
        command = [BIN / "lint-imports", "--no-cache", "--config", self.root / "pyproject.toml"]
        return self._run(command, cwd=self.root / "src")

    def ruff(self) -> Verdict:
        return self._run([BIN / "ruff", "check", "--no-cache", "--output-format", "concise"], cwd=self.root)

    def shape(self) -> Verdict:
        command = [sys.executable, PROJECT / "scripts/check_shape.py", self.root]
        return self._run(command, cwd=self.root)

    def _run(self, command: list[str | Path], *, cwd: Path) -> Verdict:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=50)
        return Verdict(passed=done.returncode == 0, said=done.stdout + done.stderr)


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
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return tree
