"""Adoption of requests and attempts that an earlier scheduler started.

Gateways report their open requests to a new scheduler. The scheduler continues each request from its reported state:
wait time, deadline, number of attempts and capacity reserved on an endpoint. Admission checks are not repeated: an
admitted request stays admitted even if the queue is full or its tenant exceeds a limit. A request ends only if the
current policy cannot serve it or its caller is no longer waiting.

The snapshot that the new scheduler starts from includes all usage of limits and budgets and all fairness charges up to
the time it was taken. Later usage is added from the reports of open requests and of requests that have ended since the
snapshot.
"""

from dataclasses import replace
from typing import Final

from headgate.core.admission.budgets import Budgets
from headgate.core.admission.gate import Admitted, check_policy
from headgate.core.admission.limits import TenantLimits
from headgate.core.cost import cost_ns
from headgate.core.events import AttemptReported, CountedUpTo, RequestReported, RequestSettled
from headgate.core.prediction import Predictions
from headgate.core.queues import fair_queue
from headgate.core.queues.backlog import Backlog
from headgate.core.request_state import Attempt, Request
from headgate.core.retry_budget import RetryBudget
from headgate.core.rules import Rules
from headgate.model.policy import ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import Instant, ModelName, PoolName, after
from headgate.model.usage import Usage, UsageSource

_NO_USAGE: Final = Usage(0, 0, 0, UsageSource.ESTIMATED)


def adopt_queued(report: RequestReported, admitted: Admitted, *, sequence: int, now: Instant) -> Request:
    """Rebuilds a queued request from its report. Its length and cost are not yet estimated."""
    arrived = _arrival_time(report, now)
    request = Request(report.ticket, admitted.service_class, admitted.pools, sequence, arrived)
    request.waited_ns, request.held_ns, request.attempts_made = report.waited_ns, report.held_ns, report.attempts
    _shift_targets(request, arrived)
    return request


def adopt_running(report: AttemptReported, rules: Rules, *, sequence: int, now: Instant) -> Request:
    """Rebuilds the request of a running attempt with the class, pools and model that the attempt was sent with.

    Its length and cost are not yet estimated.
    """
    verdict = check_policy(rules.without_unknown_names(report.ticket), rules, report.route)
    admitted = verdict if isinstance(verdict, Admitted) else None
    service_class = _class_of(report, admitted, rules)
    pools = admitted.pools if admitted is not None and report.pool in admitted.pools else (report.pool,)
    arrived = _arrival_time(report, now)
    request = Request(report.ticket, service_class, pools, sequence, arrived)
    request.waited_ns, request.held_ns, request.level = report.waited_ns, report.held_ns, report.level
    request.route = report.route
    if report.model is not None:
        request.model, request.fell_back = report.model, not report.level
    _shift_targets(request, arrived)
    return request


def _arrival_time(report: RequestReported | AttemptReported, now: Instant) -> Instant:
    if isinstance(report, RequestReported):
        age_ns: int = report.waited_ns if report.age_ns is None else report.age_ns
    else:
        age_ns = report.waited_ns + report.age_ns if report.request_age_ns is None else report.request_age_ns
    return Instant(now - age_ns)


def _class_of(report: AttemptReported, admitted: Admitted | None, rules: Rules) -> ServiceClass:
    """Returns the request's class with the caps that the attempt was sent with.

    A running attempt continues even if its class is no longer in the policy.
    """
    service_class = rules.mirror_class(report.ticket) if report.ticket.mirror_route else None
    service_class = service_class or rules.classes.get(report.service_class)
    if service_class is None:
        last = max((each.band for each in rules.policy.classes), default=0)
        service_class = ServiceClass(report.service_class, last) if admitted is None else admitted.service_class
    return service_class if service_class.caps == report.caps else replace(service_class, caps=report.caps)


def _shift_targets(request: Request, arrived: Instant) -> None:
    """Extends the latency targets by the hold time, which does not count against the class objective."""
    if request.target is not None:
        request.target = after(request.target, request.held_ns)
    if request.e2e_target is not None:
        request.set_e2e_target(after(arrived, request.held_ns))


class CounterBackfill:
    """Adds usage that the snapshot does not include to the limits, budgets and fairness charges."""

    __slots__ = ("_backlog", "_budgets", "_limits", "_predictions", "_retry_budget", "_rules")

    def __init__(
        self,
        rules: Rules,
        limits: TenantLimits,
        retry_budget: RetryBudget,
        backlog: Backlog,
        predictions: Predictions,
        *,
        budgets: Budgets,
    ) -> None:
        self._rules = rules
        self._limits = limits
        self._retry_budget = retry_budget
        self._backlog = backlog
        self._predictions = predictions
        self._budgets = budgets

    def add_request(self, request: Request, report: RequestReported | AttemptReported, now: Instant) -> None:
        """Counts the admission of a request."""
        ticket, known = request.ticket, report.counted is not CountedUpTo.NOTHING
        prompt_tokens, output_tokens = request.prompt_tokens, request.output_tokens
        self._limits.adopt(ticket, prompt_tokens, output_tokens, _arrival_time(report, now), now, counted=known)
        if not (isinstance(report, AttemptReported) and report.request_ended):
            self._budgets.adopt(request, now)
        if not known and ticket.client_retries:
            self._retry_budget.backfill_client_retry(ticket.tenant)

    def add_retries(self, request: Request, counted: CountedUpTo, now: Instant) -> None:
        """Counts the attempts of a request that is queued for a retry."""
        if request.attempts_made and counted is not CountedUpTo.SENT:
            pool, avoid = request.pools[0], request.avoid
            if avoid is not None and avoid.pool in request.pools:
                pool = avoid.pool
            self._retry_budget.backfill_extras(request.ticket.tenant, pool, request.attempts_made, now)

    def add_attempt(self, request: Request, attempt: Attempt, report: AttemptReported, now: Instant) -> None:
        """Counts a sent attempt and, if its request has already ended, the usage of that request."""
        ticket, pool = report.ticket, attempt.endpoint.pool
        if report.request_ended:
            prompt_tokens = self._predictions.prompt_tokens_if_cancelled(ticket, attempt.model)
            usage = Usage(prompt_tokens, report.tokens, 0, UsageSource.ESTIMATED)
            self._budgets.backfill_settled(report, usage, now)
        if report.counted is CountedUpTo.SENT:
            return
        self._backlog.settle(attempt.band, pool, attempt.account, attempt.charged)
        if report.hedge:
            self._retry_budget.backfill_extras(ticket.tenant, pool, 1, now)
        elif report.attempt > 1 or request.fell_back:
            self._retry_budget.backfill_extras(ticket.tenant, pool, max(1, report.attempt - 1), now)
        else:
            sent, client_retry = Instant(now - report.age_ns), ticket.client_retries > 0
            self._retry_budget.first_attempt(ticket.tenant, pool, sent, client_retry=client_retry)

    # Requests that have ended

    def add_settled(self, report: RequestSettled, now: Instant) -> None:
        """Counts a request that has ended, and its attempts if it was sent."""
        ticket, pool, model = report.ticket, report.pool, report.model or report.ticket.model
        arrived, known = Instant(now - report.age_ns), report.counted is not CountedUpTo.NOTHING
        service_class = None if report.service_class is None else self._rules.classes.get(report.service_class)
        answers = _answers(ticket, service_class)
        predicted = self._predicted(ticket, model, answers)
        # If usage is unknown, a completed response is charged its predicted usage and any other response is charged
        # zero.
        usage = report.usage or (predicted if report.completed else _NO_USAGE)
        self._budgets.backfill_settled(report, usage, now)
        if report.counted is CountedUpTo.ENDED:
            return
        self._limits.adopt(ticket, predicted.prompt_tokens, predicted.output_tokens, arrived, now, counted=known)
        self._limits.attempt_ended(ticket.request_id, usage.prompt_tokens + usage.output_tokens, now)
        self._limits.request_ended(ticket.request_id, now, in_flight=False)
        if not known and ticket.client_retries:
            self._retry_budget.backfill_client_retry(ticket.tenant)
        if service_class is not None and pool is not None:
            charged = predicted if report.counted is CountedUpTo.SENT else _NO_USAGE
            difference = self._charge_for(pool, ticket, usage) - self._charge_for(pool, ticket, charged)
            self._backlog.settle(service_class.band, pool, self._rules.account(ticket.tenant), difference)
        if pool is not None and report.counted is not CountedUpTo.SENT:
            self._count_attempts(pool, report, arrived, now)
        if report.completed and usage.source is UsageSource.ENGINE:
            most = ticket.output_limit(None if service_class is None else service_class.caps.output_tokens)
            self._predictions.learn(ticket, model, usage, answers=answers, output_limit=most)

    def _predicted(self, ticket: Ticket, model: ModelName, answers: int) -> Usage:
        prompt_tokens = self._predictions.prompt_tokens(ticket, model)
        output_tokens = answers * self._predictions.output_tokens(ticket, model)[0]
        return Usage(prompt_tokens, output_tokens, 0, UsageSource.ESTIMATED)

    def _charge_for(self, pool: PoolName, ticket: Ticket, usage: Usage) -> int:
        """Returns the fairness charge for this usage in a pool."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        tokens, prompts = (usage.prompt_tokens, usage.output_tokens), ticket.prompts
        cost = cost_ns(self._rules.speed(pool), *tokens, cached=cached, prompts=prompts)
        return fair_queue.charge(cost, self._rules.weight(self._rules.account(ticket.tenant)))

    def _count_attempts(self, pool: PoolName, report: RequestSettled, arrived: Instant, now: Instant) -> None:
        """Counts the attempts of a request that has ended.

        Attempt times are not reported, so the first attempt is given the earliest possible time and extra attempts the
        latest.
        """
        ticket = report.ticket
        if report.attempts == 1 and report.model is None:
            self._retry_budget.first_attempt(ticket.tenant, pool, arrived, client_retry=ticket.client_retries > 0)
        else:
            self._retry_budget.backfill_extras(ticket.tenant, pool, max(1, report.attempts - 1), now)


def _answers(ticket: Ticket, service_class: ServiceClass | None) -> int:
    return ticket.answers(None if service_class is None else service_class.caps.n)
