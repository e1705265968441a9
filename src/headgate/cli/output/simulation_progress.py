"""Progress display for a simulation. On a terminal, one line is overwritten. Otherwise, a line is printed every five
seconds.
"""

from collections.abc import Callable
from typing import Final

_TERMINAL_SECONDS: Final = 0.2
_LOG_SECONDS: Final = 5.0
_CLEAR_LINE: Final = "\r\x1b[K"
_BAR_WIDTH: Final = 10
_SECOND: Final = 1_000_000_000


class SimulationProgress:
    """Progress display. `clock` returns real time in seconds, from any origin."""

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
        self._started = self._last_written = clock()
        self.now_ns = 0

    def __call__(self, now_ns: int, ended: int) -> None:
        self.now_ns = now_ns
        moment = self._clock()
        if moment - self._last_written < self._every_s:
            return
        self._last_written = moment
        told = describe(now_ns, self._span_ns, ended, moment - self._started)
        if self._terminal:
            self._write(_CLEAR_LINE + _fit_to_width(f"{_bar(now_ns / self._span_ns)} ", told, self._width - 1))
        else:
            self._write(", ".join(told) + "\n")

    def clear(self) -> None:
        if self._terminal:
            self._write(_CLEAR_LINE)


def describe(now_ns: int, span_ns: int, ended: int, elapsed_s: float) -> list[str]:
    """Parts of the progress line, starting with the remaining time."""
    told = [f"{clock_time(now_ns / _SECOND)} of {clock_time(span_ns / _SECOND)}", f"{ended:,} requests done"]
    if now_ns > 0 and elapsed_s > 0:
        told.append(f"{now_ns / _SECOND / elapsed_s:,.0f}x real time")
        left_s = elapsed_s * (span_ns - now_ns) / now_ns
        told.insert(0, f"about {clock_time(left_s)} left" if left_s > 0 else "last responses")
    return told


def clock_time(seconds: float) -> str:
    """Formats a time as `4:05`, or as `1:04:05` if it is an hour or more."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _fit_to_width(bar: str, told: list[str], width: int) -> str:
    """As many parts as fit into the width. The bar is omitted if the first part does not fit next to it."""
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
