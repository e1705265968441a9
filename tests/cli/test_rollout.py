"""Output of `headgate rollout`."""

import argparse
import json
from typing import Any

import pytest

from headgate.cli import rollout
from headgate.cli.input.admin_request import AdminRequestFailed
from tests.cli.conftest import Headgate

MEASURED = [
    {"name": "TPOT", "unit": "ratio", "low": 1.2, "estimate": 1.4, "high": 1.6, "limit": 1.1},
    {"name": "errors", "unit": "points", "low": -0.01, "estimate": 0.0, "high": 0.02, "limit": 0.01},
    {"name": "cost", "unit": "ratio", "low": 0.9, "estimate": 1.0, "high": 1.1, "limit": None},
    {"name": "TTFT", "unit": "ratio", "low": None, "estimate": None, "high": None, "limit": 1.1},
]
RUNNING: dict[str, Any] = {
    "model": "chat",
    "base": "stable",
    "candidate": "new",
    "phase": "running",
    "percent": 5,
    "since": "2026-01-01T00:00:00Z",
    "reason": "started",
    "looks": 3,
    "measurements": [],
}


class Api:
    """Records calls of the admin API and returns `answer`."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, args: argparse.Namespace, path: str, body: dict[str, Any]) -> dict[str, Any]:
        del args
        self.calls.append((path, body))
        return self.answer


def with_api(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> Api:
    api = Api(answer)
    monkeypatch.setattr(rollout, "call_admin_api", api)
    return api


def test_start_sends_the_routes_and_conditions(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    api = with_api(monkeypatch, RUNNING)
    said = headgate("rollout", "start", "chat", "--candidate", "new", "--step-time", "10m", "--tolerance", "5")

    body = {"model": "chat", "candidate": "new", "base": None, "step_s": 600, "tolerance_percent": 5}
    assert (said.code, api.calls) == (0, [("rollouts/start", body)])
    assert said.out.splitlines()[1].split() == ["chat", "stable", "new", "running", "5", RUNNING["since"], "started"]


@pytest.mark.parametrize("action", ["step", "abort"])
def test_step_and_abort_name_the_model(headgate: Headgate, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    api = with_api(monkeypatch, RUNNING)

    assert headgate("rollout", action, "chat").code == 0
    assert api.calls == [(f"rollouts/{action}", {"model": "chat"})]


def test_status_shows_the_comparison(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    with_api(monkeypatch, {"data": [RUNNING | {"measurements": MEASURED}]})
    said = headgate("rollout", "status")
    rows = [" ".join(line.split()) for line in said.out.splitlines()]

    assert said.code == 0
    assert rows[-6:] == [
        "chat: new compared with stable",
        "PROPERTY ESTIMATE INTERVAL LIMIT",
        "TPOT x 1.400 x 1.200 to x 1.600 x 1.100",
        "errors +0.00 points -1.00 points to +2.00 points +1.00 points",
        "cost x 1.000 x 0.900 to x 1.100 -",
        "TTFT too few samples - -",
    ]


def test_status_of_a_reverted_rollout_has_exit_code_1(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    with_api(monkeypatch, {"data": [RUNNING | {"phase": "reverted", "percent": 0}]})

    assert headgate("rollout", "status", "chat").code == 1


def test_status_without_rollouts_says_how_to_start_one(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    with_api(monkeypatch, {"data": []})
    said = headgate("rollout", "status")

    assert said.code == 0
    assert "no rollouts; start one with `headgate rollout start`" in said.out + said.err


def test_json_is_the_response(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    with_api(monkeypatch, RUNNING)

    assert json.loads(headgate("rollout", "step", "chat", "--json").out) == RUNNING


def test_failure_is_reported(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: argparse.Namespace, path: str, body: dict[str, Any]) -> dict[str, Any]:
        del args, path, body
        raise AdminRequestFailed('no rollout of "chat"')

    monkeypatch.setattr(rollout, "call_admin_api", fail)
    said = headgate("rollout", "step", "chat")

    assert said.code == 1
    assert 'no rollout of "chat"' in said.err
