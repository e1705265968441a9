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


async def test_rollout_moves_traffic_and_aborts(tmp_path: Path) -> None:
    async with FakeEngine() as old, FakeEngine(models=("fake-new",)) as new:
        routes = [{"pools": ["small"], "weight": 1}, {"pools": ["new"], "weight": 0}]
        config = config_of(old.url) | {"models": {"m": {"pools": ["small"], "routes": routes}}}
        config["pools"]["new"] = config["pools"]["small"] | {"served_model": "fake-new", "endpoints": [new.url]}
        async with gateway_in_loop(config, tmp_path) as gateway:
            assert await served(gateway, (old, new)) == (4, 0)
            status, started = await admin(gateway, "rollouts/start", model="m", candidate="new")
            assert (status, started["phase"], started["percent"], started["base"]) == (200, "running", 1, "small")
            for percent in (5, 25, 50, 100):
                assert (await admin(gateway, "rollouts/step", model="m"))[1]["percent"] == percent
            assert await served(gateway, (old, new)) == (0, 4)
            assert [each["verb"] for each in (await gateway.status())["overrides"]] == ["rollout"]

            status, _ = await admin(gateway, "rollouts/abort", model="m")
            assert (status, await served(gateway, (old, new))) == (200, (4, 0))
            _, listed = await admin(gateway, "rollouts/status")
            assert [(each["model"], each["phase"]) for each in listed["data"]] == [("m", "reverted")]
            assert listed["data"][0]["since"].endswith("Z")

            status, again = await admin(gateway, "rollouts/abort", model="m")
            assert (status, again["error"]["code"]) == (409, "conflict")
            status, unknown = await admin(gateway, "rollouts/start", model="gone", candidate="new")
            assert (status, unknown["error"]["message"]) == (404, 'no model "gone"')
            status, _ = await admin(gateway, "rollouts/start", model="m", candidate="new", step_s=0)
            assert status == 400


async def test_rollout_without_routes_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, _, _):
        status, answer = await admin(gateway, "rollouts/start", model="m", candidate="new")

    assert status == 409
    assert answer["error"]["message"].startswith("no model had routes when the gateway started; restart it")
