"""`headgate audit` shows the change log and the read log."""

from collections.abc import Mapping
from typing import Any

import pytest

from headgate.cli import audit
from headgate.cli.input.admin_request import AdminRequestFailed
from tests.cli.conftest import Headgate

READ = {"at_ns": 7, "at": "2026-11-19T10:00:00Z", "operator": "corp:alice", "address": "192.0.2.7",
        "route": "/requests", "tenant": "", "target": "", "status": 200}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Mapping[str, object]]]:
    calls: list[tuple[str, Mapping[str, object]]] = []

    def answer(_: Any, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        calls.append((path, body))
        return {"data": [READ], "next": "7.1.one", "skipped": 2}

    monkeypatch.setattr(audit, "call_admin_api", answer)
    return calls


def test_reads_are_shown_with_the_next_page(headgate: Headgate, asked: list[Any]) -> None:
    said = headgate("audit", "reads", "--tenant", "acme", "--limit", "1", "--before", "9.1.one")

    assert asked == [("audit/reads", {"before": "9.1.one", "limit": 1, "tenant": "acme"})]
    assert said.out.splitlines() == [
        "AT                    OPERATOR    ADDRESS    ROUTE      STATUS",
        "2026-11-19T10:00:00Z  corp:alice  192.0.2.7  /requests  200",
    ]
    assert said.code == 0
    assert said.err.splitlines() == ["2 damaged lines in the read log skipped", "more: --before 7.1.one"]


def test_changes_come_from_their_own_path(headgate: Headgate, asked: list[Any]) -> None:
    said = headgate("audit", "changes", "--json")

    assert asked == [("audit/list", {"before": None, "limit": 100})]
    assert (said.code, '"operator": "corp:alice"' in said.out) == (0, True)


def test_failure_is_reported(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        raise AdminRequestFailed("no gateway is responding")

    monkeypatch.setattr(audit, "call_admin_api", fail)
    said = headgate("audit", "reads")

    assert (said.code, said.err) == (1, "headgate: no gateway is responding\n")
