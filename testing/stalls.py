"""Was this process paused while something was timed? Then the measured time means nothing.

A machine may stop a process for seconds. A thread that only sleeps notices it, and is not held up by a busy event loop,
so that a mistake of ours that blocks the loop does not count as a stall.
"""

import functools
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ParamSpec, Self

EVERY_S = 0.02
STALLED_S = 0.2
"""A sleep that ends this much too late shows a pause."""
TRIES = 5

_P = ParamSpec("_P")


class StallWatch:
    """The longest time for which the process stood still inside the block."""

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


def again_if_stalled(test: Callable[_P, Awaitable[None]]) -> Callable[_P, Awaitable[None]]:
    """For tests marked `timing`: runs a test again that failed while the process stood still, a few times at most.

    Each run gets its own folder below `tmp_path`.
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
                    print(f"run {number} stood still for {watch.longest_s:.1f} s; again, after {failure!r}")
        return None

    return run
