"""If something that is no matter is changed throughout, do the answers change likewise and no more?

Property 11: where all times, costs and time parameters are multiplied by a power of two, so are all times in the
answers, and nothing else changes; where tenants are renamed, nothing changes but their names. Property 10: whoever goes
on from a copy of the scheduler, taken at any moment, gives the same commands as the scheduler itself.

Times that are written into the program do not scale, and so are kept out of these logs: Retry-After is between a second
and a minute (an hour for rates), rates are per minute, hedging knows answers between 50 ms and 30 s, the shedder draws
its lots by the hour, and a pool that the policy does not name has a speed that is a guess. Costs are whole nanoseconds:
the speeds here are such that nothing is rounded.
"""

import pickle
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from functools import cache
from random import Random
from typing import Any

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import Event, PolicyChanged, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.policy import LadderRules, Policy, Pool, SheddingRules
from headgate.model.speed import EngineSpeed
from headgate.model.units import Instant
from testing.days import LARGE, SMALL, Day, World

Log = list[tuple[Event, Instant]]
EXACT = EngineSpeed(
    step_ps=96 * 10**8,
    prefill_token_ps=8 * 10**7,
    decode_sequence_ps=8 * 10**8,
    kv_token_ps=100_000,
    attention_ps=0,
)
"""By whichever percent it is multiplied, it stays whole nanoseconds."""
EVENTS = 2_500


def written(world: World, seed: int) -> tuple[Log, list[list[Command]]]:
    scheduler, day = Scheduler(), Day(world, Random(seed))
    log: Log = [(event, day.now) for event in day.opening()]
    answers = [scheduler.handle(event, now) for event, now in log]
    while len(log) < EVENTS:
        event, now = day.next(scheduler.next_wakeup())
        log.append((event, now))
        answers.append(scheduler.handle(event, now))
        day.obey(event, answers[-1])
    return log, answers


def replayed(log: Log) -> list[list[Command]]:
    scheduler = Scheduler()
    return [scheduler.handle(event, now) for event, now in log]


def without_clamps(policy: Policy, pools: tuple[Pool, ...]) -> Policy:
    """The same without what goes by times that are written into the program. All pools have a speed that is known."""
    return replace(
        policy,
        classes=tuple(replace(each, hedges=False) for each in policy.classes),
        tenants=tuple(replace(each, limits=Limits(), weight=each.weight // 50 * 50) for each in policy.tenants),
        pools=tuple(replace(each, speed=EXACT) for each in pools),
        shedding=SheddingRules(enabled=False),
    )


def plain(world: World) -> World:
    return replace(world, policies=tuple(without_clamps(each, world.policies[0].pools) for each in world.policies))


@cache
def large() -> tuple[Log, list[list[Command]]]:
    return written(plain(LARGE), 5)


@cache
def small() -> tuple[Log, list[list[Command]]]:
    return written(plain(SMALL), 6)


each_day = pytest.mark.parametrize("day", [large, small], ids=["large", "small"])

# Time

_TIME = re.compile(r"(_ns|_ps)(_|$)|^until$")


def scaled(value: Any, by: int) -> Any:
    """The same value with every time in it multiplied."""
    if isinstance(value, tuple):
        return tuple(scaled(each, by) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for each in fields(value):
        part = getattr(value, each.name)
        is_time = _TIME.search(each.name) and isinstance(part, int)
        changes[each.name] = part * by if is_time else scaled(part, by)
    return replace(value, **changes)


def comparable(commands: list[list[Command]], by: int = 1) -> list[list[Command]]:
    """Times multiplied; without what is said in words, and without what is clamped."""
    stripped: list[list[Command]] = []
    for answer in commands:
        stripped.append([])
        for each in answer:
            command = scaled(replace(each, reason=""), by)
            # Bills are rounded to a nanosecond: a test of their own looks at them.
            is_end = isinstance(command, End)
            stripped[-1].append(replace(command, retry_after_ns=None, bills=()) if is_end else command)
    return stripped


@each_day
@pytest.mark.parametrize("by", [2, 16])
def test_all_times_multiplied_multiply_the_answers(day: Callable[[], tuple[Log, list[list[Command]]]], by: int) -> None:
    log, answers = day()

    slower = replayed([(scaled(event, by), Instant(now * by)) for event, now in log])

    assert comparable(slower) == comparable(answers, by)


@each_day
def test_all_times_multiplied_multiply_what_is_billed(day: Callable[[], tuple[Log, list[list[Command]]]]) -> None:
    def billed(answers: list[list[Command]]) -> list[tuple[str, int, str, int]]:
        return [
            (each.request_id, bill.attempt, bill.cause, bill.input_ns + bill.output_ns + bill.overhead_ns)
            for answer in answers
            for each in answer
            if isinstance(each, End)
            for bill in each.bills
        ]

    log, answers = day()
    slower = billed(replayed([(scaled(event, 16), Instant(now * 16)) for event, now in log]))
    usual = billed(answers)

    assert [each[:3] for each in slower] == [each[:3] for each in usual]
    # Each is rounded, and has what those before it lost by it.
    assert all(abs(more[3] - 16 * less[3]) <= 64 for more, less in zip(slower, usual, strict=True))


def test_a_slower_clock_alone_is_another_day() -> None:
    """The test above would notice."""
    log, answers = large()
    only_time = replayed([(event, Instant(now * 2)) for event, now in log])

    assert comparable(only_time) != comparable(answers, 2)


# Names


def renamed(value: Any, names: Callable[[str], str]) -> Any:
    if isinstance(value, PolicyChanged):
        policy = value.policy
        return replace(
            value,
            policy=replace(policy, tenants=tuple(replace(each, id=names(each.id)) for each in policy.tenants)),
        )
    if isinstance(value, RequestArrived):
        return replace(value, ticket=replace(value.ticket, tenant=names(value.ticket.tenant)))
    return value


@each_day
@pytest.mark.parametrize(
    "names", [lambda name: f"zz-{name}", lambda name: name[::-1]], ids=["another beginning", "backwards"]
)
def test_renamed_tenants_get_the_same(
    day: Callable[[], tuple[Log, list[list[Command]]]], names: Callable[[str], str]
) -> None:
    log, answers = day()

    said = replayed([(renamed(event, names), now) for event, now in log])

    assert [[replace(each, reason="") for each in answer] for answer in said] == [
        [replace(each, reason="") for each in answer] for answer in answers
    ]


# Copies


@cache
def whole() -> tuple[Log, list[list[Command]]]:
    """With all that the program has: hedges, limits, the ladder and the shedder."""
    return written(LARGE, 7)


@pytest.mark.parametrize("copied", [deepcopy, lambda scheduler: pickle.loads(pickle.dumps(scheduler))])
@pytest.mark.parametrize("taken_at", [400, 1_200, 2_100])
def test_a_copy_goes_on_as_the_scheduler_does(copied: Callable[[Scheduler], Scheduler], taken_at: int) -> None:
    log, answers = whole()
    scheduler = Scheduler()
    for event, now in log[:taken_at]:
        scheduler.handle(event, now)

    copy = copied(scheduler)
    # What the one is told does not reach the other.
    replay = [scheduler.handle(event, now) for event, now in log[taken_at:]]
    tail = [copy.handle(event, now) for event, now in log[taken_at:]]

    assert repr(tail) == repr(answers[taken_at:]) == repr(replay)
    assert copy.summary() == scheduler.summary()
    assert copy.next_wakeup() == scheduler.next_wakeup()


def test_the_days_are_worth_it() -> None:
    """What is not there cannot change."""
    for day in (large, small, whole):
        _, answers = day()
        commands = [each for answer in answers for each in answer]
        assert sum(isinstance(each, Dispatch) for each in commands) > 200
        assert any(isinstance(each, Dispatch) and each.waited_ns > 0 for each in commands)
        assert len({each.outcome for each in commands if isinstance(each, End)}) >= 10


def test_the_ladder_scales_too() -> None:
    """It climbs by the time that its rules say, and what it measures is beside targets."""
    rules = LadderRules(climb_above=100, climb_after_ns=200_000_000, descend_after_ns=900_000_000)  # type: ignore[arg-type]
    world = replace(plain(LARGE), policies=tuple(replace(each, ladder=rules) for each in plain(LARGE).policies))
    log, answers = written(world, 8)

    slower = replayed([(scaled(event, 4), Instant(now * 4)) for event, now in log])

    assert any(isinstance(each, Dispatch | End) and "level" in each.reason for answer in answers for each in answer)
    assert comparable(slower) == comparable(answers, 4)
