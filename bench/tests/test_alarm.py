"""Does the alarm ring in order, not early, and also for what is past?"""

import asyncio
from collections.abc import Iterator
from time import monotonic_ns

import pytest

from bench.alarm import Alarm

MS = 1_000_000


@pytest.fixture
async def alarm() -> "Iterator[Alarm]":  # type: ignore[misc]
    made = Alarm(asyncio.get_running_loop())
    yield made
    made.close()


async def rung(alarm: Alarm, *moments_ns: int) -> list[tuple[int, int]]:
    """When each was due, and when it rang, in the order of ringing."""
    found: list[tuple[int, int]] = []
    over = asyncio.Event()

    def ring(due_ns: int) -> None:
        found.append((due_ns, monotonic_ns()))
        if len(found) == len(moments_ns):
            over.set()

    for due_ns in moments_ns:
        alarm.at(due_ns, lambda due_ns=due_ns: ring(due_ns))
    async with asyncio.timeout(30):
        await over.wait()
    return found


async def test_it_rings_in_the_order_of_the_moments_and_never_early(alarm: Alarm) -> None:
    now_ns = monotonic_ns()
    moments_ns = [now_ns + 30 * MS, now_ns + 10 * MS, now_ns + 20 * MS]

    found = await rung(alarm, *moments_ns)

    assert [due_ns for due_ns, _ in found] == sorted(moments_ns)
    assert all(rang_ns >= due_ns for due_ns, rang_ns in found)


async def test_what_is_past_rings_at_once(alarm: Alarm) -> None:
    assert len(await rung(alarm, 0, monotonic_ns() - MS)) == 2


@pytest.mark.timing
async def test_it_rings_closer_to_the_moment_than_a_millisecond(alarm: Alarm) -> None:
    async def closest_ns() -> int:
        start_ns = monotonic_ns()
        found = await rung(alarm, *(start_ns + number * MS // 3 for number in range(300)))
        return min(rang_ns - due_ns for due_ns, rang_ns in found)

    # The best of many over seconds, since the machine may be busy with something else for a whole tenth of one.
    for _ in range(30):
        if (closest := await closest_ns()) < MS / 2:
            break
    assert closest < MS / 2


async def test_a_call_may_ask_for_the_next(alarm: Alarm) -> None:
    over = asyncio.Event()
    alarm.at(monotonic_ns(), lambda: alarm.at(monotonic_ns() + MS, over.set))

    async with asyncio.timeout(30):
        await over.wait()
