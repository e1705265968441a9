"""The two source trees of a comparison, and the worker processes that run their code.

The other tree is a temporary git worktree. Each tree's code runs in its own processes (tree_worker.py), because both
trees have modules with the same names.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.cli import print_progress
from bench.targets import ROOT
from testing.processes import ProcessFailedError

WORKER = Path(__file__).parent / "tree_worker.py"
STOP_SECONDS_MAX = 30.0


class UnknownRevision(Exception):
    """The repository does not contain the requested commit. The message explains how to get it."""


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    root: Path
    python_path: str

    def check(self, headgate: str) -> None:
        """Check that a worker imported this tree's `headgate`: its source, or for the checkout an installed build."""
        file = Path(headgate)
        if not file.is_relative_to(self.root) and not (self.root == ROOT and "site-packages" in file.parts):
            raise ProcessFailedError(f"{self.name} would measure {file.parent}; set PYTHONPATH to the tree's src")


def this_tree() -> Tree:
    """This checkout, with the `headgate` that its environment imports: its source, or a compiled build if installed."""
    inherited = os.environ.get("PYTHONPATH")
    return Tree("here", ROOT, os.pathsep.join([str(ROOT), *([inherited] if inherited else [])]))


@contextmanager
def other_tree(revision: str, *, or_head: bool = False) -> Generator[Tree]:
    """Check out a commit in a temporary directory. With `or_head`, an unknown commit is replaced by HEAD."""
    commit = commit_of(revision, or_head=or_head)
    with tempfile.TemporaryDirectory(prefix="headgate-compare-", ignore_cleanup_errors=True) as name:
        root = Path(name).resolve() / "tree"
        try:
            _git("worktree", "add", "--detach", str(root), commit)
            yield Tree("there", root, os.pathsep.join([str(root / "src"), str(root)]))
        finally:
            # Git may have been interrupted before it registered the worktree.
            _git("worktree", "remove", "--force", str(root), check=False)


def commit_of(revision: str, *, or_head: bool) -> str:
    # A leading dash would make it an option.
    known = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", check=False)
    if known.returncode == 0:
        return known.stdout.strip()
    if or_head and revision != "HEAD":
        print_progress(f"{revision} is not in this clone; comparing with HEAD")
        return commit_of("HEAD", or_head=False)
    raise UnknownRevision(f"{revision} is not a commit in this clone; run git fetch, with --unshallow if it is shallow")


def _git(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607
    if check and done.returncode != 0:
        raise ProcessFailedError(f"git {' '.join(words)} failed: {done.stderr.strip()}")
    return done


class Worker:
    """A process that runs a tree's code, from construction to `stop`."""

    def __init__(self, tree: Tree, mode: str, options: Mapping[str, Any]) -> None:
        self._tree, self._mode = tree, mode
        self._popen = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), mode, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree.root,
            env=os.environ | {"PYTHONPATH": tree.python_path},
            # Ctrl-C reaches only this process, which then stops the worker.
            start_new_session=True,
        )

    def wait_until_ready(self) -> dict[str, Any]:
        """Return the description of what the worker started."""
        description = self._result()
        self._tree.check(description["headgate"])
        return description

    def run_slice(self) -> dict[str, Any]:
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):  # Reading the result reports the failure.
            self._popen.stdin.write("\n")
            self._popen.stdin.flush()
        return self._result()

    def _result(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise ProcessFailedError(
                f"the {self._mode} worker of {self._tree.name} exited with status {self._popen.wait()}; "
                "its output is above"
            )
        return json.loads(line)

    def stop(self) -> None:
        """Terminate the worker, which then stops what it started."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.terminate()
        try:
            self._popen.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        with suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._popen.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
