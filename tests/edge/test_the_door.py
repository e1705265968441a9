"""Who is let in, and what are the others told?"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, a_config, chat, gateway_in_loop

SECRET = "a secret of at least some length"


def config_with_keys(url: str) -> dict[str, Any]:
    config = a_config(url)
    del config["anonymous_tenant"]
    config["key_secret"] = SECRET
    config["tenants"] = {
        "acme": {"keys": [format_digest(digest(SECRET.encode(), "hg-acme"))]},
        "limited": {
            "keys": [format_digest(digest(SECRET.encode(), "hg-limited"))],
            "classes": ["batch"],
            "models": ["other"],
        },
    }
    config["models"]["other"] = "small"
    return config


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [{}, bearer("hg-nobody"), {"authorization": "Basic aGk6aGk="}, bearer("")])
async def test_without_a_known_key_nothing_is_said_but_401(tmp_path: Path, headers: dict[str, str]) -> None:
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(), headers=headers) as answer:
            error = (await answer.json())["error"]
        async with gateway.http.get(gateway.url + "/v1/models", headers=headers) as models:
            assert models.status == 401

    assert answer.status == 401
    assert error["code"] == "invalid_api_key"
    assert error.keys() == {"message", "type", "param", "code"}
    assert answer.headers["x-should-retry"] == "false"
    assert engine.requests == []


async def test_a_key_opens_what_its_tenant_may_use(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(), headers=bearer("hg-acme")) as answer:
            assert answer.status == 200
        async with gateway.http.get(gateway.url + "/v1/models", headers=bearer("hg-limited")) as models:
            assert [model["id"] for model in (await models.json())["data"]] == ["other"]
        async with gateway.post(chat(), headers=bearer("hg-limited")) as hidden:
            assert hidden.status == 404
            assert (await hidden.json())["error"]["code"] == "model_not_found"
        named = bearer("hg-limited") | {"x-headgate-class": "interactive"}
        async with gateway.post(chat(model="other"), headers=named) as forbidden:
            assert forbidden.status == 403


@pytest.mark.parametrize("tier", [{}, {"service_tier": "auto"}, {"service_tier": None}, {"service_tier": "flex"}])
async def test_request_without_a_class_gets_the_only_class_of_its_key(
    tmp_path: Path, tier: dict[str, str | None]
) -> None:
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(model="other", **tier), headers=bearer("hg-limited")) as answer:
            assert answer.status == 200
            assert answer.headers["x-headgate-class"] == "batch"


async def test_unknown_service_tier_is_rejected_with_400_and_the_known_values(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        for tier in ("auto", "default"):
            async with gateway.post(chat(service_tier=tier)) as answer:
                assert (answer.status, answer.headers["x-headgate-class"]) == (200, "interactive")
        async with gateway.post(chat(service_tier="gold")) as answer:
            error = (await answer.json())["error"]

    assert (answer.status, error["code"]) == (400, "invalid_request_error")
    assert "the known values are: auto, default, fast, flex, priority" in error["message"]


async def test_class_rules_match_plan_and_metadata_also_after_a_reload(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, tenants={"laptop": {"plan": "critical"}})
        async with gateway_in_loop(config, tmp_path) as gateway:

            async def class_of(**fields: Any) -> str:
                async with gateway.post(chat("x" * 40_000, **fields)) as answer:
                    assert answer.status == 200, await answer.text()
                    return answer.headers["x-headgate-class"]

            assert await class_of() == "interactive", "the rule for plan critical matches prompts of any length"
            await gateway.rewrite(config | {"class_rules": [{"class": "batch", "metadata": {"purpose": "eval"}}]})
            assert await class_of() == "long"
            assert await class_of(metadata={"purpose": "eval"}) == "batch"


@pytest.mark.parametrize(
    ("body", "param"),
    [(b"{", None), (b"[]", None), (b'{"messages":[]}', "model"), (b'{"model":"m"}', "messages")],
)
async def test_a_malformed_body_is_told_what_is_wrong(tmp_path: Path, body: bytes, param: str | None) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.http.post(gateway.url + CHAT, data=body) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 400
    assert error["code"] == "invalid_request_error"
    assert error["param"] == param


async def test_a_body_beyond_the_limit_is_refused_announced_or_not(tmp_path: Path) -> None:
    async def pieces() -> Any:
        for _ in range(64):
            yield b" " * 1024

    async with FakeEngine() as engine:
        config = a_config(engine.url, limits={"body_bytes_max": "16KiB"})
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat("x" * 20_000)) as announced:
                assert announced.status == 413
            async with gateway.http.post(gateway.url + CHAT, data=pieces()) as chunked:
                assert (chunked.status, (await chunked.json())["error"]["code"]) == (413, "request_too_large")


async def test_compressed_bodies_are_refused(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(), headers={"content-encoding": "gzip"}) as answer:
            assert answer.status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/v1/chat/%63ompletions", 404),
        ("POST", "/v1//chat/completions", 404),
        ("POST", "/pause", 404),
        ("POST", "/invocations", 404),
        ("GET", "/metrics", 404),
        ("GET", "/status", 404),
        ("GET", "/", 404),
    ],
)
async def test_what_is_not_on_the_list_is_refused(tmp_path: Path, method: str, path: str, status: int) -> None:
    from yarl import URL

    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.http.request(method, URL(gateway.url + path, encoded=True), json=chat()) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["code"] == "unknown_url"
    assert engine.requests == []


async def test_the_admin_listener_has_its_own_closed_list(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        found = {}
        for path in ("/health", "/ready", "/metrics", "/status", "/v1/models", CHAT, "/"):
            async with gateway.http.get(gateway.admin_url + path) as answer:
                found[path] = answer.status
                if path == "/metrics":
                    assert "headgate_queue_depth" in await answer.text()

    assert found == {
        "/health": 200,
        "/ready": 200,
        "/metrics": 200,
        "/status": 200,
        "/v1/models": 404,
        CHAT: 404,
        # It leads to the console's page.
        "/": 200,
    }


async def test_the_probe_s_findings_are_visible(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        status = await gateway.until(lambda status: status["engines"][0]["signals"])

    [found] = status["engines"]
    assert found["state"] == "ready"
    assert found["version"] == "0.0-fake"
    assert found["signals"]["running"] == "vllm:num_requests_running"


async def test_a_class_that_does_not_exist_is_an_error_with_the_list(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(), headers={"x-headgate-class": "urgent"}) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 400
    assert "batch, interactive, long" in error["message"]


async def test_a_model_name_that_no_header_can_carry_is_told_all_the_same(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(model="a\r\nset-cookie: b\x00ü")) as answer:
            assert answer.status == 404
            assert "set-cookie" not in answer.headers


async def test_bodies_take_no_more_memory_together_than_they_may(tmp_path: Path) -> None:
    limits = {"body_bytes_max": "64KiB", "bodies_bytes_max": "100KiB"}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, limits=limits), tmp_path) as gateway:
        engine.behaviour = Behaviour(hang_before_head=True)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(status_of(gateway.post(chat("x" * 60_000))))
            held = await engine.next_request()
            async with gateway.post(chat("x" * 60_000)) as refused:
                error = (await refused.json())["error"]
            engine.behaviour = Behaviour()
            assert await status_of(gateway.post(chat("small"))) == 200
            held.resume.set()
        assert await first == 200
        assert await status_of(gateway.post(chat("x" * 60_000))) == 200
        left = (await gateway.status())["held"]["body_bytes"]

    assert (refused.status, error["code"], refused.headers["retry-after"]) == (429, "slow_down", "1")
    assert "bodies_bytes_max" in error["message"]
    assert left == 0


async def status_of(request: Any) -> int:
    async with request as answer:
        await answer.read()
        return answer.status
