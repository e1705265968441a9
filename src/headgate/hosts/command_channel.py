"""Command channels from the scheduler to the handler of a request."""

import asyncio

from headgate.core.commands import Abort, Dispatch, End
from headgate.model.units import RequestId
from headgate.ports.host import InterruptHandler


class HostCommandChannel:
    """Commands for one request, in order."""

    __slots__ = ("_commands", "_open", "_request_id", "_waiter", "interrupt")

    def __init__(
        self, request_id: RequestId, interrupt: InterruptHandler, open_channels: "dict[RequestId, HostCommandChannel]"
    ) -> None:
        """Creates a channel, which removes itself from `open_channels` when it is closed."""
        self._request_id = request_id
        self.interrupt = interrupt
        self._open = open_channels
        # A list, because it is cheaper to create than a deque and rarely has more than one item.
        self._commands: list[Dispatch | End] = []
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> Dispatch | End:
        while not self._commands:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._commands.pop(0)

    def deliver(self, command: Dispatch | End) -> None:
        self._commands.append(command)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> Dispatch | None:
        self._open.pop(self._request_id, None)
        for command in self._commands:
            if type(command) is Dispatch:
                return command
        return None


class CommandChannels:
    """Command channels for all open requests in this process."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[RequestId, HostCommandChannel] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: RequestId, interrupt: InterruptHandler) -> HostCommandChannel:
        line = self._open[request_id] = HostCommandChannel(request_id, interrupt, self._open)
        return line

    def deliver(self, command: Dispatch | Abort | End) -> None:
        """Delivers a command to the channel of its request. Ignored if the channel is closed."""
        if (line := self._open.get(command.request_id)) is None:
            return
        if type(command) is End or (type(command) is Dispatch and not command.hedge):
            line.deliver(command)
        elif not isinstance(command, End):
            line.interrupt(command)
