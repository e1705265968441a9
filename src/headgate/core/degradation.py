"""What is given up at which level, and when does the level change?

The ladder climbs a step when those whom the step protects have been pressed for some seconds, and descends one when
they have not been for much longer, so that it does not swing. What is allowed only shrinks as it climbs:

    0  everything
    1  classes that keep costs low take what they declared for it; nothing is hedged
    2  so do classes that keep latency low, and their easy requests go a rung down
    3  bands of classes that keep costs low are held at their floor
    4  who has more than its share waiting is refused: plan free, and a step later plan standard
    5  plan free is refused
    6  only plan critical is let in

A class that keeps quality gives up nothing that its answers consist of: it may only wait. Whether to wait is its plan's
matter from level 4 on, as everybody's.
"""

from dataclasses import dataclass, replace
from typing import Final, TypeVar

from headgate.core.counters import LadderCounter
from headgate.core.pressure import ALL
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.policy import LadderRules, Promise, ServiceClass
from headgate.model.units import Duration, Instant, ModelName

_STEPS: Final = ((0, ALL), (1, ALL), (2, ALL), (3, ALL), (4, 3), (4, 2), (5, 1), (6, 0))
"""Of each step its level, and the highest standing that it lets in."""
_LATENCY_FROM: Final = 2
_HELD_FROM: Final = 3
_EFFORTS: Final = tuple(ReasoningEffort)
_DETAILS: Final = tuple(ImageDetail)
_Word = TypeVar("_Word")


class Ladder:
    """Of those who wait for the same pools."""

    __slots__ = ("_above_since", "_below_since", "_pinned", "_rules", "_step", "holds_at_floor")

    def __init__(self, rules: LadderRules) -> None:
        self._rules = rules
        self._step = 0
        self._pinned = False
        self._above_since: Instant | None = None
        self._below_since: Instant | None = None
        self.holds_at_floor = False
        """Whether bands of classes that keep costs low get their floor and no more."""

    @property
    def level(self) -> int:
        return _STEPS[self._step][0]

    def pin(self, level: int | None) -> None:
        """Keeps it at a level, whatever is felt; None lets it go, and it comes down by itself."""
        self._pinned = level is not None
        if level is None:
            self.change_rules(self._rules)
            return
        self._step = max(step for step, (each, _) in enumerate(_STEPS) if each <= level)
        self._above_since = self._below_since = None
        self.holds_at_floor = level >= _HELD_FROM

    def change_rules(self, rules: LadderRules) -> None:
        self._rules = rules
        if self._pinned:
            return
        while self._step and (not rules.enabled or self.level > rules.level_max):
            self._step -= 1

    def refuses(self, standing: int) -> bool:
        return standing > _STEPS[self._step][1]

    def tick(self, felt: list[int], now: Instant) -> None:
        """Looks at the pressure felt by those of each standing and of all below it."""
        rules = self._rules
        if self._pinned:
            return
        above = self._may_climb and felt[_STEPS[self._step + 1][1]] > rules.climb_above
        self._above_since = _since(self._above_since, now, holds=above)
        below = self._step > 0 and felt[_STEPS[self._step][1]] < rules.descend_below
        self._below_since = _since(self._below_since, now, holds=below)
        if _lasted(self._above_since, rules.climb_after_ns, now):
            self._step += 1
            self._above_since = now
        elif _lasted(self._below_since, rules.descend_after_ns, now):
            self._step -= 1
            self._below_since = now
        # While nobody is pressed there is room for everybody, however long the ladder takes to come down.
        self.holds_at_floor = self.level >= _HELD_FROM and felt[ALL] >= rules.descend_below

    @property
    def moves(self) -> bool:
        """Whether it has climbed, or may be about to."""
        return self._step > 0 or self._above_since is not None

    def counter(self, band: int, now: Instant) -> LadderCounter:
        above_ns, below_ns = _ago(self._above_since, now), _ago(self._below_since, now)
        return LadderCounter(band, self._step, above_ns, below_ns, self.holds_at_floor)

    def restore(self, counter: LadderCounter, now: Instant) -> None:
        self._step = min(counter.step, len(_STEPS) - 1)
        self._above_since = None if counter.above_ns is None else Instant(now - counter.above_ns)
        self._below_since = None if counter.below_ns is None else Instant(now - counter.below_ns)
        self.change_rules(self._rules)
        self.holds_at_floor = counter.holds_at_floor and self.level >= _HELD_FROM

    @property
    def _may_climb(self) -> bool:
        return self._step + 1 < len(_STEPS) and _STEPS[self._step + 1][0] <= self._rules.level_max


def _since(since: Instant | None, now: Instant, *, holds: bool) -> Instant | None:
    if not holds:
        return None
    return now if since is None else since


def _ago(since: Instant | None, now: Instant) -> Duration | None:
    return None if since is None else Duration(now - since)


def _lasted(since: Instant | None, long_enough: Duration, now: Instant) -> bool:
    return since is not None and now - since >= long_enough


def allows_hedging(level: int) -> bool:
    return level == 0


def lowers_rung(service_class: ServiceClass, level: int) -> bool:
    """Whether its easy requests go to the next smaller rung of their model."""
    return service_class.promise is not Promise.QUALITY and level >= _LATENCY_FROM


@dataclass(frozen=True, slots=True)
class Given:
    """What a class is at a level."""

    service_class: ServiceClass
    model: ModelName | None
    """Whose pools serve it instead of those of the model that is asked for."""


def given(service_class: ServiceClass, level: int) -> Given:
    """The class with every variant that the level selects: the strictest of each cap, and the last model named."""
    caps, model = service_class.caps, None
    for variant in service_class.variants:
        if variant.level <= level and _takes_variants(service_class.promise, level):
            caps = stricter(caps, variant.caps)
            model = variant.model or model
    if caps == service_class.caps:
        return Given(service_class, model)
    return Given(replace(service_class, caps=caps), model)


def _takes_variants(promise: Promise, level: int) -> bool:
    return promise is Promise.COST or (promise is Promise.LATENCY and level >= _LATENCY_FROM)


def stricter(one: Caps, other: Caps) -> Caps:
    """Of each cap the stricter. One on the prompt leaves out turns where the class or the variant lets it, and refuses
    nobody: what is refused under overload goes by standing and rank alone.
    """
    return Caps(
        prompt_tokens=_least(one.prompt_tokens, other.prompt_tokens),
        trims_prompt=one.trims_prompt or other.trims_prompt,
        output_tokens=_least(one.output_tokens, other.output_tokens),
        n=_least(one.n, other.n),
        best_of=_least(one.best_of, other.best_of),
        logprobs=_least(one.logprobs, other.logprobs),
        prompt_logprobs=_least(one.prompt_logprobs, other.prompt_logprobs),
        reasoning_effort=_first(_EFFORTS, one.reasoning_effort, other.reasoning_effort),
        image_detail=_first(_DETAILS, one.image_detail, other.image_detail),
        prompts=_least(one.prompts, other.prompts),
        inputs=_least(one.inputs, other.inputs),
    )


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _first(order: tuple[_Word, ...], one: _Word | None, other: _Word | None) -> _Word | None:
    """Of two words the one that comes first."""
    return next((each for each in order if each in (one, other)), None)
