"""Reads from the ledger how much of each budget has been spent.

Costs are summed by day (`usage_daily`), so a month has at most 31 sums for each tenant, class, model and outcome. A
tenant's budget also covers its descendants, so every prefix of a tenant's path is a scope.
"""

from collections.abc import Sequence
from datetime import date
from typing import Final

from headgate.ledger.connection import DatabaseConnection
from headgate.model.money import NanoUsd

_TENANT_SPENDING: Final = """
    with paid as (
        select
            string_to_array(tenant, '/') as steps,
            sum(input_nano_usd + output_nano_usd + overhead_nano_usd) filter (where day = $1) as of_day,
            sum(input_nano_usd + output_nano_usd + overhead_nano_usd) as of_month
        from headgate.usage_daily
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
_CLASS_SPENDING: Final = """
    select
        class as scope,
        coalesce(sum(paid) filter (where day = $1), 0)::bigint as of_day,
        coalesce(sum(paid), 0)::bigint as of_month
    from headgate.usage_daily, lateral (select input_nano_usd + output_nano_usd + overhead_nano_usd as paid) as amount
    where day >= $2 and payer = 'tenant' and class = any($3::text[])
    group by 1
"""

SpendingByScope = dict[str, tuple[NanoUsd, NanoUsd]]
"""Daily and monthly cost by budget scope. Scopes without cost have no entry."""


async def spending_by_scope(
    link: DatabaseConnection, *, day: date, month: date, tenants: Sequence[str], classes: Sequence[str]
) -> SpendingByScope:
    """Cost on `day`, and cost since `month`, which is the first day of the month."""
    found: SpendingByScope = {}
    if tenants:
        first_steps = sorted({each.partition("/")[0] for each in tenants})
        for row in await link.fetch(_TENANT_SPENDING, day, month, first_steps, list(tenants)):
            found[f"tenant:{row['scope']}"] = (NanoUsd(row["of_day"]), NanoUsd(row["of_month"]))
    if classes:
        for row in await link.fetch(_CLASS_SPENDING, day, month, list(classes)):
            found[f"class:{row['scope']}"] = (NanoUsd(row["of_day"]), NanoUsd(row["of_month"]))
    return found
