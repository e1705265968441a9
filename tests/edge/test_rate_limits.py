"""Tests for rate limits: response headers, rejections and settlement of tokens."""

from pathlib import Path
from typing import Any

import pytest

from headgate.edge.error_replies import format_duration, rate_limit_headers, routing_headers
from headgate.model.limits import LimitsLeft, RateLeft
from headgate.model.units import Duration, ModelName
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, a_config, chat, gateway_in_loop

SECRET = "of the tests, and long enough"
KEYS = {"acme": "sk-acme", "acme/search": "sk-search", "bolt": "sk-bolt"}
USAGE = 7 + 3
"""Usage that the engine reports for the prompt and a three-token response."""


def limited(url: str, **limits: dict[str, int]) -> Config:
    """Returns a configuration with three tenants, each with one key. `acme_search` sets the limits of `acme/search`."""
    tenants: Config = {name: {"keys": [format_digest(digest(SECRET.encode(), key))]} for name, key in KEYS.items()}
    for name, section in limits.items():
        tenants[name.replace("_", "/")]["limits"] = section
    config = a_config(url, key_secret=SECRET, tenants=tenants)
    del config["anonymous_tenant"]
    return config


def of(tenant: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {KEYS[tenant]}"}}


def rates(headers: Any) -> dict[str, str]:
    """Returns the rate limit headers, keyed by the last part of their names."""
    start = "x-ratelimit-"
    return {
        name.lower().removeprefix(start): value for name, value in headers.items() if name.lower().startswith(start)
    }


# Header values


@pytest.mark.parametrize(
    ("length_ns", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (12_000_000, "12ms"),
        (11_000_001, "12ms"),
        (999_000_000, "999ms"),
        (999_000_001, "1s"),
        (1_500_000_000, "1.5s"),
        (8_640_000_000, "8.64s"),
        (10_000_000_000, "10s"),
        (59_999_999_999, "1m0s"),
        (86_400_000_000, "1m26.4s"),
        (360_000_000_000, "6m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (5_025_000_000_000, "1h23m45s"),
    ],
)
def test_reset_duration_uses_the_openai_api_format_and_is_rounded_up(length_ns: int, text: str) -> None:
    assert format_duration(Duration(length_ns)) == text


def test_headers_are_sent_only_for_rates_with_a_limit() -> None:
    requests, tokens = RateLeft(60, 59, Duration(1_000_000_000)), RateLeft(150_000, 149_984, Duration(6_400_000))

    assert rate_limit_headers(LimitsLeft(requests, tokens)) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"150000"),
        (b"x-ratelimit-remaining-tokens", b"149984"),
        (b"x-ratelimit-reset-tokens", b"7ms"),
    ]
    assert rate_limit_headers(LimitsLeft(requests, None)) == rate_limit_headers(LimitsLeft(requests, tokens))[:3]
    assert rate_limit_headers(LimitsLeft(None, tokens)) == rate_limit_headers(LimitsLeft(requests, tokens))[3:]


def test_tenant_without_limits_gets_no_rate_limit_headers() -> None:
    names = [name for name, _ in routing_headers(None, ModelName("m"), Duration(0), 1)]

    assert not [name for name in names if name.startswith(b"x-ratelimit")]


# Gateway


@pytest.mark.parametrize("stream", [True, False])
async def test_only_the_tenant_over_its_request_limit_is_rejected(tmp_path: Path, stream: bool) -> None:
    async with FakeEngine() as engine:
        config = limited(engine.url, acme={"requests_per_minute": 2})
        async with gateway_in_loop(config, tmp_path) as gateway:
            for remaining in ("1", "0"):
                async with gateway.post(chat(stream=stream), **of("acme")) as answer:
                    await answer.read()
                assert answer.status == 200
                assert rates(answer.headers)["limit-requests"] == "2"
                assert rates(answer.headers)["remaining-requests"] == remaining
            async with gateway.post(chat(stream=stream), **of("acme")) as refusal:
                error = (await refusal.json())["error"]
            async with gateway.post(chat(stream=stream), **of("bolt")) as others:
                await others.read()

    assert refusal.status == 429
    assert error["code"] == "rate_limit_exceeded"
    assert error["message"].startswith('tenant "acme" has reached its limit of 2 requests per minute; retry in ')
    # The limit admits one request every 30 s, and part of that time may have passed.
    assert 1 <= int(refusal.headers["retry-after"]) <= 30
    assert 1_000 <= int(refusal.headers["retry-after-ms"]) <= 30_000
    assert "x-should-retry" not in refusal.headers
    assert rates(refusal.headers)["remaining-requests"] == "0"
    assert rates(refusal.headers).keys() == {"limit-requests", "remaining-requests", "reset-requests"}
    assert others.status == 200
    assert rates(others.headers) == {}


async def test_tokens_are_reserved_by_prediction_and_settled_by_usage(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=3)
        config = limited(engine.url, acme={"tokens_per_minute": 1_000})
        async with gateway_in_loop(config, tmp_path) as gateway:
            remaining = list[int]()
            for _ in range(6):
                async with gateway.post(chat(max_tokens=100, stream=True), **of("acme")) as answer:
                    await answer.read()
                assert answer.status == 200
                remaining.append(int(rates(answer.headers)["remaining-tokens"]))

    # Each request reserves 100 tokens plus its prompt. Without settlement, fewer than 400 tokens would remain.
    assert remaining[0] < 900
    assert remaining[-1] >= remaining[0] - 5 * USAGE


async def test_tenant_limit_applies_to_its_subtenants(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = limited(engine.url, acme={"requests_per_minute": 1}, acme_search={"tokens_per_minute": 10_000})
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat(), **of("acme/search")) as answer:
                await answer.read()
            async with gateway.post(chat(), **of("acme")) as refusal:
                error = (await refusal.json())["error"]

    assert answer.status == 200
    assert rates(answer.headers)["limit-requests"] == "1"
    assert rates(answer.headers)["limit-tokens"] == "10000"
    assert refusal.status == 429
    assert 'tenant "acme" has reached its limit of 1 requests per minute' in error["message"]


async def test_concurrency_limit_admits_the_next_request_after_one_ends(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(tokens=3, hang_after=1))
        async with gateway_in_loop(limited(engine.url, acme={"concurrency": 1}), tmp_path) as gateway:
            async with gateway.post(chat(stream=True), **of("acme")) as first:
                running = await engine.next_request()
                async with gateway.post(chat(), **of("acme")) as refusal:
                    error = (await refusal.json())["error"]
                running.resume.set()
                await first.read()
            await gateway.wait_until_idle()
            async with gateway.post(chat(), **of("acme")) as second:
                await second.read()

    assert refusal.status == 429
    assert error["code"] == "rate_limit_exceeded"
    assert 'tenant "acme" has 1 of 1 requests open' in error["message"]
    assert second.status == 200


async def test_error_responses_have_rate_limit_headers(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(status=400)
        async with gateway_in_loop(limited(engine.url, acme={"requests_per_minute": 5}), tmp_path) as gateway:
            async with gateway.post(chat(), **of("acme")) as refused:
                await refused.read()
            async with gateway.post(chat(model="none"), **of("acme")) as unknown:
                await unknown.read()

    assert (refused.status, rates(refused.headers)["remaining-requests"]) == (400, "4")
    assert (unknown.status, rates(unknown.headers)["remaining-requests"]) == (404, "4")
