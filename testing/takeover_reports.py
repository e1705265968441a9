"""Builders for the reports that a new scheduler receives about earlier requests."""

from headgate.core.counters import Counters
from headgate.core.events import AttemptReported, CountedUpTo, RequestReported, RequestSettled
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.policy import Policy
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName
from headgate.model.usage import Usage, UsageSource
from testing.builders import a_policy, arrived, at, commands_for, duration, policy_changed


def a_successor(
    counters: Counters | None = None, policy: Policy | None = None, *, now: Instant | None = None, ago: float = 0
) -> Scheduler:
    """A scheduler without endpoints, restored from counters that were reported `ago` seconds earlier."""
    scheduler, moment = Scheduler(), at(0) if now is None else now
    commands_for(scheduler, moment, policy_changed(policy or a_policy()))
    scheduler.restore(counters or Counters(), moment, snapshot_age_ns=duration(ago))
    return scheduler


def waiting_report(
    request: str,
    tenant: str = "acme",
    *,
    waited: float = 1,
    attempts: int = 0,
    age: float | None = None,
    held: float = 0,
    failed_at: str | None = None,
    counted: CountedUpTo = CountedUpTo.ARRIVAL,
    **ticket: object,
) -> RequestReported:
    """Report a waiting request. The other fields are the same as for `arrived`."""
    return RequestReported(
        arrived(request, tenant, **ticket).ticket,  # type: ignore[arg-type]
        duration(waited),
        attempts,
        age_ns=None if age is None else duration(age),
        held_ns=duration(held),
        failed_at=None if failed_at is None else EndpointId(failed_at),
        counted=counted,
    )


def running_report(
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
    counted: CountedUpTo = CountedUpTo.SENT,
    **ticket: object,
) -> AttemptReported:
    """Report a running attempt. The other fields are the same as for `arrived`."""
    return AttemptReported(
        arrived(request, tenant, **ticket).ticket,  # type: ignore[arg-type]
        attempt,
        EndpointId(endpoint),
        duration(sent_ago),
        began,
        tokens,
        duration(waited),
        PoolName(pool),
        ClassName(service_class),
        caps or Caps(),
        level=level,
        hedge=hedge,
        model=None if model_used is None else ModelName(model_used),
        held_ns=duration(held),
        request_age_ns=None if age is None else duration(age),
        request_ended=over,
        superseded=let_go,
        counted=counted,
    )


def settlement(
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
    counted: CountedUpTo = CountedUpTo.NOTHING,
    age: float = 1,
    **ticket: object,
) -> RequestSettled:
    """Report a finished request. `tokens` is the number of prompt tokens and output tokens."""
    return RequestSettled(
        arrived(request, tenant, **ticket).ticket,  # type: ignore[arg-type]
        attempts,
        pool=None if pool is None else PoolName(pool),
        service_class=None if service_class is None else ClassName(service_class),
        usage=None if tokens is None else Usage(*tokens, cached_tokens=0, source=source),
        completed=completed,
        model=None if model_used is None else ModelName(model_used),
        counted=counted,
        age_ns=Duration(duration(age)),
    )
