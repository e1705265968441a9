"""Which step does a rollout take next? Pure: the state, the measurements and the time determine the decision.

A rollout moves traffic between two routes of one group. Its state is an operator override (`rollout`), so all gateways
apply the same weights, and the next scheduler continues from the same step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from headgate.control.rollouts.comparison import Interval, difference, ratio
from headgate.control.rollouts.samples import RouteSamples
from headgate.model.policy import Model
from headgate.model.units import SECOND, Instant, ModelName

STEPS_PERCENT: Final = (1, 5, 25, 50, 100)
"""Shares of the two routes' traffic that the candidate gets, in percent."""
STEP_S: Final = 300
"""Minimum duration of a step."""
TOLERANCE_PERCENT: Final = 10
"""By how much the candidate's TTFT and TPOT may exceed those of the base, in percent."""
ERRORS_PERCENT: Final = 1
"""By how many percentage points the candidate's errors and missed targets may exceed those of the base."""
LOOK_S: Final = 1
"""Interval between two looks at the measurements."""
_SCALE: Final = 100
"""Factor for all weights of the group. A weight then has a hundredth for each percent."""
_SIDES: Final = ("base", "candidate", "other")


class RolloutPhase(StrEnum):
    RUNNING = "running"
    REVERTED = "reverted"
    DONE = "done"


_PHASES: Final = tuple(RolloutPhase)


class InvalidRollout(Exception):
    """The rollout cannot start. The message includes the next step."""


@dataclass(frozen=True, slots=True)
class Rollout:
    model: ModelName
    base: str
    candidate: str
    weight: int
    """Sum of the weights of both routes."""
    others: tuple[tuple[str, int], ...] = ()
    """Other routes of the group, with their weights."""
    percent: int = STEPS_PERCENT[0]
    step_s: int = STEP_S
    tolerance_percent: int = TOLERANCE_PERCENT
    phase: RolloutPhase = RolloutPhase.RUNNING

    def terms(self) -> dict[str, int]:
        """Returns the parameters of the override."""
        return {
            "phase": _PHASES.index(self.phase),
            "percent": self.percent,
            "step_s": self.step_s,
            "tolerance_percent": self.tolerance_percent,
            f"base {self.base}": self.weight,
            f"candidate {self.candidate}": 0,
            **{f"other {name}": weight for name, weight in self.others},
        }

    def weights(self) -> tuple[tuple[str, int], ...]:
        """Returns the weights that the group's routes have at the current step."""
        own = self.weight * self.percent
        sides = ((self.base, self.weight * _SCALE - own), (self.candidate, own))
        return (*sides, *((name, weight * _SCALE) for name, weight in self.others))

    def next_step(self) -> "Rollout":
        later = [each for each in STEPS_PERCENT if each > self.percent]
        if not later:
            return replace(self, phase=RolloutPhase.DONE)
        return replace(self, percent=later[0], phase=RolloutPhase.RUNNING)

    def reverted(self) -> "Rollout":
        return replace(self, percent=0, phase=RolloutPhase.REVERTED)


def rollout_of(model: str, terms: Mapping[str, int]) -> Rollout | None:
    """Returns the rollout in an override's parameters. None if this version does not understand them."""
    sides: dict[str, list[tuple[str, int]]] = {side: [] for side in _SIDES}
    for key, value in terms.items():
        side, _, name = key.partition(" ")
        if name and side in sides:
            sides[side].append((name, value))
    phase = terms.get("phase", -1)
    if len(sides["base"]) != 1 or len(sides["candidate"]) != 1 or not 0 <= phase < len(_PHASES):
        return None
    [(base, weight)], [(candidate, _)] = sides["base"], sides["candidate"]
    return Rollout(
        ModelName(model),
        base,
        candidate,
        weight,
        tuple(sides["other"]),
        percent=terms.get("percent", 0),
        step_s=terms.get("step_s", STEP_S),
        tolerance_percent=terms.get("tolerance_percent", TOLERANCE_PERCENT),
        phase=_PHASES[phase],
    )


def new_rollout(model: Model, candidate: str, base: str | None, *, step_s: int, tolerance_percent: int) -> Rollout:
    """Returns a rollout at its first step. Raises `InvalidRollout`."""
    routes = {each.name: each for each in model.routes}
    if candidate not in routes:
        known = ", ".join(routes) or "none"
        raise InvalidRollout(f'model "{model.name}" has no route "{candidate}"; available: {known}')
    group = [each for each in model.routes if each.match == routes[candidate].match and each.name != candidate]
    if base is None:
        if len(group) != 1:
            raise InvalidRollout(f'the group of route "{candidate}" has {len(group)} other routes; name the base')
        base = group[0].name
    if base not in {each.name for each in group}:
        raise InvalidRollout(f'route "{base}" is not another route in the group of "{candidate}"')
    weight = routes[base].weight + routes[candidate].weight
    if not weight:
        raise InvalidRollout(f'routes "{base}" and "{candidate}" both have weight 0; give the base a weight')
    others = tuple((each.name, each.weight) for each in group if each.name != base)
    return Rollout(model.name, base, candidate, weight, others, step_s=step_s, tolerance_percent=tolerance_percent)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Comparison of one property of the two routes."""

    name: str
    interval: Interval | None
    limit: float | None
    """Largest value at which the candidate counts as equally good. None if the property is only reported."""
    unit: str
    """`ratio` to the base, or `points` more than the base."""

    @property
    def is_worse(self) -> bool:
        return self.interval is not None and self.limit is not None and self.interval.low > self.limit

    def is_proved_for(self, percent: int) -> bool:
        """Returns whether all requests together are shown to stay within the limit if the candidate gets this share.

        A small share of the traffic may differ more, because it affects fewer requests. It therefore needs less
        evidence.
        """
        if self.limit is None or self.interval is None:
            return self.limit is None
        neutral = 1.0 if self.unit == "ratio" else 0.0
        return self.interval.high - neutral <= (self.limit - neutral) * 100 / percent

    def text(self) -> str:
        if self.interval is None:
            return f"{self.name}: too few samples"
        low, mid, high = self.interval.low, self.interval.estimate, self.interval.high
        if self.unit == "ratio":
            return f"{self.name} x {mid:.3f} [{low:.3f}, {high:.3f}]"
        return f"{self.name} {100 * mid:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}]"


def measurements(rollout: Rollout, samples: Mapping[str, RouteSamples], look: int) -> tuple[Measurement, ...]:
    base, candidate = samples.get(rollout.base, RouteSamples()), samples.get(rollout.candidate, RouteSamples())
    limit, points = 1 + rollout.tolerance_percent / 100, ERRORS_PERCENT / 100
    return (
        Measurement("TTFT", ratio(base.ttft_ns, candidate.ttft_ns, look), limit, "ratio"),
        Measurement("TPOT", ratio(base.tpot_ns, candidate.tpot_ns, look), limit, "ratio"),
        Measurement("errors", difference(base.errors, candidate.errors, look), points, "points"),
        Measurement("missed targets", difference(base.missed, candidate.missed, look), points, "points"),
        Measurement("cost", ratio(base.cost_nano_usd, candidate.cost_nano_usd, look), None, "ratio"),
    )


class Action(StrEnum):
    WAIT = "wait"
    ADVANCE = "advance"
    REVERT = "revert"


def decide(
    rollout: Rollout, found: tuple[Measurement, ...], *, stepped_at: Instant, now: Instant
) -> tuple[Action, str]:
    """Returns the next action and its reason.

    The rollout reverts as soon as the candidate is shown to be worse. It advances once the step has lasted long enough
    and the measurements show that the next step is harmless.
    """
    if rollout.phase is not RolloutPhase.RUNNING:
        return Action.WAIT, f"the rollout is {rollout.phase.value}"
    if worse := [each for each in found if each.is_worse]:
        return Action.REVERT, "the candidate is worse: " + _texts(worse)
    left_s = rollout.step_s - (now - stepped_at) // SECOND
    if left_s > 0:
        return Action.WAIT, f"the step lasts at least another {left_s} s"
    further = rollout.next_step()
    if further.phase is RolloutPhase.RUNNING and (
        unsettled := [each for each in found if not _is_settled(each, found, further.percent)]
    ):
        return Action.WAIT, f"not yet good enough for {further.percent} %: " + _texts(unsettled)
    return Action.ADVANCE, "the candidate is good enough: " + _texts(found)


def _texts(found: Sequence[Measurement]) -> str:
    return "; ".join(each.text() for each in found)


def _is_settled(measurement: Measurement, found: tuple[Measurement, ...], percent: int) -> bool:
    """Returns whether a measurement does not prevent a step to this percentage.

    Errors can always be measured. Other properties may not exist: responses may not be streamed, and classes may have
    no targets.
    """
    if measurement.interval is None:
        errors = next(each for each in found if each.name == "errors")
        return measurement.name != "errors" and errors.interval is not None
    return measurement.is_proved_for(percent)
