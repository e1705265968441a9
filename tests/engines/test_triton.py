"""Requests and responses are translated between the OpenAI API and Triton's protocol.

The Triton metrics page is a shortened recording. TensorRT-LLM requires a GPU, so its page is based on the
documentation.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.core.events import EndpointMetricsReported, EndpointNotReady, EndpointProbed, EndpointReady, Event
from headgate.engines.dialect import Signal
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_detection import DetectionError, detect_engine
from headgate.engines.engine_watch import EngineWatch
from headgate.engines.http_engine import metrics_url
from headgate.engines.metrics_page import Metric, label_values, read_metrics
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Health, Probe, ProbeVerdict
from headgate.model.endpoint import EndpointProblem
from headgate.model.ticket import Api
from headgate.model.units import EndpointId, RequestId
from headgate.ports.engine import Call, EngineFault, EngineResponse
from headgate.wire.kserve.infer import InferBody, ModelOperation
from headgate.wire.sse import StreamScanner
from testing.fake_engine import Behaviour, FakeEngine
from testing.fake_triton import FakeTriton
from tests.engines.calls import Engines, a_call, read_all

RECORDED = Path(__file__).parent / "recorded"
TRITON = DIALECTS["triton"]
E1 = EndpointId("e1")


@pytest.fixture
async def triton() -> AsyncIterator[FakeTriton]:
    async with FakeTriton() as engine:
        yield engine


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    async with Engines() as engines:
        yield engines


def infer(
    raw: bytes = b'{"inputs":[]}', asked: ModelOperation = ModelOperation.INFERENCE, json_bytes: int | None = None
) -> Call:
    body = InferBody.of(raw, model="public", operation=asked, json_bytes=json_bytes)
    return Call(RequestId("r1"), Api.INFER, body, {"traceparent": "00-1"})


async def said(answer: EngineResponse) -> Any:
    body = bytearray()
    while data := await answer.read():
        body += data
    answer.close()
    return json.loads(body)


# Metrics and health


@pytest.mark.parametrize(
    ("dialect", "page", "found"),
    [
        ("triton", "triton-2.51.txt", {"nv_inference_pending_request_count": Metric(3.0, 2)}),
        (
            "triton_trtllm",
            "triton-trtllm-0.20.txt",
            {
                'nv_trt_llm_request_metrics{request_type="scheduled"}': Metric(7.0, 1),
                'nv_trt_llm_request_metrics{request_type="waiting"}': Metric(2.0, 1),
                'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}': Metric(0.4875, 1),
            },
        ),
    ],
)
def test_dialect_finds_every_signal_in_a_scrape(dialect: str, page: str, found: dict[str, Metric]) -> None:
    names = [name for aliases in DIALECTS[dialect].metrics.values() for name in aliases]

    assert read_metrics((RECORDED / page).read_bytes(), names) == found


def test_tensorrt_llm_reports_running_and_waiting_requests_separately() -> None:
    kind = 'nv_trt_llm_request_metrics{{request_type="{}"}}'.format
    found = read_metrics((RECORDED / "triton-trtllm-0.20.txt").read_bytes(), [kind("active")])
    told = DIALECTS["triton_trtllm"].metrics

    assert (told[Signal.RUNNING], told[Signal.WAITING]) == ((kind("scheduled"),), (kind("waiting"),))
    assert found[kind("active")].total == 7 + 2


def test_label_selects_series_among_other_labels() -> None:
    page = b'm{a="1",b="x,c=\\"2\\""} 5\nm{b="y", a="1"} 7\nm{a="12"} 9\nm 11\n'

    assert read_metrics(page, ['m{a="1"}', 'm{b="y",a="1"}', 'm{c="2"}', "m"]) == {
        'm{a="1"}': Metric(12.0, 2),
        'm{b="y",a="1"}': Metric(7.0, 1),
        "m": Metric(32.0, 4),
    }
    assert label_values(page, "m", "a") == ("1", "12")


@pytest.mark.parametrize(
    ("url", "there"),
    [
        ("http://triton:8000", "http://triton:8002"),
        ("http://[::1]:8000", "http://[::1]:8002"),
        ("http://triton", "http://triton:82"),
        ("https://triton", "https://triton:445"),
    ],
)
def test_metrics_port_is_two_above_the_http_port(url: str, there: str) -> None:
    assert metrics_url(url, TRITON) == there
    assert metrics_url(url, DIALECTS["vllm"]) == url


def probe(session: aiohttp.ClientSession, triton: FakeTriton, model: str = "fake", dialect: str = "triton") -> Probe:
    return Probe(
        session,
        triton.url,
        dialect=DIALECTS[dialect],
        served_model=model,
        api_key=None,
        timeout_s=2,
        page_bytes_max=PAGE_BYTES_MAX,
    )


async def test_scrape_reads_additional_metrics_if_present(session: aiohttp.ClientSession, triton: FakeTriton) -> None:
    scrape = await probe(session, triton).scrape()

    assert scrape.problem is None
    assert scrape.telemetry is not None
    assert (scrape.telemetry.running, scrape.telemetry.waiting) == (None, 0)
    assert scrape.telemetry.extra == {"queue_us": 1500.0, "requests_succeeded": 3.0}
    triton.metrics = (RECORDED / "triton-trtllm-0.20.txt").read_bytes()
    with_gpu = (await probe(session, triton, dialect="triton_trtllm").scrape()).telemetry
    assert with_gpu is not None
    assert (with_gpu.running, with_gpu.waiting, with_gpu.kv_used_fraction) == (7, 2, 0.4875)
    assert with_gpu.extra == {"gpu_utilisation": 0.75, "gpu_memory_used_bytes": 60129542144.0}


async def test_health_depends_on_model_readiness(session: aiohttp.ClientSession, triton: FakeTriton) -> None:
    assert await probe(session, triton).health() == Health(ProbeVerdict.SERVING, ("fake",))
    assert await probe(session, triton, "other").health() == Health(
        ProbeVerdict.NOT_SERVING,
        ("fake",),
        'the engine serves fake, not "other"; correct served_model',
        EndpointProblem.MODEL_UNKNOWN,
    )
    triton.ready = False
    assert (await probe(session, triton).health()).verdict is ProbeVerdict.NOT_SERVING


async def test_health_without_metrics_reports_the_server_error(
    session: aiohttp.ClientSession, triton: FakeTriton
) -> None:
    triton.metrics_status = 404

    health = await probe(session, triton, "a/b").health()

    said = "GET /v2/models/a%2Fb/ready returned 400: Model version not ready"
    assert health == Health(ProbeVerdict.NOT_SERVING, (), said, EndpointProblem.LOADING)


async def test_waiting_requests_are_reported_if_running_is_unknown(
    session: aiohttp.ClientSession, triton: FakeTriton
) -> None:
    triton.metrics = (RECORDED / "triton-2.51.txt").read_bytes()
    told: asyncio.Queue[Event] = asyncio.Queue()
    watch = EngineWatch(session, told.put_nowait, interval_s=0.05)
    watch.watch(E1, triton.url, dialect=TRITON, served_model="fake", api_key=None)

    assert await told.get() == EndpointReady(E1)
    assert await told.get() == EndpointProbed(E1, None)
    assert await told.get() == EndpointMetricsReported(E1, 0, 3)
    triton.ready = False
    while (event := await told.get()) != EndpointNotReady(E1):
        assert event == EndpointMetricsReported(E1, 0, 3)
    await watch.stop()


async def test_triton_is_recognised_with_its_models(session: aiohttp.ClientSession, triton: FakeTriton) -> None:
    found = await detect_engine(session, triton.url)
    triton.metrics = (RECORDED / "triton-2.51.txt").read_bytes()
    plain = await detect_engine(session, triton.url)

    assert (found.dialect.name, found.models, found.version) == ("triton_trtllm", ("fake",), "0.0-fake")
    assert (plain.dialect.name, plain.models) == ("triton", ("llm", "embed"))
    triton.metrics_status = 404
    with pytest.raises(DetectionError, match="start Triton with --metrics-port set to --http-port \\+ 2"):
        await detect_engine(session, triton.url)


# Errors caused by the request or by the engine


@pytest.mark.parametrize(
    ("status", "body", "blamed"),
    [
        (400, b"{\"error\":\"unexpected inference input 'wrong' for model 'embed'\"}", True),
        (400, b'{"error":"Prompt length (6000) exceeds maximum input length (2048)"}', True),
        (400, b'data: {"error":"Traceback (most recent call last): ..."}\n\n', False),
        (400, b'{"error":"CUDA error: an illegal memory access was encountered"}', False),
        (400, b'{"error":"Model version not ready"}', False),
        (500, b'{"error":"failed to parse the request JSON buffer: Missing a name for object member. at 1"}', True),
        (500, b'{"error":"Unable to parse \'data\': attempt to access JSON non-string as string"}', True),
        (500, b'{"error":"Failed to process the request(s) for model \'embed_0_0\', message: ValueError"}', False),
        (501, b'{"error":"HTTP end point doesn\'t support models with decoupled transaction policy"}', True),
        (404, b'{"error":"Not Found"}', True),
        (404, b'{"error":"Request for unknown model: \'nope\' is not found"}', False),
        (503, b'{"error":"Exceeds maximum queue size"}', False),
    ],
)
def test_dialect_blames_the_request_only_for_request_errors(status: int, body: bytes, blamed: bool) -> None:
    assert TRITON.is_request_error(status, body) is blamed
    assert DIALECTS["triton_trtllm"].is_request_error(status, body) is blamed


# Tensors


async def test_tensors_are_passed_through_in_both_directions(triton: FakeTriton, engines: Engines) -> None:
    triton.script.append(Behaviour(body=b'{"outputs":[]}\x00\xff', content_type="application/octet-stream"))
    triton.infer_headers = {"Inference-Header-Content-Length": "14"}
    raw = b'{"inputs":[]}\x01\x02'

    answer = await engines(triton.url, dialect="triton").ask(infer(raw, json_bytes=13))
    received = await triton.next_request()

    assert (received.method, received.path, received.raw) == ("POST", "/v2/models/fake/infer", raw)
    assert received.headers["inference-header-content-length"] == "13"
    assert (received.headers["traceparent"], received.headers["x-request-id"]) == ("00-1", "r1")
    assert await read_all(answer) == b'{"outputs":[]}\x00\xff'
    assert answer.body_headers == ((b"inference-header-content-length", b"14"),)


async def test_model_metadata_and_readiness_come_from_the_engine(triton: FakeTriton, engines: Engines) -> None:
    engine = engines(triton.url, dialect="triton")

    described = await said(await engine.ask(infer(b"", ModelOperation.METADATA)))
    ready = await engine.ask(infer(b"", ModelOperation.READINESS))
    triton.ready = False
    unready = await engine.ask(infer(b"", ModelOperation.READINESS))

    assert described["inputs"][0]["name"] == "text_input"
    assert (ready.status, await read_all(ready)) == (200, b"")
    assert (unready.status, unready.is_request_error(b"")) == (503, False)


async def test_openai_compatible_engine_rejects_tensors(engines: Engines) -> None:
    async with FakeEngine() as engine:
        answer = await engines(engine.url).ask(infer())

    assert (answer.status, answer.is_request_error(b"")) == (404, True)
    assert (await said(answer))["error"].startswith("the API infer is not available for this model")
    assert engine.requests == []


# Text


async def test_complete_response_is_joined_from_a_stream(triton: FakeTriton, engines: Engines) -> None:
    engine = engines(triton.url, dialect="triton")

    body = await said(await engine.ask(a_call(max_tokens=3, stop=["x"])))
    asked = (await triton.next_request()).json

    assert body["choices"][0]["message"]["content"] == " t0 t1 t2"
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert (body["id"], body["model"]) == ("chatcmpl-r1", "fake")
    assert asked["text_input"] == "User: Say hello in five words.\n\nAssistant:"
    assert (asked["stop_words"], asked["stream"], asked["max_tokens"]) == (["x"], True, 3)


async def test_model_inputs_are_queried_once_and_again_after_an_error(triton: FakeTriton, engines: Engines) -> None:
    engine = engines(triton.url, dialect="triton")
    for _ in range(3):
        await said(await engine.ask(a_call(max_tokens=1)))
    assert [each.path for each in triton.probes] == ["/v2/models/fake", "/v2/models/fake/config"]

    triton.script.append(Behaviour(status=400, error="unexpected inference input 'stop_words'"))
    refused = await engine.ask(a_call(max_tokens=1))
    del triton.inputs["stop_words"]
    triton.config = None
    await said(await engine.ask(a_call(max_tokens=1, stop="x")))

    assert (await said(refused))["error"] == {
        "message": "unexpected inference input 'stop_words'",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_request_error",
    }
    assert len(triton.probes) == 4
    assert triton.requests[-1].json["stop"] == "x"


@pytest.mark.parametrize("api", [Api.EMBEDDINGS, Api.RESPONSES])
async def test_requests_without_text_to_complete_are_rejected(triton: FakeTriton, engines: Engines, api: Api) -> None:
    answer = await engines(triton.url, dialect="triton").ask(a_call(api))

    assert (answer.status, answer.is_request_error(b"")) == (404, True)
    assert triton.requests == []


async def test_chat_with_a_tensor_only_model_is_rejected(triton: FakeTriton, engines: Engines) -> None:
    triton.inputs = {"x": "FP32"}

    answer = await engines(triton.url, dialect="triton").ask(a_call())

    assert (answer.status, answer.is_request_error(b"")) == (404, True)
    assert "use /v2/models/MODEL/infer" in (await said(answer))["error"]["message"]


async def test_unknown_model_causes_an_engine_error(triton: FakeTriton, engines: Engines) -> None:
    answer = await engines(triton.url, dialect="triton", served_model="gone").ask(a_call())

    assert (answer.status, answer.is_request_error(b"")) == (502, False)
    assert (await said(answer))["error"]["message"] == "Request for unknown model: 'gone' is not found"


async def test_error_event_fails_streaming_and_complete_responses(triton: FakeTriton, engines: Engines) -> None:
    triton.behaviour = Behaviour(tokens=5, error_after=2, error="out of memory")
    engine = engines(triton.url, dialect="triton")
    scanner = StreamScanner(keep_usage_chunk=False)

    stream = await engine.ask(a_call(stream=True))
    await stream.stream_to(lambda data: bool(scanner.feed(data)) and scanner.closed)
    stream.close()
    whole = await engine.ask(a_call())

    assert (scanner.events, scanner.error, scanner.done) == (2, "out of memory", False)
    assert (whole.status, whole.is_request_error(b"")) == (500, False)


async def test_empty_text_is_a_valid_response(triton: FakeTriton, engines: Engines) -> None:
    triton.behaviour = Behaviour(tokens=1)
    triton.word = ""
    engine = engines(triton.url, dialect="triton")
    streamed = await read_all(await engine.ask(a_call(stream=True)))
    whole = await engine.ask(a_call())

    assert streamed.endswith(b"data: [DONE]\n\n")
    assert whole.status == 200
    assert json.loads(await read_all(whole))["choices"][0]["message"]["content"] == ""


async def test_stream_without_events_raises_a_fault(triton: FakeTriton, engines: Engines) -> None:
    triton.behaviour = Behaviour(tokens=0)
    engine = engines(triton.url, dialect="triton")

    with pytest.raises(EngineFault, match="without a response"):
        await engine.ask(a_call())
    assert await read_all(await engine.ask(a_call(stream=True))) == b""


async def test_truncated_stream_raises_a_fault(triton: FakeTriton, engines: Engines) -> None:
    triton.behaviour = Behaviour(tokens=5, cut_after=2)
    engine = engines(triton.url, dialect="triton")
    stream = await engine.ask(a_call(stream=True))

    with pytest.raises(EngineFault, match="truncated"):
        await read_all(stream)
    with pytest.raises(EngineFault, match="truncated"):
        await engine.ask(a_call())


async def test_stream_can_be_paused(triton: FakeTriton, engines: Engines) -> None:
    taken: list[bytes] = []
    stream = await engines(triton.url, dialect="triton").ask(a_call(stream=True, max_tokens=2))
    stream.pause()
    pouring = asyncio.create_task(stream.stream_to(lambda data: taken.append(data) is not None))
    await triton.requests[0].ended.wait()
    await asyncio.sleep(0.02)
    before = list(taken)
    stream.resume()
    await pouring
    stream.drain()

    assert before == []
    assert b"".join(taken).endswith(b"data: [DONE]\n\n")
