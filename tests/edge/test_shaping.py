"""Tests for class caps, client deadlines, idempotency keys and the Responses API."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from headgate.edge.client import Client, Headers
from headgate.edge.parsed_request import TIME_LEFT_MAX, EdgeRejection, ParsedRequest, read_request
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.model.units import SECOND, RequestId, TenantId
from testing.fake_engine import Behaviour, FakeEngine, token_text
from testing.gateway import CHAT, GatewayInLoop, a_config, chat, gateway_in_loop

RESPONSES = "/v1/responses"
MINUTE_MS = b"60000"


# Headers to ticket


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


async def taken_in(headers: dict[bytes, bytes] | None = None, api: Api = Api.CHAT, **fields: object) -> ParsedRequest:
    client = Client(NoWire(), method="POST", path=b"/", headers=headers or {}, body_bytes_max=2**21)
    client.add_body(json.dumps(chat(**fields)).encode())
    client.complete_body()
    request_id, tenant = RequestId("r1"), TenantId("t")
    return await read_request(client, api=api, tenant=tenant, request_id=request_id, body_bytes_max=2**21)


async def refusal(headers: dict[bytes, bytes]) -> EdgeRejection:
    with pytest.raises(EdgeRejection) as caught:
        await taken_in(headers)
    return caught.value


async def test_ticket_has_the_number_of_prompt_bytes_kept_by_trimming() -> None:
    last = {"role": "user", "content": "2"}
    intake = await taken_in(messages=[{"role": "user", "content": "1"}, last])

    assert intake.ticket.untrimmable_bytes == len(json.dumps([last]))
    assert intake.ticket.prompt_bytes == len(json.dumps([last, last]))
    assert not intake.body.is_large


async def test_large_body_is_marked_as_large() -> None:
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
async def test_deadline_header_applies_to_the_complete_response(headers: dict[bytes, bytes], stream: bool) -> None:
    ticket = (await taken_in(headers, stream=stream)).ticket

    assert (ticket.first_token_ns_left, ticket.completion_ns_left) == (None, 60 * SECOND)


@pytest.mark.parametrize(("said", "seconds"), [(b"60", 60), (b"60.0", 60), (b"0.25", 0.25), (b"6e1", 60)])
async def test_sdk_read_timeout_limits_time_to_first_token_or_to_complete_response(said: bytes, seconds: float) -> None:
    headers = {b"x-stainless-read-timeout": said}
    streamed, whole = (await taken_in(headers, stream=True)).ticket, (await taken_in(headers)).ticket

    assert (streamed.first_token_ns_left, streamed.completion_ns_left) == (int(seconds * SECOND), None)
    assert (whole.first_token_ns_left, whole.completion_ns_left) == (None, int(seconds * SECOND))


@pytest.mark.parametrize("value", [b"soon", b"", b"0", b"-5", b"1.5", b"1e3", b"\xb2", b"5 s"])
async def test_invalid_deadline_header_is_rejected(value: bytes) -> None:
    turned = await refusal({b"x-headgate-deadline-ms": value})

    assert turned.outcome is Outcome.INVALID_REQUEST
    assert turned.param == "x-headgate-deadline-ms"
    assert turned.message == "x-headgate-deadline-ms must be a positive whole number of milliseconds"


@pytest.mark.parametrize("value", [b"soon", b"", b"0", b"-5", b"nan", b"inf", b"None", b"\xff", b"9" * 5000])
async def test_invalid_timeouts_from_proxies_and_sdks_are_ignored(value: bytes) -> None:
    digits = value.isdigit() and int(value[:9]) > 0
    proxys = (await taken_in({b"x-envoy-expected-rq-timeout-ms": value})).ticket
    sdks = (await taken_in({b"x-stainless-read-timeout": value})).ticket

    assert proxys.completion_ns_left == (TIME_LEFT_MAX if digits else None)
    assert sdks.completion_ns_left is None


async def test_deadline_is_limited_to_one_day() -> None:
    for headers in ({b"x-headgate-deadline-ms": b"9" * 15}, {b"x-stainless-read-timeout": b"1e30"}):
        assert (await taken_in(headers)).ticket.completion_ns_left == TIME_LEFT_MAX


async def test_request_without_headers_has_no_deadline() -> None:
    ticket = (await taken_in()).ticket

    assert (ticket.first_token_ns_left, ticket.completion_ns_left, ticket.idempotency_key) == (None, None, None)


@pytest.mark.parametrize("key", [b"a", b"order 7/9", b"~" * 255])
async def test_ticket_contains_the_idempotency_key(key: bytes) -> None:
    assert (await taken_in({b"idempotency-key": key})).ticket.idempotency_key == key.decode()


@pytest.mark.parametrize("key", [b"", b"a" * 256, b"a\tb", b"caf\xe9", b"\x7f"])
async def test_invalid_idempotency_key_is_rejected(key: bytes) -> None:
    turned = await refusal({b"idempotency-key": key})

    assert (turned.outcome, turned.param) == (Outcome.INVALID_REQUEST, "idempotency-key")


# Gateway


def with_caps(url: str, **caps: object) -> dict[str, Any]:
    return a_config(url, classes={"interactive": {"caps": caps}})


async def asked_of(gateway: GatewayInLoop, engine: FakeEngine, body: dict[str, Any]) -> tuple[dict[str, object], str]:
    """Returns the request that the engine received, and the degradation header in the response."""
    async with gateway.post(body) as answer:
        assert answer.status == 200
        degraded = answer.headers["x-headgate-degraded"]
        await answer.read()
    return (await engine.next_request()).json, degraded


async def test_values_exceeding_class_caps_are_lowered_and_reported(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = with_caps(engine.url, output_tokens=5, n=2)
        async with gateway_in_loop(config, tmp_path) as gateway:
            sent, degraded = await asked_of(gateway, engine, chat(max_tokens=50, n=9, seed=7))
            within, untouched = await asked_of(gateway, engine, chat(max_tokens=5, seed=7))

    assert (sent["max_tokens"], sent["n"], sent["seed"]) == (5, 2, 7)
    assert degraded == "output_tokens=5, n=2"
    assert (within["max_tokens"], untouched) == (5, "none")


async def test_oldest_turns_are_dropped_if_the_class_trims_prompts(tmp_path: Path) -> None:
    def turns(count: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{number} " * 20} for number in range(count)]

    async with FakeEngine() as engine:
        config = with_caps(engine.url, prompt_tokens=40, trim_prompt=True)
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
async def test_harmful_request_is_rejected_before_dispatch(
    tmp_path: Path, fields: dict[str, object], param: str
) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(**fields)) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 400
    assert (error["code"], error["param"]) == ("invalid_request_error", param)
    assert engine.requests == []


# Responses API


def sdk(gateway: GatewayInLoop) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)


async def test_openai_client_gets_complete_and_streamed_responses(tmp_path: Path) -> None:
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


async def test_response_failing_before_its_first_token_is_retried(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.script.append(Behaviour(tokens=3, error_after=0))
        async with sdk(gateway) as client:
            stream = await client.responses.create(model="m", input="hi", max_output_tokens=3, stream=True)
            kinds = [event.type async for event in stream]

    assert kinds.count("response.created") == 1
    assert kinds[-1] == "response.completed"
    assert len(engine.requests) == 2


@pytest.mark.parametrize("end", [Behaviour(tokens=3, error_after=2), Behaviour(tokens=3, cut_after=2)])
async def test_openai_client_raises_when_a_response_is_interrupted(tmp_path: Path, end: Behaviour) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = end
        seen: list[str] = []

        async def follow() -> None:
            async for event in await client.responses.create(model="m", input="hi", stream=True):
                seen.append(event.type)  # noqa: PERF401 (events before the error must be kept)

        async with sdk(gateway) as client:
            with pytest.raises(openai.APIError, match="engine_error") as caught:
                await follow()

    assert caught.value.code == "stream_interrupted"
    assert seen.count("response.output_text.delta") == 2
    assert "response.completed" not in seen


async def test_response_without_its_final_event_is_interrupted(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=2, without_done=True)
        async with gateway.post({"model": "m", "input": "hi", "stream": True}, RESPONSES) as answer:
            stream = await answer.read()

    assert answer.status == 200
    assert stream.rstrip().splitlines()[-2] == b"event: error"
    assert b"stream_interrupted" in stream


async def test_responses_request_is_capped_by_its_class(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(with_caps(engine.url, output_tokens=2), tmp_path) as gateway:
            async with gateway.post({"model": "m", "input": "hi"}, RESPONSES) as answer:
                degraded = answer.headers["x-headgate-degraded"]
            sent = (await engine.next_request()).json

    assert sent["max_output_tokens"] == 2
    assert degraded == "output_tokens=2"


async def test_cache_salts_separate_prefixes(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        for fields in ({}, {"cache_salt": "mine"}, {"cache_salt": "mine", "priority": 3}):
            async with gateway.post(chat(**fields), CHAT) as answer:
                assert answer.status == 200
        sent = [(await engine.next_request()).json for _ in range(3)]

    plain, salted, again = (each.get("cache_salt") for each in sent)
    assert plain != salted == again != "mine"
    assert "priority" not in sent[2]
