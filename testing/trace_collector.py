"""An OTLP trace collector that runs in the test's process."""

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from testing.ports import free_port


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One received span."""

    name: str
    span_id: bytes
    parent: bytes
    trace_id: bytes
    kind: int
    begin: int
    end: int
    status: int
    attributes: Mapping[str, Any]
    trace_state: str
    flags: int


@dataclass
class SpanSink:
    port: int = field(default_factory=free_port)
    status: int = 200
    """HTTP status for the responses."""
    headers: dict[str, str] = field(default_factory=dict)
    """HTTP headers for the responses."""
    spans: list[ReceivedSpan] = field(default_factory=list)
    resources: list[Mapping[str, Any]] = field(default_factory=list)
    posts: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def wait_for_traces(self, count: int, *, seconds_max: float = 60.0) -> list[ReceivedSpan]:
        """All spans, once at least `count` traces have arrived."""
        async with asyncio.timeout(seconds_max):
            while len({span.trace_id for span in self.spans}) < count:
                await asyncio.sleep(0.005)
        return self.spans

    def trace(self, request_id: str) -> list[ReceivedSpan]:
        """One request's spans, root first."""
        root = next(span for span in self.spans if span.attributes.get("headgate.request_id") == request_id)
        rest = [span for span in self.spans if span.trace_id == root.trace_id and span is not root]
        return [root, *rest]

    async def _receive(self, request: web.Request) -> web.Response:
        raw = await request.read()
        self.posts.append((request.path, dict(request.headers)))
        # aiohttp has usually decompressed the body already.
        body = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        self.bodies.append(body)
        if self.status == 200:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(_attributes(resource.resource))
                self.spans.extend(received_span(span) for scope in resource.scope_spans for span in scope.spans)
        return web.Response(status=self.status, headers=self.headers)


def received_span(span: Span) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        span_id=span.span_id,
        parent=span.parent_span_id,
        trace_id=span.trace_id,
        kind=span.kind,
        begin=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        status=span.status.code,
        attributes=_attributes(span),
        trace_state=span.trace_state,
        flags=span.flags,
    )


def _attributes(about: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in about.attributes}
