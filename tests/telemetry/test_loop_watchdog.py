"""The watchdog measures the longest iteration of the event loop and detects a blocked loop."""

import asyncio
from collections.abc import Callable

from headgate.telemetry.loop_watchdog import (
    PROBE_INTERVAL_NS,
    RECENT_WINDOW_NS,
    STALLED_NS_MAX,
    LoopIteration,
    LoopWatchdog,
    loop_iteration_metrics,
)

MS = 1_000_000


class World:
    """An event loop and clocks that the test advances."""

    def __init__(self) -> None:
        self.now_ns = 10 * PROBE_INTERVAL_NS
        self.cpu_ns = 0
        self.questions: list[Callable[[], None]] = []
        self.watch = LoopWatchdog(self.questions.append, clock=lambda: self.now_ns)
        self.watch._cpu = lambda: self.cpu_ns

    def pass_time(self, wall_ns: int, cpu_ns: int = 0) -> None:
        self.now_ns += wall_ns
        self.cpu_ns += cpu_ns

    def turn(self) -> None:
        """Run the scheduled callbacks."""
        questions, self.questions[:] = self.questions[:], []
        for question in questions:
            question()


def a_turn(world: World, wall_ns: int, cpu_ns: int) -> None:
    world.pass_time(PROBE_INTERVAL_NS)
    world.watch.tick()
    world.pass_time(wall_ns, cpu_ns)
    world.turn()


def test_longest_turn_is_measured_in_wall_and_cpu_time() -> None:
    world = World()
    for wall_ns, cpu_ns in ((3 * MS, 1 * MS), (90 * MS, 2 * MS), (40 * MS, 39 * MS), (1 * MS, 0)):
        a_turn(world, wall_ns, cpu_ns)

    assert world.watch.longest == LoopIteration(90 * MS, 39 * MS)
    assert world.watch.longest_recent() == LoopIteration(90 * MS, 39 * MS)


def test_recent_maximum_forgets_turns_after_at_most_two_minutes() -> None:
    world = World()
    a_turn(world, 90 * MS, 90 * MS)
    world.pass_time(RECENT_WINDOW_NS)
    a_turn(world, 5 * MS, 5 * MS)
    assert world.watch.longest_recent() == LoopIteration(90 * MS, 90 * MS)
    world.pass_time(RECENT_WINDOW_NS)
    assert world.watch.longest_recent() == LoopIteration(5 * MS, 5 * MS)
    world.pass_time(2 * RECENT_WINDOW_NS)
    assert world.watch.longest_recent() == LoopIteration(0, 0)
    assert world.watch.longest == LoopIteration(90 * MS, 90 * MS)


def test_idle_event_loop_is_probed_rarely_and_busy_event_loop_at_every_tick() -> None:
    world = World()
    for cpu_ns, expected in ((0, 4), (5 * MS, 20)):
        asked = 0
        for _ in range(20):
            world.pass_time(10 * MS, cpu_ns)
            world.watch.tick()
            asked += len(world.questions)
            world.turn()
        assert asked == expected


def test_event_loop_has_at_most_one_open_probe() -> None:
    world = World()
    for _ in range(5):
        world.pass_time(PROBE_INTERVAL_NS)
        world.watch.tick()

    assert len(world.questions) == 1


def test_health_returns_503_after_the_event_loop_was_blocked_for_five_seconds() -> None:
    world = World()
    assert world.watch.health() == (200, "alive")
    world.watch.tick()
    world.pass_time(STALLED_NS_MAX - 1)
    assert world.watch.health() == (200, "alive")
    world.pass_time(200 * MS)
    assert world.watch.health() == (503, "the event loop has been blocked for 5.2 s")
    world.turn()
    assert world.watch.health() == (200, "alive")


async def test_watchdog_thread_measures_a_turn_in_a_real_event_loop() -> None:
    loop = asyncio.get_running_loop()
    watch = LoopWatchdog(loop.call_soon_threadsafe)
    watch.start()
    try:
        while not (asked := watch._probe):  # This iteration lasts until the thread has probed it.
            pass
        while watch._clock() - asked[0] < 30 * MS:
            pass
        await asyncio.sleep(0)
        while watch.longest.wall_ns == 0:
            await asyncio.sleep(0)
    finally:
        watch.stop()

    assert watch.longest.wall_ns >= 30 * MS
    assert 0 < watch.longest.cpu_ns <= watch.longest.wall_ns + 5 * MS


def test_longest_turns_are_exported_as_metrics() -> None:
    world = World()
    a_turn(world, 90 * MS, 39 * MS)

    text = loop_iteration_metrics(world.watch).text()
    assert 'headgate_event_loop_iteration_max_seconds{clock="cpu",window="lifetime"} 0.039' in text
    assert 'headgate_event_loop_iteration_max_seconds{clock="wall",window="recent"} 0.09' in text
