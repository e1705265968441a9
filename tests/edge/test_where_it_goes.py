"""Tests for routing hints in a request and for the routing headers in its response."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.edge.client import Client, Headers
from headgate.edge.error_replies import routing_headers
from headgate.edge.parsed_request import read_request
from headgate.model.ticket import Api, Ticket
from headgate.model.units import SECOND, ClassName, Duration, ModelName, RequestId, TenantId
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from testing.ports import free_port


class NoWire:
    """A client connection that discards everything sent to it."""

    blocked = False

    def mark_authenticated(self, _tenant: TenantId | None = None) -> bool:
        return True

    def pause_body(self) -> None: ...

    def resume_body(self) -> None: ...

    def send_continue(self) -> None: ...

    def send_head(self, status: int, headers: Headers) -> None: ...

    def send(self, data: bytes) -> None: ...

    def send_end(self, data: bytes) -> None: ...

    def chunk_writer(self) -> None: ...


async def a_ticket(headers: dict[bytes, bytes] | None = None, zone: str = "", **fields: object) -> Ticket:
    client = Client(NoWire(), method="POST", path=b"/", headers=headers or {}, body_bytes_max=2**21)
    client.add_body(json.dumps(chat(**fields)).encode())
    client.complete_body()
    request_id, tenant = RequestId("r1"), TenantId("t")
    intake = await read_request(
        client, api=Api.CHAT, tenant=tenant, request_id=request_id, body_bytes_max=2**21, zone=zone
    )
    return intake.ticket


async def test_ticket_contains_choices_and_output_limit() -> None:
    ticket = await a_ticket(n=3, max_completion_tokens=50)

    assert (ticket.n, ticket.output_tokens_max) == (3, 50)


async def test_ticket_defaults_to_one_choice_without_output_limit() -> None:
    ticket = await a_ticket()

    assert (ticket.n, ticket.output_tokens_max) == (1, None)


@pytest.mark.parametrize(("headers", "rung"), [({}, None), ({b"x-headgate-model-tier": b"best"}, "best")])
async def test_ticket_contains_the_requested_tier(headers: dict[bytes, bytes], rung: str | None) -> None:
    assert (await a_ticket(headers)).model_tier == rung


async def test_ticket_contains_its_gateways_zone() -> None:
    assert (await a_ticket(zone="a")).zone == "a"


async def test_every_field_of_a_ticket_comes_from_its_own_part_of_the_request() -> None:
    headers = {
        b"x-headgate-class": b"batch",
        b"x-headgate-model-tier": b"best",
        b"x-stainless-retry-count": b"2",
        b"x-stainless-read-timeout": b"7",
        b"idempotency-key": b"key",
    }
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    messages = [*messages, {"role": "user", "content": "three"}]
    told: dict[str, object] = {"model": "m", "messages": messages, "tools": [{"type": "x"}], "service_tier": "flex"}
    ticket = await a_ticket(headers, "z", **told, stream=True, n=3, max_tokens=50)
    text, kept, tools = (len(json.dumps(each).encode()) for each in (messages, [messages[-1]], told["tools"]))

    assert ticket == Ticket(
        request_id=RequestId("r1"),
        api=Api.CHAT,
        model=ModelName("m"),
        tenant=TenantId("t"),
        stream=True,
        prompt_bytes=text + tools,
        requested_class="batch",
        service_tier="flex",
        client_retries=2,
        untrimmable_bytes=kept + tools,
        first_token_ns_left=Duration(7 * SECOND),
        completion_ns_left=None,
        idempotency_key="key",
        n=3,
        output_tokens_max=50,
        model_tier="best",
        zone="z",
        prompts=1,
        prompt_bytes_before_prefix=tools,
        fingerprint=ticket.fingerprint,
        has_media=False,
    )
    assert len(ticket.fingerprint) == 32


def test_non_ascii_model_name_is_sanitized_in_headers() -> None:
    told = dict(routing_headers(ClassName("c"), ModelName("größe"), Duration(0), 1, ("model=größe",)))

    assert (told[b"x-headgate-model"], told[b"x-headgate-degraded"]) == (b"gr??e", b"model=gr??e")


# Gateway


def of_two_pools(*urls: str, **models: Any) -> dict[str, Any]:
    config = a_config(urls[0], models=models)
    config["pools"]["large"] = config["pools"]["small"] | {"served_model": "fake-large", "endpoints": [urls[1]]}
    return config


async def test_requested_tier_serves_the_request(tmp_path: Path) -> None:
    async with FakeEngine() as small, FakeEngine(models=("fake-large",)) as large:
        tiers = [{"name": "best", "pools": ["large"]}, {"pools": ["small"]}]
        config = of_two_pools(small.url, large.url, m={"pools": ["small", "large"], "tiers": tiers})
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat(), headers={"x-headgate-model-tier": "best"}) as best:
                assert best.headers["x-headgate-model"] == "m"
            async with gateway.post(chat()) as usual:
                assert usual.status == 200
            async with gateway.post(chat(), headers={"x-headgate-model-tier": "huge"}) as unknown:
                error = (await unknown.json())["error"]

    assert best.status == 200
    assert (len(small.requests), len(large.requests)) == (1, 1)
    assert unknown.status == 400
    assert error["message"].startswith('model "m" has no tier "huge"; available tiers: best')


async def test_response_header_names_the_fallback_model(tmp_path: Path) -> None:
    async with FakeEngine(models=("fake-large",)) as large:
        nowhere = f"http://127.0.0.1:{free_port()}"
        config = of_two_pools(nowhere, large.url, m={"pools": ["small"], "fallbacks": ["n"]}, n={"pools": ["large"]})
        async with gateway_in_loop(config, tmp_path, wait_for=1) as gateway:
            async with gateway.post(chat()) as answer:
                assert answer.status == 200

    assert answer.headers["x-headgate-model"] == "n"
    assert answer.headers["x-headgate-degraded"] == "model=n"
    assert len(large.requests) == 1


async def test_routes_follow_headers_weights_and_the_sticky_user_even_after_a_reload(tmp_path: Path) -> None:
    def config(*weights: int) -> dict[str, Any]:
        routes = [
            {"name": "testers", "pools": ["large"], "match": {"headers": {"X-Beta": ["1"]}}},
            {"pools": ["small"], "weight": weights[0]},
            {"pools": ["large"], "weight": weights[1]},
        ]
        return of_two_pools(small.url, large.url, m={"pools": ["small"], "routes": routes, "sticky": "user"})

    async with FakeEngine() as small, FakeEngine(models=("fake-large",)) as large:
        async with gateway_in_loop(config(1, 1), tmp_path) as gateway:

            async def served_by(user: str | None = None, **headers: str) -> str:
                before = len(large.requests)
                fields = {} if user is None else {"user": user}
                async with gateway.post(chat(model="m", **fields), headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                return "large" if len(large.requests) > before else "small"

            users = [f"user{number}" for number in range(12)]
            first = {user: await served_by(user) for user in users}
            assert set(first.values()) == {"small", "large"}
            assert {user: await served_by(user) for user in users} == first
            assert await served_by(**{"x-beta": "1"}) == "large"

            await gateway.rewrite(config(1, 0))
            assert {await served_by(user) for user in users} == {"small"}
            assert await served_by(**{"x-beta": "1"}) == "large"
