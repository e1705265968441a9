"""Tables, CSV and errors from `headgate cost`."""

import argparse
import asyncio
import csv
import io
import json
import os
import socket
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.input.admin_request import AdminRequestFailed, call_admin_api
from headgate.cli.main import main
from headgate.cli.output import cost_csv, cost_tables
from headgate.cli.output.cost_tables import Money, count_text, engine_time_text
from headgate.ledger.reports import postgres_reports
from headgate.model.money import BillCause, NanoUsd
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop, gateway_process
from testing.midnight import wait_past_midnight
from testing.postgres import postgres
from tests.ledger.databases import migrated
from tests.ledger.ledgers import USD, endpoint_time, usage, written
from tests.ledger.test_gateway import config_with

MINUTE_US = 60_000_000


def test_amounts_are_shown_with_significant_digits_only() -> None:
    assert Money([2_345 * USD])(2_345_678_900_000) == "2,345.68"
    assert Money([3 * USD])(1_234_567_890) == "1.2346"
    assert Money([5])(1_500) == "0.000002"
    assert Money([USD])(-5_000_000, signed=True) == "-0.0050"
    assert Money([USD])(1, signed=True) == "0.0000"
    assert Money([1_000 * USD])(None) == "-"


def test_large_counts_and_durations_are_abbreviated() -> None:
    assert [count_text(each) for each in (999, 123_456, 1_234_567, 45_678_901, 98_765_432_101)] == [
        "999",
        "123,456",
        "1,235K",
        "45.7M",
        "98.8B",
    ]
    assert [engine_time_text(each) for each in (1_500, 12_340_000, 250_000_000, 90_000 * 10**6)] == [
        "0.00s",
        "12.34s",
        "250s",
        "25.0h",
    ]


def line(name: str, cost: int = 123_456_789_012_345, **more: Any) -> dict[str, Any]:
    given = {
        **dict.fromkeys(("requests", "unsent", "attempts"), 123_456_789),
        **dict.fromkeys(("tokens_in", "tokens_cached", "tokens_out"), 98_765_432_109),
        "engine_us": 10**15,
        **{f"{each}_nano_usd": cost // 5 for each in ("input", "output", "overhead", "retries", "idle", "charged")},
        "cost_nano_usd": cost,
        "request_nano_usd": 12_345_678,
        "thousand_tokens_nano_usd": 1_234_567,
        "share": 1.0,
    }
    return {"name": name, **given, **more}


def a_report(**more: Any) -> dict[str, Any]:
    lines = [line("a-very-long-organisation/with-a-very-long-project/and-a-long-key" * 2), line("b\x1b[31m")]
    given = {
        "by": "tenant",
        "since": 0,
        "until": 86_400 * USD,
        "lines": lines,
        "lines_omitted": 3,
        "resolution": "day",
        "total": line(""),
    }
    return {**given, "account": None, "accounts": {}, **more}


def test_widest_table_fits_terminal_and_escapes_names() -> None:
    shown = cost_tables.lines("report", a_report())

    assert max(len(each) for each in shown) <= 120
    assert "\x1b" not in "".join(shown)
    assert "(3 cheaper rows omitted; raise --limit)" in shown


LONG = "a-very-long-organisation/with-a-very-long-project-below-it/and-a-key-with-an-even-longer-name"


def a_statement() -> dict[str, Any]:
    counts = dict.fromkeys(("requests", "tokens_in", "tokens_cached", "tokens_out"), 123_456_789)
    usual = {"kind": "usage", "path": LONG, "model": "m" * 90, "service_class": "c" * 60, **counts}
    lines = [{**usual, "charged_nano_usd": 10**15}, {**usual, "kind": "idle", "model": "p" * 90, "charged_nano_usd": 5}]
    return {"data": [{"tenant": LONG, "month": "2026-11", "complete": True, "lines": lines,
                      "charged_nano_usd": 10**15 + 5}]}  # fmt: skip


def a_forecast() -> dict[str, Any]:
    amounts = {f"{each}_nano_usd": 123_456 * USD for each in ("spent", "expected", "low", "high", "budget_expected")}
    usual = {**amounts, "method": "weekday", "error": 0.123, "budget_nano_usd": 99_999 * USD, "hard": True}
    forecasts = [{**usual, "name": name, "kind": kind} for kind, name in (("charged", "all tenants"), ("tenant", LONG))]
    return {"month": "2026-11", "days_known": 3, "certainty_percent": 80, "forecasts": forecasts}


def a_drift() -> dict[str, Any]:
    part = {"cause": "mix", "change_nano_usd": 10**12, "percent": 12.0, "kind": "tenant", "name": LONG,
            "name_change_nano_usd": 10**12}  # fmt: skip
    said = f"cost rose 100%: 60 from longer outputs for tenant {LONG}, 40 from retries for pool {LONG}"
    return {"day": "2026-11-15", "until": 3_600 * USD, "days_before": 7, "before_nano_usd": 10**15, "parts": [part] * 3,
            "today_nano_usd": 2 * 10**15, "change_nano_usd": 10**15, "percent": 100.0, "sentence": said}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "answer"), [("statement", a_statement()), ("forecast", a_forecast()), ("drift", a_drift())]
)
def test_tables_fit_terminal_with_long_names(name: str, answer: dict[str, Any]) -> None:
    shown = cost_tables.lines(name, answer)

    assert max(len(each) for each in shown) <= 120
    assert len(shown) > 4


def test_budget_is_compared_with_cost_that_counts_towards_it() -> None:
    answer = a_forecast()
    answer["forecasts"][0] |= {"budget_expected_nano_usd": 50 * USD, "budget_nano_usd": 100 * USD}
    [first] = [each for each in cost_tables.lines("forecast", answer) if "all tenants" in each]

    assert first.endswith("50%")
    assert any("does not count toward budgets" in each for each in cost_tables.lines("forecast", answer))
    assert not any("does not count toward budgets" in each for each in cost_tables.lines("forecast", a_forecast()))


def test_shared_idle_time_is_explained() -> None:
    said = "shared by current weight"

    assert said in cost_tables.lines("statement", a_statement())[-1]
    assert any(said in each for each in cost_tables.lines("report", a_report()))
    assert not any(said in each for each in cost_tables.lines("report", a_report(total=line("", idle_nano_usd=0))))
    by_model = a_report(by="model", lines=[line(postgres_reports.IDLE_LINE), line("chat")], lines_omitted=0)
    assert sum(each.startswith(postgres_reports.IDLE_LINE) for each in cost_tables.lines("report", by_model)) == 1


def test_csv_has_a_line_for_omitted_rows() -> None:
    total = line("", cost=300)
    report = a_report(lines=[line("a", cost=100), line("b", cost=50)], total=total)
    rows = list(csv.DictReader(cost_csv.lines("report", report)))

    assert [row["name"] for row in rows] == ["a", "b", "(3 more)", "total"]
    assert sum(Decimal(row["cost_usd"]) for row in rows[:-1]) == Decimal(rows[-1]["cost_usd"]) == Decimal("3e-7")


def test_csv_escapes_spreadsheet_formulas() -> None:
    report = a_report(lines=[line('=cmd|"/c calc"!A1')], lines_omitted=0)

    assert next(csv.DictReader(cost_csv.lines("report", report)))["name"].startswith("'=")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["statement", "--by", "model"], "--by has no effect here"),
        (["drift", "--month", "2026-11"], "or use it with: statement"),
        (["--request", "r", "--limit", "3"], "--limit has no effect here"),
    ],
)
def test_option_without_effect_is_rejected(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", *arguments, "--url", "127.0.0.1:9"]) == 1
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--since", "yesterday"], "2026-11-15T09:30, 7d or 24h"),
        (["drift", "--day", "2026-02-30"], "use the form 2026-11-15"),
        (["statement", "--month", "November"], "use the form 2026-11"),
        (["--by", "colour"], "invalid choice"),
        (["--since", "800000d"], "2026-11-15T09:30, 7d or 24h"),
        (["--since", "99999d"], "from 2000 to 2099"),
        (["--since", "1999-01-01"], "from 2000 to 2099"),
        (["statement", "--month", "1999-01"], "from 2000 to 2099"),
        (["--tenant", "bad name"], "one to three names separated by /"),
        (["--limit", "5000"], "from 1 to 1000"),
        (["--request", "it's"], "x-request-id"),
    ],
)
def test_invalid_time_is_reported_with_an_example(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["cost", *arguments])
    assert left.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["tenants", "create", "a b"], "one to three names separated by /"),
        (["tenants", "list", "--limit", "0"], "from 1 to 1000"),
        (["budgets", "set", "acme", "day", "$5"], "such as 100 or 2.5"),
        (["budgets", "set", "ac me", "day", "5"], "one to three names"),
        (["keys", "create", "acme"], "ORGANISATION/PROJECT/KEY"),
    ],
)
def test_invalid_argument_is_reported(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert hint in said
    assert "[A-Za-z0-9]" not in said


@pytest.mark.process
def test_closed_output_causes_no_error() -> None:
    """As when piped into `head`: neither Headgate nor Python prints an error."""
    command = [sys.executable, "-m", "headgate.cli.main", "keys", "secret"]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nobody:
        ended = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (141, "")


def test_slow_gateway_is_reported_as_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "hg-reader")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = argparse.Namespace(url=f"http://127.0.0.1:{silent.getsockname()[1]}", config=Path("none"))
        with pytest.raises(AdminRequestFailed, match=r"did not respond within 0 s; check its log"):
            call_admin_api(asked, "cost/report", {}, response_timeout_s=0.05)


def test_json_and_csv_are_mutually_exclusive(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--json", "--csv"]) == 2
    assert "choose one" in capsys.readouterr().err


@pytest.mark.parametrize("key", [None, "hg-reader"])
async def test_gateway_without_database_is_reported_with_the_settings_to_add(key: str | None, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        status, out, err = await asyncio.to_thread(_cost, tmp_path, key=key)

    needed = "cost reports need `database` and `ledger` in the gateway's configuration"
    assert (status, out) == (1, "")
    assert err == f"headgate: {needed}; see {gateway.admin_url}/docs/concepts/cost\n"


@pytest.mark.process
async def test_cost_is_read_from_a_running_gateway(tmp_path: Path) -> None:
    wait_past_midnight()
    with postgres(options=("fsync=off",)) as server:
        url = await migrated(server.url)
        today = datetime.now(UTC).date().isoformat()
        large = {"model": "chat-large", "pool": "large", "tenant": "beta"}
        rows = [
            usage(f"{today}T00:00", "req_1", metadata=(("conversation", "c1"),)),
            usage(f"{today}T00:00", "req_2", cause=BillCause.RETRY, reserved_nano_usd=NanoUsd(0)),
            usage(f"{today}T00:00", "req_2", attempt=2),
            usage(f"{today}T00:00", "req_3", output=5 * USD, **large),
        ]
        idle = endpoint_time(f"{today}T00:01", total_us=MINUTE_US, idle_us=MINUTE_US, pool="large")  # not yesterday
        await written(url, tmp_path, rows, [idle])
        config = config_with("http://127.0.0.1:9", url)
        (tmp_path / "headgate.yaml").write_text(json.dumps(config))
        await asyncio.to_thread(_cost_from_a_running_gateway, tmp_path, config)


def _cost(folder: Path, *arguments: str, key: str | None = "hg-reader") -> tuple[int, str, str]:
    """Runs the verb in this process, because it is called often."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.delenv("HEADGATE_ADMIN_KEY", raising=False)
        if key is not None:
            patch.setenv("HEADGATE_ADMIN_KEY", key)
        status = main(["cost", *arguments, "--config", str(folder / "headgate.yaml")])
    return status, out.getvalue(), err.getvalue()


def _cost_from_a_running_gateway(folder: Path, config: Any) -> None:
    def done(*arguments: str) -> str:
        status, out, err = _cost(folder, *arguments)
        assert status == 0, err
        assert max(len(each) for each in out.splitlines()) <= 120 or {"--json", "--csv"} & {*arguments}
        return out

    def refused(*arguments: str, key: str | None = "hg-reader") -> str:
        status, out, err = _cost(folder, *arguments, key=key)
        assert status == 1, out
        return err

    assert "no gateway is responding" in refused()
    with gateway_process(config, folder):
        assert "HEADGATE_ADMIN_KEY" in refused(key=None)
        assert "missing or unknown operator key" in refused(key="hg-filed")
        assert "nothing is recorded" in refused("--since", "2020-01-01", "--until", "2020-02-01")
        assert "rows are kept" in refused(
            "--by", "unit", "--unit-key", "x", "--since", "2020-01-01", "--until", "2020-01-09"
        )
        assert "the limit for units and partial days is 31" in refused(
            "--by", "unit", "--unit-key", "x", "--since", "2020-01-01"
        )
        assert "ledger.unit" in refused("--by", "unit")
        assert "is not recorded" in refused("--request", "req_none")
        for by in ("tenant", "model", "class", "pool", "day"):
            shown = done("--by", by)
            assert "5.000" in shown
            assert "unexplained" in shown
        assert "c1" in done("--by", "unit", "--unit-key", "conversation")
        assert json.loads(done("--json"))["total"]["cost_nano_usd"] == 5 * USD + 3_200
        request = done("--request", "req_2")
        assert "retries 0.000001000 = 0.000002000 $" in request
        assert "reserved at admission: 0.000005000 $" in request
        lines = list(csv.DictReader(done("statement", "--csv", "--tenant", "acme").splitlines()))
        assert [(row["line"], Decimal(row["charged_usd"])) for row in lines] == [
            ("usage", Decimal("0.000002")),
            ("total", Decimal("0.000002")),
        ]
        assert "month to date" in done("statement")
        assert "charged to all tenants" in done("forecast")
        assert "try again tomorrow" in refused("drift")
