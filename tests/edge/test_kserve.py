"""Tests for the KServe API: routes, inference, errors and limits."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headgate.edge.kserve import SERVER_ROUTES, find_route, is_kserve
from headgate.edge.parsed_request import ModelTarget
from headgate.wire.kserve.infer import ModelOperation
from headgate.wire.request_body import LARGE_BYTES
from testing.fake_engine import Behaviour, FakeEngine
from testing.fake_triton import FakeTriton
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop
from tests.edge.test_rate_limits import limited, of
from tests.edge.test_the_door import config_with_keys

TENSOR = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["hello"]}
INFER = "/v2/models/m/infer"
ANSWER = {"model_name": "fake", "outputs": []}


def triton_config(engine: FakeTriton, *more: FakeTriton, **settings: Any) -> Config:
    return a_config(engine.url, *(each.url for each in more), engine="triton_trtllm", **settings)


def infer(gateway: GatewayInLoop, path: str = INFER, **options: Any) -> Any:
    return gateway.post({"inputs": [TENSOR]}, path, **options)


# Routes


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (b"/v2/models/m/infer", ("POST", ModelTarget("m", ModelOperation.INFERENCE))),
        (b"/v2/models/m/ready", ("GET", ModelTarget("m", ModelOperation.READINESS))),
        (b"/v2/models/m", ("GET", ModelTarget("m", ModelOperation.METADATA))),
        (b"/v2/models/org%2Fname%20x/infer", ("POST", ModelTarget("org/name x", ModelOperation.INFERENCE))),
        (b"/v2/models/caf%C3%A9", ("GET", ModelTarget("café", ModelOperation.METADATA))),
    ],
)
def test_path_selects_model_and_operation(path: bytes, found: tuple[str, ModelTarget]) -> None:
    route = find_route(path)

    assert route is not None
    assert (route.method, route.target) == found


@pytest.mark.parametrize(
    "path",
    [
        b"/v2/",
        b"/v2/models",
        b"/v2/models/",
        b"/v2/models//infer",
        b"/v2/models/%20/infer",
        b"/v2/models/%ff/infer",
        b"/v2/models/m/infer/",
        b"/v2/models/m/versions/1/infer",
        b"/v2/models/m/config",
        b"/v2/models/m/generate",
        b"/v2/models/org/name/infer",
        b"/v2/health",
        b"/v2/repository/index",
        b"/V2/models/m",
        b"/v2/models/" + b"m" * 2000,
    ],
)
def test_other_paths_have_no_route(path: bytes) -> None:
    assert find_route(path) is None


def test_only_paths_below_v2_belong_to_kserve() -> None:
    assert [is_kserve(path) for path in (b"/v2", b"/v2/x", b"/v22", b"/v1/models")] == [True, True, False, False]


@pytest.mark.parametrize("path", [*(path.decode() for path in SERVER_ROUTES), "/v2/models/m", "/v2/models/m/ready"])
async def test_all_paths_require_an_api_key(path: str, tmp_path: Path) -> None:
    async with FakeTriton() as engine:
        config = config_with_keys(engine.url)
        config["pools"]["small"]["engine"] = "triton"
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.http.get(gateway.url + path) as answer:
                refused = answer.status, (await answer.json(content_type=None))["error"]
            async with infer(gateway) as answer:
                assert answer.status == 401
            headers = {"authorization": "Bearer hg-acme"}
            async with gateway.http.get(gateway.url + path, headers=headers) as answer:
                assert answer.status == 200

    assert refused[0] == 401
    assert refused[1].endswith("(unauthorized); see /errors/unauthorized")
    assert not engine.requests


async def test_wrong_method_is_rejected_with_the_allowed_one(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        async with gateway.http.get(gateway.url + INFER) as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
            assert (await answer.json())["error"].startswith("method GET is not allowed; use POST")
        async with gateway.post({}, "/v2/health/ready") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "GET")
        async with gateway.post({}, "/v2/nowhere") as answer:
            assert (answer.status, (await answer.json())["error"][:12]) == (404, "unknown path")


# Server endpoints


async def test_server_metadata_and_health_reflect_the_gateway_state(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        async with gateway.http.get(gateway.url + "/v2") as answer:
            assert (await answer.json())["name"] == "headgate"
        for path in ("/v2/health/live", "/v2/health/ready"):
            async with gateway.http.get(gateway.url + path) as answer:
                assert answer.status == 200
        gateway.gateway._app.draining = True
        async with gateway.http.get(gateway.url + "/v2/health/ready") as answer:
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        async with gateway.http.get(gateway.url + "/v2/health/live") as answer:
            assert answer.status == 200


async def test_gateway_without_ready_endpoint_is_live_but_not_ready(tmp_path: Path) -> None:
    async with FakeTriton() as engine:
        engine.ready = False
        async with gateway_in_loop(triton_config(engine), tmp_path, wait_for=0) as gateway:
            async with gateway.http.get(gateway.url + "/v2/health/ready") as answer:
                assert answer.status == 503
                assert "no endpoint is ready" in (await answer.json())["error"]


# Inference


async def test_tensors_are_passed_through_unchanged(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        async with infer(gateway, headers={"traceparent": "00-0af7-b7ad-01"}) as answer:
            assert (answer.status, await answer.json()) == (200, ANSWER)
        received = await engine.next_request()

    assert (received.path, received.json) == ("/v2/models/fake/infer", {"inputs": [TENSOR]})
    assert received.headers["traceparent"] == "00-0af7-b7ad-01"
    assert answer.headers["x-headgate-class"] == "interactive"
    assert (answer.headers["x-headgate-model"], answer.headers["x-headgate-attempts"]) == ("m", "1")


async def test_binary_tensors_are_passed_through_in_both_directions(tmp_path: Path) -> None:
    head = b'{"inputs":[{"name":"x","shape":[2],"datatype":"UINT8","parameters":{"binary_data_size":2}}]}'
    told = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        engine.behaviour = Behaviour(body=b'{"outputs":[]}\x00\xfe', content_type="application/octet-stream")
        engine.infer_headers = {"inference-header-content-length": "14"}
        async with gateway.http.post(gateway.url + INFER, data=head + b"\x01\xff", headers=told) as answer:
            body = await answer.read()
        received = await engine.next_request()

    assert (received.raw, received.headers["inference-header-content-length"]) == (head + b"\x01\xff", str(len(head)))
    assert (answer.status, body) == (200, b'{"outputs":[]}\x00\xfe')
    assert answer.headers["inference-header-content-length"] == "14"
    assert answer.headers["content-type"] == "application/octet-stream"


@pytest.mark.process
async def test_large_tensors_are_parsed_in_a_separate_process_and_sent_complete(tmp_path: Path) -> None:
    tensor = {"name": "x", "shape": [1, LARGE_BYTES // 4], "datatype": "FP32", "data": [0.5] * (LARGE_BYTES // 4)}
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        async with gateway.post({"inputs": [tensor]}, INFER, headers={"x-headgate-class": "interactive"}) as answer:
            assert answer.status == 200
        assert (await engine.next_request()).json == {"inputs": [tensor]}


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        (b"{nojson", {}, "the body is not JSON"),
        (b"{}", {}, '"inputs" is missing'),
        (b'{"inputs":[{"parameters":{"shared_memory_region":"r"}}]}', {}, "shared memory is not supported"),
        (b'{"inputs":[{}],"parameters":{"priority":1}}', {}, "choose one with the x-headgate-class header"),
        (b'{"inputs":' + b"[" * 200 + b"]" * 200 + b"}", {}, "more than 64 levels of nested"),
        (b'{"inputs":[{}]}', {"inference-header-content-length": "99"}, "must be from 1 to 15"),
    ],
)
async def test_invalid_inference_request_is_rejected_before_dispatch(
    body: bytes, headers: dict[str, str], said: str, tmp_path: Path
) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        async with gateway.http.post(gateway.url + INFER, data=body, headers=headers) as answer:
            told = (await answer.json())["error"]

    assert (answer.status, engine.requests) == (400, [])
    assert said in told
    assert told.endswith("(invalid_request); see /errors/invalid_request")


async def test_unknown_model_returns_404(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        async with infer(gateway, "/v2/models/nope/infer") as answer:
            assert answer.status == 404
            assert "nope" in (await answer.json())["error"]


async def test_engine_rejection_is_passed_through(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        engine.behaviour = Behaviour(status=400, error="unexpected inference input 'x' for model 'fake'")
        async with infer(gateway) as answer:
            assert answer.status == 400
            assert await answer.json() == {"error": "unexpected inference input 'x' for model 'fake'"}
            assert answer.headers["x-should-retry"] == "false"
        assert len(engine.requests) == 1


async def test_failed_attempt_is_retried_elsewhere(tmp_path: Path) -> None:
    async with FakeTriton() as one, FakeTriton() as other:
        failing = Behaviour(status=500, error="Failed to process the request(s) for model 'fake'")
        one.script.append(failing)
        other.script.append(failing)
        async with gateway_in_loop(triton_config(one, other), tmp_path) as gateway:
            async with infer(gateway) as answer:
                assert (answer.status, await answer.json()) == (200, ANSWER)

    assert answer.headers["x-headgate-attempts"] in ("2", "3")


async def test_truncated_response_is_never_delivered_as_complete(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        engine.behaviour = Behaviour(body=b"x" * 100, content_type="application/octet-stream", cut_after=0)
        async with infer(gateway) as answer:
            assert answer.status == 502
            assert (await answer.json())["error"].endswith("(engine_error); see /errors/engine_error")


async def test_rate_limit_applies_to_inference_requests(tmp_path: Path) -> None:
    async with FakeTriton() as engine:
        config = limited(engine.url, acme={"requests_per_minute": 1})
        config["pools"]["small"]["engine"] = "triton"
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with infer(gateway, **of("acme")) as answer:
                assert (answer.status, answer.headers["x-ratelimit-limit-requests"]) == (200, "1")
            async with infer(gateway, **of("acme")) as answer:
                assert answer.status == 429
                assert int(answer.headers["retry-after"]) > 0
                assert "(rate_limited)" in (await answer.json())["error"]


async def test_disconnecting_client_releases_its_slot(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine, in_flight_max=1), tmp_path) as gateway:
        engine.script.append(Behaviour(hang_before_head=True))
        asking = asyncio.create_task(_status(infer(gateway)))
        received = await engine.next_request()
        waiting = asyncio.create_task(_status(infer(gateway)))
        await gateway.wait_for_status(lambda status: sum(status["queued"].values()) == 1)
        asking.cancel()
        await asyncio.wait_for(received.client_left.wait(), 30)

        assert await waiting == 200
        await gateway.wait_until_idle()


async def _status(request: Any) -> int:
    async with request as answer:
        return answer.status


# Models


async def test_model_metadata_and_readiness_come_from_the_engine(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        async with gateway.http.get(gateway.url + "/v2/models/m") as answer:
            assert (answer.status, (await answer.json())["inputs"][0]["name"]) == (200, "text_input")
        async with gateway.http.get(gateway.url + "/v2/models/m/ready") as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        async with gateway.http.get(gateway.url + "/v2/models/nope/ready") as answer:
            assert answer.status == 404


async def test_model_with_openai_api_accepts_no_tensors(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with infer(gateway) as answer:
            assert answer.status == 404
            assert "OpenAI API" in (await answer.json())["error"]
        async with gateway.post(chat(max_tokens=1)) as answer:
            assert answer.status == 200


# Text generation through the OpenAI API


async def test_chat_is_served_by_a_text_model(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        async with gateway.post(chat(max_tokens=3)) as answer:
            whole = await answer.json()
        asked = chat(max_tokens=3, stream=True, stream_options={"include_usage": True})
        async with gateway.post(asked) as answer:
            events = [line[6:] for line in (await answer.text()).splitlines() if line]
        async with gateway.post(chat(tools=[{"type": "function"}])) as answer:
            refused = await answer.json()

    assert whole["choices"][0]["message"]["content"] == " t0 t1 t2"
    assert json.loads(events[-2])["usage"] == whole["usage"]
    assert events[-1] == "[DONE]"
    assert (answer.status, refused["error"]["param"]) == (400, "tools")


async def test_stream_failing_midway_is_interrupted(tmp_path: Path) -> None:
    async with FakeTriton() as engine, gateway_in_loop(triton_config(engine), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=5, error_after=2, error="out of memory")
        async with gateway.post(chat(stream=True)) as answer:
            text = await answer.text()

    assert "stream_interrupted" in text
    assert "[DONE]" not in text
