"""How do tests say what a new scheduler is told of the time before it?"""

from headgate.core.counters import Counters
from headgate.core.events import AttemptReported, Counted, RequestReported, RequestSettled
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.policy import Policy
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName
from headgate.model.usage import Usage, UsageSource
from testing.builders import a_policy, arrived, at, lasting, policy_changed, told


def a_successor(
    counters: Counters | None = None, policy: Policy | None = None, *, now: Instant | None = None, ago: float = 0
) -> Scheduler:
    """A scheduler that goes on from these counters, told so many seconds ago; it knows no endpoint yet."""
    scheduler, moment = Scheduler(), at(0) if now is None else now
    told(scheduler, moment, policy_changed(policy or a_policy()))
    scheduler.restore(counters or Counters(), moment, told_ns_ago=lasting(ago))
    return scheduler


def waits(
    request: str,
    tenant: str = "acme",
    *,
    waited: float = 1,
    attempts: int = 0,
    age: float | None = None,
    held: float = 0,
    failed_at: str | None = None,
    counted: Counted = Counted.ARRIVAL,
    **ticket: object,
) -> RequestReported:
    """What is not named here is of its arrival."""
    return RequestReported(
        arrived(request, tenant, **ticket).ticket,  # type: ignore[arg-type]
        lasting(waited),
        attempts,
        age_ns=None if age is None else lasting(age),
        held_ns=lasting(held),
        failed_at=None if failed_at is None else EndpointId(failed_at),
        counted=counted,
    )


def runs(
    request: str,
    tenant: str = "acme",
    endpoint: str = "e1",
    *,
    attempt: int = 1,
    sent_ago: float = 1,
    began: bool = False,
    tokens: int = 0,
    waited: float = 0,
    pool: str = "p",
    service_class: str = "interactive",
    caps: Caps | None = None,
    level: int = 0,
    hedge: bool = False,
    model_used: str | None = None,
    held: float = 0,
    age: float | None = None,
    over: bool = False,
    let_go: bool = False,
    counted: Counted = Counted.SENT,
    **ticket: object,
) -> AttemptReported:
    """What is not named here is of its request's arrival."""
    return AttemptReported(
        arrived(request, tenant, **ticket).ticket,  # type: ignore[arg-type]
        attempt,
        EndpointId(endpoint),
        lasting(sent_ago),
        began,
        tokens,
        lasting(waited),
        PoolName(pool),
        ClassName(service_class),
        caps or Caps(),
        level=level,
        hedge=hedge,
        model=None if model_used is None else ModelName(model_used),
        held_ns=lasting(held),
        request_age_ns=None if age is None else lasting(age),
        over=over,
        let_go=let_go,
        counted=counted,
    )


def settled(
    request: str,
    tenant: str = "acme",
    *,
    attempts: int = 1,
    pool: str | None = "p",
    service_class: str | None = "interactive",
    tokens: tuple[int, int] | None = (10, 10),
    source: UsageSource = UsageSource.ENGINE,
    completed: bool = True,
    model_used: str | None = None,
    counted: Counted = Counted.NOTHING,
    age: float = 1,
    **ticket: object,
) -> RequestSettled:
    """`tokens` are those of its prompt and of its answer."""
    return RequestSettled(
        arrived(request, tenant, **ticket).ticket,  # type: ignore[arg-type]
        attempts,
        pool=None if pool is None else PoolName(pool),
        service_class=None if service_class is None else ClassName(service_class),
        usage=None if tokens is None else Usage(*tokens, cached_tokens=0, source=source),
        completed=completed,
        model=None if model_used is None else ModelName(model_used),
        counted=counted,
        age_ns=Duration(lasting(age)),
    )
