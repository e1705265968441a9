"""State of the engines that `EngineWatch` probes, and the reports made from it."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from headgate.core.events import EndpointMetricsReported
from headgate.engines.dialect import Dialect, Signal
from headgate.engines.endpoint_adapters import EndpointAdapters
from headgate.engines.engine_tls import EngineTls
from headgate.engines.probe import Health, Probe, ProbeVerdict, Scrape
from headgate.model.endpoint import EndpointProblem
from headgate.model.units import EndpointId
from headgate.ports.api_key import ApiKey
from headgate.ports.engine import Capabilities, EngineLimits, ProbeState, Telemetry

_VERDICTS: Final = list(ProbeVerdict)
"""Verdicts, best first."""
_STATES: Final = {
    ProbeVerdict.SERVING: ProbeState.READY,
    ProbeVerdict.NOT_SERVING: ProbeState.LOADING,
    ProbeVerdict.UNCLEAR: ProbeState.LOADING,
    ProbeVerdict.NO_RESPONSE: ProbeState.UNREACHABLE,
}


@dataclass(eq=False, slots=True)
class WatchedEndpoint:
    """State of one endpoint."""

    endpoint_id: EndpointId
    dialect: Dialect
    probe: Probe
    adapters: EndpointAdapters | None
    reported_ready: bool = False
    reported_passing: bool = False
    """Whether the last report to the scheduler was that probes pass."""
    reported_trouble: EndpointProblem | None = None
    failed_probes: int = 0
    """Number of consecutive failed probes."""
    version_reads: int = 0
    """Number of times the version has been read since the engine became ready."""
    limits: EngineLimits = field(default_factory=EngineLimits)
    limits_reads: int = 0
    """Number of times the limits have been read since the engine became ready."""
    health: Health = field(default_factory=lambda: Health(ProbeVerdict.NO_RESPONSE, problem="not probed yet"))
    version: str | None = None
    scrape: Scrape = field(default_factory=Scrape)
    """Result of the last scrape, successful or not."""
    signals: dict[Signal, str] = field(default_factory=dict[Signal, str])
    """The metric that supplied each signal in the last successful scrape."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    telemetry_at: float | None = None
    signals_warned: frozenset[Signal] = frozenset()
    """Missing signals that have already been logged."""

    def report_again(self, *, ready: bool) -> None:
        """Begins anew with a scheduler that considers the endpoint ready or not."""
        self.reported_ready = ready
        self.reported_passing, self.reported_trouble, self.failed_probes = False, None, 0
        if self.adapters is not None:
            self.adapters.report_again()
            self.probe.forget_models()

    def forget_readings(self) -> None:
        """Drops all values because this process no longer probes the engine."""
        self.health, self.scrape = Health(ProbeVerdict.NO_RESPONSE, problem="not probed by this process"), Scrape()
        self.telemetry, self.telemetry_at, self.signals_warned = Telemetry(), None, frozenset()

    @property
    def expected_signals(self) -> frozenset[Signal]:
        """Signals that this engine type reports."""
        return frozenset(self.dialect.metrics)


EngineKey = tuple[str, str, EngineTls | None, ApiKey | str | None]
"""URL, engine type, TLS and API key. Endpoints with the same key are on the same engine."""


@dataclass(eq=False, slots=True)
class WatchedEngine:
    """An engine and its endpoints. Usually there is only one."""

    key: EngineKey = field(repr=False)
    endpoints: list[WatchedEndpoint]
    start_after_s: float
    phase: float
    """Offset of the engine's probes within the interval, between 0 and 1."""
    probe_requested: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to trigger a probe immediately instead of at the next interval."""

    @property
    def verdict(self) -> ProbeVerdict:
        """The best verdict on any endpoint: SERVING if any of the models is served."""
        return min((each.health.verdict for each in self.endpoints), key=_VERDICTS.index)


def load_report(watched: WatchedEndpoint, telemetry: Telemetry) -> EndpointMetricsReported | None:
    """Returns the report of an engine's load, or None if the engine does not report it."""
    running = telemetry.running
    if running is None and Signal.RUNNING not in watched.dialect.metrics:
        # Engines of this type report only waiting requests, which are a lower bound on the load.
        running = 0 if telemetry.waiting is not None else None
    if running is None:
        return None
    fraction = telemetry.kv_used_fraction
    kv_percent = None if fraction is None else round(100 * fraction)
    kv_tokens = watched.limits.kv_tokens
    return EndpointMetricsReported(watched.endpoint_id, running, telemetry.waiting or 0, kv_percent, kv_tokens)


def capabilities_of(
    watched: WatchedEndpoint, now: float, talking: int, *, fresh: bool, missing: frozenset[Signal]
) -> Capabilities:
    health, scrape = watched.health, watched.scrape
    signals = {signal: name for signal, name in watched.signals.items() if signal not in missing}
    problems = (health.problem, scrape.problem, _silence_problem(watched, now, talking, fresh=fresh))
    return Capabilities(
        endpoint_id=watched.endpoint_id,
        dialect=watched.dialect.name,
        state=_STATES[health.verdict],
        version=watched.version,
        models=health.models,
        signals={signal.value: name for signal, name in signals.items()},
        signals_missing=tuple(signal.value for signal in Signal if signal not in signals),
        problems=tuple(problem for problem in problems if problem is not None),
        telemetry=watched.telemetry if fresh else Telemetry(),
        telemetry_age_s=None if watched.telemetry_at is None else now - watched.telemetry_at,
    )


def _silence_problem(watched: WatchedEndpoint, now: float, talking: int, *, fresh: bool) -> str | None:
    """Describes the problem with a ready endpoint that does not report its load although its engine type does."""
    at, path = watched.telemetry_at, watched.dialect.metrics_path
    if not watched.reported_ready or not watched.expected_signals or fresh:
        return None
    if at is None and (not talking or watched.scrape.problem is None):
        # Either the engine has just started, or no endpoint reports its load and the scrape problem gives the
        # reason.
        return None
    last = "has never reported its load" if at is None else f"has reported no load for {now - at:.0f} s"
    others = f"other endpoints that report theirs: {talking}"
    problem = f"the endpoint {last} ({others}); routing uses the gateway's own in-flight counts"
    if watched.health.verdict is ProbeVerdict.NO_RESPONSE:
        # The probe's own problem comes first.
        return problem
    hint = f"request {path} from this host" if talking else f"check that {path} is reachable from this host"
    return f"{problem}; {hint}"
