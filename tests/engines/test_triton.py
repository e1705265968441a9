"""Is Triton asked and heard in its own words, and answered for in OpenAI's?

The page of Triton was recorded, and shortened. That of TensorRT-LLM's models needs a GPU; it is written after what
their documentation shows.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.core.events import EndpointMeasured, EndpointProbed, EndpointReadied, EndpointUnreadied, Event
from headgate.engines.dialect import Signal
from headgate.engines.dialects import DIALECTS
from headgate.engines.http import metrics_url
from headgate.engines.metrics_page import Metric, label_values, read_metrics
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Health, Probe, Verdict
from headgate.engines.recognise import Unrecognised, recognise
from headgate.engines.watch import EngineWatch
from headgate.model.endpoint import EndpointTrouble
from headgate.model.ticket import Api
from headgate.model.units import EndpointId, RequestId
from headgate.ports.engine import Answer, Call, EngineFault
from headgate.wire.kserve.infer import Asked, InferBody
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


def infer(raw: bytes = b'{"inputs":[]}', asked: Asked = Asked.INFERENCE, json_bytes: int | None = None) -> Call:
    body = InferBody.of(raw, model="public", asked=asked, json_bytes=json_bytes)
    return Call(RequestId("r1"), Api.INFER, body, {"traceparent": "00-1"})


async def said(answer: Answer) -> Any:
    body = bytearray()
    while data := await answer.read():
        body += data
    answer.close()
    return json.loads(body)


# What it tells of itself


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
def test_every_signal_is_found_on_the_page(dialect: str, page: str, found: dict[str, Metric]) -> None:
    names = [name for aliases in DIALECTS[dialect].metrics.values() for name in aliases]

    assert read_metrics((RECORDED / page).read_bytes(), names) == found


def test_what_waits_and_what_runs_are_told_apart_by_tensorrt_llm() -> None:
    kind = 'nv_trt_llm_request_metrics{{request_type="{}"}}'.format
    found = read_metrics((RECORDED / "triton-trtllm-0.20.txt").read_bytes(), [kind("active")])
    told = DIALECTS["triton_trtllm"].metrics

    assert (told[Signal.RUNNING], told[Signal.WAITING]) == ((kind("scheduled"),), (kind("waiting"),))
    assert found[kind("active")].total == 7 + 2


def test_a_label_picks_one_series_whatever_stands_around_it() -> None:
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
def test_its_metrics_stand_two_ports_above(url: str, there: str) -> None:
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


async def test_what_else_it_tells_is_read_where_it_is_there(session: aiohttp.ClientSession, triton: FakeTriton) -> None:
    scrape = await probe(session, triton).scrape()

    assert scrape.problem is None
    assert scrape.telemetry is not None
    assert (scrape.telemetry.running, scrape.telemetry.waiting) == (None, 0)
    assert scrape.telemetry.further == {"queue_us": 1500.0, "requests_succeeded": 3.0}
    triton.metrics = (RECORDED / "triton-trtllm-0.20.txt").read_bytes()
    with_gpu = (await probe(session, triton, dialect="triton_trtllm").scrape()).telemetry
    assert with_gpu is not None
    assert (with_gpu.running, with_gpu.waiting, with_gpu.kv_used_fraction) == (7, 2, 0.4875)
    assert with_gpu.further == {"gpu_utilisation": 0.75, "gpu_memory_used_bytes": 60129542144.0}


async def test_a_model_is_ready_by_its_own_word(session: aiohttp.ClientSession, triton: FakeTriton) -> None:
    assert await probe(session, triton).health() == Health(Verdict.SERVES, ("fake",))
    assert await probe(session, triton, "other").health() == Health(
        Verdict.SAYS_NO,
        ("fake",),
        'it serves fake, not "other"; set served_model to a name it serves',
        EndpointTrouble.MODEL_UNKNOWN,
    )
    triton.ready = False
    assert (await probe(session, triton).health()).verdict is Verdict.SAYS_NO


async def test_without_metrics_a_model_that_is_not_ready_is_told_in_its_servers_words(
    session: aiohttp.ClientSession, triton: FakeTriton
) -> None:
    triton.metrics_status = 404

    health = await probe(session, triton, "a/b").health()

    said = "GET /v2/models/a%2Fb/ready answered 400: Model version not ready"
    assert health == Health(Verdict.SAYS_NO, (), said, EndpointTrouble.LOADING)


async def test_what_waits_there_is_told_although_nobody_knows_what_runs(
    session: aiohttp.ClientSession, triton: FakeTriton
) -> None:
    triton.metrics = (RECORDED / "triton-2.51.txt").read_bytes()
    told: asyncio.Queue[Event] = asyncio.Queue()
    watch = EngineWatch(session, told.put_nowait, interval_s=0.05)
    watch.watch(E1, triton.url, dialect=TRITON, served_model="fake", api_key=None)

    assert await told.get() == EndpointReadied(E1)
    assert await told.get() == EndpointProbed(E1, None)
    assert await told.get() == EndpointMeasured(E1, 0, 3)
    triton.ready = False
    while (event := await told.get()) != EndpointUnreadied(E1):
        assert event == EndpointMeasured(E1, 0, 3)
    await watch.stop()


async def test_it_is_recognised_with_its_models(session: aiohttp.ClientSession, triton: FakeTriton) -> None:
    found = await recognise(session, triton.url)
    triton.metrics = (RECORDED / "triton-2.51.txt").read_bytes()
    plain = await recognise(session, triton.url)

    assert (found.dialect.name, found.models, found.version) == ("triton_trtllm", ("fake",), "0.0-fake")
    assert (plain.dialect.name, plain.models) == ("triton", ("llm", "embed"))
    triton.metrics_status = 404
    with pytest.raises(Unrecognised, match="start Triton with --metrics-port two above --http-port"):
        await recognise(session, triton.url)


# Whose fault an error is


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
def test_a_request_is_blamed_only_for_its_own_mistakes(status: int, body: bytes, blamed: bool) -> None:
    assert TRITON.blames_request(status, body) is blamed
    assert DIALECTS["triton_trtllm"].blames_request(status, body) is blamed


# Tensors


async def test_tensors_pass_both_ways_as_they_are(triton: FakeTriton, engines: Engines) -> None:
    triton.script.append(Behaviour(body=b'{"outputs":[]}\x00\xff', content_type="application/octet-stream"))
    triton.infer_headers = {"Inference-Header-Content-Length": "14"}
    raw = b'{"inputs":[]}\x01\x02'

    answer = await engines(triton.url, dialect="triton").ask(infer(raw, json_bytes=13))
    received = await triton.next_request()

    assert (received.method, received.path, received.raw) == ("POST", "/v2/models/fake/infer", raw)
    assert received.headers["inference-header-content-length"] == "13"
    assert (received.headers["traceparent"], received.headers["x-request-id"]) == ("00-1", "r1")
    assert await read_all(answer) == b'{"outputs":[]}\x00\xff'
    assert answer.kept_headers == ((b"inference-header-content-length", b"14"),)


async def test_a_model_is_described_by_its_engine(triton: FakeTriton, engines: Engines) -> None:
    engine = engines(triton.url, dialect="triton")

    described = await said(await engine.ask(infer(b"", Asked.METADATA)))
    ready = await engine.ask(infer(b"", Asked.READINESS))
    triton.ready = False
    unready = await engine.ask(infer(b"", Asked.READINESS))

    assert described["inputs"][0]["name"] == "text_input"
    assert (ready.status, await read_all(ready)) == (200, b"")
    assert (unready.status, unready.blames_request(b"")) == (503, False)


async def test_an_engine_of_the_openai_wire_takes_no_tensors(engines: Engines) -> None:
    async with FakeEngine() as engine:
        answer = await engines(engine.url).ask(infer())

    assert (answer.status, answer.blames_request(b"")) == (404, True)
    assert (await said(answer))["error"].startswith("this model is not served by infer")
    assert engine.requests == []


# Text


async def test_a_whole_answer_is_put_together_from_a_stream(triton: FakeTriton, engines: Engines) -> None:
    engine = engines(triton.url, dialect="triton")

    body = await said(await engine.ask(a_call(max_tokens=3, stop=["x"])))
    asked = (await triton.next_request()).json

    assert body["choices"][0]["message"]["content"] == " t0 t1 t2"
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert (body["id"], body["model"]) == ("chatcmpl-r1", "fake")
    assert asked["text_input"] == "User: Say hello in five words.\n\nAssistant:"
    assert (asked["stop_words"], asked["stream"], asked["max_tokens"]) == (["x"], True, 3)


async def test_a_model_is_asked_what_it_takes_once_and_again_after_an_error(
    triton: FakeTriton, engines: Engines
) -> None:
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
async def test_what_has_no_text_to_continue_is_refused(triton: FakeTriton, engines: Engines, api: Api) -> None:
    answer = await engines(triton.url, dialect="triton").ask(a_call(api))

    assert (answer.status, answer.blames_request(b"")) == (404, True)
    assert triton.requests == []


async def test_a_model_without_text_is_asked_for_tensors_only(triton: FakeTriton, engines: Engines) -> None:
    triton.inputs = {"x": "FP32"}

    answer = await engines(triton.url, dialect="triton").ask(a_call())

    assert (answer.status, answer.blames_request(b"")) == (404, True)
    assert "use /v2/models/MODEL/infer" in (await said(answer))["error"]["message"]


async def test_a_model_that_has_gone_is_the_engines_fault(triton: FakeTriton, engines: Engines) -> None:
    answer = await engines(triton.url, dialect="triton", served_model="gone").ask(a_call())

    assert (answer.status, answer.blames_request(b"")) == (502, False)
    assert (await said(answer))["error"]["message"] == "Request for unknown model: 'gone' is not found"


async def test_an_error_in_the_middle_is_one_whether_streamed_or_not(triton: FakeTriton, engines: Engines) -> None:
    triton.behaviour = Behaviour(tokens=5, error_after=2, error="out of memory")
    engine = engines(triton.url, dialect="triton")
    scanner = StreamScanner(keep_usage_chunk=False)

    stream = await engine.ask(a_call(stream=True))
    await stream.pour(lambda data: bool(scanner.feed(data)) and scanner.closed)
    stream.close()
    whole = await engine.ask(a_call())

    assert (scanner.events, scanner.error, scanner.done) == (2, "out of memory", False)
    assert (whole.status, whole.blames_request(b"")) == (500, False)


async def test_a_model_that_has_nothing_to_say_has_answered(triton: FakeTriton, engines: Engines) -> None:
    triton.behaviour = Behaviour(tokens=1)
    triton.word = ""
    engine = engines(triton.url, dialect="triton")
    streamed = await read_all(await engine.ask(a_call(stream=True)))
    whole = await engine.ask(a_call())

    assert streamed.endswith(b"data: [DONE]\n\n")
    assert whole.status == 200
    assert json.loads(await read_all(whole))["choices"][0]["message"]["content"] == ""


async def test_a_stream_without_an_answer_is_a_fault(triton: FakeTriton, engines: Engines) -> None:
    triton.behaviour = Behaviour(tokens=0)
    engine = engines(triton.url, dialect="triton")

    with pytest.raises(EngineFault, match="without an answer"):
        await engine.ask(a_call())
    assert await read_all(await engine.ask(a_call(stream=True))) == b""


async def test_a_stream_that_is_cut_has_no_end(triton: FakeTriton, engines: Engines) -> None:
    triton.behaviour = Behaviour(tokens=5, cut_after=2)
    engine = engines(triton.url, dialect="triton")
    stream = await engine.ask(a_call(stream=True))

    with pytest.raises(EngineFault, match="broke off"):
        await read_all(stream)
    with pytest.raises(EngineFault, match="broke off"):
        await engine.ask(a_call())


async def test_a_stream_can_be_held_back(triton: FakeTriton, engines: Engines) -> None:
    taken: list[bytes] = []
    stream = await engines(triton.url, dialect="triton").ask(a_call(stream=True, max_tokens=2))
    stream.pause()
    pouring = asyncio.create_task(stream.pour(lambda data: taken.append(data) is not None))
    await triton.requests[0].ended.wait()
    await asyncio.sleep(0.02)
    before = list(taken)
    stream.resume()
    await pouring
    stream.let_end()

    assert before == []
    assert b"".join(taken).endswith(b"data: [DONE]\n\n")
