"""Tests for the limit on parsing work per event loop iteration."""

from collections import deque
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headgate.wire.turn_budget import SLICE_BYTES, SlicedReads, TurnBudget


class Loop:
    """An event loop that runs one iteration at a time and whose clock advances only with work."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._ready: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def turn(self) -> None:
        for _ in range(len(self._ready)):
            self._ready.popleft()()

    @property
    def idle(self) -> bool:
        return not self._ready


class Parser:
    """A connection whose parser takes one nanosecond per slice."""

    def __init__(self, loop: Loop, budget: TurnBudget, *, slices_max: int | None = None) -> None:
        self._loop = loop
        self.reads = SlicedReads(budget, self)
        self.parsed = b""
        self.slices = 0
        self._slices_max = slices_max
        self.reading = True
        self.given_up = False

    def parse(self, data: bytes) -> bool:
        assert 0 < len(data) <= SLICE_BYTES
        self._loop.now_ns += 1
        self.slices += 1
        self.parsed += data
        return self._slices_max is None or self.slices < self._slices_max

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def reject_overflow(self) -> None:
        self.given_up = True


def a_budget(loop: Loop, ns_max: int, *, waiting_bytes_max: int = 10**9) -> TurnBudget:
    return TurnBudget(loop.call_soon, lambda: loop.now_ns, ns_max=ns_max, waiting_bytes_max=waiting_bytes_max)


@given(
    sizes=st.lists(st.integers(1, 9 * SLICE_BYTES), min_size=1, max_size=5),
    ns_max=st.integers(0, 4),
)
def test_every_byte_is_parsed_in_order_and_every_turn_stays_within_its_budget(sizes: list[int], ns_max: int) -> None:
    loop = Loop()
    budget = a_budget(loop, ns_max)
    parsers = [Parser(loop, budget) for _ in sizes]
    data = [bytes([number]) * size for number, size in enumerate(sizes)]
    for parser, read in zip(parsers, data, strict=True):
        parser.reads.feed(read)
    assert loop.now_ns <= max(ns_max, 1)
    while not loop.idle:
        before = loop.now_ns
        assert budget.waiting_bytes == sum(len(read) - len(p.parsed) for p, read in zip(parsers, data, strict=True))
        loop.turn()
        assert loop.now_ns - before <= max(ns_max, 1)

    assert [parser.parsed for parser in parsers] == data
    assert all(parser.reading and not parser.reads.unparsed for parser in parsers)
    assert budget.waiting_bytes == 0


def test_connection_is_not_read_while_its_bytes_are_pending() -> None:
    loop = Loop()
    parser = Parser(loop, a_budget(loop, 1))
    parser.reads.feed(b"a" * 3 * SLICE_BYTES)
    assert (parser.reading, parser.slices) == (False, 1)
    parser.reads.feed(b"b")
    loop.turn()
    assert (parser.reading, parser.slices) == (False, 2)
    loop.turn()
    loop.turn()

    assert parser.reading
    assert parser.parsed == b"a" * 3 * SLICE_BYTES + b"b"


def test_connection_is_closed_when_too_many_bytes_are_pending() -> None:
    loop = Loop()
    budget = a_budget(loop, 1, waiting_bytes_max=SLICE_BYTES)
    first, second = Parser(loop, budget), Parser(loop, budget)
    first.reads.feed(b"a" * 2 * SLICE_BYTES)
    second.reads.feed(b"b" * 10)

    assert (first.given_up, second.given_up) == (False, True)
    assert not second.reads.unparsed
    loop.turn()
    assert first.parsed == b"a" * 2 * SLICE_BYTES
    assert second.parsed == b""


def test_parsing_stops_when_the_connection_accepts_no_more_data() -> None:
    loop = Loop()
    parser = Parser(loop, a_budget(loop, 100), slices_max=1)
    parser.reads.feed(b"a" * 5 * SLICE_BYTES)

    assert parser.slices == 1
    assert not parser.reads.unparsed


def test_bytes_from_a_closed_connection_are_dropped() -> None:
    loop = Loop()
    budget = a_budget(loop, 1)
    parser = Parser(loop, budget)
    parser.reads.feed(b"a" * 3 * SLICE_BYTES)
    parser.reads.drop()
    loop.turn()

    assert (parser.slices, budget.waiting_bytes, loop.idle) == (1, 0, True)
