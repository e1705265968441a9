"""What the admin listener shows of a gateway: readiness, metrics, status and the sources of its console."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from headgate import __version__
from headgate.compose.parts import Configuration, Parts
from headgate.compose.sight import Sources
from headgate.config.quantities import address_text
from headgate.control.cell_report import cell_figures, cell_now, cell_status
from headgate.core.summary import held_by_pool
from headgate.model.units import SECOND
from headgate.telemetry.live.state import GatewayNow


class GatewayStatus:
    def __init__(self, configuration: Configuration, parts: Parts, *, serves: bool) -> None:
        self._configuration = configuration
        self._parts = parts
        self._serves = serves
        self._started_at = time.monotonic()

    def ready(self) -> tuple[bool, str]:
        if self._parts.door.draining:
            return False, "leaving"
        return self._parts.accounts.ready(serves=self._serves)

    def metrics(self) -> Callable[[], tuple[bytes, str]]:
        return self._parts.sight.metrics(self.sources())

    def verdict(self) -> Mapping[str, object]:
        return self._parts.sight.verdict(self.sources())

    def sources(self) -> Sources:
        """What is asked when somebody wants to see this gateway."""
        parts, cell, engines = self._parts, self._parts.cell, self._parts.engines
        return Sources(
            now=parts.clock.now,
            summary=parts.host.summary,
            held=self._held,
            signals=engines.signals,
            scaling=parts.scaling.told,
            cell=lambda: None if cell is None else cell_figures(cell),
            ledger=parts.accounts.ledger_figures,
            directory=parts.accounts.directory_figures,
            decide_s=lambda: parts.host.decide_time.total_ns / SECOND,
            decides=lambda: parts.decides,
            transport=engines.connect_times.medians,
            name_problems=lambda: (*engines.name_problems(), *parts.fleets.name_problems()),
            gateway=self._gateway_now,
            session=parts.session,
            engines=engines.watch.capabilities,
        )

    def _gateway_now(self) -> GatewayNow:
        settings, cell, registry = self._configuration.settings, self._parts.cell, self._parts.registry
        members = () if registry is None else registry.members()
        return GatewayNow(
            name=address_text(*settings.listen) if cell is None else cell.name,
            version=__version__,
            uptime_s=time.monotonic() - self._started_at,
            config_hash=settings.hash,
            draining=self._parts.door.draining,
            cell=None if cell is None else cell_now(cell, members),
        )

    def _held(self) -> dict[str, int]:
        """How much of everything that could pile up there is at this moment. All of it falls when traffic does.

        But for the process that reads large bodies, which stays from the first of them on."""
        parts = self._parts
        return {
            "requests": parts.door.open_requests,
            "body_bytes": parts.door.bodies_bytes,
            "attempts": len(parts.attempts),
            "lines": parts.host.open_lines(),
            "metered_requests": parts.sight.meters.open_requests,
            "tasks": len(asyncio.all_tasks()),
            "connections": sum(len(listener.connections) for listener in parts.listeners),
            "batched_inputs": parts.batchers.waiting,
            "engine_connections": parts.engines.connections,
            "reader_processes": parts.large_bodies.processes,
            "notices": parts.accounts.notices_waiting,
            "records": parts.sight.kept.waiting,
            "open_files": _open_files(),
        }

    def status(self) -> Mapping[str, object]:
        parts, configuration = self._parts, self._configuration
        summary = parts.host.summary()
        return {
            "version": __version__,
            "config_hash": configuration.settings.hash,
            "reload_problems": configuration.problems,
            "uptime_s": round(time.monotonic() - self._started_at, 1),
            "draining": parts.door.draining,
            "requests_open": parts.door.open_requests,
            "attempts_open": len(parts.attempts),
            "queued": summary.queued,
            "held_for_start": held_by_pool(summary),
            "counted": parts.sight.meters.figures(),
            "held": self._held(),
            "explainable": parts.sight.decisions.reach().held,
            # Of a cell only the scheduler knows.
            "endpoints_wanted": parts.scaling.wanted() if parts.decides else {},
            "endpoints_starting": parts.scaling.starts_status(parts.clock.now()) if parts.decides else [],
            "endpoints": [asdict(endpoint) for endpoint in summary.endpoints],
            "engines": [asdict(found) for found in parts.engines.watch.capabilities()],
            **self._cell_status(),
            **parts.accounts.status(),
        }

    def _cell_status(self) -> Mapping[str, object]:
        cell, options, staged = self._parts.cell, self._configuration.settings.cell, self._configuration.staged
        if cell is None or options is None:
            return {}
        staged_hash = None if staged is None else self._parts.accounts.policy_hash(staged)
        return {"cell": cell_status(cell, options, staged_hash)}


def _open_files() -> int:
    """Sockets and files of this process, where the system tells."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names are not wanted, only their number)
    except OSError:
        return 0
