"""What may stand in a scenario's file?

As in the gateway's schema: one struct per section, one field per setting; docs/reference/scenarios.md says what each
means, and a test holds the two together. `classes`, `models`, `retry`, `health` and others are the gateway's own
sections, so that they mean the same in both files.
"""

from typing import Annotated, ClassVar

from msgspec import Meta, field

from headgate.config.schema import (
    AdmissionSection,
    ClassSection,
    HeadroomSection,
    HealthSection,
    LadderSection,
    ModelSection,
    RetrySection,
    RoutingSection,
    Section,
    SheddingSection,
    SpeedSection,
    TenantLimitsSection,
)
from headgate.config.setting_types import Count, Lasting, LastingOrNone, Positive
from headgate.model.units import MILLISECOND, MINUTE, SECOND

ENGINES_MAX = 1_000
"""How many engines one entry of a pool may stand for."""

FAULTS_MAX = 1_000
"""How many faults of one kind an entry may draw."""

Number = Annotated[float, Meta(gt=0)]
Weight = Annotated[float, Meta(gt=0, extra={"reads": "share"})]
Share = Annotated[float, Meta(gt=0, le=1, extra={"reads": "share"})]
# A name alone has all of it.
Shares = Annotated[dict[str, Weight], Meta(extra={"alone": "1"})]
Between = Annotated[tuple[int, int], Meta(extra={"reads": "range"})]
EngineCount = Annotated[int, Meta(ge=1, le=ENGINES_MAX)]
FaultCount = Annotated[int, Meta(ge=0, le=FAULTS_MAX)]
ProfileName = Annotated[str, Meta(extra={"next": "name what these engines are, such as h200-llama-8b"})]


class SchedulerSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "name"

    name: str = "headgate"
    cap: Positive | None = None
    waiting_max: Count = 0


class EnginesSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "profile"

    profile: ProfileName
    count: EngineCount = 1
    in_flight_max: Positive | None = None
    kv_tokens: Positive | None = None
    context_tokens: Positive | None = None
    sequences_max: Positive | None = None
    chunk_tokens: Positive | None = None
    block_tokens: Positive | None = None
    asynchronous: bool = False
    cold_start: LastingOrNone = 0
    starts_at: LastingOrNone = 0


class SimulatedPoolSection(Section, frozen=True):
    engines: Annotated[list[EnginesSection], Meta(extra={"next": "list its engines by their profile"})]
    in_flight_max: Positive | None = None
    warm_up: LastingOrNone = 30 * SECOND
    speed: SpeedSection = SpeedSection()
    kv_tokens: Positive | None = None
    prompt_tokens_min: Count = 0
    prompt_tokens_max: Positive | None = None
    output_tokens_min: Count = 0
    output_tokens_max: Positive | None = None


class SimulatedTenantSection(Section, frozen=True):
    weight: Positive = 100
    plan: str = "standard"
    limits: TenantLimitsSection = TenantLimitsSection()


class CallersSection(Section, frozen=True):
    ttft: Lasting | None = None
    tpot: Lasting | None = None
    e2e: Lasting | None = None
    leave_after: Lasting | None = None
    retries: Count = 0
    stream: bool = True


class LengthsSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "between"

    between: Between | None = None
    median: Positive | None = None
    p95: Positive | None = None
    most: Positive | None = None


class TrafficSection(Section, frozen=True):
    trace: str | None = None
    servegen: str | None = None
    rate: Number | None = None
    classes: Shares | None = None
    tenants: Shares | None = None
    tenants_like: str | None = None
    start: LastingOrNone = 0
    lasts: Lasting | None = field(default=None, name="for")
    shift: LastingOrNone = 0
    jitter: LastingOrNone = 0
    speed_up: Number = 1.0
    keep: Share = 1.0
    prompt: LengthsSection | None = None
    output: LengthsSection | None = None


class RandomFaultsSection(Section, frozen=True):
    crash: FaultCount = 0
    hang: FaultCount = 0
    slow: FaultCount = 0
    for_min: Lasting = 5 * SECOND
    for_max: Lasting = MINUTE
    speed_min: Share = 0.1
    speed_max: Share = 0.5


class FaultSection(Section, frozen=True):
    crash: list[str] | None = None
    hang: list[str] | None = None
    slow: list[str] | None = None
    random: RandomFaultsSection | None = None
    at: LastingOrNone | None = None
    back_after: Lasting | None = None
    lasts: Lasting | None = field(default=None, name="for")
    speed: Share | None = None


class ScenarioFile(Section, frozen=True):
    pools: Annotated[dict[str, SimulatedPoolSection], Meta(extra={"next": "name at least one pool of engines"})]
    traffic: Annotated[list[TrafficSection], Meta(extra={"next": "list at least one source of requests"})]
    title: str | None = None
    scheduler: SchedulerSection = SchedulerSection()
    duration: Lasting | None = None
    classes: dict[str, ClassSection] | None = None
    models: dict[str, ModelSection] = field(default_factory=dict[str, ModelSection])
    tenants: dict[str, SimulatedTenantSection] = field(default_factory=dict[str, SimulatedTenantSection])
    callers: dict[str, CallersSection] = field(default_factory=dict[str, CallersSection])
    faults: list[FaultSection] = field(default_factory=list[FaultSection])
    retry: RetrySection = RetrySection()
    health: HealthSection = HealthSection()
    headroom: HeadroomSection = HeadroomSection()
    admission: AdmissionSection = AdmissionSection()
    routing: RoutingSection = RoutingSection()
    shedding: SheddingSection = SheddingSection()
    ladder: LadderSection = LadderSection()
    fairness_depth: Positive = 1
    probe_every: Lasting = 5 * SECOND
    scrape_every: Lasting = 150 * MILLISECOND
    progress_every: Lasting = 250 * MILLISECOND
