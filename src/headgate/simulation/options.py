"""Options of a simulated scenario: traffic, lengths, engines, clients and faults.

The scenario file is read into these values directly.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.model.engine_profile import EngineProfile
from headgate.model.policy import BatchRules
from headgate.model.scaling import ScalingRules
from headgate.model.ticket import FORM_APIS, TOKENIZER_APIS, Api
from headgate.model.units import Duration, EndpointId, Instant, PoolName

NOMINAL_SPEED: Final = 1000
"""Nominal speed. Speeds are in thousandths: at 1000, a picosecond of work takes a picosecond."""

SIMULATED_APIS: Final = tuple(api for api in Api if api not in {Api.INFER, *FORM_APIS, *TOKENIZER_APIS})
"""APIs that requests of a scenario can have."""

Shares = tuple[tuple[str, float], ...]
"""Names and weights. The weights do not have to add up to 1."""

DEFAULT_TENANTS: Final[Shares] = (("everyone", 1.0),)
"""Tenant of requests for which neither the scenario nor a trace specifies one."""


# -------------------------------------------------------------------------------------------------- engines, clients


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An endpoint and its engine."""

    id: EndpointId
    pool: PoolName
    profile: EngineProfile
    in_flight_max: int
    starts_at: Instant = Instant(0)
    cold_start_ns: Duration = Duration(0)
    """Time from start to the first response."""
    standby: bool = False
    """Whether the engine does not start before the autoscaler needs it."""
    call_ns: Duration = Duration(0)
    """Time that the engine's API server spends on each call. It handles one call at a time."""
    batching: BatchRules | None = None
    """Rules of the gateway's batching. None without batching."""


@dataclass(frozen=True, slots=True)
class ScaledPool:
    """Autoscaling of a pool."""

    rules: ScalingRules
    cold_start_ns: Duration
    """Actual cold start of an engine that the autoscaler starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerBehaviour:
    """Objectives and behaviour of a class's clients. None means no objective or limit."""

    ttft_ns: Duration | None = None
    tpot_ns: Duration | None = None
    e2e_ns: Duration | None = None
    client_timeout_ns: Duration | None = None
    """Client timeout, which runs until the first token of a stream or the end of a non-streaming response."""
    retries: int = 0
    """Maximum number of retries after a rejection or failure. Retries follow the official client's rules."""
    stream: bool = True
    api: Api = Api.CHAT
    first_token_deadline_ns: Duration | None = None
    """Time that clients allow for the first token, as sent to the gateway."""
    sends_max_tokens: bool = False
    """Whether requests set a maximum output length, which is then reached exactly."""


# ----------------------------------------------------------------------------------------------------------- traffic


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform distribution from `min` to `max`, inclusive."""

    min: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Lognormal distribution with a given median and 95th percentile. Larger values are capped at `max`."""

    median: int
    p95: int
    max: int


LengthDistribution = Uniform | LogNormal


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTraffic:
    path: Path
    classes: Shares | None = None
    """Classes and their weights. If None, the trace's own column is used."""
    tenants: Shares | None = None
    """Tenants and their weights. If None, those of `tenants_from` or, failing that, the trace's own column are used."""
    tenants_from: Path | None = None
    """Trace whose tenants and shares are used."""
    speed_up: float = 1.0
    shift_ns: Duration = Duration(0)
    jitter_ns: Duration = Duration(0)
    """Maximum random delay for each row, for traces whose time resolution is this coarse."""
    keep: float = 1.0
    """Share of rows to keep, chosen at random."""
    start_ns: Duration = Duration(0)
    duration_ns: Duration | None = None
    """Length of the window. None means until the end of the trace."""
    location: str = "traffic"
    """Location in the scenario file, for error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeGenTraffic:
    """Traffic from ServeGen's clients. Each client is a tenant."""

    rates: Path
    lengths: Path
    classes: Shares
    start_ns: Duration = Duration(0)
    duration_ns: Duration | None = None
    """Length of the window. None means until the end of the file."""
    keep: float = 1.0
    """Factor applied to every client's rate. Burstiness does not change."""
    speed_up: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """The rate changes linearly to `to` requests per second, and keeps it."""

    to: float
    at_ns: Duration
    duration_ns: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """The rate is multiplied by `factor` for a while."""

    factor: float
    at_ns: Duration
    duration_ns: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyPeak:
    """A share of each day's requests arrives in one part of the day. The mean rate of a day does not change."""

    share: float
    at_ns: Duration
    duration_ns: Duration
    day_ns: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTraffic:
    """Requests at a mean rate, with random lengths."""

    rate: float
    """Mean number of requests per second."""
    duration_ns: Duration
    prompt: LengthDistribution
    output: LengthDistribution
    classes: Shares
    tenants: Shares = ()
    tenants_from: Path | None = None
    """Trace whose tenants and shares are used if `tenants` is empty."""
    shift_ns: Duration = Duration(0)
    """Start of the traffic relative to the start of the run."""
    burstiness: float = 1.0
    """Coefficient of variation of the time between two requests: 0 for a constant interval, 1 for a Poisson process.
    Other values give a gamma process.
    """
    ramp: Ramp | None = None
    spikes: tuple[Spike, ...] = ()
    day: DailyPeak | None = None
    api: Api | None = None
    """API of the requests. None if the behaviour of the class's callers applies."""


Traffic = TraceTraffic | ServeGenTraffic | RateTraffic


# ------------------------------------------------------------------------------------------------------------ faults


@dataclass(frozen=True, slots=True)
class Crash:
    """The engine crashes, loses its state and recovers after `recover_after_ns`."""

    endpoint_id: EndpointId
    at: Instant
    recover_after_ns: Duration


@dataclass(frozen=True, slots=True)
class Hang:
    """The engine hangs, but responds to probes."""

    endpoint_id: EndpointId
    at: Instant
    duration_ns: Duration


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The engine runs at `speed` thousandths of its nominal speed."""

    endpoint_id: EndpointId
    at: Instant
    duration_ns: Duration
    speed: int


@dataclass(frozen=True, slots=True)
class RequestErrors:
    """The engine immediately answers `percent` percent of requests with an error."""

    endpoint_id: EndpointId
    at: Instant
    duration_ns: Duration
    percent: int


ScenarioFault = Crash | Hang | Slowdown | RequestErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaults:
    """Counts of faults that are drawn at random, and limits on their duration and speed."""

    crashes: int
    hangs: int
    slowdowns: int
    duration_ns_min: Duration
    duration_ns_max: Duration
    speed_min: int
    """Lower limit of the speed during a slowdown, in thousandths of the nominal speed."""
    speed_max: int
