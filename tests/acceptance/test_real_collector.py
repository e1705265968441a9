"""Does a real collector take our traces, and pass on what it has read in them?

Rotel, a collector written in Rust, receives them from a live gateway and sends them on to the test, which reads what
came out at the other end.
"""

import asyncio
import socket
from pathlib import Path

import pytest
import rotel

from headgate.model.stage import Stage
from headgate.telemetry.traces.posting import Collector
from testing.collector import SpanSink
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from testing.ports import free_port
from testing.processes import ChildProcess

pytestmark = [pytest.mark.sight, pytest.mark.timeout(400)]

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


async def test_a_real_collector_reads_a_whole_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    # A collector that pauses must not count as a failed post.
    monkeypatch.setitem(Collector.__init__.__kwdefaults__, "post_s_max", 60.0)
    async with SpanSink() as sink, FakeEngine() as bad, FakeEngine() as good:
        bad.behaviour = Behaviour(status=500)
        with a_collector(tmp_path, port, sink):
            await listens(port)
            tracing = {"endpoint": f"http://127.0.0.1:{port}", "sample_percent": 100}
            async with gateway_in_loop(a_config(bad.url, good.url, tracing=tracing), tmp_path) as gateway:
                names: list[str] = []
                headers = {"x-headgate-stages": "retrieval;dur=80"}
                attempts = ""
                # Repeated until one request was sent to the bad engine first.
                while attempts != "2":
                    async with gateway.post(chat(stream=True), headers=headers) as answer:
                        await answer.read()
                        names.append(answer.headers["x-request-id"])
                        attempts = answer.headers["x-headgate-attempts"]
                await sink.until(len(names))
                traces = gateway.gateway._sight._traces
                # The collector may pass on a trace before the gateway has read its answer.
                await gateway.until(lambda _: traces.figures().sent == len(names))
                figures = traces.figures()

    assert figures is not None
    assert (figures.sent, figures.posts_failed) == (len(names), 0)
    longest = sink.trace(names[-1])
    assert sum(span.name == "chat m" for span in longest) == 2
    assert {span.name for span in longest} >= {stage.value for stage in Stage} - {"queue"} | {"retrieval"}
    ids = {span.span_id for span in longest}
    assert all(span.parent in ids for span in longest[1:])
