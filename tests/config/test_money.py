"""Are prices and budgets read to the billionth of a dollar, and refused where they could not be kept?"""

import pytest

from headgate.config.explain import as_data, explain
from headgate.config.load import parse
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from headgate.model.money import Budget, Period, Price, PriceKind
from headgate.model.units import SECOND

LEDGER = """
key_secret: a secret of more than sixteen letters
database: postgresql://db/headgate
ledger: {spool: /var/spool/headgate, metadata: [conversation], unit: conversation}
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


def test_one_price_may_stand_alone() -> None:
    assert settings_of(pool=HOURLY).policy.pools[0].prices == (Price(hour=2_500_000_000),)


def test_prices_hold_from_midnight_utc_of_their_day() -> None:
    settings = settings_of(pool="prices: [{per_hour: 2}, {from: 1970-01-02, per_hour: 1, kind: spot}]")

    assert settings.policy.pools[0].prices == (
        Price(hour=2_000_000_000),
        Price(86_400 * SECOND, hour=1_000_000_000, kind=PriceKind.SPOT),
    )


@pytest.mark.parametrize(("written", "nano_usd"), [("0.1", 100_000_000), ("0.000000001", 1), ("1_000", 10**12)])
def test_dollars_become_exactly_as_many_billionths(written: str, nano_usd: int) -> None:
    assert settings_of(pool=f"prices: {{per_hour: {written}}}").policy.pools[0].prices[0].hour == nano_usd


def test_cached_tokens_cost_what_others_do_where_nothing_is_said() -> None:
    [price] = settings_of(pool="prices: {input: 0.15, output: 0.6}").policy.pools[0].prices

    assert (price.input_tokens, price.cached_tokens, price.output_tokens) == (150_000_000, 150_000_000, 600_000_000)


@pytest.mark.parametrize(
    ("price", "said"),
    [
        ("{per_hour: 1, input: 2, output: 3}", "by the hour and by the token (input, output); keep one of the two"),
        ("{kind: spot}", "says no price; write per_hour"),
        ("{input: 1}", "output: missing; say what a million output tokens cost"),
        ("{input: 1, output: 1, kind: spot}", "this price is by the token; take it out"),
        ("{per_hour: 1, kind: spots}", 'did you mean "spot"'),
        ("{per_hour: 1e3}", "dollars as a plain number"),
        ("{per_hour: -1}", "dollars as a plain number"),
        ("{per_hour: 0.0000000001}", "at most nine decimals"),
        ("{from: 2026-02-30, per_hour: 1}", "a day such as 2026-11-27"),
        ("{from: yesterday, per_hour: 1}", "a day such as 2026-11-27"),
        ("[{per_hour: 1}, {per_hour: 2}]", "a second price without a day; keep one"),
        ("[{from: 2026-01-01, per_hour: 1}, {from: 2026-01-01, per_hour: 2}]", "a second price from 2026-01-01"),
        ("[{from: 2026-01-02, per_hour: 1}, {from: 2026-01-01, per_hour: 2}]", "in the order of their days"),
        ("[{form: 2026-01-02, per_hour: 1}]", 'did you mean "from"'),
    ],
)
def test_a_price_that_is_none_is_refused_with_the_next_step(price: str, said: str) -> None:
    assert said in problems_of(pool=f"prices: {price}")


def test_a_budget_is_hard_unless_it_says_otherwise() -> None:
    [tenant] = settings_of(pool=HOURLY, tenant="budgets: {day: 0.5, month: {usd: 2, kind: soft}}").policy.tenants

    assert tenant.budgets == (Budget(Period.DAY, 500_000_000), Budget(Period.MONTH, 2_000_000_000, hard=False))


@pytest.mark.parametrize(
    ("budgets", "said"),
    [
        ("{day: 0}", "must be at least 0.000000001"),
        ("{day: {kind: soft}}", "usd: missing; say how many dollars"),
        ("{day: {usd: 1, kind: softly}}", 'did you mean "soft"'),
        ("{week: 1}", "unknown key"),
        ("{day: 1_000_000_001}", "must be at most 1000000000"),
        ("{day: 2000000000}", "dollars as a plain number"),
    ],
)
def test_a_budget_that_is_none_is_refused_with_the_next_step(budgets: str, said: str) -> None:
    assert said in problems_of(pool=HOURLY, tenant=f"budgets: {budgets}")


def test_a_budget_that_nothing_is_ever_charged_to_is_warned_of() -> None:
    assert "no pool has a price" in settings_of(tenant="budgets: {day: 1}").warnings[0]
    assert "no pool has a price" in settings_of(classes="batch: {unnamed: true, budgets: {day: 1}}").warnings[0]


def test_a_budget_that_forgets_with_every_start_is_warned_of() -> None:
    [warning] = settings_of(pool=HOURLY, tenant="budgets: {day: 1}", rest="").warnings

    assert "begin at nothing spent with every start" in warning


def test_a_part_that_may_spend_more_than_the_whole_is_warned_of() -> None:
    settings = settings_of(pool=HOURLY, tenant="budgets: {day: 1}}, t/part: {budgets: {day: 2}")
    [warning] = [each for each in settings.warnings if "a part of" in each]

    assert 'is more than the 1 of tenant "t"' in warning


def test_a_day_that_may_cost_more_than_its_month_is_warned_of() -> None:
    [warning] = settings_of(pool=HOURLY, tenant="budgets: {day: 2, month: 1}").warnings

    assert "is more than the 1 of the month" in warning


def test_a_class_that_promises_cost_may_say_what_a_request_and_a_unit_cost() -> None:
    settings = settings_of(
        pool=HOURLY, classes="batch: {unnamed: true, max_cost_per_request: 0.01, max_cost_per_unit: 2}"
    )

    assert (settings.policy.classes[0].cost_max, settings.policy.classes[0].unit_cost_max) == (10**7, 2 * 10**9)
    assert settings.policy.unit == "conversation"
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("pool", "classes", "rest", "said"),
    [
        (HOURLY, "long: {max_cost_per_request: 1}", LEDGER, "set promise: cost, or take it out"),
        ("", "batch: {max_cost_per_request: 1}", LEDGER, 'pool "small" has no price'),
        (HOURLY, "batch: {max_cost_per_unit: 1}", "", "name it in ledger.unit"),
    ],
)
def test_a_highest_cost_that_cannot_be_kept_is_refused(pool: str, classes: str, rest: str, said: str) -> None:
    assert said in problems_of(pool=pool, classes=classes, rest=rest)


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        ("ledger: {retention: 3d}", "spool: missing; name a folder that outlives the process"),
        ("ledger: spool", "begin it with /"),
        ("ledger: {spool: /s, unit: conversation}", "add conversation to ledger.metadata"),
        ("ledger: {spool: /s, metadata: [a, a]}", "named twice"),
        ("ledger: {spool: /s, metadata: [a b]}", "a key is made of"),
        (f"ledger: {{spool: /s, metadata: {[f'k{n}' for n in range(17)]}}}", "more than 16 keys"),
        ("ledger: {spool: /s, idle: share}", 'did you mean "shared"'),
        ("ledger: {spool: /s, when_disk_fails: refused}", 'did you mean "refuse"'),
        ("ledger: {spool: /s, spool_max: 2KiB}", "must be at least 16MiB"),
        ("ledger: {spool: /s, retention: 0d}", "must be at least 1d"),
        ("ledger: {spool: /s, retention: 90}", "such as 90d"),
    ],
)
def test_a_ledger_that_could_not_be_kept_is_refused_with_the_next_step(ledger: str, said: str) -> None:
    rest = f"key_secret: a secret of more than sixteen letters\ndatabase: postgresql://db/headgate\n{ledger}"

    assert said in problems_of(rest=rest)


def test_a_ledger_needs_a_database() -> None:
    assert "name a PostgreSQL in database.url" in problems_of(rest="ledger: /var/spool/headgate")


def test_a_webhook_is_kept_whole_and_shown_by_its_host_alone() -> None:
    notices = settings_of(tenant="budgets: {day: 1}", pool=HOURLY, rest="notices: https://h:99/a/${HOOK}").notices

    assert notices is not None
    assert (notices.webhook, notices.webhook_shown) == ("https://h:99/a/geheim", "https://h:99/***")
    assert "geheim" not in repr(notices)


@pytest.mark.parametrize("url", ["ftp://h/geheim", "https:///geheim", "https://h:port/geheim", "geheim"])
def test_a_wrong_webhook_is_told_without_any_part_of_it(url: str) -> None:
    problems = problems_of(rest=f"notices: '{url}'")

    assert "write it as https://HOST/PATH" in problems
    assert "geheim" not in problems


def test_notices_without_any_budget_are_warned_of() -> None:
    assert "there is no budget" in settings_of(rest="notices: https://h/x").warnings[0]


def test_every_part_of_money_is_a_part_of_the_configurations_name() -> None:
    hashes = {
        settings_of(pool=HOURLY).hash,
        settings_of(pool="prices: {per_hour: 2.6}").hash,
        settings_of(pool=HOURLY, tenant="budgets: {day: 1}").hash,
        settings_of(pool=HOURLY, tenant="budgets: {day: {usd: 1, kind: soft}}").hash,
        settings_of(pool=HOURLY, rest=LEDGER.replace("/var/spool", "/srv")).hash,
        settings_of(pool=HOURLY, rest=LEDGER + "notices: https://h/one").hash,
        settings_of(pool=HOURLY, rest=LEDGER + "notices: https://h/two").hash,
    }

    assert len(hashes) == 7


def test_gateways_of_a_cell_may_have_spools_in_different_folders() -> None:
    rest = LEDGER + "cell: {store: 'redis://cache', members: 2}"

    assert settings_of(rest=rest).hash == settings_of(rest=rest.replace("/var/spool", "/srv")).hash


def test_the_explanation_tells_of_money_and_not_of_secrets() -> None:
    settings = settings_of(
        pool="prices: [{per_hour: 2.5}, {from: 2026-01-01, input: 0.15, output: 0.6}]",
        tenant="budgets: {day: 1}",
        classes="batch: {unnamed: true, max_cost_per_request: 0.01, max_cost_per_unit: 2, "
        "budgets: {month: {usd: 9, kind: soft}}}",
        rest=LEDGER + "notices: https://h/${HOOK}",
    )

    told = "\n".join(explain(settings))

    assert "costs $2.5 an hour of each endpoint (on_demand), costs $0.15 / $0.15 / $0.6 a million" in told
    assert "from 2026-01-01" in told
    assert "$9 a month and then gives up quality, $0.01 a request at most, $2 a unit at most" in told
    assert "1 tenant, 1 with budgets" in told
    assert "written down for 90 days, with metadata conversation, units by conversation; up to 1GiB wait in" in told
    assert "notices of budgets go to https://h/***" in told
    assert "geheim" not in told + str(as_data(settings))
