"""The collector receives one complete trace for each kept request and nothing else."""

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

from headgate.compose.traces import RETIRING_MAX
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, Duration
from headgate.ports.records import RequestRecord
from headgate.telemetry.stages.stage_budget import ClassStageBudget
from headgate.telemetry.traces.collector import POST_S_MAX, Collector, PostResult
from headgate.telemetry.traces.options import NamingConvention, TracingOptions
from headgate.telemetry.traces.span_settings import SpanSettings
from headgate.telemetry.traces.spans import build_trace
from headgate.telemetry.traces.tracer import Tracer, TracerLimits
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, GatewayInLoop, a_config, chat, gateway_in_loop
from testing.records import a_record, an_attempt
from testing.trace_collector import ReceivedSpan, SpanSink, received_span

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
    """New configuration for a running gateway, with unchanged addresses."""
    listen, admin = gateway.url.removeprefix("http://"), gateway.admin_url.removeprefix("http://")
    return a_config(engine.url, tracing=tracing) | {"listen": listen, "admin_listen": admin}


def spans_of(record: RequestRecord, known: SpanSettings) -> list[ReceivedSpan]:
    """The record's spans: the root, then the attempts, then the stages."""
    made = [received_span(span) for span in ScopeSpans.FromString(build_trace(record, known)).spans]
    return sorted(made, key=lambda span: (span.kind != SERVER, span.kind != CLIENT))


async def streamed(gateway: GatewayInLoop, **options: Any) -> tuple[int, str]:
    async with gateway.post(chat(CANARY, stream=True, max_tokens=3), **options) as answer:
        await answer.read()
        return answer.status, answer.headers["x-request-id"]


def children(spans: list[ReceivedSpan], parent: ReceivedSpan) -> list[ReceivedSpan]:
    return sorted((span for span in spans if span.parent == parent.span_id), key=lambda span: span.begin)


async def test_request_produces_one_trace_with_a_span_per_stage(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            before = time.time_ns()
            _, name = await streamed(gateway)
            await sink.wait_for_traces(1)
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
    assert len(rest) == len(ours) + len(theirs), "a span has an unknown parent"
    assert len({span.span_id for span in [root, *rest]}) == len(rest) + 1
    assert (root.kind, root.parent, root.status, root.name) == (SERVER, b"", 0, "headgate chat")
    assert before - 1_000_000_000 < root.begin <= root.end < time.time_ns() + 1_000_000_000
    stages = [span for span in ours if span.kind == INTERNAL]
    for family, within in ((stages, root), (theirs, attempt), ([attempt], root)):
        assert all(within.begin <= span.begin < span.end <= within.end for span in family)
        assert all(one.end <= other.begin for one, other in itertools.pairwise(family))
    covered = sum(span.end - span.begin for span in stages + theirs)
    assert covered == root.end - root.begin, "the stages do not add up to the request"


async def test_spans_describe_the_request_and_its_attempt(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            _, name = await streamed(gateway)
            await sink.wait_for_traces(1)
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
    assert attempt.attributes["headgate.attempt_ending"] == "completed"
    assert attempt.attributes["headgate.reason"]
    assert sink.resources[0]["service.name"] == "headgate"


async def test_plain_names_replace_the_experimental_gen_ai_attributes(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink, tracing={"semantic_conventions": "plain"}) as gateway:
            _, name = await streamed(gateway)
            await sink.wait_for_traces(1)
            root = sink.trace(name)[0]

    assert not [key for span in sink.spans for key in span.attributes if key.startswith(("gen_ai.", "error."))]
    assert (root.attributes["headgate.model"], root.attributes["headgate.output_tokens"]) == ("m", 3)
    (attempt,) = [span for span in sink.spans if span.kind == CLIENT]
    assert (attempt.name, attempt.attributes["headgate.engine"]) == ("attempt", "vllm")


def test_attribute_names_follow_the_configured_version() -> None:
    record = a_record(an_attempt(), trace_id=b"\x01" * 16, span_seed=1)
    for names, told in (
        (NamingConvention.GEN_AI, "gen_ai.provider.name"),
        (NamingConvention.GEN_AI_1_36, "gen_ai.system"),
    ):
        root, attempt = spans_of(record, SpanSettings(names, engines={"small": "vllm"}))[0:2]
        found = [key for span in (root, attempt) for key, value in span.attributes.items() if value == "vllm"]
        assert found == [told, told]
    unknown = spans_of(record, SpanSettings())[0]
    assert unknown.attributes["gen_ai.provider.name"] == "_OTHER"


def test_spans_identify_exceeded_budgets_and_late_stages() -> None:
    record = a_record(an_attempt(), trace_id=b"\x01" * 16, span_seed=1)
    stages = {Stage.QUEUE: Duration(MILLISECOND), Stage.PREFILL: Duration(20 * MILLISECOND)}
    budget = ClassStageBudget(stages, ttft_ns=Duration(5 * MILLISECOND), duration_ns=Duration(50 * MILLISECOND))
    root, *rest = spans_of(record, SpanSettings(budgets={"interactive": budget}))

    assert root.attributes["headgate.over_budget"] == "queue"
    assert root.attributes["headgate.missed_targets"] == "ttft=prefill, duration=decode"
    allowed = {
        span.name: span.attributes["headgate.budget_ms"] for span in rest if "headgate.budget_ms" in span.attributes
    }
    assert allowed == {"queue": 1.0, "prefill": 20.0}


def test_request_within_its_budget_has_no_late_attributes() -> None:
    record = a_record(an_attempt(), trace_id=b"\x01" * 16, span_seed=1)
    budget = ClassStageBudget({Stage.QUEUE: Duration(SECOND)}, ttft_ns=Duration(SECOND))
    root = spans_of(record, SpanSettings(budgets={"interactive": budget}))[0]

    assert not {"headgate.over_budget", "headgate.missed_targets"} & set(root.attributes)


async def test_changed_budget_applies_to_the_next_trace(tmp_path: Path) -> None:
    classes = {"interactive": {"stage_budget": {"decode": "10s"}}}
    async with SpanSink() as sink, FakeEngine() as engine, traced(tmp_path, engine, sink=sink) as gateway:
        await streamed(gateway)
        await sink.wait_for_traces(1)
        assert not [span for span in sink.spans if "headgate.budget_ms" in span.attributes]
        await gateway.rewrite(
            gateway_config(gateway, engine, {"endpoint": sink.url, "sample_percent": 100}) | {"classes": classes}
        )
        await streamed(gateway)
        await sink.wait_for_traces(2)

    assert [span.name for span in sink.spans if span.attributes.get("headgate.budget_ms") == 10_000] == ["decode"]


async def test_retried_request_has_a_span_per_attempt(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as bad, FakeEngine() as good:
        bad.behaviour = Behaviour(status=500, error=CANARY)
        async with traced(tmp_path, bad, good, sink=sink) as gateway:
            names = [(await streamed(gateway))[1] for _ in range(2)]
            await sink.wait_for_traces(2)
            found = [[span for span in sink.trace(name) if span.kind == CLIENT] for name in names]

    attempts = sorted(max(found, key=len), key=lambda span: span.begin)
    assert [span.attributes["headgate.attempt"] for span in attempts] == [1, 2]
    assert [span.status for span in attempts] == [ERROR, 0]
    assert attempts[0].attributes["error.type"] == "failed"
    assert attempts[0].end <= attempts[1].begin


async def test_only_rejections_and_failures_are_kept_at_sample_rate_zero(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink, sample=0, retry={"attempts_max": 1}) as gateway:
            await streamed(gateway)
            async with gateway.post(chat(model=f"no {CANARY}")) as refused:
                assert refused.status == 404
            engine.script.append(Behaviour(status=500, error=CANARY))
            async with gateway.post(chat()) as failed:
                assert failed.status == 502
            await sink.wait_for_traces(2)
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                metrics = await page.text()

    roots = {span.attributes["headgate.outcome"]: span for span in sink.spans if span.kind == SERVER}
    assert set(roots) == {"model_not_found", "engine_error"}
    assert (roots["model_not_found"].status, roots["engine_error"].status) == (0, ERROR)
    assert roots["engine_error"].attributes["error.type"] == "engine_error"
    assert 'headgate_traces_kept_total{reason="rejected"} 1.0' in metrics
    assert 'headgate_traces_kept_total{reason="sampled"} 0.0' in metrics


async def test_flood_of_rejections_does_not_flood_the_collector(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink, tracing={"traces_per_second_max": 8}) as gateway:
            for _ in range(50):
                async with gateway.http.get(gateway.url + "/nothing") as answer:
                    assert answer.status == 404
            await sink.wait_for_traces(2)
        figures = gateway.gateway._observability._traces.figures()

    assert figures is not None
    assert sum(figures.kept.values()) + sum(figures.dropped.values()) == 50
    assert sum(figures.kept.values()) < 10


async def test_client_trace_continues_in_the_gateway_and_the_engine(tmp_path: Path) -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "congo=t61rcWkgMzE"}
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            _, name = await streamed(gateway, headers=headers)
            await sink.wait_for_traces(1)
            root, *rest = sink.trace(name)

    attempt = next(span for span in rest if span.kind == CLIENT)
    assert (root.trace_id.hex(), root.parent.hex(), root.trace_state) == (TRACE, SPAN, "congo=t61rcWkgMzE")
    assert root.flags & 0x300 == 0x300, "the parent is not marked as remote"
    assert engine.requests[0].headers["traceparent"] == f"00-{TRACE}-{attempt.span_id.hex()}-01"
    assert engine.requests[0].headers["tracestate"] == "congo=t61rcWkgMzE"


async def test_engine_receives_the_unsampled_flag(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine, traced(tmp_path, engine, sink=sink, sample=0) as gateway:
        await streamed(gateway, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
        await streamed(gateway)

    told = [request.headers["traceparent"] for request in engine.requests]
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", told[0])
    assert SPAN not in told[0]
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", told[1])
    assert TRACE not in told[1]


async def test_sampled_client_trace_is_kept_at_sample_rate_zero(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine, traced(tmp_path, engine, sink=sink, sample=0) as gateway:
        await streamed(gateway, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
        await sink.wait_for_traces(1)
        figures = gateway.gateway._observability._traces.figures()

    assert figures is not None
    assert figures.kept["sampled"] == 1
    assert {span.trace_id.hex() for span in sink.spans} == {TRACE}
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-01", engine.requests[0].headers["traceparent"])


async def test_request_that_started_before_tracing_keeps_its_trace_headers(tmp_path: Path) -> None:
    body = json.dumps(chat()).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntraceparent: 00-{TRACE}-{SPAN}-01\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    async with SpanSink() as sink, FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + body[:10])
        await until(lambda: gateway.gateway._app.open_requests)
        await gateway.rewrite(gateway_config(gateway, engine, {"endpoint": sink.url, "sample_percent": 100}))
        writer.write(body[10:])
        assert b"200" in await reader.readline()
        writer.close()
        await until(lambda: not gateway.gateway._app.open_requests)

    assert engine.requests[0].headers["traceparent"] == f"00-{TRACE}-{SPAN}-01"
    assert sink.spans == []


async def test_trace_headers_pass_unchanged_without_tracing(tmp_path: Path) -> None:
    headers = {"traceparent": "whatever it is", "tracestate": "a=1, b=2"}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        await streamed(gateway, headers=headers)

    assert {name: engine.requests[0].headers[name] for name in headers} == headers


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01", "tracestate": "a=1"},
        {"traceparent": f"ff-{TRACE}-{SPAN}-01", "x-headgate-client-stages": "x;dur=1e99"},
        {"traceparent": "é" * 1_500, "tracestate": "é", "x-headgate-client-stages": "é;dur=1"},
        {"tracestate": "a=1", "x-headgate-client-stages": "<script>;dur=1, ok;dur=2"},
    ],
)
async def test_invalid_trace_headers_are_ignored(tmp_path: Path, headers: dict[str, str]) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            status, name = await streamed(gateway, headers=headers)
            await sink.wait_for_traces(1)
            root, *rest = sink.trace(name)

    assert status == 200
    assert (root.parent, root.trace_state) == (b"", "")
    assert root.trace_id.hex() not in (TRACE, "0" * 32)
    assert engine.requests[0].headers["traceparent"].startswith(f"00-{root.trace_id.hex()}-")
    assert "tracestate" not in engine.requests[0].headers
    assert {span.name for span in rest} <= {*Stage, "chat m"}


@pytest.mark.parametrize("parent", [SPAN, None])
async def test_client_stages_precede_the_gateway_stages(tmp_path: Path, parent: str | None) -> None:
    headers = {"x-headgate-client-stages": "prompt_building;dur=12.5, retrieval;dur=80"}
    if parent is not None:
        headers["traceparent"] = f"00-{TRACE}-{parent}-01"
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            _, name = await streamed(gateway, headers=headers)
            await sink.wait_for_traces(1)
            root, *rest = sink.trace(name)
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                assert "retrieval" not in await page.text()

    told = sorted((span for span in rest if "headgate.reported_by" in span.attributes), key=lambda span: span.begin)
    assert [(span.name, span.end - span.begin) for span in told] == [
        ("prompt_building", 12_500_000),
        ("retrieval", 80_000_000),
    ]
    assert told[0].end == told[1].begin
    assert told[1].end == root.begin
    assert {span.parent for span in told} == {root.span_id if parent is None else bytes.fromhex(parent)}


async def test_traces_contain_no_prompts_responses_or_keys(tmp_path: Path) -> None:
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
            await sink.wait_for_traces(6)

    everything = b"".join(sink.bodies)
    assert b"headgate" in everything
    for secret in (CANARY, KEY, "token 1", "a secret of"):
        assert secret.encode() not in everything


async def test_post_request_is_compressed_and_has_the_configured_headers(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink, tracing={"headers": {"x-api-key": "s3cret"}}) as gateway:
            await streamed(gateway)
            await sink.wait_for_traces(1)

    path, headers = sink.posts[0]
    assert path == "/v1/traces"
    sent = {name.lower(): value for name, value in headers.items()}
    assert (sent["content-type"], sent["content-encoding"]) == ("application/x-protobuf", "gzip")
    assert sent["x-api-key"] == "s3cret"


async def test_reload_changes_or_removes_the_collector(tmp_path: Path) -> None:
    async with SpanSink() as one, SpanSink() as other, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=one) as gateway:
            await streamed(gateway)
            config = gateway_config(gateway, engine, {"endpoint": other.url, "sample_percent": 100})
            await gateway.rewrite(config)
            await streamed(gateway)
            await asyncio.gather(one.wait_for_traces(1), other.wait_for_traces(1))
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                assert 'headgate_traces_kept_total{reason="sampled"} 2.0' in await page.text(), "the counter was reset"
            await gateway.rewrite({name: value for name, value in config.items() if name != "tracing"})
            await streamed(gateway)
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                assert "headgate_traces" not in await page.text()

    assert "traceparent" not in engine.requests[-1].headers
    assert len({span.trace_id for span in [*one.spans, *other.spans]}) == 2


async def test_stopping_tracers_are_bounded_and_awaited_together(
    tmp_path: Path,
) -> None:
    quick = TracerLimits(process_interval_s=0.01, stop_s_max=1.5)
    async with a_silent_collector() as url:
        threads: list[threading.Thread] = []
        async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
            traces = gateway.gateway._observability._traces
            for number in range(RETIRING_MAX + 3):
                tracing = {"endpoint": url, "sample_percent": 100, "traces_per_second_max": 100 + number}
                await gateway.rewrite(gateway_config(gateway, engine, tracing))
                assert traces._tracer is not None
                traces._tracer.limits = quick
                threads.append(traces._tracer._thread)
                await streamed(gateway)
            assert len(traces._retiring) <= RETIRING_MAX
            await until(lambda: not any(thread.is_alive() for thread in threads[:2]))
            await until(lambda: sum(traces.figures().kept.values()) == len(threads))  # type: ignore[union-attr]
            figures = traces.figures()
            began = time.monotonic()
            await traces.stop()
            took_s = time.monotonic() - began

    assert figures is not None
    assert figures.waiting + figures.dropped["export_failed"] == len(threads)
    assert figures.dropped["export_failed"] >= 2, "abandoned traces were not counted"
    assert took_s < RETIRING_MAX * quick.stop_s_max, "the tracers were stopped one after another"
    await until(lambda: not any(thread.is_alive() for thread in threads))


# Unreachable collector


@asynccontextmanager
async def a_silent_collector(*, says: bytes = b"", every_s: float = 0.05) -> AsyncIterator[str]:
    """A collector that accepts connections and never completes a response."""
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
    quick = TracerLimits(**({"process_interval_s": 0.01, "post_interval_s": 0.02} | limits))  # type: ignore[arg-type]
    rates = {"slowest_ppm": 0, "traces_per_second_max": 1_000_000}
    options = TracingOptions(url, headers={"x-key": "s3cret"}, **rates)
    return Tracer(options, span_settings=SpanSettings(), version="1", instance="i", limits=quick)  # type: ignore[arg-type]


def numbered(number: int) -> Any:
    name, trace_id = f"req_{number:024x}", number.to_bytes(16, "big")
    return a_record(an_attempt(), request_id=name, trace_id=trace_id, trace_sampled=True, span_seed=number)


async def until(reached: Any) -> None:
    async with asyncio.timeout(30):
        while not reached():
            await asyncio.sleep(0.005)


async def test_traces_wait_for_an_unreachable_collector(caplog: pytest.LogCaptureFixture) -> None:
    sink = SpanSink()
    tracer = a_tracer(f"http://user:s3cret@127.0.0.1:{sink.port}/v1/traces")
    with caplog.at_level(logging.INFO, "headgate"):
        tracer.start()
        for number in range(1, 4):
            tracer.add(numbered(number))
        await until(lambda: tracer.stats().exports_failed and tracer.stats().waiting == 3)
        await sink.start()
        await sink.wait_for_traces(3)
        await tracer.stop()
        await sink.stop()

    assert tracer.stats().exported == 3
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "the collector is not accepting traces",
        "the collector is accepting traces again",
    ]
    assert "s3cret" not in caplog.text + str([vars(record) for record in caplog.records])
    assert str(sink.port) not in str([vars(record)["fields"] for record in caplog.records])


def counted(tracer: Tracer) -> int:
    """Traces that are waiting for the collector or have been dropped."""
    figures = tracer.stats()
    return figures.waiting + figures.dropped["export_failed"]


async def test_oldest_traces_are_dropped_when_too_many_are_waiting() -> None:
    sink = SpanSink()
    tracer = a_tracer(f"{sink.url}/v1/traces", traces_bytes_max=10_000)
    for number in range(1, 101):
        tracer.add(numbered(number))
    tracer.start()
    await until(lambda: tracer.stats().exports_failed and counted(tracer) == 100)
    figures = tracer.stats()
    await sink.start()
    await tracer.stop()
    await sink.stop()

    assert 0 < figures.waiting < 20
    assert max(int.from_bytes(span.trace_id, "big") for span in sink.spans) == 100
    assert min(int.from_bytes(span.trace_id, "big") for span in sink.spans) > 80


async def test_oldest_records_are_dropped_when_the_tracer_falls_behind() -> None:
    async with SpanSink() as sink:
        tracer = a_tracer(f"{sink.url}/v1/traces", records_max=10)
        for number in range(1, 101):
            tracer.add(numbered(number))
        tracer.start()
        await tracer.stop()

    assert tracer.stats().dropped["queue_full"] == 90
    assert {int.from_bytes(span.trace_id, "big") for span in sink.spans} == set(range(91, 101))


async def test_remaining_traces_are_sent_on_shutdown(tmp_path: Path) -> None:
    async with SpanSink() as sink, FakeEngine() as engine:
        async with traced(tmp_path, engine, sink=sink) as gateway:
            await streamed(gateway)
        assert len({span.trace_id for span in sink.spans}) == 1


async def test_unresponsive_collector_does_not_delay_shutdown() -> None:
    async with a_silent_collector() as url:
        tracer = a_tracer(url, stop_s_max=0.1)
        tracer.start()
        tracer.add(numbered(1))
        began = time.monotonic()
        await tracer.stop()
        took_s = time.monotonic() - began
    await until(lambda: not tracer._thread.is_alive())

    assert took_s < POST_S_MAX, "the shutdown waited for the post"


@pytest.mark.parametrize(("status", "kept"), [(302, False), (307, False), (400, False), (503, True), (429, True)])
async def test_rejected_post_is_retried_only_for_retryable_statuses(status: int, kept: bool) -> None:
    async with SpanSink() as elsewhere, SpanSink(status=status, headers={"location": ""}) as sink:
        sink.headers["location"] = f"{elsewhere.url}/v1/traces"
        tracer = a_tracer(f"{sink.url}/v1/traces")
        tracer.add(numbered(1))
        tracer.start()
        await until(lambda: tracer.stats().exports_failed)
        expected = (1, 0) if kept else (0, 1)
        await until(lambda: (tracer.stats().waiting, tracer.stats().dropped["export_failed"]) == expected)
        await tracer.stop()

    assert elsewhere.posts == [], "a redirect was followed"


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="100 Continue"),
        pytest.param(b"H", id="one byte at a time"),
        pytest.param(b"", id="no response"),
    ],
)
async def test_post_times_out_if_the_response_never_completes(says: bytes) -> None:
    async with a_silent_collector(says=says) as url, asyncio.timeout(30):
        collector = Collector(url, {}, post_s_max=0.2)
        posted, why = await asyncio.to_thread(collector.post, b"x")
        collector.close()

    assert posted is PostResult.RETRY
    if says != b"H":
        assert "no response within" in why


async def test_unencodable_record_drops_only_its_own_trace(caplog: pytest.LogCaptureFixture) -> None:
    async with SpanSink() as sink:
        tracer = a_tracer(f"{sink.url}/v1/traces")
        tracer.start()
        for span in (1, 2):
            broken = a_record(an_attempt(), trace_id=b"\x01" * 16, trace_sampled=True, span_seed=span)
            broken.attempts.append(None)  # type: ignore[arg-type]
            tracer.add(broken)
        tracer.add(a_record(an_attempt(), trace_id=b"\x01" * 16, trace_sampled=True, span_seed=3, output_tokens=10**30))
        tracer.add(numbered(4))
        await sink.wait_for_traces(1)
        await tracer.stop()

    assert tracer.stats().dropped["internal_error"] == 3
    assert (tracer.stats().kept["sampled"], tracer.stats().exported) == (1, 1)
    assert caplog.text.count("internal error") == 1


async def test_internal_error_while_posting_stops_only_tracing(caplog: pytest.LogCaptureFixture) -> None:
    tracer = a_tracer("http://127.0.0.1:9/v1/traces")
    tracer._outbox.add("no bytes")  # type: ignore[arg-type]
    tracer.start()
    await until(tracer.is_stopped)
    tracer.add(numbered(1))
    await tracer.stop()

    assert "no more traces will be sent" in caplog.text


async def test_missing_package_error_names_the_extra_to_install(
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
def test_opentelemetry_is_not_imported_without_tracing() -> None:
    code = "import sys, headgate.compose.gateway; print([name for name in sys.modules if 'opentelemetry' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"
