"""What can the scheduler order?

The closed union of its answers. Each carries its reason, so that whoever observes can
explain every decision without asking the core.
"""

from dataclasses import field

from headgate.model.caps import Caps
from headgate.model.limits import LimitsLeft
from headgate.model.message import message
from headgate.model.money import Bill, BudgetLeft, NanoUsd
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
    """Time in our queue so far, over all attempts."""
    first_token_ns_max: Duration
    idle_ns_max: Duration
    total_ns_max: Duration
    caps: Caps
    """What the request may ask of the engine, at most."""
    reason: str
    level: int = 0
    """The ladder's level by which it was degraded; 0 where nothing was given up."""
    hedge: bool = False
    """Whether another attempt of the same request is under way: whichever speaks first is kept, the other aborted."""
    limits: LimitsLeft | None = None
    """What is left to its tenant; None where it has no limits."""
    model: ModelName | None = None
    """The model that serves it, where that is another than the one it asked for."""
    held_ns: Duration = Duration(0)
    """Of the time in our queue, what it was held for an endpoint to start."""
    costs: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    """The routing score of the endpoint: the name of each cost term that is not zero, and its nanoseconds. It explains
    the order and is no part of it: two that differ in nothing else are equal."""


@message
class Hold:
    """Its caller waits until an endpoint of this pool, which has none that takes work, has started."""

    request_id: RequestId
    pool: PoolName
    service_class: ClassName
    reason: str


@message
class Abort:
    """Stop this attempt; its `AttemptEnded` is still expected."""

    request_id: RequestId
    attempt: int
    endpoint_id: EndpointId
    reason: str


@message
class End:
    """The request is over, in this way. Nothing follows for it."""

    request_id: RequestId
    outcome: Outcome
    service_class: ClassName | None
    """None if it was refused before it had a class."""
    attempts: int
    waited_ns: Duration
    retry_after_ns: Duration | None
    reason: str
    limits: LimitsLeft | None = None
    """As in `Dispatch`; None also where the answer was whole."""
    held_ns: Duration = Duration(0)
    """As in `Dispatch`."""
    bills: tuple[Bill, ...] = ()
    """One for each attempt that was sent, in their order."""
    reserved: NanoUsd = NanoUsd(0)
    """What it was reckoned to cost at most when it was let in."""


@message
class BudgetCrossed:
    """Half of a budget, four fifths or all of it is spent."""

    budget: BudgetLeft
    percent: int
    """50, 80 or 100."""
    began: Instant | None = None
    """When the period began in which it is spent; None where nobody has told."""


@message
class Eject:
    """Nothing is sent to this endpoint until then."""

    endpoint_id: EndpointId
    until: Instant
    reason: str


@message
class Readmit:
    """This endpoint may serve again."""

    endpoint_id: EndpointId
    reason: str


Command = Dispatch | Hold | Abort | End | Eject | Readmit | BudgetCrossed
