"""Commands from the scheduler to its host.

Commands are a closed union. Each command that needs an explanation carries its reason, so observers can explain every
decision without querying the core.
"""

from dataclasses import field

from headgate.model.caps import Caps
from headgate.model.limits import LimitsLeft
from headgate.model.message import message
from headgate.model.money import Bill, BudgetStatus, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName, RequestId


@message
class Dispatch:
    """Send the request to this endpoint."""

    request_id: RequestId
    attempt: int
    endpoint_id: EndpointId
    pool: PoolName
    service_class: ClassName
    waited_ns: Duration
    """Total queue time so far, over all attempts."""
    first_token_ns_max: Duration
    idle_ns_max: Duration
    total_ns_max: Duration
    caps: Caps
    """Upper limits on the request's parameters."""
    reason: str
    level: int = 0
    """Degradation level applied to the request. 0 means not degraded."""
    hedge: bool = False
    """Whether another attempt of the same request is running. The first attempt to respond is kept and the other is
    aborted."""
    limits: LimitsLeft | None = None
    """Remaining rate limits of the tenant. None if the tenant has no limits."""
    model: ModelName | None = None
    """Model that serves the request. None if it is the requested model."""
    held_ns: Duration = Duration(0)
    """Part of the queue time spent on hold for an endpoint to start."""
    costs: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    """Cost terms of the endpoint's routing score that are not zero: name and nanoseconds. They explain the command but
    are ignored when commands are compared."""
    adapter: str = ""
    """LoRA adapter that serves the request, by its name in the engine. Empty without one."""
    route: str = ""
    """Route of the requested model. Empty if the model has no routes, none matches or a fallback model serves."""


@message
class Hold:
    """Keep the request on hold until an endpoint of this pool starts.

    The pool has no endpoint that accepts requests.
    """

    request_id: RequestId
    pool: PoolName
    service_class: ClassName
    reason: str


@message
class Abort:
    """Stop this attempt. `AttemptEnded` still follows."""

    request_id: RequestId
    attempt: int
    endpoint_id: EndpointId
    reason: str


@message
class End:
    """End the request with this outcome. No further command follows for it."""

    request_id: RequestId
    outcome: Outcome
    service_class: ClassName | None
    """None if the request was rejected before it was classified."""
    attempts: int
    waited_ns: Duration
    retry_after_ns: Duration | None
    reason: str
    limits: LimitsLeft | None = None
    """Remaining rate limits of the tenant. None if the tenant has no limits or the request completed."""
    held_ns: Duration = Duration(0)
    """Part of the queue time spent on hold for an endpoint to start."""
    bills: tuple[Bill, ...] = ()
    """One bill per attempt that was sent, in order."""
    reserved: NanoUsd = NanoUsd(0)
    """Maximum cost reserved at admission, in nano-dollars."""


@message
class BudgetCrossed:
    """Spending has reached 50, 80 or 100 percent of a budget."""

    budget: BudgetStatus
    percent: int
    """Threshold reached: 50, 80 or 100."""
    began: Instant | None = None
    """Start of the budget period. None if not yet known."""


@message
class Eject:
    """Send no requests to this endpoint until the given time."""

    endpoint_id: EndpointId
    until: Instant
    reason: str


@message
class Readmit:
    """Send requests to this endpoint again."""

    endpoint_id: EndpointId
    reason: str


Command = Dispatch | Hold | Abort | End | Eject | Readmit | BudgetCrossed
