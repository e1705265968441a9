"""Batching rules for a pool.

Without `batching`, requests are not batched. An empty `batching: {}` uses the default rules.
"""

from headgate.config.pool_schema import BatchingSection
from headgate.config.problems import ConfigReport
from headgate.model.policy import BatchRules
from headgate.model.units import Duration


def batch_rules(pool: str, batching: BatchingSection | None, slots: int, report: ConfigReport) -> BatchRules | None:
    """`slots` is the highest `in_flight_max` of the pool's endpoints, or 0 if unknown."""
    if batching is None:
        return None
    _check(pool, batching, slots, report)
    return BatchRules(
        batch_size_max=batching.batch_size_max,
        preferred_batch_sizes=tuple(batching.preferred_batch_sizes),
        delay_ns_max=Duration(batching.delay_max),
        delay_ttft_percent_max=batching.delay_ttft_percent_max,
        tokens_max=batching.tokens_max,
        calls_per_request_max=batching.calls_per_request_max,
        calls_max=batching.calls_max,
    )


def _check(pool: str, batching: BatchingSection, slots: int, report: ConfigReport) -> None:
    place = ("pools", pool, "batching")
    for number, size in enumerate(batching.preferred_batch_sizes):
        if not 2 <= size < batching.batch_size_max:
            message = f"must be from 2 to {batching.batch_size_max - 1}, below batch_size_max, not {size}"
            report.add_problem((*place, "preferred_batch_sizes", number), message)
    if 0 < slots < batching.batch_size_max:
        warning = (
            f"is {batching.batch_size_max}, but in_flight_max is {slots}, so single inputs never fill a batch; "
            f"raise in_flight_max to at least {batching.batch_size_max}"
        )
        report.add_warning((*place, "batch_size_max"), warning)
