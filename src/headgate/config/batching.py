"""When are the requests of a pool asked together?

Left out, never. An empty `batching: {}` takes the usual rules.
"""

from headgate.config.problems import Report
from headgate.config.schema import BatchingSection, PoolSection
from headgate.model.policy import BatchRules
from headgate.model.units import Duration


def batch_rules(pool: str, section: PoolSection, report: Report) -> BatchRules | None:
    batching = section.batching
    if batching is None:
        return None
    _check(pool, section, batching, report)
    return BatchRules(
        inputs_max=batching.max_batch,
        preferred=tuple(batching.preferred),
        delay_ns_max=Duration(batching.max_delay),
        budget_percent=batching.budget_percent,
        tokens_max=batching.max_tokens,
        parallel=batching.parallel,
        calls_max=batching.max_calls,
    )


def _check(pool: str, section: PoolSection, batching: BatchingSection, report: Report) -> None:
    place = ("pools", pool, "batching")
    for number, size in enumerate(batching.preferred):
        if not 2 <= size < batching.max_batch:
            wrong = (
                f"a batch of {size} is sent anyway; prefer sizes from 2 to {batching.max_batch - 1}, below max_batch"
            )
            report.problem((*place, "preferred", number), wrong)
    places = max([section.in_flight_max or 0, *(each.in_flight_max or 0 for each in section.endpoints)])
    if 0 < places < batching.max_batch:
        warning = f"is {batching.max_batch}, but an endpoint holds {places} requests; raise in_flight_max to"
        report.warn((*place, "max_batch"), f"{warning} {batching.max_batch} or more, or single inputs never fill it")
