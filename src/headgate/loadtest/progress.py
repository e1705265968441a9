"""How far is the run?

On a terminal one line that is written anew each second; elsewhere a line every five seconds, so that a log stays short.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from headgate.loadtest.endings import Ending
from headgate.loadtest.generator import Course

_TERMINAL_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 5.0
_CLEAR_LINE: Final = "\r\x1b[K"


class Progress:
    def __init__(self, course: Course, write: Callable[[str], object], *, terminal: bool, width: int = 80) -> None:
        self._course = course
        self._write = write
        self._terminal = terminal
        self._width = width
        self._every_s = _TERMINAL_SECONDS if terminal else _LOG_SECONDS

    async def show(self) -> None:
        """Until cancelled."""
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


def describe(course: Course, seconds: float) -> str:
    endings = course.endings
    told = [f"{seconds:.0f} s", f"begun {course.begun} of {course.planned}", f"open {course.open}"]
    told += [f"{ending} {endings[ending]}" for ending in Ending if endings[ending] or ending is Ending.COMPLETED]
    return ", ".join(told)
