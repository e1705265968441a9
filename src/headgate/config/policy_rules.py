"""Policy rules that apply to all classes, tenants and pools, converted to the core's units."""

from headgate.config.problems import ConfigReport
from headgate.config.schema import (
    AdmissionSection,
    DegradationSection,
    HeadroomSection,
    HealthSection,
    RetrySection,
    RoutingSection,
    SheddingSection,
)
from headgate.config.setting_types import PRESSURE_PER_PERCENT
from headgate.model.policy import (
    SESSION_FIELDS,
    AdmissionRules,
    DegradationRules,
    HeadroomRules,
    HealthRules,
    RetryRules,
    RoutingRules,
    SheddingRules,
)
from headgate.model.units import Duration


def retry_rules(retry: RetrySection) -> RetryRules:
    """Retry rules. The core counts in hundredths of a retry, so a percentage of first attempts needs no conversion."""
    return RetryRules(
        attempts_max=retry.attempts_max,
        credit_per_first_attempt=retry.tenant_budget_percent,
        credit_burst=100 * retry.tenant_budget_burst,
        cost=100,
        timeout_cost=100 * retry.timeout_cost,
        pool_budget_window_ns=Duration(retry.pool_budget_window),
        pool_budget_percent=retry.pool_budget_percent,
        pool_retries_min=retry.pool_retries_min,
    )


def health_rules(health: HealthSection, report: ConfigReport) -> HealthRules:
    if health.ejection_time_max < health.ejection_time:
        report.add_problem(("health", "ejection_time_max"), "is less than ejection_time; raise it")
    return HealthRules(
        consecutive_failures_max=health.consecutive_failures_max,
        stall_ns_max=Duration(health.stall_timeout),
        ejection_ns=Duration(health.ejection_time),
        ejection_ns_max=Duration(health.ejection_time_max),
        slow_start_ns=Duration(health.slow_start),
        zone_ejection_percent=health.zone_ejection_percent,
    )


def headroom_rules(headroom: HeadroomSection) -> HeadroomRules:
    return HeadroomRules(
        pending_prefill_percent=headroom.pending_prefill_percent,
        measured_tpot_percent=headroom.measured_tpot_percent,
        predicted_tpot_percent=headroom.predicted_tpot_percent,
        kv_percent=headroom.kv_percent,
        long_prompt_tokens=headroom.long_prompt_tokens,
        long_lane_percent=headroom.long_lane_percent,
    )


def routing_rules(routing: RoutingSection) -> RoutingRules:
    return RoutingRules(
        adapter_load_penalty_ns=Duration(routing.adapter_load_penalty),
        cross_zone_penalty_ns=Duration(routing.cross_zone_penalty),
        metrics_stale_ns=Duration(routing.metrics_stale_after),
        prefix_affinity=routing.prefix_affinity,
        session_preference_ns=Duration(routing.session_preference),
        session_fields=SESSION_FIELDS if routing.session_fields is None else tuple(routing.session_fields),
    )


def admission_rules(admission: AdmissionSection) -> AdmissionRules:
    limit = admission.predicted_wait_percent_max
    return AdmissionRules(predicted_wait_percent_max=limit if isinstance(limit, int) else None)


def shedding_rules(shedding: SheddingSection) -> SheddingRules:
    return SheddingRules(
        enabled=shedding.enabled,
        period_ns=Duration(shedding.period),
        target_pressure=PRESSURE_PER_PERCENT * shedding.target_pressure_percent,
        proportional_gain=shedding.proportional_gain,
        integral_gain=shedding.integral_gain,
        shed_percent_max=shedding.shed_percent_max,
        arrival_window=shedding.arrival_window,
    )


def degradation_rules(section: DegradationSection, report: ConfigReport) -> DegradationRules:
    if section.recover_below_percent >= section.escalate_above_percent:
        problem = "must be below escalate_above_percent, or the level would oscillate; lower it"
        report.add_problem(("degradation", "recover_below_percent"), problem)
    return DegradationRules(
        enabled=section.enabled,
        escalate_above=PRESSURE_PER_PERCENT * section.escalate_above_percent,
        escalate_after_ns=Duration(section.escalate_after),
        recover_below=PRESSURE_PER_PERCENT * section.recover_below_percent,
        recover_after_ns=Duration(section.recover_after),
        level_max=section.level_max,
        downgrade_prompt_tokens_max=section.downgrade_prompt_tokens_max,
    )
