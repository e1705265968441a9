"""Mutable state of open requests and their attempts.

The classes are slotted for speed and never leave the core.
"""

from headgate.core.cost import first_token_on_busy_endpoint_ns
from headgate.core.deadlines import Deadline, deadlines
from headgate.core.engine_time import AttemptTime
from headgate.core.events import AttemptEnding
from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.core.timers import NEVER
from headgate.model.fault import FaultOrigin
from headgate.model.money import NanoUsd
from headgate.model.policy import ServiceClass
from headgate.model.speed import EngineSpeed
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Ticket
from headgate.model.units import Duration, Instant, PoolName, RequestId, after

WorkKey = tuple[tuple[PoolName, ...], int, bool]
"""Pools of a request, its priority band, and whether its prompt is long."""
_NO_TIME = Duration(0)
_NO_COST = NanoUsd(0)
TRUE_UP_TOKENS = 64
"""Number of tokens by which a response may exceed its charge or reservation before the two are corrected."""


class Attempt:
    """One occupied slot on one endpoint, from `Dispatch` to `AttemptEnded`.

    An attempt can outlive its request, because the slot is not free until the relay reports that the attempt has ended.
    """

    __slots__ = (
        "account",
        "adapter",
        "answers",
        "band",
        "charged",
        "ending",
        "endpoint",
        "engine_time",
        "first_token",
        "last_progress_at",
        "model",
        "number",
        "other_origin",
        "output_limit",
        "prefilled",
        "prefilled_at",
        "reports_tokens",
        "reservation",
        "sent_at",
        "streaming",
        "superseded",
        "ticket",
        "tokens",
        "tokens_charged",
        "tokens_used",
        "usage_at_cancel",
    )

    def __init__(
        self, request: "Request", endpoint: EndpointRecord, number: int, reservation: Reservation, now: Instant
    ) -> None:
        self.endpoint = endpoint
        self.number = number
        self.ticket = ticket = request.ticket
        self.reports_tokens = ticket.stream
        """Whether tokens are reported as they arrive. Always true for a stream. For a non-streaming response, true from
        the first token on if the engine streams it."""
        self.reservation = reservation
        self.first_token = False
        """Whether the first token has arrived."""
        self.prefilled = False
        """Whether the prefill has ended, or should have ended if the first token is not reported."""
        self.sent_at = self.prefilled_at = now
        self.usage_at_cancel: tuple[int, int, int] | None = None
        """Values for `tokens_used` if the client disconnected or the deadline passed. None for all other attempts."""
        self.streaming = False
        """Whether the attempt counts as a stream in progress on its endpoint."""
        self.tokens = 0
        """Tokens reported so far."""
        self.last_progress_at = now
        self.superseded = False
        """Whether another attempt of the request responded first. If so, the end of this attempt is ignored."""
        self.other_origin: FaultOrigin | None = None
        """Fault origin other than the endpoint. Reset when another endpoint serves the request."""
        self.charged = 0
        """Fairness charge for this attempt in its priority band."""
        self.band = request.service_class.band
        self.tokens_charged = request.output_tokens
        """Response length that the charge is based on, in tokens."""
        self.account = request.account
        self.model = request.model
        self.adapter = request.adapter
        self.answers = request.answers
        """Total number of completions over all prompts."""
        self.output_limit = request.output_limit
        """Maximum tokens of each completion. None if unlimited."""
        self.engine_time: AttemptTime
        """The attempt's share of its endpoint's time."""
        self.ending: AttemptEnding | None = None
        """None while the attempt is in flight."""
        self.tokens_used: tuple[int, int, int] = (0, 0, 0)
        """Prompt tokens, cached prompt tokens and output tokens. Set when the attempt has ended."""

    def tokens_so_far(self) -> tuple[int, int, int]:
        """Returns the current values of `tokens_used` for an attempt in flight.

        A prompt is counted only after the first token.
        """
        if self.usage_at_cancel is not None:
            return self.usage_at_cancel
        promised = self.reservation
        return (
            (promised.prompt_tokens, promised.cached_tokens, self.tokens) if self.first_token else (0, 0, self.tokens)
        )

    def record_response_time(self, now: Instant) -> None:
        """Measures how long a response without generated tokens took, compared with the prediction."""
        if self.ticket.api in APIS_WITHOUT_OUTPUT:
            endpoint, promised = self.endpoint, self.reservation
            speed = endpoint.settings.speed
            predicted_ns = first_token_on_busy_endpoint_ns(speed, promised.prompt_tokens, promised.cached_tokens)
            endpoint.response_times.learn(measured_ns=now - self.sent_at, predicted_ns=predicted_ns)

    def add_tokens(self, tokens: int, now: Instant) -> int:
        """Records new tokens and returns how many more KV-cache tokens to reserve."""
        self.tokens += tokens
        self.last_progress_at = now
        promised = self.reservation
        lacking = promised.prompt_tokens + self.tokens - promised.kv_tokens
        if lacking <= 0:
            return 0
        more = lacking + TRUE_UP_TOKENS
        self.reservation = promised.with_kv_tokens(promised.kv_tokens + more)
        return more


class Request:
    """One request, from arrival until it ends, either queued or in flight."""

    __slots__ = (
        "account",
        "adapter",
        "added_pressure",
        "answers",
        "attempts_made",
        "avoid",
        "cached_tokens",
        "completion_deadline",
        "cost_ns",
        "deadline",
        "due",
        "e2e_ns",
        "e2e_target",
        "excluded",
        "fell_back",
        "finished_attempts",
        "first_token",
        "hashes",
        "hedge",
        "held_for",
        "held_ns",
        "isolated_member",
        "later_tokens_ns",
        "level",
        "long_prompt",
        "model",
        "output_limit",
        "output_tokens",
        "output_tokens_p90",
        "overflow_note",
        "overflow_pools",
        "overflow_reason",
        "pools",
        "prompt_tokens",
        "queued_since",
        "reserved",
        "route",
        "running",
        "sequence",
        "service_class",
        "service_ns",
        "session_visits",
        "shed_rank",
        "sheddability",
        "speed",
        "target",
        "target_infeasible",
        "ticket",
        "ttft_ns_min",
        "uncached_reservation",
        "unreachable_endpoints",
        "waited_ns",
        "work_key",
    )

    def __init__(
        self, ticket: Ticket, service_class: ServiceClass, pools: tuple[PoolName, ...], sequence: int, now: Instant
    ) -> None:
        self.ticket = ticket
        self.service_class = service_class
        self.pools = pools
        self.model = ticket.model
        """Model whose pools serve the request."""
        self.fell_back = self.first_token = False
        """Whether the request was moved to a fallback model, which counts as an extra attempt there, and whether its
        first token has arrived."""
        self.sequence = sequence
        self.queued_since = now
        self.waited_ns = _NO_TIME
        self.held_for: PoolName | None = None
        """Pool whose first endpoint the request is held for.

        None if the request counts toward its class's queue limit.
        """
        self.held_ns = _NO_TIME
        """Part of the queue time spent on hold for an endpoint to start."""
        self.attempts_made = 0
        """Number of attempts made."""
        self.reserved = _NO_COST
        """Maximum cost reserved at admission, in nano-dollars."""
        self.running: Attempt | None = None
        """Running attempt. None while the request is queued."""
        self.hedge: Attempt | None = None
        """Second attempt, sent while the first is silent. The first to respond becomes `running`."""
        self.finished_attempts: tuple[Attempt, ...] = ()
        """Finished attempts."""
        self.avoid: EndpointRecord | None = None
        """Endpoint of the last failed attempt."""
        self.excluded: EndpointRecord | None = None
        """Last value of `avoid` that routing applied. None if no other endpoint accepts requests."""
        self.unreachable_endpoints: tuple[EndpointRecord, ...] = ()
        """Endpoints that the request's member could not reach when routing last ran. Empty if no other endpoint accepts
        requests."""
        self.isolated_member = ""
        """Member in whose separate queue the request waits, because the member cannot reach some endpoint.

        Empty for other requests.
        """
        self.deadline: Deadline | None
        """The caller's deadline that currently applies."""
        self.completion_deadline: Deadline | None
        """Deadline that applies after the first token."""
        if ticket.first_token_ns_left is None and ticket.completion_ns_left is None:
            self.deadline = self.completion_deadline = None
        else:
            self.deadline, self.completion_deadline = deadlines(ticket, now)
        self.target: Instant | None = None
        """Latest time for the first token according to the class."""
        if ticket.stream and service_class.ttft_ns is not None:
            self.target = after(now, service_class.ttft_ns)
        self.due = NEVER if self.target is None else self.target
        if self.deadline is not None and self.deadline.at < self.due:
            self.due = self.deadline.at
        """Earlier of the class target and the caller's deadline. It determines the order of a tenant's requests."""
        self._reset_estimates(now)

    def _reset_estimates(self, now: Instant) -> None:
        """Initialises the values that are estimated once the class and the pools are known."""
        self.account = self.ticket.tenant
        """Fairness account: the tenant, or the level of the tenant's path at which fair shares are counted."""
        self.overflow_note = ""
        """Part of the dispatch reason about overflow. Empty if the model has no overflow or it did not matter."""
        self.overflow_pools: tuple[PoolName, ...] = ()
        """Overflow pools for which the request waits as well as for its own pools. Empty if it may not overflow yet."""
        self.overflow_reason = ""
        """Why the request could overflow on arrival. Empty if it could not, or may overflow because it has waited."""
        self.route = ""
        """Route of the requested model that selected the pools. Empty if none did."""
        self.long_prompt = False
        """Whether the prompt counts as long (`HeadroomRules.long_prompt_tokens`)."""
        self.work_key: WorkKey = (self.pools, self.service_class.band, False)
        """Key under which queued work is summed."""
        self.adapter = ""
        """LoRA adapter that serves the request, by its name in the engines. Empty without one."""
        self.hashes: tuple[int, ...] = ()
        """Rolling hashes of the prompt prefix at increasing lengths. Empty if prefix routing is off."""
        self.session_visits: tuple[tuple[EndpointRecord, int], ...] = ()
        """Endpoints that served the request's session last, each with the prompt tokens that it has seen and that the
        prefix index does not know."""
        self.prompt_tokens = 1
        self.cached_tokens = 0
        """Prompt tokens that an endpoint of the first pool probably has in its prefix cache."""
        self.answers = 1
        """Total number of completions over all prompts."""
        self.output_limit: int | None = None
        """Maximum tokens of each completion. None if unlimited."""
        self.output_tokens = 1
        """Predicted mean of the total tokens over all completions."""
        self.output_tokens_p90 = 1
        """Predicted 90th percentile of the total tokens over all completions."""
        self.cost_ns = _NO_TIME
        """Predicted engine time."""
        self.speed: EngineSpeed | None = None
        """Engine speed that `cost_ns` is based on."""
        self.uncached_reservation: Reservation | None = None
        """Reservation without a prefix-cache hit, when routing last ran."""
        self.ttft_ns_min = self.service_ns = self.later_tokens_ns = _NO_TIME
        """Time to first token on a busy endpoint that has headroom, or 0 if the request has no TTFT target. Predicted
        time from dispatch to the end of the response and the part of it after the first token, or 0 if the request has
        no e2e target."""
        self.target_infeasible = False
        """Whether no engine of the pool could meet the class's default target, even without queueing."""
        self.e2e_ns: Duration | None = None
        """Time from arrival to the end of the response according to the class, or according to the caller if that is
        shorter, and `e2e_target`, the resulting time. None if the class has no e2e target."""
        self.e2e_target: Instant | None = None
        self._reset_ranks()
        if self.service_class.e2e_ns is not None:
            self.set_e2e_target(now)

    def _reset_ranks(self) -> None:
        """Initialises the values that matter under overload."""
        self.level = 0
        """Degradation level applied to the request."""
        self.shed_rank: int | None = None
        """Rank among arriving requests. None until load shedding has ranked the request."""
        self.sheddability = 0
        """Sheddability by plan and fair share. The higher the value, the earlier degradation rejects the request."""
        self.added_pressure = 0
        """The request's contribution to the pressure while it is queued, in millionths."""

    def set_e2e_target(self, start: Instant) -> None:
        """Sets the e2e target of the class, counted from this time. The caller's deadline does not move."""
        self.e2e_ns, self.e2e_target, deadline = self.service_class.e2e_ns, None, self.completion_deadline
        if self.e2e_ns is None:
            return
        self.e2e_target = after(start, self.e2e_ns)
        if deadline is not None and deadline.at < self.e2e_target:
            self.e2e_ns, self.e2e_target = deadline.allowed_ns, deadline.at

    def set_service_time(self, service_ns: Duration, later_tokens_ns: Duration) -> None:
        """Sets the predicted time on an endpoint, and the part of it after the first token. Updates the due time."""
        self.service_ns, self.later_tokens_ns = service_ns, later_tokens_ns
        self.due = NEVER if self.target is None else self.target
        if self.deadline is not None and self.deadline.at < self.due:
            self.due = self.deadline.at
        if self.e2e_target is not None and self.e2e_target - later_tokens_ns < self.due:
            self.due = Instant(self.e2e_target - later_tokens_ns)

    @property
    def overload_ttft_ns(self) -> Duration | None:
        """Time to first token used to measure overload.

        The maximum queue wait applies if the class target cannot be met. An e2e target leaves the time for the first
        token that the rest of the response does not need.
        """
        service_class = self.service_class
        ttft_ns = service_class.queue_wait_ns_max if self.target_infeasible else service_class.ttft_ns
        if self.e2e_ns is None:
            return ttft_ns
        in_time = Duration(self.e2e_ns - self.later_tokens_ns)
        return in_time if ttft_ns is None or in_time < ttft_ns else ttft_ns

    def in_flight(self) -> tuple[Attempt, ...]:
        """Returns the running attempts, excluding superseded ones."""
        return tuple(each for each in (self.running, self.hedge) if each is not None)

    def has_attempt_in_flight(self, request_id: RequestId, number: int) -> bool:
        """Returns whether this is one of the request's running attempts."""
        return request_id == self.ticket.request_id and number in [each.number for each in self.in_flight()]

    def other_attempt(self, attempt: Attempt) -> Attempt | None:
        """Returns the request's other running attempt, if any."""
        return self.hedge if attempt is self.running else self.running
