"""Settings and guards for all tests."""

import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline per example: a slow machine must not fail a test, and pytest-timeout limits the total time. In CI,
# Hypothesis generates the same examples in every run. `HYPOTHESIS_PROFILE=nightly` generates many more.
settings.register_profile("short", settings(), deadline=None, max_examples=30)
settings.register_profile("nightly", settings(), deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))

MAY_START_PROCESSES = frozenset(
    {"process", "llamacpp", "vllm", "triton", "ray", "litellm", "cell", "observability", "endurance", "nightly"}
)
_STARTS_A_PROCESS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})


class _ProcessGuard:
    """Audit hook that fails a test if it starts a process without a mark that allows it."""

    def __init__(self) -> None:
        self.test: str | None = None

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.test is not None and event in _STARTS_A_PROCESS:
            raise RuntimeError(
                f"{self.test} starts a process ({event}): mark it `process`, or call the function instead"
            )


_guard = _ProcessGuard()
sys.addaudithook(_guard)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    marks = {mark.name for mark in item.iter_markers()}
    _guard.test = None if marks & MAY_START_PROCESSES else item.nodeid
    try:
        return (yield)
    finally:
        _guard.test = None


def pytest_collection_finish() -> None:
    """Exclude the thousands of collected tests from garbage collection during the tests."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Append the number of passed tests to the file `TEST_COUNTS`, if it is set. `.ci/run` reports their sum."""
    counts = os.environ.get("TEST_COUNTS")
    if counts and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(counts).open("a") as lines:
            print(len(terminalreporter.stats.get("passed", ())), file=lines)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m ray` or `-m "ray and not (...)"`, collect only files that contain the name of that mark.

    A mark must therefore be in the same file as its tests (tests/house/test_marks.py).
    """
    required, *others = re.sub(r"\([^()]*\)", "", str(config.option.markexpr)).split(" and ")
    if not (required.isidentifier() and collection_path.match("test_*.py")) or any(" or " in each for each in others):
        return None
    return True if required not in collection_path.read_text() else None
