"""Output and errors of `headgate tune`."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Headgate
from tests.planning.builders import CHAT

FAST = ("--window", "10s", "--settings", "pools.main.*flight*")
LIMITED = CHAT.replace("in_flight_max: 2", "in_flight_max: 1").replace("rate: 12", "rate: 4")


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    (tmp_path / "chat.yaml").write_text(LIMITED)
    return "chat.yaml"


def test_tune_finds_a_limit_that_is_too_low(headgate: Headgate, scenario: str) -> None:
    said = headgate("tune", scenario, *FAST)

    assert (said.code, said.err) == (0, "")
    for part in (
        "A chat\n1 setting changed; first: pools.main.in_flight_max: 1 -> 2",
        "6 seeds confirm each change; the busiest 10 s of 30 s",
        "Suggestions, best first",
        "Step 1: pools.main.in_flight_max: 1 -> 2",
        "All changes together",
        "- pools.main.in_flight_max: 1\n+ pools.main.in_flight_max: 2",
    ):
        assert part in said.out


def test_json_and_page_have_the_same_result(headgate: Headgate, scenario: str, tmp_path: Path) -> None:
    said = headgate("tune", scenario, *FAST, "--rank", "--json", "--html", "tune.html")
    result, page = json.loads(said.out), (tmp_path / "tune.html").read_text()
    first = result["suggestions"][0]

    assert said.err == "wrote tune.html\n"
    assert (first["path"], first["before"], first["after"]) == ("pools.main.in_flight_max", "1", "2")
    assert first["evidence"]["shortfall_change"]["high"] < 0
    assert first["evidence"]["classes"]["interactive"]["after"] > first["evidence"]["classes"]["interactive"]["before"]
    assert (result["changes"], result["steps"][0]["change"]) == ([], None)
    assert "first: pools.main.in_flight_max: 1 -&gt; 2" in page


def test_exit_status_tells_that_an_objective_is_missed(headgate: Headgate, scenario: str) -> None:
    said = headgate("tune", scenario, *FAST, "--rank")

    assert said.code == 1
    assert "interactive misses its objective without a change" in said.out


def test_budget_that_is_too_small_is_reported(headgate: Headgate, scenario: str) -> None:
    said = headgate("tune", scenario, *FAST, "--budget", "10")

    assert said.code == 1
    assert "no better setting found within the budget" in said.out
    assert "no further change" not in said.out
    assert "raise --budget, or choose some with --settings" in said.out.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("objectives: {interactive: 97%}\n", "", "the scenario has no objectives"),
        ("title: A chat\n", "scheduler: round-robin\n", "scheduler round-robin has no settings to tune"),
        ("duration: 30s\n", "duration: 30s\nfaults: [{crash: main, at: 1s, recover_after: 1s}]\n", "omit --window"),
    ],
)
def test_scenario_that_cannot_be_tuned_is_an_error(
    headgate: Headgate, tmp_path: Path, old: str, new: str, problem: str
) -> None:
    (tmp_path / "a.yaml").write_text(LIMITED.replace(old, new))
    said = headgate("tune", "a.yaml", *FAST)

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("headgate tune: ")
    assert problem in said.err


def test_pattern_without_settings_is_an_error(headgate: Headgate, scenario: str) -> None:
    said = headgate("tune", scenario, "--settings", "pool.*")

    assert (said.code, said.out) == (2, "")
    assert said.err == 'headgate tune: no setting matches "pool.*"; use a pattern such as "classes.*"\n'


def test_invalid_scenario_is_an_error(headgate: Headgate, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(LIMITED.replace("tiny", "tinny"))
    said = headgate("tune", "a.yaml", *FAST)

    assert (said.code, said.out) == (2, "")
    assert 'did you mean "tiny"?' in said.err


def test_too_few_seeds_are_an_error(headgate: Headgate, scenario: str) -> None:
    said = headgate("tune", scenario, "--seeds", "3")

    assert said.code == 2
    assert "must be from 6 to 1000, not 3" in said.err
