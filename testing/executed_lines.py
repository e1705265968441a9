"""Counts executed Python lines instead of seconds, so that tests can check that an algorithm is linear."""

import importlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from testing.builds import COUNTS_LINES


def count_executed_lines(action: Callable[[], object], *modules: str) -> int:
    """Number of lines that `action` executes in these modules. It is identical in every run.

    Skips the test if a module is compiled, because Python does not report its lines.
    """
    if not all(str(importlib.import_module(name).__file__).endswith(".py") for name in modules):
        pytest.skip(COUNTS_LINES)
    count = 0

    def in_frame(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return in_frame

    def on_call(frame: FrameType, _event: str, _argument: object) -> Any:
        return in_frame if frame.f_globals.get("__name__") in modules else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def split_into(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
