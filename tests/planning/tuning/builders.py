"""Scores and a fake simulation whose result depends on the changed settings."""

import random
from collections.abc import Callable, Mapping, Sequence

from headgate.model.units import ClassName
from headgate.planning.tuning.change import SettingChange
from headgate.planning.tuning.score import ClassScore, RunScore
from headgate.planning.tuning.search import Changes, TuningCase, TuningSearch
from headgate.planning.tuning.tunable import Direction, Tunable

CHAT = ClassName("chat")
BATCH = ClassName("batch")
OBJECTIVES = {CHAT: 0.95, BATCH: 0.90}
ARRIVALS = 1_000

Values = Mapping[str, str | None]
Effect = Callable[[Values], tuple[float, float, float]]
"""Attainment of both classes and the cost, for the changed settings."""


def a_score(
    chat: float = 1.0, batch: float = 1.0, *, cost: float = 5.0, waiting: int = 0, full: float = 1.0
) -> RunScore:
    return RunScore(
        {
            CHAT: ClassScore(ARRIVALS, round(chat * ARRIVALS), waiting, full),
            BATCH: ClassScore(ARRIVALS, round(batch * ARRIVALS), 0, full),
        },
        cost,
    )


class FakeRuns:
    """Adds noise that is the same for all variants with a seed, and noise of each variant's own."""

    def __init__(self, effect: Effect, *, noise: float = 0.0, invalid: Sequence[str] = ()) -> None:
        self._effect = effect
        self._noise = noise
        self._invalid = invalid
        self._known: dict[TuningCase, RunScore | None] = {}

    @property
    def count(self) -> int:
        return len(self._known)

    @property
    def seeds_by_changes(self) -> dict[Changes, set[int]]:
        found: dict[Changes, set[int]] = {}
        for case in self._known:
            found.setdefault(case.changes, set()).add(case.seed)
        return found

    def __call__(self, cases: Sequence[TuningCase]) -> list[RunScore | None]:
        for case in cases:
            if case not in self._known:
                self._known[case] = self._score(case)
        return [self._known[case] for case in cases]

    def _score(self, case: TuningCase) -> RunScore | None:
        if any(each.path in self._invalid for each in case.changes):
            return None
        chat, batch, cost = self._effect({each.path: each.after for each in case.changes})
        common = random.Random(case.seed).gauss(0, self._noise)
        own = random.Random(repr(case)).gauss(0, self._noise)
        return a_score(_share(chat + common + own), _share(batch + common - own), cost=cost)


def a_tunable(path: str, before: str = "100", *, higher: Sequence[str] = ("150", "200", "400")) -> Tunable:
    return Tunable(path, before, (Direction(("75", "50"), 1), Direction(tuple(higher), 1)))


def a_search(
    runs: FakeRuns, tunables: Sequence[Tunable], *, seeds: int = 6, first_seed: int = 0, runs_max: int = 10_000
) -> TuningSearch:
    def after(changes: Changes) -> list[Tunable]:
        now = {each.path: each.after for each in changes}
        return [Tunable(each.path, now.get(each.path, each.before), each.directions) for each in tunables]

    return TuningSearch(
        runs, after, OBJECTIVES, seeds=seeds, first_seed=first_seed, runs_max=runs_max, run_count=lambda: runs.count
    )


def paths(changes: Sequence[SettingChange]) -> list[str]:
    return [each.path for each in changes]


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
