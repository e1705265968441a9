"""Which single change helps most, and what helps after it?

Each step has two parts, because the best of many noisy results looks better than it is. First, screening tries every
setting with few seeds: one smaller and one larger value, then the other values in a direction that looks good. Then the
best candidates are confirmed with fresh seeds, which had no part in their selection. Their confidence intervals are
adjusted for the number of candidates (Bonferroni), so a step suggests a change without a real benefit with a
probability of at most `ERROR_RATE`. The best confirmed change is made, and the next step starts from there with other
seeds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headgate.model.units import ClassName
from headgate.planning.tuning.change import SettingChange
from headgate.planning.tuning.result import ERROR_RATE, Suggestion, TuningStep
from headgate.planning.tuning.score import Comparison, RunScore
from headgate.planning.tuning.tunable import Direction, Tunable

Changes = tuple[SettingChange, ...]


@dataclass(frozen=True, slots=True)
class TuningCase:
    changes: Changes
    seed: int


RunCases = Callable[[Sequence[TuningCase]], Sequence[RunScore | None]]
"""Simulates several cases, possibly at the same time. None for changes that the configuration must not have."""
FindTunables = Callable[[Changes], Sequence[Tunable]]

SCREENING_SEEDS: Final = 3
REFINED_MAX: Final = 8
"""Maximum number of settings whose other values are tried."""
VALUES_MAX: Final = 5
"""Maximum number of values in one direction."""
FINALISTS_MAX: Final = 6
"""Maximum number of changes per step that are confirmed."""
STEPS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class _Candidate:
    tunable: Tunable
    direction: Direction
    value: str | None
    comparison: Comparison

    @property
    def change(self) -> SettingChange:
        return self.tunable.change(self.value)


class TuningSearch:
    """Runs at most `runs_max` cases. `run_count` returns how many have been simulated so far."""

    def __init__(
        self,
        run: RunCases,
        tunables: FindTunables,
        objectives: Mapping[ClassName, float],
        *,
        seeds: int,
        first_seed: int = 0,
        runs_max: int,
        run_count: Callable[[], int],
    ) -> None:
        self._run = run
        self._tunables = tunables
        self._objectives = objectives
        self._seeds = seeds
        self._runs_max = runs_max
        self._run_count = run_count
        self._next_seed = first_seed

    def steps(self) -> Iterator[TuningStep]:
        """Yields steps until nothing improves or the budget is used up. Each one includes those before it."""
        changes: Changes = ()
        for _ in range(STEPS_MAX):
            step = self.step(changes)
            yield step
            if not step.suggestions or not step.is_complete:
                return
            changes = joined(changes, step.suggestions[0].change)

    def step(self, changes: Changes) -> TuningStep:
        """Tries every setting, and confirms the best changes."""
        screening = self._fresh_seeds(SCREENING_SEEDS)
        tunables = self._tunables(changes)
        probes, is_complete = self._probed(tunables, changes, screening[0])
        promising = self._refined(_best_per_setting(probes)[:REFINED_MAX], changes, screening[0])
        finalists = self._compared(promising, changes, screening)
        finalists = [each for each in sorted(finalists, key=_merit, reverse=True) if each.comparison.looks_better]
        finalists = finalists[:FINALISTS_MAX]
        confidence = 1 - ERROR_RATE / max(1, len(finalists))
        confirmed = self._compared(finalists, changes, self._fresh_seeds(self._seeds))
        found = [
            Suggestion(each.change, benefit, each.comparison)
            for each in sorted(confirmed, key=_merit, reverse=True)
            if (benefit := each.comparison.benefit(confidence)) is not None
        ]
        kept = {each.change for each in found}
        unconfirmed = tuple(each.change for each in finalists if each.change not in kept)
        return TuningStep(tuple(found), unconfirmed, confidence, len(tunables), is_complete)

    def compare(self, changes: Changes) -> Comparison:
        """Compares the result with the scenario as it was, on fresh seeds."""
        seeds = self._fresh_seeds(self._seeds)
        after = self._scores(changes, seeds)
        before = self._scores((), seeds)
        assert before is not None
        assert after is not None
        return Comparison(before, after, self._objectives)

    def _probed(self, tunables: Sequence[Tunable], changes: Changes, seed: int) -> tuple[list[_Candidate], bool]:
        """Tries the first value of each direction, until only enough of the budget is left to confirm the best."""
        refining = REFINED_MAX * (VALUES_MAX + SCREENING_SEEDS) + SCREENING_SEEDS
        reserve = refining + (FINALISTS_MAX + 3) * self._seeds
        wanted = [
            (each, direction, direction.values[direction.probe]) for each in tunables for direction in each.directions
        ]
        left = max(0, self._runs_max - self._run_count() - reserve)
        return self._tried(wanted[:left], changes, (seed,)), left >= len(wanted)

    def _refined(self, promising: Iterable[_Candidate], changes: Changes, seed: int) -> list[_Candidate]:
        """Tries the other values in the direction of each candidate, and returns the best value of each."""
        promising = list(promising)
        wanted = [
            (each.tunable, each.direction, value)
            for each in promising
            for value in each.direction.values
            if value != each.value
        ]
        return _best_per_setting([*promising, *self._tried(wanted, changes, (seed,))])

    def _compared(self, candidates: Sequence[_Candidate], changes: Changes, seeds: Sequence[int]) -> list[_Candidate]:
        return self._tried([(each.tunable, each.direction, each.value) for each in candidates], changes, seeds)

    def _tried(
        self, wanted: Sequence[tuple[Tunable, Direction, str | None]], changes: Changes, seeds: Sequence[int]
    ) -> list[_Candidate]:
        """Returns the valid ones of these values, compared with the setting's present value."""
        before = self._scores(changes, seeds)
        assert before is not None, "the scenario is valid"
        variants = [joined(changes, tunable.change(value)) for tunable, _, value in wanted]
        cases = [TuningCase(variant, seed) for variant in variants for seed in seeds]
        results, count = self._run(cases), len(seeds)
        found: list[_Candidate] = []
        for number, (tunable, direction, value) in enumerate(wanted):
            after = [each for each in results[number * count : (number + 1) * count] if each is not None]
            if len(after) == count:
                found.append(_Candidate(tunable, direction, value, Comparison(before, after, self._objectives)))
        return found

    def _scores(self, changes: Changes, seeds: Sequence[int]) -> list[RunScore] | None:
        results = [each for each in self._run([TuningCase(changes, seed) for seed in seeds]) if each is not None]
        return results if len(results) == len(seeds) else None

    def _fresh_seeds(self, count: int) -> range:
        seeds = range(self._next_seed, self._next_seed + count)
        self._next_seed += count
        return seeds


def joined(changes: Changes, change: SettingChange) -> Changes:
    """Returns the changes with a further one. A setting that changes again keeps its first value as the one before."""
    for each in changes:
        if each.path == change.path:
            change = replace(change, before=each.before)
    return (*(each for each in changes if each.path != change.path), change)


def _merit(candidate: _Candidate) -> tuple[int, int, int, int]:
    return candidate.comparison.merit()


def _best_per_setting(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """Returns the best value of each setting that looks better than its present value, best first.

    Of equally good values, the nearest is the best.
    """
    best: dict[str, _Candidate] = {}
    for each in sorted(candidates, key=_distance):
        known = best.get(each.tunable.path)
        if each.comparison.looks_better and (known is None or _merit(each) > _merit(known)):
            best[each.tunable.path] = each
    return sorted(best.values(), key=_merit, reverse=True)


def _distance(candidate: _Candidate) -> int:
    return candidate.direction.values.index(candidate.value)
