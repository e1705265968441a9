"""How far is a simulation?

On a terminal one line that is written anew; elsewhere a line every five seconds, so that a log stays short.
"""

from collections.abc import Callable
from typing import Final

_TERMINAL_SECONDS: Final = 0.2
_LOG_SECONDS: Final = 5.0
_CLEAR_LINE: Final = "\r\x1b[K"
_BAR_WIDTH: Final = 10
_SECOND: Final = 1_000_000_000


class Progress:
    """`clock` counts seconds of real time from anywhere."""

    def __init__(
        self,
        span_ns: int,
        write: Callable[[str], object],
        clock: Callable[[], float],
        *,
        terminal: bool,
        width: int = 80,
    ) -> None:
        self._span_ns = span_ns
        self._write = write
        self._clock = clock
        self._terminal = terminal
        self._width = width
        self._every_s = _TERMINAL_SECONDS if terminal else _LOG_SECONDS
        self._started = self._told = clock()
        self.now_ns = 0

    def __call__(self, now_ns: int, ended: int) -> None:
        self.now_ns = now_ns
        moment = self._clock()
        if moment - self._told < self._every_s:
            return
        self._told = moment
        told = describe(now_ns, self._span_ns, ended, moment - self._started)
        if self._terminal:
            self._write(_CLEAR_LINE + _fitted(f"{_bar(now_ns / self._span_ns)} ", told, self._width - 1))
        else:
            self._write(", ".join(told) + "\n")

    def clear(self) -> None:
        if self._terminal:
            self._write(_CLEAR_LINE)


def describe(now_ns: int, span_ns: int, ended: int, elapsed_s: float) -> list[str]:
    """What people want to know most comes first: how long it will take."""
    told = [f"{clock_time(now_ns / _SECOND)} of {clock_time(span_ns / _SECOND)}", f"{ended:,} requests ended"]
    if now_ns > 0 and elapsed_s > 0:
        told.append(f"{now_ns / _SECOND / elapsed_s:,.0f} times real time")
        left_s = elapsed_s * (span_ns - now_ns) / now_ns
        told.insert(0, f"about {clock_time(left_s)} left" if left_s > 0 else "last answers")
    return told


def clock_time(seconds: float) -> str:
    """`4:05`, or `1:04:05` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _fitted(bar: str, told: list[str], width: int) -> str:
    """As much as there is room for: whole parts, and no bar where not even the first fits beside it."""
    if len(bar) + len(told[0]) > width:
        return told[0][:width]
    line = bar + told[0]
    for part in told[1:]:
        if len(line) + len(part) + 2 > width:
            break
        line += f", {part}"
    return line


def _bar(fraction: float) -> str:
    done = min(_BAR_WIDTH, int(_BAR_WIDTH * fraction))
    return f"[{'#' * done}{'.' * (_BAR_WIDTH - done)}]"
