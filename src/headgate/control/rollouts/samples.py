"""Observer that measures the two sides of each rollout, from the scheduler's events.

A request counts for the route on which it was last sent. A request that no endpoint of its route could serve counts as
an error of that route, even if a fallback model served it, and so does one of which an attempt failed. The latencies of
requests that another model served are left out. Attempts at an overflow provider do not count for the route. Memory is
bounded: only open requests of models with a rollout are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headgate.control.rollouts.comparison import MeanOfLogs, Proportion
from headgate.core.admission.gate import Admitted, check_policy
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, Event, FirstToken, PolicyChanged, RequestArrived
from headgate.core.rules import Rules
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import ClassName, Instant, ModelName, RequestId

OPEN_MAX: Final = 100_000
"""Maximum number of open requests measured. Others are not."""
_FAILURES: Final = frozenset(
    {Outcome.ENGINE_ERROR, Outcome.ENGINE_TIMEOUT, Outcome.NO_ENDPOINTS, Outcome.QUEUE_TIMEOUT}
    | {Outcome.DEADLINE_EXCEEDED, Outcome.EVICTED}
)
_QUEUE_FAILURES: Final = (Outcome.NO_ENDPOINTS, Outcome.QUEUE_TIMEOUT)
"""Outcomes of requests that their own pools did not serve, even if an attempt elsewhere failed before."""
_FAILED_ATTEMPTS: Final = (AttemptEnding.FAILED, AttemptEnding.TIMEOUT)


@dataclass(slots=True)
class RouteSamples:
    """Measurements of the requests of one route."""

    ttft_ns: MeanOfLogs = field(default_factory=MeanOfLogs)
    """Time from arrival to the first token of streamed responses."""
    tpot_ns: MeanOfLogs = field(default_factory=MeanOfLogs)
    """Mean time per output token after the first."""
    cost_nano_usd: MeanOfLogs = field(default_factory=MeanOfLogs)
    """Cost of each completed request that has one."""
    errors: Proportion = field(default_factory=Proportion)
    missed: Proportion = field(default_factory=Proportion)
    """Completed streams that missed a target of their class."""


@dataclass(slots=True)
class _OpenRequest:
    ticket: Ticket
    arrived_at: Instant
    route: str = ""
    service_class: ClassName | None = None
    first_token_at: Instant | None = None
    tokens: int = 0
    failed: bool = False
    other_model: bool = False
    """Whether another model served the request, as a fallback or because of overload."""
    overflowed: bool = False
    """Whether the last attempt was sent to an overflow provider, which has no route."""


class RolloutSamples:
    """Measurements by model and route, since `watch` was called for the model."""

    def __init__(self, *, open_max: int = OPEN_MAX) -> None:
        self._open_max = open_max
        self._rules: Rules | None = None
        self._watched: dict[ModelName, dict[str, RouteSamples]] = {}
        self._open: dict[RequestId, _OpenRequest] = {}

    def watch(self, model: ModelName, routes: Sequence[str], kept: Sequence[str] = ()) -> None:
        """Starts new measurements of a model, except for the routes in `kept`."""
        before = self._watched.get(model, {})
        self._watched[model] = {
            name: before[name] if name in kept and name in before else RouteSamples() for name in routes
        }

    def forget(self, model: ModelName) -> None:
        if self._watched.pop(model, None) is not None:
            self._open = {name: each for name, each in self._open.items() if each.ticket.model != model}

    def of(self, model: ModelName) -> Mapping[str, RouteSamples]:
        return self._watched.get(model, {})

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if type(event) is PolicyChanged:
            self._rules = Rules(event.policy, event.hash)
        if not self._watched:
            return
        if type(event) is RequestArrived:
            ticket = event.ticket
            if ticket.model in self._watched and not ticket.mirror_route and len(self._open) < self._open_max:
                self._open[ticket.request_id] = _OpenRequest(ticket, now)
        elif type(event) is FirstToken:
            self._first_token(event.request_id, now)
        elif type(event) is AttemptEnded:
            self._attempt_ended(event, now)
        for command in commands:
            if type(command) is Dispatch:
                self._dispatched(command)
            elif type(command) is End:
                self._ended(command, now)

    def _dispatched(self, command: Dispatch) -> None:
        if (found := self._open.get(command.request_id)) is not None:
            found.service_class, found.other_model = command.service_class, command.model is not None
            found.route = command.route or found.route
            found.overflowed = not (command.route or found.other_model)
            if found.other_model and not command.route:
                # A fallback: no endpoint of the route could serve the request.
                found.failed = True

    def _first_token(self, request_id: RequestId, now: Instant) -> None:
        found = self._open.get(request_id)
        if found is not None and found.ticket.stream and found.first_token_at is None:
            found.first_token_at = now

    def _attempt_ended(self, event: AttemptEnded, now: Instant) -> None:
        if event.first_token:
            self._first_token(event.request_id, now)
        if (found := self._open.get(event.request_id)) is None:
            return
        if event.ending in _FAILED_ATTEMPTS:
            found.failed = found.failed or not found.overflowed
        elif event.ending is AttemptEnding.COMPLETED and event.usage is not None:
            found.tokens = event.usage.output_tokens

    def _ended(self, end: End, now: Instant) -> None:
        if (found := self._open.pop(end.request_id, None)) is None:
            return
        if found.overflowed and not found.failed and end.outcome not in _QUEUE_FAILURES:
            return
        route = found.route
        if not route and (end.outcome in _FAILURES or found.failed):
            route = self._route_of(found.ticket)
        side = self._watched.get(found.ticket.model, {}).get(route)
        if side is None or (end.outcome not in _FAILURES and end.outcome is not Outcome.COMPLETED):
            return
        side.errors.add(hit=found.failed or end.outcome in _FAILURES)
        if end.outcome is Outcome.COMPLETED and not found.overflowed:
            cost = sum(each.nano_usd for each in end.bills)
            side.cost_nano_usd.add(cost)
            if not found.other_model:
                self._add_latencies(side, found, now)

    def _add_latencies(self, side: RouteSamples, found: _OpenRequest, now: Instant) -> None:
        rules, first_at = self._rules, found.first_token_at
        of_class = None if rules is None or found.service_class is None else rules.classes.get(found.service_class)
        late: list[bool] = []
        if of_class is not None and of_class.e2e_ns is not None:
            late.append(now - found.arrived_at > of_class.e2e_ns)
        if first_at is not None:
            ttft_ns, tpot_ns = first_at - found.arrived_at, 0.0
            side.ttft_ns.add(ttft_ns)
            if found.tokens > 1:
                tpot_ns = (now - first_at) / (found.tokens - 1)
                side.tpot_ns.add(tpot_ns)
            if of_class is not None and of_class.ttft_ns is not None:
                late.append(ttft_ns > of_class.ttft_ns)
            if of_class is not None and of_class.tpot_ns is not None:
                late.append(tpot_ns > of_class.tpot_ns)
        if late:
            side.missed.add(hit=any(late))

    def _route_of(self, ticket: Ticket) -> str:
        """Returns the route of a request that was never sent."""
        if self._rules is None:
            return ""
        verdict = check_policy(ticket, self._rules)
        return verdict.route if isinstance(verdict, Admitted) else ""
