"""Detects process stalls, which make time measurements meaningless.

A machine may suspend a process for seconds. A thread that does nothing but sleep notices this. A busy event loop does
not delay that thread, so a bug that blocks the loop does not count as a stall.
"""

import functools
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ParamSpec, Self

EVERY_S = 0.02
STALLED_S = 0.2
"""Shortest oversleep that counts as a stall, in seconds."""
TRIES = 5

_P = ParamSpec("_P")


class StallWatch:
    """Measures the process's longest stall inside the block."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._slept_at = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def longest_s(self) -> float:
        return max(self._longest_s, time.monotonic() - self._slept_at - EVERY_S)

    def __enter__(self) -> Self:
        self._slept_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            now = time.monotonic()
            self._longest_s = max(self._longest_s, now - self._slept_at - EVERY_S)
            self._slept_at = now


def rerun_if_stalled(test: Callable[_P, Awaitable[None]]) -> Callable[_P, Awaitable[None]]:
    """Repeat a test marked `timing` if it failed while the process was stalled, up to `TRIES` runs.

    Each run gets its own directory below `tmp_path`.
    """

    @functools.wraps(test)
    async def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        place = kwargs.get("tmp_path")
        for number in range(1, TRIES + 1):
            if isinstance(place, Path):
                kwargs["tmp_path"] = place / f"try-{number}"
                (place / f"try-{number}").mkdir()
            with StallWatch() as watch:
                try:
                    return await test(*args, **kwargs)
                except Exception as failure:
                    if watch.longest_s < STALLED_S or number == TRIES:
                        raise
                    print(f"run {number} stalled for {watch.longest_s:.1f} s; repeating after {failure!r}")
        return None

    return run
