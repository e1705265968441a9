"""Which traces does a gateway send, as its configuration is at the moment?

Without `tracing` none, and nothing of it is loaded. Other settings take another tracer: what the one before has kept is
still sent, by itself, while the gateway goes on. What they count is told together, so that no counter falls. Only a few
are on their way out at a time: one more, and the first of them gives up what it has not sent.
"""

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

from headgate import __version__
from headgate.compose.records import class_budgets
from headgate.config.settings import Settings
from headgate.ports.records import RequestRecord
from headgate.telemetry.log import tell
from headgate.telemetry.traces.figures import TraceFigures, together
from headgate.telemetry.traces.known import Known
from headgate.telemetry.traces.options import Names, TracingOptions

if TYPE_CHECKING:
    from headgate.telemetry.traces.tracer import Tracer

LEAVING_MAX: Final = 4


class LiveTraces:
    """A keeper of records. Made and run inside an event loop. Raises `OSError` where a part of it is missing."""

    def __init__(self, settings: Settings) -> None:
        self._tracing: TracingOptions | None = settings.tracing
        self._tracer = None if settings.tracing is None else _tracer(settings, settings.tracing)
        self._leaving: list[Tracer] = []
        self._gone = together(())
        """What those counted that have left."""

    def take(self, record: RequestRecord) -> None:
        if self._tracer is not None:
            self._tracer.take(record)

    def begin(self) -> None:
        if self._tracer is not None:
            self._tracer.begin()

    def change_to(self, settings: Settings) -> None:
        if settings.tracing == self._tracing:
            if self._tracer is not None:
                self._tracer.known = _known(settings, self._tracer.known.names)
            return
        self._let_go()
        self._tracing, self._tracer = settings.tracing, None
        try:
            self._tracer = None if settings.tracing is None else _tracer(settings, settings.tracing)
        except OSError as missing:
            tell(logging.WARNING, "no traces are sent", why=missing.strerror)
        self.begin()

    def _let_go(self) -> None:
        if self._tracer is None:
            return
        self._tracer.leave()
        left = [each for each in self._leaving if each.has_left()]
        self._leaving = [each for each in self._leaving if each not in left]
        if len(self._leaving) >= LEAVING_MAX:
            self._leaving[0].abandon()
            left.append(self._leaving.pop(0))
        self._gone = together((self._gone, *(each.figures().in_the_end() for each in left)))
        self._leaving.append(self._tracer)

    async def stop(self) -> None:
        running = self._leaving if self._tracer is None else [*self._leaving, self._tracer]
        await asyncio.gather(*(each.stop() for each in running))

    def figures(self) -> TraceFigures | None:
        """None where no traces are sent."""
        if self._tracer is None:
            return None
        return together((self._gone, *(each.figures() for each in self._leaving), self._tracer.figures()))


def _tracer(settings: Settings, tracing: TracingOptions) -> "Tracer":
    try:
        from headgate.telemetry.traces.tracer import Tracer
    except ImportError as error:
        raise OSError(0, f"tracing: {error}; install headgate[tracing]") from error
    return Tracer(
        tracing,
        known=_known(settings, Names(tracing.names)),
        version=__version__,
        instance=f"{socket.gethostname()}:{os.getpid()}",
    )


def _known(settings: Settings, names: Names) -> Known:
    return Known(names, class_budgets(settings), {each.name: each.engine for each in settings.pools})
