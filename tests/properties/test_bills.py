"""Does the time of every endpoint come to the whole, and is each attempt billed once, whatever happens?"""

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import Command, Dispatch, End
from headgate.core.engine_time import EngineTime, Stay
from headgate.core.events import AttemptEnded, AttemptEnding, EndpointJoined, RequestWithdrawn, WithdrawalCause
from headgate.core.scheduler import Scheduler
from headgate.model.money import Bill, Cause, EndpointTime, NanoUsd, Price
from headgate.model.speed import EngineSpeed
from headgate.model.units import MINUTE, EndpointId, Instant, PoolName, after
from testing.builders import at, lasting
from testing.days import LARGE, SMALL, Day, World

EVENTS = 800
HOUR = 60 * MINUTE
PRICES = (Price(hour=NanoUsd(2_700_000_000)), Price(since=at(60), hour=NanoUsd(9_100_000_000)))


def priced(world: World) -> World:
    policies = tuple(
        replace(each, pools=tuple(replace(pool, prices=PRICES) for pool in each.pools)) for each in world.policies
    )
    return replace(world, policies=policies)


class Lived:
    """A day to its end: when nothing happens any more all that runs has ended."""

    def __init__(self, world: World, seed: int) -> None:
        self.scheduler, self.day, self.chance = Scheduler(), Day(priced(world), Random(seed)), Random(f"{seed} asking")
        self.commands: list[Command] = []
        self.times: list[EndpointTime] = []
        self.known: dict[str, Instant] = {}
        """When each endpoint was first heard of."""
        for event in self.day.opening():
            self.tell(event)
        for _ in range(EVENTS):
            event, _ = self.day.next(self.scheduler.next_wakeup())
            self.tell(event)
        while self.day.open or self.day.unended:
            self.end_everything()
        self.ask()

    def tell(self, event: object) -> None:
        if isinstance(event, EndpointJoined):
            self.known.setdefault(event.endpoint.id, self.day.now)
        answers = self.scheduler.handle(event, self.day.now)  # type: ignore[arg-type]
        self.commands += answers
        self.day.obey(event, answers)  # type: ignore[arg-type]
        if self.chance.random() < 0.05:
            self.ask()

    def ask(self) -> None:
        self.times += self.scheduler.take_endpoint_times(self.day.now)

    def end_everything(self) -> None:
        self.day.now = after(self.day.now, lasting(0.01))
        for request_id in tuple(self.day.unended):
            self.tell(RequestWithdrawn(request_id, WithdrawalCause.CLIENT_LEFT))  # type: ignore[arg-type]
        for each in tuple(self.day.open):
            self.day.open.remove(each)
            self.tell(AttemptEnded(each.request_id, each.attempt, AttemptEnding.ABORTED))

    def bills(self) -> list[Bill]:
        return [bill for each in self.commands if isinstance(each, End) for bill in each.bills]


@cache
def lived(name: str, seed: int) -> Lived:
    return Lived({"large": LARGE, "small": SMALL}[name], seed)


days = pytest.mark.parametrize(("world", "seed"), [("large", 1), ("large", 2), ("small", 3), ("small", 4)])


def time_of(bill: Bill) -> int:
    return bill.input_ns + bill.output_ns + bill.overhead_ns


@days
def test_the_parts_of_each_endpoint_come_to_the_whole(world: str, seed: int) -> None:
    for each in lived(world, seed).times:
        parts = each.starting_ns + each.unready_ns + each.idle_ns + each.billed_ns + each.late_ns
        assert parts == each.whole_ns
        assert min(each.starting_ns, each.unready_ns, each.idle_ns, each.billed_ns, each.late_ns) >= 0


@days
def test_the_bills_of_all_that_have_ended_are_what_is_billed(world: str, seed: int) -> None:
    day = lived(world, seed)

    billed = sum(time_of(each) for each in day.bills())
    # Each endpoint may owe a nanosecond or two to the next that comes there.
    assert 0 <= sum(each.billed_ns for each in day.times) - billed <= 2 * len(day.known)
    assert billed > 0


@days
def test_every_attempt_that_was_sent_has_one_bill_with_its_request(world: str, seed: int) -> None:
    day = lived(world, seed)
    sent = [(each.request_id, each.attempt) for each in day.commands if isinstance(each, Dispatch)]
    billed = [(each.request_id, bill.attempt) for each in day.commands if isinstance(each, End) for bill in each.bills]

    assert sorted(billed) == sorted(sent)
    for each in day.commands:
        if isinstance(each, End):
            assert [bill.attempt for bill in each.bills] == list(range(1, each.attempts + 1))


@days
def test_no_part_is_negative_and_money_is_time_at_the_price_of_one_moment(world: str, seed: int) -> None:
    for bill in lived(world, seed).bills():
        parts = (bill.input_ns, bill.output_ns, bill.overhead_ns)
        assert min(parts) >= 0
        costs = [tuple((part * price.hour + HOUR // 2) // HOUR for part in parts) for price in PRICES]
        # An endpoint of a pool that the policy has no more costs nothing that anybody counts.
        assert (bill.input, bill.output, bill.overhead) in [(0, 0, 0), *costs]


def test_the_days_have_waste_of_many_causes() -> None:
    """What is not there cannot be wrong."""
    causes = Counter(bill.cause for world, seed in (("large", 1), ("small", 3)) for bill in lived(world, seed).bills())

    assert set(causes) >= set(Cause) - {Cause.HEDGE, Cause.LEAVING}


# One endpoint

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "compute", "late", "end", "take", "speed", "ready", "unready"]),
        st.integers(0, 5),
        st.integers(0, 40_000_000_000),
        st.one_of(st.integers(0, 3), st.integers(0, 10**12)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 4))
def test_nothing_is_lost_whoever_comes_and_goes(steps: list[tuple[str, int, int, int]], of: int) -> None:
    speed = EngineSpeed(step_ps=0)
    engine = EngineTime(EndpointId("e"), PoolName("p"), speed, Instant(0), of=of)
    open_stays: list[Stay] = []
    ended: list[Stay] = []
    times: list[EndpointTime] = []
    now = Instant(0)
    for what, which, adds_ps, passed in [*steps, *[("end", 0, 0, 1)] * 60, ("take", 0, 0, 1)]:
        now = Instant(now + passed)
        stay = open_stays[which % len(open_stays)] if open_stays else None
        match what:
            case "begin":
                open_stays.append(engine.begin(adds_ps, now))
            case "compute" if stay is not None and not stay.computed:
                engine.compute(stay, adds_ps // 7, now)
            case "late" if stay is not None and not stay.late:
                engine.turn_late(stay, now)
            case "end" if stay is not None:
                open_stays.remove(stay)
                ended.append(stay)
                engine.end(stay, now)
            case "speed":
                engine.change_speed(EngineSpeed(step_ps=adds_ps), now)
            case "ready":
                engine.turn_ready(now)
            case "unready":
                engine.turn_unready(now)
            case _:
                engine.advance(now)
                times.append(engine.take())
    assert sum(each.whole_ns for each in times) == now // of
    for each in times:
        parts = (each.starting_ns, each.unready_ns, each.idle_ns, each.billed_ns, each.late_ns)
        assert sum(parts) == each.whole_ns
        assert min(parts) >= 0
    billed = sum(stay.input_ns + stay.output_ns + stay.shared_ns for stay in ended)
    lacking = sum(each.billed_ns for each in times) - billed
    # Where the last was late, a nanosecond or two are owed to the next that comes.
    assert 0 <= lacking <= (2 * len(ended) if ended and ended[-1].late else 0)


@given(st.lists(st.integers(0, 10**11), min_size=2, max_size=20), st.integers(1, 10**9))
def test_who_adds_more_to_the_same_steps_pays_more(adds: list[int], passed: int) -> None:
    engine = EngineTime(EndpointId("e"), PoolName("p"), EngineSpeed(), Instant(0), of=1)
    stays = [engine.begin(each, Instant(0)) for each in adds]
    for stay in stays:
        engine.turn_late(stay, Instant(passed))

    paid = [stay.input_ns + stay.shared_ns for stay in stays]
    for one, less in zip(adds, paid, strict=True):
        for other, more in zip(adds, paid, strict=True):
            # Who is measured later may be given a nanosecond that the others lack.
            assert one > other or less <= more + 1


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**10))
def test_who_stays_longer_in_the_same_company_pays_more(passed: int, longer: int, adds_ps: int) -> None:
    def paid(until: int) -> int:
        engine = EngineTime(EndpointId("e"), PoolName("p"), EngineSpeed(), Instant(0), of=1)
        stay, _ = engine.begin(adds_ps, Instant(0)), engine.begin(10**9, Instant(0))
        engine.end(stay, Instant(until))
        return stay.input_ns + stay.output_ns + stay.shared_ns

    assert paid(passed) <= paid(passed + longer)
