"""Schema of a scenario file.

As in the gateway's schema, each section is a struct and each setting a field. They are documented in
docs/reference/scenarios.md, and a test checks that the page is complete. `classes`, `models`, `retry`, `health` and
others are sections of the gateway's schema and have the same meaning.
"""

from typing import Annotated, ClassVar

from msgspec import Meta, field

from headgate.config.class_schema import ClassSection
from headgate.config.pool_schema import BatchingSection, PriceSection, ScalingSection, SpeedSection
from headgate.config.schema import (
    AdmissionSection,
    DegradationSection,
    HeadroomSection,
    HealthSection,
    ModelSection,
    RetrySection,
    RoutingSection,
    SheddingSection,
    TenantLimitsSection,
)
from headgate.config.section import Section
from headgate.config.setting_types import Count, DurationOrZero, Positive, PositiveDuration
from headgate.model.units import MILLISECOND, MINUTE, SECOND

SIMULATED_ENGINE = "simulated"
"""Engine type of one's own engines."""

ENGINES_MAX = 1_000
"""Maximum number of engines in one pool entry."""

FAULTS_MAX = 1_000
"""Maximum number of random faults of one type per entry."""

BURSTINESS_MAX = 100.0

Number = Annotated[float, Meta(gt=0)]
Weight = Annotated[float, Meta(gt=0, extra={"reads": "share"})]
Share = Annotated[float, Meta(gt=0, le=1, extra={"reads": "share"})]
# A single name gets the whole share.
Shares = Annotated[dict[str, Weight], Meta(extra={"alone": "1"})]
TokenRange = Annotated[tuple[int, int], Meta(extra={"reads": "range"})]
EngineCount = Annotated[int, Meta(ge=1, le=ENGINES_MAX)]
FaultCount = Annotated[int, Meta(ge=0, le=FAULTS_MAX)]
ProfileName = Annotated[str, Meta(extra={"next": "set the profile of the engines, such as h200-llama-8b"})]


class SchedulerSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "name"

    name: str = "headgate"
    cap: Positive | None = None
    queue_length_max: Count = 0


class EnginesSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "profile"

    profile: ProfileName
    count: EngineCount = 1
    in_flight_max: Positive | None = None
    kv_tokens: Positive | None = None
    context_tokens: Positive | None = None
    sequences_max: Positive | None = None
    chunk_tokens: Positive | None = None
    block_tokens: Positive | None = None
    async_scheduling: bool | None = None
    call_time: DurationOrZero = 0
    cold_start: DurationOrZero = 0
    starts_at: DurationOrZero = 0


class SimulatedPoolSection(Section, frozen=True):
    engines: Annotated[list[EnginesSection], Meta(extra={"next": "list its engines by their profile"})]
    engine: str = SIMULATED_ENGINE
    in_flight_max: Positive | None = None
    scaling: ScalingSection | None = None
    batching: BatchingSection | None = None
    warm_up: DurationOrZero = 30 * SECOND
    speed: SpeedSection = SpeedSection()
    kv_tokens: Positive | None = None
    prompt_tokens_min: Count = 0
    prompt_tokens_max: Positive | None = None
    output_tokens_min: Count = 0
    output_tokens_max: Positive | None = None
    prices: Annotated[list[PriceSection], Meta(extra={"alone": True})] = []


class SimulatedTenantSection(Section, frozen=True):
    weight: Positive = 100
    plan: str = "standard"
    limits: TenantLimitsSection = TenantLimitsSection()


class CallersSection(Section, frozen=True):
    ttft: PositiveDuration | None = None
    tpot: PositiveDuration | None = None
    e2e: PositiveDuration | None = None
    client_timeout: PositiveDuration | None = None
    retries: Count = 0
    stream: bool = True


class LengthsSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "uniform"

    uniform: TokenRange | None = None
    median: Positive | None = None
    p95: Positive | None = None
    max: Positive | None = None


class RampSection(Section, frozen=True):
    to: Annotated[float, Meta(gt=0, extra={"next": "set the rate at the end of the ramp"})]
    duration: Annotated[int, Meta(ge=MILLISECOND, extra={"reads": "duration", "next": "set how long the ramp takes"})]
    at: DurationOrZero = 0


class SpikeSection(Section, frozen=True):
    at: Annotated[int, Meta(ge=0, extra={"reads": "duration", "next": "set the start of the spike"})]
    duration: Annotated[int, Meta(ge=MILLISECOND, extra={"reads": "duration", "next": "set how long the spike lasts"})]
    factor: Annotated[float, Meta(gt=0, extra={"next": "set the factor applied to the rate, such as 5"})]


class DaySection(Section, frozen=True):
    share: Annotated[
        float, Meta(gt=0, le=1, extra={"reads": "share", "next": "set the share of the requests, such as 40%"})
    ]
    duration: Annotated[int, Meta(ge=MILLISECOND, extra={"reads": "duration", "next": "set its length, such as 4h"})]
    at: DurationOrZero = 0
    length: Annotated[int, Meta(ge=SECOND, extra={"reads": "duration"})] = 24 * 60 * MINUTE


class TrafficSection(Section, frozen=True):
    trace: str | None = None
    servegen: str | None = None
    rate: Number | None = None
    classes: Shares | None = None
    tenants: Shares | None = None
    tenants_from: str | None = None
    start: DurationOrZero = 0
    duration: PositiveDuration | None = None
    shift: DurationOrZero = 0
    jitter: DurationOrZero = 0
    speed_up: Number = 1.0
    sample: Share = 1.0
    prompt: LengthsSection | None = None
    output: LengthsSection | None = None
    burstiness: Annotated[float, Meta(ge=0, le=BURSTINESS_MAX)] = 1.0
    ramp: RampSection | None = None
    spikes: list[SpikeSection] = field(default_factory=list[SpikeSection])
    day: DaySection | None = None


class SimulatedTrafficSection(TrafficSection, frozen=True):
    api: str | None = None


class RandomFaultsSection(Section, frozen=True):
    crash: FaultCount = 0
    hang: FaultCount = 0
    slow: FaultCount = 0
    duration_min: PositiveDuration = 5 * SECOND
    duration_max: PositiveDuration = MINUTE
    speed_min: Share = 0.1
    speed_max: Share = 0.5


class FaultSection(Section, frozen=True):
    crash: list[str] | None = None
    hang: list[str] | None = None
    slow: list[str] | None = None
    random: RandomFaultsSection | None = None
    at: DurationOrZero | None = None
    recover_after: PositiveDuration | None = None
    duration: PositiveDuration | None = None
    speed: Share | None = None


class ScenarioFile(Section, frozen=True):
    pools: Annotated[dict[str, SimulatedPoolSection], Meta(extra={"next": "define at least one pool of engines"})]
    traffic: Annotated[list[SimulatedTrafficSection], Meta(extra={"next": "list at least one source of requests"})]
    title: str | None = None
    scheduler: SchedulerSection = SchedulerSection()
    duration: PositiveDuration | None = None
    classes: dict[str, ClassSection] | None = None
    models: dict[str, ModelSection] = field(default_factory=dict[str, ModelSection])
    tenants: dict[str, SimulatedTenantSection] = field(default_factory=dict[str, SimulatedTenantSection])
    callers: dict[str, CallersSection] = field(default_factory=dict[str, CallersSection])
    objectives: dict[str, Share] = field(default_factory=dict[str, Share])
    faults: list[FaultSection] = field(default_factory=list[FaultSection])
    retry: RetrySection = RetrySection()
    health: HealthSection = HealthSection()
    headroom: HeadroomSection = HeadroomSection()
    admission: AdmissionSection = AdmissionSection()
    routing: RoutingSection = RoutingSection()
    shedding: SheddingSection = SheddingSection()
    degradation: DegradationSection = DegradationSection()
    fairness_depth: Positive = 1
    probe_interval: PositiveDuration = 5 * SECOND
    scrape_interval: PositiveDuration = 150 * MILLISECOND
    progress_interval: PositiveDuration = 250 * MILLISECOND
