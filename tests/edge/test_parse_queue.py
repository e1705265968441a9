"""Tests for the number of bodies parsed per event loop iteration, and for fairness between tenants."""

import asyncio
from collections.abc import Callable

import pytest

from headgate.edge.parse_queue import ParseQueue
from headgate.model.units import TenantId
from headgate.wire.request_body import BadRequest
from headgate.wire.turn_budget import REQUEST_NS, TurnBudget

MS = 1_000_000
A, B = TenantId("a"), TenantId("b")


class Parser:
    """Parses bodies, records the loop iteration of each, and has a clock that advances only during parsing."""

    def __init__(self, *, parse_ns: int = 3 * MS, turn_ns_max: int = 10 * MS) -> None:
        self._parse_ns = parse_ns
        self.now = self.looks = self.turn = 0
        self.parsed: list[tuple[int, str]] = []
        budget = TurnBudget(
            lambda resume: asyncio.get_running_loop().call_soon(resume), self._clock, ns_max=turn_ns_max
        )
        self.turns = ParseQueue(budget)

    def _clock(self) -> int:
        self.looks += 1
        return self.now

    def _parse(self, name: str) -> Callable[[], str]:
        def parse() -> str:
            self.now += self._parse_ns
            self.parsed.append((self.turn, name))
            if name.startswith("bad"):
                raise BadRequest("bad", "model")
            return name

        return parse

    def send(self, name: str, tenant: TenantId = A, *, size: int = 255 * 1024) -> asyncio.Task[str]:
        return asyncio.create_task(self.turns.run(self._parse(name), size=size, tenant=tenant))

    async def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn += 1
            await asyncio.sleep(0)

    def most_in_a_turn(self) -> int:
        turns = [turn for turn, _ in self.parsed]
        return max(turns.count(turn) for turn in turns)


async def test_bodies_completing_together_are_parsed_over_many_turns() -> None:
    parser = Parser()
    tasks = [parser.send(str(number)) for number in range(60)]
    await parser.run(40)

    assert [await task for task in tasks] == [str(number) for number in range(60)]
    assert parser.most_in_a_turn() == 4  # They take 3 ms each plus the work that follows, so the fourth exceeds 10 ms.
    assert len(parser.turns) == 0


async def test_turn_budget_includes_the_work_after_parsing() -> None:
    parser = Parser(parse_ns=0, turn_ns_max=5 * REQUEST_NS)
    for number in range(60):
        parser.send(str(number), size=16 * 1024)
    await parser.run(30)

    assert len(parser.parsed) == 60
    assert parser.most_in_a_turn() <= 6


async def test_body_does_not_wait_for_another_tenants_whole_backlog() -> None:
    parser = Parser()
    for number in range(60):
        parser.send(str(number))
    await parser.run(1)
    victim = parser.send("victim", B, size=100)
    await parser.run(3)

    assert victim.done()
    assert len(parser.parsed) <= 16, "at most four of the sixty bodies per turn"


async def test_parse_error_in_a_queued_body_is_raised_in_its_request() -> None:
    parser = Parser()
    tasks = [parser.send(f"bad {number}") for number in range(8)]
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(answer) for answer in answers] == [BadRequest] * 8


async def test_body_of_a_cancelled_request_is_not_parsed() -> None:
    parser = Parser()
    tasks = [parser.send(str(number)) for number in range(8)]
    await parser.run(1)
    assert tasks[7].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert "7" not in [name for _, name in parser.parsed]
    with pytest.raises(asyncio.CancelledError):
        await tasks[7]


async def test_a_few_small_bodies_are_parsed_without_reading_the_clock() -> None:
    parser = Parser()
    tasks = [parser.send(str(number), size=500) for number in range(20)]
    await parser.run(1)

    assert all(task.done() for task in tasks)
    assert parser.looks == 0
