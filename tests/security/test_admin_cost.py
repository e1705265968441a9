"""Is what is asked about cost no more than a question?

All of its paths only read, whatever is sent to them, and what is not as it should be is refused before any report is
made.
"""

import json
from typing import Any

import pytest

from headgate.edge.admin.api import Route
from headgate.edge.admin.cost import cost_routes
from headgate.ports.reports import LedgerAway, NothingFound
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


def test_all_of_them_only_read() -> None:
    assert len(ROUTES) == 5
    for route in ROUTES.values():
        assert isinstance(route, Route)
        assert (route.permission, route.writes) == ("read", False)


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
async def test_a_question_of_another_shape_is_refused(path: str, body: dict[str, Any]) -> None:
    directory = FakeDirectory()
    wire = await asked(directory, f"cost/{path}", json.dumps(body).encode())

    assert (wire.status, directory.asked) == (400, [])


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        ("report", {"since": "2026-11-15", "until": "2026-11-14"}, "turn them"),
        ("report", {"since": "2026-02-30"}, "no day of the calendar"),
        ("report", {"since": "2020-01-01"}, "ask for 400 at most"),
        ("report", {"by": "unit", "key": "k", "since": "2026-01-01", "until": "2026-11-01"}, "ask for 31 at most"),
        ("report", {"since": "2026-01-01T10:00", "until": "2026-11-01"}, "single rows are read"),
        ("report", {"key": "conversation"}, "by: unit"),
        ("drift", {"day": "2026-02-30"}, "no day of the calendar"),
    ],
)
async def test_a_question_that_cannot_be_answered_says_what_can(path: str, body: dict[str, Any], hint: str) -> None:
    directory = FakeDirectory()
    wire = await asked(directory, f"cost/{path}", json.dumps(body).encode())

    assert (wire.status, directory.asked) == (409, [])
    assert hint in wire.error["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(NothingFound("nothing; do this"), 404, "not_found"), (LedgerAway("it is away"), 503, "database_away")],
)
async def test_a_database_that_is_away_is_not_the_same_as_nothing_recorded(
    error: Exception, status: int, code: str
) -> None:
    for path, body in (("report", {}), ("request", {"request": "r"}), ("statement", {"month": "2026-11"}),
                       ("forecast", {}), ("drift", {})):  # fmt: skip
        wire = await asked(Failing(error), f"cost/{path}", json.dumps(body).encode())
        assert (wire.status, wire.error["code"]) == (status, code)
        assert str(error) in wire.error["message"]
