"""Does a caller get what its class allows, is it told what that is, and is its patience known?"""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from headgate.edge.client import Client, Headers
from headgate.edge.intake import TIME_LEFT_MAX, Intake, Turned, take_in
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.model.units import SECOND, RequestId, TenantId
from testing.fake_engine import Behaviour, FakeEngine, token_text
from testing.gateway import CHAT, GatewayInLoop, a_config, chat, gateway_in_loop

RESPONSES = "/v1/responses"
MINUTE_MS = b"60000"


# From headers to ticket


class NoWire:
    """A caller that is sent nothing."""

    blocked = False

    def identified(self, _tenant: TenantId | None = None) -> bool:
        return True

    def ask_for_body(self) -> None: ...

    def send_head(self, status: int, headers: Headers) -> None: ...

    def send(self, data: bytes) -> None: ...

    def send_end(self, data: bytes) -> None: ...


async def taken_in(headers: dict[bytes, bytes] | None = None, api: Api = Api.CHAT, **fields: object) -> Intake:
    client = Client(NoWire(), method="POST", path=b"/", headers=headers or {}, body_bytes_max=2**21)
    client.take_body(json.dumps(chat(**fields)).encode())
    client.complete_body()
    request_id, tenant = RequestId("r1"), TenantId("t")
    return await take_in(client, api=api, tenant=tenant, request_id=request_id, body_bytes_max=2**21)


async def refusal(headers: dict[bytes, bytes]) -> Turned:
    with pytest.raises(Turned) as caught:
        await taken_in(headers)
    return caught.value


async def test_a_ticket_says_what_trimming_cannot_remove() -> None:
    last = {"role": "user", "content": "2"}
    intake = await taken_in(messages=[{"role": "user", "content": "1"}, last])

    assert intake.ticket.prompt_bytes_kept == len(json.dumps([last]))
    assert intake.ticket.prompt_bytes == len(json.dumps([last, last]))
    assert not intake.body.is_large


async def test_a_large_body_is_one_for_a_thread() -> None:
    assert (await taken_in(content="x" * 300_000)).body.is_large


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "headers",
    [
        {b"x-headgate-deadline-ms": MINUTE_MS},
        {b"x-envoy-expected-rq-timeout-ms": MINUTE_MS},
        {
            b"x-headgate-deadline-ms": MINUTE_MS,
            b"x-envoy-expected-rq-timeout-ms": b"1",
            b"x-stainless-read-timeout": b"2",
        },
        {b"x-envoy-expected-rq-timeout-ms": MINUTE_MS, b"x-stainless-read-timeout": b"2"},
    ],
)
async def test_a_deadline_is_for_the_whole_answer(headers: dict[bytes, bytes], stream: bool) -> None:
    ticket = (await taken_in(headers, stream=stream)).ticket

    assert (ticket.first_token_ns_left, ticket.completion_ns_left) == (None, 60 * SECOND)


@pytest.mark.parametrize(("said", "seconds"), [(b"60", 60), (b"60.0", 60), (b"0.25", 0.25), (b"6e1", 60)])
async def test_the_sdk_waits_for_each_read(said: bytes, seconds: float) -> None:
    headers = {b"x-stainless-read-timeout": said}
    streamed, whole = (await taken_in(headers, stream=True)).ticket, (await taken_in(headers)).ticket

    assert (streamed.first_token_ns_left, streamed.completion_ns_left) == (int(seconds * SECOND), None)
    assert (whole.first_token_ns_left, whole.completion_ns_left) == (None, int(seconds * SECOND))


@pytest.mark.parametrize("value", [b"soon", b"", b"0", b"-5", b"1.5", b"1e3", b"\xb2", b"5 s"])
async def test_our_own_deadline_must_be_one(value: bytes) -> None:
    turned = await refusal({b"x-headgate-deadline-ms": value})

    assert turned.outcome is Outcome.INVALID
    assert turned.param == "x-headgate-deadline-ms"
    assert turned.message == "x-headgate-deadline-ms must be a whole number of milliseconds above 0"


@pytest.mark.parametrize("value", [b"soon", b"", b"0", b"-5", b"nan", b"inf", b"None", b"\xff", b"9" * 5000])
async def test_what_others_say_of_their_patience_is_no_error(value: bytes) -> None:
    digits = value.isdigit() and int(value[:9]) > 0
    proxys = (await taken_in({b"x-envoy-expected-rq-timeout-ms": value})).ticket
    sdks = (await taken_in({b"x-stainless-read-timeout": value})).ticket

    assert proxys.completion_ns_left == (TIME_LEFT_MAX if digits else None)
    assert sdks.completion_ns_left is None


async def test_patience_ends_after_a_day() -> None:
    for headers in ({b"x-headgate-deadline-ms": b"9" * 15}, {b"x-stainless-read-timeout": b"1e30"}):
        assert (await taken_in(headers)).ticket.completion_ns_left == TIME_LEFT_MAX


async def test_without_a_word_there_is_no_deadline() -> None:
    ticket = (await taken_in()).ticket

    assert (ticket.first_token_ns_left, ticket.completion_ns_left, ticket.idempotency_key) == (None, None, None)


@pytest.mark.parametrize("key", [b"a", b"order 7/9", b"~" * 255])
async def test_a_key_for_sending_again_reaches_the_ticket(key: bytes) -> None:
    assert (await taken_in({b"idempotency-key": key})).ticket.idempotency_key == key.decode()


@pytest.mark.parametrize("key", [b"", b"a" * 256, b"a\tb", b"caf\xe9", b"\x7f"])
async def test_a_key_that_cannot_be_kept_is_refused(key: bytes) -> None:
    turned = await refusal({b"idempotency-key": key})

    assert (turned.outcome, turned.param) == (Outcome.INVALID, "idempotency-key")


# Through the gateway


def with_caps(url: str, **caps: object) -> dict[str, Any]:
    return a_config(url, classes={"interactive": {"caps": caps}})


async def asked_of(gateway: GatewayInLoop, engine: FakeEngine, body: dict[str, Any]) -> tuple[dict[str, object], str]:
    """What the engine was sent, and what the caller was told had been given up."""
    async with gateway.post(body) as answer:
        assert answer.status == 200
        degraded = answer.headers["x-headgate-degraded"]
        await answer.read()
    return (await engine.next_request()).json, degraded


async def test_what_goes_beyond_a_class_is_lowered_and_told(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = with_caps(engine.url, output_tokens=5, n=2)
        async with gateway_in_loop(config, tmp_path) as gateway:
            sent, degraded = await asked_of(gateway, engine, chat(max_tokens=50, n=9, seed=7))
            within, untouched = await asked_of(gateway, engine, chat(max_tokens=5, seed=7))

    assert (sent["max_tokens"], sent["n"], sent["seed"]) == (5, 2, 7)
    assert degraded == "output_tokens=5, n=2"
    assert (within["max_tokens"], untouched) == (5, "none")


async def test_the_oldest_turns_go_where_the_class_says_so(tmp_path: Path) -> None:
    def turns(count: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{number} " * 20} for number in range(count)]

    async with FakeEngine() as engine:
        config = with_caps(engine.url, prompt_tokens=40, trims_prompt=True)
        async with gateway_in_loop(config, tmp_path) as gateway:
            body = chat(max_tokens=1) | {"messages": [{"role": "system", "content": "Be brief."}, *turns(5)]}
            sent, degraded = await asked_of(gateway, engine, body)

    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, *turns(5)[-1:]]
    assert degraded == "turns_dropped=4"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 1000}, "n"),
        ({"priority": "urgent"}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"prompt_logprobs": "all"}, "prompt_logprobs"),
        ({"kv_transfer_params": {"remote_host": "10.0.0.1"}}, "kv_transfer_params"),
    ],
)
async def test_a_request_of_death_ends_at_the_door(tmp_path: Path, fields: dict[str, object], param: str) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(**fields)) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 400
    assert (error["code"], error["param"]) == ("invalid_request_error", param)
    assert engine.requests == []


# Responses


def sdk(gateway: GatewayInLoop) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)


async def test_the_official_client_gets_a_response_whole_and_streamed(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with sdk(gateway) as client:
            whole = await client.responses.create(model="m", input="hi", max_output_tokens=3)
            stream = await client.responses.create(model="m", input="hi", max_output_tokens=3, stream=True)
            events = [event async for event in stream]
        first, second = [await engine.next_request() for _ in range(2)]

    text = "".join(token_text(number) for number in range(3))
    assert whole.output_text == text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert [event.type for event in (*events[:2], events[-1])] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert (first.path, first.json["model"]) == (RESPONSES, "fake")
    assert "stream_options" not in second.json


async def test_a_response_that_fails_after_its_announcement_is_made_elsewhere(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.script.append(Behaviour(tokens=3, error_after=0))
        async with sdk(gateway) as client:
            stream = await client.responses.create(model="m", input="hi", max_output_tokens=3, stream=True)
            kinds = [event.type async for event in stream]

    assert kinds.count("response.created") == 1
    assert kinds[-1] == "response.completed"
    assert len(engine.requests) == 2


@pytest.mark.parametrize("end", [Behaviour(tokens=3, error_after=2), Behaviour(tokens=3, cut_after=2)])
async def test_the_official_client_raises_when_a_response_is_interrupted(tmp_path: Path, end: Behaviour) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = end
        seen: list[str] = []

        async def follow() -> None:
            async for event in await client.responses.create(model="m", input="hi", stream=True):
                seen.append(event.type)  # noqa: PERF401 (what came before the error counts)

        async with sdk(gateway) as client:
            with pytest.raises(openai.APIError, match="engine_failed") as caught:
                await follow()

    assert caught.value.code == "stream_interrupted"
    assert seen.count("response.output_text.delta") == 2
    assert "response.completed" not in seen


async def test_a_response_without_its_end_is_not_taken_for_one(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=2, without_done=True)
        async with gateway.post({"model": "m", "input": "hi", "stream": True}, RESPONSES) as answer:
            stream = await answer.read()

    assert answer.status == 200
    assert stream.rstrip().splitlines()[-2] == b"event: error"
    assert b"stream_interrupted" in stream


async def test_a_response_keeps_to_its_class(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(with_caps(engine.url, output_tokens=2), tmp_path) as gateway:
            async with gateway.post({"model": "m", "input": "hi"}, RESPONSES) as answer:
                degraded = answer.headers["x-headgate-degraded"]
            sent = (await engine.next_request()).json

    assert sent["max_output_tokens"] == 2
    assert degraded == "output_tokens=2"


async def test_prefixes_of_tenants_are_kept_apart(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        for fields in ({}, {"cache_salt": "mine"}, {"cache_salt": "mine", "priority": 3}):
            async with gateway.post(chat(**fields), CHAT) as answer:
                assert answer.status == 200
        sent = [(await engine.next_request()).json for _ in range(3)]

    plain, salted, again = (each.get("cache_salt") for each in sent)
    assert plain != salted == again != "mine"
    assert "priority" not in sent[2]
