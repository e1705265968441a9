"""Variants of the scheduler without one mechanism or with wrong predictions.

If the policy has a setting for the mechanism, the variant changes that setting. Otherwise the variant is a subclass of
the scheduler that changes private state, which is acceptable only in an experiment.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headgate.core.attempts import Attempts
from headgate.core.commands import Command
from headgate.core.events import EndpointJoined, Event
from headgate.core.prediction import MEAN_GUESS, P90_GUESS, Predictions
from headgate.core.queues.queue import Queue
from headgate.core.request_state import Attempt, Request
from headgate.core.routing.speed_estimator import SpeedEstimator
from headgate.core.scheduler import Scheduler
from headgate.model.policy import AdmissionRules, Policy
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, ModelName
from headgate.simulation.virtual.scenario import Decider

NEVER = 1_000_000_000
"""Percentage that is never reached."""


@dataclass(frozen=True, slots=True)
class Variation:
    policy: Callable[[Policy], Policy] = lambda policy: policy
    scheduler: Callable[[], Decider] = Scheduler


# ----------------------------------------------------------------------------------------- without one mechanism


class IgnoresDeadlines(Scheduler):
    """Sends requests that will miss their targets as long as the caller may still wait."""

    def __init__(self) -> None:
        super().__init__()
        state = self._state
        state.queue = DeadlineBlindQueue(state.rules, state.fleet, state.overload, state.timer_heap)
        state.attempts = Attempts(state.rules, state.fleet, state.queue.backlog, state.predictions, state.timer_heap)


class DeadlineBlindQueue(Queue):
    __slots__ = ()

    def wait_ns_left(self, request: Request, now: Instant) -> Duration:
        return Duration(max(0, request.service_class.queue_wait_ns_max - request.waited_ns))


class CountsRequests(Scheduler):
    """Charges every request the same amount."""

    def __init__(self) -> None:
        super().__init__()
        state = self._state
        state.attempts = FlatPriceAttempts(
            state.rules, state.fleet, state.queue.backlog, state.predictions, state.timer_heap
        )


class FlatPriceAttempts(Attempts):
    __slots__ = ()

    def _charge_for(self, attempt: Attempt, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> int:
        return 50_000_000


class ChargesPredictedCost(Scheduler):
    """Never corrects a tenant's predicted charges."""

    def __init__(self) -> None:
        super().__init__()
        state = self._state
        state.attempts = UnsettledAttempts(
            state.rules, state.fleet, state.queue.backlog, state.predictions, state.timer_heap
        )


class UnsettledAttempts(Attempts):
    __slots__ = ()

    def _correct_charge(self, attempt: Attempt, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> None:
        pass


class FixedLengths(Scheduler):
    """Does not learn response lengths."""

    def __init__(self) -> None:
        super().__init__()
        self._state.predictions = FixedPredictions()


class FixedPredictions(Predictions):
    __slots__ = ()

    def output_tokens(self, ticket: Ticket, model: ModelName) -> tuple[int, int]:
        return MEAN_GUESS, P90_GUESS


class FixedSpeeds(Scheduler):
    """Does not learn endpoint speeds."""

    def handle(self, event: Event, now: Instant) -> list[Command]:
        commands = super().handle(event, now)
        if isinstance(event, EndpointJoined):
            self._state.fleet.endpoints[event.endpoint.id].speed_estimator = FixedSpeed()
        return commands


class FixedSpeed(SpeedEstimator):
    __slots__ = ()

    def observe(
        self, *, decode_ns: int, prefill_ns: int, took_ns: int, prefill_pending: bool = False, late: bool = False
    ) -> bool:
        return False


def _headroom(**rules: int) -> Callable[[Policy], Policy]:
    return lambda policy: replace(policy, headroom=replace(policy.headroom, **rules))


def _classes(**settings: int) -> Callable[[Policy], Policy]:
    return lambda policy: replace(policy, classes=tuple(replace(each, **settings) for each in policy.classes))


def _without_deadline_check(policy: Policy) -> Policy:
    return replace(policy, admission=AdmissionRules(predicted_wait_percent_max=None))


WITHOUT: Mapping[str, Variation] = {
    "early rejection": Variation(_without_deadline_check),
    "expiry": Variation(scheduler=IgnoresDeadlines),
    "early rejection and expiry": Variation(_without_deadline_check, IgnoresDeadlines),
    "measured TPOT gate": Variation(_headroom(measured_tpot_percent=NEVER)),
    "predicted step time gate": Variation(_headroom(predicted_tpot_percent=NEVER)),
    "both TPOT gates": Variation(_headroom(measured_tpot_percent=NEVER, predicted_tpot_percent=NEVER)),
    "pending prefill gate": Variation(_headroom(pending_prefill_percent=NEVER)),
    "KV cache fit check": Variation(_headroom(kv_percent=NEVER)),
    "long lane": Variation(_headroom(long_lane_percent=NEVER)),
    "tenant fairness": Variation(lambda policy: replace(policy, fairness_depth=0)),
    "charging by engine time": Variation(scheduler=CountsRequests),
    "charge true-up": Variation(scheduler=ChargesPredictedCost),
    "priority bands": Variation(_classes(band=0)),
    "batch minimum share": Variation(_classes(min_share_percent=0)),
    "degradation": Variation(lambda policy: replace(policy, degradation=replace(policy.degradation, enabled=False))),
    "learned response lengths": Variation(scheduler=FixedLengths),
    "learned endpoint speeds": Variation(scheduler=FixedSpeeds),
}


# ------------------------------------------------------------------------------------------- with wrong predictions


def output_times(factor: float) -> Variation:
    """Scheduler that multiplies predicted response lengths by `factor`."""

    class Scaled(Predictions):
        __slots__ = ()

        def output_tokens(self, ticket: Ticket, model: ModelName) -> tuple[int, int]:
            mean, most = super().output_tokens(ticket, model)
            return max(1, round(mean * factor)), max(1, round(most * factor))

    class Mistaken(Scheduler):
        def __init__(self) -> None:
            super().__init__()
            state = self._state
            state.predictions = Scaled()
            state.attempts = Attempts(
                state.rules, state.fleet, state.queue.backlog, state.predictions, state.timer_heap
            )

    return Variation(scheduler=Mistaken)


def prefill_times(factor: float) -> Variation:
    """Policy that multiplies the prefill time per token by `factor`."""

    def changed(policy: Policy) -> Policy:
        pools = tuple(
            replace(each, speed=replace(each.speed, prefill_token_ps=round(each.speed.prefill_token_ps * factor)))
            for each in policy.pools
        )
        return replace(policy, pools=pools)

    return Variation(changed)


def all_times(factor: float) -> Variation:
    """Policy that multiplies all engine times by `factor`."""

    def changed(policy: Policy) -> Policy:
        names = ("step_ps", "prefill_token_ps", "decode_sequence_ps", "kv_token_ps", "attention_ps")
        pools = tuple(
            replace(
                each, speed=replace(each.speed, **{name: round(getattr(each.speed, name) * factor) for name in names})
            )
            for each in policy.pools
        )
        return replace(policy, pools=pools)

    return Variation(changed)


def combined(one: Variation, other: Variation) -> Variation:
    """Combines both policy changes with the first variation's scheduler."""
    return Variation(lambda policy: other.policy(one.policy(policy)), one.scheduler)
