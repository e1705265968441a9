"""Counts the work of Python code in executed lines instead of seconds, so that tests can show that it is linear."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(action: Callable[[], object], *modules: str) -> int:
    """Number of lines that `action` executes in these modules; the same in every run."""
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


def cut_into(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
