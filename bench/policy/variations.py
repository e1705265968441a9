"""What is the scheduler without one of its parts, or with a wrong idea of something?

Where the policy has a rule for it the rule is moved out of the way; for the rest there are schedulers that leave it
out. They reach into the scheduler, which only an experiment may.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headgate.core.attempts import Attempts
from headgate.core.commands import Command
from headgate.core.events import EndpointJoined, Event
from headgate.core.prediction import MEAN_GUESS, NINETIETH_GUESS, Predictions
from headgate.core.queues.queue import Queue
from headgate.core.routing.learning import Learned
from headgate.core.scheduler import Scheduler
from headgate.core.state import Attempt, Request
from headgate.model.policy import AdmissionRules, Policy
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, ModelName
from headgate.simulation.virtual.scenario import Decider

NEVER = 1_000_000_000
"""A percentage that nothing reaches."""


@dataclass(frozen=True, slots=True)
class Variation:
    policy: Callable[[Policy], Policy] = lambda policy: policy
    scheduler: Callable[[], Decider] = Scheduler


# ----------------------------------------------------------------------------------------- without one of its parts


class ComputesDeadWork(Scheduler):
    """Sends what can no longer be in time, as long as its caller may still wait."""

    def __init__(self) -> None:
        super().__init__()
        state = self._state
        state.queue = Hopeful(state.rules, state.fleet, state.overload, state.agenda)
        state.attempts = Attempts(state.rules, state.fleet, state.queue.backlog, state.predictions, state.agenda)


class Hopeful(Queue):
    __slots__ = ()

    def patience(self, request: Request, now: Instant) -> Duration:
        return Duration(max(0, request.service_class.queue_wait_ns_max - request.waited_ns))


class CountsRequests(Scheduler):
    """Charges tenants the same for each request, whatever it takes."""

    def __init__(self) -> None:
        super().__init__()
        state = self._state
        state.attempts = OnePrice(state.rules, state.fleet, state.queue.backlog, state.predictions, state.agenda)


class OnePrice(Attempts):
    __slots__ = ()

    def _price(self, attempt: Attempt, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> int:
        return 50_000_000


class NeverTruesUp(Scheduler):
    """Leaves tenants charged with what was predicted."""

    def __init__(self) -> None:
        super().__init__()
        state = self._state
        state.attempts = Unsettled(state.rules, state.fleet, state.queue.backlog, state.predictions, state.agenda)


class Unsettled(Attempts):
    __slots__ = ()

    def _charge(self, attempt: Attempt, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> None:
        pass


class GuessesLengths(Scheduler):
    """Learns nothing of how long answers are."""

    def __init__(self) -> None:
        super().__init__()
        self._state.predictions = Guesses()


class Guesses(Predictions):
    __slots__ = ()

    def output_tokens(self, ticket: Ticket, model: ModelName) -> tuple[int, int]:
        return MEAN_GUESS, NINETIETH_GUESS


class BelievesSpeeds(Scheduler):
    """Learns nothing of how fast endpoints are."""

    def handle(self, event: Event, now: Instant) -> list[Command]:
        commands = super().handle(event, now)
        if isinstance(event, EndpointJoined):
            self._state.fleet.endpoints[event.endpoint.id].learned = Unmoved()
        return commands


class Unmoved(Learned):
    __slots__ = ()

    def observe(
        self, *, decode_ns: int, prefill_ns: int, took_ns: int, half_done: bool = False, late: bool = False
    ) -> bool:
        return False


def _headroom(**rules: int) -> Callable[[Policy], Policy]:
    return lambda policy: replace(policy, headroom=replace(policy.headroom, **rules))


def _classes(**settings: int) -> Callable[[Policy], Policy]:
    return lambda policy: replace(policy, classes=tuple(replace(each, **settings) for each in policy.classes))


def _waits_and_sees(policy: Policy) -> Policy:
    return replace(policy, admission=AdmissionRules(certainty_percent=None))


WITHOUT: Mapping[str, Variation] = {
    "refusal at arrival of what would be late": Variation(_waits_and_sees),
    "expiry of what can no longer be in time": Variation(scheduler=ComputesDeadWork),
    "both of them": Variation(_waits_and_sees, ComputesDeadWork),
    "gate by measured time per token": Variation(_headroom(measured_percent=NEVER)),
    "gate by predicted step": Variation(_headroom(predicted_percent=NEVER)),
    "both gates by time per token": Variation(_headroom(measured_percent=NEVER, predicted_percent=NEVER)),
    "gate by pending prompts": Variation(_headroom(pending_percent=NEVER)),
    "fit into the KV cache": Variation(_headroom(kv_percent=NEVER)),
    "lane for long prompts": Variation(_headroom(long_percent=NEVER)),
    "fairness between tenants": Variation(lambda policy: replace(policy, fairness_depth=0)),
    "charges in engine time (by requests)": Variation(scheduler=CountsRequests),
    "true-up of charges": Variation(scheduler=NeverTruesUp),
    "bands": Variation(_classes(band=0)),
    "floor of batch": Variation(_classes(floor_percent=0)),
    "ladder": Variation(lambda policy: replace(policy, ladder=replace(policy.ladder, enabled=False))),
    "learned lengths": Variation(scheduler=GuessesLengths),
    "learned speeds": Variation(scheduler=BelievesSpeeds),
}


# ---------------------------------------------------------------------------------------------------- with a wrong idea


def output_times(factor: float) -> Variation:
    """Takes answers for so many times as long as they are."""

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
            state.attempts = Attempts(state.rules, state.fleet, state.queue.backlog, state.predictions, state.agenda)

    return Variation(scheduler=Mistaken)


def prefill_times(factor: float) -> Variation:
    """Is told that prompts take so many times as long as they do."""

    def changed(policy: Policy) -> Policy:
        pools = tuple(
            replace(each, speed=replace(each.speed, prefill_token_ps=round(each.speed.prefill_token_ps * factor)))
            for each in policy.pools
        )
        return replace(policy, pools=pools)

    return Variation(changed)


def all_times(factor: float) -> Variation:
    """Is told that everything takes so many times as long as it does."""

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


def together(one: Variation, other: Variation) -> Variation:
    """The policy of both, and the scheduler of the first."""
    return Variation(lambda policy: other.policy(one.policy(policy)), one.scheduler)
