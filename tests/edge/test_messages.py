"""Tests for Anthropic's Messages API through the gateway."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.model.units import TenantId
from headgate.ports.identity import UnknownTokenKey
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, NO_TARGETS, RunningGateway, a_config, chat, gateway_in_loop
from tests.edge.test_the_door import bearer, config_with_keys

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"


class BrokenKeys:
    """Keys that cause an internal error."""

    def tenant(self, authorization: bytes | None) -> TenantId | None:
        raise AssertionError("broken keys")

    async def reread_tenant(self, authorization: bytes | None, unknown: UnknownTokenKey) -> TenantId:
        raise AssertionError("broken keys")


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}], **fields}


def events(stream: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The name and the data of each event."""
    blocks = [block.split("\n") for block in stream.decode().split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


async def metric(gateway: RunningGateway, start: str) -> float:
    async with gateway.http.get(gateway.admin_url + "/metrics") as page:
        lines = (await page.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


async def test_message_passes_through(tmp_path: Path) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-other": "1"}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(ask(system="Be brief."), MESSAGES, headers=headers) as answer:
            message = await answer.json()
        received = await engine.next_request()

    assert answer.status == 200
    assert message["content"] == [{"type": "text", "text": "word0 word1 word2 word3 "}]
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert answer.headers["x-headgate-attempts"] == "1"
    assert received.path == MESSAGES
    assert {**received.json, "cache_salt": None} == ask(system="Be brief.", model="fake", cache_salt=None)
    assert (received.headers["anthropic-version"], received.headers["anthropic-beta"]) == ("2023-06-01", "a,b")
    assert "x-other" not in received.headers


async def test_stream_passes_through_and_its_usage_is_booked(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(ask(stream=True), MESSAGES) as answer:
            body = await answer.read()
        async with gateway.post(ask(), MESSAGES) as whole:
            await whole.read()
        await gateway.wait_until_idle()
        counts = (
            'tokens_total{class="interactive",direction="prompt"}',
            'tokens_total{class="interactive",direction="output"}',
        )
        booked = [await metric(gateway, f"headgate_{each}") for each in counts]
        received = await engine.next_request()

    names = [name for name, _ in events(body)]
    start, end = (
        ["message_start", "ping", "content_block_start"],
        ["content_block_stop", "message_delta", "message_stop"],
    )
    assert names == [*start, *["content_block_delta"] * 4, *end]
    assert "stream_options" not in received.json
    assert booked == [14, 8]


async def test_pings_before_the_first_token_do_not_start_the_response(tmp_path: Path) -> None:
    """Check that an attempt that fails after `message_start` is retried, and that the client sees one message."""
    async with FakeEngine() as broken, FakeEngine() as sound:
        async with gateway_in_loop(a_config(broken.url, sound.url), tmp_path) as gateway:
            broken.behaviour = Behaviour(cut_after=0)
            bodies: list[bytes] = []
            while not broken.requests:
                async with gateway.post(ask(stream=True), MESSAGES) as answer:
                    bodies.append(await answer.read())

    assert [name for name, _ in events(bodies[-1])].count("message_start") == 1
    assert events(bodies[-1])[-1][0] == "message_stop"
    assert answer.headers["x-headgate-attempts"] == "2"


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Behaviour(cut_after=2), "the engine"),
        (Behaviour(error_after=2), "the engine reported an error"),
        (Behaviour(without_done=True, tokens=2), "the stream ended before its last event"),
    ],
    ids=["cut", "error", "no end"],
)
async def test_broken_stream_ends_with_an_error_event(tmp_path: Path, behaviour: Behaviour, message: str) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = behaviour
        async with gateway.post(ask(stream=True), MESSAGES) as answer:
            got = events(await answer.read())
            request_id = answer.headers["request-id"]

    assert sum(name == "content_block_delta" for name, _ in got) == 2
    name, said = got[-1]
    assert (name, said["type"], said["error"]["type"]) == ("error", "error", "api_error")
    assert said["request_id"] == request_id
    assert message in said["error"]["message"]
    assert len(engine.requests) == 1


async def test_silent_stream_times_out_despite_pings(tmp_path: Path) -> None:
    config = a_config(classes={"interactive": {**NO_TARGETS, "stream_idle_timeout": "300ms"}})
    async with FakeEngine() as engine:
        config["pools"]["small"]["endpoints"] = [engine.url]
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.behaviour = Behaviour(hang_after=1, comment_s=0.02)
            async with gateway.post(ask(stream=True), MESSAGES) as answer:
                name, said = events(
                    b"\n\n".join(each for each in (await answer.read()).split(b"\n\n") if each[:1] != b":")
                )[-1]

    assert (name, said["error"]["type"]) == ("error", "api_error")
    assert "no token for" in said["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "headers", "status", "kind"),
    [
        ({"max_tokens": 0}, {}, 400, "invalid_request_error"),
        ({"messages": []}, {}, 400, "invalid_request_error"),
        ({"model": "nobody"}, {}, 404, "not_found_error"),
        ({}, {"x-headgate-deadline-ms": "0"}, 400, "invalid_request_error"),
        ({"system": "x" * 90_000}, {}, 413, "request_too_large"),
    ],
)
async def test_rejections_have_anthropics_format(
    tmp_path: Path, fields: dict[str, Any], headers: dict[str, str], status: int, kind: str
) -> None:
    async with (
        FakeEngine() as engine,
        gateway_in_loop(a_config(engine.url, limits={"body_bytes_max": "64KiB"}), tmp_path) as gateway,
    ):
        for path in (MESSAGES, COUNT):
            if "max_tokens" in fields and path == COUNT:
                continue
            async with gateway.post(ask(**fields), path, headers=headers) as answer:
                said = await answer.json()

            assert (answer.status, said["type"], said["error"]["type"]) == (status, "error", kind)
            assert said["request_id"] == answer.headers["x-request-id"]
            assert said["error"].keys() == {"type", "message"}
    assert engine.requests == []


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", MESSAGES, 405, "invalid_request_error"),
        ("GET", COUNT, 405, "invalid_request_error"),
        ("DELETE", MESSAGES + "?beta=true", 405, "invalid_request_error"),
        ("POST", MESSAGES + "/", 404, "not_found_error"),
        ("POST", MESSAGES + "/batches?limit=1", 404, "not_found_error"),
        ("GET", MESSAGES + "/batches/b_1", 404, "not_found_error"),
    ],
)
async def test_wrong_method_and_path_have_anthropics_format(
    tmp_path: Path, method: str, path: str, status: int, kind: str
) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.http.request(method, gateway.url + path) as answer:
            said = await answer.json()

    assert (answer.status, answer.headers.get("allow")) == (status, "POST" if status == 405 else None)
    assert (said["type"], said["error"]["type"]) == ("error", kind)
    assert said["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_only_paths_below_messages_have_anthropics_format(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.http.get(gateway.url + "/v1/messages2") as answer:
            error = (await answer.json())["error"]

    assert (answer.status, error["code"], answer.headers.get("request-id")) == (404, "unknown_url", None)


@pytest.mark.parametrize(
    ("headers", "data", "status", "kind"),
    [
        ({}, b'{"model": "m", "messages": [', 400, "invalid_request_error"),
        ({}, b"[]", 400, "invalid_request_error"),
        ({"content-encoding": "gzip"}, b"{}", 400, "invalid_request_error"),
        ([("x-api-key", "a"), ("x-api-key", "b")], b"{}", 400, "invalid_request_error"),
        ({"x-long": "x" * 20_000}, b"{}", 431, "invalid_request_error"),
    ],
    ids=["no JSON", "no object", "compressed", "two keys", "long header"],
)
async def test_malformed_requests_get_anthropics_format(
    tmp_path: Path, headers: Any, data: bytes, status: int, kind: str
) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        for path in (MESSAGES, COUNT + "?beta=true"):
            async with gateway.http.post(gateway.url + path, data=data, headers=headers) as answer:
                said = await answer.json()

            assert (answer.status, said["type"], said["error"]["type"]) == (status, "error", kind)
            assert said["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_draining_gateway_is_reported_in_anthropics_format(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        gateway.gateway._app.draining = True
        for path in (MESSAGES, COUNT):
            async with gateway.post(ask(), path) as answer:
                said = await answer.json()
            assert (answer.status, said["error"]["type"]) == (503, "overloaded_error")
            assert said["request_id"] == answer.headers["request-id"]
        gateway.gateway._app.draining = False


async def test_internal_error_is_reported_in_anthropics_format(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        app = gateway.gateway._app
        app.access = replace(app.access, keys=BrokenKeys())
        async with gateway.post(ask(), MESSAGES) as answer:
            said = await answer.json()

    assert (answer.status, said["error"]["type"]) == (500, "api_error")
    assert said["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("stream", [True, False])
async def test_rejection_by_the_engine_is_translated(tmp_path: Path, stream: bool) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(status=400, error="no such tool")
        async with gateway.post(ask(stream=stream), MESSAGES) as answer:
            said = await answer.json()
        async with gateway.post(chat(stream=stream)) as other:
            unchanged = await other.json()

    assert answer.status == 400
    assert said["error"] == {"type": "invalid_request_error", "message": "no such tool"}
    assert said["request_id"].startswith("req_")
    assert unchanged["error"]["type"] == "fake_error"


async def test_failed_engines_are_retried_and_reported(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(status=500)
        async with gateway.post(ask(), MESSAGES) as answer:
            said = await answer.json()

    assert (answer.status, said["error"]["type"]) == (502, "api_error")
    assert answer.headers["retry-after"] == "1"
    assert int(answer.headers["x-headgate-attempts"]) > 1


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}'),
        (404, b'{"detail":"Not Found"}'),
        (404, b"404 page not found"),
        (404, b"<html><title>404 Not Found</title></html>"),
        (405, b'{"detail":"Method Not Allowed"}'),
        (501, b'{"error":{"code":501,"message":"not supported","type":"not_supported_error"}}'),
    ],
)
async def test_engine_without_this_api_gets_one_request(tmp_path: Path, path: str, status: int, body: bytes) -> None:
    class Old(FakeEngine):
        def _answer_probe(self, connection: Any, received: Any) -> None:
            if received.path == COUNT:
                connection.answer(status, body)
            else:
                super()._answer_probe(connection, received)

    async with Old() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(status=status, body=body)
        for _ in range(5):
            async with gateway.post(ask(), path) as answer:
                said = await answer.json()
            assert answer.headers["x-headgate-attempts"] == "1"
        engine.behaviour = Behaviour()
        async with gateway.post(chat()) as other:
            assert other.status == 200
        [endpoint] = (await gateway.status())["endpoints"]

    assert (answer.status, said["error"]["type"]) == (404, "not_found_error")
    assert said["error"]["message"] == f"the engine does not offer {path} for this model; use another API"
    assert answer.headers["x-should-retry"] == "false"
    assert endpoint["state"] == "ready"


async def test_engine_without_the_model_loses_its_traffic(tmp_path: Path) -> None:
    """Check that a fast 404 for the model counts against the endpoint, and that the request is retried elsewhere."""
    unknown = b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}'
    async with FakeEngine() as broken, FakeEngine() as sound:
        broken.behaviour = Behaviour(status=404, body=unknown)
        async with gateway_in_loop(a_config(broken.url, sound.url), tmp_path) as gateway:
            statuses: set[int] = set()
            for _ in range(40):
                async with gateway.post(ask(), MESSAGES) as answer:
                    statuses.add(answer.status)
            states = {each["id"]: each["state"] for each in (await gateway.status())["endpoints"]}

    assert statuses == {200}
    assert 0 < len(broken.requests) < 20
    assert sorted(states.values()) == ["ejected", "ready"]


async def test_overload_is_reported_as_overload(tmp_path: Path) -> None:
    classes = {"interactive": {**NO_TARGETS, "queue_length_max": 1}}
    async with FakeEngine() as engine:
        config = a_config(engine.url, in_flight_max=1, classes=classes)
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.behaviour = Behaviour(hang_before_head=True)
            open_requests = [asyncio.create_task(gateway.http.post(gateway.url + CHAT, json=chat())) for _ in range(2)]
            await gateway.wait_for_status(lambda status: status["requests_open"] == 2)
            async with gateway.post(ask(), MESSAGES) as answer:
                said = await answer.json()
            for each in open_requests:
                each.cancel()
            await asyncio.gather(*open_requests, return_exceptions=True)

    assert (answer.status, said["error"]["type"]) == (429, "overloaded_error")
    assert int(answer.headers["retry-after-ms"]) > 0


async def test_deadline_ends_a_message(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(hang_after=1)
        headers = {"x-headgate-deadline-ms": "200"}
        async with gateway.post(ask(stream=True), MESSAGES, headers=headers) as answer:
            name, streamed = events(await answer.read())[-1]
        engine.behaviour = Behaviour(hang_before_head=True)
        async with gateway.post(ask(), MESSAGES, headers=headers) as whole:
            said = await whole.json()

    assert (name, streamed["error"]["type"]) == ("error", "timeout_error")
    assert (whole.status, said["error"]["type"]) == (504, "timeout_error")


async def test_output_cap_applies(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, classes={"interactive": {**NO_TARGETS, "caps": {"output_tokens": 3}}})
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(ask(max_tokens=50), MESSAGES) as answer:
                message = await answer.json()

    assert answer.headers["x-headgate-degraded"] == "output_tokens=3"
    assert message["usage"]["output_tokens"] == 3


async def test_tokens_are_counted_by_the_engine(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        body = ask(messages=[{"role": "user", "content": "word " * 5_000}])
        del body["max_tokens"]
        async with gateway.post(body, COUNT) as answer:
            assert (answer.status, await answer.json()) == (200, {"input_tokens": 7})
        received = await engine.next_probe(COUNT)
        request_id = answer.headers["x-request-id"]
        async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as page:
            explained = await page.text()

    assert received.json["model"] == "fake"
    assert "count_tokens" in explained


# Keys


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_key_may_be_in_x_api_key(tmp_path: Path, path: str) -> None:
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), tmp_path) as gateway:
        for headers, status in (
            ({"x-api-key": "hg-acme"}, 200),
            ({"x-api-key": "hg-nobody"}, 401),
            ({"x-api-key": ""}, 401),
            ({}, 401),
            # `Authorization` takes precedence.
            (bearer("hg-acme") | {"x-api-key": "hg-nobody"}, 200),
            (bearer("hg-nobody") | {"x-api-key": "hg-acme"}, 401),
            # Except if it has no key.
            ({"authorization": "Basic aGk6aGk=", "x-api-key": "hg-acme"}, 200),
            ({"authorization": "Basic aGk6aGk=", "x-api-key": "hg-nobody"}, 401),
            ({"authorization": "Basic aGk6aGk="}, 401),
            ({"authorization": "hg-acme", "x-api-key": "hg-nobody"}, 401),
            (bearer("") | {"x-api-key": "hg-acme"}, 200),
            ({"authorization": "", "x-api-key": "hg-acme"}, 200),
        ):
            async with gateway.post(ask(), path, headers=headers) as answer:
                said = await answer.json()
            assert answer.status == status
            if status == 401 and path == MESSAGES:
                assert (said["type"], said["error"]["type"]) == ("error", "authentication_error")
        twice = [("x-api-key", "hg-acme"), ("x-api-key", "hg-acme")]
        async with gateway.http.post(gateway.url + path, json=ask(), headers=twice) as answer:
            assert answer.status == 400

    assert all("x-api-key" not in request.headers for request in engine.requests)


async def test_bearer_key_takes_precedence_over_another_valid_key(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), tmp_path) as gateway:
        for first, second, models in (("hg-limited", "hg-acme", ["other"]), ("hg-acme", "hg-limited", ["m", "other"])):
            headers = bearer(first) | {"x-api-key": second}
            async with gateway.http.get(gateway.url + "/v1/models", headers=headers) as answer:
                assert [model["id"] for model in (await answer.json())["data"]] == models


async def test_models_are_listed_in_the_clients_format(tmp_path: Path) -> None:
    version = {"anthropic-version": "2023-06-01"}
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), tmp_path) as gateway:
        url = gateway.url + "/v1/models"
        async with gateway.http.get(url, headers=version | {"x-api-key": "hg-limited"}) as answer:
            listed = await answer.json()
        async with gateway.http.get(url, headers=version) as turned:
            rejected = await turned.json()
        async with gateway.http.get(url, headers=bearer("hg-limited")) as other:
            assert (await other.json())["object"] == "list"

    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "other", "other")
    [model] = listed["data"]
    assert (model["type"], model["id"], model["display_name"]) == ("model", "other", "other")
    assert (turned.status, rejected["error"]["type"]) == (401, "authentication_error")
