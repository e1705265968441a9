"""Does the load generator send what it should and count what it got?"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice

import pytest

from bench.generator import Measured, Plan, arrivals, quantile, run
from bench.upstream import MODEL


def a_plan(port: int, **fields: object) -> Plan:
    plan = {"port": port, "key": "none", "model": MODEL, "connections": 4, "warm_up_s": 0.1, "seconds": 0.5}
    return Plan(**(plan | fields))  # type: ignore[arg-type]


async def ran(upstream_port: int, **fields: object) -> Measured:
    return await run(a_plan(upstream_port, pids=(os.getpid(),), **fields))


async def test_a_closed_loop_asks_again_and_again(upstream_port: int) -> None:
    done = await ran(upstream_port)
    while done.failed == 0 and done.requests <= 8:
        # The machine may pause for a whole window.
        done = await ran(upstream_port)

    assert done.failed == 0
    assert done.cpu_ns > 0


async def test_paced_streams_give_as_many_chunks_as_were_sent(upstream_port: int) -> None:
    done = await ran(upstream_port, connections=20, chunks=10, pace_ms=10, seconds=1.0)

    assert done.failed == 0
    # Twenty streams of at most a hundred chunks a second, with time for each of the ends and beginnings.
    assert 0 < done.chunks <= 2400


@pytest.mark.timing
async def test_an_open_loop_sends_at_its_rate(upstream_port: int) -> None:
    done = await ran(upstream_port, rate=200.0, chunks=2, pace_ms=1, connections=30, seconds=1.0)

    assert done.failed == 0
    assert 140 < done.requests < 260
    assert 0 < done.first_ms["p50"] <= done.first_ms["p99"]


async def test_a_request_that_had_to_wait_is_timed_from_when_it_was_due(upstream_port: int) -> None:
    # A stream lasts 100 ms and one connection carries ten a second, so of twenty a second half the time is waiting.
    done = await ran(upstream_port, rate=20.0, chunks=11, pace_ms=10, connections=1, seconds=1.0)

    assert done.failed == 0
    assert done.first_ms["p99"] > 200


async def test_a_refusal_is_a_failure_and_is_shown() -> None:
    body = b'{"error":{"message":"no place"}}'
    answer = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with server_that_says(answer) as port:
        done = await run(a_plan(port))

    assert done.failed >= 1
    assert done.problem is not None
    assert "429" in done.problem
    assert "no place" in done.problem


async def test_a_stream_that_lost_a_chunk_is_a_failure() -> None:
    stream = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n0\r\n\r\n"
    async with server_that_says(stream) as port:
        done = await run(a_plan(port, chunks=3))

    assert done.failed >= 1
    assert "0 events came where" in (done.problem or "")


async def test_a_connection_that_is_cut_is_a_failure() -> None:
    async with server_that_says(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", then_closes=True) as port:
        done = await run(a_plan(port))

    assert done.failed >= 1
    assert "closed before the end" in (done.problem or "")


@asynccontextmanager
async def server_that_says(answer: bytes, *, then_closes: bool = False) -> AsyncIterator[int]:
    """To every request the same; requests are told apart by their reads, which are small here."""

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


def test_arrivals_come_at_the_rate_and_are_the_same_for_the_same_seed() -> None:
    first, again = (list(islice(arrivals(0, 100.0, seed=7), 5000)) for _ in range(2))

    assert first == again
    assert first == sorted(first)
    assert first[-1] / 1e9 == pytest.approx(50, rel=0.1)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_quantiles_are_values_that_occurred(share: float, value: int) -> None:
    assert quantile(list(range(1, 101)), share) == pytest.approx(value, abs=1)
