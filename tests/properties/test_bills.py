"""Property tests for bills: endpoint time adds up, and each attempt is billed once."""

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import Command, Dispatch, End
from headgate.core.engine_time import AttemptTime, EngineTime
from headgate.core.events import AttemptEnded, AttemptEnding, EndpointJoined, RequestWithdrawn, WithdrawalCause
from headgate.core.scheduler import Scheduler
from headgate.model.money import Bill, BillCause, EndpointTime, NanoUsd, Price
from headgate.model.speed import EngineSpeed
from headgate.model.units import MINUTE, EndpointId, Instant, PoolName, after
from testing.builders import at, duration
from testing.event_generator import LARGE, SMALL, EventGenerator, EventMix

EVENTS = 800
HOUR = 60 * MINUTE
PRICES = (Price(per_hour=NanoUsd(2_700_000_000)), Price(since=at(60), per_hour=NanoUsd(9_100_000_000)))


def priced(world: EventMix) -> EventMix:
    policies = tuple(
        replace(each, pools=tuple(replace(pool, prices=PRICES) for pool in each.pools)) for each in world.policies
    )
    return replace(world, policies=policies)


class Lived:
    """Runs a simulated day until all requests have ended."""

    def __init__(self, world: EventMix, seed: int) -> None:
        self.scheduler, self.day, self.chance = (
            Scheduler(),
            EventGenerator(priced(world), Random(seed)),
            Random(f"{seed} asking"),
        )
        self.commands: list[Command] = []
        self.times: list[EndpointTime] = []
        self.known: dict[str, Instant] = {}
        """Time at which each endpoint first joined."""
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
        self.day.apply(event, answers)  # type: ignore[arg-type]
        if self.chance.random() < 0.05:
            self.ask()

    def ask(self) -> None:
        self.times += self.scheduler.pop_endpoint_times(self.day.now)

    def end_everything(self) -> None:
        self.day.now = after(self.day.now, duration(0.01))
        for request_id in tuple(self.day.unended):
            self.tell(RequestWithdrawn(request_id, WithdrawalCause.CLIENT_DISCONNECTED))  # type: ignore[arg-type]
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
def test_endpoint_time_parts_sum_to_the_total(world: str, seed: int) -> None:
    for each in lived(world, seed).times:
        parts = each.starting_ns + each.unready_ns + each.idle_ns + each.billed_ns + each.abort_lag_ns
        assert parts == each.total_ns
        assert min(each.starting_ns, each.unready_ns, each.idle_ns, each.billed_ns, each.abort_lag_ns) >= 0


@days
def test_bills_sum_to_the_billed_endpoint_time(world: str, seed: int) -> None:
    day = lived(world, seed)

    billed = sum(time_of(each) for each in day.bills())
    # Each endpoint can carry over one or two nanoseconds to its next attempt.
    assert 0 <= sum(each.billed_ns for each in day.times) - billed <= 2 * len(day.known)
    assert billed > 0


@days
def test_every_dispatched_attempt_has_one_bill(world: str, seed: int) -> None:
    day = lived(world, seed)
    sent = [(each.request_id, each.attempt) for each in day.commands if isinstance(each, Dispatch)]
    billed = [(each.request_id, bill.attempt) for each in day.commands if isinstance(each, End) for bill in each.bills]

    assert sorted(billed) == sorted(sent)
    for each in day.commands:
        if isinstance(each, End):
            assert [bill.attempt for bill in each.bills] == list(range(1, each.attempts + 1))


@days
def test_bill_parts_are_non_negative_and_cost_equals_time_multiplied_by_a_price(world: str, seed: int) -> None:
    for bill in lived(world, seed).bills():
        parts = (bill.input_ns, bill.output_ns, bill.overhead_ns)
        assert min(parts) >= 0
        costs = [tuple((part * price.per_hour + HOUR // 2) // HOUR for part in parts) for price in PRICES]
        # An endpoint in a pool that was removed from the policy has no cost.
        assert (bill.input_nano_usd, bill.output_nano_usd, bill.overhead_nano_usd) in [(0, 0, 0), *costs]


def test_days_cover_the_causes_of_waste() -> None:
    """The other tests are only meaningful if these causes occur."""
    causes = Counter(bill.cause for world, seed in (("large", 1), ("small", 3)) for bill in lived(world, seed).bills())

    # No route of these worlds has a mirror.
    assert set(causes) >= set(BillCause) - {BillCause.HEDGE, BillCause.SHUTDOWN, BillCause.MIRROR}


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
def test_endpoint_time_is_fully_accounted_for_any_sequence_of_attempts(
    steps: list[tuple[str, int, int, int]], of: int
) -> None:
    speed = EngineSpeed(step_ps=0)
    engine = EngineTime(EndpointId("e"), PoolName("p"), speed, Instant(0), scheduler_count=of)
    open_stays: list[AttemptTime] = []
    ended: list[AttemptTime] = []
    times: list[EndpointTime] = []
    now = Instant(0)
    for what, which, adds_ps, passed in [*steps, *[("end", 0, 0, 1)] * 60, ("take", 0, 0, 1)]:
        now = Instant(now + passed)
        stay = open_stays[which % len(open_stays)] if open_stays else None
        match what:
            case "begin":
                open_stays.append(engine.begin(adds_ps, now))
            case "compute" if stay is not None and not stay.prefilled:
                engine.begin_decode(stay, adds_ps // 7, now)
            case "late" if stay is not None and not stay.request_ended:
                engine.mark_request_ended(stay, now)
            case "end" if stay is not None:
                open_stays.remove(stay)
                ended.append(stay)
                engine.end(stay, now)
            case "speed":
                engine.change_speed(EngineSpeed(step_ps=adds_ps), now)
            case "ready":
                engine.mark_ready(now)
            case "unready":
                engine.mark_unready(now)
            case _:
                engine.advance(now)
                times.append(engine.pop())
    assert sum(each.total_ns for each in times) == now // of
    for each in times:
        parts = (each.starting_ns, each.unready_ns, each.idle_ns, each.billed_ns, each.abort_lag_ns)
        assert sum(parts) == each.total_ns
        assert min(parts) >= 0
    billed = sum(stay.input_ns + stay.output_ns + stay.shared_ns for stay in ended)
    lacking = sum(each.billed_ns for each in times) - billed
    # If the last attempt was late, one or two nanoseconds carry over to the next one.
    assert 0 <= lacking <= (2 * len(ended) if ended and ended[-1].request_ended else 0)


@given(st.lists(st.integers(0, 10**11), min_size=2, max_size=20), st.integers(1, 10**9))
def test_attempt_adding_more_to_the_same_steps_pays_more(adds: list[int], passed: int) -> None:
    engine = EngineTime(EndpointId("e"), PoolName("p"), EngineSpeed(), Instant(0), scheduler_count=1)
    stays = [engine.begin(each, Instant(0)) for each in adds]
    for stay in stays:
        engine.mark_request_ended(stay, Instant(passed))

    paid = [stay.input_ns + stay.shared_ns for stay in stays]
    for one, less in zip(adds, paid, strict=True):
        for other, more in zip(adds, paid, strict=True):
            # An attempt that is measured later can gain a nanosecond when the others are rounded.
            assert one > other or less <= more + 1


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**10))
def test_longer_attempt_in_the_same_batch_pays_more(passed: int, longer: int, adds_ps: int) -> None:
    def paid(until: int) -> int:
        engine = EngineTime(EndpointId("e"), PoolName("p"), EngineSpeed(), Instant(0), scheduler_count=1)
        stay, _ = engine.begin(adds_ps, Instant(0)), engine.begin(10**9, Instant(0))
        engine.end(stay, Instant(until))
        return stay.input_ns + stay.output_ns + stay.shared_ns

    assert paid(passed) <= paid(passed + longer)
