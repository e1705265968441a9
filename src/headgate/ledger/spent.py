"""How much does the ledger know to be spent of each budget?

What tenants pay is summed up by the day (`usage_days`), so a month is at most some thirty sums for each tenant, class,
model and outcome. A tenant's budget is for all below it, too: of each tenant's path every beginning is a scope.
"""

from collections.abc import Sequence
from datetime import date
from typing import Final

from headgate.ledger.link import Link
from headgate.model.money import NanoUsd

_OF_TENANTS: Final = """
    with paid as (
        select
            string_to_array(tenant, '/') as steps,
            sum(input_nano_usd + output_nano_usd + overhead_nano_usd) filter (where day = $1) as of_day,
            sum(input_nano_usd + output_nano_usd + overhead_nano_usd) as of_month
        from headgate.usage_days
        where day >= $2 and payer = 'tenant' and split_part(tenant, '/', 1) = any($3::text[])
        group by tenant
    )
    select
        array_to_string(steps[1:depth], '/') as scope,
        coalesce(sum(of_day), 0)::bigint as of_day,
        coalesce(sum(of_month), 0)::bigint as of_month
    from paid, generate_series(1, cardinality(steps)) as depth
    where array_to_string(steps[1:depth], '/') = any($4::text[])
    group by 1
"""
_OF_CLASSES: Final = """
    select
        class as scope,
        coalesce(sum(paid) filter (where day = $1), 0)::bigint as of_day,
        coalesce(sum(paid), 0)::bigint as of_month
    from headgate.usage_days, lateral (select input_nano_usd + output_nano_usd + overhead_nano_usd as paid) as amount
    where day >= $2 and payer = 'tenant' and class = any($3::text[])
    group by 1
"""

Sums = dict[str, tuple[NanoUsd, NanoUsd]]
"""By scope, as budgets name it: of the day and of the month. Of whom nothing is known there is no entry."""


async def spent(link: Link, *, day: date, month: date, tenants: Sequence[str], classes: Sequence[str]) -> Sums:
    """What was spent on this day, and since the first day of this month."""
    found: Sums = {}
    if tenants:
        first_steps = sorted({each.partition("/")[0] for each in tenants})
        for row in await link.fetch(_OF_TENANTS, day, month, first_steps, list(tenants)):
            found[f"tenant:{row['scope']}"] = (NanoUsd(row["of_day"]), NanoUsd(row["of_month"]))
    if classes:
        for row in await link.fetch(_OF_CLASSES, day, month, list(classes)):
            found[f"class:{row['scope']}"] = (NanoUsd(row["of_day"]), NanoUsd(row["of_month"]))
    return found
