"""Amounts spent against budgets, read from the ledger."""

from datetime import date
from typing import Any

import pytest

from headgate.ledger.budget_spending import spending_by_scope

pytestmark = pytest.mark.process

DAY, MONTH = date(2026, 3, 5), date(2026, 3, 1)


async def paid(
    link: Any, tenant: str, nano_usd: int, *, day: date = DAY, payer: str = "tenant", service_class: str = "interactive"
) -> None:
    await link.execute(
        "insert into headgate.usage_daily (day, tenant, class, model, pool, payer, cause, outcome, requests, attempts,"
        " tokens_in, tokens_cached, tokens_out, tokens_reasoning, engine_us, input_nano_usd, output_nano_usd,"
        " overhead_nano_usd) values ($1, $2, $3, 'm', 'p', $4, 'answer', 'completed', 1, 1, 0, 0, 0, 0, 0, $5, 1, 2)",
        day,
        tenant,
        service_class,
        payer,
        nano_usd - 3,
    )


async def test_spent_amounts_cover_day_and_month_at_each_requested_level(link: Any) -> None:
    await paid(link, "acme/search/ci", 100)
    await paid(link, "acme/search/ci", 1_000, day=MONTH)
    await paid(link, "acme", 10_000)
    await paid(link, "acme-two/x", 7_000_000)
    await paid(link, "bolt", 8_000_000)

    found = await spending_by_scope(
        link, day=DAY, month=MONTH, tenants=["acme", "acme/search", "acme/other"], classes=[]
    )

    assert found == {"tenant:acme": (10_100, 11_100), "tenant:acme/search": (100, 1_100)}


async def test_platform_costs_and_earlier_months_are_excluded(link: Any) -> None:
    await paid(link, "acme", 100)
    await paid(link, "acme", 1_000, payer="platform")
    await paid(link, "acme", 10_000, day=date(2026, 2, 28))

    assert await spending_by_scope(link, day=DAY, month=MONTH, tenants=["acme"], classes=[]) == {
        "tenant:acme": (100, 100)
    }


async def test_class_amount_includes_all_tenants(link: Any) -> None:
    await paid(link, "acme", 100, service_class="batch")
    await paid(link, "bolt", 1_000, service_class="batch", day=MONTH)
    await paid(link, "bolt", 10_000)

    assert await spending_by_scope(link, day=DAY, month=MONTH, tenants=[], classes=["batch", "none"]) == {
        "class:batch": (100, 1_100)
    }


async def test_names_are_never_interpreted_as_sql(link: Any) -> None:
    name = "x'; drop table headgate.usage_daily; --"
    await paid(link, name, 100)

    found = await spending_by_scope(link, day=DAY, month=MONTH, tenants=[name], classes=[name])

    assert found == {f"tenant:{name}": (100, 100)}
    assert await link.fetchval("select count(*) from headgate.usage_daily") == 1
