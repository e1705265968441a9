"""How often may we try again, when is an endpoint left alone, and when does it take one more request?

Sections of the file that hold for all classes, tenants and pools alike, each as the core has it.
"""

from headgate.config.problems import Report
from headgate.config.schema import (
    AdmissionSection,
    HeadroomSection,
    HealthSection,
    LadderSection,
    RetrySection,
    RoutingSection,
    SheddingSection,
)
from headgate.config.setting_types import THOUSANDTHS
from headgate.model.policy import (
    AdmissionRules,
    HeadroomRules,
    HealthRules,
    LadderRules,
    RetryRules,
    RoutingRules,
    SheddingRules,
)
from headgate.model.units import Duration


def retry_rules(retry: RetrySection) -> RetryRules:
    """The core counts in hundredths of a retry, so a percentage of first attempts is their credit as it stands."""
    return RetryRules(
        attempts_max=retry.attempts_max,
        credit_per_first_attempt=retry.tenant_percent,
        credit_burst=100 * retry.tenant_burst,
        cost=100,
        cost_after_silence=100 * retry.cost_after_silence,
        pool_window_ns=Duration(retry.pool_window),
        pool_percent=retry.pool_percent,
        pool_extra_min=retry.pool_extra_min,
    )


def health_rules(health: HealthSection, report: Report) -> HealthRules:
    if health.eject_max < health.eject:
        report.problem(("health", "eject_max"), "is less than eject; make it at least as long")
    return HealthRules(
        failures_max=health.failures_max,
        stall_ns_max=Duration(health.stall_max),
        eject_ns=Duration(health.eject),
        eject_ns_max=Duration(health.eject_max),
        slow_start_ns=Duration(health.slow_start),
        zone_percent=health.zone_percent,
    )


def headroom_rules(headroom: HeadroomSection) -> HeadroomRules:
    return HeadroomRules(
        pending_percent=headroom.pending_percent,
        measured_percent=headroom.measured_percent,
        predicted_percent=headroom.predicted_percent,
        kv_percent=headroom.kv_percent,
        long_tokens=headroom.long_tokens,
        long_percent=headroom.long_percent,
    )


def routing_rules(routing: RoutingSection) -> RoutingRules:
    return RoutingRules(
        other_zone_ns=Duration(routing.other_zone),
        stale_ns=Duration(routing.stale_after),
        prefix=routing.prefix,
    )


def admission_rules(admission: AdmissionSection) -> AdmissionRules:
    certainty = admission.certainty_percent
    return AdmissionRules(certainty_percent=certainty if isinstance(certainty, int) else None)


def shedding_rules(shedding: SheddingSection) -> SheddingRules:
    return SheddingRules(
        enabled=shedding.enabled,
        period_ns=Duration(shedding.period),
        pressure=THOUSANDTHS * shedding.pressure_percent,
        proportional_gain=shedding.proportional_gain,
        integral_gain=shedding.integral_gain,
        percent_max=shedding.percent_max,
        arrivals=shedding.arrivals,
    )


def ladder_rules(ladder: LadderSection, report: Report) -> LadderRules:
    if ladder.descend_below_percent >= ladder.climb_above_percent:
        problem = "is not below climb_above_percent, so that it would climb and descend by turns; lower it"
        report.problem(("ladder", "descend_below_percent"), problem)
    return LadderRules(
        enabled=ladder.enabled,
        climb_above=THOUSANDTHS * ladder.climb_above_percent,
        climb_after_ns=Duration(ladder.climb_after),
        descend_below=THOUSANDTHS * ladder.descend_below_percent,
        descend_after_ns=Duration(ladder.descend_after),
        level_max=ladder.level_max,
        easy_tokens=ladder.easy_tokens,
    )
