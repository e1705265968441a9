"""Hosted providers: what they receive, and the rate limits that they report."""

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.engines.dialects import DIALECTS
from headgate.engines.http_engine import HttpEngine
from headgate.engines.provider import DISABLED_FIELDS, PRIVATE_FIELDS, PRIVATE_PREFIXES
from headgate.model.provider_limits import ProviderLimits
from headgate.model.ticket import Api
from headgate.model.units import SECOND
from headgate.ports.api_key import ApiKey
from headgate.ports.engine import Call
from testing.fake_engine import Behaviour, FakeEngine
from tests.engines.calls import a_call, read_all

PROJECT = Path(__file__).parents[2]
KEY = "canary-provider-key"


@pytest.fixture
async def provider() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(api_key=KEY) as engine:
        engine.api_key_header = "api-key"
        yield engine


async def asked(
    provider: FakeEngine, call: Call, *, key: ApiKey | str | None = None, betas: tuple[str, ...] = ()
) -> tuple[int, list[ProviderLimits]]:
    """Returns the status of the response and the reported limits."""
    found: list[ProviderLimits] = []
    client = HttpEngine(
        provider.url,
        served_model="vendor/model",
        api_key=key or ApiKey(KEY, "api-key"),
        dialect=DIALECTS["provider"],
        anthropic_betas=betas,
    )
    answer = await client.ask(dataclasses.replace(call, on_limits=found.append))
    await read_all(answer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    answer.close()
    client.close()
    return answer.status, found


async def test_key_is_sent_in_the_configured_header_only(provider: FakeEngine) -> None:
    status, _ = await asked(provider, a_call())

    request = await provider.next_request()
    assert (status, request.headers["api-key"]) == (200, KEY)
    assert "authorization" not in request.headers


async def test_provider_receives_nothing_about_the_caller(provider: FakeEngine) -> None:
    secret = dict.fromkeys(PRIVATE_FIELDS - {"headers", "metadata", "priority", "request_id"}, "canary-caller")
    headers = {"traceparent": "00-canary-caller", "tracestate": "canary-caller", "x-session-id": "canary-caller"}
    call = a_call(
        request_id="canary-caller",
        headers=headers,
        stream=True,
        temperature=0.5,
        metadata={"team": "canary-caller"},
        priority=7,
        **secret,
    )
    await asked(provider, dataclasses.replace(call, cache_salt="canary-caller"))

    request = await provider.next_request()
    assert "canary-caller" not in str(request.headers) + request.raw.decode()
    assert request.json == {
        "model": "vendor/model",
        "messages": request.json["messages"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
    }


async def test_callers_cannot_instruct_a_translating_gateway(provider: FakeEngine) -> None:
    fields: dict[str, Any] = {
        "extra_body": {"model": "other", "max_tokens": 1_000_000},
        "fallbacks": ["other"],
        "models": ["other"],
        "api_base": "http://other/",
        "litellm_params": {"api_key": "x"},
        "mock_response": "free",
        "user_api_key_alias": "other",
        "input_cost_per_token": 0,
    }
    await asked(provider, a_call(store=True, temperature=0.5, **fields))

    request = await provider.next_request()
    assert not fields.keys() & request.json.keys()
    assert (request.json["model"], request.json["temperature"]) == ("vendor/model", 0.5)
    assert request.json["store"] is False


def test_guide_lists_every_field_that_is_removed() -> None:
    guide = (PROJECT / "docs/guides/hosted-overflow.md").read_text()

    assert [name for name in (*PRIVATE_FIELDS, *PRIVATE_PREFIXES, *DISABLED_FIELDS) if f"`{name}`" not in guide] == []


async def test_requests_without_private_fields_are_not_copied() -> None:
    body = a_call(temperature=0.5).body

    assert body.without(PRIVATE_FIELDS, prefixes=PRIVATE_PREFIXES, disabled=DISABLED_FIELDS) is body


async def test_headers_of_the_anthropic_protocol_reach_the_provider(provider: FakeEngine) -> None:
    await asked(provider, a_call(headers={"anthropic-version": "2023-06-01", "traceparent": "t"}))

    headers = (await provider.next_request()).headers
    assert headers["anthropic-version"] == "2023-06-01"
    assert not {"traceparent", "x-request-id"} & set(headers)


@pytest.mark.parametrize(
    ("allowed", "sent", "received"),
    [
        ((), "files-api-2025-04-14", None),
        (("thinking-1",), "files-api-2025-04-14,context-1m", None),
        (("thinking-1", "tools-2"), "thinking-1, files-api-2025-04-14,tools-2", "thinking-1,tools-2"),
        (("thinking-1",), "THINKING-1", None),
    ],
)
@pytest.mark.parametrize("name", ["anthropic-beta", "Anthropic-Beta"])
async def test_provider_receives_only_the_beta_features_in_the_configuration(
    provider: FakeEngine, name: str, allowed: tuple[str, ...], sent: str, received: str | None
) -> None:
    await asked(provider, a_call(headers={name: sent}, anthropic_beta=[sent]), betas=allowed)

    request = await provider.next_request()
    assert request.headers.get("anthropic-beta") == received
    assert "anthropic_beta" not in request.json


async def test_own_engines_receive_all_beta_features(provider: FakeEngine) -> None:
    provider.api_key = None
    client = HttpEngine(provider.url, served_model="fake", api_key=None, dialect=DIALECTS["vllm"])
    answer = await client.ask(a_call(headers={"anthropic-beta": "a,b"}))
    answer.close()
    client.close()

    assert (await provider.next_request()).headers["anthropic-beta"] == "a,b"


async def test_large_bodies_lose_their_private_fields_too(provider: FakeEngine) -> None:
    content = "x" * 300_000
    call = a_call(messages=[{"role": "user", "content": content}], user="canary-caller")
    await asked(provider, call)

    request = await provider.next_request()
    assert request.json["messages"][0]["content"] == content
    assert "user" not in request.json


async def test_own_engines_still_receive_the_fields_of_the_caller(provider: FakeEngine) -> None:
    provider.api_key = None
    client = HttpEngine(provider.url, served_model="fake", api_key=None, dialect=DIALECTS["vllm"])
    answer = await client.ask(a_call(user="jo", metadata={"a": "b"}))
    answer.close()
    client.close()

    request = await provider.next_request()
    assert (request.json["user"], request.json["metadata"], request.headers["x-request-id"]) == ("jo", {"a": "b"}, "r1")


@pytest.mark.parametrize("stream", [False, True])
async def test_rate_limits_are_reported_with_the_response(provider: FakeEngine, *, stream: bool) -> None:
    headers = (
        ("X-RateLimit-Remaining-Requests", "5"),
        ("X-RateLimit-Reset-Requests", "2s"),
        ("X-RateLimit-Remaining-Tokens", "900"),
        ("X-RateLimit-Reset-Tokens", "1m0s"),
    )
    provider.script.append(Behaviour(headers=headers))

    status, found = await asked(provider, a_call(stream=stream))

    assert (status, found) == (200, [ProviderLimits(5, 2 * SECOND, 900, 60 * SECOND)])


async def test_rejection_is_reported_with_its_retry_after(provider: FakeEngine) -> None:
    provider.script.append(Behaviour(status=429, headers=(("Retry-After", "3"),)))

    assert await asked(provider, a_call()) == (429, [ProviderLimits(blocked_ns=3 * SECOND)])


async def test_rate_limits_of_own_engines_are_ignored(provider: FakeEngine) -> None:
    provider.api_key = None
    provider.script.append(Behaviour(headers=(("x-ratelimit-remaining-requests", "0"),)))
    found: list[ProviderLimits] = []
    client = HttpEngine(provider.url, served_model="fake", api_key=None, dialect=DIALECTS["openai_compatible"])
    answer = await client.ask(dataclasses.replace(a_call(), on_limits=found.append))
    answer.close()
    client.close()

    assert (answer.status, found) == (200, [])


@pytest.mark.parametrize(
    ("status", "request_is_wrong"), [(400, True), (422, True), (402, False), (429, False), (401, False)]
)
def test_errors_of_the_account_are_not_errors_of_the_request(status: int, *, request_is_wrong: bool) -> None:
    assert DIALECTS["provider"].is_request_error(status, b"{}") is request_is_wrong


TOO_LARGE = "Request too large for gpt in organization org on tokens per min (TPM): Limit 10000, Requested 20000."
NO_CREDIT = "Your credit balance is too low to access the Anthropic API."


def an_error(message: str, **fields: str) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


@pytest.mark.parametrize("prefix", ["", "litellm.RateLimitError: RateLimitError: OpenAIException - "])
async def test_request_above_the_rate_limit_does_not_block_the_provider(provider: FakeEngine, prefix: str) -> None:
    body = an_error(prefix + TOO_LARGE, type="tokens", code="rate_limit_exceeded")
    provider.script.append(Behaviour(status=429, headers=(("Retry-After", "3"),), body=body))

    assert await asked(provider, a_call()) == (429, [])
    assert DIALECTS["provider"].is_request_error(429, body)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, an_error(NO_CREDIT, type="invalid_request_error")),
        (400, an_error(f"litellm.BadRequestError: AnthropicException - {NO_CREDIT}")),
        (
            400,
            an_error(
                "litellm.BadRequestError: AnthropicException - "
                + json.dumps(
                    {"type": "error", "error": {"type": "invalid_request_error", "message": NO_CREDIT}},
                    separators=(",", ":"),
                )
            ),
        ),
        (400, an_error("Billing hard limit has been reached", type="billing_limit", code="billing_hard_limit_reached")),
        (403, an_error("Pay first", type="billing_error")),
        (429, an_error("You exceeded your current quota.", type="insufficient_quota", code="insufficient_quota")),
        (400, an_error("No connected db.", type="no_db_connection", code="400")),
        (429, an_error("Rate limit reached for gpt", type="tokens", code="rate_limit_exceeded")),
    ],
)
def test_account_without_credit_is_not_an_error_of_the_request(status: int, body: bytes) -> None:
    assert not DIALECTS["provider"].is_request_error(status, body)


def test_texts_of_the_caller_cannot_blame_the_provider() -> None:
    body = an_error(f"Invalid value: '{NO_CREDIT}'", type="invalid_request_error")

    assert DIALECTS["provider"].is_request_error(400, body)


@pytest.mark.parametrize("engine_type", ["provider", "vllm"])
@pytest.mark.parametrize(("status", "blames"), [(400, True), (401, False), (500, False)])
async def test_key_is_removed_from_error_bodies(
    provider: FakeEngine, engine_type: str, status: int, *, blames: bool
) -> None:
    provider.script.append(Behaviour(status=status, error=f"wrong key {KEY} for this model"))
    client = HttpEngine(
        provider.url, served_model="fake", api_key=ApiKey(KEY, "api-key"), dialect=DIALECTS[engine_type]
    )
    answer = await client.ask(a_call())
    body = bytearray()
    while data := await answer.read():
        body += data
    client.close()

    assert (answer.status, answer.is_request_error(bytes(body))) == (status, blames)
    assert json.loads(body)["error"]["message"] == "wrong key *** for this model"


async def test_key_is_removed_from_the_end_of_a_long_error_body(provider: FakeEngine) -> None:
    """The first key makes room for the part of the second one that would otherwise not be read."""
    size = 64 * 1024
    for position in range(size - len(KEY) - 2, size + 2, 3):
        body = KEY.encode().ljust(position, b"x") + KEY.encode() + b"x" * 100
        provider.script.append(Behaviour(status=500, body=body))
        client = HttpEngine(
            provider.url, served_model="fake", api_key=ApiKey(KEY, "api-key"), dialect=DIALECTS["provider"]
        )
        answer = await client.ask(a_call())
        received = b""
        while data := await answer.read():
            received += data
        client.close()

        assert len(received) > size - 2 * len(KEY)
        assert KEY[:5].encode() not in received


def test_key_is_hidden_in_representations() -> None:
    assert KEY not in repr(ApiKey(KEY, "api-key"))


def test_provider_offers_the_openai_apis() -> None:
    assert DIALECTS["provider"].paths[Api.CHAT] == "/v1/chat/completions"
