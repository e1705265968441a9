"""What becomes of that which an earlier scheduler has begun?

Whoever holds a request reports it to a new scheduler, which goes on with it as if it had been its own from the start:
how long it has waited, by when it is wanted, how often it was tried and what it holds at an endpoint are as told.
Nothing is judged twice: a request that was let in stays in, however full the queue is and whatever its tenant's limits
say. Only what the present policy has no place for, or what its caller wants no longer, ends.

What it has taken of limits, budgets and turns is in the counters that the new scheduler began with, as far as these
were told after it; what came later is counted with the report, and with that of a request which has ended meanwhile.
"""

from dataclasses import replace
from typing import Final

from headgate.core.admission.budgets import Budgets
from headgate.core.admission.gate import Admitted, judge
from headgate.core.admission.limits import TenantLimits
from headgate.core.cost import cost_ns
from headgate.core.events import AttemptReported, Counted, RequestReported, RequestSettled
from headgate.core.prediction import Predictions
from headgate.core.queues import fair
from headgate.core.queues.bands import Backlog
from headgate.core.retry_budget import RetryBudget
from headgate.core.rules import Rules
from headgate.core.state import Attempt, Request
from headgate.model.policy import ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import Instant, ModelName, PoolName, after
from headgate.model.usage import Usage, UsageSource

_NOTHING: Final = Usage(0, 0, 0, UsageSource.ESTIMATED)


def waiting_again(told: RequestReported, admitted: Admitted, *, sequence: int, now: Instant) -> Request:
    """The request as it was when it was reported; it is yet to be measured."""
    arrived = _arrived(told, now)
    request = Request(told.ticket, admitted.service_class, admitted.pools, sequence=sequence, now=arrived)
    request.waited_ns, request.held_ns, request.attempt = told.waited_ns, told.held_ns, told.attempts
    _promise_anew(request)
    return request


def running_again(told: AttemptReported, rules: Rules, *, sequence: int, now: Instant) -> Request:
    """The request of an attempt, with the class, the pools and the model that it was sent with; yet to be measured."""
    verdict = judge(rules.without_gone_names(told.ticket), rules)
    admitted = verdict if isinstance(verdict, Admitted) else None
    service_class = _class_of(told, admitted, rules)
    pools = admitted.pools if admitted is not None and told.pool in admitted.pools else (told.pool,)
    request = Request(told.ticket, service_class, pools, sequence=sequence, now=_arrived(told, now))
    request.waited_ns, request.held_ns, request.level = told.waited_ns, told.held_ns, told.level
    if told.model is not None:
        request.model, request.fell_back = told.model, not told.level
    _promise_anew(request)
    return request


def _arrived(told: RequestReported | AttemptReported, now: Instant) -> Instant:
    if isinstance(told, RequestReported):
        age_ns = told.waited_ns if told.age_ns is None else told.age_ns
    else:
        age_ns = told.waited_ns + told.age_ns if told.request_age_ns is None else told.request_age_ns
    return Instant(now - age_ns)


def _class_of(told: AttemptReported, admitted: Admitted | None, rules: Rules) -> ServiceClass:
    """Its class, with the caps that it was sent with. What is in flight runs to its end even if its class is gone."""
    service_class = rules.classes.get(told.service_class)
    if service_class is None:
        last = max((each.band for each in rules.policy.classes), default=0)
        service_class = ServiceClass(told.service_class, last) if admitted is None else admitted.service_class
    return service_class if service_class.caps == told.caps else replace(service_class, caps=told.caps)


def _promise_anew(request: Request) -> None:
    """What its class promises counts from when it was held no longer."""
    if request.target is not None:
        request.target = after(request.target, request.held_ns)


class Arrears:
    """Counts what the counters do not have."""

    __slots__ = ("_backlog", "_budget", "_budgets", "_limits", "_predictions", "_rules")

    def __init__(
        self,
        rules: Rules,
        limits: TenantLimits,
        budget: RetryBudget,
        backlog: Backlog,
        predictions: Predictions,
        *,
        budgets: Budgets,
    ) -> None:
        self._rules = rules
        self._limits = limits
        self._budget = budget
        self._backlog = backlog
        self._predictions = predictions
        self._budgets = budgets

    def of_request(self, request: Request, told: RequestReported | AttemptReported, now: Instant) -> None:
        """It was let in."""
        ticket, known = request.ticket, told.counted is not Counted.NOTHING
        prompt_tokens, output_tokens = request.prompt_tokens, request.output_tokens
        self._limits.adopt(ticket, prompt_tokens, output_tokens, _arrived(told, now), now, counted=known)
        if not (isinstance(told, AttemptReported) and told.over):
            self._budgets.adopt(request, now)
        if not known and ticket.client_retries:
            self._budget.client_retry_before(ticket.tenant)

    def of_retries(self, request: Request, counted: Counted, now: Instant) -> None:
        """It waits to be tried again."""
        if request.attempt and counted is not Counted.SENT:
            pool, avoid = request.pools[0], request.avoid
            if avoid is not None and avoid.pool in request.pools:
                pool = avoid.pool
            self._budget.extras_before(request.ticket.tenant, pool, request.attempt, now)

    def of_attempt(self, request: Request, attempt: Attempt, told: AttemptReported, now: Instant) -> None:
        """It was sent, and maybe its request has ended."""
        ticket, pool = told.ticket, attempt.endpoint.pool
        if told.over:
            prompt_tokens = self._predictions.prompt_tokens_of_leaver(ticket, attempt.model)
            usage = Usage(prompt_tokens, told.tokens, 0, UsageSource.ESTIMATED)
            self._budgets.settled_before(told, usage, now)
        if told.counted is Counted.SENT:
            return
        self._backlog.settle(attempt.band, pool, attempt.account, attempt.charged)
        if told.hedge:
            self._budget.extras_before(ticket.tenant, pool, 1, now)
        elif told.attempt > 1 or request.fell_back:
            self._budget.extras_before(ticket.tenant, pool, max(1, told.attempt - 1), now)
        else:
            sent, client_retry = Instant(now - told.age_ns), ticket.client_retries > 0
            self._budget.first_attempt(ticket.tenant, pool, sent, client_retry=client_retry)

    # Of what has ended

    def of_settled(self, told: RequestSettled, now: Instant) -> None:
        """It was let in, maybe sent, and has ended."""
        ticket, pool, model = told.ticket, told.pool, told.model or told.ticket.model
        arrived, known = Instant(now - told.age_ns), told.counted is not Counted.NOTHING
        service_class = None if told.service_class is None else self._rules.classes.get(told.service_class)
        answers = _answers(ticket, service_class)
        predicted = self._predicted(ticket, model, answers)
        # What is not told of an answer that was whole was as predicted; of any other, nothing.
        usage = told.usage or (predicted if told.completed else _NOTHING)
        self._budgets.settled_before(told, usage, now)
        if told.counted is Counted.ENDED:
            return
        self._limits.adopt(ticket, predicted.prompt_tokens, predicted.output_tokens, arrived, now, counted=known)
        self._limits.attempt_ended(ticket.request_id, usage.prompt_tokens + usage.output_tokens, now)
        self._limits.request_ended(ticket.request_id, now, in_flight=False)
        if not known and ticket.client_retries:
            self._budget.client_retry_before(ticket.tenant)
        if service_class is not None and pool is not None:
            charged = predicted if told.counted is Counted.SENT else _NOTHING
            difference = self._price(pool, ticket, usage) - self._price(pool, ticket, charged)
            self._backlog.settle(service_class.band, pool, self._rules.account(ticket.tenant), difference)
        if pool is not None and told.counted is not Counted.SENT:
            self._count_attempts(pool, told, arrived, now)
        if told.completed and usage.source is UsageSource.ENGINE:
            most = ticket.output_most(None if service_class is None else service_class.caps.output_tokens)
            self._predictions.learn(ticket, model, usage, answers=answers, output_most=most)

    def _predicted(self, ticket: Ticket, model: ModelName, answers: int) -> Usage:
        prompt_tokens = self._predictions.prompt_tokens(ticket, model)
        output_tokens = answers * self._predictions.output_tokens(ticket, model)[0]
        return Usage(prompt_tokens, output_tokens, 0, UsageSource.ESTIMATED)

    def _price(self, pool: PoolName, ticket: Ticket, usage: Usage) -> int:
        """What its tenant is charged for so much at a pool."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        tokens, prompts = (usage.prompt_tokens, usage.output_tokens), ticket.prompts
        cost = cost_ns(self._rules.speed(pool), *tokens, cached=cached, prompts=prompts)
        return fair.charge(cost, self._rules.weight(self._rules.account(ticket.tenant)))

    def _count_attempts(self, pool: PoolName, told: RequestSettled, arrived: Instant, now: Instant) -> None:
        """When they were made nobody says: a first attempt as early as it may have been, extra ones as late."""
        ticket = told.ticket
        if told.attempts == 1 and told.model is None:
            self._budget.first_attempt(ticket.tenant, pool, arrived, client_retry=ticket.client_retries > 0)
        else:
            self._budget.extras_before(ticket.tenant, pool, max(1, told.attempts - 1), now)


def _answers(ticket: Ticket, service_class: ServiceClass | None) -> int:
    return ticket.answers(None if service_class is None else service_class.caps.n)
