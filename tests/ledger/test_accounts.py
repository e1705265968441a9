"""The components of an account add up to the amount paid, and shares add up to the amount divided."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headgate.ledger.reports.cost_breakdown import (
    PoolSpending,
    PoolTime,
    cost_breakdown,
    cost_breakdowns_by_pool,
    idle_shares,
    split_by_weight,
)
from headgate.ledger.reports.statement import round_to_sum, statements
from headgate.model.money import NanoUsd
from headgate.ports.cost_reports import StatementLine

HOUR = 3_600_000_000
USD = 1_000_000_000


def pool_time(pool: str = "small", hour: int = 2 * USD, **parts: int) -> PoolTime:
    named = {name: parts.get(name, 0) for name in ("starting_us", "unready_us", "idle_us", "abort_lag_us")}
    return PoolTime("2026-11-15", pool, hour, parts.get("total_us", 10 * HOUR), **named)


def spending(cost: int, pool: str = "small", payer: str = "tenant", cause: str = "answer") -> PoolSpending:
    return PoolSpending("2026-11-15", pool, payer, cause, cost)


def by_hour(_: str, pool: str) -> bool:
    """Whether the pool is paid by the hour."""
    return pool == "small"


def test_account_parts_add_up_to_the_amount_paid() -> None:
    times = [pool_time(starting_us=HOUR, unready_us=HOUR // 2, idle_us=2 * HOUR, abort_lag_us=HOUR // 4)]
    spendings = [spending(11 * USD), spending(USD, payer="platform", cause="retry")]
    account = cost_breakdown(times, spendings, by_hour)

    assert account.paid_time_nano_usd == 20 * USD
    assert account.attributed_nano_usd == 11 * USD
    assert account.waste_nano_usd == {"retry": USD}
    assert (account.starting_nano_usd, account.unready_nano_usd) == (2 * USD, USD)
    assert (account.late_nano_usd, account.idle_nano_usd) == (USD // 2, 4 * USD)
    assert account.unexplained_nano_usd == USD // 2
    assert account.unexplained_fraction == 0.025


def test_token_priced_pool_costs_the_sum_of_its_attempts() -> None:
    times = [pool_time(), pool_time("hosted", hour=0)]
    spendings = [spending(20 * USD), spending(3 * USD, "hosted"), spending(USD, "hosted", "platform", "hedge")]
    account = cost_breakdown(times, spendings, by_hour)

    assert (account.paid_time_nano_usd, account.paid_tokens_nano_usd) == (20 * USD, 4 * USD)
    assert account.unexplained_nano_usd == 0
    assert cost_breakdowns_by_pool(times, spendings, by_hour)["hosted"].attributed_nano_usd == 3 * USD


def test_hourly_pool_without_recorded_time_has_an_unexplained_cost() -> None:
    account = cost_breakdown([], [spending(5 * USD)], by_hour)

    assert (account.paid_time_nano_usd, account.paid_tokens_nano_usd) == (0, 0)
    assert account.unexplained_nano_usd == -5 * USD
    assert account.unexplained_fraction is None


weights = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 1_000), min_size=1, max_size=20)


@given(st.integers(0, 10**18), weights)
def test_shares_add_up_to_the_amount_and_are_proportional_to_the_weights(
    amount: int, given_weights: dict[str, int]
) -> None:
    parts = split_by_weight(amount, given_weights)

    assert sum(parts.values()) == amount
    for name, weight in given_weights.items():
        assert abs(parts.get(name, 0) - Fraction(amount * weight, sum(given_weights.values()))) < 1


def test_idle_time_in_a_pool_without_tenants_stays_with_the_platform() -> None:
    times = [pool_time(idle_us=HOUR), pool_time("spare", idle_us=HOUR)]
    shares = idle_shares(times, {"small": {"acme": 300, "beta": 100}, "spare": {}}, {})

    assert list(shares) == [
        ("2026-11-15", "small", {"acme": 3 * USD // 2, "beta": USD // 2}),
        ("2026-11-15", "spare", {}),
    ]


def test_tenant_pays_no_idle_time_before_its_first_day() -> None:
    times = [replace(pool_time(idle_us=HOUR), day=day) for day in ("2026-11-14", "2026-11-15", "2026-11-16")]
    shares = idle_shares(times, {"small": {"acme": 100, "newcomer": 100}}, {"newcomer": "2026-11-15"})

    assert [each for _, _, each in shares] == [
        {"acme": 2 * USD},
        {"acme": USD, "newcomer": USD},
        {"acme": USD, "newcomer": USD},
    ]


def test_pool_can_change_from_token_to_hourly_pricing() -> None:
    """Recorded endpoint time takes precedence. On days without any, the pool's price on that day decides."""
    first, second = "2026-11-14", "2026-11-15"
    spendings = [replace(spending(5 * USD), day=first), spending(20 * USD)]
    by_price = cost_breakdown([pool_time()], spendings, lambda day, _: day == second)
    free = replace(pool_time(hour=0), day=first)
    by_time = cost_breakdown([free, pool_time()], spendings, lambda *_: True)

    for account in (by_price, by_time):
        assert (account.paid_time_nano_usd, account.paid_tokens_nano_usd) == (20 * USD, 5 * USD)
        assert account.unexplained_nano_usd == 0


@given(st.lists(st.integers(0, 10**15), max_size=30), st.sampled_from([1, 1_000, 100_000, 10_000_000]))
def test_rounded_amounts_add_up_to_the_rounded_sum(amounts: list[int], unit: int) -> None:
    shown = round_to_sum(amounts, unit)

    assert 2 * abs(sum(shown) * unit - sum(amounts)) <= unit
    assert all(abs(each * unit - amount) < unit for each, amount in zip(shown, amounts, strict=True))


def line(path: str, charged: int, model: str = "chat") -> StatementLine:
    none = NanoUsd(0)
    return StatementLine("usage", path, model, "batch", 1, 2, 0, 3, NanoUsd(charged), none, none, NanoUsd(charged))


def test_each_organisation_gets_a_statement_with_its_share_of_idle_time() -> None:
    lines = [line("acme/search/web", 10), line("acme", 5), line("beta/x", 7)]
    found = statements(lines, {"small": {"acme": 40, "gamma": 2}}, month="2026-11", complete=True, tenant="")

    assert [(each.tenant, each.charged_nano_usd) for each in found] == [("acme", 55), ("beta", 7), ("gamma", 2)]
    assert [(each.kind, each.path) for each in found[0].lines] == [
        ("usage", "acme/search/web"),
        ("usage", "acme"),
        ("idle", "acme"),
    ]


def test_statement_can_cover_part_of_an_organisation() -> None:
    lines = [line("acme/search/web", 10), line("acme/search/app", 1)]
    found = statements(lines, {"small": {"acme": 40}}, month="2026-11", complete=False, tenant="acme/search")

    assert [(each.tenant, each.charged_nano_usd, len(each.lines)) for each in found] == [("acme/search", 11, 2)]
