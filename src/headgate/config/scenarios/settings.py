"""What does a scenario's file come to, once it has been read and found right?

Plain values for whoever composes the simulation; nothing here knows about YAML or units in text any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headgate.config.speeds import SpeedFigures
from headgate.model.policy import Policy
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName

Shares = tuple[tuple[str, float], ...]
"""Names and weights; the weights need not add up to anything."""


class EngineFigures(SpeedFigures, Protocol):
    """What a profile of an engine says of its speed and its size."""

    @property
    def sequences_max(self) -> int: ...
    @property
    def kv_blocks(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSize:
    """What an engine holds at once."""

    chunk_tokens: int
    sequences_max: int
    kv_blocks: int
    block_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    id: EndpointId
    pool: PoolName
    profile: str
    size: EngineSize
    asynchronous: bool
    in_flight_max: int
    starts_at: Instant
    cold_start_ns: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSettings:
    ttft_ns: Duration | None
    tpot_ns: Duration | None
    e2e_ns: Duration | None
    leave_ns: Duration | None
    retries: int
    stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSettings:
    """Evenly drawn from the least to the most, unless a median and a p95 are given."""

    least: int
    most: int
    median: int | None = None
    p95: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    place: str
    """Where the file says it, as messages begin."""
    path: Path
    classes: Shares | None
    """None: the trace's own."""
    tenants: Shares | None
    """None: those of `tenants_like`, and without it the trace's own."""
    tenants_like: Path | None
    speed_up: float
    shift_ns: Duration
    jitter_ns: Duration
    keep: float
    start_ns: Duration
    length_ns: Duration | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeGenSettings:
    rates: Path
    lengths: Path
    classes: Shares
    start_ns: Duration
    length_ns: Duration | None
    keep: float
    speed_up: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonSettings:
    rate: float
    shift_ns: Duration
    length_ns: Duration
    prompt: LengthSettings
    output: LengthSettings
    classes: Shares
    tenants: Shares | None
    tenants_like: Path | None


TrafficSettings = TraceSettings | ServeGenSettings | PoissonSettings


@dataclass(frozen=True, slots=True)
class CrashSettings:
    endpoint_id: EndpointId
    at: Instant
    back_after_ns: Duration


@dataclass(frozen=True, slots=True)
class HangSettings:
    endpoint_id: EndpointId
    at: Instant
    lasts_ns: Duration


@dataclass(frozen=True, slots=True)
class SlowSettings:
    endpoint_id: EndpointId
    at: Instant
    lasts_ns: Duration
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaultSettings:
    crashes: int
    hangs: int
    slows: int
    lasts_ns_min: Duration
    lasts_ns_max: Duration
    speed_min: float
    speed_max: float


FaultSettings = CrashSettings | HangSettings | SlowSettings | RandomFaultSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSettings:
    title: str
    scheduler: str
    cap: int | None
    """How much the scheduler `static-cap` gives to an engine at once. None: the least `in_flight_max`."""
    waiting_max: int
    """How many `static-cap` lets wait."""
    policy: Policy
    """Its tenants are those that the file names: who else asks, traces may have to be asked."""
    model: ModelName
    """What every request asks for."""
    engines: tuple[EngineSettings, ...]
    callers: Mapping[ClassName, CallerSettings]
    traffic: tuple[TrafficSettings, ...]
    faults: tuple[FaultSettings, ...]
    duration_ns: Duration | None
    """No request arrives later. None: as long as there are any."""
    probe_every_ns: Duration
    scrape_every_ns: Duration
    progress_every_ns: Duration
    warnings: tuple[str, ...] = field(default=())
