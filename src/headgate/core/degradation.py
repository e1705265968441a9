"""Degradation levels, and their effect on each class.

The level rises by one step when the requests that the step protects have been under pressure for several seconds. It
falls by one step after a much longer time without pressure, which prevents oscillation. Each level includes all lower
ones:

    0  no degradation
    1  cost-optimised classes use their declared variants; hedging is off
    2  latency-optimised classes use their variants too, and their easy requests go to a smaller model tier
    3  priority bands of cost-optimised classes are limited to their minimum share
    4  requests from tenants over their fair share are rejected: plan free first, plan standard one step later
    5  plan free is rejected
    6  only plan critical is admitted

Quality-optimised classes never change their responses; at worst, their requests wait longer. At level 4 and above,
admission depends on the tenant's plan in every class.
"""

from dataclasses import dataclass, replace
from typing import Final, TypeVar

from headgate.core.counters import DegradationCounter
from headgate.core.pressure import SHEDDABILITY_MAX
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.policy import DegradationRules, OptimizationGoal, ServiceClass
from headgate.model.units import Duration, Instant, ModelName

_STEPS: Final = (
    (0, SHEDDABILITY_MAX),
    (1, SHEDDABILITY_MAX),
    (2, SHEDDABILITY_MAX),
    (3, SHEDDABILITY_MAX),
    (4, 3),
    (4, 2),
    (5, 1),
    (6, 0),
)
"""Level of each step, and the highest sheddability that it admits."""
_LATENCY_LEVEL_MIN: Final = 2
_MIN_SHARE_LEVEL_MIN: Final = 3
_EFFORTS: Final = tuple(ReasoningEffort)
_DETAILS: Final = tuple(ImageDetail)
_Value = TypeVar("_Value")


class Degradation:
    """Degradation level of one priority band for the requests that share a set of pools."""

    __slots__ = ("_above_since", "_below_since", "_pinned", "_rules", "_step", "limits_to_min_share")

    def __init__(self, rules: DegradationRules) -> None:
        self._rules = rules
        self._step = 0
        self._pinned = False
        self._above_since: Instant | None = None
        self._below_since: Instant | None = None
        self.limits_to_min_share = False
        """Whether priority bands of cost-optimised classes are limited to their minimum share."""

    @property
    def level(self) -> int:
        return _STEPS[self._step][0]

    def pin(self, level: int | None) -> None:
        """Pins the level regardless of pressure. None unpins it, after which the level falls as the pressure allows."""
        self._pinned = level is not None
        if level is None:
            self.change_rules(self._rules)
            return
        self._step = max(step for step, (each, _) in enumerate(_STEPS) if each <= level)
        self._above_since = self._below_since = None
        self.limits_to_min_share = level >= _MIN_SHARE_LEVEL_MIN

    def change_rules(self, rules: DegradationRules) -> None:
        self._rules = rules
        if self._pinned:
            return
        while self._step and (not rules.enabled or self.level > rules.level_max):
            self._step -= 1

    def rejects(self, sheddability: int) -> bool:
        return sheddability > _STEPS[self._step][1]

    def tick(self, pressures: list[int], now: Instant) -> None:
        """Updates the level. `pressures[s]` is the pressure on requests with sheddability `s` or lower."""
        rules = self._rules
        if self._pinned:
            return
        above = self._may_climb and pressures[_STEPS[self._step + 1][1]] > rules.escalate_above
        self._above_since = _since(self._above_since, now, holds=above)
        below = self._step > 0 and pressures[_STEPS[self._step][1]] < rules.recover_below
        self._below_since = _since(self._below_since, now, holds=below)
        if _lasted(self._above_since, rules.escalate_after_ns, now):
            self._step += 1
            self._above_since = now
        elif _lasted(self._below_since, rules.recover_after_ns, now):
            self._step -= 1
            self._below_since = now
        # When there is no pressure, there is capacity for every band, even if the level has not fallen yet.
        self.limits_to_min_share = (
            self.level >= _MIN_SHARE_LEVEL_MIN and pressures[SHEDDABILITY_MAX] >= rules.recover_below
        )

    @property
    def is_active(self) -> bool:
        """Whether the level is above 0 or may be about to rise."""
        return self._step > 0 or self._above_since is not None

    def counter(self, band: int, now: Instant) -> DegradationCounter:
        above_ns, below_ns = _elapsed(self._above_since, now), _elapsed(self._below_since, now)
        return DegradationCounter(band, self._step, above_ns, below_ns, self.limits_to_min_share)

    def restore(self, counter: DegradationCounter, now: Instant) -> None:
        self._step = min(counter.step, len(_STEPS) - 1)
        self._above_since = None if counter.above_ns is None else Instant(now - counter.above_ns)
        self._below_since = None if counter.below_ns is None else Instant(now - counter.below_ns)
        self.change_rules(self._rules)
        self.limits_to_min_share = counter.limited_to_min_share and self.level >= _MIN_SHARE_LEVEL_MIN

    @property
    def _may_climb(self) -> bool:
        return self._step + 1 < len(_STEPS) and _STEPS[self._step + 1][0] <= self._rules.level_max


def _since(since: Instant | None, now: Instant, *, holds: bool) -> Instant | None:
    if not holds:
        return None
    return now if since is None else since


def _elapsed(since: Instant | None, now: Instant) -> Duration | None:
    return None if since is None else Duration(now - since)


def _lasted(since: Instant | None, long_enough: Duration, now: Instant) -> bool:
    return since is not None and now - since >= long_enough


def allows_hedging(level: int) -> bool:
    return level == 0


def lowers_tier(service_class: ServiceClass, level: int) -> bool:
    """Returns whether easy requests of the class go to the next smaller tier of their model."""
    return service_class.optimize_for is not OptimizationGoal.QUALITY and level >= _LATENCY_LEVEL_MIN


@dataclass(frozen=True, slots=True)
class DegradedClass:
    """Service class as degraded at one level."""

    service_class: ServiceClass
    model: ModelName | None
    """Model whose pools serve the class instead of the requested model. None if the model is unchanged."""


def degraded_class(service_class: ServiceClass, level: int) -> DegradedClass:
    """Returns the class with all variants up to this level applied.

    The strictest value of each cap and the last named model apply.
    """
    caps, model = service_class.caps, None
    for variant in service_class.degradation_steps:
        if variant.level <= level and _applies_variants(service_class.optimize_for, level):
            caps = stricter(caps, variant.caps)
            model = variant.model or model
    if caps == service_class.caps:
        return DegradedClass(service_class, model)
    return DegradedClass(replace(service_class, caps=caps), model)


def _applies_variants(promise: OptimizationGoal, level: int) -> bool:
    return promise is OptimizationGoal.COST or (promise is OptimizationGoal.LATENCY and level >= _LATENCY_LEVEL_MIN)


def stricter(one: Caps, other: Caps) -> Caps:
    """Returns the stricter value of each cap.

    If the class or the variant allows it, a prompt cap trims the conversation. It never causes a rejection. Under
    overload, rejection depends only on sheddability and shed rank.
    """
    return Caps(
        prompt_tokens=_min_of(one.prompt_tokens, other.prompt_tokens),
        trim_prompt=one.trim_prompt or other.trim_prompt,
        output_tokens=_min_of(one.output_tokens, other.output_tokens),
        n=_min_of(one.n, other.n),
        best_of=_min_of(one.best_of, other.best_of),
        logprobs=_min_of(one.logprobs, other.logprobs),
        prompt_logprobs=_min_of(one.prompt_logprobs, other.prompt_logprobs),
        reasoning_effort=_first_of(_EFFORTS, one.reasoning_effort, other.reasoning_effort),
        image_detail=_first_of(_DETAILS, one.image_detail, other.image_detail),
        prompts=_min_of(one.prompts, other.prompts),
        inputs=_min_of(one.inputs, other.inputs),
    )


def _min_of(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _first_of(order: tuple[_Value, ...], one: _Value | None, other: _Value | None) -> _Value | None:
    """Returns whichever of the two values comes first in the given order."""
    return next((each for each in order if each in (one, other)), None)
