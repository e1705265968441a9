"""Output of `headgate tune --live`."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import tune_live
from headgate.cli.input.admin_request import AdminRequestFailed
from tests.cli.conftest import Headgate

RUNNING: dict[str, Any] = {
    "setting": "headroom.kv_percent",
    "before": "95",
    "value": "80",
    "phase": "running",
    "result": "none",
    "reason": "started",
    "block": 0,
    "blocks": 40,
    "new_value_in_force": False,
    "seed": 7,
    "override": "ovr_1",
    "since": "2026-01-01T00:00:00Z",
    "expires": "2026-01-08T00:00:00Z",
    "effects": [
        {"subject": "promise", "name": "good requests of class chat", "low": 0.1, "estimate": 0.2, "high": 0.3},
        {"subject": "goodput", "name": "goodput", "low": -0.1, "estimate": 0.0, "high": 0.1},
        {"subject": "cost", "name": "good requests per dollar", "low": None, "estimate": None, "high": None},
    ],
}
for effect, groups in zip(RUNNING["effects"], (9, 9, 0), strict=True):
    effect["groups"] = groups
KEPT = RUNNING | {"phase": "kept", "result": "improved", "override": "ovr_2"}
DEFAULTS = {"share_percent": 50, "block_s": 30, "duration_s": 2_400, "keep_if": "better", "tolerance_percent": 1}


class Api:
    """Records calls of the admin API and returns one answer after the other. The last one is repeated."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, args: argparse.Namespace, path: str, body: dict[str, Any]) -> dict[str, Any]:
        del args
        self.calls.append((path, body))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def with_api(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any]) -> Api:
    api = Api(*answers)
    monkeypatch.setattr(tune_live, "call_admin_api", api)
    return api


def test_start_sends_the_setting(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    api = with_api(monkeypatch, RUNNING)
    options = ("--share", "25%", "--block", "1m", "--duration", "1h", "--keep-if", "harmless", "--tolerance", "2")
    said = headgate("tune", "--live", "--set", "headroom.kv_percent=80", *options)

    terms = {"share_percent": 25, "block_s": 60, "duration_s": 3_600, "keep_if": "harmless", "tolerance_percent": 2}
    assert api.calls == [("trials/start", {"setting": "headroom.kv_percent", "value": "80", **terms})]
    assert said.code == 0
    assert said.out.splitlines()[1].split()[:4] == ["headroom.kv_percent", "95", "80", "running"]


def test_first_suggestion_of_a_file_is_tried(
    headgate: Headgate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api = with_api(monkeypatch, RUNNING)
    file = tmp_path / "tune.json"
    first = {"path": "pools.main.in_flight_max", "before": "4", "after": "48", "improves": "promise"}
    file.write_text(json.dumps({"suggestions": [first, {"path": "other", "before": "1", "after": "2"}]}))

    assert headgate("tune", "--live", "--from", str(file)).code == 0
    assert api.calls == [("trials/start", {"setting": "pools.main.in_flight_max", "value": "48", **DEFAULTS})]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"suggestions": []}', "contains no suggestion"),
        ('{"suggestions": [{"path": "a", "after": null}]}', "removes a; use --set with a value"),
        ("{}", "is not the output of `headgate tune SCENARIO.yaml --json`"),
        ("[1]", "is not the output of"),
        ("text", "is not the output of"),
        (None, "cannot read"),
    ],
)
def test_file_without_a_suggestion_is_rejected(
    headgate: Headgate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None, said: str
) -> None:
    api = with_api(monkeypatch, RUNNING)
    file = tmp_path / "tune.json"
    if content is not None:
        file.write_text(content)
    found = headgate("tune", "--live", "--from", str(file))

    assert (found.code, api.calls) == (2, [])
    assert said in found.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--live needs --set SETTING=VALUE, --from FILE, status or abort"),
        (("--set", "headroom.kv_percent"), "--live needs --set SETTING=VALUE"),
        (("stop",), 'with --live, the argument can be status or abort, not "stop"'),
        (("--set", "a=1", "--share", "0%"), '"0%" is not a whole number from 5% to 50%'),
    ],
)
def test_invalid_arguments_are_explained(
    headgate: Headgate, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    api = with_api(monkeypatch, RUNNING)
    found = headgate("tune", "--live", *words)

    assert (found.code, api.calls) == (2, [])
    assert said in found.err


def test_status_shows_the_effects(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    with_api(monkeypatch, {"data": [KEPT]})
    said = headgate("tune", "--live", "status")
    rows = [" ".join(line.split()) for line in said.out.splitlines()]

    assert said.code == 0
    assert rows[-6:-2] == [
        "headroom.kv_percent: 80 compared with 95",
        "PROPERTY EFFECT INTERVAL GROUPS",
        "good requests of class chat +20.0 points +10.0 to +30.0 9",
        "goodput +0.0 % -10.0 to +10.0 9",
    ]
    assert rows[-1].endswith("reload it, and run `headgate operate end ovr_2`.")


def test_status_of_a_reverted_trial_has_exit_code_1(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    with_api(monkeypatch, {"data": [RUNNING | {"phase": "reverted"}]})

    assert headgate("tune", "--live", "status", "--json").code == 1


def test_status_without_trials_says_how_to_start_one(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    with_api(monkeypatch, {"data": []})
    said = headgate("tune", "--live", "status")

    assert said.code == 0
    assert "no setting trials; start one with `headgate tune --live --set …`" in said.out + said.err


def test_abort_shows_the_trial(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    api = with_api(monkeypatch, RUNNING | {"phase": "reverted", "result": "aborted"})

    assert headgate("tune", "--live", "abort").code == 0
    assert api.calls == [("trials/abort", {})]


@pytest.mark.parametrize(("ended", "code"), [(KEPT, 0), (KEPT | {"phase": "reverted"}, 1)])
def test_wait_returns_the_result(
    headgate: Headgate, monkeypatch: pytest.MonkeyPatch, ended: dict[str, Any], code: int
) -> None:
    api = with_api(monkeypatch, RUNNING, {"data": [ended]})

    assert headgate("tune", "--live", "--set", "headroom.kv_percent=80", "--wait").code == code
    assert [path for path, _ in api.calls] == ["trials/start", "trials/status"]


@pytest.mark.parametrize("others", [[], [KEPT | {"seed": 8}], [KEPT | {"setting": "headroom.long_lane_percent"}]])
def test_wait_does_not_take_a_lost_result_for_success(
    headgate: Headgate, monkeypatch: pytest.MonkeyPatch, others: list[dict[str, Any]]
) -> None:
    with_api(monkeypatch, RUNNING, {"data": others})
    said = headgate("tune", "--live", "--set", "headroom.kv_percent=80", "--wait")

    assert said.code == 1
    assert "its result is no longer stored; see the gateway's log" in said.err


def test_failure_is_reported(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: argparse.Namespace, path: str, body: dict[str, Any]) -> dict[str, Any]:
        del args, path, body
        raise AdminRequestFailed("a trial is running")

    monkeypatch.setattr(tune_live, "call_admin_api", fail)
    said = headgate("tune", "--live", "--set", "a=1")

    assert (said.code, "a trial is running" in said.err) == (1, True)
