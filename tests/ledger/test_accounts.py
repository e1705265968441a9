"""Does what was paid come to what it was spent on, and is what is divided whole again when it is added up?"""

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headgate.ledger.reports.accounts import PoolSpending, PoolTime, account_of, accounts_by_pool, divided, idle_shares
from headgate.ledger.reports.statement import rounded, statements
from headgate.model.money import NanoUsd
from headgate.ports.reports import StatementLine

HOUR = 3_600_000_000
USD = 1_000_000_000


def pool_time(pool: str = "small", hour: int = 2 * USD, **parts: int) -> PoolTime:
    named = {name: parts.get(name, 0) for name in ("starting_us", "unready_us", "idle_us", "late_us")}
    return PoolTime("2026-11-15", pool, hour, parts.get("whole_us", 10 * HOUR), **named)


def spending(cost: int, pool: str = "small", payer: str = "tenant", cause: str = "answer") -> PoolSpending:
    return PoolSpending("2026-11-15", pool, payer, cause, cost)


def by_hour(_: str, pool: str) -> bool:
    """As the policy says."""
    return pool == "small"


def test_the_parts_come_to_what_was_paid() -> None:
    times = [pool_time(starting_us=HOUR, unready_us=HOUR // 2, idle_us=2 * HOUR, late_us=HOUR // 4)]
    spendings = [spending(11 * USD), spending(USD, payer="platform", cause="retry")]
    account = account_of(times, spendings, by_hour)

    assert account.paid_time_nano_usd == 20 * USD
    assert account.attributed_nano_usd == 11 * USD
    assert account.waste_nano_usd == {"retry": USD}
    assert (account.starting_nano_usd, account.unready_nano_usd) == (2 * USD, USD)
    assert (account.late_nano_usd, account.idle_nano_usd) == (USD // 2, 4 * USD)
    assert account.unexplained_nano_usd == USD // 2
    assert account.unexplained_fraction == 0.025


def test_what_is_paid_by_the_token_costs_what_its_attempts_do() -> None:
    times = [pool_time(), pool_time("hosted", hour=0)]
    spendings = [spending(20 * USD), spending(3 * USD, "hosted"), spending(USD, "hosted", "platform", "hedge")]
    account = account_of(times, spendings, by_hour)

    assert (account.paid_time_nano_usd, account.paid_tokens_nano_usd) == (20 * USD, 4 * USD)
    assert account.unexplained_nano_usd == 0
    assert accounts_by_pool(times, spendings, by_hour)["hosted"].attributed_nano_usd == 3 * USD


def test_a_pool_by_the_hour_whose_time_nobody_wrote_down_is_unexplained_and_not_free() -> None:
    account = account_of([], [spending(5 * USD)], by_hour)

    assert (account.paid_time_nano_usd, account.paid_tokens_nano_usd) == (0, 0)
    assert account.unexplained_nano_usd == -5 * USD
    assert account.unexplained_fraction is None


weights = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 1_000), min_size=1, max_size=20)


@given(st.integers(0, 10**18), weights)
def test_shares_come_to_the_whole_and_follow_the_weights(amount: int, given_weights: dict[str, int]) -> None:
    parts = divided(amount, given_weights)

    assert sum(parts.values()) == amount
    for name, weight in given_weights.items():
        assert abs(parts.get(name, 0) - Fraction(amount * weight, sum(given_weights.values()))) < 1


def test_idle_time_of_a_pool_that_nobody_may_use_stays_with_the_platform() -> None:
    times = [pool_time(idle_us=HOUR), pool_time("spare", idle_us=HOUR)]
    shares = idle_shares(times, {"small": {"acme": 300, "beta": 100}, "spare": {}}, {})

    assert list(shares) == [
        ("2026-11-15", "small", {"acme": 3 * USD // 2, "beta": USD // 2}),
        ("2026-11-15", "spare", {}),
    ]


def test_nobody_bears_idle_time_of_days_before_its_first() -> None:
    times = [replace(pool_time(idle_us=HOUR), day=day) for day in ("2026-11-14", "2026-11-15", "2026-11-16")]
    shares = idle_shares(times, {"small": {"acme": 100, "newcomer": 100}}, {"newcomer": "2026-11-15"})

    assert [each for _, _, each in shares] == [
        {"acme": 2 * USD},
        {"acme": USD, "newcomer": USD},
        {"acme": USD, "newcomer": USD},
    ]


def test_a_pool_may_turn_from_the_token_to_the_hour() -> None:
    """What endpoints are known to have had decides; where nothing is known, the price that held on the day."""
    first, second = "2026-11-14", "2026-11-15"
    spendings = [replace(spending(5 * USD), day=first), spending(20 * USD)]
    by_price = account_of([pool_time()], spendings, lambda day, _: day == second)
    free = replace(pool_time(hour=0), day=first)
    by_time = account_of([free, pool_time()], spendings, lambda *_: True)

    for account in (by_price, by_time):
        assert (account.paid_time_nano_usd, account.paid_tokens_nano_usd) == (20 * USD, 5 * USD)
        assert account.unexplained_nano_usd == 0


@given(st.lists(st.integers(0, 10**15), max_size=30), st.sampled_from([1, 1_000, 100_000, 10_000_000]))
def test_rounded_amounts_come_to_the_rounded_sum(amounts: list[int], unit: int) -> None:
    shown = rounded(amounts, unit)

    assert 2 * abs(sum(shown) * unit - sum(amounts)) <= unit
    assert all(abs(each * unit - amount) < unit for each, amount in zip(shown, amounts, strict=True))


def line(path: str, charged: int, model: str = "chat") -> StatementLine:
    none = NanoUsd(0)
    return StatementLine("usage", path, model, "batch", 1, 2, 0, 3, NanoUsd(charged), none, none, NanoUsd(charged))


def test_each_organisation_has_its_own_statement_with_its_share_of_idle_time() -> None:
    lines = [line("acme/search/web", 10), line("acme", 5), line("beta/x", 7)]
    found = statements(lines, {"small": {"acme": 40, "gamma": 2}}, month="2026-11", complete=True, tenant="")

    assert [(each.tenant, each.charged_nano_usd) for each in found] == [("acme", 55), ("beta", 7), ("gamma", 2)]
    assert [(each.kind, each.path) for each in found[0].lines] == [
        ("usage", "acme/search/web"),
        ("usage", "acme"),
        ("idle", "acme"),
    ]


def test_a_part_of_an_organisation_has_one_of_its_own() -> None:
    lines = [line("acme/search/web", 10), line("acme/search/app", 1)]
    found = statements(lines, {"small": {"acme": 40}}, month="2026-11", complete=False, tenant="acme/search")

    assert [(each.tenant, each.charged_nano_usd, len(each.lines)) for each in found] == [("acme/search", 11, 2)]
