"""What does the scheduler remember of a request that has not ended?

These records are mutable and slotted for speed; they never leave the core.
"""

from headgate.core.deadlines import Deadline, deadlines
from headgate.core.engine_time import Stay
from headgate.core.events import AttemptEnding
from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.model.fault import FaultOrigin
from headgate.model.money import NanoUsd
from headgate.model.policy import ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, ModelName, PoolName, RequestId, TenantId, after

Kind = tuple[tuple[PoolName, ...], int, bool]
"""Where a request may go, its band, and whether its prompt is long."""
NEVER = Instant(2**63)
TRUE_UP_TOKENS = 64
"""Charges and promises are corrected when an answer is so much longer than was thought."""


class Attempt:
    """One place taken at one endpoint, from `Dispatch` to `AttemptEnded`.

    It outlives its request when the request ends first: the place is free only when the
    relay says so.
    """

    __slots__ = (
        "account",
        "answers",
        "band",
        "began",
        "charged",
        "computed",
        "computed_at",
        "ending",
        "endpoint",
        "excuse",
        "heard_at",
        "left_with",
        "let_go",
        "model",
        "number",
        "output_most",
        "reports_tokens",
        "reservation",
        "stay",
        "streaming",
        "ticket",
        "tokens",
        "tokens_charged",
        "used",
    )

    def __init__(self, endpoint: EndpointRecord, *, number: int, reservation: Reservation, now: Instant) -> None:
        self.endpoint = endpoint
        self.number = number
        self.reports_tokens = False
        """Whether its tokens are reported as they come: always for a stream; for an answer that is delivered whole,
        from its first token on if its engine streams it."""
        self.reservation = reservation
        self.began = False
        """Whether its first token has come."""
        self.computed = False
        """Whether its prompt has been computed, or should have been where nothing is heard of it."""
        self.computed_at = now
        self.left_with: tuple[int, int, int] | None = None
        """The values of `used` when its caller left or its caller's deadline passed; None for all other attempts."""
        self.streaming = False
        """Whether it has, and more follow one by one."""
        self.tokens = 0
        """What it has produced, as far as was told."""
        self.heard_at = now
        self.let_go = False
        """Whether another attempt of its request spoke first: how this one ends says nothing."""
        self.excuse: FaultOrigin | None = None
        """The origin that was blamed instead of the endpoint, until the request is answered elsewhere."""
        self.charged = 0
        """What its tenant has been charged for it, in this band."""
        self.band = 0
        self.tokens_charged = 0
        """The length of the answer that the charge is for."""
        self.ticket: Ticket
        self.account = TenantId("")
        self.model = ModelName("")
        self.answers = 1
        """The number of answers to all prompts together."""
        self.output_most: int | None = None
        """The largest number of tokens of each answer."""
        self.stay: Stay
        """Its part of its endpoint's time."""
        self.ending: AttemptEnding | None = None
        """None while it is in flight."""
        self.used: tuple[int, int, int] = (0, 0, 0)
        """Tokens of the prompt, of these the cached ones, and of the answer, once it has ended."""

    def so_far(self) -> tuple[int, int, int]:
        """As `used`, of one that is in flight. Of a prompt that is being computed nothing is known to have been."""
        if self.left_with is not None:
            return self.left_with
        promised = self.reservation
        return (promised.prompt_tokens, promised.cached_tokens, self.tokens) if self.began else (0, 0, self.tokens)

    def produced(self, tokens: int, now: Instant) -> int:
        """Notes what has come. Answers with how much more KV cache it must be promised."""
        self.tokens += tokens
        self.heard_at = now
        promised = self.reservation
        lacking = promised.prompt_tokens + self.tokens - promised.kv_tokens
        if lacking <= 0:
            return 0
        more = lacking + TRUE_UP_TOKENS
        self.reservation = promised._replace(kv_tokens=promised.kv_tokens + more)
        return more


class Request:
    """One request from its arrival to its end: either queued or in flight."""

    __slots__ = (
        "account",
        "answers",
        "attempt",
        "avoid",
        "beyond_target",
        "cached_tokens",
        "cost_ns",
        "deadline",
        "deadline_of_whole",
        "due",
        "excluded",
        "fell_back",
        "first_token",
        "hashes",
        "hedge",
        "held_ns",
        "hold",
        "kind",
        "level",
        "long",
        "member_line",
        "model",
        "out_of_reach",
        "output_tokens",
        "output_tokens_most",
        "pools",
        "pressing",
        "prompt_tokens",
        "queued_since",
        "reserved",
        "running",
        "sequence",
        "service_class",
        "shed_rank",
        "soonest_ns",
        "spent",
        "standing",
        "target",
        "ticket",
        "waited_ns",
    )

    def __init__(
        self, ticket: Ticket, service_class: ServiceClass, pools: tuple[PoolName, ...], *, sequence: int, now: Instant
    ) -> None:
        self.ticket = ticket
        self.service_class = service_class
        self.pools = pools
        self.model = ticket.model
        """Whose pools these are."""
        self.fell_back = False
        """Whether they are of a model that its own falls back to, as an extra attempt there."""
        self.sequence = sequence
        self.queued_since = now
        self.waited_ns = Duration(0)
        self.hold: PoolName | None = None
        """Among whose held requests it is counted while it is queued; None where it counts in its class's queue."""
        self.held_ns = Duration(0)
        """Of the time that it waited, what it was held for an endpoint to start."""
        self.attempt = 0
        """How many attempts have been made."""
        self.first_token = False
        self.reserved = NanoUsd(0)
        """What it was reckoned to cost at most when it was let in."""
        self.running: Attempt | None = None
        """None while it is queued."""
        self.hedge: Attempt | None = None
        """A second attempt, made while the other is silent. Whichever speaks first is the one that runs."""
        self.spent: tuple[Attempt, ...] = ()
        """Those of its attempts that have ended."""
        self.avoid: EndpointRecord | None = None
        """Where its last attempt failed."""
        self.excluded: EndpointRecord | None = None
        """The same as routing last took it: None if no other endpoint takes work."""
        self.out_of_reach: tuple[EndpointRecord, ...] = ()
        """The endpoints that its member stayed away from when routing last looked; none if no other accepts work."""
        self.member_line = ""
        """Its member, as long as that stays away from an endpoint and the request waits in a separate line; else
        empty."""
        self.deadline: Deadline | None
        """The caller's deadline that counts at the moment."""
        self.deadline_of_whole: Deadline | None
        """The one that counts once the first token is out."""
        self.deadline, self.deadline_of_whole = deadlines(ticket, now)
        self.target: Instant | None = None
        """By when its answer should begin, by its class."""
        if ticket.stream and service_class.ttft_ns is not None:
            self.target = after(now, service_class.ttft_ns)
        self.due = min(
            NEVER if self.target is None else self.target, NEVER if self.deadline is None else self.deadline.at
        )
        """By its class or its caller, whichever is earlier: the order inside a tenant."""
        self._unmeasured()

    def _unmeasured(self) -> None:
        """What is predicted of it once its class and its pools are known."""
        self.account = self.ticket.tenant
        """Whose turns it takes: its tenant, or the level of the tenant's path at which turns are counted."""
        self.long = False
        """Whether its prompt is long enough to keep an endpoint from all others."""
        self.kind: Kind = (self.pools, self.service_class.band, False)
        """With whom its work is counted while it waits."""
        self.hashes: tuple[int, ...] = ()
        """Of its prompt's beginning, each reaching further than the one before; none where nobody looks at them."""
        self.prompt_tokens = 1
        self.cached_tokens = 0
        """What of its prompt some endpoint of its first pool probably holds."""
        self.answers = 1
        """How many its prompt is to be given."""
        self.output_tokens = 1
        """What they are predicted to have together, on the mean."""
        self.output_tokens_most = 1
        """What nine in ten such answers do not exceed."""
        self.cost_ns = Duration(0)
        """The engine time it is predicted to take."""
        self.soonest_ns = Duration(0)
        """How long its first token takes at a busy endpoint of its pool that has headroom, if it has a target."""
        self.beyond_target = False
        """Whether no engine of its pool could begin in time for the default target of its class, even at once."""
        self.level = 0
        """The ladder's level by which something was taken from it."""
        self.shed_rank: int | None = None
        """Its rank among those that arrive; None while load shedding has not compared it."""
        self.standing = 0
        """By plan and share; the higher, the sooner the ladder refuses."""
        self.pressing = 0
        """What it adds to the pressure while it waits."""

    @property
    def begin_ns_max(self) -> Duration | None:
        """The time to first token by which overload is measured: of its class, or its queue wait if beyond that."""
        service_class = self.service_class
        return service_class.queue_wait_ns_max if self.beyond_target else service_class.ttft_ns

    def in_flight(self) -> tuple[Attempt, ...]:
        """Its attempts under way, less those that were let go."""
        return tuple(each for each in (self.running, self.hedge) if each is not None)

    def goes_by(self, request_id: RequestId, number: int) -> bool:
        """Whether this is one of its attempts under way."""
        return request_id == self.ticket.request_id and number in [each.number for each in self.in_flight()]

    def beside(self, attempt: Attempt) -> Attempt | None:
        """The other one of two attempts under way."""
        return self.hedge if attempt is self.running else self.running
