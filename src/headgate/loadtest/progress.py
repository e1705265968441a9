"""Progress display for a run.

On a terminal, one line is updated every second. Otherwise a line is written every five seconds, to keep logs short.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from headgate.loadtest.generator import RunCounts
from headgate.loadtest.request import LoadTestOutcome

_TERMINAL_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 5.0
_CLEAR_LINE: Final = "\r\x1b[K"


class LoadTestProgress:
    def __init__(self, course: RunCounts, write: Callable[[str], object], *, terminal: bool, width: int = 80) -> None:
        self._course = course
        self._write = write
        self._terminal = terminal
        self._width = width
        self._every_s = _TERMINAL_SECONDS if terminal else _LOG_SECONDS

    async def show(self) -> None:
        """Shows the progress until cancelled."""
        seconds = 0.0
        try:
            while True:
                await asyncio.sleep(self._every_s)
                seconds += self._every_s
                line = describe(self._course, seconds)
                self._write(_CLEAR_LINE + line[: self._width - 1] if self._terminal else line + "\n")
        finally:
            if self._terminal and seconds:
                self._write(_CLEAR_LINE)


def describe(course: RunCounts, seconds: float) -> str:
    endings = course.outcomes
    told = [f"{seconds:.0f} s", f"started {course.started} of {course.planned}", f"open {course.open}"]
    told += [
        f"{ending} {endings[ending]}"
        for ending in LoadTestOutcome
        if endings[ending] or ending is LoadTestOutcome.COMPLETED
    ]
    return ", ".join(told)
