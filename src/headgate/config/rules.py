"""How often may we try again, and when is an endpoint left alone? The sections `retry` and `health`."""

from headgate.config.problems import Report
from headgate.config.schema import HealthSection, RetrySection
from headgate.model.policy import HealthRules, RetryRules
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
    )
