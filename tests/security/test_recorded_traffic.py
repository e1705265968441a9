"""A trace contains no text, key, tenant name or id of the requests that were recorded, from any source."""

import asyncio
import base64
from collections.abc import Awaitable
from pathlib import Path

from headgate.cli.input.admin_request import AdminTarget
from headgate.cli.input.live_traffic import LiveTraffic, start_recordings
from headgate.cli.main import main
from headgate.model.prefix import HASH_BYTES
from headgate.planning.recording.pseudonyms import TenantPseudonyms
from headgate.planning.recording.trace_writer import TraceWriter, trace_file
from headgate.ports.traffic import TrafficRow
from headgate.simulation.workload.recorded_trace import TraceHeader
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop

SECRET, OPERATOR = "canary-secret", "hg-canary-operator"
KEY, TENANT = "hg-canary-key", "canary-tenant/canary-project"
PROMPT = "canary-prompt " * 300
"""Long enough to have prefix hashes."""
HEADERS = {
    "authorization": f"Bearer {KEY}",
    "idempotency-key": "canary-idempotency",
    "x-request-id": "canary-request",
    "x-headgate-client-stages": "canary_stage;dur=5",
    "traceparent": "00-ca9a1ca9a1ca9a1ca9a1ca9a1ca9a1ca-ca9a1ca9a1ca9a1c-01",
}
FORBIDDEN = (b"canary", b"ca9a1", b"req_")


def a_gateway_config(engine: FakeEngine, folder: Path) -> Config:
    def hashed(key: str) -> str:
        return format_digest(digest(SECRET.encode(), key))

    config = a_config(
        engine.url,
        key_secret=SECRET,
        admin_keys={"ann": {"key": hashed(OPERATOR), "permissions": ["record"]}},
        tenants={TENANT: {"keys": [hashed(KEY)]}},
        records={"directory": str(folder / "records")},
        retry={"attempts_max": 1},
    )
    del config["anonymous_tenant"]
    return config


async def ask(gateway: GatewayInLoop, body: Config, path: str = "/v1/chat/completions", **headers: str) -> None:
    async with gateway.post(body, path, headers=HEADERS | headers) as answer:
        await answer.read()


async def ask_everything(engine: FakeEngine, gateway: GatewayInLoop) -> None:
    for behaviour in (Behaviour(), Behaviour(status=500, error=PROMPT), Behaviour(status=400, error=PROMPT)):
        engine.script.append(behaviour)
        await ask(gateway, chat(PROMPT, stream=True, user="canary-user", metadata={"canary": "canary"}))
    await ask(gateway, {"model": "m", "prompt": PROMPT}, "/v1/completions")
    await ask(gateway, chat(PROMPT, model="canary-model"))
    await ask(gateway, chat(PROMPT), **{"x-headgate-class": "canary-class"})
    await ask(gateway, chat(PROMPT), **{"x-headgate-model-tier": "canary-tier"})
    await ask(gateway, chat(PROMPT, service_tier="canary-tier"))
    await ask(gateway, chat(PROMPT), authorization="Bearer canary-unknown")
    await gateway.wait_until_idle()


async def rows_of(gateway: GatewayInLoop, work: Awaitable[None] | None = None) -> list[TrafficRow]:
    """What the gateway tells its reader: the requests in memory, or those that `work` sends."""
    rows: list[TrafficRow] = []
    target = AdminTarget(gateway.admin_url, OPERATOR, None)
    recordings = await start_recordings([target], duration_s=600, recent=work is None)
    traffic = LiveTraffic(recordings, duration_s=0 if work is None else 600, wait_s=0)
    reading = asyncio.create_task(traffic.read(rows.append))
    if work is not None:
        await work
        traffic.stop()
    await reading
    return rows


def trace_of(rows: list[TrafficRow], path: Path) -> bytes:
    with trace_file(path) as file:
        writer = TraceWriter(file, TraceHeader(), TenantPseudonyms())
        for row in rows:
            writer.add(row)
        writer.finish()
    return path.read_bytes()


async def test_trace_contains_nothing_that_identifies_a_request(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_gateway_config(engine, tmp_path), tmp_path) as gateway:
            live = await rows_of(gateway, ask_everything(engine, gateway))
            recent = await rows_of(gateway)
    # The gateway has written its records.
    stored = tmp_path / "records.jsonl"
    assert main(["record", str(stored), "--from-records", str(tmp_path / "records")]) == 0

    hashes = {row.prefix[at : at + HASH_BYTES] for row in live for at in range(0, len(row.prefix), HASH_BYTES)}
    assert hashes
    assert any(row.stages for row in live)
    assert {row.outcome for row in live} >= {"completed", "engine_error", "model_not_found"}
    for content in (trace_of(live, tmp_path / "live"), trace_of(recent, tmp_path / "recent"), stored.read_bytes()):
        assert content.count(b"\n") == len(live) + 2
        assert [word for word in FORBIDDEN if word in content.lower()] == []
        for each in hashes:
            spellings = (each.hex().encode(), str(int.from_bytes(each, "little")).encode(), base64.b64encode(each)[:10])
            assert not any(spelling in content for spelling in spellings)


async def test_operator_without_the_permission_cannot_record(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_gateway_config(engine, tmp_path)
        config["admin_keys"]["ann"]["permissions"] = ["read", "operate", "cost", "audit"]
        async with gateway_in_loop(config, tmp_path) as gateway:
            for path, body in (("start", {}), ("start", {"recent": True}), ("read", {"recording": "0" * 32})):
                url, headers = f"{gateway.admin_url}/admin/v1/traffic/{path}", {"authorization": f"Bearer {OPERATOR}"}
                async with gateway.http.post(url, json=body, headers=headers) as answer:
                    assert answer.status == 403
                    assert 'lacks the permission \\"record' in await answer.text()


def test_import_contains_no_text_or_names_of_the_log(tmp_path: Path) -> None:
    log, trace = tmp_path / "log.csv", tmp_path / "trace.jsonl"
    log.write_text(
        "request_id,startTime,endTime,prompt_tokens,completion_tokens,model,team_id,user,api_key,messages,metadata\n"
        "canary-id,2026-11-19 10:00:00,2026-11-19 10:00:01,9,1,m,canary-team,canary-user,canary-key,canary,canary\n"
    )
    assert main(["record", str(trace), "--import", "litellm", str(log)]) == 0

    content = trace.read_bytes()
    assert b'"at_us":0' in content
    assert b"canary" not in content
    assert b"2026" not in content
