"""Tests for the request handler: keys, classes, body limits and paths."""

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
async def test_request_without_a_valid_key_gets_401(tmp_path: Path, headers: dict[str, str]) -> None:
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


async def test_key_grants_its_tenants_models_and_classes(tmp_path: Path) -> None:
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
async def test_request_without_a_class_gets_the_keys_only_class(tmp_path: Path, tier: dict[str, str | None]) -> None:
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
    assert "known values: auto, default, fast, flex, priority" in error["message"]


async def test_class_rules_match_plan_and_metadata_even_after_a_reload(tmp_path: Path) -> None:
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
async def test_malformed_body_rejection_names_the_field(tmp_path: Path, body: bytes, param: str | None) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.http.post(gateway.url + CHAT, data=body) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 400
    assert error["code"] == "invalid_request_error"
    assert error["param"] == param


async def test_body_over_the_limit_is_rejected_with_and_without_content_length(tmp_path: Path) -> None:
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


async def test_compressed_body_is_rejected(tmp_path: Path) -> None:
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
async def test_unknown_path_or_method_is_rejected(tmp_path: Path, method: str, path: str, status: int) -> None:
    from yarl import URL

    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.http.request(method, URL(gateway.url + path, encoded=True), json=chat()) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["code"] == "unknown_url"
    assert engine.requests == []


async def test_admin_listener_serves_only_its_own_paths(tmp_path: Path) -> None:
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
        # Redirects to the console page.
        "/": 200,
    }


async def test_status_includes_probe_results(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        status = await gateway.wait_for_status(lambda status: status["engines"][0]["signals"])

    [found] = status["engines"]
    assert found["state"] == "ready"
    assert found["version"] == "0.0-fake"
    assert found["signals"]["running"] == "vllm:num_requests_running"


async def test_unknown_class_rejection_lists_the_known_classes(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(), headers={"x-headgate-class": "urgent"}) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 400
    assert "batch, interactive, long" in error["message"]


async def test_model_name_with_line_breaks_cannot_inject_headers(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(model="a\r\nset-cookie: b\x00ü")) as answer:
            assert answer.status == 404
            assert "set-cookie" not in answer.headers


async def test_total_memory_for_all_bodies_is_limited(tmp_path: Path) -> None:
    limits = {"body_bytes_max": "64KiB", "total_body_bytes_max": "100KiB"}
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
    assert "total_body_bytes_max" in error["message"]
    assert left == 0


async def status_of(request: Any) -> int:
    async with request as answer:
        await answer.read()
        return answer.status
