"""Tests for the receiver of entries: long batches are handled in several turns of the event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from headgate.hosts.cell.command_executor import CommandExecutor
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.codec import encode_entry
from headgate.hosts.cell.protocol.messages import MemberEntry
from headgate.hosts.cell.store_receiver import StoreReceiver
from headgate.model.units import MILLISECOND, Instant
from testing.builders import at
from tests.hosts.cell.builders import a_member


class SlowClock:
    """Clock that advances with every reading, as if handling an entry took 30 ms."""

    def __init__(self) -> None:
        self._now = 0

    def now(self) -> Instant:
        self._now += 30 * MILLISECOND
        return Instant(self._now)


class Recorder:
    """Executor that records the first serial of each member's entry."""

    def __init__(self) -> None:
        self.serials: list[int] = []

    def notify(self, handler: Callable[..., None], entry: MemberEntry) -> None:
        self.serials.append(entry.head.first_serial)


def a_receiver(recorder: Recorder) -> StoreReceiver:
    node = Node("g1", 1, at(0), lambda: "epoch")
    return StoreReceiver(node, SlowClock(), cast("CommandExecutor", recorder), lambda: None)


def entries(first: int, last: int) -> list[bytes]:
    [entry] = a_member().outgoing(at(0))
    return [
        written
        for serial in range(first, last)
        for written in encode_entry(replace(entry, head=replace(entry.head, first_serial=serial)))
    ]


async def test_entries_are_handled_in_order_and_in_several_turns() -> None:
    recorder = Recorder()
    receiver = a_receiver(recorder)

    receiver.from_inbox(entries(1, 4))
    assert recorder.serials == [1]
    # More entries arrive before the next turn.
    receiver.from_inbox(entries(4, 6))
    assert recorder.serials == [1]

    for _ in range(6):
        await asyncio.sleep(0)
    assert recorder.serials == [1, 2, 3, 4, 5]


async def test_number_of_waiting_entries_is_bounded() -> None:
    recorder = Recorder()
    receiver = a_receiver(recorder)

    receiver.from_inbox(entries(1, 2_001))
    assert len(recorder.serials) == 2_000 - 1_024
    receiver.from_inbox(entries(2_001, 3_001))

    assert recorder.serials == list(range(1, len(recorder.serials) + 1))
    assert len(recorder.serials) == 3_000 - 1_024
