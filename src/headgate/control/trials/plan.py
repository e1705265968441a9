"""The schedule of a setting trial, its state, and the decision to keep or revert the new value.

Pure: the state, the measurements and the time determine the result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import takewhile
from random import Random
from typing import Final

from headgate.control.rollouts.comparison import Interval
from headgate.control.trials.effect_interval import BlockGroup, effect_interval, groups_needed
from headgate.control.trials.mean_effect import groups_for_mean, mean_lower_bound
from headgate.control.trials.samples import BlockTally, pooled_counts
from headgate.model.live_settings import setting_place
from headgate.model.overrides import SetSetting
from headgate.model.units import SECOND, ClassName, Duration, Instant
from headgate.ports.directory import OverrideRow

VERB: Final = "trial"
"""Verb of the override that holds a trial's state."""
BLOCK_VERB: Final = "trial_block"
"""Verb of the override that sets the new value for one block. It expires at the end of the block."""
ALPHA: Final = 0.05
"""Probability that any interval of a trial ever misses an effect that is the same in all blocks, and that any lower
bound of a trial ever exceeds the mean effect.
"""
BASELINE_BLOCKS: Final = 2
"""Number of blocks with the old value at the start. They are only used to notice harm."""
GROUPS_MAX: Final = 200
REQUESTS_MIN: Final = 10
"""Minimum number of requests of a class in a block. A group with a block that has fewer is left out for that class."""
_GUARD_PART: Final = 4
"""Requests that arrive in the first quarter of a block are left out: they meet the queue of the block before."""


class TrialPhase(StrEnum):
    RUNNING = "running"
    KEPT = "kept"
    REVERTED = "reverted"


class TrialResult(StrEnum):
    """Why a trial ended."""

    NONE = "none"
    IMPROVED = "improved"
    HARMLESS = "harmless"
    WORSE = "worse"
    UNDECIDED = "undecided"
    ABORTED = "aborted"
    RELOADED = "reloaded"
    INTERRUPTED = "interrupted"


class KeepIf(StrEnum):
    BETTER = "better"
    """Keep the new value if it is shown to be better."""
    HARMLESS = "harmless"
    """Keep the new value if it is shown not to be worse by more than the tolerance."""


_PHASES: Final = tuple(TrialPhase)
_RESULTS: Final = tuple(TrialResult)
_CONDITIONS: Final = tuple(KeepIf)


class InvalidTrial(Exception):
    """The trial cannot start. The message includes the next step."""


@dataclass(frozen=True, slots=True)
class SettingTrial:
    setting: str
    before: int
    value: int
    share_percent: int
    block_s: int
    duration_s: int
    seed: int
    keep_if: KeepIf = KeepIf.BETTER
    tolerance_percent: int = 1
    phase: TrialPhase = TrialPhase.RUNNING
    result: TrialResult = TrialResult.NONE

    def terms(self) -> dict[str, int]:
        """Returns the parameters of the override."""
        return {
            "phase": _PHASES.index(self.phase),
            "result": _RESULTS.index(self.result),
            "before": self.before,
            "value": self.value,
            "share_percent": self.share_percent,
            "block_s": self.block_s,
            "duration_s": self.duration_s,
            "seed": self.seed,
            "keep_if": _CONDITIONS.index(self.keep_if),
            "tolerance_percent": self.tolerance_percent,
        }

    def ended(self, phase: TrialPhase, result: TrialResult) -> "SettingTrial":
        return replace(self, phase=phase, result=result)

    # Schedule

    @property
    def block_ns(self) -> Duration:
        return Duration(self.block_s * SECOND)

    @property
    def guard_ns(self) -> Duration:
        return Duration(self.block_ns // _GUARD_PART)

    @property
    def group_size(self) -> int:
        """Number of blocks among which one has the new value."""
        return max(2, round(100 / self.share_percent))

    @property
    def groups(self) -> int:
        return max(0, (self.duration_s // self.block_s - BASELINE_BLOCKS) // self.group_size)

    @property
    def blocks(self) -> int:
        return BASELINE_BLOCKS + self.groups * self.group_size

    def new_block(self, group: int) -> int:
        """Returns the number of the block with the new value in a group."""
        drawn = Random(f"{self.seed} {group}").randrange(self.group_size)  # noqa: S311  Not a secret.
        return BASELINE_BLOCKS + group * self.group_size + drawn

    def has_new_value(self, block: int) -> bool:
        if not BASELINE_BLOCKS <= block < self.blocks:
            return False
        return block == self.new_block((block - BASELINE_BLOCKS) // self.group_size)


def trial_of(setting: str, terms: Mapping[str, int]) -> SettingTrial | None:
    """Returns the trial in an override's parameters. None if this version does not understand them."""
    phase, result, condition = terms.get("phase", -1), terms.get("result", -1), terms.get("keep_if", -1)
    numbers = [terms.get(each, 0) for each in ("share_percent", "block_s", "duration_s", "tolerance_percent")]
    known = 0 <= phase < len(_PHASES) and 0 <= result < len(_RESULTS) and 0 <= condition < len(_CONDITIONS)
    if not known or min(numbers) < 1 or not {"before", "value"} <= terms.keys():
        return None
    share_percent, block_s, duration_s, tolerance_percent = numbers
    return SettingTrial(
        setting,
        terms["before"],
        terms["value"],
        share_percent,
        block_s,
        duration_s,
        terms.get("seed", 0),
        _CONDITIONS[condition],
        tolerance_percent,
        _PHASES[phase],
        _RESULTS[result],
    )


def setting_override(verb: str, setting: str, terms: Mapping[str, int], until: Instant) -> SetSetting | None:
    """Returns what an override with one of the two verbs does. None if nothing.

    A running trial replaces the value by itself, so that all gateways know about it. Its blocks set the new value.
    """
    if verb == BLOCK_VERB:
        known = {"before", "value"} <= terms.keys()
        return SetSetting(setting, terms["before"], terms["value"], until) if known else None
    trial = trial_of(setting, terms)
    if trial is None or trial.phase is TrialPhase.REVERTED:
        return None
    value = trial.value if trial.phase is TrialPhase.KEPT else trial.before
    return SetSetting(setting, trial.before, value, until)


def trials_in(rows: Sequence[OverrideRow]) -> list[tuple[OverrideRow, SettingTrial]]:
    """Returns the trials of known settings, oldest first."""
    found = [(row, trial) for row in rows if row.verb == VERB and (trial := trial_of(row.target, row.parameters))]
    return [(row, trial) for row, trial in found if setting_place(trial.setting) is not None]


def running_trial(rows: Sequence[OverrideRow]) -> tuple[OverrideRow, SettingTrial] | None:
    return next(((row, trial) for row, trial in trials_in(rows) if trial.phase is TrialPhase.RUNNING), None)


def result_of(
    rows: Sequence[OverrideRow], running: OverrideRow, trial: SettingTrial
) -> tuple[OverrideRow, SettingTrial] | None:
    """Returns the stored result of a trial whose override has not been ended yet."""
    for row, found in trials_in(rows):
        is_later = found.phase is not TrialPhase.RUNNING and row.created_at >= running.created_at
        if is_later and found.ended(trial.phase, trial.result) == trial:
            return row, found
    return None


def check_schedule(trial: SettingTrial, classes: int) -> None:
    """Raises `InvalidTrial` if the trial is too short to decide anything, or has too many blocks."""
    needed = _groups_needed(trial, classes)
    if needed > GROUPS_MAX:
        raise InvalidTrial(
            f"to show that a value is at most {trial.tolerance_percent} points worse, at least {needed} blocks need "
            f"the new value, and at most {GROUPS_MAX} are allowed; set a larger tolerance"
        )
    if trial.groups < needed:
        shortest = (BASELINE_BLOCKS + needed * trial.group_size) * trial.block_s
        raise InvalidTrial(
            f"{trial.duration_s} s is too short for a decision: blocks of {trial.block_s} s, of which one in "
            f"{trial.group_size} has the new value, need at least {shortest} s; set a longer duration"
        )
    if trial.groups > GROUPS_MAX:
        raise InvalidTrial(
            f"the trial has {trial.groups} blocks with the new value, and at most {GROUPS_MAX} are allowed; "
            "set longer blocks or a shorter duration"
        )


def _groups_needed(trial: SettingTrial, classes: int) -> int:
    """Returns the least number of groups that can decide: if the new value repairs every block, or changes none."""
    alpha = _alpha(classes)
    difference = 1.0 if trial.keep_if is KeepIf.BETTER else trial.tolerance_percent / 100
    return max(groups_needed(trial.group_size, alpha), groups_for_mean(difference, alpha))


def _alpha(classes: int) -> float:
    """Returns the error probability of each interval: one for each class, one for goodput and one for cost."""
    return ALPHA / (classes + 2)


# Comparison


class Subject(StrEnum):
    PROMISE = "promise"
    """Share of good requests of a class."""
    GOODPUT = "goodput"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of the new value on one property. Positive is better."""

    subject: Subject
    name: str
    interval: Interval | None
    groups: int
    mean_low: float
    """Lower bound of the mean effect if it differs between blocks, from -1 to 0."""
    pooled: float | None = None
    """Difference over all blocks together, if some groups have too few requests to be measured."""

    def is_worse_than(self, tolerance: float) -> bool:
        return self.interval is not None and self.interval.high < -tolerance

    @property
    def is_better(self) -> bool:
        return self.interval is not None and self.interval.low > 0 and self.mean_low >= 0

    def seems_harmless(self, tolerance: float) -> bool:
        """Whether nothing shows that the property has become worse."""
        if self.pooled is not None and self.pooled < -tolerance:
            return False
        return self.interval is None or (self.interval.high >= 0 and self.interval.estimate >= -tolerance)

    def is_harmless(self, tolerance: float) -> bool:
        """Whether the property is shown to be at most this much worse."""
        return self.interval is not None and min(self.interval.low, self.mean_low) >= -tolerance

    def text(self) -> str:
        if self.interval is None:
            pooled = "" if self.pooled is None else f", {100 * self.pooled:+.1f} points over all"
            return f"{self.name}: too few blocks{pooled}"
        low, mid, high = (100 * each for each in (self.interval.low, self.interval.estimate, self.interval.high))
        unit = "points" if self.subject is Subject.PROMISE else "%"
        return f"{self.name} {mid:+.1f} {unit} [{low:+.1f}, {high:+.1f}]{self._reservation()}"

    def _reservation(self) -> str:
        """Returns what the interval does not tell: a positive mean may not be shown yet."""
        assert self.interval is not None
        if self.interval.low <= 0 or self.mean_low >= 0:
            return ""
        return ", not yet shown for effects that differ between blocks"


def effects(trial: SettingTrial, blocks: Mapping[int, BlockTally], classes: Sequence[ClassName]) -> tuple[Effect, ...]:
    """Returns the effects that the complete groups show. `blocks` are the settled blocks, by number.

    Groups after one that is not settled do not count yet: slow requests would be left out if they end badly.
    """
    complete = [_group(trial, blocks, number) for number in range(complete_groups(trial, blocks))]
    groups = [group for group in complete if not any(each.wrong_value for each in group)]
    alpha = _alpha(len(classes))

    def effect(subject: Subject, name: str, value: Callable[[BlockTally], float | None]) -> Effect:
        measured = [found for each in groups if (found := _measured(each, trial, value)) is not None]
        by_group = [each.effect() if subject is Subject.PROMISE else each.relative_effect() for each in measured]
        mean_low = mean_lower_bound(by_group, alpha)
        return Effect(subject, name, effect_interval(measured, alpha), len(measured), mean_low)

    def promise(name: ClassName) -> Effect:
        found = effect(Subject.PROMISE, f"good requests of class {name}", partial(_share, name))
        pooled = None if found.groups == len(groups) else pooled_difference(name, blocks.values())
        return replace(found, pooled=pooled)

    return (
        *(promise(name) for name in classes),
        effect(Subject.GOODPUT, "goodput", BlockTally.log_good),
        effect(Subject.COST, "good requests per dollar", BlockTally.log_good_per_cost),
    )


def pooled_difference(name: ClassName, blocks: Iterable[BlockTally]) -> float | None:
    """Returns the share of good requests with the new value minus that with the old one.

    None without requests with the new value. If there are none with the old value, they count as good.
    """
    known = [each for each in blocks if not each.wrong_value]
    new, old = (pooled_counts(name, [each for each in known if each.has_new_value is value]) for value in (True, False))
    if not new.count:
        return None
    return (old.hits / old.count if old.count else 0.0) - new.hits / new.count


def complete_groups(trial: SettingTrial, blocks: Mapping[int, BlockTally]) -> int:
    """Returns the number of groups before the first that is not settled."""
    return sum(1 for _ in takewhile(lambda n: len(_group(trial, blocks, n)) == trial.group_size, range(trial.groups)))


def _share(name: ClassName, block: BlockTally) -> float | None:
    return block.share(name, REQUESTS_MIN)


def _group(trial: SettingTrial, blocks: Mapping[int, BlockTally], number: int) -> tuple[BlockTally, ...]:
    """Returns the settled blocks of a group."""
    first = BASELINE_BLOCKS + number * trial.group_size
    return tuple(blocks[each] for each in range(first, first + trial.group_size) if each in blocks)


def _measured(
    group: tuple[BlockTally, ...], trial: SettingTrial, value: Callable[[BlockTally], float | None]
) -> BlockGroup | None:
    values = tuple(found for each in group if (found := value(each)) is not None)
    new = next(index for index, each in enumerate(group) if trial.has_new_value(each.number))
    return BlockGroup(values, new) if len(values) == len(group) else None


def decide(trial: SettingTrial, found: Sequence[Effect], *, over: bool) -> tuple[TrialResult, str]:
    """Returns the result and its reason. The result is `NONE` while the trial goes on.

    `over` is true once all blocks are settled. Because the intervals are valid at any time, the trial ends as soon as
    they decide. The share of good requests of each class is decisive, then goodput, then cost.
    """
    tolerance = trial.tolerance_percent / 100
    promises = [each for each in found if each.subject is Subject.PROMISE]
    rates = [each for each in found if each.subject is not Subject.COST]
    if worse := [each for each in rates if each.is_worse_than(tolerance)]:
        return TrialResult.WORSE, "the new value is worse: " + _texts(worse)
    if trial.keep_if is KeepIf.HARMLESS:
        measured = [each for each in promises if each.interval is not None]
        others_seem_harmless = all(each.seems_harmless(tolerance) for each in rates)
        if measured and all(each.is_harmless(tolerance) for each in measured) and others_seem_harmless:
            return TrialResult.HARMLESS, "the new value does no harm: " + _texts(measured)
    elif all(each.seems_harmless(tolerance) for each in rates) and (better := _better(found, promises, tolerance)):
        return TrialResult.IMPROVED, "the new value is better: " + _texts(better)
    if over:
        return TrialResult.UNDECIDED, "the trial is over and shows too little: " + _texts(found)
    return TrialResult.NONE, "not decided yet: " + _texts(found)


def _better(found: Sequence[Effect], promises: Sequence[Effect], tolerance: float) -> Sequence[Effect]:
    """Returns what the new value improves. A lower cost counts only if the promise is shown to hold."""
    if better := [each for each in promises if each.is_better]:
        return better
    if better := [each for each in found if each.subject is Subject.GOODPUT and each.is_better]:
        return better
    measured = [each for each in promises if each.interval is not None]
    if not measured or not all(each.is_harmless(tolerance) for each in measured):
        return ()
    return [each for each in found if each.subject is Subject.COST and each.is_better]


def _texts(found: Sequence[Effect]) -> str:
    return "; ".join(each.text() for each in found)
