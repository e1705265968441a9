"""The admin API's cost routes are read-only and reject invalid requests before a report is built."""

import json
from typing import Any

import pytest

from headgate.edge.admin.api import AdminRoute
from headgate.edge.admin.cost import cost_routes
from headgate.edge.admin.route_permissions import API_PERMISSIONS
from headgate.ports.cost_reports import LedgerUnavailable, NothingFound
from tests.security.test_admin_api import FakeDirectory, asked

ROUTES = cost_routes(None)  # type: ignore[arg-type]


class Failing(FakeDirectory):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def __getattr__(self, name: str) -> Any:
        async def fail(*_: Any, **__: Any) -> Any:
            raise self._error

        return fail


def test_cost_routes_are_read_only() -> None:
    assert len(ROUTES) == 5
    for path, route in ROUTES.items():
        assert isinstance(route, AdminRoute)
        assert (API_PERMISSIONS[path], route.writes) == ("cost", False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("report", {"by": "colour"}),
        ("report", {"by": "tenant; drop table headgate.usage"}),
        ("report", {"since": "2026-11-15'"}),
        ("report", {"since": "2026-13-01"}),
        ("report", {"since": "yesterday"}),
        ("report", {"tenant": "a' or 1=1 --"}),
        ("report", {"tenant": "a/../b"}),
        ("report", {"depth": 4}),
        ("report", {"limit": 1_001}),
        ("report", {"limit": 0}),
        ("report", {"model": "m" * 257}),
        ("report", {"model": "a\0b"}),
        ("report", {"more": 1}),
        ("request", {}),
        ("request", {"request": "req' or 1=1"}),
        ("request", {"request": "x" * 129}),
        ("request", {"request": "r", "day": "2026-11-15T10:00"}),
        ("statement", {}),
        ("statement", {"month": "2026-13"}),
        ("statement", {"month": "2026-11-01"}),
        ("drift", {"day": "15.11.2026"}),
        ("forecast", {"tenant": ""}),
    ],
)
async def test_malformed_cost_request_is_rejected(path: str, body: dict[str, Any]) -> None:
    directory = FakeDirectory()
    wire = await asked(directory, f"cost/{path}", json.dumps(body).encode())

    assert (wire.status, directory.asked) == (400, [])


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        ("report", {"since": "2026-11-15", "until": "2026-11-14"}, "must be before until"),
        ("report", {"since": "2026-02-30"}, "not a valid date"),
        ("report", {"since": "2020-01-01"}, "the limit is 400"),
        ("report", {"by": "unit", "key": "k", "since": "2026-01-01", "until": "2026-11-01"}, "partial days is 31"),
        ("report", {"since": "2026-01-01T10:00", "until": "2026-11-01"}, "for units and partial days"),
        ("report", {"key": "conversation"}, '"by": "unit"'),
        ("drift", {"day": "2026-02-30"}, "not a valid date"),
    ],
)
async def test_unanswerable_cost_request_gets_advice(path: str, body: dict[str, Any], hint: str) -> None:
    directory = FakeDirectory()
    wire = await asked(directory, f"cost/{path}", json.dumps(body).encode())

    assert (wire.status, directory.asked) == (409, [])
    assert hint in wire.error["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NothingFound("nothing; do this"), 404, "not_found"),
        (LedgerUnavailable("it is away"), 503, "database_unavailable"),
    ],
)
async def test_unreachable_database_is_distinguished_from_missing_records(
    error: Exception, status: int, code: str
) -> None:
    for path, body in (("report", {}), ("request", {"request": "r"}), ("statement", {"month": "2026-11"}),
                       ("forecast", {}), ("drift", {})):  # fmt: skip
        wire = await asked(Failing(error), f"cost/{path}", json.dumps(body).encode())
        assert (wire.status, wire.error["code"]) == (status, code)
        assert str(error) in wire.error["message"]
