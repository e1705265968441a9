"""Without a database, an operator with a key from the configuration file can hold, throttle, drain and pin."""

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
    """Send four requests and return how many each engine received."""
    before = [len(each.requests) for each in engines]
    for _ in range(4):
        async with gateway.post(chat()) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
    return tuple(len(each.requests) - count for each, count in zip(engines, before, strict=True))


async def test_drained_endpoint_gets_no_requests_until_the_order_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, config, engines):
        [first, second] = [each["id"] for each in (await gateway.status())["endpoints"]]
        status, order = await admin(gateway, "orders/place", verb="drain", target=first, lasts_s=60, reason="driver")
        assert (status, order["ordered_by"]) == (200, "alice")
        assert await served(gateway, engines) == (0, 4)
        assert [each["target"] for each in (await gateway.status())["orders"]] == [first]

        await gateway.rewrite(config | {"drain_grace": "4s"})
        assert await served(gateway, engines) == (0, 4), "a reload keeps the order"

        await admin(gateway, "orders/end", order=order["order"])
        await admin(gateway, "orders/place", verb="drain", target=second, lasts_s=60)
        assert await served(gateway, engines) == (4, 0)

        _, listed = await admin(gateway, "orders/list")
        _, audit = await admin(gateway, "audit/list")
        assert [each["target"] for each in listed["data"]] == [second]
        assert [each["action"] for each in audit["data"]] == ["order.drain", "order.end", "order.drain"]


async def test_requests_over_a_throttle_are_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, _, _):
        place = {"verb": "throttle", "target": "laptop", "lasts_s": 60, "requests_per_minute": 1}
        assert (await admin(gateway, "orders/place", **place))[0] == 200
        async with gateway.post(chat()) as first, gateway.post(chat()) as second:
            assert (first.status, second.status) == (200, 429)


async def test_errors_for_unknown_targets_and_missing_database_suggest_the_next_step(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, _, _):
        status, unknown = await admin(gateway, "orders/place", verb="hold", target="bach", lasts_s=60)
        assert status == 404
        assert "there is batch, interactive, long" in unknown["error"]["message"]

        status, keys = await admin(gateway, "keys/create", key="acme/search/web")
        assert status == 404
        assert "need a database: add database.url" in keys["error"]["message"]
