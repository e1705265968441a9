"""How do the scheduler's orders reach the one who follows a request, wherever they come from?"""

import asyncio
from collections import deque
from collections.abc import Callable

from headgate.core.commands import Abort, Dispatch, End
from headgate.model.units import RequestId
from headgate.ports.host import Aside


class Line:
    """What the scheduler orders for one request, in order."""

    __slots__ = ("_close", "_orders", "_waiter", "aside")

    def __init__(self, aside: Aside, close: Callable[[], object]) -> None:
        self.aside = aside
        self._close = close
        self._orders: deque[Dispatch | End] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> Dispatch | End:
        while not self._orders:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._orders.popleft()

    def deliver(self, order: Dispatch | End) -> None:
        self._orders.append(order)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> Dispatch | None:
        self._close()
        return next((order for order in self._orders if isinstance(order, Dispatch)), None)


class Lines:
    """The lines of all requests that are open here."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[RequestId, Line] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: RequestId, aside: Aside) -> Line:
        line = self._open[request_id] = Line(aside, lambda: self._open.pop(request_id, None))
        return line

    def carry(self, order: Dispatch | Abort | End) -> None:
        """To the line of its request, if anybody still follows it."""
        if (line := self._open.get(order.request_id)) is None:
            return
        if isinstance(order, Abort) or (isinstance(order, Dispatch) and order.hedge):
            line.aside(order)
        else:
            line.deliver(order)
