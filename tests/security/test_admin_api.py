"""Every admin API route requires a defined permission, which some roles have and others do not.

A new route without a row in the table fails these tests. A request without the permission is rejected before its body
is parsed and does not reach the directory.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.edge.admin.api import BODY_BYTES_MAX, AdminApi, AdminBody
from headgate.edge.admin.budgets import budget_routes
from headgate.edge.admin.cell import handover_routes
from headgate.edge.admin.cost import cost_routes
from headgate.edge.admin.operator_auth import OperatorAuth
from headgate.edge.admin.rollouts import rollout_routes
from headgate.edge.admin.route_permissions import ADMIN_API, API_PERMISSIONS
from headgate.edge.admin.shares import share_routes
from headgate.edge.admin.tenants import EXPIRES_S_MAX, tenant_routes
from headgate.edge.admin.traffic import traffic_routes
from headgate.edge.admin.trials import trial_routes
from headgate.edge.client import Client, Headers
from headgate.model.units import TenantId
from headgate.ports.admin_roles import ROLES, Operator, Permission, Role, granted, permissions_of
from headgate.ports.directory import Actor, TenantRow, TenantSettings
from headgate.ports.read_audit import ReadAudit
from headgate.ports.traffic import TrafficPage
from headgate.telemetry.audit.read_log import ReadLog
from headgate.wire.keys import digest
from testing.fake_engine import FakeEngine
from testing.gateway import gateway_in_loop
from testing.ports import free_port
from tests.ledger.test_gateway import config_with

SECRET = b"only for tests"
NEEDS = {
    "tenants/list": "read",
    "tenants/create": "keys",
    "tenants/change": "keys",
    "tenants/remove": "keys",
    "keys/list": "read",
    "keys/create": "keys",
    "keys/rotate": "keys",
    "keys/revoke": "keys",
    "budgets/list": "cost",
    "budgets/show": "cost",
    "budgets/set": "budgets",
    "budgets/remove": "budgets",
    "cost/report": "cost",
    "cost/request": "cost",
    "cost/statement": "cost",
    "cost/forecast": "cost",
    "cost/drift": "cost",
    "overrides/list": "read",
    "overrides/create": "operate",
    "overrides/end": "operate",
    "rollouts/status": "read",
    "rollouts/start": "operate",
    "rollouts/step": "operate",
    "rollouts/abort": "operate",
    "cell/hand-over": "operate",
    "trials/status": "read",
    "trials/start": "operate",
    "trials/abort": "operate",
    "audit/list": "read",
    "audit/reads": "audit",
    "traffic/start": "record",
    "traffic/read": "record",
    "shares/assign": "shares",
    "shares/report": "shares",
}
"""Permission for each route."""
INCLUDED = {"read": {"read", "cost"}, "keys": {"keys", "budgets"}}
"""Permissions that include others."""
HAVE = {
    "viewer": {"read", "cost"},
    "operator": {"read", "cost", "operate"},
    "accountant": {"cost", "budgets"},
    "admin": {"read", "cost", "budgets", "keys", "operate", "audit", "record"},
}
"""Permissions of each role."""
PERMISSIONS = ("read", "cost", "budgets", "keys", "operate", "audit", "record", "shares")
WHOLE = {
    "tenants/list": {"under": "acme", "after": "acme"},
    "tenants/create": {"tenant": "acme", "classes": ["c"], "models": ["m"], "plan": "free"},
    "tenants/change": {"tenant": "acme", "classes": ["c"], "models": ["m"], "plan": "free"},
    "tenants/remove": {"tenant": "acme"},
    "keys/list": {"under": "acme", "after": "acme"},
    "keys/create": {"key": "acme/search/ci", "classes": ["c"], "models": ["m"], "plan": "free"},
    "keys/rotate": {"key": "acme/search/ci"},
    "keys/revoke": {"key": "acme/search/ci"},
    "budgets/list": {"under": "acme", "after": "acme"},
    "budgets/show": {"tenant": "acme"},
    "budgets/set": {"tenant": "acme", "period": "day", "limit_usd": "1", "kind": "soft"},
    "budgets/remove": {"tenant": "acme", "period": "day"},
    "cost/report": {"by": "unit", "since": "2026-11-15", "until": "2026-11-15T10:00", "tenant": "acme", "class": "c",
                    "model": "m", "key": "conversation"},
    "cost/request": {"request": "req_1", "day": "2026-11-15"},
    "cost/statement": {"month": "2026-11", "tenant": "acme"},
    "cost/forecast": {"tenant": "acme"},
    "cost/drift": {"day": "2026-11-15", "tenant": "acme"},
    "overrides/list": {},
    "overrides/create": {"verb": "hold", "target": "batch", "duration_s": 60, "reason": "a test"},
    "overrides/end": {"override": "ovr_1"},
    "rollouts/status": {"model": "m"},
    "rollouts/start": {"model": "m", "candidate": "new", "base": "old"},
    "rollouts/step": {"model": "m"},
    "rollouts/abort": {"model": "m"},
    "cell/hand-over": {"reason": "a test"},
    "trials/status": {},
    "trials/start": {"setting": "headroom.kv_percent", "value": "90", "keep_if": "better"},
    "trials/abort": {},
    "audit/list": {},
    "audit/reads": {"before": "1.1.", "tenant": "acme"},
    "traffic/start": {},
    "traffic/read": {"recording": "0" * 32},
}  # fmt: skip
"""Body for each route, with all of its text fields. `test_admin_shares.py` tests the bodies of the other routes."""
FREE = {
    "after",
    "classes",
    "models",
    "class",
    "model",
    "target",
    "reason",
    "override",
    "candidate",
    "base",
    "setting",
    "value",
}
"""Free-text fields, which may span several lines. In a report, `key` is one of them."""
OPERATORS = {
    **{digest(SECRET, f"hg-{each}"): Operator(each, granted((each,))) for each in PERMISSIONS},
    **{digest(SECRET, f"hg-{each}"): Operator(each, permissions_of((each,))) for each in Role},
}
AUTH = OperatorAuth([SECRET], OPERATORS)


class FakeDirectory:
    """Directory that records its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def ask(*_: Any, **__: Any) -> Any:
            self.asked.append(name)
            return {} if name == "abort" else []

        return ask

    async def create_tenant(self, tenant_id: str, terms: TenantSettings, actor: Actor) -> TenantRow:
        self.asked.append(f"create_tenant {tenant_id} by {actor.name} from {actor.origin}")
        return TenantRow(tenant_id, terms, 0)  # type: ignore[arg-type]


class FakeWire:
    blocked = False
    peer = "192.0.2.7"

    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, {}, b""

    def mark_authenticated(self, _tenant: TenantId | None = None) -> bool:
        return True

    def pause_body(self) -> None: ...

    def resume_body(self) -> None: ...

    def send_continue(self) -> None: ...

    def send_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, dict(headers)

    def send(self, data: bytes) -> None:
        self.body += data

    send_end = send

    @property
    def error(self) -> Mapping[str, Any]:
        return json.loads(self.body)["error"]


async def taken_over() -> None: ...


def a_page() -> TrafficPage:
    return TrafficPage("0" * 32, 0)


def api(directory: FakeDirectory, reads: ReadAudit | None = None, targets: Collection[str] | None = None) -> AdminApi:
    others = {
        **tenant_routes(directory, SECRET),  # type: ignore[arg-type]
        **budget_routes(directory, lambda _: ()),  # type: ignore[arg-type]
        **cost_routes(directory),  # type: ignore[arg-type]
        **rollout_routes(directory),  # type: ignore[arg-type]
        **handover_routes(directory.hand_over),
        **trial_routes(directory),  # type: ignore[arg-type]
        **share_routes(lambda _: {}, dict),
        **traffic_routes(lambda _: a_page(), a_page, lambda *_, **__: a_page()),
    }
    return AdminApi(directory, AUTH, taken_over, lambda _: targets, reads or ReadLog(None, ""), more_routes=others)  # type: ignore[arg-type]


async def asked(
    directory: FakeDirectory,
    path: str,
    body: bytes = b"{}",
    *,
    key: str | None = "hg-read",
    method: str = "POST",
    kind: bytes = b"application/json",
    reads: ReadAudit | None = None,
    targets: Collection[str] | None = None,
    **more: bytes,
) -> FakeWire:
    wire = FakeWire()
    headers = {b"content-type": kind, **{name.replace("_", "-").encode(): value for name, value in more.items()}}
    if key is not None:
        headers[b"authorization"] = f"Bearer {key}".encode()
    client = Client(wire, method=method, path=f"/admin/v1/{path}".encode(), headers=headers, body_bytes_max=2**20)
    client.add_body(body)
    client.complete_body()
    await api(directory, reads, targets)(client)
    return wire


async def test_gateway_with_a_database_has_exactly_these_routes(tmp_path: Path) -> None:
    """Includes routes that are defined in other modules."""
    away = f"postgresql://127.0.0.1:{free_port()}/none"
    async with FakeEngine() as engine, gateway_in_loop(config_with(engine.url, away), tmp_path) as gateway:
        found = gateway.gateway._admin.api

    assert found is not None
    # The others exist only in a cell, or if several cells serve the same tenants.
    of_cells = {each for each in NEEDS if each.startswith(("shares/", "cell/"))}
    assert {path.decode().removeprefix("/admin/v1/") for path in found.routes} == NEEDS.keys() - of_cells


def test_table_of_permissions_contains_exactly_the_routes() -> None:
    assert {path.removeprefix(ADMIN_API).decode(): each.value for path, each in API_PERMISSIONS.items()} == NEEDS
    assert api(FakeDirectory()).routes.keys() == API_PERMISSIONS.keys()


def test_route_without_a_permission_cannot_be_registered() -> None:
    more = {b"/admin/v1/new": api(FakeDirectory()).routes[b"/admin/v1/audit/list"]}

    with pytest.raises(AssertionError, match="route_permissions"):
        AdminApi(FakeDirectory(), AUTH, taken_over, lambda _: None, ReadLog(None, ""), more_routes=more)  # type: ignore[arg-type]


def test_tables_of_permissions_and_roles_are_complete() -> None:
    assert set(PERMISSIONS) == set(Permission)
    assert HAVE.keys() == set(Role) == ROLES.keys()


@pytest.mark.parametrize("role", HAVE)
@pytest.mark.parametrize("path", NEEDS)
async def test_role_gets_exactly_its_routes(path: str, role: str) -> None:
    directory = FakeDirectory()
    wire = await asked(directory, path, b'{"nonsense": 1}', key=f"hg-{role}")

    # A request that is allowed fails because of its body, before it reaches the directory.
    assert wire.status == (400 if NEEDS[path] in HAVE[role] else 403)
    assert wire.error["code"] == ("invalid_request_error" if NEEDS[path] in HAVE[role] else "permission_denied")
    assert directory.asked == []


@pytest.mark.parametrize("path", NEEDS)
async def test_route_accepts_only_its_permission(path: str) -> None:
    for permission in PERMISSIONS:
        directory = FakeDirectory()
        wire = await asked(directory, path, b'{"nonsense": 1}', key=f"hg-{permission}")
        if NEEDS[path] in INCLUDED.get(permission, {permission}):
            assert wire.status == 400, "the request must be rejected for its body"
        else:
            assert (wire.status, wire.error["code"]) == (403, "permission_denied")
        assert directory.asked == []


@pytest.mark.parametrize("path", [*NEEDS, "nothing", "", "tenants", "tenants/list/", "../status", "tenants%2flist"])
@pytest.mark.parametrize("key", [None, "", "hg-nobody", "hg-read ", "hg-READ"])
async def test_unknown_key_gets_401_for_every_path(path: str, key: str | None) -> None:
    directory = FakeDirectory()
    wire = await asked(directory, path, key=key)
    if key == "hg-read ":
        # Trailing whitespace is not part of a header value.
        assert wire.status != 401
    else:
        assert (wire.status, wire.error["code"]) == (401, "invalid_api_key")
        assert directory.asked == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
async def test_route_accepts_only_post(method: str) -> None:
    directory = FakeDirectory()
    wire = await asked(directory, "tenants/list", method=method)

    assert (wire.status, wire.headers[b"allow"], directory.asked) == (405, b"POST", [])


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (415, b"{}", {"kind": b"text/plain"}),
        (415, b"{}", {"kind": b""}),
        (415, b"{}", {"content_encoding": b"gzip"}),
        (413, b" " * (BODY_BYTES_MAX + 1), {}),
        (400, b"", {}),
        (400, b"[]", {}),
        (400, b"{", {}),
        (400, b'{"limit": 0}', {}),
        (400, b'{"limit": 1001}', {}),
        (400, b'{"limit": "1"}', {}),
        (400, b'{"under": "acme/../x"}', {}),
        (400, b'{"under": "a\' or 1=1 --"}', {}),
        (400, b'{"more": 1}', {}),
        (400, b"[" * 60_000, {}),
    ],
)
async def test_invalid_body_is_rejected(status: int, body: bytes, headers: dict[str, bytes]) -> None:
    directory = FakeDirectory()
    wire = await asked(directory, "tenants/list", body, **headers)

    assert (wire.status, directory.asked) == (status, [])
    assert wire.error.keys() == {"message", "type", "param", "code"}


def texts(kind: type[AdminBody]) -> set[str]:
    """Return the names of the body's fields that contain text."""
    schema = msgspec.json.schema(kind)
    fields = schema["$defs"][kind.__name__]["properties"]
    return {name for name, said in fields.items() if not re.search('"(integer|boolean)"', json.dumps(said))}


@pytest.mark.parametrize("path", WHOLE)
async def test_text_fields_reject_nul_and_trailing_line_breaks(path: str) -> None:
    whole: dict[str, Any] = WHOLE[path]
    kind = api(FakeDirectory()).routes[f"/admin/v1/{path}".encode()].body
    msgspec.json.decode(json.dumps(whole), type=kind)
    assert texts(kind) == whole.keys() - {"duration_s"}, "WHOLE must list every text field"
    for name, value in whole.items():
        if name in {"duration_s", "limit_usd"}:
            # These fields are numbers.
            continue
        free = name in FREE or (path, name) == ("cost/report", "key")
        for end in ("\0", "\0x") if free else ("\n", "\r\n", "\0", "\0x", " "):
            wrong = f"{value}{end}" if isinstance(value, str) else [f"{value[0]}{end}"]
            directory = FakeDirectory()
            wire = await asked(directory, path, json.dumps({**whole, name: wrong}).encode(), key=f"hg-{NEEDS[path]}")
            assert (wire.status, directory.asked) == (400, []), (name, wrong)


@pytest.mark.parametrize(("key", "listed"), [("hg-operate", False), ("hg-operator", True), ("hg-admin", True)])
async def test_tenant_names_are_listed_only_for_operators_who_may_read_them(key: str, *, listed: bool) -> None:
    body = b'{"verb": "throttle", "target": "bolt", "duration_s": 60, "concurrency": 1}'
    wire = await asked(FakeDirectory(), "overrides/create", body, key=key, targets=["acme"])

    assert (wire.status, wire.error["code"]) == (404, "not_found")
    assert wire.error["message"] == f'cannot throttle "bolt": unknown name{"; known: acme" if listed else ""}'


@pytest.mark.parametrize("path", ["keys/create", "keys/rotate"])
async def test_key_with_excessive_expiry_is_rejected(path: str) -> None:
    for length_s in (EXPIRES_S_MAX + 1, 2**40, 2**53):
        directory = FakeDirectory()
        body = json.dumps({**WHOLE[path], "expires_in_s": length_s}).encode()
        wire = await asked(directory, path, body, key="hg-keys")
        assert (wire.status, directory.asked) == (400, [])


async def test_unknown_field_error_lists_the_known_fields() -> None:
    wire = await asked(FakeDirectory(), "cost/report", b'{"service_class": "batch"}')

    assert wire.status == 400
    assert "since, until, tenant, class, model" in wire.error["message"]


async def test_tenant_name_reserved_by_metrics_is_rejected() -> None:
    directory = FakeDirectory()
    wire = await asked(directory, "tenants/create", b'{"tenant": "other"}', key="hg-keys")

    assert wire.status == 409
    assert "choose another" in wire.error["message"]
    assert not directory.asked


async def test_change_is_recorded_with_the_operator_and_origin() -> None:
    directory = FakeDirectory()
    wire = await asked(directory, "tenants/create", b'{"tenant": "acme"}', key="hg-keys")

    assert wire.status == 200
    assert directory.asked == ["create_tenant acme by keys from 192.0.2.7"]
    assert wire.headers[b"cache-control"] == b"no-store"
