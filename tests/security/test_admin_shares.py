"""Admin paths for the share controller: permissions, bodies and effects."""

import json
from typing import Any

import pytest

from headgate.compose.cell_shares import routes_of
from headgate.control.cells.share_leases import ShareLeases
from headgate.core.events import SharesAssigned
from headgate.edge.admin.api import AdminApi
from headgate.edge.client import Client
from headgate.model.units import SECOND
from headgate.telemetry.audit.read_log import ReadLog
from testing.builders import at
from tests.security.test_admin_api import AUTH, FakeDirectory, FakeWire, taken_over


class Gateway:
    def __init__(self) -> None:
        self.assigned: list[SharesAssigned] = []
        self.leases = ShareLeases("s1", 250_000, lambda: at(100), self.assigned.append, dict)

    async def asked(self, path: str, body: object, key: str = "hg-shares") -> FakeWire:
        wire = FakeWire()
        headers = {b"content-type": b"application/json", b"authorization": f"Bearer {key}".encode()}
        where = f"/admin/v1/shares/{path}".encode()
        client = Client(wire, method="POST", path=where, headers=headers, body_bytes_max=2**20)
        client.add_body(json.dumps(body).encode())
        client.complete_body()
        routes, nobody = routes_of(self.leases), FakeDirectory()
        api = AdminApi(nobody, AUTH, taken_over, lambda _: None, ReadLog(None, ""), more_routes=routes)  # type: ignore[arg-type]
        await api(client)
        return wire


def an_assignment(**changes: Any) -> dict[str, Any]:
    usual = {"epoch": 1, "version": 1, "session": "s1", "stamp_ns": at(98), "lease_ns": 15 * SECOND}
    return {**usual, "shares": {"acme": 500_000}, **changes}


async def test_assignment_takes_effect_and_is_reported() -> None:
    gateway = Gateway()
    wire = await gateway.asked("assign", an_assignment())
    assert wire.status == 200
    told = json.loads(wire.body)
    assert told["shares"] == {"acme": {"ppm": 500_000, "left_ns": 13 * SECOND, "token_ppm": None}}
    assert len(gateway.assigned) == 2

    wire = await gateway.asked("report", {})
    assert json.loads(wire.body) == told


async def test_assignment_may_contain_separate_shares_of_tokens() -> None:
    gateway = Gateway()
    wire = await gateway.asked("assign", an_assignment(token_shares={"acme": 100_000}))
    assert json.loads(wire.body)["shares"]["acme"]["token_ppm"] == 100_000
    assert [each.share for each in gateway.assigned[-1].shares.values()] == [(500_000, 100_000)]


async def test_claim_without_a_session_changes_no_share() -> None:
    gateway = Gateway()
    wire = await gateway.asked("assign", {"epoch": 7, "version": 1})
    assert (json.loads(wire.body)["epoch"], json.loads(wire.body)["session"]) == (7, "s1")
    assert len(gateway.assigned) == 1


@pytest.mark.parametrize(("path", "key"), [("assign", "hg-operate"), ("assign", "hg-keys"), ("report", "hg-read")])
async def test_other_permissions_are_not_enough(path: str, key: str) -> None:
    gateway = Gateway()
    wire = await gateway.asked(path, an_assignment() if path == "assign" else {}, key)
    assert (wire.status, wire.error["code"]) == (403, "permission_denied")
    assert (await gateway.asked(path, {}, "hg-nobody")).status == 401
    assert len(gateway.assigned) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"shares": {"acme": 1_000_001}},
        {"shares": {"acme": -1}},
        {"shares": {"acme/search": 1}},
        {"token_shares": {"acme": 1_000_001}},
        {"token_shares": {"": 1}},
        {"shares": {"": 1}},
        {"shares": {"acme\n": 1}},
        {"epoch": -1},
        {"session": "s" * 65},
        {"more": 1},
    ],
)
async def test_invalid_assignment_is_rejected(wrong: dict[str, Any]) -> None:
    gateway = Gateway()
    assert (await gateway.asked("assign", an_assignment(**wrong))).status == 400
    assert len(gateway.assigned) == 1
