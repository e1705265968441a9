"""Garbage collection in processes that must not pause.

Nearly all objects are freed by reference counting, because requests do not create reference cycles. A collection only
costs time: it visits every object that it may free, and thousands of open streams keep a million objects in memory. A
collection of all of them blocks the event loop for several tenths of a second.

Collections are therefore small, so that each takes a few milliseconds, and visit only new objects. All objects are
collected only when memory has grown, because a cycle that no small collection has found can then exist.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger("headgate")

_SURPLUS_OBJECTS_MAX: Final = 300
"""Surplus of new objects over freed ones at which a small collection begins.

In a steady state, streams that end free about as many objects as new streams create. The surplus then grows slowly, and
a collection visits many times this number of objects.
"""
_NEVER: Final = 1_000_000_000
_CHECK_S: Final = 1.0
_GROWTH_PERCENT: Final = 50
_GROWTH_BYTES_MIN: Final = 128 * 1024 * 1024
"""Growth of the resident memory since the last collection of all objects, after which they are collected again."""


def tune_garbage_collector() -> None:
    """Exempts the objects created at startup from collections, and limits automatic collections to new objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_SURPLUS_OBJECTS_MAX, _NEVER, _NEVER)


class FullCollections:
    """Collects all objects when the resident memory has grown."""

    def __init__(self, resident_bytes: Callable[[], int | None]) -> None:
        self._resident_bytes = resident_bytes
        self._collected_at_bytes = resident_bytes()

    def start(self) -> None:
        """Checks the memory once per second, until the event loop stops."""
        asyncio.get_running_loop().call_later(_CHECK_S, self._check)

    def _check(self) -> None:
        self.collect_if_grown()
        self.start()

    def collect_if_grown(self) -> bool:
        """Collects all objects if memory has grown and collections are not paused. Returns whether it did."""
        used, before = self._resident_bytes(), self._collected_at_bytes
        if used is None or before is None or not gc.isenabled():
            return False
        if used - before < max(_GROWTH_BYTES_MIN, before * _GROWTH_PERCENT // 100):
            return False
        begun_s = time.monotonic()
        found = gc.collect()
        self._collected_at_bytes = self._resident_bytes()
        log.debug("collected %d objects in reference cycles in %.3f s", found, time.monotonic() - begun_s)
        return True


class GarbageCollectionPause:
    """Pauses the garbage collector while this process starts as the scheduler of a cell.

    It then receives the reports of all members, which stay in memory as its state. Scanning them would block the event
    loop for longer than a slice of the adoption.
    """

    __slots__ = ("_paused",)

    def __init__(self) -> None:
        self._paused = False

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            gc.disable()

    def resume(self) -> None:
        """Resumes collections, without the objects that exist now."""
        if self._paused:
            self._paused = False
            gc.freeze()
            gc.enable()
