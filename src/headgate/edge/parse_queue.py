"""Parses request bodies in the event loop, within a time budget per loop iteration.

Bodies that arrive at the same time are parsed one after another until the budget is used up. The rest wait for later
iterations. There, tenants take turns, so that a tenant that sends many bodies delays only its own.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from headgate.edge.large_bodies.fair_body_queue import FairBodyQueue
from headgate.model.units import TenantId
from headgate.wire.turn_budget import READ_BYTES, REQUEST_NS, UNTIMED_BYTES_TOTAL, TurnBudget

_Parsed = TypeVar("_Parsed")


def loop_budget() -> TurnBudget:
    return TurnBudget(lambda resume: asyncio.get_running_loop().call_soon(resume), time.perf_counter_ns)


@dataclass(order=True, slots=True)
class _PendingParse:
    """Body waiting for a later iteration of the event loop."""

    size: int
    number: int
    parse: Callable[[], Any] = field(compare=False)
    parsed: asyncio.Future[Any] = field(compare=False)


class ParseQueue:
    """Queue of the bodies that one process parses in its event loop."""

    def __init__(self, budget: TurnBudget | None = None) -> None:
        self._budget = budget or loop_budget()
        self._waiting: FairBodyQueue[_PendingParse] = FairBodyQueue()
        self._numbers = count()

    def __len__(self) -> int:
        """Number of bodies waiting for a later iteration."""
        return len(self._waiting)

    async def run(self, parse: Callable[[], _Parsed], *, size: int, tenant: TenantId) -> _Parsed:
        """Calls `parse`, in this loop iteration or a later one, and returns its result."""
        return parse() if self.admit(size) else await self.wait(parse, size=size, tenant=tenant)

    def admit(self, size: int) -> bool:
        """Returns whether to parse a body of this size now. If not, the caller must `wait`."""
        budget = self._budget
        budget.untimed_bytes += size + READ_BYTES
        if budget.untimed_bytes <= UNTIMED_BYTES_TOTAL or (not self._waiting and budget.allows()):
            budget.charge(REQUEST_NS)
            return True
        return False

    async def wait(self, parse: Callable[[], _Parsed], *, size: int, tenant: TenantId) -> _Parsed:
        """Calls `parse` in a later loop iteration and returns its result."""
        waiting = _PendingParse(size, next(self._numbers), parse, asyncio.get_running_loop().create_future())
        self._waiting.push(tenant, waiting)
        # The budget is charged 0 buffered bytes, because `total_body_bytes_max` already limits body bytes.
        waits = self._budget.wait(self._parse_next, 0)
        assert waits, "0 bytes always fit"
        return await waiting.parsed

    def _parse_next(self) -> None:
        waiting = self._waiting.pop()
        if waiting.parsed.done():
            return  # The request was cancelled.
        self._budget.charge(REQUEST_NS)
        try:
            waiting.parsed.set_result(waiting.parse())
        except Exception as error:  # noqa: BLE001 (raised again in `run`)
            waiting.parsed.set_exception(error)
            waiting.parsed.exception()  # Keeps asyncio from logging the exception if nothing awaits the future.
