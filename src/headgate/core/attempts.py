"""What is under way at the endpoints, and what has it taken?

An attempt holds its place, and what it was promised, from `Dispatch` to `AttemptEnded`; it outlives its request where
the request ends first. Its tenant is charged what it is predicted to take when it is sent, more as soon as its answer
turns out to be much longer, and the truth when it has ended, from which predictions are learned. That is what turns are
counted by; what it has had of its endpoint's time is measured beside it (`engine_time`).
"""

from collections.abc import Sequence
from typing import Final

from headgate.core.alarms import Agenda, Alarms
from headgate.core.commands import Abort, Command
from headgate.core.cost import cost_ns
from headgate.core.engine_time import answer_ps, prompt_ps
from headgate.core.events import AttemptEnded, AttemptEnding, AttemptReported, Counted, Progressed
from headgate.core.prediction import Predictions
from headgate.core.queues import fair
from headgate.core.queues.bands import Backlog
from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.least_seconds import promise
from headgate.core.routing.occupancy import Heard
from headgate.core.rules import Rules
from headgate.core.state import TRUE_UP_TOKENS, Attempt, Request
from headgate.model.ticket import WITHOUT_OUTPUT
from headgate.model.units import Instant, RequestId, after
from headgate.model.usage import Usage, UsageSource

_PS_PER_NS: Final = 1_000
_SHORT_SHARE: Final = 16
"""A prompt that makes up no more than a sixteenth of a step holds up nobody, and is not worth an alarm."""


class Attempts:
    """Every place taken at an endpoint."""

    __slots__ = ("_backlog", "_fleet", "_occupancy", "_predictions", "_rules", "_whole", "by_number", "prefills")

    def __init__(self, rules: Rules, fleet: Fleet, backlog: Backlog, predictions: Predictions, agenda: Agenda) -> None:
        self._rules = rules
        self._fleet = fleet
        self._occupancy = fleet.occupancy
        self._backlog = backlog
        self._predictions = predictions
        self.by_number: dict[tuple[RequestId, int], Attempt] = {}
        self.prefills: Alarms[RequestId] = Alarms(agenda)
        """When the prompts of answers that come whole should have been computed."""
        self._whole: dict[RequestId, Attempt] = {}
        """The latest attempt at each of these."""

    def __len__(self) -> int:
        return len(self.by_number)

    def change_rules(self, rules: Rules, backlog: Backlog) -> None:
        self._rules, self._backlog = rules, backlog

    def get(self, request_id: RequestId, number: int) -> Attempt | None:
        return self.by_number.get((request_id, number))

    def open(self, request: Request, endpoint: EndpointRecord, promised: Reservation, now: Instant) -> Attempt:
        """Takes a place for the request, and charges its tenant."""
        ticket = request.ticket
        request.attempt += 1
        attempt = Attempt(endpoint, number=request.attempt, reservation=promised, now=now)
        attempt.reports_tokens = ticket.stream
        attempt.ticket, attempt.model, attempt.band = ticket, request.model, request.service_class.band
        attempt.account, attempt.answers = request.account, request.answers
        attempt.output_most = ticket.output_most(request.service_class.caps.output_tokens)
        attempt.tokens_charged = request.output_tokens
        attempt.charged = self._price(attempt, promised.prompt_tokens, request.output_tokens, promised.cached_tokens)
        self.by_number[ticket.request_id, request.attempt] = attempt
        self._begin_stay(attempt, now)
        self._occupancy.occupy(endpoint, promised, request.hashes)
        turnover = self._fleet.pools[endpoint.pool].turnover
        turnover.take(attempt, now, cost_ns=request.cost_ns, places=promised.places, tenant=ticket.tenant)
        if not ticket.stream:
            self._watch_prefill(attempt, now)
        return attempt

    def _begin_stay(self, attempt: Attempt, now: Instant) -> None:
        """From now on the attempt is charged for a share of its endpoint's time."""
        promised, endpoint, ticket = attempt.reservation, attempt.endpoint, attempt.ticket
        speed, prompts = endpoint.terms.speed, ticket.prompts
        adds_ps = prompt_ps(speed, promised.prompt_tokens, promised.cached_tokens, prompts=prompts)
        attempt.stay = endpoint.time.begin(adds_ps, now, sequences=promised.places)

    def _watch_prefill(self, attempt: Attempt, now: Instant) -> None:
        """Sees to it that the prompt of an answer that comes whole is taken for computed; a short one at once."""
        computed_at = _computed_at(attempt, now)
        if computed_at <= now:
            self._computed(attempt, now)
        else:
            self._await_prefill(attempt, computed_at)

    def _await_prefill(self, attempt: Attempt, computed_at: Instant) -> None:
        self._whole[attempt.ticket.request_id] = attempt
        self.prefills.set(attempt.ticket.request_id, computed_at)

    def adopt(self, request: Request, endpoint: EndpointRecord, told: AttemptReported, now: Instant) -> Attempt:
        """Takes the place of an attempt that another scheduler sent; its tenant has been charged for it, or will be."""
        ticket, sent = told.ticket, Instant(now - told.age_ns)
        request.attempt = max(request.attempt, told.attempt)
        promised = _grown(promise(request, endpoint, self._fleet), told.tokens)
        attempt = Attempt(endpoint, number=told.attempt, reservation=promised, now=sent)
        attempt.reports_tokens = ticket.stream or told.tokens > 0
        attempt.ticket, attempt.model, attempt.band = ticket, request.model, request.service_class.band
        attempt.account, attempt.answers, attempt.let_go = request.account, request.answers, told.let_go
        attempt.output_most = ticket.output_most(request.service_class.caps.output_tokens)
        attempt.tokens, attempt.tokens_charged = told.tokens, request.output_tokens
        if told.tokens >= request.output_tokens + TRUE_UP_TOKENS:
            attempt.tokens_charged = told.tokens
        if not told.let_go or told.counted is Counted.SENT:
            cached = promised.cached_tokens
            attempt.charged = self._price(attempt, promised.prompt_tokens, attempt.tokens_charged, cached)
        self.by_number[ticket.request_id, told.attempt] = attempt
        # Who is leaving takes no more work, so what it holds of a prompt is of no use to anybody.
        self._occupancy.occupy(endpoint, promised, () if endpoint.leaving else request.hashes)
        self._begin_stay(attempt, now)
        self._go_on(attempt, told, sent=sent, now=now)
        return attempt

    def _go_on(self, attempt: Attempt, told: AttemptReported, *, sent: Instant, now: Instant) -> None:
        """Notes how far it is already."""
        # The tokens of an answer that is delivered whole are reported before the answer begins to reach its caller.
        attempt.began, computed_at = told.first_token or told.tokens > 0, _computed_at(attempt, sent)
        attempt.computed = attempt.began or (not attempt.reports_tokens and computed_at <= now)
        attempt.computed_at = min(computed_at, now)
        self._occupancy.went_on(attempt.endpoint, attempt.reservation, tokens=told.tokens, computed=attempt.computed)
        self._reckon_age(attempt, told, now)
        if told.over:
            # The report has no reason for the end of the request; in nearly all cases its caller left.
            self.leave(attempt, now)
        if attempt.began:
            attempt.heard_at = now
            self.began(attempt, now)
        elif not attempt.reports_tokens and not attempt.computed:
            self._await_prefill(attempt, computed_at)

    def _reckon_age(self, attempt: Attempt, told: AttemptReported, now: Instant) -> None:
        """What it has had of its endpoint's time is not known here, but how old it is and how far."""
        promised, time = attempt.reservation, attempt.endpoint.time
        speed, output_ps = attempt.endpoint.terms.speed, 0
        if attempt.computed:
            adds_ps = _answer_ps(attempt)
            time.compute(attempt.stay, adds_ps, now)
            output_ps = adds_ps * (told.tokens or attempt.tokens_charged)
        if told.over:
            time.count_late(attempt.stay)
        else:
            prompts, cached = attempt.ticket.prompts, promised.cached_tokens
            input_ps = speed.prefill_ps(promised.prompt_tokens, cached=cached, prompts=prompts)
            time.adopt(attempt.stay, told.age_ns, input_ps=input_ps, output_ps=output_ps)

    # While it runs

    def began(self, attempt: Attempt, now: Instant) -> None:
        """Its first token has come."""
        if not attempt.began:
            attempt.began = True
            attempt.heard_at = now
            attempt.endpoint.service.served(attempt.ticket, attempt.model, now)
            self._computed(attempt, now)
        if attempt.reports_tokens and not attempt.streaming:
            attempt.streaming = True
            self._occupancy.began_stream(attempt.endpoint, now)

    def began_undelivered(self, attempt: Attempt, now: Instant) -> None:
        """Records the first token of an answer that the engine streams and the caller gets whole."""
        attempt.reports_tokens = True
        self.began(attempt, now)

    def prefilled(self, now: Instant) -> None:
        """Marks prompts of answers that come whole as computed, unless their first token was reported earlier."""
        for request_id in self.prefills.take():
            self._computed(self._whole[request_id], now)

    def _computed(self, attempt: Attempt, now: Instant) -> None:
        """Its prompt keeps nobody waiting any more."""
        if not attempt.computed:
            attempt.computed, attempt.computed_at = True, now
            attempt.endpoint.time.compute(attempt.stay, _answer_ps(attempt), now)
            self._occupancy.began(attempt.endpoint, attempt.reservation)

    def progressed(self, event: Progressed, now: Instant) -> None:
        heard: dict[EndpointRecord, Heard] = {}
        for report in event.attempts:
            attempt = self.by_number.get((report.request_id, report.attempt))
            if attempt is None:
                continue
            if (of_endpoint := heard.get(attempt.endpoint)) is None:
                of_endpoint = heard[attempt.endpoint] = Heard(late=event.late)
            if report.tokens:
                # A report without tokens means that the caller does not read; it is no evidence about the engine.
                of_endpoint.attempts += 1
                of_endpoint.tokens += report.tokens
                of_endpoint.took_ns += now - attempt.heard_at
                attempt.endpoint.service.served(attempt.ticket, attempt.model, now)
            of_endpoint.kv_tokens_more += attempt.produced(report.tokens, now)
            if attempt.tokens >= attempt.tokens_charged + TRUE_UP_TOKENS:
                promised = attempt.reservation
                self._charge(attempt, promised.prompt_tokens, attempt.tokens, promised.cached_tokens)
        for endpoint, of_endpoint in heard.items():
            self._occupancy.progressed(endpoint, of_endpoint, now)

    # The end

    def leave(self, attempt: Attempt, now: Instant) -> None:
        """Records the work that is charged to the tenant after its caller has left.

        A prompt counts in full once its computation has begun, since an engine does not stop in the middle of it. Its
        number of tokens follows from the larger of two rates, because the tenant's own requests determine one of them.
        """
        promised, tokens = attempt.reservation, attempt.tokens
        if attempt.computed and not attempt.reports_tokens:
            tokens = max(tokens, _tokens_unheard(attempt, now))
        predicted = self._predictions.prompt_tokens_of_leaver(attempt.ticket, attempt.model)
        prompt_tokens = max(promised.prompt_tokens, predicted)
        # The cached share of the prompt stays the same.
        cached_tokens = promised.cached_tokens * prompt_tokens // promised.prompt_tokens
        attempt.left_with = (prompt_tokens, cached_tokens, tokens)

    def ended(self, attempt: Attempt, request: Request | None, event: AttemptEnded, now: Instant) -> int:
        """Frees its place and settles its account; how many tokens it was. Its request may have ended before."""
        request_id, attempt.ending = event.request_id, event.ending
        if event.ending is AttemptEnding.COMPLETED:
            attempt.endpoint.service.served(attempt.ticket, attempt.model, now)
        if request is not None:
            request.spent = (*request.spent, attempt)
        attempt.endpoint.time.end(attempt.stay, now)
        # The time after which a caller left is no evidence of how long other requests keep their places.
        served = event.ending is AttemptEnding.COMPLETED
        self._fleet.pools[attempt.endpoint.pool].turnover.give_back(attempt, now, served=served)
        del self.by_number[request_id, attempt.number]
        if self._whole.get(request_id) is attempt:
            del self._whole[request_id]
            self.prefills.clear(request_id)
        self._occupancy.vacate(
            attempt.endpoint,
            attempt.reservation,
            tokens=attempt.tokens,
            began=attempt.computed,
            streaming=attempt.streaming,
        )
        return self._settle(attempt, event)

    def _settle(self, attempt: Attempt, event: AttemptEnded) -> int:
        """Charges what the attempt has truly taken, and learns from it."""
        promised = attempt.reservation
        prompt_tokens, cached_tokens = (promised.prompt_tokens, promised.cached_tokens) if attempt.began else (0, 0)
        output_tokens = attempt.tokens
        if event.usage is not None and event.usage.source is UsageSource.ENGINE:
            prompt_tokens, output_tokens = event.usage.prompt_tokens, event.usage.output_tokens
            cached_tokens = min(event.usage.cached_tokens, prompt_tokens)
            if event.ending is AttemptEnding.COMPLETED:
                self._learn(attempt, event.usage)
        elif attempt.left_with is not None:
            prompt_tokens, cached_tokens, output_tokens = attempt.left_with
            output_tokens = max(output_tokens, attempt.tokens)
        elif event.ending is AttemptEnding.COMPLETED:
            # An engine that does not count serves nobody for nothing: what is not told was as predicted.
            prompt_tokens, cached_tokens = promised.prompt_tokens, promised.cached_tokens
            output_tokens = attempt.tokens or attempt.tokens_charged
        self._charge(attempt, prompt_tokens, output_tokens, cached_tokens)
        attempt.used = (prompt_tokens, cached_tokens, output_tokens)
        return prompt_tokens + output_tokens

    def _learn(self, attempt: Attempt, usage: Usage) -> None:
        ticket, answers, most = attempt.ticket, attempt.answers, attempt.output_most
        self._predictions.learn(ticket, attempt.model, usage, answers=answers, output_most=most)

    def of(self, request: Request) -> Sequence[Attempt]:
        """All attempts of a request that are known here, in flight or not, in their order."""
        if request.running is None and request.attempt == len(request.spent) == 1:
            return request.spent
        names = [(request.ticket.request_id, number) for number in range(1, request.attempt + 1)]
        in_flight = [self.by_number[name] for name in names if name in self.by_number]
        return sorted((*request.spent, *in_flight), key=_number)

    def _charge(self, attempt: Attempt, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> None:
        """Corrects what its tenant has been charged for an attempt."""
        # What was done beside the attempt that answered is not its tenant's doing.
        charge = 0 if attempt.let_go else self._price(attempt, prompt_tokens, output_tokens, cached_tokens)
        self._backlog.settle(attempt.band, attempt.endpoint.pool, attempt.account, charge - attempt.charged)
        attempt.charged, attempt.tokens_charged = charge, output_tokens

    def _price(self, attempt: Attempt, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> int:
        """What its tenant is to be charged for so much at its endpoint. What the engine held already is free."""
        speed, prompts = attempt.endpoint.terms.speed, attempt.ticket.prompts
        cost = cost_ns(speed, prompt_tokens, output_tokens, cached=cached_tokens, prompts=prompts)
        return fair.charge(cost, self._rules.weight(attempt.account))


def abort(request: Request, attempt: Attempt, reason: str, out: list[Command]) -> None:
    """Tells the host to stop an attempt, whose end is still to be reported."""
    out.append(Abort(request.ticket.request_id, attempt.number, attempt.endpoint.id, reason))


def _number(attempt: Attempt) -> int:
    return attempt.number


def _answer_ps(attempt: Attempt) -> int:
    """What it adds to a step once its prompt is computed."""
    speed, prompt_tokens = attempt.endpoint.terms.speed, attempt.reservation.prompt_tokens
    return answer_ps(speed, prompt_tokens, attempt.tokens_charged, answers=attempt.answers)


def _tokens_unheard(attempt: Attempt, now: Instant) -> int:
    """Estimated tokens so far of an answer that comes whole: one token per answer and step."""
    if attempt.ticket.api in WITHOUT_OUTPUT:
        return 0
    endpoint, promised, answers = attempt.endpoint, attempt.reservation, attempt.answers
    held, speed = endpoint.shared, endpoint.terms.speed
    step_ps = speed.decode_ps(held.in_flight + held.foreign, kv_tokens=held.kv_used + held.kv_foreign)
    steps = (now - attempt.computed_at) * _PS_PER_NS * 100 // max(1, step_ps * endpoint.learned.decode_percent)
    most = promised.kv_tokens - promised.prompt_tokens
    return min(answers * steps, most if attempt.output_most is None else answers * attempt.output_most)


def _computed_at(attempt: Attempt, sent: Instant) -> Instant:
    """When its prompt should have been computed, if its first token will not say so: a short one at once."""
    promised, endpoint = attempt.reservation, attempt.endpoint
    if _SHORT_SHARE * promised.prompt_tokens <= endpoint.terms.speed.chunk_tokens:
        return sent
    return after(sent, endpoint.first_token_ns(promised))


def _grown(promised: Reservation, tokens: int) -> Reservation:
    """What is promised to an answer that has come so far already."""
    lacking = promised.prompt_tokens + tokens - promised.kv_tokens
    return promised if lacking <= 0 else promised._replace(kv_tokens=promised.kv_tokens + lacking + TRUE_UP_TOKENS)
