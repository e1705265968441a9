"""Account secrets must not leak: keys, their hashes, the database password and the notification URL.

A gateway process at its most verbose log level, with a database and a ledger, goes through key creation and rotation,
spending, and a database outage. The test then searches all its output and stored files.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.gateway import Config, RunningGateway, a_config, chat, gateway_process_with_client
from testing.midnight import wait_past_midnight
from testing.ports import free_port
from testing.postgres import postgres
from tests.ledger.databases import migrated

pytestmark = pytest.mark.process

SECRET, OPERATOR = "canary-secret-of-the-gateway", "hg-canary-key-of-an-operator"
PASSWORD, HOOK, PROMPT = "canary-password", "canary-hook", "canary-prompt"
METADATA = "canary-metadata-that-nobody-keeps"
TALKATIVE = ("--log-level", "debug", "--log-format", "json")


def config_for(engine: FakeEngine, url: str, spool: Path) -> Config:
    config = a_config(engine.url, key_secret=SECRET, database={"url": url, "poll_interval": "5s"})
    config["pools"]["small"]["prices"] = {"per_hour": 2}
    config["tenants"]["laptop"]["budgets"] = {"day": "0.000001"}
    hashed = format_digest(digest(SECRET.encode(), OPERATOR))
    return config | {
        "ledger": {"spool_directory": str(spool), "metadata_keys": ["conversation"]},
        "notifications": f"http://127.0.0.1:{free_port()}/{HOOK}",
        "admin_keys": {"alice": {"key": hashed, "permissions": ["read", "keys", "operate"]}},
    }


async def admin(gateway: RunningGateway, path: str, **body: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {OPERATOR}"}
    async with gateway.http.post(f"{gateway.admin_url}/admin/v1/{path}", json=body, headers=headers) as answer:
        return await answer.json()


async def ask(gateway: RunningGateway, key: str, **fields: Any) -> str:
    body = chat(PROMPT, metadata={"conversation": "c1", "note": METADATA}, **fields)
    async with gateway.post(body, headers={"authorization": f"Bearer {key}"}) as answer:
        return (await answer.text() + str(answer.headers)) if answer.status != 200 else ""


async def pages(gateway: RunningGateway) -> str:
    said = ""
    for path in ("/metrics", "/status", "/ready"):
        async with gateway.http.get(gateway.admin_url + path) as page:
            said += await page.text() + str(page.headers)
    return said


async def until_spooled(spool: Path, word: str) -> str:
    """Text of the spool once it contains the word. A row is written shortly after its request."""
    async with asyncio.timeout(60):
        while word not in (text := _text_of(spool)):
            await asyncio.sleep(0.02)
    return text


def _text_of(folder: Path) -> str:
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file()).decode("latin-1")


async def test_output_contains_no_account_secret(tmp_path: Path) -> None:
    wait_past_midnight()
    spool, folder = tmp_path / "spool", tmp_path / "run"
    folder.mkdir()
    heard: dict[str, str] = {}
    with postgres(password=PASSWORD, options=("fsync=off",)) as server:
        url = await migrated(server.url)
        async with FakeEngine() as engine:
            config = config_for(engine, url, spool)
            async with gateway_process_with_client(config, folder, arguments=TALKATIVE) as (gateway, process):
                await gateway.wait_for_status(lambda status: status["database"]["fresh"])
                await admin(gateway, "tenants/create", tenant="acme")
                await admin(gateway, "tenants/create", tenant="acme/search")
                await admin(gateway, "budgets/set", tenant="acme", period="day", limit_usd="0.000001")
                made = (await admin(gateway, "keys/create", key="acme/search/ci"))["secret"]
                rotated = (await admin(gateway, "keys/rotate", key="acme/search/ci"))["secret"]
                for stream in (False, True):
                    for key in (made, rotated, "hg-canary-of-nobody", "hg-canary-of-nobody"):
                        heard["rejections"] = heard.get("rejections", "") + await ask(gateway, key, stream=stream)
                heard["lists"] = json.dumps(
                    [await admin(gateway, f"{each}/list") for each in ("keys", "tenants", "budgets", "audit")]
                )
                heard["pages"] = await pages(gateway)
                server.kill()
                await gateway.wait_for_status(lambda status: not status["database"]["fresh"])
                heard["database down"] = await ask(gateway, made) + await ask(gateway, "hg-canary-of-nobody")
                heard["pages while the database is down"] = await pages(gateway)
                heard["spool"] = await until_spooled(spool, "acme/search/ci")
                process.terminate()
                await asyncio.to_thread(process.wait_until_ended)
                heard["the log"] = process.log()
    hashes = [digest(SECRET.encode(), key).hex() for key in (made, rotated, OPERATOR)]
    words = [SECRET, OPERATOR, PASSWORD, HOOK, PROMPT, METADATA, made, rotated, "hg-canary-of-nobody", *hashes]
    found = [f"{word} in {where}" for where, text in heard.items() for word in words if word in text]

    assert '"message":"request ended"' in heard["the log"]
    assert "acme/search/ci" in heard["lists"]
    assert "acme/search/ci" in heard["spool"], "the spool has no row to search"
    assert found == []
