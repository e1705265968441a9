"""Result of tuning: the changes that were made, and how single changes rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headgate.model.units import ClassName, Duration
from headgate.planning.tuning.change import SettingChange
from headgate.planning.tuning.score import Benefit, Comparison, missed

ERROR_RATE: Final = 0.05
"""Maximum probability that a step has any suggestion without a real benefit."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    change: SettingChange
    benefit: Benefit
    evidence: Comparison
    """Comparison on the seeds that confirmed the change."""


@dataclass(frozen=True, slots=True)
class TuningStep:
    """One round: every setting was tried, and the best candidates were confirmed."""

    suggestions: tuple[Suggestion, ...]
    """Confirmed changes, best first. The first one is made."""
    unconfirmed: tuple[SettingChange, ...]
    """Changes that looked better, but whose benefit was not confirmed."""
    confidence: float
    """Confidence of each interval, adjusted for the number of changes that were tested."""
    settings: int
    """Number of settings that were tried."""
    is_complete: bool
    """Whether all settings were tried before the budget was used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    title: str
    objectives: Mapping[ClassName, float]
    has_prices: bool
    """Whether the cost is in dollars per hour. Otherwise it is the number of engines."""
    window_ns: Duration
    span_ns: Duration
    """Duration of the complete workload."""
    steps: tuple[TuningStep, ...]
    changes: tuple[SettingChange, ...]
    """Changes that were made, at most one per setting."""
    overall: Comparison
    """The result compared with the scenario as it was."""
    seeds: int
    runs: int
    """Number of simulated runs."""
    only_ranked: bool

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """Single changes of the scenario as it was, best first."""
        return self.steps[0].suggestions

    @property
    def is_complete(self) -> bool:
        return all(each.is_complete for each in self.steps)

    @property
    def holds(self) -> bool:
        """Whether the result holds all objectives on average."""
        return not missed(self.overall.after, self.objectives)
