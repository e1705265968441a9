"""Adapter slots under random traffic: the limit holds, every request ends, and no adapter starves."""

from dataclasses import replace
from heapq import heappop, heappush

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import Event, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Policy, RoutingRules
from headgate.model.units import SECOND, Duration, Instant, ModelName, PoolName
from testing.builders import (
    BATCH,
    INTERACTIVE,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    completed,
)

ADAPTERS = tuple("abcdef")
LOAD_S = 0.2
TURN_S = 5 * LOAD_S
TENANTS = ("acme", "bolt", "coil")


def adapter_policy(max_lora: int) -> Policy:
    classes = tuple(replace(each, queue_wait_ns_max=Duration(100_000 * SECOND)) for each in (INTERACTIVE, BATCH))
    policy = a_policy(classes=classes)
    models = tuple(Model(ModelName(name), (PoolName("p"),), adapter=name) for name in ADAPTERS)
    return replace(
        policy,
        models=policy.models + models,
        pools=(replace(policy.pools[0], max_lora=max_lora),),
        routing=RoutingRules(adapter_load_penalty_ns=Duration(int(LOAD_S * SECOND))),
    )


class Run:
    """A scheduler, and engines that take a given time for each request. It checks every dispatch."""

    def __init__(self, policy: Policy, endpoints: list[Endpoint], max_lora: int) -> None:
        self.scheduler: Scheduler = a_scheduler(*endpoints, policy=policy)
        self.held = {each.id: each.adapters for each in endpoints}
        self.engine = {each.id: each.engine or each.id for each in endpoints}
        self.max_lora = max_lora
        self.duration_s: dict[str, float] = {}
        self.arrived_s: dict[str, float] = {}
        self.sent_s: dict[str, float] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.running: dict[str, tuple[str, str]] = {}
        self._events: list[tuple[float, int, Event]] = []
        self._count = 0
        self._now = at(0)

    def at(self, seconds: float, event: Event) -> None:
        self._count += 1
        heappush(self._events, (seconds, self._count, event))

    def ask(self, request: str, model: str, tenant: str, *, seconds: float, takes_s: float, service_class: str) -> None:
        self.duration_s[request], self.arrived_s[request] = takes_s, seconds
        self.at(seconds, arrived(request, tenant, model=model, service_class=service_class))

    def finish(self) -> None:
        """Handle events until there are none."""
        while self._events:
            seconds, _, event = heappop(self._events)
            self._fire_timers(at(seconds))
            request = getattr(event, "request_id", None)
            if type(event).__name__ == "AttemptEnded":
                del self.running[str(request)]
            self._now = at(seconds)
            self._apply(self.scheduler.handle(event, self._now), seconds)

    def _fire_timers(self, until: Instant) -> None:
        while (wakeup := self.scheduler.next_wakeup()) is not None and wakeup <= until:
            self._now = max(self._now, wakeup)
            self._apply(self.scheduler.handle(TimerFired(), self._now), (self._now - at(0)) / SECOND)

    def _apply(self, commands: list[Command], seconds: float) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                self._start(command, seconds)
            elif isinstance(command, End):
                self.outcomes[command.request_id] = command.outcome

    def _start(self, command: Dispatch, seconds: float) -> None:
        request, endpoint = command.request_id, command.endpoint_id
        held = self.held[endpoint]
        assert not command.adapter or held is None or command.adapter in held
        engine = self.engine[endpoint]
        self.running[request], self.sent_s[request] = (engine, command.adapter), seconds
        distinct = {adapter for where, adapter in self.running.values() if where == engine and adapter}
        assert len(distinct) <= self.max_lora
        self.at(seconds + self.duration_s[request], completed(request))


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from((*ADAPTERS, "m")),
        st.sampled_from(TENANTS),
        st.floats(0, 1),
        st.floats(0.05, 4),
        st.sampled_from(("interactive", "batch")),
        st.booleans(),
    ),
    min_size=1,
    max_size=120,
)


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.one_of(st.none(), st.sets(st.sampled_from(ADAPTERS), min_size=1)), min_size=1, max_size=3),
    REQUESTS,
)
def test_distinct_adapters_stay_within_the_limit_and_every_request_ends(
    max_lora: int,
    places: int,
    held: list[set[str] | None],
    requests: list[tuple[str, str, float, float, str, bool]],
) -> None:
    endpoints = [
        replace(an_endpoint(f"e{number}", places=places), adapters=None if each is None else tuple(sorted(each)))
        for number, each in enumerate(held)
    ]
    run = Run(adapter_policy(max_lora), endpoints, max_lora)
    now, names = 0.0, []
    for number, (model, tenant, gap, takes_s, service_class, leaves) in enumerate(requests):
        now += gap
        names.append(name := f"r{number}")
        run.ask(name, model, tenant, seconds=now, takes_s=takes_s, service_class=service_class)
        if leaves:
            run.at(now + 0.5, client_disconnected(name))
    run.finish()

    assert set(run.outcomes) == set(names)
    available = {adapter for each in held for adapter in (ADAPTERS if each is None else each)} | {"m"}
    for name, (model, *_, leaves) in zip(names, requests, strict=True):
        if model not in available:
            assert run.outcomes[name] is Outcome.NO_ENDPOINTS
        elif not leaves:
            assert run.outcomes[name] is Outcome.COMPLETED


@given(st.integers(1, 3), st.integers(1, 4), st.sets(st.sampled_from(ADAPTERS)), REQUESTS)
def test_limit_holds_and_every_request_ends_if_two_pools_share_the_engine(
    max_lora: int, places: int, in_p: set[str], requests: list[tuple[str, str, float, float, str, bool]]
) -> None:
    policy = adapter_policy(max_lora)
    pools = tuple(replace(policy.pools[0], name=PoolName(name)) for name in "pq")
    of_pool = {each: PoolName("p" if each in in_p or each == "m" else "q") for each in (*ADAPTERS, "m")}
    models = tuple(replace(each, pools=(of_pool[each.name],)) for each in policy.models)
    endpoints = [replace(an_endpoint(f"{name}1", pool=name, places=places), engine="x") for name in "pq"]
    run = Run(replace(policy, pools=pools, models=models), endpoints, max_lora)
    now = 0.0
    for number, (model, tenant, gap, takes_s, service_class, _) in enumerate(requests):
        now += gap
        run.ask(f"r{number}", model, tenant, seconds=now, takes_s=takes_s, service_class=service_class)
    run.finish()

    assert list(run.outcomes.values()) == [Outcome.COMPLETED] * len(requests)


@given(
    st.integers(1, 3),
    st.floats(0.05, 2),
    st.sampled_from(("interactive", "batch")),
    st.sampled_from(TENANTS),
)
def test_adapter_without_a_slot_waits_no_longer_than_a_turn_and_a_response_for_each_slot(
    max_lora: int, takes_s: float, service_class: str, tenant: str
) -> None:
    """The other adapters always have requests in flight, of a higher priority and with capacity to spare."""
    run = Run(adapter_policy(max_lora), [an_endpoint("e1", places=3 * max_lora)], max_lora)
    busy = ADAPTERS[:max_lora]
    gap_s, until_s = takes_s / 2, 10 * (TURN_S + takes_s)
    number = 0
    while number * gap_s < until_s:
        for adapter in busy:
            name, seconds = f"{adapter}{number}", number * gap_s
            run.ask(name, adapter, "acme", seconds=seconds, takes_s=takes_s, service_class="interactive")
        number += 1
    run.ask("late", "f", tenant, seconds=1.0, takes_s=takes_s, service_class=service_class)
    run.finish()

    assert set(run.outcomes.values()) == {Outcome.COMPLETED}
    # The turn, the responses in flight, and the interval until the next event offers the slots again.
    assert run.sent_s["late"] - 1.0 <= TURN_S + takes_s + 2 * gap_s + 0.001
