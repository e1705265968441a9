"""gRPC service for KEDA that reports the desired replica count of a pool.

KEDA is the client. Every few seconds it polls for the desired replica count (`GetMetrics`) and for whether the pool is
active (`IsActive`). It also keeps a stream open on which changes to the active state are reported immediately
(`StreamIsActive`), so that a pool at zero replicas starts without waiting for the next poll. The trigger's metadata
specifies the pool (`pool: NAME`) and optionally the autoscaler's tolerance, such as `tolerancePercent: "0"`.

The metric is the desired replica count and its target is 1, so the Kubernetes autoscaler arrives at the same count.
`tolerance.py` handles the exceptions. `desired` makes the decisions; this module only implements the protocol. The
service does not require a key, and its responses contain no secrets; even so, keep the port inside the cluster.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headgate.fleets.keda.tolerance import TOLERANCE_PERCENT, metric_value
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
    raise ImportError("KEDA support requires gRPC; pip install 'headgate[kubernetes]'") from error

METRIC = "headgate-endpoints-desired"
STREAMS_MAX = 256
"""Maximum number of open streams. KEDA opens one per ScaledObject."""
CALLS_MAX = 1_024
MESSAGE_BYTES_MAX = 64 * 1024

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A second gateway on the same port is a configuration error and must fail.
    ("grpc.so_reuseport", 0),
    # Keepalive pings detect clients that have disappeared without closing the stream.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)

_Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


@dataclass(frozen=True, slots=True)
class DesiredEndpoints:
    endpoints: int
    """Desired replica count, including starting replicas."""
    active: bool
    """Whether the pool should have any replicas. An inactive pool may be scaled to zero."""
    reason: str
    present: int = 0
    """Current number of replicas, in any state."""


class KedaScaler:
    """External scaler service. Must be created and used inside an event loop."""

    def __init__(
        self,
        desired: Callable[[PoolName], DesiredEndpoints],
        pools: Callable[[], Sequence[PoolName]],
    ) -> None:
        self._desired = desired
        self._pools = pools
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Event()
        self._leaving = False
        self.streams = 0
        """Number of open streams."""

    async def start(self, host: str, port: int) -> int:
        """Starts listening and returns the port. If the configured port is 0, the system chooses one. Raises
        `OSError`.
        """
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        server.add_generic_rpc_handlers((self._handlers(),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError:
            # gRPC writes the actual reason only to its log.
            message = f"cannot listen for KEDA on {address}: the port is in use or the address is not local"
            raise OSError(errno.EADDRINUSE, message) from None
        await server.start()
        self._server = server
        return bound

    async def stop(self) -> None:
        """Closes the streams cleanly. KEDA then reconnects to any available gateway."""
        self._leaving = True
        self.changed()
        if self._server is not None:
            await self._server.stop(grace=1.0)

    def changed(self) -> None:
        """Must be called when the result of `desired` or `pools` may have changed."""
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
        wanted = self._desired(await self._pool(ref, context))
        _set_reason(wanted, context)
        return IsActiveResponse(result=wanted.active)

    async def _stream_is_active(self, ref: ScaledObjectRef, context: _Context) -> AsyncIterator[IsActiveResponse]:
        """Yields the current state immediately, then every change, until the pool is removed or the service stops."""
        if self.streams >= STREAMS_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{STREAMS_MAX} streams are open, which is the limit; close some or use IsActive instead",
            )
        self.streams += 1
        try:
            told: bool | None = None
            while not self._leaving:
                changed = self._changed
                active = self._desired(await self._pool(ref, context)).active
                if active != told:
                    yield IsActiveResponse(result=active)
                    told = active
                await changed.wait()
        finally:
            self.streams -= 1

    async def _metric_spec(self, ref: ScaledObjectRef, context: _Context) -> GetMetricSpecResponse:
        """Returns one metric. The target is in both fields, because KEDA versions before 2.11 only read the integer."""
        await self._pool(ref, context)
        return GetMetricSpecResponse(metricSpecs=[MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1)])

    async def _metrics(self, request: GetMetricsRequest, context: _Context) -> GetMetricsResponse:
        if request.metricName not in ("", METRIC):
            message = f'unknown metric "{request.metricName}"; use "{METRIC}", which GetMetricSpec returns'
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        wanted = self._desired(await self._pool(request.scaledObjectRef, context))
        _set_reason(wanted, context)
        tolerance_percent = await _tolerance_percent(request.scaledObjectRef, context)
        told = metric_value(wanted.endpoints, current=wanted.present, tolerance_percent=tolerance_percent)
        value = MetricValue(metricName=METRIC, metricValue=told, metricValueFloat=told)
        return GetMetricsResponse(metricValues=[value])

    async def _pool(self, ref: ScaledObjectRef, context: _Context) -> PoolName:
        """Returns the pool specified by the trigger. Aborts the call if there is no such pool."""
        known = self._pools()
        named = ref.scalerMetadata.get("pool", "")
        if named in known:
            return PoolName(named)
        place = _trigger_location(ref)
        listed = ", ".join(known) or "none; add a `scaling` section to a pool first"
        if not named:
            message = f"{place}: the pool is missing; add `pool: NAME` with one of: {listed}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        await context.abort(
            grpc.StatusCode.NOT_FOUND, f'{place}: no scaled pool is named "{named}"; use one of: {listed}'
        )
        raise AssertionError("abort does not return")


def _trigger_location(ref: ScaledObjectRef) -> str:
    return f"ScaledObject {ref.namespace}/{ref.name}, trigger metadata"


async def _tolerance_percent(ref: ScaledObjectRef, context: _Context) -> int:
    """Returns the autoscaler's tolerance for this object. Aborts the call if it is not a valid percentage."""
    said = ref.scalerMetadata.get("tolerancePercent", str(TOLERANCE_PERCENT))
    if not (said.isascii() and said.isdigit() and int(said) <= 100):
        problem = f'tolerancePercent "{said}" is not a percentage; use a number from 0 to 100, or remove it'
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{_trigger_location(ref)}: {problem}")
    return int(said)


def _set_reason(wanted: DesiredEndpoints, context: _Context) -> None:
    """Adds the reason as trailing metadata, which `grpcurl -v` displays. Only printable ASCII is allowed there."""
    why = "".join(letter if " " <= letter <= "~" else "?" for letter in wanted.reason)
    context.set_trailing_metadata((("headgate-reason", why),))
