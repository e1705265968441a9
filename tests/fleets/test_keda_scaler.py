"""Does the scaler answer as KEDA expects, over a real connection, to a client made from the .proto?"""

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
from headgate.fleets.keda.scaler import METRIC, KedaScaler, Wanted
from testing.ports import free_port
from tests.fleets.keda_stubs import stubs

THREE = Wanted(3, active=True, reason="demand 2.1 of 0.7 each")
NONE = Wanted(0, active=False, reason="no demand for 30 minutes")


@dataclass
class Pools:
    """What an autoscaler would know."""

    wanted: dict[str, Wanted] = field(default_factory=lambda: {"chat": THREE, "code": NONE})

    def of(self, pool: str) -> Wanted:
        return self.wanted[pool]

    def names(self) -> list[str]:
        return list(self.wanted)


@dataclass
class Running:
    scaler: KedaScaler
    pools: Pools
    client: SimpleNamespace
    port: int

    def change(self, pool: str, wanted: Wanted | None) -> None:
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
    """As KEDA sends it: all of the trigger's metadata."""
    metadata = {"scalerAddress": "headgate-scaler:9091", **more} | ({} if pool is None else {"pool": pool})
    return stubs().messages.ScaledObjectRef(name="engines", namespace="serving", scalerMetadata=metadata)


def asking(pool: str = "chat", metric: str = METRIC, **more: str) -> object:
    return stubs().messages.GetMetricsRequest(scaledObjectRef=ref(pool, **more), metricName=metric)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not reached():
            await asyncio.sleep(0.01)


async def test_a_pool_of_which_endpoints_are_wanted_is_active_and_another_is_not() -> None:
    async with a_scaler() as running:
        chat, code = await running.client.IsActive(ref("chat")), await running.client.IsActive(ref("code"))

    assert (chat.result, code.result) == (True, False)


async def test_the_metric_has_the_target_one_in_both_fields() -> None:
    async with a_scaler() as running:
        [spec] = (await running.client.GetMetricSpec(ref())).metricSpecs

    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRIC, 1, 1.0)


async def test_the_metric_is_the_number_of_endpoints_wanted() -> None:
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
async def test_one_more_than_twenty_is_told_so_that_it_is_not_overlooked(more: dict[str, str], told: int) -> None:
    async with a_scaler() as running:
        running.change("chat", replace(THREE, endpoints=21, present=20))
        [value] = (await running.client.GetMetrics(asking(**more))).metricValues

    assert value.metricValue == told


@pytest.mark.parametrize("said", ["", "ten", "-1", "101", "0.5"])
async def test_a_tolerance_that_is_no_percentage_is_refused(said: str) -> None:
    async with a_scaler() as running:
        with pytest.raises(grpc.aio.AioRpcError, match="write a number from 0 to 100, or remove it") as refused:
            await running.client.GetMetrics(asking(tolerancePercent=said))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_reason_comes_along_for_people() -> None:
    async with a_scaler() as running:
        running.change("chat", replace(THREE, reason="demand ≥ 2\n"))
        call = running.client.GetMetrics(asking())
        await call
        said = dict(await call.trailing_metadata())

    assert said["headgate-reason"] == "demand ? 2?"


@pytest.mark.parametrize("ask", ["IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics"])
async def test_an_unknown_pool_is_not_found_and_the_known_ones_are_named(ask: str) -> None:
    async with a_scaler() as running:
        question = asking("chta") if ask == "GetMetrics" else ref("chta")
        call = getattr(running.client, ask)(question)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (call.read() if ask == "StreamIsActive" else call)

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert refused.value.details() == (
        "ScaledObject serving/engines, metadata of its trigger: "
        'there is no pool "chta" that is scaled; name one of: chat, code'
    )


async def test_a_trigger_that_names_no_pool_is_told_what_to_add() -> None:
    async with a_scaler() as running:
        with pytest.raises(grpc.aio.AioRpcError, match="add `pool: NAME`, one of: chat, code") as refused:
            await running.client.IsActive(ref(None))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_another_metric_than_ours_is_refused() -> None:
    async with a_scaler() as running:
        with pytest.raises(grpc.aio.AioRpcError, match='there is no metric "cpu" here') as refused:
            await running.client.GetMetrics(asking(metric="cpu"))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_says_what_holds_and_then_only_what_changes() -> None:
    async with a_scaler() as running:
        stream = running.client.StreamIsActive(ref("code"))
        first = await stream.read()
        # Another number, still none wanted; another pool; neither is news to this stream.
        running.change("code", replace(NONE, reason="still nothing"))
        running.change("chat", replace(THREE, endpoints=4))
        silent = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0.1)
        was_silent = not silent.done()
        running.change("code", Wanted(1, active=True, reason="a request waits"))
        second = await asyncio.wait_for(silent, 30)
        running.change("code", NONE)
        third = await asyncio.wait_for(stream.read(), 30)
        stream.cancel()

    assert was_silent
    assert [each.result for each in (first, second, third)] == [False, True, False]


async def test_a_stream_that_its_client_left_is_forgotten() -> None:
    async with a_scaler() as running:
        stream = running.client.StreamIsActive(ref())
        await stream.read()
        open_before = running.scaler.streams
        stream.cancel()
        await until(lambda: running.scaler.streams == 0)

    assert open_before == 1


async def test_a_stream_ends_when_its_pool_goes() -> None:
    async with a_scaler() as running:
        stream = running.client.StreamIsActive(ref("code"))
        await stream.read()
        running.change("code", None)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(stream.read(), 30)

    assert ended.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_scaler_that_leaves_ends_its_streams_in_good_order() -> None:
    async with a_scaler() as running:
        stream = running.client.StreamIsActive(ref())
        await stream.read()
        await running.scaler.stop()
        end = await asyncio.wait_for(stream.read(), 30)
        code = await stream.code()

    assert end is grpc.aio.EOF
    assert code is grpc.StatusCode.OK


async def test_no_more_streams_are_held_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_call_of_a_later_interface_is_unimplemented_which_keda_takes_for_a_target_that_never_changes() -> None:
    async with a_scaler() as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        later = channel.unary_stream("/externalscaler.ExternalScaler/StreamMetricSpec")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await later(b"").read()

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_bytes_that_are_no_message_harm_nobody_else() -> None:
    async with a_scaler() as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        raw = channel.unary_unary("/externalscaler.ExternalScaler/IsActive")
        with pytest.raises(grpc.aio.AioRpcError):
            await raw(b"\x0b\xff")
        after = await running.client.IsActive(ref())

    assert after.result is True


@pytest.mark.parametrize("host", ["127.0.0.1", "host.invalid"])
async def test_a_port_that_is_taken_or_an_address_of_nobody_is_said(host: str) -> None:
    async with a_scaler() as running:
        with pytest.raises(OSError, match=f"on {host}:{running.port}: another process .*, or it is no address of ours"):
            await KedaScaler(running.pools.of, running.pools.names).start(host, running.port)


async def test_an_address_of_the_newer_kind_is_listened_on_at_the_port_that_was_named() -> None:
    pools, port = Pools(), free_port()
    scaler = KedaScaler(pools.of, pools.names)
    bound = await scaler.start("::1", port)
    async with grpc.aio.insecure_channel(f"[::1]:{port}") as channel:
        found = await stubs().Client(channel).IsActive(ref(), timeout=30)
    await scaler.stop()

    assert (bound, found.result) == (port, True)


def test_it_runs_on_the_event_loop_that_the_gateway_uses() -> None:
    async def ask() -> int:
        async with a_scaler() as running:
            [value] = (await running.client.GetMetrics(asking())).metricValues
            return value.metricValue

    assert uvloop.run(ask()) == 3


@pytest.mark.process
def test_without_grpc_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['grpc'] = None; import headgate.fleets.keda.scaler"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.endswith("KEDA is answered over gRPC; pip install 'headgate[kubernetes]'\n")


@pytest.mark.process
def test_nothing_of_the_base_install_imports_grpc() -> None:
    program = "import sys, headgate.compose.gateway, headgate.cli.main; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
