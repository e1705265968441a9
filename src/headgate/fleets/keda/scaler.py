"""What does KEDA get to know about a pool when it asks?

KEDA is a client: it asks every few seconds how many endpoints are wanted (`GetMetrics`) and whether any are at all
(`IsActive`), and holds one stream open over which it hears at once when the latter changes (`StreamIsActive`), so that
a pool that was given up comes back without waiting for the next question. Which pool is meant stands in the trigger's
metadata: `pool: NAME`, and beside it `tolerancePercent: "0"` where the autoscaler of Kubernetes was told so.

The metric is the number of endpoints wanted and its target is 1, so the autoscaler of Kubernetes divides by one and
arrives at our number (tolerance.py says where it would not). All thinking is done by whoever gives `wanted`; here is
only the wire. Nothing is secret in the answers and nobody is asked for a key: keep the port inside the cluster.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headgate.fleets.keda.tolerance import TOLERANCE_PERCENT, figure
from headgate.model.units import PoolName

try:
    import grpc
    import grpc.aio

    from headgate.fleets.keda.externalscaler_pb2 import (
        GetMetricSpecResponse,
        GetMetricsRequest,
        GetMetricsResponse,
        IsActiveResponse,
        MetricSpec,
        MetricValue,
        ScaledObjectRef,
    )
except ImportError as error:
    raise ImportError("KEDA is answered over gRPC; pip install 'headgate[kubernetes]'") from error

METRIC = "headgate-endpoints-wanted"
STREAMS_MAX = 256
"""KEDA holds one for each ScaledObject; more are refused."""
CALLS_MAX = 1_024
MESSAGE_BYTES_MAX = 64 * 1024

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A second gateway on the same port is a mistake that must show.
    ("grpc.so_reuseport", 0),
    # A stream whose client vanished without a word is found by asking.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)

_Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


@dataclass(frozen=True, slots=True)
class Wanted:
    endpoints: int
    """Those that are ready and those that are starting together."""
    active: bool
    """Whether any are wanted at all; a pool that is not active may be given up altogether."""
    reason: str
    present: int = 0
    """How many there are, in whatever state."""


class KedaScaler:
    """The service. Made and used inside an event loop."""

    def __init__(
        self,
        wanted: Callable[[PoolName], Wanted],
        pools: Callable[[], Sequence[PoolName]],
    ) -> None:
        self._wanted = wanted
        self._pools = pools
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Event()
        self._leaving = False
        self.streams = 0
        """How many are open."""

    async def start(self, host: str, port: int) -> int:
        """Listens; gives the port, which the system chooses where 0 is asked for. Raises OSError where it cannot."""
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        server.add_generic_rpc_handlers((self._handlers(),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError:
            # Which of the two it is gRPC tells only its log.
            message = f"cannot listen for KEDA on {address}: another process has the port, or it is no address of ours"
            raise OSError(errno.EADDRINUSE, message) from None
        await server.start()
        self._server = server
        return bound

    async def stop(self) -> None:
        """Ends the streams in good order; KEDA comes again, and is answered by whoever is there then."""
        self._leaving = True
        self.changed()
        if self._server is not None:
            await self._server.stop(grace=1.0)

    def changed(self) -> None:
        """To be called when `wanted` or `pools` may give another answer than before."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        ref, active = ScaledObjectRef.FromString, IsActiveResponse.SerializeToString
        spec, value = GetMetricSpecResponse.SerializeToString, GetMetricsResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            "externalscaler.ExternalScaler",
            {
                "IsActive": unary(self._is_active, ref, active),
                "StreamIsActive": stream(self._stream_is_active, ref, active),
                "GetMetricSpec": unary(self._metric_spec, ref, spec),
                "GetMetrics": unary(self._metrics, GetMetricsRequest.FromString, value),
            },
        )

    async def _is_active(self, ref: ScaledObjectRef, context: _Context) -> IsActiveResponse:
        wanted = self._wanted(await self._pool(ref, context))
        _tell_why(wanted, context)
        return IsActiveResponse(result=wanted.active)

    async def _stream_is_active(self, ref: ScaledObjectRef, context: _Context) -> AsyncIterator[IsActiveResponse]:
        """What holds, at once; then every change. Ends when the pool is gone or this process leaves."""
        if self.streams >= STREAMS_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{STREAMS_MAX} streams are open, as many as there may be; close some or ask IsActive instead",
            )
        self.streams += 1
        try:
            told: bool | None = None
            while not self._leaving:
                changed = self._changed
                active = self._wanted(await self._pool(ref, context)).active
                if active != told:
                    yield IsActiveResponse(result=active)
                    told = active
                await changed.wait()
        finally:
            self.streams -= 1

    async def _metric_spec(self, ref: ScaledObjectRef, context: _Context) -> GetMetricSpecResponse:
        """One metric. The number is in both fields: KEDA before 2.11 knows only the integer."""
        await self._pool(ref, context)
        return GetMetricSpecResponse(metricSpecs=[MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1)])

    async def _metrics(self, request: GetMetricsRequest, context: _Context) -> GetMetricsResponse:
        if request.metricName not in ("", METRIC):
            message = (
                f'there is no metric "{request.metricName}" here, only "{METRIC}"; let KEDA take it from GetMetricSpec'
            )
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        wanted = self._wanted(await self._pool(request.scaledObjectRef, context))
        _tell_why(wanted, context)
        tolerance_percent = await _tolerance_percent(request.scaledObjectRef, context)
        told = figure(wanted.endpoints, present=wanted.present, tolerance_percent=tolerance_percent)
        value = MetricValue(metricName=METRIC, metricValue=told, metricValueFloat=told)
        return GetMetricsResponse(metricValues=[value])

    async def _pool(self, ref: ScaledObjectRef, context: _Context) -> PoolName:
        """Of whose endpoints is this about? Ends the call where nobody can tell."""
        known = self._pools()
        named = ref.scalerMetadata.get("pool", "")
        if named in known:
            return PoolName(named)
        place = _place(ref)
        listed = ", ".join(known) or "none; give a pool a `scaling` section first"
        if not named:
            message = f"{place}: no pool is named; add `pool: NAME`, one of: {listed}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        await context.abort(
            grpc.StatusCode.NOT_FOUND, f'{place}: there is no pool "{named}" that is scaled; name one of: {listed}'
        )
        raise AssertionError("abort does not return")


def _place(ref: ScaledObjectRef) -> str:
    return f"ScaledObject {ref.namespace}/{ref.name}, metadata of its trigger"


async def _tolerance_percent(ref: ScaledObjectRef, context: _Context) -> int:
    """Of the autoscaler that follows this object. Ends the call where it is no number."""
    said = ref.scalerMetadata.get("tolerancePercent", str(TOLERANCE_PERCENT))
    if not (said.isascii() and said.isdigit() and int(said) <= 100):
        message = (
            f'{_place(ref)}: tolerancePercent "{said}" is no percentage; write a number from 0 to 100, or remove it'
        )
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
    return int(said)


def _tell_why(wanted: Wanted, context: _Context) -> None:
    """For people: `grpcurl -v` shows it. Only printable ASCII may stand there."""
    why = "".join(letter if " " <= letter <= "~" else "?" for letter in wanted.reason)
    context.set_trailing_metadata((("headgate-reason", why),))
