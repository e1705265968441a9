"""The KEDA scaler over a real gRPC connection, called by a client generated from the .proto file."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
import uvloop

from headgate.fleets.keda import scaler as module
from headgate.fleets.keda.scaler import METRIC, DesiredEndpoints, KedaScaler
from testing.ports import free_port
from tests.fleets.keda_stubs import stubs

THREE = DesiredEndpoints(3, active=True, reason="demand 2.1 of 0.7 each")
NONE = DesiredEndpoints(0, active=False, reason="no demand for 30 minutes")


@dataclass
class Pools:
    """Desired endpoints per pool, standing in for an autoscaler."""

    wanted: dict[str, DesiredEndpoints] = field(default_factory=lambda: {"chat": THREE, "code": NONE})

    def of(self, pool: str) -> DesiredEndpoints:
        return self.wanted[pool]

    def names(self) -> list[str]:
        return list(self.wanted)


@dataclass
class Running:
    scaler: KedaScaler
    pools: Pools
    client: SimpleNamespace
    port: int

    def change(self, pool: str, wanted: DesiredEndpoints | None) -> None:
        if wanted is None:
            del self.pools.wanted[pool]
        else:
            self.pools.wanted[pool] = wanted
        self.scaler.changed()


@asynccontextmanager
async def a_scaler() -> AsyncIterator[Running]:
    pools = Pools()
    scaler = KedaScaler(pools.of, pools.names)
    port = await scaler.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Running(scaler, pools, stubs().Client(channel), port)
    finally:
        await scaler.stop()


def ref(pool: str | None = "chat", **more: str) -> object:
    """Build a reference that contains all of the trigger's metadata, as KEDA sends it."""
    metadata = {"scalerAddress": "headgate-scaler:9091", **more} | ({} if pool is None else {"pool": pool})
    return stubs().messages.ScaledObjectRef(name="engines", namespace="serving", scalerMetadata=metadata)


def asking(pool: str = "chat", metric: str = METRIC, **more: str) -> object:
    return stubs().messages.GetMetricsRequest(scaledObjectRef=ref(pool, **more), metricName=metric)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not reached():
            await asyncio.sleep(0.01)


async def test_pool_is_active_if_its_desired_count_is_positive() -> None:
    async with a_scaler() as running:
        chat, code = await running.client.IsActive(ref("chat")), await running.client.IsActive(ref("code"))

    assert (chat.result, code.result) == (True, False)


async def test_metric_target_is_one_in_both_fields() -> None:
    async with a_scaler() as running:
        [spec] = (await running.client.GetMetricSpec(ref())).metricSpecs

    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRIC, 1, 1.0)


async def test_metric_is_the_desired_number_of_endpoints() -> None:
    async with a_scaler() as running:
        [value] = (await running.client.GetMetrics(asking())).metricValues
        running.change("chat", replace(THREE, endpoints=5))
        [later] = (await running.client.GetMetrics(asking())).metricValues
        [none] = (await running.client.GetMetrics(asking("code"))).metricValues

    assert (value.metricName, value.metricValue, value.metricValueFloat) == (METRIC, 3, 3.0)
    assert (later.metricValue, later.metricValueFloat) == (5, 5.0)
    assert (none.metricValue, none.metricValueFloat) == (0, 0.0)


@pytest.mark.parametrize(
    ("more", "told"), [({}, 23), ({"tolerancePercent": "0"}, 21), ({"tolerancePercent": "50"}, 31)]
)
async def test_metric_exceeds_the_autoscaler_tolerance(more: dict[str, str], told: int) -> None:
    async with a_scaler() as running:
        running.change("chat", replace(THREE, endpoints=21, present=20))
        [value] = (await running.client.GetMetrics(asking(**more))).metricValues

    assert value.metricValue == told


@pytest.mark.parametrize("said", ["", "ten", "-1", "101", "0.5"])
async def test_invalid_tolerance_is_rejected(said: str) -> None:
    async with a_scaler() as running:
        with pytest.raises(grpc.aio.AioRpcError, match="use a number from 0 to 100, or remove it") as refused:
            await running.client.GetMetrics(asking(tolerancePercent=said))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_reason_is_sent_in_the_trailing_metadata() -> None:
    async with a_scaler() as running:
        running.change("chat", replace(THREE, reason="demand ≥ 2\n"))
        call = running.client.GetMetrics(asking())
        await call
        said = dict(await call.trailing_metadata())

    assert said["headgate-reason"] == "demand ? 2?"


@pytest.mark.parametrize("ask", ["IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics"])
async def test_unknown_pool_is_not_found_and_the_error_lists_known_pools(ask: str) -> None:
    async with a_scaler() as running:
        question = asking("chta") if ask == "GetMetrics" else ref("chta")
        call = getattr(running.client, ask)(question)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (call.read() if ask == "StreamIsActive" else call)

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert refused.value.details() == (
        'ScaledObject serving/engines, trigger metadata: no scaled pool is named "chta"; use one of: chat, code'
    )


async def test_trigger_without_a_pool_is_rejected_with_advice() -> None:
    async with a_scaler() as running:
        with pytest.raises(grpc.aio.AioRpcError, match="add `pool: NAME` with one of: chat, code") as refused:
            await running.client.IsActive(ref(None))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_unknown_metric_is_rejected() -> None:
    async with a_scaler() as running:
        with pytest.raises(grpc.aio.AioRpcError, match='unknown metric "cpu"') as refused:
            await running.client.GetMetrics(asking(metric="cpu"))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_stream_sends_current_state_and_then_changes() -> None:
    async with a_scaler() as running:
        stream = running.client.StreamIsActive(ref("code"))
        first = await stream.read()
        # These changes do not affect whether this stream's pool is active.
        running.change("code", replace(NONE, reason="still nothing"))
        running.change("chat", replace(THREE, endpoints=4))
        silent = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0.1)
        was_silent = not silent.done()
        running.change("code", DesiredEndpoints(1, active=True, reason="a request waits"))
        second = await asyncio.wait_for(silent, 30)
        running.change("code", NONE)
        third = await asyncio.wait_for(stream.read(), 30)
        stream.cancel()

    assert was_silent
    assert [each.result for each in (first, second, third)] == [False, True, False]


async def test_cancelled_stream_is_removed() -> None:
    async with a_scaler() as running:
        stream = running.client.StreamIsActive(ref())
        await stream.read()
        open_before = running.scaler.streams
        stream.cancel()
        await until(lambda: running.scaler.streams == 0)

    assert open_before == 1


async def test_stream_ends_when_its_pool_is_removed() -> None:
    async with a_scaler() as running:
        stream = running.client.StreamIsActive(ref("code"))
        await stream.read()
        running.change("code", None)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(stream.read(), 30)

    assert ended.value.code() is grpc.StatusCode.NOT_FOUND


async def test_stopping_scaler_ends_its_streams_with_ok() -> None:
    async with a_scaler() as running:
        stream = running.client.StreamIsActive(ref())
        await stream.read()
        await running.scaler.stop()
        end = await asyncio.wait_for(stream.read(), 30)
        code = await stream.code()

    assert end is grpc.aio.EOF
    assert code is grpc.StatusCode.OK


async def test_number_of_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 2)
    async with a_scaler() as running:
        kept = [running.client.StreamIsActive(ref()) for _ in range(2)]
        for stream in kept:
            await stream.read()
        with pytest.raises(grpc.aio.AioRpcError, match="2 streams are open") as refused:
            await running.client.StreamIsActive(ref()).read()
        for stream in kept:
            stream.cancel()

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_call_from_a_later_interface_is_unimplemented() -> None:
    async with a_scaler() as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        later = channel.unary_stream("/externalscaler.ExternalScaler/StreamMetricSpec")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await later(b"").read()

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_malformed_message_does_not_affect_other_calls() -> None:
    async with a_scaler() as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        raw = channel.unary_unary("/externalscaler.ExternalScaler/IsActive")
        with pytest.raises(grpc.aio.AioRpcError):
            await raw(b"\x0b\xff")
        after = await running.client.IsActive(ref())

    assert after.result is True


@pytest.mark.parametrize("host", ["127.0.0.1", "host.invalid"])
async def test_start_reports_a_port_in_use_or_a_foreign_address(host: str) -> None:
    async with a_scaler() as running:
        with pytest.raises(OSError, match=f"on {host}:{running.port}: the port is in use or the address is not local"):
            await KedaScaler(running.pools.of, running.pools.names).start(host, running.port)


async def test_scaler_listens_on_an_ipv6_address() -> None:
    pools, port = Pools(), free_port()
    scaler = KedaScaler(pools.of, pools.names)
    bound = await scaler.start("::1", port)
    async with grpc.aio.insecure_channel(f"[::1]:{port}") as channel:
        found = await stubs().Client(channel).IsActive(ref(), timeout=30)
    await scaler.stop()

    assert (bound, found.result) == (port, True)


def test_scaler_runs_on_uvloop() -> None:
    async def ask() -> int:
        async with a_scaler() as running:
            [value] = (await running.client.GetMetrics(asking())).metricValues
            return value.metricValue

    assert uvloop.run(ask()) == 3


@pytest.mark.process
def test_import_error_without_grpc_names_the_extra_to_install() -> None:
    program = "import sys; sys.modules['grpc'] = None; import headgate.fleets.keda.scaler"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.endswith("KEDA support requires gRPC; pip install 'headgate[kubernetes]'\n")


@pytest.mark.process
def test_base_install_does_not_import_grpc() -> None:
    program = "import sys, headgate.compose.gateway, headgate.cli.main; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
