"""What is a caller told of its tenant's limits, within them and beyond?"""

from pathlib import Path
from typing import Any

import pytest

from headgate.edge.replies import lasting, rates_left, tale
from headgate.model.limits import LimitsLeft, RateLeft
from headgate.model.units import Duration, ModelName
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, a_config, chat, gateway_in_loop

SECRET = "of the tests, and long enough"
KEYS = {"acme": "sk-acme", "acme/search": "sk-search", "bolt": "sk-bolt"}
USAGE = 7 + 3
"""What the engine says that a prompt and an answer of three tokens have taken."""


def limited(url: str, **limits: dict[str, int]) -> Config:
    """Three tenants with a key each; `acme` has these limits, `acme_search` are those of the one below it."""
    tenants: Config = {name: {"keys": [format_digest(digest(SECRET.encode(), key))]} for name, key in KEYS.items()}
    for name, section in limits.items():
        tenants[name.replace("_", "/")]["limits"] = section
    config = a_config(url, key_secret=SECRET, tenants=tenants)
    del config["anonymous_tenant"]
    return config


def of(tenant: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {KEYS[tenant]}"}}


def rates(headers: Any) -> dict[str, str]:
    """Those of the rate limits, by the end of their names."""
    start = "x-ratelimit-"
    return {
        name.lower().removeprefix(start): value for name, value in headers.items() if name.lower().startswith(start)
    }


# In words


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
def test_a_reset_is_a_duration_as_the_official_api_writes_it_and_never_too_short(length_ns: int, text: str) -> None:
    assert lasting(Duration(length_ns)) == text


def test_of_each_rate_three_headers_are_told_and_of_a_rate_without_limit_none() -> None:
    requests, tokens = RateLeft(60, 59, Duration(1_000_000_000)), RateLeft(150_000, 149_984, Duration(6_400_000))

    assert rates_left(LimitsLeft(requests, tokens)) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"150000"),
        (b"x-ratelimit-remaining-tokens", b"149984"),
        (b"x-ratelimit-reset-tokens", b"7ms"),
    ]
    assert rates_left(LimitsLeft(requests, None)) == rates_left(LimitsLeft(requests, tokens))[:3]
    assert rates_left(LimitsLeft(None, tokens)) == rates_left(LimitsLeft(requests, tokens))[3:]


def test_who_has_no_limits_is_told_of_none() -> None:
    names = [name for name, _ in tale(None, ModelName("m"), Duration(0), 1)]

    assert not [name for name in names if name.startswith(b"x-ratelimit")]


# Through a gateway


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tenant_over_its_requests_is_refused_and_another_is_not_touched(tmp_path: Path, stream: bool) -> None:
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
    assert error["message"].startswith('tenant "acme" has used up its 2 requests per minute; wait ')
    # The first of the two has all but drained in half a minute, whatever part of it the test has taken.
    assert 1 <= int(refusal.headers["retry-after"]) <= 30
    assert 1_000 <= int(refusal.headers["retry-after-ms"]) <= 30_000
    assert "x-should-retry" not in refusal.headers
    assert rates(refusal.headers)["remaining-requests"] == "0"
    assert rates(refusal.headers).keys() == {"limit-requests", "remaining-requests", "reset-requests"}
    assert others.status == 200
    assert rates(others.headers) == {}


async def test_tokens_are_reserved_as_predicted_and_settled_as_the_engine_says(tmp_path: Path) -> None:
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

    # A hundred and the prompt are reserved each time. Had they stayed reserved, less than 400 would be left at last.
    assert remaining[0] < 900
    assert remaining[-1] >= remaining[0] - 5 * USAGE


async def test_a_limit_of_the_whole_holds_for_its_parts(tmp_path: Path) -> None:
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
    assert 'tenant "acme" has used up its 1 requests per minute' in error["message"]


async def test_the_next_request_comes_in_when_an_open_one_has_ended(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(tokens=3, hang_after=1))
        async with gateway_in_loop(limited(engine.url, acme={"concurrency": 1}), tmp_path) as gateway:
            async with gateway.post(chat(stream=True), **of("acme")) as first:
                running = await engine.next_request()
                async with gateway.post(chat(), **of("acme")) as refusal:
                    error = (await refusal.json())["error"]
                running.resume.set()
                await first.read()
            await gateway.until_idle()
            async with gateway.post(chat(), **of("acme")) as second:
                await second.read()

    assert refusal.status == 429
    assert error["code"] == "rate_limit_exceeded"
    assert 'tenant "acme" has 1 of 1 requests open' in error["message"]
    assert second.status == 200


async def test_errors_of_engines_tell_what_is_left_too(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(status=400)
        async with gateway_in_loop(limited(engine.url, acme={"requests_per_minute": 5}), tmp_path) as gateway:
            async with gateway.post(chat(), **of("acme")) as refused:
                await refused.read()
            async with gateway.post(chat(model="none"), **of("acme")) as unknown:
                await unknown.read()

    assert (refused.status, rates(refused.headers)["remaining-requests"]) == (400, "4")
    assert (unknown.status, rates(unknown.headers)["remaining-requests"]) == (404, "4")
