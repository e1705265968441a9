"""Healthy endpoints are not ejected because of poison requests or a gateway that is out of file descriptors."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headgate.wire.keys import digest, format_digest
from testing.descriptors import no_descriptors_left
from testing.fake_engine import Behaviour, FakeEngine, Received
from testing.fake_http import Connection
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop
from tests.lessons.scraped import series_of

SECRET = "of the tests, and long enough"
POISON = "poison"


class Allergic(FakeEngine):
    """Responds with 500 to certain prompts and serves all others."""

    async def _generate(self, connection: Connection, received: Received) -> None:
        if POISON.encode() in received.raw:
            self.script.appendleft(Behaviour(status=500))
        await super()._generate(connection, received)


def tenant(name: str) -> dict[str, Any]:
    return {"keys": [format_digest(digest(SECRET.encode(), f"sk-{name}"))]}


async def asked(gateway: GatewayInLoop, name: str, content: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    async with gateway.post(chat(content), headers={"authorization": f"Bearer sk-{name}"}) as answer:
        return answer.status, {key.lower(): value for key, value in answer.headers.items()}, await answer.json()


async def test_poison_requests_from_one_tenant_eject_no_engine_and_affect_no_other_tenant(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(Allergic()) for _ in range(4)]
        tenants = {"attacker": tenant("attacker"), "victim": tenant("victim")}
        config = a_config(*(each.url for each in engines), key_secret=SECRET, tenants=tenants)
        del config["anonymous_tenant"]
        gateway = await stack.enter_async_context(gateway_in_loop(config, tmp_path))
        for number in range(5):
            served = [asked(gateway, "victim", "hi") for _ in range(8)]
            poison = [asked(gateway, "attacker", f"{POISON} {number} {each}") for each in range(30)]
            told = await asyncio.gather(*served, *poison)
            assert [status for status, *_ in told[:8]] == [200] * 8
            assert all(status in (422, 502) for status, *_ in told[8:])
        assert {each["state"] for each in (await gateway.status())["endpoints"]} == {"ready"}
        assert (await series_of(gateway))["headgate_endpoint_ejections_total{pool=small}"] == 0


async def test_repeated_poison_request_is_rejected_before_dispatch_but_only_for_its_tenant(tmp_path: Path) -> None:
    async with Allergic() as one, Allergic() as other:
        tenants = {"acme": tenant("acme"), "bolt": tenant("bolt")}
        config = a_config(one.url, other.url, key_secret=SECRET, tenants=tenants)
        del config["anonymous_tenant"]
        async with gateway_in_loop(config, tmp_path) as gateway:
            assert [(await asked(gateway, "acme", f"hi {each}"))[0] for each in range(4)] == [200] * 4
            first = await asked(gateway, "acme", POISON)
            sent = len(one.requests) + len(other.requests)
            again = await asked(gateway, "acme", POISON)
            assert len(one.requests) + len(other.requests) == sent
            await asked(gateway, "bolt", POISON)
            assert len(one.requests) + len(other.requests) > sent

    assert (first[0], again[0]) == (422, 422)
    _, headers, body = again
    assert body["error"]["code"] == "request_quarantined"
    assert headers["x-should-retry"] == "false"
    assert 1 <= int(headers["retry-after"]) <= 60


async def test_running_out_of_descriptors_is_treated_as_a_gateway_fault(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, health={"consecutive_failures_max": 1}), tmp_path) as gateway:
            async with gateway.http.get(gateway.url + "/v1/models") as answer:
                await answer.read()
            with no_descriptors_left():
                async with gateway.post(chat()) as answer:
                    status, error = answer.status, (await answer.json())["error"]
            assert (status, error["code"]) == (503, "gateway_error")
            assert "too many open files (internal_error)" in error["message"]
            # The request was retried without success.
            assert (await series_of(gateway))["headgate_attempt_faults_total{pool=small,fault=gateway}"] == 3
            assert {each["state"] for each in (await gateway.status())["endpoints"]} == {"ready"}
            async with gateway.post(chat()) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.timing)])
async def test_response_exceeding_its_timeout_is_not_retried_and_ejects_no_endpoint(
    tmp_path: Path, *, stream: bool
) -> None:
    # The timeout must be long enough for the stream to start.
    classes = {"interactive": {"priority_band": 0, "attempt_timeout": "3s"}}
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=8, hang_after=2) if stream else Behaviour(hang_before_head=True)
        config = a_config(
            engine.url, engine="openai_compatible", classes=classes, health={"consecutive_failures_max": 1}
        )
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat(stream=stream)) as answer:
                text = await answer.text()
            assert "not complete within 3 s" in text
            assert (answer.status, len(engine.requests)) == (200 if stream else 504, 1)
            assert {each["state"] for each in (await gateway.status())["endpoints"]} == {"ready"}


async def test_first_token_timeout_is_treated_as_an_engine_fault(tmp_path: Path) -> None:
    classes = {"interactive": {"priority_band": 0, "attempt_timeout": "200ms"}}
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(hang_before_head=True)
        config = a_config(
            engine.url, classes=classes, health={"consecutive_failures_max": 1}, retry={"attempts_max": 1}
        )
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat(stream=True)) as answer:
                assert answer.status == 504
            assert {each["state"] for each in (await gateway.status())["endpoints"]} == {"ejected"}
