"""Stateful property test of the scheduler with random events in any order."""

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    EndpointJoined,
    EndpointMetricsReported,
    Event,
    RequestArrived,
    TimerFired,
)
from headgate.model.caps import Caps
from headgate.model.endpoint import EndpointProblem
from headgate.model.limits import Limits
from headgate.model.policy import (
    AdmissionRules,
    DegradationRules,
    DegradationStep,
    HeadroomRules,
    HealthRules,
    OptimizationGoal,
    Policy,
    RetryRules,
    RoutingRules,
    SheddingRules,
)
from headgate.model.prefix import pack_hashes, prefix_tokens
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Tenant
from headgate.model.units import (
    BYTES_PER_TOKEN,
    SECOND,
    Duration,
    EndpointId,
    Instant,
    ModelName,
    RequestId,
    TenantId,
)
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_pool,
    a_tenant,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    duration,
    first_token,
    grace_over,
    leaving,
    policy_changed,
    probed,
    readied,
    unreadied,
)
from testing.builds import IS_COMPILED, NEEDS_PURE_BUILD
from testing.scheduler_sizes import scheduler_sizes
from tests.properties.books import Open
from tests.properties.model_host import ModelHost

INTERACTIVE = replace(
    a_class(
        "interactive", queue_wait=12, queue_length_max=9, queue_length_per_tenant_max=6, caps=Caps(prompt_tokens=2_000)
    ),
    ttft_ns=duration(4),
    hedging=True,
)
PATIENT = replace(INTERACTIVE, cold_start_wait_ns_max=duration(15))
CODE = replace(a_class("code", queue_wait=9, pools=("q",), queue_length_max=5), tpot_ns=duration(0.05))
BATCH = replace(
    a_class("batch", band=1, queue_wait=20, queue_length_max=9, pools=("p", "q"), service_tiers=("flex",)),
    min_share_percent=30,
)
URGENT = a_class(
    "urgent", band=-1, queue_wait=6, pools=("p",), caps=Caps(prompt_tokens=500, trim_prompt=True, output_tokens=9)
)
STRICT = a_class("interactive", queue_wait=12, caps=Caps(prompt_tokens=100))
GIVING_WAY = replace(
    BATCH, optimize_for=OptimizationGoal.COST, degradation_steps=(DegradationStep(1, Caps(output_tokens=9)),)
)
KEPT = replace(URGENT, reserve_percent=40)
RETRY = RetryRules(credit_burst=500)
HEALTH = HealthRules(
    consecutive_failures_max=2,
    stall_ns_max=duration(6),
    ejection_ns=duration(2),
    ejection_ns_max=duration(7),
    slow_start_ns=duration(3),
    zone_ejection_percent=50,
)
MODELS = (a_model("m", "p", "q"), a_model("n", "q", "p"))
HEAVY = Tenant(TenantId("bolt"), weight=300)
LIGHT = Tenant(TenantId("coil"), weight=50)
SLOW = EngineSpeed(step_ps=100 * 10**9, prefill_token_ps=10**9, decode_sequence_ps=4 * 10**9, chunk_tokens=4_000)
P = replace(a_pool("p"), kv_tokens=3_000)
Q = replace(a_pool("q"), kv_tokens=9_000, speed=EngineSpeed(decode_sequence_ps=10**10, chunk_tokens=3_000))
"""Pool p is limited by KV cache, pool q by step time."""
NO_LADDER = DegradationRules(enabled=False)
QUICK_LADDER = DegradationRules(escalate_above=100, escalate_after_ns=duration(0.2), recover_after_ns=duration(0.5))
LONG = HeadroomRules(long_prompt_tokens=1_000, pending_prefill_percent=90)


def policy(**changes: object) -> Policy:
    """Returns a policy. Keys unknown to the builder are fields of the policy."""
    given: dict[str, object] = {
        "classes": (INTERACTIVE, CODE, BATCH, URGENT),
        "tenants": ("acme", "acme/lab", HEAVY, LIGHT),
        "pools": (P, Q),
        "models": MODELS,
        "retry": RETRY,
        "health": HEALTH,
    }
    known = given | {key: value for key, value in changes.items() if key in given}
    others = {"degradation": NO_LADDER} | {key: value for key, value in changes.items() if key not in given}
    return replace(a_policy(**known), **others)  # type: ignore[arg-type]


POLICIES = (
    policy(),
    policy(classes=(INTERACTIVE, URGENT)),
    policy(classes=(a_class("interactive", band=3, queue_wait=1, pools=("p",)), CODE, BATCH)),
    policy(classes=(STRICT, CODE, BATCH)),
    policy(tenants=("acme", a_tenant("bolt", classes=("batch", "interactive")))),
    policy(pools=(P,), models=(a_model("m", "p"),)),
    policy(pools=(Q,), models=(a_model("m", "q"), a_model("n", "q"))),
    policy(health=HealthRules(consecutive_failures_max=1, stall_ns_max=duration(2), ejection_ns=duration(1))),
    # Reserved slots for a class, and a long lane.
    policy(classes=(INTERACTIVE, CODE, BATCH, KEPT), headroom=LONG),
    # Slow engines, for which only a few requests may wait.
    policy(pools=(replace(P, speed=SLOW), replace(Q, speed=SLOW)), admission=AdmissionRules(40)),
    # Tenant limits.
    policy(tenants=("acme", "acme/lab", HEAVY, replace(LIGHT, limits=Limits(6, 4_000, concurrency=2)))),
    policy(tenants=(Tenant(TenantId("acme"), limits=Limits(concurrency=2)), "acme/lab", HEAVY, LIGHT)),
    # Models that are each other's fallbacks, and a pool for short prompts.
    policy(
        models=(
            replace(a_model("m", "p"), fallbacks=(ModelName("n"),)),
            replace(a_model("n", "q"), fallbacks=(ModelName("m"),)),
        )
    ),
    policy(pools=(replace(P, prompt_tokens_max=500), Q)),
    # Pools that scale from zero.
    policy(
        classes=(PATIENT, CODE, replace(BATCH, cold_start_wait_ns_max=duration(4)), URGENT),
        pools=(replace(P, hold_max=2), replace(Q, hold_max=4)),
    ),
    policy(
        classes=(PATIENT, CODE, BATCH, replace(KEPT, cold_start_wait_ns_max=duration(9))),
        pools=(P, replace(Q, hold_max=3)),
    ),
    # Targets for complete responses.
    policy(
        classes=(
            replace(INTERACTIVE, e2e_ns=duration(6)),
            CODE,
            replace(BATCH, e2e_ns=duration(3), hedging=True, cold_start_wait_ns_max=duration(9)),
            replace(URGENT, e2e_ns=duration(0.3)),
        ),
        pools=(P, replace(Q, hold_max=3)),
    ),
    # Engine metrics become stale quickly.
    policy(routing=RoutingRules(metrics_stale_ns=duration(1))),
    # Degradation and shedding under overload.
    policy(
        classes=(INTERACTIVE, CODE, GIVING_WAY, URGENT),
        degradation=QUICK_LADDER,
        shedding=SheddingRules(enabled=True, target_pressure=50, integral_gain=2_000),
    ),
)
ENDPOINTS = {"e1": "p", "e2": "p", "e3": "q", "e4": "q"}
ZONES = {"e1": "a", "e3": "a", "e4": "a", "e2": "b"}

CLASSES_NAMED = ["interactive"] * 3 + ["code"] * 2 + ["batch"] * 3 + ["urgent", None, "nonsense"]

waits = st.sampled_from([0, 0, 0, 0, 0, 1, SECOND // 10, SECOND, SECOND]).map(Duration)
tenants = st.sampled_from(["acme", "acme/lab", "bolt", "coil"])
endpoints = st.sampled_from(sorted(ENDPOINTS))
positions = st.integers(0, 30)
troubles = st.sampled_from([None, EndpointProblem.CONNECTION_REFUSED, EndpointProblem.UNRESPONSIVE])
prompts = st.sampled_from([(100, 0)] * 4 + [(1_000, 0)] * 2 + [(4_000, 400), (4_000, 4_000), (9_000, 2_000)])
"""Prompt size and the part of it that cannot be trimmed, in bytes."""
keys = st.sampled_from([None] * 5 + ["k1", "k1", "k2"])
allowances = st.sampled_from([None] * 12 + [-1, 0, 0.1, 1, 1, 2, 6, 12, 13])
"""Client deadlines in seconds. Some equal the queue wait of a class, others are shorter or longer."""
usages = st.sampled_from([None, None, (20, 5), (900, 900)])
"""Prompt and output tokens that an engine reports at the end."""


class SchedulerMachine(RuleBasedStateMachine):
    host: ModelHost

    @initialize(
        ready=st.sampled_from([[], ["e1"], ["e1", "e3"], ["e1", "e2", "e3"], list(ENDPOINTS)]),
        places=st.integers(1, 5),
        device=st.sampled_from(["", "", "gpu"]),
        number=st.sampled_from([0] * 10 + list(range(len(POLICIES)))),
    )
    def begin(self, ready: list[str], places: int, device: str, number: int) -> None:
        self.host = ModelHost(POLICIES[number], at(0))
        self.arrivals = 0
        self.devices = {"e2": device, "e3": device}
        for name in ready:
            self.add(name, places)
            self.host.tell(readied(name))
        self.host.know_first_tokens("interactive", "p", "q")

    # Requests

    @rule(
        tenant=tenants,
        service_class=st.sampled_from(CLASSES_NAMED),
        model=st.sampled_from(["m"] * 4 + ["n"] * 4 + ["none"]),
        stream=st.booleans(),
        retries=st.sampled_from([0, 0, 0, 1]),
        prompt=prompts,
        beginning=st.integers(0, 2),
        array=st.sampled_from([1, 1, 1, 2, 3, 8]),
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
        beginning: int = 0,
        array: int = 1,
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
        depth = len([each for each in (1, 2, 3) if BYTES_PER_TOKEN * prefix_tokens(each) <= prompt[0]])
        hashes = [10 * beginning + part for part in range(depth)] if beginning else []
        ticket = replace(event.ticket, prefix_hashes=pack_hashes(hashes), prompts=array)
        self.host.tell(RequestArrived(ticket), later)

    @rule(
        senders=st.lists(tenants, min_size=2, max_size=8),
        service_class=st.sampled_from(CLASSES_NAMED),
        model=st.sampled_from(["m", "n"]),
        stream=st.booleans(),
        prompt=prompts,
        allowed=st.tuples(allowances, allowances),
    )
    def burst(
        self,
        *,
        senders: list[str],
        service_class: str | None,
        model: str,
        stream: bool,
        prompt: tuple[int, int],
        allowed: tuple[float | None, float | None],
    ) -> None:
        for number, tenant in enumerate(senders):
            # Every second prompt is short.
            size = prompt if number % 2 else (100, 0)
            self.arrive(
                tenant=tenant, service_class=service_class, model=model, stream=stream, prompt=size, allowed=allowed
            )

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
    @rule(positions=st.lists(positions, max_size=3), tokens=st.sampled_from([0, 9, 9, 70, 700]), later=waits)
    def progress(self, positions: list[int], tokens: int, later: Duration) -> None:
        attempts = [self.some_attempt(position) for position in positions]
        reports = tuple(AttemptProgress(each.request_id, each.number, tokens) for each in attempts)
        self.host.tell(AttemptsProgressed(reports), later)

    @precondition(lambda self: self.host.books.open)
    @rule(
        position=positions,
        ending=st.sampled_from(list(AttemptEnding)),
        used=usages,
        later=waits,
        first_token=st.booleans(),
    )
    def attempt_ends(
        self,
        position: int,
        ending: AttemptEnding,
        used: tuple[int, int] | None = None,
        later: Duration = Duration(0),
        first_token: bool = False,
    ) -> None:
        attempt = self.some_attempt(position)
        if ending is AttemptEnding.ABORTED and not attempt.abort_ordered:
            ending = AttemptEnding.FAILED
        usage = None if used is None else Usage(*used, cached_tokens=0, source=UsageSource.ENGINE)
        how = ending, "as it happened", usage
        self.host.tell(AttemptEnded(attempt.request_id, attempt.number, *how, first_token=first_token), later)

    @precondition(lambda self: self.host.books.open)
    @rule(position=positions, silent=st.booleans())
    def attempt_fails_after_a_second(self, position: int, silent: bool) -> None:
        ending = AttemptEnding.TIMEOUT if silent else AttemptEnding.FAILED
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
        self.host.tell(client_disconnected(request_id) if left else grace_over(request_id), later)

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
        self.add(name, places, later)
        self.host.tell(readied(name))

    @rule(name=endpoints, places=st.integers(0, 5), later=waits)
    def join_and_warm_up(self, name: str, places: int, later: Duration) -> None:
        self.add(name, places, later)

    @rule(name=endpoints, kind=st.sampled_from([readied, readied, unreadied, leaving]), later=waits)
    def endpoint_changes(self, name: str, kind: type, later: Duration) -> None:
        self.host.tell(kind(name), later)

    @rule(
        name=endpoints,
        running=st.integers(0, 5),
        waiting=st.sampled_from([0, 0, 2]),
        kv_percent=st.sampled_from([None, 0, 10, 50, 100]),
        later=waits,
    )
    def engine_tells_of_itself(
        self, name: str, running: int, waiting: int, kv_percent: int | None, later: Duration
    ) -> None:
        self.host.tell(EndpointMetricsReported(EndpointId(name), running, waiting, kv_percent), later)

    @rule(name=endpoints, trouble=troubles, later=waits)
    def probe_changes(self, name: str, trouble: EndpointProblem | None, later: Duration) -> None:
        self.host.tell(probed(name, trouble), later)

    @rule(name=endpoints, steps=st.integers(1, 3), alive=st.booleans())
    def probe_fails_for_long(self, name: str, steps: int, alive: bool) -> None:
        """Fails a probe and lets time pass, with or without a token from the endpoint."""
        self.host.tell(probed(name, EndpointProblem.UNRESPONSIVE))
        attempts = [each for each in self.host.books.open.values() if each.engine.id == name]
        for attempt in attempts[: int(alive)]:
            self.host.tell(first_token(attempt.request_id, attempt.number), SECOND)
        for _ in range(steps):
            self.host.tell(TimerFired(), Duration(5 * SECOND))

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

    # Helpers

    def add(self, name: str, places: int, later: Duration = Duration(0)) -> None:
        endpoint = an_endpoint(name, pool=ENDPOINTS[name], places=places)
        where = replace(endpoint, device=self.devices.get(name, ""), zone=ZONES[name])
        self.host.tell(EndpointJoined(where), later)

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
        """Completes attempts, serves or expires queued requests, and finally removes all endpoints."""
        for _ in range(1_000):
            if self.host.books.open:
                attempt = self.some_attempt(0)
                self.host.tell(AttemptEnded(attempt.request_id, attempt.number, AttemptEnding.COMPLETED))
            elif self.host.books.asked:
                wakeup = self.host.scheduler.next_wakeup()
                assert wakeup is not None, "queued without a wakeup"
                self.host.tell(TimerFired(), Duration(max(0, wakeup - self.host.now)))
        assert not self.host.books.asked
        assert self.host.books.arrived == len(self.host.books.ended)

    def check_that_nothing_is_remembered(self) -> None:
        idle = scheduler_sizes(self.host.scheduler)
        assert (idle.requests, idle.attempts, idle.queued_per_tenant, idle.lines, idle.held) == (0, 0, 0, 0, 0)
        assert (idle.keys, idle.deadlines, idle.limit_claims, idle.work) == (0, 0, 0, 0)
        assert (idle.expiries, idle.stalls, idle.prefills, idle.hedges) == (0, 0, 0, 0)
        assert (idle.pools_changed, idle.promised) == (0, 0)
        assert idle.tenants_with_credit <= 4
        assert idle.pools_with_window <= 2
        for name in ENDPOINTS:
            self.host.tell(leaving(name))
        gone = scheduler_sizes(self.host.scheduler)
        assert (gone.endpoints, gone.pools, gone.devices, gone.shelved, gone.starts) == (0, 0, 0, 0, 0)
        assert (gone.returns, gone.silences, gone.agenda) == (0, 0, 0)
        self.come_down_the_ladder()
        assert self.host.scheduler.next_wakeup() is None

    def come_down_the_ladder(self) -> None:
        for _ in range(400):
            wakeup = self.host.scheduler.next_wakeup()
            if wakeup is not None:
                self.host.tell(TimerFired(), Duration(max(0, wakeup - self.host.now)))


def late_word(request_id: str, number: int, kind: AttemptEnding | str) -> Event:
    match kind:
        case AttemptEnding():
            return AttemptEnded(RequestId(request_id), number, kind)
        case "token":
            return first_token(request_id, number)
        case "progress":
            return AttemptsProgressed((AttemptProgress(RequestId(request_id), number, tokens=1),))
        case _:
            return client_disconnected(request_id)


# Shrinking a failing example takes a long time.
TestScheduler = pytest.mark.timeout(600)(SchedulerMachine.TestCase)
TestScheduler = pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)(TestScheduler)
TestScheduler.settings = settings(
    max_examples=settings.default.max_examples,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
