"""Do the promises of the scheduler hold whatever happens, in whatever order?"""

from copy import deepcopy

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headgate.core.events import AttemptEnded, AttemptEnding, AttemptProgress, Event, Progressed, TimerFired
from headgate.model.caps import Caps
from headgate.model.policy import HealthRules, Policy, RetryRules
from headgate.model.units import SECOND, Duration, Instant, RequestId
from tests.properties.model_host import ModelHost, Open
from tests.support.builders import (
    a_class,
    a_model,
    a_policy,
    a_tenant,
    arrived,
    at,
    client_left,
    first_token,
    grace_over,
    joined,
    lasting,
    leaving,
    policy_changed,
    readied,
    unreadied,
)
from tests.support.inside import inside

INTERACTIVE = a_class(
    "interactive", queue_wait=12, queue_length_max=9, queue_length_per_tenant_max=6, caps=Caps(prompt_tokens=2_000, n=1)
)
CODE = a_class("code", queue_wait=9, pools=("q",), queue_length_max=5)
BATCH = a_class("batch", band=1, queue_wait=20, queue_length_max=9, pools=("p", "q"), service_tiers=("flex",))
URGENT = a_class(
    "urgent", band=-1, queue_wait=6, pools=("p",), caps=Caps(prompt_tokens=500, trims_prompt=True, output_tokens=9)
)
STRICT = a_class("interactive", queue_wait=12, caps=Caps(prompt_tokens=100))
RETRY = RetryRules(credit_burst=500)
HEALTH = HealthRules(failures_max=2, stall_ns_max=lasting(6), eject_ns=lasting(2), eject_ns_max=lasting(7))
MODELS = (a_model("m", "p", "q"), a_model("n", "q", "p"))


def policy(**changes: object) -> Policy:
    given: dict[str, object] = {
        "classes": (INTERACTIVE, CODE, BATCH, URGENT),
        "tenants": ("acme", "bolt", "coil"),
        "pools": ("p", "q"),
        "models": MODELS,
        "retry": RETRY,
        "health": HEALTH,
    }
    return a_policy(**(given | changes))  # type: ignore[arg-type]


POLICIES = (
    policy(),
    policy(classes=(INTERACTIVE, URGENT)),
    policy(classes=(a_class("interactive", band=3, queue_wait=1, pools=("p",)), CODE, BATCH)),
    policy(classes=(STRICT, CODE, BATCH)),
    policy(tenants=("acme", a_tenant("bolt", classes=("batch", "interactive")))),
    policy(pools=("p",), models=(a_model("m", "p"),)),
    policy(pools=("q",), models=(a_model("m", "q"), a_model("n", "q"))),
    policy(health=HealthRules(failures_max=1, stall_ns_max=lasting(2), eject_ns=lasting(1))),
)
ENDPOINTS = {"e1": "p", "e2": "p", "e3": "q", "e4": "q"}

CLASSES_NAMED = ["interactive"] * 3 + ["code"] * 2 + ["batch"] * 3 + ["urgent", None, "nonsense"]

waits = st.sampled_from([0, 0, 0, 0, 0, 1, SECOND // 10, SECOND, SECOND]).map(Duration)
tenants = st.sampled_from(["acme", "bolt", "coil"])
endpoints = st.sampled_from(sorted(ENDPOINTS))
positions = st.integers(0, 30)
prompts = st.sampled_from([(100, 0)] * 4 + [(4_000, 400), (4_000, 4_000), (9_000, 2_000)])
"""How many bytes, and how many of them cannot be left out."""
keys = st.sampled_from([None] * 5 + ["k1", "k1", "k2"])
allowances = st.sampled_from([None] * 12 + [-1, 0, 0.1, 1, 1, 2, 6, 12, 13])
"""Seconds that a caller allows. Some are as long as a class's patience, some shorter, some longer."""


class SchedulerMachine(RuleBasedStateMachine):
    host: ModelHost

    @initialize(
        ready=st.sampled_from([["e1"], ["e1", "e3"], ["e1", "e2", "e3"], list(ENDPOINTS)]), places=st.integers(1, 3)
    )
    def begin(self, ready: list[str], places: int) -> None:
        self.host = ModelHost(POLICIES[0], at(0))
        self.arrivals = 0
        for name in ready:
            self.host.tell(joined(name, pool=ENDPOINTS[name], places=places))
            self.host.tell(readied(name))

    # Requests

    @rule(
        tenant=tenants,
        service_class=st.sampled_from(CLASSES_NAMED),
        model=st.sampled_from(["m"] * 4 + ["n"] * 4 + ["none"]),
        stream=st.booleans(),
        retries=st.sampled_from([0, 0, 0, 1]),
        prompt=prompts,
        key=keys,
        allowed=st.tuples(allowances, allowances),
        later=waits,
    )
    def arrive(
        self,
        *,
        tenant: str,
        service_class: str | None,
        model: str,
        stream: bool,
        retries: int = 0,
        prompt: tuple[int, int] = (100, 0),
        key: str | None = None,
        allowed: tuple[float | None, float | None] = (None, None),
        later: Duration = Duration(0),
    ) -> None:
        self.arrivals += 1
        event = arrived(
            f"r{self.arrivals}",
            tenant,
            service_class=service_class,
            model=model,
            stream=stream,
            client_retries=retries,
            prompt_bytes=prompt[0],
            prompt_bytes_kept=prompt[1],
            key=key,
            first_token_within=allowed[0],
            complete_within=allowed[1],
        )
        self.host.tell(event, later)

    @rule(
        senders=st.lists(tenants, min_size=2, max_size=8),
        service_class=st.sampled_from(CLASSES_NAMED),
        model=st.sampled_from(["m", "n"]),
        stream=st.booleans(),
        allowed=st.tuples(allowances, allowances),
    )
    def burst(
        self,
        senders: list[str],
        service_class: str | None,
        model: str,
        stream: bool,
        allowed: tuple[float | None, float | None],
    ) -> None:
        for tenant in senders:
            self.arrive(tenant=tenant, service_class=service_class, model=model, stream=stream, allowed=allowed)

    @precondition(lambda self: any(each.ticket.idempotency_key for each in self.host.books.asked.values()))
    @rule(position=positions, tenant=tenants, later=waits)
    def come_again_with_the_same_key(self, position: int, tenant: str, later: Duration) -> None:
        used = [each.ticket.idempotency_key for each in self.host.books.asked.values() if each.ticket.idempotency_key]
        key = used[position % len(used)]
        self.arrive(tenant=tenant, service_class="batch", model="m", stream=True, key=key, later=later)

    @rule(count=st.integers(1, 6), later=waits)
    def some_complete(self, count: int, later: Duration) -> None:
        for _ in range(min(count, len(self.host.books.open))):
            self.attempt_ends(position=0, ending=AttemptEnding.COMPLETED, later=later)

    @precondition(lambda self: self.host.books.open)
    @rule(position=positions, later=waits)
    def first_token(self, position: int, later: Duration) -> None:
        attempt = self.some_attempt(position)
        self.host.tell(first_token(attempt.request_id, attempt.number), later)

    @precondition(lambda self: self.host.books.open)
    @rule(positions=st.lists(positions, max_size=3), later=waits)
    def progress(self, positions: list[int], later: Duration) -> None:
        attempts = [self.some_attempt(position) for position in positions]
        reports = tuple(AttemptProgress(each.request_id, each.number, tokens=9) for each in attempts)
        self.host.tell(Progressed(reports), later)

    @precondition(lambda self: self.host.books.open)
    @rule(position=positions, ending=st.sampled_from(list(AttemptEnding)), later=waits)
    def attempt_ends(self, position: int, ending: AttemptEnding, later: Duration) -> None:
        attempt = self.some_attempt(position)
        if ending is AttemptEnding.ABORTED and not attempt.abort_ordered:
            ending = AttemptEnding.FAILED
        self.host.tell(AttemptEnded(attempt.request_id, attempt.number, ending, "as it happened"), later)

    @precondition(lambda self: self.host.books.open)
    @rule(position=positions, silent=st.booleans())
    def attempt_fails_after_a_second(self, position: int, silent: bool) -> None:
        ending = AttemptEnding.SILENT if silent else AttemptEnding.FAILED
        self.attempt_ends(position=position, ending=ending, later=SECOND)

    @precondition(lambda self: self.host.books.open)
    @rule(name=endpoints, later=waits)
    def endpoint_fails_all_it_has(self, name: str, later: Duration) -> None:
        for attempt in [each for each in self.host.books.open.values() if each.engine.id == name]:
            event = AttemptEnded(attempt.request_id, attempt.number, AttemptEnding.FAILED, "connection reset")
            self.host.tell(event, later)
            later = Duration(0)

    @precondition(lambda self: self.host.books.asked)
    @rule(position=positions, left=st.booleans(), later=waits)
    def withdraw(self, position: int, left: bool, later: Duration) -> None:
        known = list(self.host.books.asked)
        request_id = known[position % len(known)]
        self.host.tell(client_left(request_id) if left else grace_over(request_id), later)

    @precondition(lambda self: self.host.books.ended)
    @rule(
        position=positions,
        number=st.integers(1, 3),
        kind=st.sampled_from([*AttemptEnding, "token", "progress", "left"]),
    )
    def say_something_late(self, position: int, number: int, kind: AttemptEnding | str) -> None:
        ended = list(self.host.books.ended)
        request_id = ended[position % len(ended)]
        if (request_id, number) in self.host.books.open:
            return
        self.host.tell(late_word(request_id, number, kind))

    # Endpoints

    @rule(name=endpoints, places=st.sampled_from([1, 1, 2, 2, 3, 0]), later=waits)
    def join(self, name: str, places: int, later: Duration) -> None:
        self.host.tell(joined(name, pool=ENDPOINTS[name], places=places), later)
        self.host.tell(readied(name))

    @rule(name=endpoints, places=st.integers(0, 4), later=waits)
    def join_and_warm_up(self, name: str, places: int, later: Duration) -> None:
        self.host.tell(joined(name, pool=ENDPOINTS[name], places=places), later)

    @rule(name=endpoints, kind=st.sampled_from([readied, readied, unreadied, leaving]), later=waits)
    def endpoint_changes(self, name: str, kind: type, later: Duration) -> None:
        self.host.tell(kind(name), later)

    # Time and policy

    @rule(
        later=st.sampled_from([1, SECOND - 1, SECOND, SECOND, 3 * SECOND, 3 * SECOND, 6 * SECOND, 99 * SECOND]).map(
            Duration
        )
    )
    def time_passes(self, later: Duration) -> None:
        self.host.tell(TimerFired(), later)

    @rule(times=st.integers(1, 2))
    def time_passes_to_the_next_wakeup(self, times: int) -> None:
        for _ in range(times):
            wakeup = self.host.scheduler.next_wakeup()
            if wakeup is None:
                return
            self.check_that_nothing_is_due_before(wakeup - self.host.now)
            self.host.tell(TimerFired(), Duration(max(0, wakeup - self.host.now)))
            following = self.host.scheduler.next_wakeup()
            assert following is None or following > wakeup

    @rule(number=st.sampled_from([0] * 10 + list(range(1, len(POLICIES)))), later=waits)
    def policy_changes(self, number: int, later: Duration) -> None:
        self.host.tell(policy_changed(POLICIES[number], f"h{number}"), later)

    # Help

    def some_attempt(self, position: int) -> Open:
        attempts = list(self.host.books.open.values())
        return attempts[position % len(attempts)]

    def check_that_nothing_is_due_before(self, away: int) -> None:
        if away > 0:
            early = deepcopy(self.host.scheduler)
            before = early.summary()
            assert early.handle(TimerFired(), Instant(self.host.now + away - 1)) == []
            assert early.summary() == before

    def teardown(self) -> None:
        if hasattr(self, "host"):
            self.everything_ends()
            self.check_that_nothing_is_remembered()

    def everything_ends(self) -> None:
        """Attempts complete, what waits is served or expires, and in the end all endpoints leave."""
        for _ in range(1_000):
            if self.host.books.open:
                attempt = self.some_attempt(0)
                self.host.tell(AttemptEnded(attempt.request_id, attempt.number, AttemptEnding.COMPLETED))
            elif self.host.books.asked:
                wakeup = self.host.scheduler.next_wakeup()
                assert wakeup is not None, "queued for ever"
                self.host.tell(TimerFired(), Duration(max(0, wakeup - self.host.now)))
        assert not self.host.books.asked
        assert self.host.books.arrived == len(self.host.books.ended)

    def check_that_nothing_is_remembered(self) -> None:
        idle = inside(self.host.scheduler)
        assert (idle.requests, idle.attempts, idle.queued_per_tenant, idle.lines) == (0, 0, 0, 0)
        assert (idle.keys, idle.deadlines) == (0, (0, 0))
        assert (idle.expiries, idle.stalls, idle.pools_changed) == ((0, 0), (0, 0), 0)
        assert idle.tenants_with_credit <= 3
        assert idle.pools_with_window <= 2
        for name in ENDPOINTS:
            self.host.tell(leaving(name))
        gone = inside(self.host.scheduler)
        assert (gone.endpoints, gone.pools, gone.shelved, gone.returns) == (0, 0, 0, (0, 0))
        assert self.host.scheduler.next_wakeup() is None


def late_word(request_id: str, number: int, kind: AttemptEnding | str) -> Event:
    match kind:
        case AttemptEnding():
            return AttemptEnded(RequestId(request_id), number, kind)
        case "token":
            return first_token(request_id, number)
        case "progress":
            return Progressed((AttemptProgress(RequestId(request_id), number, tokens=1),))
        case _:
            return client_left(request_id)


# A failure takes a while to be made small, and what is found is worth it.
TestScheduler = pytest.mark.timeout(600)(SchedulerMachine.TestCase)
TestScheduler.settings = settings(
    max_examples=100, stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
