"""Schema of `classes.NAME` and `class_rules` in the configuration file."""

from typing import Annotated, ClassVar

from msgspec import Meta, field

from headgate.config.section import Section
from headgate.config.setting_types import (
    DEGRADATION_LEVELS,
    BudgetUsd,
    Count,
    CountCap,
    DurationTarget,
    ObjectivePercent,
    Percent,
    Positive,
    PositiveCap,
    PositiveDuration,
    Usd,
)


class BudgetSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "usd"

    usd: BudgetUsd
    kind: str = "hard"


class BudgetsSection(Section, frozen=True):
    day: BudgetSection | None = None
    month: BudgetSection | None = None


class CapsSection(Section, frozen=True):
    """A class's caps. An omitted cap is inherited from the default class of the same name, or else from caps.py."""

    prompt_tokens: PositiveCap | None = None
    trim_prompt: bool | None = None
    output_tokens: PositiveCap | None = None
    n: PositiveCap | None = None
    best_of: PositiveCap | None = None
    logprobs: CountCap | None = None
    prompt_logprobs: CountCap | None = None
    reasoning_effort: str | None = None
    image_detail: str | None = None
    prompts: PositiveCap | None = None
    inputs: PositiveCap | None = None


class DegradationStepSection(Section, frozen=True):
    """Changes that apply to a class from a given degradation level upward. Omitted settings are unchanged."""

    level: Annotated[int, Meta(ge=1, le=DEGRADATION_LEVELS, extra={"next": "set the degradation level, 1 to 6"})]
    caps: CapsSection = CapsSection()
    model: str | None = None


class StageBudgetSection(Section, frozen=True):
    """Time budget for each stage of a request. Stages without a budget are not checked (observability.py)."""

    ingress: PositiveDuration | None = None
    auth: PositiveDuration | None = None
    classify: PositiveDuration | None = None
    queue: PositiveDuration | None = None
    route: PositiveDuration | None = None
    connect: PositiveDuration | None = None
    prefill: PositiveDuration | None = None
    decode: PositiveDuration | None = None
    post_processing: PositiveDuration | None = None
    settle: PositiveDuration | None = None


class ObjectivesSection(Section, frozen=True):
    """A class's monthly objectives, on which its alerts are based (observability.py)."""

    ttft_percent: ObjectivePercent | None = None
    duration: PositiveDuration | None = None
    duration_percent: ObjectivePercent | None = None
    availability_percent: ObjectivePercent | None = None
    cost_per_1k_tokens: Usd | None = None


class ClassSection(Section, frozen=True):
    """Service class. Omitted settings come from the default class of this name or have their defaults (classes.py)."""

    priority_band: Count | None = None
    service_tiers: list[str] | None = None
    prompt_tokens_max: Positive | None = None
    accepts_unclassified: bool | None = None
    pools: list[str] | None = None
    queue_wait_max: PositiveDuration | None = None
    queue_length_max: Positive | None = None
    queue_length_per_tenant_max: Positive | None = None
    first_token_timeout: PositiveDuration | None = None
    stream_idle_timeout: PositiveDuration | None = None
    attempt_timeout: PositiveDuration | None = None
    caps: CapsSection = CapsSection()
    ttft: DurationTarget | None = None
    tpot: DurationTarget | None = None
    e2e: DurationTarget | None = None
    min_share_percent: Percent | None = None
    reserve_percent: Percent | None = None
    optimize_for: str | None = None
    degradation_steps: list[DegradationStepSection] | None = None
    hedging: bool | None = None
    cold_start_wait_max: PositiveDuration | None = None
    data_residency: str | None = None
    budgets: BudgetsSection = BudgetsSection()
    cost_per_request_max: Usd | None = None
    cost_per_unit_max: Usd | None = None
    stage_budget: StageBudgetSection = StageBudgetSection()
    objectives: ObjectivesSection = ObjectivesSection()


class ClassRuleSection(Section, frozen=True):
    class_name: Annotated[str, Meta(extra={"next": "set the class of the matching requests"})] = field(name="class")
    plans: list[str] = []
    tenants: list[str] = []
    stream: bool | None = None
    apis: list[str] = []
    metadata: dict[str, list[str]] = {}
    prompt_tokens_max: Positive | None = None
