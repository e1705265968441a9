"""Cost reports agree with the rows in every dimension."""

import csv
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.output import cost_csv
from headgate.edge.admin.cost import cost_routes
from headgate.ledger.database import Database
from headgate.ledger.reports import queries as report_queries
from headgate.ledger.reports.postgres_reports import PostgresReports, ReportPolicy
from headgate.model.money import BillCause, NanoUsd, Price
from headgate.model.units import Instant
from headgate.ports.cost_reports import CostLine, CostReport, LedgerUnavailable, NothingFound, ReportFilter
from headgate.ports.ledger import UsageRow
from testing.ports import free_port
from tests.ledger.databases import ADMIN
from tests.ledger.ledgers import HOUR_US, USD, at, endpoint_time, reading, usage, written

BY_HOUR = {"small": (Price(per_hour=NanoUsd(2 * USD)),)}
NOVEMBER = ReportFilter(at("2026-11-01"), at("2026-12-01"))
PARTS = ("input_nano_usd", "output_nano_usd", "overhead_nano_usd", "retries_nano_usd", "idle_nano_usd")
SUMS = (*PARTS, "requests", "unsent", "attempts", "tokens_in", "tokens_out", "engine_us", "charged_nano_usd")


def some_rows() -> list[UsageRow]:
    """Three tenants, two models, a retry, a cancelled request, a rejected request and a correction."""
    web, app, beta = "acme/search/web", "acme/chat/app", "beta"
    failed = usage("2026-11-03T10:00", "r2", cause=BillCause.RETRY, endpoint="small-1", reserved_nano_usd=NanoUsd(0))
    large = {"model": "chat-large", "pool": "large", "service_class": "batch"}
    return [
        usage("2026-11-02T23:59", "r1", tenant=web, metadata=(("conversation", "c1"), ("feature", "find"))),
        failed,
        usage("2026-11-03T10:00", "r2", attempt=2, endpoint="small-2", metadata=(("conversation", "c1"),)),
        usage("2026-11-03T11:30", "r3", tenant=app, output=3_000, tokens_cached=20, **large),
        usage("2026-11-03T12:00", "r4", tenant=beta, cause=BillCause.CLIENT_DISCONNECTED, **large),
        usage("2026-11-03T12:30", "r5", tenant=beta, cause=None),
        usage(
            "2026-11-03T12:00",
            "r4",
            tenant=beta,
            cause=BillCause.CLIENT_DISCONNECTED,
            **{**large, "correction": 1, "tokens_in": -5, "tokens_out": 0, "reserved_nano_usd": NanoUsd(0)},
            input=-40,
            output=0,
            overhead=0,
        ),
    ]


async def report(
    reports: PostgresReports, rows: ReportFilter = NOVEMBER, *, by: str = "tenant", **asked: Any
) -> CostReport:
    return await reports.report(rows, **{"by": by, "key": "", "depth": 1, "limit": 50, **asked})


def costs(lines: Any) -> dict[str, int]:
    return {line.name: line.cost_nano_usd for line in lines}


def adds_up(told: CostReport) -> None:
    for line in (*told.lines, told.total):
        assert sum(getattr(line, part) for part in PARTS) == line.cost_nano_usd
    for name in SUMS:
        assert sum(getattr(line, name) for line in told.lines) == getattr(told.total, name), name


@pytest.mark.process
@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("tenant", {"acme": 6_200, "beta": 960}),
        ("model", {"chat": 3_000, "chat-large": 4_160}),
        ("class", {"interactive": 3_000, "batch": 4_160}),
        ("pool", {"small": 3_000, "large": 4_160, "": 0}),
        ("day", {"2026-11-02": 1_000, "2026-11-03": 6_160}),
    ],
)
async def test_lines_add_up_to_the_total_in_every_dimension(
    url: str, tmp_path: Path, by: str, expected: dict[str, int]
) -> None:
    await written(url, tmp_path, some_rows())
    async with reading(url) as reports:
        told = await report(reports, by=by)

    adds_up(told)
    assert costs(told.lines) == expected
    total = told.total
    assert (total.requests, total.unsent, total.attempts) == (4, 1, 5)
    assert (total.cost_nano_usd, total.retries_nano_usd, total.charged_nano_usd) == (7_160, 1_000, 6_160)
    assert (total.tokens_in, total.tokens_cached, total.tokens_out) == (195, 20, 160)
    assert total.request_nano_usd == 1_790
    assert sum(line.share for line in told.lines) == pytest.approx(1)


@pytest.mark.process
async def test_reports_for_parts_of_a_day_add_up_to_the_daily_report(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, some_rows())
    noon = at("2026-11-03T12:00")
    async with reading(url) as reports:
        whole = await report(reports, ReportFilter(at("2026-11-03"), at("2026-11-04")), by="model")
        before = await report(reports, ReportFilter(at("2026-11-03"), noon), by="model")
        after = await report(reports, ReportFilter(noon, at("2026-11-04")), by="model")

    for name in (*SUMS, "cost_nano_usd", "tokens_cached"):
        assert getattr(whole.total, name) == getattr(before.total, name) + getattr(after.total, name), name
    assert costs(before.lines) == {"chat": 2_000, "chat-large": 3_200}


@pytest.mark.process
async def test_filters_and_depth_select_the_lines(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, some_rows())
    acme = replace(NOVEMBER, tenant="acme")
    async with reading(url) as reports:
        projects = await report(reports, acme, depth=2)
        keys = await report(reports, acme, depth=3)
        batch = await report(reports, replace(acme, service_class="batch"), by="model")
        large = await report(reports, replace(NOVEMBER, model="chat-large"))
        first = await report(reports, by="tenant", depth=3, limit=1)

    assert costs(projects.lines) == {"acme/chat": 3_200, "acme/search": 3_000}
    assert costs(keys.lines) == {"acme/chat/app": 3_200, "acme/search/web": 3_000}
    assert costs(batch.lines) == {"chat-large": 3_200}
    assert costs(large.lines) == {"acme": 3_200, "beta": 960}
    assert projects.account is None, "endpoint costs do not belong to a single tenant"
    assert (costs(first.lines), first.lines_omitted) == ({"acme/chat/app": 3_200}, 2)
    assert first.total.cost_nano_usd == 7_160


@pytest.mark.process
async def test_business_units_are_grouped_by_metadata_key(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, some_rows())
    async with reading(url, lambda: ReportPolicy(unit="feature")) as reports:
        conversations = await report(reports, by="unit", key="conversation")
        features = await report(reports, by="unit", key="feature")

        by_default = await report(reports, by="unit", key="")
        assert costs(by_default.lines) == costs(features.lines)

    adds_up(conversations)
    assert costs(conversations.lines) == {"": 5_160, "c1": 2_000}
    assert costs(features.lines) == {"": 6_160, "find": 1_000}
    assert conversations.by == "conversation"


@pytest.mark.process
@pytest.mark.parametrize(
    "hostile", ["' or 1=1 --", "'; drop table headgate.usage_daily; --", "$1", "%", "a\\'b", "\u00e9"]
)
async def test_hostile_names_are_treated_as_plain_values(url: str, tmp_path: Path, hostile: str) -> None:
    await written(url, tmp_path, some_rows())
    async with reading(url) as reports:
        for rows in (
            replace(NOVEMBER, tenant=hostile),
            replace(NOVEMBER, model=hostile),
            replace(NOVEMBER, service_class=hostile),
        ):
            with pytest.raises(NothingFound):
                await report(reports, rows, by="model")
        told = await report(reports, by="unit", key=hostile)
        with pytest.raises(NothingFound):
            await reports.request(hostile, "", now=at("2026-11-04"))
        with pytest.raises(NothingFound):
            await reports.statements("2026-11", hostile, now=at("2026-11-04"))

    assert costs(told.lines) == {"": 7_160}


@pytest.mark.process
async def test_many_and_few_units_produce_the_same_report(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, some_rows())
    async with reading(url) as reports:
        few = await report(reports, by="unit", key="conversation")
    async with reading(url, units_few=0) as reports:
        many = await report(reports, by="unit", key="conversation")
        first = await report(reports, by="unit", key="conversation", limit=1)

    assert many == few
    assert (costs(first.lines), first.lines_omitted, first.total) == ({"": 5_160}, 1, few.total)


# Endpoint costs


@pytest.mark.process
async def test_monthly_account_shows_the_unexplained_cost(url: str, tmp_path: Path) -> None:
    times = [
        endpoint_time("2026-11-03T10:00", idle_us=HOUR_US // 2),
        endpoint_time("2026-11-03T11:00", starting_us=HOUR_US // 4, abort_lag_us=HOUR_US // 8, endpoint="small-1"),
        endpoint_time("2026-12-01", idle_us=HOUR_US),
        endpoint_time("2026-11-01", idle_us=HOUR_US),
    ]
    rows = [
        usage("2026-11-03T10:30", "r1", input=1 * USD, output=0, overhead=0),
        usage("2026-11-03T10:40", "r2", input=USD // 4, output=0, overhead=0, cause=BillCause.HEDGE),
        usage("2026-11-03T10:40", "r3", input=7 * USD, output=0, overhead=0, pool="hosted"),
    ]
    await written(url, tmp_path, rows, times)
    async with reading(url, lambda: ReportPolicy(BY_HOUR)) as reports:
        told = await report(reports, by="pool")
        hour = await report(reports, ReportFilter(at("2026-11-03T10:00"), at("2026-11-03T11:00")))
        minutes = await report(reports, ReportFilter(at("2026-11-03T10:01"), at("2026-11-03T11:00")))

    account = told.account
    assert account is not None
    # A row at midnight covers the day before, so one belongs to October and one to November.
    assert (account.paid_time_nano_usd, account.paid_tokens_nano_usd) == (6 * USD, 7 * USD)
    assert (account.attributed_nano_usd, account.waste_nano_usd) == (8 * USD, {"hedge": USD // 4})
    assert (account.idle_nano_usd, account.starting_nano_usd, account.late_nano_usd) == (3 * USD, USD // 2, USD // 4)
    assert account.unexplained_nano_usd == USD
    assert told.accounts.keys() == {"small", "hosted"}
    assert told.accounts["hosted"].unexplained_nano_usd == 0
    for part in (hour, minutes):
        assert part.account is not None
        assert part.account.paid_time_nano_usd == 2 * USD
        assert part.account.starting_nano_usd == USD // 2


@pytest.mark.process
async def test_fully_explained_day_has_no_unexplained_cost(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, [usage("2026-11-03T10:30", "r", input=USD, output=0, overhead=0)],
                  [endpoint_time("2026-11-03T11:00", idle_us=HOUR_US // 2)])  # fmt: skip
    async with reading(url, lambda: ReportPolicy(BY_HOUR)) as reports:
        told = await report(reports)

    assert told.account is not None
    assert (told.account.unexplained_nano_usd, told.account.unexplained_fraction) == (0, 0.0)


@pytest.mark.process
async def test_idle_time_is_shared_by_weight_among_all_tenants(url: str, tmp_path: Path) -> None:
    weights = {"small": {"acme": 300, "quiet": 100}}
    await written(url, tmp_path, some_rows(), [endpoint_time("2026-11-03T10:00", idle_us=HOUR_US)])
    async with reading(url, lambda: ReportPolicy(BY_HOUR, weights)) as reports:
        told = await report(reports)
        projects = await report(reports, replace(NOVEMBER, tenant="acme"), depth=2)
        month = await reports.statements("2026-11", "", now=at("2026-11-20"))
    async with reading(url) as reports:
        left_with_platform = await report(reports)

    adds_up(told)
    idle = {line.name: line.idle_nano_usd for line in told.lines}
    assert idle == {"acme": 3 * USD // 2, "quiet": USD // 2, "beta": 0}
    assert told.total.charged_nano_usd == 6_160 + 2 * USD
    assert {line.name: line.idle_nano_usd for line in projects.lines} == {
        "acme": 3 * USD // 2,
        "acme/chat": 0,
        "acme/search": 0,
    }
    assert {each.tenant: each.charged_nano_usd for each in month} == {
        "acme": 5_200 + 3 * USD // 2,
        "beta": 960,
        "quiet": USD // 2,
    }
    assert left_with_platform.total.idle_nano_usd == 0


@pytest.mark.process
async def test_shared_idle_time_is_included_in_every_total_without_a_class_or_model_filter(
    url: str, tmp_path: Path
) -> None:
    """Idle time is divided among the lines if possible. Otherwise it is a separate line."""
    weights = {"small": {"acme": 300, "quiet": 100}}
    times = [endpoint_time(f"2026-11-0{day}T10:00", idle_us=HOUR_US) for day in (3, 4)]
    await written(url, tmp_path, some_rows(), times)
    acme = replace(NOVEMBER, tenant="acme")
    async with reading(url, lambda: ReportPolicy(BY_HOUR, weights)) as reports:
        told = {by: await report(reports, by=by, key="x") for by in ("tenant", "pool", "day", "model", "class", "unit")}
        mine = {by: await report(reports, acme, by=by) for by in ("tenant", "pool", "day", "model", "class")}
        one = await report(reports, by="model", limit=1)
        dear = await report(reports, by="day", limit=2)
        batch = await report(reports, replace(NOVEMBER, service_class="batch"))
        with pytest.raises(NothingFound):
            await report(reports, replace(NOVEMBER, tenant="nobody"))

    for each in (*told.values(), *mine.values()):
        adds_up(each)
    assert {each.total.cost_nano_usd for each in told.values()} == {7_160 + 4 * USD}
    assert {each.total.charged_nano_usd for each in told.values()} == {6_160 + 4 * USD}
    assert {each.total.charged_nano_usd for each in mine.values()} == {5_200 + 3 * USD}
    idle = {
        by: {line.name: line.idle_nano_usd for line in each.lines if line.idle_nano_usd} for by, each in told.items()
    }
    assert idle["pool"] == {"small": 4 * USD}
    assert idle["day"] == {"2026-11-03": 2 * USD, "2026-11-04": 2 * USD}
    assert idle["model"] == idle["class"] == idle["unit"] == {"(idle)": 4 * USD}
    assert (costs(one.lines), one.lines_omitted) == ({"(idle)": 4 * USD}, 2)
    assert (costs(dear.lines), dear.lines_omitted) == ({"2026-11-03": 6_160 + 2 * USD, "2026-11-04": 2 * USD}, 1)
    assert batch.total.idle_nano_usd == 0


@pytest.mark.process
async def test_tenant_pays_no_idle_time_before_its_creation_or_first_usage(url: str, tmp_path: Path, link: Any) -> None:
    """A tenant with usage from before it was created was defined in the file then, so it pays from its first usage."""
    weights = {"small": {"acme": 100, "newcomer": 100, "moved": 100}}
    for name in ("newcomer", "moved"):
        await link.execute("insert into headgate.tenants (id, created_at, changed_version) values ($1, $2, 1)", name,
                           report_queries.to_datetime(at("2026-11-20")))  # fmt: skip
    times = [endpoint_time(f"2026-{day}T10:00", idle_us=HOUR_US) for day in ("10-10", "11-10", "11-21")]
    await written(url, tmp_path, [usage("2026-11-05T09:00", "r", tenant="moved/a/b")], times)
    async with reading(url, lambda: ReportPolicy(BY_HOUR, weights)) as reports:
        october = await reports.statements("2026-10", "", now=at("2026-11-25"))
        november = await reports.statements("2026-11", "", now=at("2026-11-25"))

    assert {each.tenant: each.charged_nano_usd for each in october} == {"acme": 2 * USD}
    assert {each.tenant: each.charged_nano_usd // 1_000_000 for each in november} == {
        "acme": 1_000 + 666,
        "moved": 1_000 + 666,
        "newcomer": 666,
    }


@pytest.mark.process
async def test_reports_do_not_depend_on_the_databases_date_style_or_time_zone(
    url: str, tmp_path: Path, link: Any
) -> None:
    name = await link.fetchval("select current_database()")
    await link.execute(f"alter database {name} set datestyle = 'German'")
    await link.execute(f"alter database {name} set timezone = 'Asia/Tokyo'")
    await written(url, tmp_path, some_rows(), [endpoint_time("2026-11-03T23:30", idle_us=HOUR_US // 2)])
    async with reading(url, lambda: ReportPolicy(BY_HOUR)) as reports:
        told = await report(reports, by="day")
        month = await reports.forecast("", now=at("2026-11-04"))

    assert costs(told.lines) == {"2026-11-02": 1_000, "2026-11-03": 6_160}
    assert told.account is not None
    assert told.account.paid_time_nano_usd == 2 * USD
    assert month.forecasts[0].spent_nano_usd == 2 * USD + 4_160


# One request


@pytest.mark.process
async def test_request_report_lists_the_attempts(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, some_rows())
    async with reading(url) as reports:
        told = await reports.request("r2", "", now=at("2026-11-05"))
        corrected = await reports.request("r4", "2026-11-03", now=at("2026-11-05"))
        unsent = await reports.request("r5", "", now=at("2026-11-05"))
        with pytest.raises(NothingFound, match=r"on 2026-11-02.*x-request-id"):
            await reports.request("r4", "2026-11-02", now=at("2026-11-05"))

    assert [(each.attempt, each.cause, each.payer, each.cost_nano_usd) for each in told.attempts] == [
        (1, "retry", "platform", 1_000),
        (2, "answer", "tenant", 1_000),
    ]
    assert (told.input_nano_usd, told.output_nano_usd, told.overhead_nano_usd) == (100, 800, 100)
    assert (told.retries_nano_usd, told.cost_nano_usd, told.charged_nano_usd) == (1_000, 2_000, 1_000)
    assert told.reserved_nano_usd == 5_000
    assert (corrected.cost_nano_usd, len(corrected.attempts)) == (960, 2)
    assert (unsent.outcome, unsent.cost_nano_usd) == ("rate_limited", 0)


# Statements


@pytest.mark.process
async def test_csv_statement_adds_up_to_the_last_digit(url: str, tmp_path: Path) -> None:
    odd = [
        usage(f"2026-11-{day:02}T08:00", f"q{day}", tenant=f"acme/p{day % 3}/k", output=333_333_333 + day, input=day)
        for day in range(1, 29)
    ]
    await written(url, tmp_path, [*some_rows(), *odd])
    async with reading(url) as reports:
        routes = cost_routes(reports, lambda: at("2026-12-02"))
        answer = await routes[b"/admin/v1/cost/statement"].handler(_asked(routes, "statement", month="2026-11"), ADMIN)
    rows = list(csv.DictReader(cost_csv.lines("statement", answer)))

    totals = {row["tenant"]: row for row in rows if row["line"] == "total"}
    assert totals.keys() == {"acme", "beta"}
    for tenant, total in totals.items():
        lines = [row for row in rows if row["tenant"] == tenant and row["line"] == "usage"]
        for column in ("input_usd", "output_usd", "overhead_usd", "charged_usd"):
            assert sum(Decimal(row[column]) for row in lines) == Decimal(total[column])
        for row in (*lines, total):
            parts = (Decimal(row[f"{part}_usd"]) for part in ("input", "output", "overhead"))
            assert sum(parts) == Decimal(row["charged_usd"])
    [whole] = [row for row in rows if row["line"] == "total of all"]
    assert Decimal(whole["charged_usd"]) == sum(Decimal(row["charged_usd"]) for row in totals.values())
    nano = 6_160 + sum(row.input_nano_usd + row.output_nano_usd + row.overhead_nano_usd for row in odd)
    assert Decimal(whole["charged_usd"]) == Decimal(nano) / USD
    assert answer["data"][0]["complete"] is True


@pytest.mark.process
async def test_default_range_is_the_month_or_the_day_for_units(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, some_rows())
    async with reading(url) as reports:
        routes = cost_routes(reports, lambda: Instant(at("2026-11-03T15:20") + 7))
        ask = routes[b"/admin/v1/cost/report"].handler
        month = await ask(_asked(routes, "report"), ADMIN)
        units = await ask(_asked(routes, "report", by="unit", key="conversation"), ADMIN)
        part = await ask(_asked(routes, "report", until="2026-11-03T11:45"), ADMIN)

    assert (month["since"], month["until"]) == (at("2026-11-01"), at("2026-11-04"))
    assert (units["since"], units["until"]) == (at("2026-11-03"), at("2026-11-04"))
    assert part["since"] == at("2026-11-01")


def _asked(routes: Any, name: str, **fields: Any) -> Any:
    return routes[f"/admin/v1/cost/{name}".encode()].body(**fields)


# Forecast


@pytest.mark.process
async def test_forecast_lists_tenants_with_their_budgets(url: str, tmp_path: Path) -> None:
    days = [date(2026, 10, 20) + timedelta(days=number) for number in range(26)]
    rows = [
        usage(f"{day}T12:00", f"{tenant[:1]}{day}", tenant=tenant, input=0, output=cost, overhead=0)
        for day in days
        for tenant, cost in (("acme/search/web", 3 * USD), ("beta", USD))
    ]
    times = [endpoint_time(f"{day}T13:00", idle_us=HOUR_US, total_us=4 * HOUR_US) for day in days]
    budgets = {"acme": (NanoUsd(60 * USD), True), "acme/search": (NanoUsd(100 * USD), False)}
    await written(url, tmp_path, rows, times)
    async with reading(url, lambda: ReportPolicy(BY_HOUR, None, budgets)) as reports:
        told = await reports.forecast("", now=at("2026-11-15"))
        acme = await reports.forecast("acme", now=at("2026-11-15"))

    found = {each.name: each for each in told.forecasts}
    assert [(each.kind, each.name) for each in told.forecasts] == [
        ("paid", "all endpoints"),
        ("charged", "all tenants"),
        ("tenant", "acme"),
        ("tenant", "acme/search"),
        ("tenant", "beta"),
    ]
    assert (found["acme"].spent_nano_usd, found["acme"].expected_nano_usd) == (42 * USD, 90 * USD)
    assert found["all tenants"].expected_nano_usd == 120 * USD
    assert found["all endpoints"].expected_nano_usd == 8 * 30 * USD
    assert (found["acme"].budget_nano_usd, found["acme"].hard) == (60 * USD, True)
    assert found["acme/search"].expected_nano_usd == 90 * USD
    assert (found["beta"].method, found["beta"].error, found["beta"].budget_nano_usd) == ("weekday", 0.0, None)
    assert [each.name for each in acme.forecasts] == ["acme", "acme/search"]


@pytest.mark.process
async def test_expected_charges_include_idle_time_but_expected_budget_use_does_not(url: str, tmp_path: Path) -> None:
    days = [date(2026, 11, 1) + timedelta(days=number) for number in range(14)]
    rows = [usage(f"{day}T12:00", f"r{day}", input=0, output=USD, overhead=0) for day in days]
    times = [endpoint_time(f"{day}T13:00", idle_us=HOUR_US // 2) for day in days]
    weights, budgets = {"small": {"acme": 1, "quiet": 1}}, {"acme": (NanoUsd(40 * USD), True)}
    await written(url, tmp_path, rows, times)
    async with reading(url, lambda: ReportPolicy(BY_HOUR, weights, budgets)) as reports:
        told = {each.name: each for each in (await reports.forecast("", now=at("2026-11-15"))).forecasts}
        [acme, *_] = (await reports.forecast("acme", now=at("2026-11-15"))).forecasts

    assert told["all endpoints"].expected_nano_usd == told["all tenants"].expected_nano_usd == 60 * USD
    assert told["acme"].expected_nano_usd == acme.expected_nano_usd == 45 * USD
    assert told["quiet"].expected_nano_usd == 15 * USD
    assert told["acme"].budget_expected_nano_usd == acme.budget_expected_nano_usd == 30 * USD


# Drift


def a_week(**today: Any) -> list[UsageRow]:
    """Seven days with two tenants, and 2026-11-15 with changes to the first tenant's requests."""
    rows = []
    for number in range(8):
        day = date(2026, 11, 8) + timedelta(days=number)
        for place in range(10):
            changed = today if number == 7 and place < 5 else {}
            tenant = {"tenant": "acme/search/web" if place < 5 else "beta"}
            rows.append(usage(f"{day}T09:{place:02}", f"r{number}-{place}", **{**tenant, **changed}))
    return rows


@pytest.mark.process
async def test_drift_identifies_the_cause_of_a_changed_day(url: str, tmp_path: Path) -> None:
    rows = a_week(tokens_out=120, output=2_400, output_us=2_400)
    await written(url, tmp_path, rows)
    async with reading(url) as reports:
        told = await reports.drift("2026-11-15", "", now=at("2026-11-16T08:00"))
        early = await reports.drift("", "", now=at("2026-11-15T12:00"))

    assert (told.before_nano_usd, told.today_nano_usd, told.days_before) == (10_000, 18_000, 7)
    assert sum(part.change_nano_usd for part in told.parts) == 8_000
    [part, *_] = told.parts
    assert (part.cause, part.kind, part.name) == ("tokens_out", "tenant", "acme")
    assert part.change_nano_usd >= 0.9 * 8_000
    assert told.sentence.startswith("cost rose 80%: 8")
    assert "from longer outputs for tenant acme" in told.sentence
    # Without endpoint times, half a day counts as half of that day's cost.
    assert early.before_nano_usd == 5_000


@pytest.mark.process
async def test_current_day_is_compared_up_to_the_same_hour(url: str, tmp_path: Path) -> None:
    """Endpoints are busy only from 9:00 to 10:00, so at 9:30 half of earlier days' cost counts."""
    rows = [row for row in a_week() if row.at < at("2026-11-15T09:05")]
    times = [
        endpoint_time(f"2026-11-{day:02}T{hour:02}:00", idle_us=0 if hour == 10 else HOUR_US, hour_nano_usd=NanoUsd(0))
        for day in range(8, 15)
        for hour in (9, 10, 11, 12)
    ]
    await written(url, tmp_path, rows, times)
    async with reading(url) as reports:
        told = await reports.drift("", "", now=at("2026-11-15T09:30"))

    assert (told.before_nano_usd, told.today_nano_usd) == (5_000, 5_000)


@pytest.mark.process
async def test_drift_identifies_the_pool_with_more_idle_time(url: str, tmp_path: Path) -> None:
    price = {"hour_nano_usd": NanoUsd(HOUR_US), "endpoint": "small-0"}
    times = [
        endpoint_time(f"2026-11-{day:02}T10:00", total_us=20_000 if day < 15 else 40_000,
                      idle_us=10_000 if day < 15 else 30_000, **price)
        for day in range(8, 16)
    ]  # fmt: skip
    await written(url, tmp_path, a_week(), times)
    async with reading(url) as reports:
        told = await reports.drift("2026-11-15", "", now=at("2026-11-16"))

    assert (told.before_nano_usd, told.today_nano_usd) == (20_000, 40_000)
    [part] = told.parts
    assert (part.cause, part.name, part.change_nano_usd) == ("idle", "small", 20_000)
    assert told.sentence == "cost rose 100%: 100 from idle endpoints for pool small"


@pytest.mark.process
async def test_change_to_an_hourly_price_leaves_nothing_unexplained(url: str, tmp_path: Path) -> None:
    price = {"hour_nano_usd": NanoUsd(10 * HOUR_US), "total_us": 1_000}
    await written(url, tmp_path, a_week(), [endpoint_time("2026-11-15T10:00", **price)])
    prices = {"small": (Price(input_per_1m_tokens=NanoUsd(1)), Price(at("2026-11-15"), per_hour=NanoUsd(10 * HOUR_US)))}
    async with reading(url, lambda: ReportPolicy(prices)) as reports:
        told = await report(reports, by="pool")
        change = await reports.drift("2026-11-15", "", now=at("2026-11-16"))

    account = told.accounts["small"]
    assert (account.paid_tokens_nano_usd, account.paid_time_nano_usd) == (70_000, 10_000)
    assert account.unexplained_nano_usd == 0
    assert (change.before_nano_usd, change.today_nano_usd, change.parts) == (10_000, 10_000, [])


# Errors


@pytest.mark.process
async def test_empty_ledger_error_suggests_the_next_step(url: str) -> None:
    now = at("2026-11-15")
    async with reading(url) as reports:
        for asked, hint in (
            (report(reports), "`ledger`"),
            (report(reports, replace(NOVEMBER, tenant="acme")), "omit --tenant"),
            (report(reports, by="unit", key="x"), "kept for 30 days"),
            (reports.request("r1", "", now=now), "x-request-id"),
            (reports.statements("2026-11", "acme", now=now), "another month"),
            (reports.forecast("", now=now), "`ledger`"),
            (reports.drift("", "", now=Instant(now + 1_000_000)), "try again tomorrow"),
            (reports.drift("2026-11-10", "", now=now), "a later day"),
            (reports.drift("2027-01-01", "", now=now), "in the future"),
        ):
            with pytest.raises(NothingFound, match=hint):
                await asked


@pytest.mark.process
async def test_unreachable_and_unmigrated_databases_raise_different_errors(empty_url: str) -> None:
    async with reading(f"postgresql://nobody:geheim@127.0.0.1:{free_port()}/none") as reports:
        with pytest.raises(LedgerUnavailable, match="connection failed") as away:
            await report(reports)
    assert "geheim" not in str(away.value)
    async with reading(empty_url) as reports:
        with pytest.raises(LedgerUnavailable, match="headgate ledger migrate"):
            await report(reports)


@pytest.mark.process
async def test_report_timeout_error_suggests_fewer_days(url: str, link: Any, tmp_path: Path) -> None:
    await written(url, tmp_path, some_rows())
    reports = PostgresReports(Database(url, query_s_max=0.3), ReportPolicy)
    async with link.transaction():
        await link.execute("lock table headgate.usage_daily, headgate.usage in access exclusive mode")
        with pytest.raises(LedgerUnavailable, match="choose fewer days"):
            await report(reports)
    await reports.stop()


def test_cost_line_has_no_cost_outside_its_parts() -> None:
    fields = {name for name in CostLine.__dataclass_fields__ if name.endswith("_nano_usd")}

    assert fields == {*PARTS, "cost_nano_usd", "charged_nano_usd", "request_nano_usd", "thousand_tokens_nano_usd"}


@pytest.mark.process
async def test_repeated_endpoint_time_rows_are_summed_once(url: str, tmp_path: Path, link: Any) -> None:
    rows = [endpoint_time("2026-11-03T10:00", idle_us=7), endpoint_time("2026-11-03T10:00", idle_us=7)]
    await written(url, tmp_path, [], rows)
    await written(url, tmp_path, [], rows[:1])
    found = await link.fetch("select hour at time zone 'UTC' as hour, total_us, idle_us from headgate.endpoint_hours")

    assert [(str(row["hour"]), row["total_us"], row["idle_us"]) for row in found] == [
        ("2026-11-03 09:00:00", HOUR_US, 7)
    ]
