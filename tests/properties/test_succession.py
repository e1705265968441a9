"""Property tests for a scheduler that takes over from another.

Property 10 of the policy: a snapshot and the tail of the log are equivalent to the complete log. Between processes,
however, there is no log. A successor has its predecessor's last reported counters and the gateways' reports on their
requests. With these, it satisfies the following properties:

- It continues every admitted request, and each request ends exactly once.
- The requests in flight and reservations on an endpoint are those of its open attempts.
- Limits, budgets and turns continue as far as the counters reach. Later events are counted conservatively.

Its commands can differ from those of its predecessor, because it does not know which prefixes the engines have cached
or the predictions made before each response.
"""

import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.admission.limits import TenantLimits
from headgate.core.commands import Command, End
from headgate.core.counters import Counters
from headgate.core.events import AttemptEnded, AttemptEnding, Event, RequestArrived
from headgate.model.limits import Limits
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, tenant_table
from headgate.model.ticket import Api, Ticket
from headgate.model.units import MINUTE, SECOND, Duration, Instant, ModelName, RequestId, TenantId
from testing.builders import at, client_disconnected
from testing.builds import IS_COMPILED, NEEDS_PURE_BUILD
from testing.event_generator import CROWDED, LARGE, PRESSED, SMALL, EventGenerator, EventMix
from tests.properties.model_host import ModelHost
from tests.properties.succession import Known, Successor


class Era:
    """A simulated day under several consecutive schedulers."""

    def __init__(self, world: EventMix, seed: int) -> None:
        self.world = world
        self.chance = Random(f"{seed} succession")
        self.day = EventGenerator(world, Random(seed))
        self.host = ModelHost(world.policies[0], self.day.now)
        self.known = Known()
        self.counters = Counters()
        self.let_in: list[tuple[TenantId, Instant]] = []
        """Tenant and time of each admission, on the simulated day's clock."""
        self.ahead = Duration(0)
        """Difference between the current scheduler's clock and the simulated day's clock."""
        for each in world.policies[0].classes:
            if each.hedging:
                self.host.know_first_tokens(each.name, *(pool.name for pool in world.policies[0].pools))
        for event in self.day.opening():
            self.host.tell(event)

    def live(self, events: int) -> None:
        for _ in range(events):
            wakeup = self.host.scheduler.next_wakeup()
            event, now = self.day.next(None if wakeup is None else Instant(wakeup - self.ahead))
            commands = self.host.tell(event, Duration(now + self.ahead - self.host.now))
            self.see(event, commands)

    def see(self, event: Event, commands: list[Command]) -> None:
        self.day.apply(event, commands)
        if isinstance(event, RequestArrived):
            name = event.ticket.request_id
            if not any(isinstance(each, End) and each.request_id == name for each in commands):
                self.let_in.append((event.ticket.tenant, self.day.now))
        self.known.see(event, commands, self.host.now)

    def end(self) -> None:
        """Withdraws all open requests and ends their attempts."""
        for name in list(self.day.unended):
            self.see(event := client_disconnected(name), self.host.tell(event))
        for each in list(self.day.open):
            event = AttemptEnded(each.request_id, each.attempt, AttemptEnding.ABORTED)
            self.see(event, self.host.tell(event))

    def tell_counters(self) -> None:
        self.counters = self.known.tell_counters(self.host)

    def succeed(self, *, exact: bool) -> None:
        """Replaces the scheduler with a successor that has a different clock and possibly a different policy."""
        old, policies = self.host, self.world.policies
        policy = old.books.rules.policy if exact else self.chance.choice(policies)
        ahead = Duration(self.chance.choice((-7_000, 0, 1, 12_345)) * SECOND + self.chance.randrange(SECOND))
        self.host = successor = Successor(old, self.known, self.counters, policy, ahead, exact=exact)
        self.known.shift(ahead)
        self.ahead = Duration(self.ahead + ahead)
        for event, commands in successor.ordered:
            self.see(event, commands)


def live_under_several(world: EventMix, seed: int, *, events: int, lag: int) -> Era:
    """Runs three successions. The counters are `lag` events old when they are used."""
    era = Era(world, seed)
    for _ in range(3):
        era.live(era.chance.randrange(events))
        era.tell_counters()
        era.live(lag)
        era.succeed(exact=not lag)
    era.live(events)
    return era


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize("lag", [0, 30])
def test_successors_satisfy_all_properties_with_many_tenants_and_endpoints(lag: int) -> None:
    live_under_several(LARGE, 0, events=150, lag=lag)


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize("lag", [0, 30])
def test_successors_satisfy_all_properties_under_pressure(lag: int) -> None:
    live_under_several(PRESSED, 1, events=100, lag=lag)


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize("lag", [0, 5, 40])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 8))])
def test_successors_satisfy_all_properties_with_few_tenants_and_endpoints(seed: int, lag: int) -> None:
    era = live_under_several(SMALL, seed, events=300, lag=lag)

    assert era.known.tickets.keys() >= era.host.books.asked.keys()


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize("lag", [0, 30])
def test_successors_satisfy_all_properties_with_constant_queues(lag: int) -> None:
    live_under_several(CROWDED, 0, events=100, lag=lag)


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.nightly
@pytest.mark.parametrize("world", [LARGE, PRESSED, CROWDED], ids=["large", "pressed", "crowded"])
@pytest.mark.parametrize("seed", range(100, 103))
def test_successors_satisfy_all_properties_over_longer_days(seed: int, world: EventMix) -> None:
    live_under_several(world, seed, events=500, lag=20 * (seed % 3))


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize("lag", [0, 40])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_every_request_ends_exactly_once_across_successions(seed: int, lag: int) -> None:
    era = live_under_several(SMALL, seed, events=200, lag=lag)
    era.end()

    assert era.host.books.asked == era.host.books.open == {}
    assert len(era.host.books.ended) == era.day.arrivals


def orders_of_an_era(seed: int) -> str:
    """Returns a fingerprint of all commands and of the final counters."""
    era = live_under_several(SMALL, seed, events=200, lag=20)
    era.tell_counters()
    return sha256(repr((era.known.sent, era.host.books.ended, era.counters)).encode()).hexdigest()


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.process
def test_successions_do_not_depend_on_the_hash_seed() -> None:
    code = "from tests.properties.test_succession import orders_of_an_era; print(orders_of_an_era(5))"
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]

    assert said == [orders_of_an_era(5)] * 2


def limited(policy: Policy, limit: int) -> Policy:
    tenants = tuple(replace(each, limits=Limits(requests_per_minute=limit)) for each in policy.tenants)
    return replace(policy, tenants=tenants)


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize("lag", [0, 60])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 3))])
def test_admissions_across_successions_stay_within_the_limit_plus_one_minute(seed: int, lag: int) -> None:
    limit = 20
    world = replace(SMALL, policies=(limited(SMALL.policies[0], limit),), churn=0.0, failing=0.1)
    era = live_under_several(world, seed, events=500, lag=lag)

    assert len(era.let_in) > 3 * limit
    for tenant in ("acme", "bolt"):
        moments = [when for who, when in era.let_in if who == tenant]
        for number, since in enumerate(moments):
            for more, until in enumerate(moments[number:], start=1):
                assert (more - limit) * MINUTE <= limit * (until - since)


# Limits alone

CUT = st.tuples(st.just("cut"), st.just(0), st.just(0))
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, SECOND // 3, 7 * SECOND, MINUTE]),
        st.one_of(
            st.tuples(st.just("arrive"), st.integers(1, 60), st.just(0)),
            st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 90)),
            CUT,
        ),
    ),
    max_size=40,
)
TENANTS = (
    Tenant(TenantId("acme"), limits=Limits(30, 300, concurrency=9)),
    Tenant(TenantId("acme/lab"), limits=Limits(20, 200)),
)


class Twins:
    """A continuous scheduler's limits, and those of one that is replaced repeatedly."""

    def __init__(self) -> None:
        self.now = at(0)
        self.one, self.other = TenantLimits(), TenantLimits()
        for limits in (self.one, self.other):
            limits.change_rules(tenant_table(TENANTS).by_id, {}, (), self.now)
        self.open: dict[RequestId, tuple[Ticket, int, Instant]] = {}
        self.count = 0

    def arrive(self, prompt_tokens: int) -> None:
        self.count += 1
        ticket = Ticket(RequestId(f"r{self.count}"), Api.CHAT, ModelName("m"), TenantId("acme/lab"), True, 4)
        if self.other.shortage(ticket, prompt_tokens, 7, self.now) is None:
            assert self.one.shortage(ticket, prompt_tokens, 7, self.now) is None
            for limits in (self.one, self.other):
                limits.reserve(ticket, prompt_tokens, 7, self.now)
            self.open[ticket.request_id] = (ticket, prompt_tokens, self.now)

    def end(self, number: int, tokens: int) -> None:
        if self.open:
            request_id = list(self.open)[number % len(self.open)]
            del self.open[request_id]
            for limits in (self.one, self.other):
                limits.attempt_ended(request_id, tokens, self.now)
                limits.request_ended(request_id, self.now, in_flight=False)

    def cut(self) -> None:
        counters, self.other = self.other.counters(self.now), TenantLimits()
        self.other.change_rules(tenant_table(TENANTS).by_id, {}, (), self.now)
        self.other.restore(counters, self.now)
        for ticket, prompt_tokens, arrived in self.open.values():
            self.other.adopt(ticket, prompt_tokens, 7, arrived, self.now, counted=True)

    def check(self) -> None:
        for name, level in self.one._levels.items():
            twin = self.other._levels[name]
            assert level.open == twin.open == len(self.open)
            for rate, other in ((level.requests, twin.requests), (level.tokens, twin.tokens)):
                assert rate is not None
                assert other is not None
                assert rate.used(self.now) <= other.used(self.now)


@given(STEPS)
def test_successor_never_allows_more_than_its_predecessor(
    steps: list[tuple[int, tuple[str, int, int]]],
) -> None:
    twins = Twins()
    for later, (what, first, second) in steps:
        twins.now = Instant(twins.now + later)
        if what == "arrive":
            twins.arrive(first)
        elif what == "end":
            twins.end(first, second)
        else:
            twins.cut()
        twins.check()
    # Amounts that were not refunded have drained after a minute, except for debts.
    twins.now = Instant(twins.now + 60 * MINUTE)
    assert all(level.tokens.used(twins.now) == 0 for level in twins.other._levels.values() if level.tokens)
