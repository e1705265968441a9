"""The admin listener records every read of tenants' data, with the operator, tenant and status."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.edge.admin.route_permissions import API_PERMISSIONS, RECORDED_API, RECORDED_PAGES
from headgate.ports.admin_roles import Permission
from headgate.ports.read_audit import AuditUnavailable, ReadEntry
from headgate.telemetry.audit.read_log import ReadLog
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop
from tests.security.test_admin_api import NEEDS, WHOLE, FakeDirectory, asked

SECRET, KEY = "only for these tests", "hg-operator"
NOT_RECORDED = {"overrides/list", "rollouts/status", "trials/status", "traffic/read"}
"""Routes that return no tenant data, and the one that continues a recording whose start was recorded."""
CHANGES = {path for path, needs in NEEDS.items() if needs in ("budgets", "keys", "operate", "shares")}
"""Routes that change something, and those of the share controller, which is not a person."""


async def entries(log: ReadLog) -> list[ReadEntry]:
    return list((await log.entries(before=None, tenant=None, limit=1_000)).entries)


def test_every_route_that_returns_tenant_data_is_recorded() -> None:
    assert {path.removeprefix(b"/admin/v1/").decode() for path in RECORDED_API} == NEEDS.keys() - CHANGES - NOT_RECORDED
    assert API_PERMISSIONS.keys() >= RECORDED_API


@pytest.mark.parametrize("path", sorted(NEEDS.keys() - CHANGES - NOT_RECORDED))
async def test_read_and_denied_read_are_recorded(path: str) -> None:
    log, body = ReadLog(None, ""), json.dumps(WHOLE[path]).encode()
    await asked(FakeDirectory(), path, body, key="hg-admin", reads=log)
    await asked(FakeDirectory(), path, body, key="hg-operate", reads=log)
    await asked(FakeDirectory(), path, body, key="hg-unknown", reads=log)

    denied, allowed = await entries(log)
    assert (denied.operator, denied.status) == ("operate", 403)
    assert (allowed.operator, allowed.address, allowed.route) == ("admin", "192.0.2.7", f"/admin/v1/{path}")
    assert allowed.tenant == WHOLE[path].get("tenant", WHOLE[path].get("under", ""))
    assert allowed.target == WHOLE[path].get("request", "")


@pytest.mark.parametrize("path", sorted(CHANGES | NOT_RECORDED))
async def test_other_requests_are_not_recorded(path: str) -> None:
    log = ReadLog(None, "")
    await asked(FakeDirectory(), path, b"{}", key="hg-admin", reads=log)

    assert await entries(log) == []


async def test_pages_of_the_read_log_continue_at_the_cursor() -> None:
    log = ReadLog(None, "")
    for path in ("tenants/list", "keys/list", "budgets/list"):
        await asked(FakeDirectory(), path, key="hg-admin", reads=log)
    routes: list[str] = []
    cursor: str | None = None
    for _ in range(2):
        body = json.dumps({"limit": 2, "before": cursor}).encode()
        wire = await asked(FakeDirectory(), "audit/reads", body, key="hg-audit", reads=log)
        assert wire.status == 200
        page = json.loads(wire.body)
        routes += [each["route"].removeprefix("/admin/v1/") for each in page["data"]]
        cursor = page["next"]

    assert routes == ["budgets/list", "keys/list", "tenants/list"]
    assert (cursor, page["skipped"]) == (None, 0)


async def test_bad_cursor_is_rejected() -> None:
    wire = await asked(FakeDirectory(), "audit/reads", b'{"before": "1234"}', key="hg-audit")

    assert (wire.status, wire.error["code"]) == (400, "invalid_request_error")
    assert 'use the value of "next"' in wire.error["message"]


async def test_read_that_cannot_be_recorded_is_rejected() -> None:
    class Full(ReadLog):
        async def record(self, entry: ReadEntry) -> None:
            raise AuditUnavailable("audit.directory cannot be written: No space left on device")

    wire = await asked(FakeDirectory(), "tenants/list", key="hg-read", reads=Full(None, ""))

    assert (wire.status, wire.error["code"]) == (503, "audit_unavailable")
    assert "No space left on device; make the directory writable" in wire.error["message"]
    assert b"data" not in wire.body


def a_config_with_audit(url: str, folder: Path, **more: Any) -> dict[str, Any]:
    key = format_digest(digest(SECRET.encode(), KEY))
    audit = {"directory": str(folder / "audit")}
    return a_config(url, key_secret=SECRET, admin_keys={"ann": {"key": key, "role": "admin"}}, audit=audit, **more)


async def reads_of(gateway: GatewayInLoop, **body: Any) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with gateway.http.post(f"{gateway.admin_url}/admin/v1/audit/reads", json=body, headers=headers) as answer:
        assert answer.status == 200
        return (await answer.json())["data"]


async def test_pages_that_show_requests_are_recorded_across_a_restart(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config_with_audit(engine.url, tmp_path)
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat()) as answer:
                request_id = answer.headers["x-request-id"]
            for path in (f"/explain/{request_id}", "/explain/req_unknown", "/requests?tenant=laptop", "/requests"):
                async with gateway.http.get(gateway.admin_url + path) as answer:
                    await answer.read()
            for path in ("/status", "/metrics", "/verdict", "/health", "/ready", "/console/", "/docs/"):
                async with gateway.http.get(gateway.admin_url + path) as answer:
                    assert answer.status == 200
            async with gateway.http.get(gateway.admin_url + "/console/events") as answer:
                assert answer.status == 200
        async with gateway_in_loop(config, tmp_path) as gateway:
            found = await reads_of(gateway)

    assert [(each["route"], each["tenant"], each["target"], each["status"]) for each in reversed(found)] == [
        (f"/explain/{request_id}", "laptop", request_id, 200),
        ("/explain/req_unknown", "", "req_unknown", 404),
        ("/requests", "laptop", "", 200),
        ("/requests", "", "", 200),
        ("/console/events", "", "", 200),
    ]
    assert {each["address"] for each in found} == {"127.0.0.1"}
    assert {each["operator"] for each in found} == {""}
    content = b"".join(each.read_bytes() for each in (tmp_path / "audit").iterdir())
    assert KEY.encode() not in content
    assert SECRET.encode() not in content


async def test_page_that_cannot_be_recorded_is_rejected_and_other_pages_are_served(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("not a directory")
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config_with_audit(engine.url, tmp_path), tmp_path) as gateway:
            for path in ("/requests", "/explain/req_unknown", "/console/events"):
                async with gateway.http.get(gateway.admin_url + path) as answer:
                    assert answer.status == 503
                    assert "the read cannot be recorded" in (await answer.json())["error"]
            async with gateway.http.get(gateway.admin_url + "/status") as answer:
                assert answer.status == 200
            async with gateway.post(chat()) as answer:
                assert answer.status == 200


def test_read_log_has_a_separate_permission() -> None:
    assert [path for path, needs in API_PERMISSIONS.items() if needs is Permission.AUDIT] == [b"/admin/v1/audit/reads"]
    assert set(RECORDED_PAGES) == {b"/requests", b"/explain/", b"/console/events"}
