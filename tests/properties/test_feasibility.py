"""Property tests for admission: admitted requests are served in time if predicted costs are exact.

Property 7: with exact costs, no admitted request expires unless a higher band, a newly backlogged tenant or a due
minimum share intervenes, or the speed falls. The test server serves one request at a time and takes exactly the
predicted time.

The estimated wait is a lower bound. The property therefore holds for requests that were admitted with some spare time:
the remaining time of the request in service, and one or two turns for each other tenant. For a single tenant it holds
exactly.
"""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.admission.feasibility import wait_ns
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, Event, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.policy import DegradationRules, Policy, RoutingRules
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Tenant
from headgate.model.units import MILLISECOND, Duration, Instant, RequestId, TenantId, after
from headgate.model.usage import Usage, UsageSource
from testing.builders import a_class, a_policy, a_pool, a_scheduler, arrived, at, duration, first_token

OUTPUT_TOKENS = 50
SPEED = EngineSpeed(step_ps=96 * 10**9, prefill_token_ps=10**8)
"""A response takes about 50 ms, and a prompt of 1,000 tokens about 100 ms."""
prompts = st.sampled_from([40, 400, 4_000, 12_000])
gaps = st.sampled_from([0, 0, 0, 20, 100, 400]).map(lambda ms: Duration(ms * MILLISECOND))

senders = st.sampled_from(["acme", "acme", "bolt", "coil"])


def policy(weights: dict[str, int], ttft: float) -> Policy:
    usual = a_class("interactive", band=1, queue_wait=600, caps=Caps(output_tokens=OUTPUT_TOKENS))
    classes = (replace(usual, ttft_ns=duration(ttft)), replace(usual, name="urgent", band=0, ttft_ns=None))
    tenants = tuple(Tenant(TenantId(name), weight=weight) for name, weight in weights.items())
    given_policy = a_policy(classes=classes, tenants=tenants, pools=(replace(a_pool("p"), speed=SPEED),))
    return replace(
        given_policy, degradation=DegradationRules(enabled=False), routing=RoutingRules(prefix_affinity=False)
    )


@dataclass
class LetIn:
    """State of a request when it arrives."""

    tenant: str
    spare_ns: int
    """Allowed queue wait minus predicted wait, in nanoseconds."""
    disturbed: bool = False
    """Whether a request in a higher band, or from a tenant without queued requests, arrived later."""


@dataclass
class Server:
    """Serves one request at a time, each for exactly the predicted time."""

    scheduler: Scheduler
    now: Instant = at(0)
    running: tuple[RequestId, int, Usage] | None = None
    free_at: Instant = at(0)
    cost_max: int = 0
    let_in: dict[RequestId, LetIn] = field(default_factory=dict)
    late: list[LetIn] = field(default_factory=list)
    served: int = 0
    refused: int = 0

    def pass_time(self, until: Instant) -> None:
        """Ends the request in service and wakes the scheduler whenever it is due."""
        while True:
            wakeup = self.scheduler.next_wakeup()
            moments = [self.free_at] if self.running is not None else []
            moments += [] if wakeup is None else [max(self.now, wakeup)]
            moment = min(moments, default=None)
            if moment is None or moment > until:
                break
            self.now = moment
            if self.running is not None and moment == self.free_at:
                request_id, number, usage = self.running
                self.running = None
                self.tell(first_token(request_id, number))
                self.tell(AttemptEnded(request_id, number, AttemptEnding.COMPLETED, usage=usage))
            else:
                self.tell(TimerFired())
        self.now = max(self.now, until)

    def arrive(self, name: str, tenant: str, prompt_bytes: int, *, urgent: bool = False) -> None:
        request_id, waiting = RequestId(name), self.waiting(tenant)
        service_class = "urgent" if urgent else "interactive"
        self.tell(arrived(name, tenant, service_class=service_class, prompt_bytes=prompt_bytes))
        request = self.scheduler._state.requests.by_id.get(request_id)
        if request is None:
            self.refused += 1
        elif urgent or not waiting:
            self.disturb(tenant, own=urgent)
        if request is not None and request.running is None:
            self.let_in[request_id] = LetIn(tenant, self.spare_ns(request_id))

    def waiting(self, tenant: str) -> bool:
        return any(
            each.running is None and each.ticket.tenant == tenant
            for each in self.scheduler._state.requests.by_id.values()
        )

    def disturb(self, tenant: str, *, own: bool) -> None:
        for each in self.let_in.values():
            each.disturbed = each.disturbed or own or each.tenant != tenant

    def spare_ns(self, request_id: RequestId) -> int:
        """Returns the spare time at arrival. The request does not count as waiting behind itself."""
        scheduler, request = self.scheduler, self.scheduler._state.requests.by_id[request_id]
        scheduler._state.queue.backlog.work.remove(request)
        wait = wait_ns(
            request,
            scheduler._state.queue.backlog,
            scheduler._state.fleet,
            scheduler._state.rules,
            threshold_ns=Duration(-1),
        )
        scheduler._state.queue.backlog.work.add(request)
        allowed = self.scheduler._state.queue.wait_ns_left(request, self.now)
        in_service = self.free_at - self.now if self.running is not None else 0
        return allowed - (wait or 0) - in_service

    def tell(self, event: Event) -> None:
        for command in self.scheduler.handle(event, self.now):
            self.obey(command)

    def obey(self, command: Command) -> None:
        if isinstance(command, Dispatch):
            request = self.scheduler._state.requests.by_id[command.request_id]
            usage = Usage(request.prompt_tokens, request.output_tokens, 0, UsageSource.ENGINE)
            assert self.running is None
            self.running = (command.request_id, command.attempt, usage)
            self.free_at = after(self.now, request.cost_ns)
            self.cost_max = max(self.cost_max, request.cost_ns)
            self.let_in.pop(command.request_id, None)
            self.served += 1
        elif isinstance(command, End) and command.outcome is Outcome.QUEUE_TIMEOUT:
            self.late.append(self.let_in.pop(command.request_id))


def serve(weights: dict[str, int], ttft: float, arrivals: list[tuple[str, int, Duration, bool]]) -> Server:
    server = Server(a_scheduler(policy=policy(weights, ttft)))
    for number, (tenant, prompt_bytes, gap, urgent) in enumerate(arrivals):
        server.pass_time(after(server.now, gap))
        server.arrive(f"r{number}", tenant, prompt_bytes, urgent=urgent)
    server.pass_time(after(server.now, duration(600)))
    assert not server.scheduler._state.requests.by_id
    return server


@given(ttft=st.sampled_from([0.5, 2, 5]), arrivals=st.lists(st.tuples(prompts, gaps), min_size=10, max_size=60))
def test_single_tenant_waits_as_long_as_predicted(ttft: float, arrivals: list[tuple[int, Duration]]) -> None:
    server = serve({"acme": 100}, ttft, [("acme", size, gap, False) for size, gap in arrivals])

    assert all(each.spare_ns <= 0 for each in server.late), "expired although it had spare time"


@given(
    weights=st.fixed_dictionaries({name: st.sampled_from([50, 100, 200]) for name in ("acme", "bolt", "coil")}),
    ttft=st.sampled_from([1, 3]),
    arrivals=st.lists(
        st.tuples(senders, prompts, gaps, st.sampled_from([False] * 9 + [True])),
        min_size=10,
        max_size=60,
    ),
)
def test_admitted_request_with_a_spare_turn_does_not_expire_if_undisturbed(
    weights: dict[str, int], ttft: float, arrivals: list[tuple[str, int, Duration, bool]]
) -> None:
    server = serve(weights, ttft, arrivals)

    # By property 4, other tenants get at most their share plus two of the largest requests, by weight.
    turns_ns = 2 * server.cost_max * sum(weights.values()) // min(weights.values())
    for each in server.late:
        assert each.disturbed or each.spare_ns < turns_ns, "expired although no other request intervened"


def test_burst_is_partly_rejected_and_the_rest_is_served() -> None:
    """A burst representing thirty seconds of work may wait for two seconds."""
    server = serve({"acme": 100}, 2, [("acme", 4_000, Duration(0), False)] * 200)

    assert server.refused > 100
    assert server.served >= 7
    assert len(server.late) <= 1
