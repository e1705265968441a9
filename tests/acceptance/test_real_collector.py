"""Traces exported to a real collector.

A live gateway sends traces to Rotel, a collector written in Rust. Rotel forwards them to the test, which checks them.
"""

import asyncio
import socket
from pathlib import Path

import pytest
import rotel

from headgate.model.stage import Stage
from headgate.telemetry.traces.collector import Collector
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from testing.ports import free_port
from testing.processes import ChildProcess
from testing.trace_collector import SpanSink

pytestmark = [pytest.mark.observability, pytest.mark.timeout(400)]

AGENT = Path(rotel.__file__).parent / "rotel-agent"


async def listens(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            await asyncio.sleep(0.05)


def a_collector(folder: Path, port: int, sink: SpanSink) -> ChildProcess:
    files = ["--pid-file", str(folder / "pid"), "--log-file", str(folder / "log")]
    receiver = ["--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"]
    exporter = ["--exporter", "otlp", "--otlp-exporter-endpoint", sink.url, "--otlp-exporter-protocol", "http"]
    return ChildProcess("rotel", [AGENT, "start", *files, *receiver, *exporter])


async def test_real_collector_reads_a_complete_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    # A collector that is merely stalled must not count as a failed export.
    monkeypatch.setitem(Collector.__init__.__kwdefaults__, "post_s_max", 60.0)
    async with SpanSink() as sink, FakeEngine() as bad, FakeEngine() as good:
        bad.behaviour = Behaviour(status=500)
        with a_collector(tmp_path, port, sink):
            await listens(port)
            tracing = {"endpoint": f"http://127.0.0.1:{port}", "sample_percent": 100}
            async with gateway_in_loop(a_config(bad.url, good.url, tracing=tracing), tmp_path) as gateway:
                names: list[str] = []
                headers = {"x-headgate-client-stages": "retrieval;dur=80"}
                attempts = ""
                # Repeat until the bad engine gets a request first.
                while attempts != "2":
                    async with gateway.post(chat(stream=True), headers=headers) as answer:
                        await answer.read()
                        names.append(answer.headers["x-request-id"])
                        attempts = answer.headers["x-headgate-attempts"]
                await sink.wait_for_traces(len(names))
                traces = gateway.gateway._observability._traces
                # The collector may forward a trace before the gateway has read its response.
                await gateway.wait_for_status(lambda _: traces.figures().exported == len(names))
                figures = traces.figures()

    assert figures is not None
    assert (figures.exported, figures.exports_failed) == (len(names), 0)
    longest = sink.trace(names[-1])
    assert sum(span.name == "chat m" for span in longest) == 2
    assert {span.name for span in longest} >= {stage.value for stage in Stage} - {"queue"} | {"retrieval"}
    ids = {span.span_id for span in longest}
    assert all(span.parent in ids for span in longest[1:])
