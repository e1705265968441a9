"""Prices, budgets, the ledger and notifications."""

import pytest

from headgate.config.load import parse
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.config.summary import summary_data, summary_lines
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from headgate.model.money import Budget, Period, Price, PriceKind
from headgate.model.units import SECOND

LEDGER = """
key_secret: a secret of more than sixteen letters
database: postgresql://db/headgate
ledger: {spool_directory: /var/spool/headgate, metadata_keys: [conversation], unit_key: conversation}
"""


def settings_of(*, pool: str = "", tenant: str = "", classes: str = "", rest: str = LEDGER) -> Settings:
    text = f"""
pools: {{small: {{engine: vllm, in_flight_max: 4, endpoints: ["http://127.0.0.1:8081"], {pool}}}}}
models: {{m: small}}
tenants: {{t: {{{tenant}}}}}
anonymous_tenant: t
{f"classes: {{{classes}}}" if classes else ""}
{rest}
"""
    return parse(text, "headgate.yaml", {"HOOK": "geheim"}, engines=DIALECTS, profiles=PROFILES)


def problems_of(*, pool: str = "", tenant: str = "", classes: str = "", rest: str = LEDGER) -> str:
    with pytest.raises(ConfigErrors) as raised:
        settings_of(pool=pool, tenant=tenant, classes=classes, rest=rest)
    return str(raised.value)


HOURLY = "prices: {per_hour: 2.5}"


def test_single_price_does_not_require_a_list() -> None:
    assert settings_of(pool=HOURLY).policy.pools[0].prices == (Price(per_hour=2_500_000_000),)


def test_prices_start_at_midnight_utc() -> None:
    settings = settings_of(pool="prices: [{per_hour: 2}, {from: 1970-01-02, per_hour: 1, kind: spot}]")

    assert settings.policy.pools[0].prices == (
        Price(per_hour=2_000_000_000),
        Price(86_400 * SECOND, per_hour=1_000_000_000, kind=PriceKind.SPOT),
    )


@pytest.mark.parametrize(("written", "nano_usd"), [("0.1", 100_000_000), ("0.000000001", 1), ("1_000", 10**12)])
def test_dollars_are_converted_exactly(written: str, nano_usd: int) -> None:
    assert settings_of(pool=f"prices: {{per_hour: {written}}}").policy.pools[0].prices[0].per_hour == nano_usd


def test_cached_token_price_defaults_to_input_price() -> None:
    [price] = settings_of(pool="prices: {input_per_1m_tokens: 0.15, output_per_1m_tokens: 0.6}").policy.pools[0].prices

    assert (price.input_per_1m_tokens, price.cached_per_1m_tokens, price.output_per_1m_tokens) == (
        150_000_000,
        150_000_000,
        600_000_000,
    )


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (
            "{per_hour: 1, input_per_1m_tokens: 2, output_per_1m_tokens: 3}",
            "per hour and per token (input_per_1m_tokens, output_per_1m_tokens); remove one of the two",
        ),
        ("{kind: spot}", "has no price; set per_hour"),
        ("{input_per_1m_tokens: 1}", "output_per_1m_tokens: missing; set the price of one million output tokens"),
        (
            "{input_per_1m_tokens: 1, output_per_1m_tokens: 1, kind: spot}",
            "has no effect on a price per token; remove it",
        ),
        ("{per_hour: 1, kind: spots}", 'did you mean "spot"'),
        ("{per_hour: 1e3}", "an amount in dollars"),
        ("{per_hour: -1}", "an amount in dollars"),
        ("{per_hour: 0.0000000001}", "at most nine decimals"),
        ("{from: 2026-02-30, per_hour: 1}", "a day such as 2026-11-27"),
        ("{from: yesterday, per_hour: 1}", "a day such as 2026-11-27"),
        ("[{per_hour: 1}, {per_hour: 2}]", "a second price without a day; remove one"),
        ("[{from: 2026-01-01, per_hour: 1}, {from: 2026-01-01, per_hour: 2}]", "a second price from 2026-01-01"),
        ("[{from: 2026-01-02, per_hour: 1}, {from: 2026-01-01, per_hour: 2}]", "sort the prices by day"),
        ("[{form: 2026-01-02, per_hour: 1}]", 'did you mean "from"'),
    ],
)
def test_invalid_price_is_reported_with_next_step(price: str, said: str) -> None:
    assert said in problems_of(pool=f"prices: {price}")


def test_budget_is_hard_by_default() -> None:
    [tenant] = settings_of(pool=HOURLY, tenant="budgets: {day: 0.5, month: {usd: 2, kind: soft}}").policy.tenants

    assert tenant.budgets == (Budget(Period.DAY, 500_000_000), Budget(Period.MONTH, 2_000_000_000, hard=False))


@pytest.mark.parametrize(
    ("budgets", "said"),
    [
        ("{day: 0}", "must be at least 0.000000001"),
        ("{day: {kind: soft}}", "usd: missing; set the budget"),
        ("{day: {usd: 1, kind: softly}}", 'did you mean "soft"'),
        ("{week: 1}", "unknown key"),
        ("{day: 1_000_000_001}", "must be at most 1000000000"),
        ("{day: 2000000000}", "an amount in dollars"),
    ],
)
def test_invalid_budget_is_reported_with_next_step(budgets: str, said: str) -> None:
    assert said in problems_of(pool=HOURLY, tenant=f"budgets: {budgets}")


def test_budget_without_prices_causes_a_warning() -> None:
    assert "no pool has a price" in settings_of(tenant="budgets: {day: 1}").warnings[0]
    assert (
        "no pool has a price"
        in settings_of(classes="batch: {accepts_unclassified: true, budgets: {day: 1}}").warnings[0]
    )


def test_budget_without_ledger_causes_a_warning() -> None:
    [warning] = settings_of(pool=HOURLY, tenant="budgets: {day: 1}", rest="").warnings

    assert "start again from zero" in warning


def test_budget_above_parent_budget_causes_a_warning() -> None:
    settings = settings_of(pool=HOURLY, tenant="budgets: {day: 1}}, t/part: {budgets: {day: 2}")
    [warning] = [each for each in settings.warnings if "of its parent" in each]

    assert 'is more than the 1 of its parent "t"' in warning


def test_daily_budget_above_monthly_budget_causes_a_warning() -> None:
    [warning] = settings_of(pool=HOURLY, tenant="budgets: {day: 2, month: 1}").warnings

    assert "is more than the monthly budget of 1" in warning


def test_class_optimized_for_cost_may_have_cost_limits() -> None:
    settings = settings_of(
        pool=HOURLY, classes="batch: {accepts_unclassified: true, cost_per_request_max: 0.01, cost_per_unit_max: 2}"
    )

    assert (settings.policy.classes[0].cost_per_request_max, settings.policy.classes[0].cost_per_unit_max) == (
        10**7,
        2 * 10**9,
    )
    assert settings.policy.unit_key == "conversation"
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("pool", "classes", "rest", "said"),
    [
        (HOURLY, "long: {cost_per_request_max: 1}", LEDGER, "set optimize_for: cost, or remove it"),
        ("", "batch: {cost_per_request_max: 1}", LEDGER, 'pool "small" has no price'),
        (HOURLY, "batch: {cost_per_unit_max: 1}", "", "needs ledger.unit_key"),
    ],
)
def test_unenforceable_cost_limit_is_reported(pool: str, classes: str, rest: str, said: str) -> None:
    assert said in problems_of(pool=pool, classes=classes, rest=rest)


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        ("ledger: {retention: 3d}", "spool_directory: missing; set a persistent directory"),
        ("ledger: spool", "start it with /"),
        ("ledger: {spool_directory: /s, unit_key: conversation}", "is not in ledger.metadata_keys; add it there"),
        ("ledger: {spool_directory: /s, metadata_keys: [a, a]}", "listed twice"),
        ("ledger: {spool_directory: /s, metadata_keys: [a b]}", "must have 1 to 64 characters"),
        (f"ledger: {{spool_directory: /s, metadata_keys: {[f'k{n}' for n in range(17)]}}}", "more than 16 keys"),
        ("ledger: {spool_directory: /s, roll_up: hour}", 'did you mean "hourly"'),
        ("ledger: {spool_directory: /s, idle_cost: share}", 'did you mean "shared"'),
        ("ledger: {spool_directory: /s, on_disk_failure: rejected}", 'did you mean "reject"'),
        ("ledger: {spool_directory: /s, spool_bytes_max: 2KiB}", "must be at least 16MiB"),
        ("ledger: {spool_directory: /s, retention: 0d}", "must be at least 1d"),
        ("ledger: {spool_directory: /s, retention: 90}", "such as 90d"),
    ],
)
def test_invalid_ledger_setting_is_reported_with_next_step(ledger: str, said: str) -> None:
    rest = f"key_secret: a secret of more than sixteen letters\ndatabase: postgresql://db/headgate\n{ledger}"

    assert said in problems_of(rest=rest)


def test_ledger_requires_a_database() -> None:
    assert "needs a PostgreSQL database" in problems_of(rest="ledger: /var/spool/headgate")


def test_webhook_is_shown_by_host_only() -> None:
    notices = settings_of(
        tenant="budgets: {day: 1}", pool=HOURLY, rest="notifications: https://h:99/a/${HOOK}"
    ).notifications

    assert notices is not None
    assert (notices.webhook, notices.webhook_shown) == ("https://h:99/a/geheim", "https://h:99/***")
    assert "geheim" not in repr(notices)


@pytest.mark.parametrize("url", ["ftp://h/geheim", "https:///geheim", "https://h:port/geheim", "geheim"])
def test_invalid_webhook_is_reported_without_quoting_it(url: str) -> None:
    problems = problems_of(rest=f"notifications: '{url}'")

    assert "write it as https://HOST/PATH" in problems
    assert "geheim" not in problems


def test_notifications_without_budgets_cause_a_warning() -> None:
    assert "has no effect without budgets" in settings_of(rest="notifications: https://h/x").warnings[0]


def test_money_settings_change_the_hash() -> None:
    hashes = {
        settings_of(pool=HOURLY).hash,
        settings_of(pool="prices: {per_hour: 2.6}").hash,
        settings_of(pool=HOURLY, tenant="budgets: {day: 1}").hash,
        settings_of(pool=HOURLY, tenant="budgets: {day: {usd: 1, kind: soft}}").hash,
        settings_of(pool=HOURLY, rest=LEDGER.replace("/var/spool", "/srv")).hash,
        settings_of(pool=HOURLY, rest=LEDGER + "notifications: https://h/one").hash,
        settings_of(pool=HOURLY, rest=LEDGER + "notifications: https://h/two").hash,
    }

    assert len(hashes) == 7


def test_spool_directory_does_not_change_the_hash_in_a_cell() -> None:
    rest = LEDGER + "cell: {store: 'redis://cache', member_count: 2}"

    assert settings_of(rest=rest).hash == settings_of(rest=rest.replace("/var/spool", "/srv")).hash


def test_summary_shows_money_settings_without_secrets() -> None:
    settings = settings_of(
        pool="prices: [{per_hour: 2.5}, {from: 2026-01-01, input_per_1m_tokens: 0.15, output_per_1m_tokens: 0.6}]",
        tenant="budgets: {day: 1}",
        classes="batch: {accepts_unclassified: true, cost_per_request_max: 0.01, cost_per_unit_max: 2, "
        "budgets: {month: {usd: 9, kind: soft}}}",
        rest=LEDGER + "notifications: https://h/${HOOK}",
    )

    told = "\n".join(summary_lines(settings))

    assert "price $2.5 per endpoint hour (on_demand), price $0.15 / $0.15 / $0.6 per million" in told
    assert "from 2026-01-01" in told
    assert "$9 per month, then degraded, at most $0.01 per request, at most $2 per unit" in told
    assert "1 tenant, 1 with budgets" in told
    assert "kept for 90 days, with metadata conversation, units by conversation; up to 1GiB of rows wait in" in told
    assert "budget notifications go to https://h/***" in told
    assert "geheim" not in told + str(summary_data(settings))
