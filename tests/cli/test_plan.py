"""Output and errors of `headgate plan`."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Headgate
from tests.planning.builders import CHAT

FAST = ("--traffic", "1,2", "--seeds", "1", "--window", "15s", "--headroom", "0")


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    (tmp_path / "chat.yaml").write_text(CHAT)
    return "chat.yaml"


def test_plan_names_the_fleet_its_cost_and_the_next_step(headgate: Headgate, scenario: str) -> None:
    said = headgate("plan", scenario, *FAST, "--growth", "10%")

    assert (said.code, said.err) == (0, "")
    for part in (
        "A chat\n2 endpoints in main hold the objectives with 0.0% headroom",
        "cost: $60.00 per day",
        "at 10.0% growth per month",
        "simulated runs with one seed, shortened to the busiest 15 s of 30 s",
        "main loses an endpoint",
        "Little's law",
        "    prices: {per_hour: 1.25}",
        "alert: HeadgateTrafficAbovePlan",
    ):
        assert part in said.out.replace("\n  ", " ") or part in said.out


def test_json_and_page_have_the_same_plan(headgate: Headgate, scenario: str, tmp_path: Path) -> None:
    said = headgate("plan", scenario, *FAST, "--json", "--html", "plan.html")
    plan, page = json.loads(said.out), (tmp_path / "plan.html").read_text()

    assert (said.code, said.err) == (0, "wrote plan.html\n")
    assert plan["endpoints"] == {"main": 2}
    assert plan["cost"]["per_day_nano_usd"] == 60 * 10**9
    assert [each["traffic"] for each in plan["curve"]] == [1.0, 2.0]
    assert plan["next_step"]["date"] is None
    assert "2 endpoints in main hold the objectives" in page
    assert page.count("<svg ") == 3


def test_scenario_without_objectives_is_an_error(headgate: Headgate, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CHAT.replace("objectives: {interactive: 97%}\n", ""))
    said = headgate("plan", "a.yaml")

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("headgate plan: the scenario has no objectives; set the share of good requests")


def test_unattainable_objective_is_a_problem_found(headgate: Headgate, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CHAT.replace("ttft: 1s", "ttft: 1ms"))
    said = headgate("plan", "a.yaml", *FAST, "--endpoints-max", "2")

    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("headgate plan: no plan: with 2 endpoints per pool")


def test_invalid_scenario_is_reported_with_its_line(headgate: Headgate, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CHAT.replace("interactive: 97%", "interactive: 197%"))

    assert headgate("plan", "a.yaml").err.startswith("a.yaml:7: objectives.interactive: ")


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--requests-per-day", "many", 'expected numbers such as 500k,10M,1B, not "many"'),
        ("--requests-per-day", "1M,10", "each number must be from 1k to 100B, not 1M,10"),
        ("--core-per-hour", "0", 'expected a number above 0 and below 10000, not "0"'),
        ("--cold-start", "2m,soon", 'expected a duration with its unit, such as 250ms, 10s, 5m or 1h, not "soon"'),
        ("--headroom", "much", 'expected a share such as 0.7 or 70%, not "much"'),
        ("--growth", "20000%", "must be from 0 to 100, not 20000%"),
        ("--traffic", "1,x", 'expected numbers such as 0.5,1,2, not "1,x"'),
        ("--traffic", "0", "each number must be more than 0 and at most 100, not 0"),
        ("--seeds", "0", "must be from 1 to 1000, not 0"),
        ("--window", "0s", "must be more than 0s, not 0s"),
    ],
)
def test_invalid_options_are_rejected(headgate: Headgate, scenario: str, option: str, value: str, problem: str) -> None:
    said = headgate("plan", scenario, option, value)

    assert said.code == 2
    assert said.err.splitlines()[-1] == f"headgate plan: error: argument {option}: {problem}"


def test_page_that_cannot_be_written_is_reported_before_the_run(headgate: Headgate, scenario: str) -> None:
    said = headgate("plan", scenario, "--html", "gone/plan.html")

    assert said.code == 2
    assert "directory gone does not exist" in said.err


def test_requests_per_day_are_planned_in_cells(headgate: Headgate, scenario: str) -> None:
    volumes = ("--requests-per-day", "1M,100k", "--cell-requests-per-s", "10")
    said = headgate("plan", scenario, *FAST[2:], *volumes, "--json")
    plan = json.loads(said.out)

    assert (said.code, said.err) == (0, "")
    assert [each["requests_per_day"] for each in plan["volumes"]] == [100_000, 1_000_000]
    assert [each["load"]["cells"] for each in plan["volumes"]] == [1, 2]


def test_report_of_requests_per_day_has_no_page(headgate: Headgate, scenario: str) -> None:
    said = headgate("plan", scenario, "--requests-per-day", "1M", "--html", "plan.html")

    assert (said.code, said.out) == (2, "")
    assert "--html has no effect with --requests-per-day; use --json" in said.err


@pytest.mark.parametrize(
    "option",
    [("--growth", "10%"), ("--traffic", "1,3"), ("--cold-start", "30s"), ("--processes", "2"), ("--no-alternatives",)],
)
def test_options_without_effect_on_requests_per_day_are_rejected(
    headgate: Headgate, scenario: str, option: tuple[str, ...]
) -> None:
    said = headgate("plan", scenario, "--requests-per-day", "1M", *option)

    assert (said.code, said.out) == (2, "")
    assert said.err == f"headgate plan: {option[0]} has no effect with --requests-per-day\n"


def test_maximum_of_endpoints_applies_to_requests_per_day(headgate: Headgate, scenario: str) -> None:
    said = headgate("plan", scenario, *FAST[2:], "--requests-per-day", "1M", "--endpoints-max", "1")

    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("headgate plan: no plan: with 1 endpoints per pool, class interactive on main misses")
