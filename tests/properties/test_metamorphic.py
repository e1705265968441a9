"""Metamorphic tests: scaling times, renaming tenants and copying the scheduler.

Property 11: if all times, costs and time parameters are multiplied by a power of two, so are all times in the commands,
and nothing else changes. If tenants are renamed, only their names change. Property 10: a copy of the scheduler, taken
at any time, issues the same commands as the original.

Constant times in the code do not scale, so the logs avoid them:

- Retry-After is between a second and a minute, or up to an hour for rates.
- Rates are per minute.
- Hedging uses response times between 50 ms and 30 s.
- The shedder draws random numbers once per hour.
- A pool that the policy does not name has an assumed speed.

Costs are whole nanoseconds. The speeds used here avoid rounding.
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
from headgate.model.policy import DegradationRules, Policy, Pool, SheddingRules
from headgate.model.speed import EngineSpeed
from headgate.model.units import Instant
from testing.builds import IS_COMPILED, NEEDS_PURE_BUILD
from testing.event_generator import LARGE, SMALL, EventGenerator, EventMix

Log = list[tuple[Event, Instant]]
EXACT = EngineSpeed(
    step_ps=96 * 10**8,
    prefill_token_ps=8 * 10**7,
    decode_sequence_ps=8 * 10**8,
    kv_token_ps=100_000,
    attention_ps=0,
)
"""Speed for which costs stay whole nanoseconds when multiplied by any percentage."""
EVENTS = 2_500


def written(world: EventMix, seed: int) -> tuple[Log, list[list[Command]]]:
    scheduler, day = Scheduler(), EventGenerator(world, Random(seed))
    log: Log = [(event, day.now) for event in day.opening()]
    answers = [scheduler.handle(event, now) for event, now in log]
    while len(log) < EVENTS:
        event, now = day.next(scheduler.next_wakeup())
        log.append((event, now))
        answers.append(scheduler.handle(event, now))
        day.apply(event, answers[-1])
    return log, answers


def replayed(log: Log) -> list[list[Command]]:
    scheduler = Scheduler()
    return [scheduler.handle(event, now) for event, now in log]


def without_clamps(policy: Policy, pools: tuple[Pool, ...]) -> Policy:
    """Returns the policy, excluding features that depend on constant times. All pools have a known speed."""
    return replace(
        policy,
        classes=tuple(replace(each, hedging=False) for each in policy.classes),
        tenants=tuple(replace(each, limits=Limits(), weight=each.weight // 50 * 50) for each in policy.tenants),
        pools=tuple(replace(each, speed=EXACT) for each in pools),
        shedding=SheddingRules(enabled=False),
    )


def plain(world: EventMix) -> EventMix:
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
    """Returns the value with every time in it multiplied."""
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
    """Returns the commands with their times multiplied, excluding reasons and values with fixed limits."""
    stripped: list[list[Command]] = []
    for answer in commands:
        stripped.append([])
        for each in answer:
            command = scaled(replace(each, reason=""), by)
            # Bills are rounded to a nanosecond. A separate test covers them.
            is_end = isinstance(command, End)
            stripped[-1].append(replace(command, retry_after_ns=None, bills=()) if is_end else command)
    return stripped


@each_day
@pytest.mark.parametrize("by", [2, 16])
def test_scaling_all_times_scales_the_times_in_commands(
    day: Callable[[], tuple[Log, list[list[Command]]]], by: int
) -> None:
    log, answers = day()

    slower = replayed([(scaled(event, by), Instant(now * by)) for event, now in log])

    assert comparable(slower) == comparable(answers, by)


@each_day
def test_scaling_all_times_scales_the_billed_time(day: Callable[[], tuple[Log, list[list[Command]]]]) -> None:
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
    # Each bill is rounded, and receives the rounding remainder from earlier bills.
    assert all(abs(more[3] - 16 * less[3]) <= 64 for more, less in zip(slower, usual, strict=True))


def test_slowing_only_the_clock_changes_the_commands() -> None:
    """Shows that the previous tests can fail."""
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
@pytest.mark.parametrize("names", [lambda name: f"zz-{name}", lambda name: name[::-1]], ids=["prefixed", "reversed"])
def test_renaming_tenants_does_not_change_the_commands(
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
    """Returns a log with all features: hedges, limits, degradation and shedding."""
    return written(LARGE, 7)


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize("copied", [deepcopy, lambda scheduler: pickle.loads(pickle.dumps(scheduler))])
@pytest.mark.parametrize("taken_at", [400, 1_200, 2_100])
def test_copied_scheduler_produces_the_same_commands(copied: Callable[[Scheduler], Scheduler], taken_at: int) -> None:
    log, answers = whole()
    scheduler = Scheduler()
    for event, now in log[:taken_at]:
        scheduler.handle(event, now)

    copy = copied(scheduler)
    # Events in one scheduler do not affect the other.
    replay = [scheduler.handle(event, now) for event, now in log[taken_at:]]
    tail = [copy.handle(event, now) for event, now in log[taken_at:]]

    assert repr(tail) == repr(answers[taken_at:]) == repr(replay)
    assert copy.summary() == scheduler.summary()
    assert copy.next_wakeup() == scheduler.next_wakeup()


def test_logs_cover_dispatches_waits_and_outcomes() -> None:
    """The other tests are only meaningful if these commands occur."""
    for day in (large, small, whole):
        _, answers = day()
        commands = [each for answer in answers for each in answer]
        assert sum(isinstance(each, Dispatch) for each in commands) > 200
        assert any(isinstance(each, Dispatch) and each.waited_ns > 0 for each in commands)
        assert len({each.outcome for each in commands if isinstance(each, End)}) >= 10


def test_scaling_all_times_scales_the_degradation_times() -> None:
    """Levels change after the times set in the rules, and pressure is relative to the targets."""
    rules = DegradationRules(escalate_above=100, escalate_after_ns=200_000_000, recover_after_ns=900_000_000)  # type: ignore[arg-type]
    world = replace(plain(LARGE), policies=tuple(replace(each, degradation=rules) for each in plain(LARGE).policies))
    log, answers = written(world, 8)

    slower = replayed([(scaled(event, 4), Instant(now * 4)) for event, now in log])

    assert any(isinstance(each, Dispatch | End) and "level" in each.reason for answer in answers for each in answer)
    assert comparable(slower) == comparable(answers, 4)
