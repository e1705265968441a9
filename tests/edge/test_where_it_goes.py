"""Does what a caller says about where its request may go reach the scheduler, and is it told who served it?"""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.edge.client import Client, Headers
from headgate.edge.intake import take_in
from headgate.edge.replies import tale
from headgate.model.ticket import Api, Ticket
from headgate.model.units import ClassName, Duration, ModelName, RequestId, TenantId
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from testing.ports import free_port


class NoWire:
    """A caller that is sent nothing."""

    blocked = False

    def identified(self, _tenant: TenantId | None = None) -> bool:
        return True

    def ask_for_body(self) -> None: ...

    def send_head(self, status: int, headers: Headers) -> None: ...

    def send(self, data: bytes) -> None: ...

    def send_end(self, data: bytes) -> None: ...


async def a_ticket(headers: dict[bytes, bytes] | None = None, zone: str = "", **fields: object) -> Ticket:
    client = Client(NoWire(), method="POST", path=b"/", headers=headers or {}, body_bytes_max=2**21)
    client.take_body(json.dumps(chat(**fields)).encode())
    client.complete_body()
    request_id, tenant = RequestId("r1"), TenantId("t")
    intake = await take_in(client, api=Api.CHAT, tenant=tenant, request_id=request_id, body_bytes_max=2**21, zone=zone)
    return intake.ticket


async def test_a_ticket_says_how_much_is_asked_for() -> None:
    ticket = await a_ticket(n=3, max_completion_tokens=50)

    assert (ticket.n, ticket.output_tokens_max) == (3, 50)


async def test_without_a_word_one_answer_of_any_length_is_asked_for() -> None:
    ticket = await a_ticket()

    assert (ticket.n, ticket.output_tokens_max) == (1, None)


@pytest.mark.parametrize(("headers", "rung"), [({}, None), ({b"x-headgate-rung": b"best"}, "best")])
async def test_a_ticket_says_which_rung_was_named(headers: dict[bytes, bytes], rung: str | None) -> None:
    assert (await a_ticket(headers)).rung == rung


async def test_a_ticket_says_where_its_gateway_stands() -> None:
    assert (await a_ticket(zone="a")).zone == "a"


def test_a_model_s_name_that_no_header_can_carry_is_told_all_the_same() -> None:
    told = dict(tale(ClassName("c"), ModelName("größe"), Duration(0), 1, ("model=größe",)))

    assert (told[b"x-headgate-model"], told[b"x-headgate-degraded"]) == (b"gr??e", b"model=gr??e")


# Through the gateway


def of_two_pools(*urls: str, **models: Any) -> dict[str, Any]:
    config = a_config(urls[0], models=models)
    config["pools"]["large"] = config["pools"]["small"] | {"served_model": "fake-large", "endpoints": [urls[1]]}
    return config


async def test_a_caller_that_names_a_rung_is_served_by_it(tmp_path: Path) -> None:
    async with FakeEngine() as small, FakeEngine(models=("fake-large",)) as large:
        rungs = [{"named": "best", "pools": ["large"]}, {"pools": ["small"]}]
        config = of_two_pools(small.url, large.url, m={"pools": ["small", "large"], "rungs": rungs})
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat(), headers={"x-headgate-rung": "best"}) as best:
                assert best.headers["x-headgate-model"] == "m"
            async with gateway.post(chat()) as usual:
                assert usual.status == 200
            async with gateway.post(chat(), headers={"x-headgate-rung": "huge"}) as unknown:
                error = (await unknown.json())["error"]

    assert best.status == 200
    assert (len(small.requests), len(large.requests)) == (1, 1)
    assert unknown.status == 400
    assert error["message"].startswith('model "m" has no rung "huge"; its rungs are: best')


async def test_a_caller_is_told_which_model_served_instead(tmp_path: Path) -> None:
    async with FakeEngine(models=("fake-large",)) as large:
        nowhere = f"http://127.0.0.1:{free_port()}"
        config = of_two_pools(nowhere, large.url, m={"pools": ["small"], "fallbacks": ["n"]}, n={"pools": ["large"]})
        async with gateway_in_loop(config, tmp_path, wait_for=1) as gateway:
            async with gateway.post(chat()) as answer:
                assert answer.status == 200

    assert answer.headers["x-headgate-model"] == "n"
    assert answer.headers["x-headgate-degraded"] == "model=n"
    assert len(large.requests) == 1
