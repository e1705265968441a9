"""Overflow under random traffic: local data stays local, and every request ends."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import Dispatch
from headgate.core.events import PolicyChanged, RequestArrived, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Model, ModelTierRule, Overflow, Policy
from headgate.model.tenant import DataResidency, Tenant
from headgate.model.units import ClassName, ModelName, PoolName, RequestId, TenantId, after
from testing.builders import a_class, a_policy, a_pool, duration
from testing.event_generator import EventGenerator, EventMix

LOCAL, CLOUD = DataResidency.LOCAL, PoolName("cloud")
TENANTS = ("acme", "bank", "bank/trading", "bolt")
STEPS = 300


def _policy(after_s: float, *, hedging: bool) -> Policy:
    own, other = PoolName("own"), PoolName("other")
    overflow = Overflow((CLOUD,), duration(after_s))
    classes = (
        replace(a_class("interactive", queue_wait=5), ttft_ns=duration(3), hedging=hedging),
        replace(a_class("records", band=1, queue_wait=20, unnamed=False), data_residency=LOCAL),
    )
    return a_policy(
        classes=classes,
        tenants=("acme", Tenant(TenantId("bank"), data_residency=LOCAL), "bank/trading", "bolt"),
        pools=(a_pool("own"), a_pool("other"), replace(a_pool("cloud"), hosted=True)),
        models=(
            Model(ModelName("m"), (own,), overflow=overflow, fallbacks=(ModelName("n"),)),
            Model(ModelName("n"), (other, CLOUD), tiers=(ModelTierRule((CLOUD, other)),)),
            Model(ModelName("o"), (own, other), overflow=replace(overflow, classes=(ClassName("interactive"),))),
        ),
    )


WORLD = EventMix(
    endpoints={"own-1": "own", "own-2": "own", "other-1": "other", "cloud-1": "cloud", "cloud-2": "cloud"},
    tenants=TENANTS,
    models=("m", "n", "o"),
    classes=(None, None, "records"),
    policies=(_policy(0.3, hedging=True), _policy(0, hedging=False), _policy(2, hedging=True)),
    steps_ms=(0, 1, 20, 200),
    churn=0.02,
    failing=0.1,
    places=(1, 2, 4),
    prompts=(100, 3_000),
    limited=("cloud-1",),
)


@given(st.integers(0, 1_000_000))
def test_local_data_never_reaches_a_provider_and_every_request_ends(seed: int) -> None:
    host, scheduler = EventGenerator(WORLD, Random(seed)), Scheduler()
    tenants: dict[RequestId, tuple[str, str | None]] = {}
    events = [(event, host.now) for event in host.opening()]
    for step in range(STEPS):
        event, now = events[step] if step < len(events) else host.next(scheduler.next_wakeup())
        if isinstance(event, RequestArrived):
            tenants[event.ticket.request_id] = (event.ticket.tenant, event.ticket.requested_class)
        commands = scheduler.handle(event, now)
        host.apply(event, commands)
        for each in commands:
            if isinstance(each, Dispatch) and each.pool == CLOUD:
                tenant, service_class = tenants[each.request_id]
                assert not tenant.startswith("bank"), each
                assert service_class != "records", each
        _check_waiting_counts(scheduler)

    _end_all(host, scheduler)
    assert not host.unended
    assert scheduler.next_wakeup() is None or not scheduler.summary().requests


def _check_waiting_counts(scheduler: Scheduler) -> None:
    """Checks that each queued request waits for its own pools and for the overflow pools that it may use."""
    state = scheduler._state
    queued = [each for each in state.requests.by_id.values() if each.running is None]
    expected = {pool for each in queued for pool in each.pools + each.overflow_pools}
    assert {pool for pool in state.rules.pools if state.queue.backlog.is_waited_for(pool)} == expected
    assert state.queue.backlog.length == len(queued)
    assert sum(state.queue.backlog.work.by_pools_and_band().values()) == sum(each.cost_ns for each in queued)


def _end_all(host: EventGenerator, scheduler: Scheduler) -> None:
    """Ends all attempts and lets the queue expire."""
    for _ in range(200):
        for attempt in list(host.open):
            event = host._ending(attempt)
            host.apply(event, scheduler.handle(event, host.now))
        if not host.unended:
            break
        host.now = max(scheduler.next_wakeup() or host.now, after(host.now, duration(0.5)))
        host.apply(TimerFired(), scheduler.handle(TimerFired(), host.now))


def test_random_traffic_overflows_and_changes_the_policy() -> None:
    """The property above would hold trivially if nothing overflowed."""
    host, scheduler = EventGenerator(WORLD, Random(3)), Scheduler()
    overflowed = changes = 0
    events = [(event, host.now) for event in host.opening()]
    for step in range(3_000):
        event, now = events[step] if step < len(events) else host.next(scheduler.next_wakeup())
        changes += isinstance(event, PolicyChanged)
        commands = scheduler.handle(event, now)
        host.apply(event, commands)
        overflowed += sum(isinstance(each, Dispatch) and "; overflow: " in each.reason for each in commands)

    assert overflowed > 20
    assert changes > 1
