"""Parses request bodies in the event loop, within the time budget of one turn of the loop.

Bodies that arrive at the same moment are parsed one after the other until the budget is used up. The rest wait for the
next turns of the loop, where tenants take turns, so that a tenant that sends many bodies delays only its own.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from headgate.edge.large_bodies.turns import Turns
from headgate.model.units import TenantId
from headgate.wire.turn_budget import READ_BYTES, REQUEST_NS, UNTIMED_BYTES_IN_ALL, TurnBudget

_Parsed = TypeVar("_Parsed")


def loop_budget() -> TurnBudget:
    return TurnBudget(lambda resume: asyncio.get_running_loop().call_soon(resume), time.perf_counter_ns)


@dataclass(order=True, slots=True)
class _Waiting:
    """A body that waits for another turn of the loop."""

    size: int
    number: int
    parse: Callable[[], Any] = field(compare=False)
    parsed: asyncio.Future[Any] = field(compare=False)


class ParseTurns:
    """Queue of the bodies that one process parses in its event loop."""

    def __init__(self, budget: TurnBudget | None = None) -> None:
        self._budget = budget or loop_budget()
        self._waiting: Turns[_Waiting] = Turns()
        self._numbers = count()

    def __len__(self) -> int:
        """Number of bodies that wait for another turn."""
        return len(self._waiting)

    async def run(self, parse: Callable[[], _Parsed], *, size: int, tenant: TenantId) -> _Parsed:
        """Returns the result of `parse`, in this turn or a later one."""
        budget = self._budget
        budget.untimed_bytes += size + READ_BYTES
        if budget.untimed_bytes <= UNTIMED_BYTES_IN_ALL or (not self._waiting and budget.allows()):
            budget.charge(REQUEST_NS)
            return parse()
        waiting = _Waiting(size, next(self._numbers), parse, asyncio.get_running_loop().create_future())
        self._waiting.push(tenant, waiting)
        # `bodies_bytes_max` bounds the bytes of bodies, so the budget need not bound them again.
        waits = budget.wait(self._parse_next, 0)
        assert waits, "nothing is too much to wait"
        return await waiting.parsed

    def _parse_next(self) -> None:
        waiting = self._waiting.pop()
        if waiting.parsed.done():
            return  # The request was cancelled.
        self._budget.charge(REQUEST_NS)
        try:
            waiting.parsed.set_result(waiting.parse())
        except Exception as error:  # noqa: BLE001 (raised again where the body is awaited)
            waiting.parsed.set_exception(error)
            waiting.parsed.exception()  # Otherwise asyncio would log it if nothing awaits it.
