"""Tests that the load generator sends the planned requests and counts the responses."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice

import pytest

from bench.load_generator import LoadPlan, LoadResult, arrivals, quantile, run
from bench.mock_upstream import MODEL


def a_plan(port: int, **fields: object) -> LoadPlan:
    plan = {"port": port, "key": "none", "model": MODEL, "connections": 4, "warm_up_s": 0.1, "seconds": 0.5}
    return LoadPlan(**(plan | fields))  # type: ignore[arg-type]


async def ran(upstream_port: int, **fields: object) -> LoadResult:
    return await run(a_plan(upstream_port, pids=(os.getpid(),), **fields))


async def test_closed_loop_sends_requests_repeatedly(upstream_port: int) -> None:
    done = await ran(upstream_port)
    while done.failed == 0 and done.requests <= 8:
        # The machine may stall for a full window.
        done = await ran(upstream_port)

    assert done.failed == 0
    assert done.cpu_ns > 0


async def test_paced_streams_deliver_expected_number_of_chunks(upstream_port: int) -> None:
    done = await ran(upstream_port, connections=20, chunks=10, pace_ms=10, seconds=1.0)

    assert done.failed == 0
    # Twenty streams send at most a hundred chunks per second each. Allow a margin for streams starting and ending.
    assert 0 < done.chunks <= 2400


@pytest.mark.timing
async def test_open_loop_sends_at_its_rate(upstream_port: int) -> None:
    done = await ran(upstream_port, rate=200.0, chunks=2, pace_ms=1, connections=30, seconds=1.0)

    assert done.failed == 0
    assert 140 < done.requests < 260
    assert 0 < done.first_ms["p50"] <= done.first_ms["p99"]


async def test_delayed_request_is_timed_from_due_time(upstream_port: int) -> None:
    # A stream lasts 100 ms, so one connection carries ten per second. At twenty per second, requests must wait.
    done = await ran(upstream_port, rate=20.0, chunks=11, pace_ms=10, connections=1, seconds=1.0)

    assert done.failed == 0
    assert done.first_ms["p99"] > 200


async def test_rejection_counts_as_failure_and_is_reported() -> None:
    body = b'{"error":{"message":"no slot"}}'
    answer = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with server_responding(answer) as port:
        done = await run(a_plan(port))

    assert done.failed >= 1
    assert done.problem is not None
    assert "429" in done.problem
    assert "no slot" in done.problem


async def test_stream_with_missing_chunk_counts_as_failure() -> None:
    stream = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n0\r\n\r\n"
    async with server_responding(stream) as port:
        done = await run(a_plan(port, chunks=3))

    assert done.failed >= 1
    assert "received 0 events" in (done.problem or "")


async def test_closed_connection_counts_as_failure() -> None:
    async with server_responding(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", then_closes=True) as port:
        done = await run(a_plan(port))

    assert done.failed >= 1
    assert "closed before the response was complete" in (done.problem or "")


@asynccontextmanager
async def server_responding(answer: bytes, *, then_closes: bool = False) -> AsyncIterator[int]:
    """Run a server that sends the same response to every read. Requests are small enough for one read each."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65536):
                writer.write(answer)
                if then_closes:
                    break
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def test_arrivals_match_rate_and_depend_only_on_seed() -> None:
    first, again = (list(islice(arrivals(0, 100.0, seed=7), 5000)) for _ in range(2))

    assert first == again
    assert first == sorted(first)
    assert first[-1] / 1e9 == pytest.approx(50, rel=0.1)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_quantile_returns_nearest_value(share: float, value: int) -> None:
    assert quantile(list(range(1, 101)), share) == pytest.approx(value, abs=1)
