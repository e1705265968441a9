"""Gateway state for the admin listener: readiness, metrics, status and the console's data sources."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from headgate import __version__
from headgate.build import BUILD
from headgate.compose.observability import StatusSources
from headgate.compose.parts import Configuration, GatewayParts
from headgate.config.quantities import address_text
from headgate.control.cell_report import cell_figures, cell_now, cell_status
from headgate.core.summary import held_by_pool
from headgate.model.units import SECOND
from headgate.telemetry.config_metrics import ConfigStats
from headgate.telemetry.live.live_state import GatewayInfo
from headgate.telemetry.speed_drift import speed_drifts


class GatewayStatus:
    def __init__(self, configuration: Configuration, parts: GatewayParts, *, serves: bool) -> None:
        self._configuration = configuration
        self._parts = parts
        self._serves = serves
        self._started_at = time.monotonic()
        self._looked_up = False
        """Whether the first lookups of all fleets have ended since the start."""

    def ready(self) -> tuple[bool, str]:
        if self._parts.app.draining:
            return False, "draining"
        if not self._looked_up:
            if unresolved := self._parts.fleets.unresolved():
                return False, f"resolving the endpoints of pool {', '.join(unresolved)} for the first time"
            # A pool that a reload adds later must not take a serving gateway out of its load balancer.
            self._looked_up = True
        return self._parts.accounts.ready(serves=self._serves)

    def probe(self) -> tuple[int, str]:
        """Returns the status and text for a readiness probe. Can be called in any thread."""
        alive = self._parts.observability.turns.health()
        ready, why = self.ready()
        return alive if alive[0] != 200 else (200 if ready else 503, why)

    def metrics(self) -> Callable[[], tuple[bytes, str]]:
        return self._parts.observability.metrics(self.sources())

    def verdict(self) -> Mapping[str, object]:
        return self._parts.observability.verdict_page(self.sources())

    def sources(self) -> StatusSources:
        """Returns functions that read this gateway's current state."""
        parts, cell, engines = self._parts, self._parts.cell, self._parts.engines
        return StatusSources(
            now=parts.clock.now,
            summary=parts.host.summary,
            resources_held=self._resources_held,
            signals=engines.signals,
            scaling=parts.scaling.metrics,
            cell=lambda: None if cell is None else cell_figures(cell, parts.accounts.share_leases),
            ledger=parts.accounts.ledger_figures,
            directory=parts.accounts.directory_figures,
            identity=parts.accounts.identity_figures,
            decide_s=lambda: parts.host.decision_time.total_ns / SECOND,
            decides=lambda: parts.is_deciding,
            connect_times=engines.connect_times.medians,
            name_problems=lambda: (*engines.name_problems(), *parts.fleets.name_problems()),
            configuration=self._configuration_stats,
            trials=parts.trials.stats,
            gateway=self._gateway_now,
            session=parts.session,
            engines=engines.watch.capabilities,
            tls=parts.certificates.stats,
            get_member_page=parts.certificates.get_member_page,
        )

    def _configuration_stats(self) -> ConfigStats:
        uses = self._parts.accounts.secret_uses
        return self._configuration.stats({name: use.keys_verified for name, use in uses.items()})

    def _gateway_now(self) -> GatewayInfo:
        settings, cell, registry = self._configuration.settings, self._parts.cell, self._parts.registry
        members = () if registry is None else registry.members()
        return GatewayInfo(
            name=address_text(*settings.listen) if cell is None else cell.name,
            version=__version__,
            uptime_s=time.monotonic() - self._started_at,
            config_hash=settings.hash,
            draining=self._parts.app.draining,
            cell=None if cell is None else cell_now(cell, members),
        )

    def _resources_held(self) -> dict[str, int]:
        """Returns the current size of every resource that could accumulate. All of them shrink when traffic decreases.

        The exception is the process that parses large bodies, which keeps running after the first one.
        """
        parts = self._parts
        return {
            "requests": parts.app.open_requests,
            "body_bytes": parts.app.bodies_bytes,
            "unverified_body_bytes": parts.app.unverified_bodies.total,
            "attempts": len(parts.attempts),
            "mirrors": 0 if parts.app.mirrors is None else len(parts.app.mirrors),
            "command_channels": parts.host.open_channels(),
            "metered_requests": parts.observability.meters.open_requests,
            "tasks": len(asyncio.all_tasks()),
            "connections": sum(len(listener.connections) for listener in parts.listeners),
            "batched_inputs": parts.batchers.waiting,
            "engine_connections": parts.engines.connections,
            "body_parsers": parts.large_bodies.processes,
            "notifications": parts.accounts.notifications_waiting,
            "records": parts.observability.records.waiting,
            **parts.observability.recordings_held(),
            "open_files": _open_files(),
        }

    def status(self) -> Mapping[str, object]:
        parts, configuration = self._parts, self._configuration
        summary = parts.host.summary()
        return {
            "version": __version__,
            "build": BUILD,
            "config_hash": configuration.settings.hash,
            "config_since": configuration.in_force_since.isoformat(timespec="seconds"),
            "reload": configuration.settings.reload.value,
            "reload_problems": configuration.problems,
            "restart_needed": configuration.restart_needed,
            "engine_tls_problems": parts.fleets.tls.problems(),
            "uptime_s": round(time.monotonic() - self._started_at, 1),
            "draining": parts.app.draining,
            "requests_open": parts.app.open_requests,
            "attempts_open": len(parts.attempts),
            "queued": summary.queued,
            "held_for_start": held_by_pool(summary),
            "counted": parts.observability.meters.snapshot(),
            "held": self._resources_held(),
            "explainable": parts.observability.decisions.retention().kept,
            # In a cell, only the scheduler knows these.
            "endpoints_desired": parts.scaling.desired() if parts.is_deciding else {},
            "scaling": parts.scaling.pools_status() if parts.is_deciding else {},
            "endpoints_starting": parts.scaling.starts_status(parts.clock.now()) if parts.is_deciding else [],
            "speed_drift": [
                asdict(each) for each in speed_drifts(configuration.settings.policy.pools, summary.endpoints)
            ],
            "endpoints": [asdict(endpoint) for endpoint in summary.endpoints],
            "engines": [asdict(found) for found in parts.engines.watch.capabilities()],
            **parts.certificates.status(),
            **self._cell_status(),
            **parts.accounts.status(),
        }

    def _cell_status(self) -> Mapping[str, object]:
        cell, options, staged = self._parts.cell, self._configuration.settings.cell, self._configuration.staged
        if cell is None or options is None:
            return {}
        staged_hash = None if staged is None else self._parts.accounts.policy_hash(staged)
        members = () if self._parts.registry is None else self._parts.registry.members()
        addresses = {each.name: each.admin for each in members if each.admin}
        status = cell_status(cell, options, staged_hash, self._parts.clock.now())
        return {"cell": {**status, "admin_addresses": addresses}}


def _open_files() -> int:
    """Returns how many file descriptors this process has open; 0 if the system does not report it."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (only the number of names is needed)
    except OSError:
        return 0
