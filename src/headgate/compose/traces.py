"""Tracing for one gateway process, according to its current configuration.

Without `tracing`, no traces are sent and no library is loaded. New settings start a new tracer, while the previous one
sends its remaining traces in the background. The tracers' counters are reported as a sum, so that no counter decreases.
The number of tracers that are finishing is limited. When the limit is exceeded, the oldest tracer drops its remaining
traces.
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
from headgate.telemetry.log import log_event
from headgate.telemetry.traces.options import NamingConvention, TracingOptions
from headgate.telemetry.traces.span_settings import SpanSettings
from headgate.telemetry.traces.stats import TraceStats, sum_stats

if TYPE_CHECKING:
    from headgate.telemetry.traces.tracer import Tracer

RETIRING_MAX: Final = 4


class Tracing:
    """Turns records into traces. Must be created inside an event loop. Raises `OSError` if a library is missing."""

    def __init__(self, settings: Settings) -> None:
        self._tracing: TracingOptions | None = settings.tracing
        self._tracer = None if settings.tracing is None else _tracer(settings, settings.tracing)
        self._retiring: list[Tracer] = []
        self._retired_figures = sum_stats(())
        """Totals of tracers that have finished."""

    def add(self, record: RequestRecord) -> None:
        if self._tracer is not None:
            self._tracer.add(record)

    def start(self) -> None:
        if self._tracer is not None:
            self._tracer.start()

    def change_to(self, settings: Settings) -> None:
        if settings.tracing == self._tracing:
            if self._tracer is not None:
                self._tracer.span_settings = _known(settings, self._tracer.span_settings.conventions)
            return
        self._retire_tracer()
        self._tracing, self._tracer = settings.tracing, None
        try:
            self._tracer = None if settings.tracing is None else _tracer(settings, settings.tracing)
        except OSError as missing:
            log_event(logging.WARNING, "traces are not being sent", why=missing.strerror)
        self.start()

    def _retire_tracer(self) -> None:
        if self._tracer is None:
            return
        self._tracer.request_stop()
        left = [each for each in self._retiring if each.is_stopped()]
        self._retiring = [each for each in self._retiring if each not in left]
        if len(self._retiring) >= RETIRING_MAX:
            self._retiring[0].abort()
            left.append(self._retiring.pop(0))
        self._retired_figures = sum_stats((self._retired_figures, *(each.stats().after_shutdown() for each in left)))
        self._retiring.append(self._tracer)

    async def stop(self) -> None:
        running = self._retiring if self._tracer is None else [*self._retiring, self._tracer]
        await asyncio.gather(*(each.stop() for each in running))

    def figures(self) -> TraceStats | None:
        """Returns totals across all tracers; None if no traces are sent."""
        if self._tracer is None:
            return None
        return sum_stats((self._retired_figures, *(each.stats() for each in self._retiring), self._tracer.stats()))


def _tracer(settings: Settings, tracing: TracingOptions) -> "Tracer":
    try:
        from headgate.telemetry.traces.tracer import Tracer
    except ImportError as error:
        raise OSError(0, f"tracing: {error}; install headgate[tracing]") from error
    return Tracer(
        tracing,
        span_settings=_known(settings, NamingConvention(tracing.semantic_conventions)),
        version=__version__,
        instance=f"{socket.gethostname()}:{os.getpid()}",
    )


def _known(settings: Settings, names: NamingConvention) -> SpanSettings:
    return SpanSettings(names, class_budgets(settings), {each.name: each.engine for each in settings.pools})
