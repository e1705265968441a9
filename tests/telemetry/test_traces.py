"""Does a collector get of each kept request one whole trace, and nobody anything else?"""

import asyncio
import itertools
import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from headgate.compose.traces import LEAVING_MAX
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, Duration
from headgate.ports.records import RequestRecord
from headgate.telemetry.stages.budget import ClassBudget
from headgate.telemetry.traces.known import Known
from headgate.telemetry.traces.options import Names, TracingOptions
from headgate.telemetry.traces.posting import POST_S_MAX, Collector, Posted
from headgate.telemetry.traces.spans import trace
from headgate.telemetry.traces.tracer import Tracer, TracerLimits
from testing.collector import Seen, SpanSink, seen
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, GatewayInLoop, a_config, chat, gateway_in_loop
from testing.records import a_record, an_attempt

SERVER, CLIENT, INTERNAL = 2, 3, 1
ERROR = 2
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CANARY = "canary-9f1c-of-a-prompt"
KEY = "hg-a-key-that-nobody-may-see"


@asynccontextmanager
async def traced(
    folder: Path, *engines: FakeEngine, sink: SpanSink, sample: float = 100, **settings: Any
) -> AsyncIterator[GatewayInLoop]:
    tracing = {"endpoint": sink.url, "sample_percent": sample} | settings.pop("tracing", {})
    config = a_config(*(engine.url for engine in engines), tracing=tracing, **settings)
    async with gateway_in_loop(config, folder) as gateway:
        yield gateway


def gateway_config(gateway: GatewayInLoop, engine: FakeEngine, tracing: dict[str, Any]) -> dict[str, Any]:
    """For one that runs already: its addresses stay."""
    listen, admin = gateway.url.removeprefix("http://"), gateway.admin_url.removeprefix("http://")
    return a_config(engine.url, tracing=tracing) | {"listen": listen, "admin_listen": admin}


def spans_of(record: RequestRecord, known: Known) -> list[Seen]:
    """Its root first, then its attempts."""
    made = [seen(span) for span in ScopeSpans.FromString(trace(record, known)).spans]
    return sorted(made, key=lambda span: (span.kind != SERVER, span.kind != CLIENT))


async def streamed(gateway: GatewayInLoop, **options: Any) -> tuple[int, str]:
    async with gateway.post(chat(CANARY, stream=True, max_tokens=3), **options) as answer:
        await answer.read()
        return answer.status, answer.headers["x-request-id"]


def children(spans: list[Seen], parent: Seen) -> list[Seen]:
    return sorted((span for span in spans if span.parent == parent.span_id), key=lambda span: span.begin)


async def test_a_request_is_one_trace_with_a_span_for_each_stage(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            before = time.time_ns()
            _, name = await streamed(gateway)
            await sink.until(1)
            root, *rest = sink.trace(name)

    (attempt,) = [span for span in rest if span.kind == CLIENT]
    ours, theirs = children(rest, root), children(rest, attempt)
    assert {span.name for span in ours} >= {stage.value for stage in Stage} - {
        "queue",
        "connect",
        "prefill",
        "decode",
    } | {"chat m"}
    assert [span.name for span in theirs] == ["connect", "prefill", "decode"]
    assert len(rest) == len(ours) + len(theirs), "every span has its parent"
    assert len({span.span_id for span in [root, *rest]}) == len(rest) + 1
    assert (root.kind, root.parent, root.status, root.name) == (SERVER, b"", 0, "headgate chat")
    assert before - 1_000_000_000 < root.begin <= root.end < time.time_ns() + 1_000_000_000
    stages = [span for span in ours if span.kind == INTERNAL]
    for family, within in ((stages, root), (theirs, attempt), ([attempt], root)):
        assert all(within.begin <= span.begin < span.end <= within.end for span in family)
        assert all(one.end <= other.begin for one, other in itertools.pairwise(family))
    covered = sum(span.end - span.begin for span in stages + theirs)
    assert covered == root.end - root.begin, "the stages add up"


async def test_spans_say_what_became_of_the_request(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            _, name = await streamed(gateway)
            await sink.until(1)
            root, *rest = sink.trace(name)

    attempt = next(span for span in rest if span.kind == CLIENT)
    assert {key: root.attributes[key] for key in ("headgate.tenant", "headgate.class", "headgate.outcome")} == {
        "headgate.tenant": "laptop",
        "headgate.class": "interactive",
        "headgate.outcome": "completed",
    }
    assert root.attributes["gen_ai.operation.name"] == "chat"
    assert root.attributes["gen_ai.request.model"] == root.attributes["gen_ai.response.model"] == "m"
    assert root.attributes["gen_ai.usage.output_tokens"] == 3
    assert root.attributes["gen_ai.provider.name"] == attempt.attributes["gen_ai.provider.name"] == "vllm"
    assert (attempt.name, attempt.attributes["gen_ai.request.model"]) == ("chat m", "m")
    assert root.attributes["http.response.status_code"] == 200
    assert attempt.attributes["headgate.pool"] == "small"
    assert attempt.attributes["headgate.endpoint"].startswith("small/")
    assert attempt.attributes["headgate.attempt"] == 1
    assert attempt.attributes["headgate.ending"] == "completed"
    assert attempt.attributes["headgate.reason"]
    assert sink.resources[0]["service.name"] == "headgate"


async def test_without_names_that_may_still_change_ours_say_the_same(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink, tracing={"names": "plain"}) as gateway:
            _, name = await streamed(gateway)
            await sink.until(1)
            root = sink.trace(name)[0]

    assert not [key for span in sink.spans for key in span.attributes if key.startswith(("gen_ai.", "error."))]
    assert (root.attributes["headgate.model"], root.attributes["headgate.output_tokens"]) == ("m", 3)
    (attempt,) = [span for span in sink.spans if span.kind == CLIENT]
    assert (attempt.name, attempt.attributes["headgate.engine"]) == ("attempt", "vllm")


def test_names_follow_the_version_that_is_asked_for() -> None:
    record = a_record(an_attempt(), trace_id=b"\x01" * 16, span=1)
    for names, told in ((Names.GEN_AI, "gen_ai.provider.name"), (Names.GEN_AI_1_36, "gen_ai.system")):
        root, attempt = spans_of(record, Known(names, engines={"small": "vllm"}))[0:2]
        found = [key for span in (root, attempt) for key, value in span.attributes.items() if value == "vllm"]
        assert found == [told, told]
    unknown = spans_of(record, Known())[0]
    assert unknown.attributes["gen_ai.provider.name"] == "_OTHER"


def test_spans_tell_what_took_longer_than_it_may() -> None:
    record = a_record(an_attempt(), trace_id=b"\x01" * 16, span=1)
    stages = {Stage.QUEUE: Duration(MILLISECOND), Stage.PREFILL: Duration(20 * MILLISECOND)}
    budget = ClassBudget(stages, ttft_ns=Duration(5 * MILLISECOND), duration_ns=Duration(50 * MILLISECOND))
    root, *rest = spans_of(record, Known(budgets={"interactive": budget}))

    assert root.attributes["headgate.over_budget"] == "queue"
    assert root.attributes["headgate.late"] == "ttft=prefill, duration=decode"
    allowed = {
        span.name: span.attributes["headgate.budget_ms"] for span in rest if "headgate.budget_ms" in span.attributes
    }
    assert allowed == {"queue": 1.0, "prefill": 20.0}


def test_what_kept_to_its_budget_is_not_said_to_be_late() -> None:
    record = a_record(an_attempt(), trace_id=b"\x01" * 16, span=1)
    budget = ClassBudget({Stage.QUEUE: Duration(SECOND)}, ttft_ns=Duration(SECOND))
    root = spans_of(record, Known(budgets={"interactive": budget}))[0]

    assert not {"headgate.over_budget", "headgate.late"} & set(root.attributes)


async def test_another_budget_is_told_from_the_next_trace_on(tmp_path: Path) -> None:
    classes = {"interactive": {"stage_budget": {"decode": "10s"}}}
    async with SpanSink() as sink, FakeEngine() as engine, traced(tmp_path, engine, sink=sink) as gateway:
        await streamed(gateway)
        await sink.until(1)
        assert not [span for span in sink.spans if "headgate.budget_ms" in span.attributes]
        await gateway.rewrite(
            gateway_config(gateway, engine, {"endpoint": sink.url, "sample_percent": 100}) | {"classes": classes}
        )
        await streamed(gateway)
        await sink.until(2)

    assert [span.name for span in sink.spans if span.attributes.get("headgate.budget_ms") == 10_000] == ["decode"]


async def test_what_is_tried_again_has_a_span_for_each_attempt(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as bad, FakeEngine() as good:
        bad.behaviour = Behaviour(status=500, error=CANARY)
        async with traced(tmp_path, bad, good, sink=sink) as gateway:
            names = [(await streamed(gateway))[1] for _ in range(2)]
            await sink.until(2)
            found = [[span for span in sink.trace(name) if span.kind == CLIENT] for name in names]

    attempts = sorted(max(found, key=len), key=lambda span: span.begin)
    assert [span.attributes["headgate.attempt"] for span in attempts] == [1, 2]
    assert [span.status for span in attempts] == [ERROR, 0]
    assert attempts[0].attributes["error.type"] == "failed"
    assert attempts[0].end <= attempts[1].begin


async def test_refusals_and_failures_are_kept_at_a_rate_of_zero_and_nothing_else(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink, sample=0, retry={"attempts_max": 1}) as gateway:
            await streamed(gateway)
            async with gateway.post(chat(model=f"no {CANARY}")) as refused:
                assert refused.status == 404
            engine.script.append(Behaviour(status=500, error=CANARY))
            async with gateway.post(chat()) as failed:
                assert failed.status == 502
            await sink.until(2)
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                metrics = await page.text()

    roots = {span.attributes["headgate.outcome"]: span for span in sink.spans if span.kind == SERVER}
    assert set(roots) == {"model_not_found", "engine_failed"}
    assert (roots["model_not_found"].status, roots["engine_failed"].status) == (0, ERROR)
    assert roots["engine_failed"].attributes["error.type"] == "engine_failed"
    assert 'headgate_traces_kept_total{why="refused"} 1.0' in metrics
    assert 'headgate_traces_kept_total{why="sampled"} 0.0' in metrics


async def test_a_flood_of_refusals_is_no_flood_of_spans(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink, tracing={"kept_per_second_max": 8}) as gateway:
            for _ in range(50):
                async with gateway.http.get(gateway.url + "/nothing") as answer:
                    assert answer.status == 404
            await sink.until(2)
        figures = gateway.gateway._sight._traces.figures()

    assert figures is not None
    assert sum(figures.kept.values()) + sum(figures.dropped.values()) == 50
    assert sum(figures.kept.values()) < 10


async def test_the_callers_trace_goes_on_here_and_at_the_engine(tmp_path: Path) -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "congo=t61rcWkgMzE"}
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            _, name = await streamed(gateway, headers=headers)
            await sink.until(1)
            root, *rest = sink.trace(name)

    attempt = next(span for span in rest if span.kind == CLIENT)
    assert (root.trace_id.hex(), root.parent.hex(), root.trace_state) == (TRACE, SPAN, "congo=t61rcWkgMzE")
    assert root.flags & 0x300 == 0x300, "its parent is elsewhere"
    assert engine.requests[0].headers["traceparent"] == f"00-{TRACE}-{attempt.span_id.hex()}-01"
    assert engine.requests[0].headers["tracestate"] == "congo=t61rcWkgMzE"


async def test_where_it_is_not_sampled_the_engine_is_told_so(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine, traced(tmp_path, engine, sink=sink, sample=0) as gateway:
        await streamed(gateway, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
        await streamed(gateway)

    told = [request.headers["traceparent"] for request in engine.requests]
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", told[0])
    assert SPAN not in told[0]
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", told[1])
    assert TRACE not in told[1]


async def test_where_the_callers_trace_is_kept_ours_belongs_to_it_at_any_rate(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine, traced(tmp_path, engine, sink=sink, sample=0) as gateway:
        await streamed(gateway, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
        await sink.until(1)
        figures = gateway.gateway._sight._traces.figures()

    assert figures is not None
    assert figures.kept["sampled"] == 1
    assert {span.trace_id.hex() for span in sink.spans} == {TRACE}
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-01", engine.requests[0].headers["traceparent"])


async def test_what_began_before_traces_were_sent_passes_as_it_came(tmp_path: Path) -> None:
    body = json.dumps(chat()).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntraceparent: 00-{TRACE}-{SPAN}-01\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    async with SpanSink() as sink, FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + body[:10])
        await until(lambda: gateway.gateway._door.open_requests)
        await gateway.rewrite(gateway_config(gateway, engine, {"endpoint": sink.url, "sample_percent": 100}))
        writer.write(body[10:])
        assert b"200" in await reader.readline()
        writer.close()
        await until(lambda: not gateway.gateway._door.open_requests)

    assert engine.requests[0].headers["traceparent"] == f"00-{TRACE}-{SPAN}-01"
    assert sink.spans == []


async def test_where_nothing_is_traced_the_callers_headers_pass_as_they_came(tmp_path: Path) -> None:
    headers = {"traceparent": "whatever it is", "tracestate": "a=1, b=2"}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        await streamed(gateway, headers=headers)

    assert {name: engine.requests[0].headers[name] for name in headers} == headers


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01", "tracestate": "a=1"},
        {"traceparent": f"ff-{TRACE}-{SPAN}-01", "x-headgate-stages": "x;dur=1e99"},
        {"traceparent": "é" * 1_500, "tracestate": "é", "x-headgate-stages": "é;dur=1"},
        {"tracestate": "a=1", "x-headgate-stages": "<script>;dur=1, ok;dur=2"},
    ],
)
async def test_what_is_hostile_in_them_is_as_if_it_had_not_been_sent(tmp_path: Path, headers: dict[str, str]) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            status, name = await streamed(gateway, headers=headers)
            await sink.until(1)
            root, *rest = sink.trace(name)

    assert status == 200
    assert (root.parent, root.trace_state) == (b"", "")
    assert root.trace_id.hex() not in (TRACE, "0" * 32)
    assert engine.requests[0].headers["traceparent"].startswith(f"00-{root.trace_id.hex()}-")
    assert "tracestate" not in engine.requests[0].headers
    assert {span.name for span in rest} <= {*Stage, "chat m"}


@pytest.mark.parametrize("parent", [SPAN, None])
async def test_the_callers_own_stages_join_before_ours(tmp_path: Path, parent: str | None) -> None:
    headers = {"x-headgate-stages": "prompt_building;dur=12.5, retrieval;dur=80"}
    if parent is not None:
        headers["traceparent"] = f"00-{TRACE}-{parent}-01"
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            _, name = await streamed(gateway, headers=headers)
            await sink.until(1)
            root, *rest = sink.trace(name)
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                assert "retrieval" not in await page.text()

    told = sorted((span for span in rest if "headgate.told_by" in span.attributes), key=lambda span: span.begin)
    assert [(span.name, span.end - span.begin) for span in told] == [
        ("prompt_building", 12_500_000),
        ("retrieval", 80_000_000),
    ]
    assert told[0].end == told[1].begin
    assert told[1].end == root.begin
    assert {span.parent for span in told} == {root.span_id if parent is None else bytes.fromhex(parent)}


async def test_neither_prompts_nor_answers_nor_keys_are_in_there(tmp_path: Path) -> None:
    from headgate.wire.keys import digest, format_digest

    tenants = {"acme": {"keys": [format_digest(digest(b"a secret of at least some length", KEY))]}}
    keys = {"key_secret": "a secret of at least some length", "tenants": tenants, "anonymous_tenant": None}
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink, **keys) as gateway:
            bearer = {"authorization": f"Bearer {KEY}"}
            await streamed(gateway, headers=bearer)
            await streamed(gateway, headers={"authorization": f"Bearer {KEY}x"})
            body = f'{{"model": "m", "messages": ["{CANARY}"], "{CANARY}": 1}}'
            for data in (body, body[:-1], f'{{"model": 1, "messages": "{CANARY}"}}'):
                async with gateway.http.post(gateway.url + CHAT, data=data, headers=bearer) as answer:
                    assert answer.status in (200, 400)
            engine.script.append(Behaviour(status=400, error=CANARY))
            await streamed(gateway, headers=bearer)
            await sink.until(6)

    everything = b"".join(sink.bodies)
    assert b"headgate" in everything
    for secret in (CANARY, KEY, "token 1", "a secret of"):
        assert secret.encode() not in everything


async def test_a_post_is_compressed_and_carries_what_the_operator_says(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink, tracing={"headers": {"x-api-key": "s3cret"}}) as gateway:
            await streamed(gateway)
            await sink.until(1)

    path, headers = sink.posts[0]
    assert path == "/v1/traces"
    sent = {name.lower(): value for name, value in headers.items()}
    assert (sent["content-type"], sent["content-encoding"]) == ("application/x-protobuf", "gzip")
    assert sent["x-api-key"] == "s3cret"


async def test_another_configuration_sends_elsewhere(tmp_path: Path) -> None:
    async with SpanSink() as one, SpanSink() as other, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=one) as gateway:
            await streamed(gateway)
            config = gateway_config(gateway, engine, {"endpoint": other.url, "sample_percent": 100})
            await gateway.rewrite(config)
            await streamed(gateway)
            await asyncio.gather(one.until(1), other.until(1))
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                assert 'headgate_traces_kept_total{why="sampled"} 2.0' in await page.text(), "no counter falls"
            await gateway.rewrite({name: value for name, value in config.items() if name != "tracing"})
            await streamed(gateway)
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                assert "headgate_traces" not in await page.text()

    assert "traceparent" not in engine.requests[-1].headers
    assert len({span.trace_id for span in [*one.spans, *other.spans]}) == 2


async def test_only_so_many_are_on_their_way_out_and_all_are_waited_for_together(
    tmp_path: Path,
) -> None:
    quick = TracerLimits(look_every_s=0.01, stop_s_max=1.5)
    async with a_silent_collector() as url:
        threads: list[threading.Thread] = []
        async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
            traces = gateway.gateway._sight._traces
            for number in range(LEAVING_MAX + 3):
                tracing = {"endpoint": url, "sample_percent": 100, "kept_per_second_max": 100 + number}
                await gateway.rewrite(gateway_config(gateway, engine, tracing))
                assert traces._tracer is not None
                traces._tracer.limits = quick
                threads.append(traces._tracer._thread)
                await streamed(gateway)
            assert len(traces._leaving) <= LEAVING_MAX
            await until(lambda: not any(thread.is_alive() for thread in threads[:2]))
            await until(lambda: sum(traces.figures().kept.values()) == len(threads))  # type: ignore[union-attr]
            figures = traces.figures()
            began = time.monotonic()
            await traces.stop()
            took_s = time.monotonic() - began

    assert figures is not None
    assert figures.waiting + figures.dropped["collector"] == len(threads)
    assert figures.dropped["collector"] >= 2, "what was given up is counted"
    assert took_s < LEAVING_MAX * quick.stop_s_max, "one after another they would take longer"
    await until(lambda: not any(thread.is_alive() for thread in threads))


# A collector that is away


@asynccontextmanager
async def a_silent_collector(*, says: bytes = b"", every_s: float = 0.05) -> AsyncIterator[str]:
    """Takes whatever comes and never has said all."""
    held: list[asyncio.StreamWriter] = []
    talks: list[asyncio.Task[None]] = []

    async def talk(writer: asyncio.StreamWriter) -> None:
        while says and not writer.is_closing():
            writer.write(says)
            await asyncio.sleep(every_s)

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        talks.append(asyncio.create_task(talk(writer)))

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces"
    server.close()
    for task in talks:
        task.cancel()
    for writer in held:
        writer.transport.abort()


def a_tracer(url: str, **limits: float) -> Tracer:
    quick = TracerLimits(**({"look_every_s": 0.01, "post_every_s": 0.02} | limits))  # type: ignore[arg-type]
    rates = {"slowest_ppm": 0, "kept_per_second_max": 1_000_000}
    options = TracingOptions(url, headers={"x-key": "s3cret"}, **rates)
    return Tracer(options, known=Known(), version="1", instance="i", limits=quick)  # type: ignore[arg-type]


def numbered(number: int) -> Any:
    name, trace_id = f"req_{number:024x}", number.to_bytes(16, "big")
    return a_record(an_attempt(), request_id=name, trace_id=trace_id, trace_sampled=True, span=number)


async def until(reached: Any) -> None:
    async with asyncio.timeout(30):
        while not reached():
            await asyncio.sleep(0.005)


async def test_traces_wait_for_a_collector_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    sink = SpanSink()
    tracer = a_tracer(f"http://user:s3cret@127.0.0.1:{sink.port}/v1/traces")
    with caplog.at_level(logging.INFO, "headgate"):
        tracer.begin()
        for number in range(1, 4):
            tracer.take(numbered(number))
        await until(lambda: tracer.figures().posts_failed and tracer.figures().waiting == 3)
        await sink.start()
        await sink.until(3)
        await tracer.stop()
        await sink.stop()

    assert tracer.figures().sent == 3
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "the collector does not take traces",
        "the collector takes traces again",
    ]
    assert "s3cret" not in caplog.text + str([vars(record) for record in caplog.records])
    assert str(sink.port) not in str([vars(record)["fields"] for record in caplog.records])


def counted(tracer: Tracer) -> int:
    """Traces that wait for the collector or were dropped."""
    figures = tracer.figures()
    return figures.waiting + figures.dropped["collector"]


async def test_the_oldest_go_when_too_many_wait() -> None:
    sink = SpanSink()
    tracer = a_tracer(f"{sink.url}/v1/traces", traces_bytes_max=10_000)
    for number in range(1, 101):
        tracer.take(numbered(number))
    tracer.begin()
    await until(lambda: tracer.figures().posts_failed and counted(tracer) == 100)
    figures = tracer.figures()
    await sink.start()
    await tracer.stop()
    await sink.stop()

    assert 0 < figures.waiting < 20
    assert max(int.from_bytes(span.trace_id, "big") for span in sink.spans) == 100
    assert min(int.from_bytes(span.trace_id, "big") for span in sink.spans) > 80


async def test_the_oldest_go_when_requests_end_faster_than_they_are_looked_at() -> None:
    async with SpanSink() as sink:
        tracer = a_tracer(f"{sink.url}/v1/traces", records_max=10)
        for number in range(1, 101):
            tracer.take(numbered(number))
        tracer.begin()
        await tracer.stop()

    assert tracer.figures().dropped["behind"] == 90
    assert {int.from_bytes(span.trace_id, "big") for span in sink.spans} == set(range(91, 101))


async def test_at_the_end_what_is_left_is_sent(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            await streamed(gateway)
        assert len({span.trace_id for span in sink.spans}) == 1


async def test_a_collector_that_does_not_answer_holds_up_neither_the_loop_nor_the_end() -> None:
    async with a_silent_collector() as url:
        tracer = a_tracer(url, stop_s_max=0.1)
        tracer.begin()
        tracer.take(numbered(1))
        began = time.monotonic()
        await tracer.stop()
        took_s = time.monotonic() - began
    await until(lambda: not tracer._thread.is_alive())

    assert took_s < POST_S_MAX, "it did not wait for the post"


@pytest.mark.parametrize(("status", "kept"), [(302, False), (307, False), (400, False), (503, True), (429, True)])
async def test_what_the_collector_refuses_is_sent_again_only_where_that_helps(status: int, kept: bool) -> None:
    async with SpanSink() as elsewhere, SpanSink(status=status, headers={"location": ""}) as sink:
        sink.headers["location"] = f"{elsewhere.url}/v1/traces"
        tracer = a_tracer(f"{sink.url}/v1/traces")
        tracer.take(numbered(1))
        tracer.begin()
        await until(lambda: tracer.figures().posts_failed)
        expected = (1, 0) if kept else (0, 1)
        await until(lambda: (tracer.figures().waiting, tracer.figures().dropped["collector"]) == expected)
        await tracer.stop()

    assert elsewhere.posts == [], "nobody is followed elsewhere"


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="go on"),
        pytest.param(b"H", id="a letter at a time"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_a_post_ends_though_the_collector_always_has_more_to_say(says: bytes) -> None:
    async with a_silent_collector(says=says) as url, asyncio.timeout(30):
        collector = Collector(url, {}, post_s_max=0.2)
        posted, why = await asyncio.to_thread(collector.post, b"x")
        collector.close()

    assert posted is Posted.LATER
    if says != b"H":
        assert "did not answer within" in why


async def test_what_no_trace_can_be_made_of_costs_that_trace_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with SpanSink() as sink:
        tracer = a_tracer(f"{sink.url}/v1/traces")
        tracer.begin()
        for span in (1, 2):
            tracer.take(a_record(an_attempt(), trace_id="no bytes", trace_sampled=True, span=span))
        tracer.take(a_record(an_attempt(), trace_id=b"\x01" * 16, trace_sampled=True, span=3, output_tokens=10**30))
        tracer.take(numbered(4))
        await sink.until(1)
        await tracer.stop()

    assert tracer.figures().dropped["mistake"] == 3
    assert (tracer.figures().kept["sampled"], tracer.figures().sent) == (1, 1)
    assert caplog.text.count("mistake in Headgate") == 1


async def test_a_mistake_of_ours_in_posting_ends_tracing_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    tracer = a_tracer("http://127.0.0.1:9/v1/traces")
    tracer._outbox.add("no bytes")  # type: ignore[arg-type]
    tracer.begin()
    await until(tracer.has_left)
    tracer.take(numbered(1))
    await tracer.stop()

    assert "no more traces are sent" in caplog.text


async def test_where_the_package_is_missing_it_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = SpanSink()
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        monkeypatch.setitem(sys.modules, "headgate.telemetry.traces.tracer", None)
        with pytest.raises(OSError, match=r"install headgate\[tracing\]"):
            async with traced(tmp_path, engine, sink=sink):
                pass
        with caplog.at_level(logging.WARNING, "headgate"):
            await gateway.rewrite(gateway_config(gateway, engine, {"endpoint": sink.url}))
        assert (await streamed(gateway))[0] == 200

    assert "install headgate[tracing]" in str([vars(record) for record in caplog.records])


@pytest.mark.process
def test_without_tracing_nothing_of_it_is_loaded() -> None:
    code = "import sys, headgate.compose.gateway; print([name for name in sys.modules if 'opentelemetry' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"
