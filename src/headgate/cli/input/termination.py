"""Lets commands that run for a long time end in the same way on SIGTERM as on Ctrl-C."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupted_by_sigterm() -> Generator[None]:
    """Meanwhile, SIGTERM raises `KeyboardInterrupt` in the main thread, so that the command cleans up."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell script starts its background commands with Ctrl-C disabled.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # asyncio has a handler of its own while its loop runs.
    signal.raise_signal(signal.SIGINT)
