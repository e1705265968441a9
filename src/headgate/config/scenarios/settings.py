"""Scenario settings: the validated file as plain values, independent of YAML and textual units."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headgate.config.speeds import SpeedFigures
from headgate.model.policy import Policy
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName

Shares = tuple[tuple[str, float], ...]
"""Names with relative weights."""


class EngineFigures(SpeedFigures, Protocol):
    """Speed and sizes of an engine profile."""

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
    """Capacity of an engine."""

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
    async_scheduling: bool
    in_flight_max: int
    starts_at: Instant
    cold_start_ns: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSettings:
    ttft_ns: Duration | None
    tpot_ns: Duration | None
    e2e_ns: Duration | None
    timeout_ns: Duration | None
    retries: int
    stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSettings:
    """Distribution of token counts: uniform between two bounds, or lognormal with a given median and p95."""

    tokens_min: int
    tokens_max: int
    median: int | None = None
    p95: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    place: str
    """Location in the file, used as the prefix of messages."""
    path: Path
    classes: Shares | None
    """Classes to assign. None to use the classes in the trace."""
    tenants: Shares | None
    """Tenants to assign. None to use the tenants in `tenants_from` or, failing that, in the trace."""
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
    duration_ns: Duration


@dataclass(frozen=True, slots=True)
class SlowSettings:
    endpoint_id: EndpointId
    at: Instant
    duration_ns: Duration
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaultSettings:
    crashes: int
    hangs: int
    slows: int
    duration_ns_min: Duration
    duration_ns_max: Duration
    speed_min: float
    speed_max: float


FaultSettings = CrashSettings | HangSettings | SlowSettings | RandomFaultSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSettings:
    title: str
    scheduler: str
    cap: int | None
    """Concurrency limit per engine for the `static-cap` scheduler. If None, the smallest `in_flight_max` is used."""
    queue_length_max: int
    """Maximum queue length for the `static-cap` scheduler."""
    policy: Policy
    """Policy with the tenants in the file. Traces may add more tenants."""
    model: ModelName
    """Model used in all requests."""
    engines: tuple[EngineSettings, ...]
    callers: Mapping[ClassName, CallerSettings]
    traffic: tuple[TrafficSettings, ...]
    faults: tuple[FaultSettings, ...]
    duration_ns: Duration | None
    """Time after which no more requests arrive. None means no limit."""
    probe_every_ns: Duration
    scrape_every_ns: Duration
    progress_every_ns: Duration
    warnings: tuple[str, ...] = field(default=())
