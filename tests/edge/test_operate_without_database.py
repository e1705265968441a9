"""Tests for operator overrides without a database, using an operator key from the configuration file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop

SECRET = "a secret of more than sixteen letters"
OPERATOR = {"authorization": "Bearer hg-operator"}


def config_of(*engines: str) -> Config:
    key = format_digest(digest(SECRET.encode(), "hg-operator"))
    operators = {"alice": {"key": key, "permissions": ["read", "operate"]}}
    return a_config(*engines, key_secret=SECRET, admin_keys=operators)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[GatewayInLoop, Config, tuple[FakeEngine, FakeEngine]]]:
    async with FakeEngine() as one, FakeEngine() as two:
        config = config_of(one.url, two.url)
        async with gateway_in_loop(config, folder) as gateway:
            yield gateway, config, (one, two)


async def admin(gateway: GatewayInLoop, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    url = f"{gateway.admin_url}/admin/v1/{path}"
    async with gateway.http.post(url, json=body, headers=OPERATOR) as answer:
        return answer.status, await answer.json()


async def served(gateway: GatewayInLoop, engines: tuple[FakeEngine, ...]) -> tuple[int, ...]:
    """Sends four requests and returns the number received by each engine."""
    before = [len(each.requests) for each in engines]
    for _ in range(4):
        async with gateway.post(chat()) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
    return tuple(len(each.requests) - count for each, count in zip(engines, before, strict=True))


async def test_drained_endpoint_gets_no_requests_until_the_override_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, config, engines):
        [first, second] = [each["id"] for each in (await gateway.status())["endpoints"]]
        status, order = await admin(
            gateway, "overrides/create", verb="drain", target=first, duration_s=60, reason="driver"
        )
        assert (status, order["created_by"]) == (200, "alice")
        assert await served(gateway, engines) == (0, 4)
        assert [each["target"] for each in (await gateway.status())["overrides"]] == [first]

        await gateway.rewrite(config | {"drain_grace": "4s"})
        assert await served(gateway, engines) == (0, 4), "a reload keeps the override"

        await admin(gateway, "overrides/end", override=order["override"])
        await admin(gateway, "overrides/create", verb="drain", target=second, duration_s=60)
        assert await served(gateway, engines) == (4, 0)

        _, listed = await admin(gateway, "overrides/list")
        _, audit = await admin(gateway, "audit/list")
        assert [each["target"] for each in listed["data"]] == [second]
        assert [each["action"] for each in audit["data"]] == ["override.drain", "override.end", "override.drain"]


async def test_requests_over_a_throttle_are_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, _, _):
        place = {"verb": "throttle", "target": "laptop", "duration_s": 60, "requests_per_minute": 1}
        assert (await admin(gateway, "overrides/create", **place))[0] == 200
        async with gateway.post(chat()) as first, gateway.post(chat()) as second:
            assert (first.status, second.status) == (200, 429)


async def test_errors_for_unknown_targets_and_missing_database_suggest_the_next_step(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, _, _):
        status, unknown = await admin(gateway, "overrides/create", verb="hold", target="bach", duration_s=60)
        assert status == 404
        assert "known: batch, interactive, long" in unknown["error"]["message"]

        status, keys = await admin(gateway, "keys/create", key="acme/search/web")
        assert status == 404
        assert "require a database: add database.url" in keys["error"]["message"]
