"""Which settings of a scenario are tuned, and which are not, with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from headgate.model.policy import OptimizationGoal
from headgate.model.units import MILLISECOND, MINUTE, SECOND


@dataclass(frozen=True, slots=True)
class TunableRule:
    """How the values of a setting are found."""

    by_steps: bool = False
    """Whether the value changes by one, two and more, instead of by a factor."""
    usual: tuple[int, ...] = ()
    """Values to try if the setting is 0 or not set."""
    choices: tuple[str, ...] = ()
    lists_pools: bool = False


_SCALED: Final = TunableRule()
_PERCENT: Final = TunableRule(usual=(10, 25, 50))
_TOKENS: Final = TunableRule(usual=(1_000, 2_000, 4_000, 8_000, 16_000))
_BY_STEPS: Final = TunableRule(by_steps=True)

TUNABLE: Final[Mapping[str, TunableRule]] = MappingProxyType(
    {
        "pools.*.engines[*].count": _BY_STEPS,
        "pools.*.engines[*].in_flight_max": _SCALED,
        "pools.*.engines[*].sequences_max": _SCALED,
        "pools.*.engines[*].chunk_tokens": _SCALED,
        "pools.*.engines[*].async_scheduling": _SCALED,
        "pools.*.in_flight_max": _SCALED,
        "pools.*.kv_tokens": _SCALED,
        "pools.*.prompt_tokens_min": _TOKENS,
        "pools.*.prompt_tokens_max": _TOKENS,
        "pools.*.output_tokens_min": TunableRule(usual=(100, 250, 500, 1_000)),
        "pools.*.output_tokens_max": TunableRule(usual=(100, 250, 500, 1_000)),
        "pools.*.scaling.endpoints_max": _BY_STEPS,
        "pools.*.scaling.endpoints_min": _BY_STEPS,
        "pools.*.scaling.warm_endpoints_min": _BY_STEPS,
        "pools.*.scaling.target_utilization_percent": _SCALED,
        "pools.*.scaling.target_kv_percent": _SCALED,
        "pools.*.scaling.period": _SCALED,
        "pools.*.scaling.scale_down_stabilization": _SCALED,
        "pools.*.scaling.scale_down_percent": _SCALED,
        "pools.*.scaling.panic_threshold_percent": _SCALED,
        "pools.*.scaling.scale_to_zero_after": _SCALED,
        "pools.*.scaling.held_requests_max": _SCALED,
        "pools.*.scaling.correction_percent_min": _SCALED,
        "pools.*.scaling.correction_percent_max": _SCALED,
        "pools.*.batching.batch_size_max": _SCALED,
        "pools.*.batching.delay_max": TunableRule(usual=(MILLISECOND, 5 * MILLISECOND, 20 * MILLISECOND)),
        "pools.*.batching.delay_ttft_percent_max": _PERCENT,
        "pools.*.batching.tokens_max": _SCALED,
        "pools.*.batching.calls_per_request_max": _SCALED,
        "pools.*.batching.calls_max": TunableRule(usual=(1, 2, 4, 8)),
        "classes.*.priority_band": _BY_STEPS,
        "classes.*.pools": TunableRule(lists_pools=True),
        "classes.*.queue_wait_max": _SCALED,
        "classes.*.queue_length_max": _SCALED,
        "classes.*.queue_length_per_tenant_max": _SCALED,
        "classes.*.first_token_timeout": _SCALED,
        "classes.*.stream_idle_timeout": _SCALED,
        "classes.*.attempt_timeout": _SCALED,
        "classes.*.caps.output_tokens": TunableRule(usual=(256, 1_024, 4_096)),
        "classes.*.min_share_percent": _PERCENT,
        "classes.*.reserve_percent": _PERCENT,
        "classes.*.optimize_for": TunableRule(choices=tuple(each.value for each in OptimizationGoal)),
        "classes.*.degradation_steps[*].level": _BY_STEPS,
        "classes.*.degradation_steps[*].caps.output_tokens": _SCALED,
        "classes.*.hedging": _SCALED,
        "classes.*.cold_start_wait_max": TunableRule(usual=(30 * SECOND, 2 * MINUTE, 10 * MINUTE)),
        "models.*.tiers[*].prompt_tokens_max": _SCALED,
        "models.*.overflow.after": _SCALED,
        "tenants.*.weight": _SCALED,
        "tenants.*.limits.requests_per_minute": TunableRule(usual=(60, 600, 6_000)),
        "tenants.*.limits.tokens_per_minute": TunableRule(usual=(100_000, 1_000_000, 10_000_000)),
        "tenants.*.limits.concurrency": TunableRule(usual=(4, 16, 64)),
        "retry.*": _SCALED,
        "health.*": _SCALED,
        "headroom.*": _SCALED,
        "admission.predicted_wait_percent_max": TunableRule(usual=(100, 200)),
        "routing.metrics_stale_after": _SCALED,
        "routing.prefix_affinity": _SCALED,
        "routing.session_preference": TunableRule(usual=(10 * MILLISECOND, 100 * MILLISECOND, SECOND)),
        "shedding.*": _SCALED,
        "degradation.level_max": _BY_STEPS,
        "degradation.*": _SCALED,
        "fairness_depth": _BY_STEPS,
    }
)
"""Tunable settings. `SECTION.*` stands for the settings of a section that are in neither table."""

_WORKLOAD: Final = "part of the workload"
_PROMISE: Final = "part of the promise"
_HARDWARE: Final = "a property of the engines"
_MONEY: Final = "a price or a budget"
_CONTRACT: Final = "an agreement with the tenant"
_NAMES: Final = "names, rollouts and rules, which are not a matter of load"
_NO_EFFECT: Final = "no effect in a simulation"
_QUALITY: Final = "what callers get"
_SIMULATION: Final = "a setting of the simulation"

FIXED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "title": _SIMULATION,
        "scheduler.*": _SIMULATION,
        "duration": _WORKLOAD,
        "traffic*": _WORKLOAD,
        "faults*": _WORKLOAD,
        "callers.*": _PROMISE,
        "objectives.*": _PROMISE,
        "classes.*.ttft": _PROMISE,
        "classes.*.tpot": _PROMISE,
        "classes.*.e2e": _PROMISE,
        "probe_interval": _SIMULATION,
        "scrape_interval": _SIMULATION,
        "progress_interval": _SIMULATION,
        "alternatives*": "other fleets, which `headgate plan` compares",
        "pools.*.engine": _HARDWARE,
        "pools.*.gpus": _HARDWARE,
        "pools.*.zones": _HARDWARE,
        "pools.*.warm_up": _HARDWARE,
        "pools.*.speed.*": _HARDWARE,
        "pools.*.scaling.cold_start": _HARDWARE,
        "pools.*.engines[[]*[]].profile": _HARDWARE,
        "pools.*.engines[[]*[]].kv_tokens": _HARDWARE,
        "pools.*.engines[[]*[]].context_tokens": _HARDWARE,
        "pools.*.engines[[]*[]].block_tokens": _HARDWARE,
        "pools.*.engines[[]*[]].call_time": _HARDWARE,
        "pools.*.engines[[]*[]].cold_start": _HARDWARE,
        "pools.*.engines[[]*[]].starts_at": _WORKLOAD,
        "pools.*.prices*": _MONEY,
        "pools.*.scaling.endpoint_usd_per_hour": _MONEY,
        "pools.*.scaling.usd_per_hour_max": _MONEY,
        "pools.*.scaling.calendar*": _NO_EFFECT,
        "pools.*.batching.preferred_batch_sizes": "a list, whose sizes follow from the engine's compiled batches",
        "classes.*.budgets*": _MONEY,
        "classes.*.cost_per_*": _MONEY,
        "classes.*.data_residency": _CONTRACT,
        "classes.*.service_tiers": _NO_EFFECT,
        "classes.*.prompt_tokens_max": _NO_EFFECT,
        "classes.*.accepts_unclassified": _NO_EFFECT,
        "classes.*.caps.prompt_tokens": _QUALITY,
        "classes.*.caps.trim_prompt": _QUALITY,
        "classes.*.caps.*": _NO_EFFECT,
        "classes.*.degradation_steps*": _QUALITY,
        "classes.*.stage_budget.*": _NO_EFFECT,
        "classes.*.objectives.*": _PROMISE,
        "models.*": _NAMES,
        "tenants.*.plan": _CONTRACT,
        "health.zone_ejection_percent": _NO_EFFECT,
        "routing.adapter_load_penalty": _NO_EFFECT,
        "routing.cross_zone_penalty": _NO_EFFECT,
        "routing.session_fields": _NO_EFFECT,
    }
)
"""Other settings, each with the reason why it is not tuned. The settings in `TUNABLE` are not among them."""


def rule_of(path: str) -> TunableRule | None:
    """Returns the rule for a path of the schema, such as `pools.*.engines[*].count`. None if it is not tuned."""
    if path in TUNABLE:
        return TUNABLE[path]
    section, _, setting = path.partition(".")
    if fixed_reason(path) is not None or not setting:
        return None
    return TUNABLE.get(f"{section}.*")


def fixed_reason(path: str) -> str | None:
    """Returns why a path of the schema is not tuned. None if it is."""
    if path in TUNABLE:
        return None
    return next((reason for pattern, reason in FIXED.items() if fnmatchcase(path, pattern)), None)
