"""One run of a drill: watches the fleet, keeps the samples and the timeline, and stops early on request."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.cli.drills.figures import DrillObjective, PhaseFigures, TimedTotals, recovered_after_s
from headgate.cli.drills.fleet import DrillFleet, DrillSample

SAMPLE_EVERY_S: Final = 1.0
RECOVERY_WINDOW_S: Final = 10.0
"""Length of the window over which attainment is computed for recovery and for stopping early."""
SAMPLES_MAX: Final = 86_400
UNREACHABLE_S_MAX: Final = 10.0
"""Time without any response after which the drill ends."""


class DrillRefused(Exception):
    """The drill was not started. The message gives the reason and the next step."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    at_s: float
    """Seconds since the act. Negative before it."""
    text: str


class DrillRun:
    def __init__(
        self,
        fleet: DrillFleet,
        *,
        progress: Callable[[str], None] = lambda _: None,
        stop: asyncio.Event | None = None,
        interval_s: float = SAMPLE_EVERY_S,
    ) -> None:
        """`progress` gets one line per sample. `stop` is set to end the drill early."""
        self.fleet = fleet
        self.stop = stop or asyncio.Event()
        self.samples: list[DrillSample] = []
        self.timeline: list[tuple[float, str]] = []
        self.acted_at_s: float | None = None
        self.undone_at_s: float | None = None
        self.stopped_because = ""
        self.known_overrides: frozenset[str] = frozenset()
        """Overrides in force at the last check before the act."""
        self._progress = progress
        self._interval_s = interval_s
        self._noted: set[str] = set()
        """Verdicts, unreachable gateways and restarts that are in the timeline already."""

    @property
    def stopped(self) -> bool:
        return self.stop.is_set()

    @property
    def last(self) -> DrillSample:
        return self.samples[-1]

    def end_early(self, why: str) -> None:
        self.stopped_because = self.stopped_because or why
        self.stop.set()

    def note(self, text: str) -> None:
        self.timeline.append((self.fleet.now_s(), text))

    def mark_acted(self) -> None:
        self.acted_at_s = self.fleet.now_s()

    def mark_undone(self) -> None:
        self.undone_at_s = self.fleet.now_s()

    async def take_sample(self, phase: str = "") -> DrillSample:
        sample = await self.fleet.sample()
        if not sample.statuses and self.samples:
            self._note_changes(sample)
            if sample.at_s - self.last.at_s >= UNREACHABLE_S_MAX:
                self.end_early(f"no gateway has responded for {UNREACHABLE_S_MAX:g} s")
            return sample
        if len(self.samples) < SAMPLES_MAX:
            self.samples.append(sample)
        self._note_changes(sample)
        if phase:
            self._progress(self._describe(phase, sample))
        return sample

    async def watch(
        self,
        phase: str,
        seconds: float,
        *,
        until: Callable[[DrillSample], bool] = lambda _: False,
        interval_s: float | None = None,
    ) -> bool:
        """Samples until the time is over, `until` returns true or the drill is stopped. Returns whether `until` did."""
        over_s = self.fleet.now_s() + seconds
        while not self.stopped:
            sample = await self.take_sample(phase)
            if until(sample):
                return True
            left_s = over_s - self.fleet.now_s()
            if left_s <= 0:
                return False
            await self.fleet.wait(min(left_s, interval_s or self._interval_s), self.stop)
        return False

    def _note_changes(self, sample: DrillSample) -> None:
        texts = {incident: f"verdict {incident}: {sentence}" for incident, sentence in sample.incidents.items()}
        texts |= {problem: problem for problem in sample.unreachable}
        texts |= {f"restart {url}": f"the gateway at {url} restarted" for url in sample.restarted}
        for key, text in texts.items():
            if key not in self._noted:
                self._noted.add(key)
                self.note(text)

    def _describe(self, phase: str, sample: DrillSample) -> str:
        figures = self.figures(max(self.samples[0].at_s, sample.at_s - RECOVERY_WINDOW_S), sample.at_s)
        rate = [f"{figures.per_second:.1f} requests/s"] if figures.seconds >= self._interval_s else []
        parts = [phase, *rate, f"{sample.queued} queued"]
        parts += [f"{figures.lost} lost"] if figures.lost else []
        return ", ".join(parts)

    # Figures

    def figures(self, since_s: float, until_s: float) -> PhaseFigures:
        """Returns the figures between the samples next to these times."""
        first = next((each for each in self.samples if each.at_s >= since_s), self.last)
        last = next((each for each in reversed(self.samples) if each.at_s <= until_s), self.samples[0])
        return PhaseFigures.between(first.totals, last.totals, max(0.0, last.at_s - first.at_s))

    def phases(self) -> dict[str, PhaseFigures]:
        """Returns the figures of each phase that the run has reached."""
        begin_s, end_s = self.samples[0].at_s, self.last.at_s
        if self.acted_at_s is None:
            return {"before": self.figures(begin_s, end_s)}
        acted_s = self._sampled_before(self.acted_at_s)
        phases = {"before": self.figures(begin_s, acted_s)}
        undone_s = end_s if self.undone_at_s is None else self._sampled_before(self.undone_at_s)
        phases["during"] = self.figures(acted_s, undone_s)
        if end_s > undone_s:
            phases["after"] = self.figures(undone_s, end_s)
        return phases

    def since_act(self) -> PhaseFigures:
        assert self.acted_at_s is not None, "the drill has not acted"
        return self.figures(self._sampled_before(self.acted_at_s), self.last.at_s)

    def recovered_after_s(self, objectives: Sequence[DrillObjective]) -> float | None:
        assert self.acted_at_s is not None, "the drill has not acted"
        timed = [TimedTotals(each.at_s, each.totals) for each in self.samples]
        return recovered_after_s(timed, objectives, since_s=self.acted_at_s, window_s=RECOVERY_WINDOW_S)

    def timeline_entries(self) -> list[TimelineEntry]:
        zero_s = self.acted_at_s if self.acted_at_s is not None else self.samples[0].at_s
        return [TimelineEntry(round(at_s - zero_s, 1), text) for at_s, text in self.timeline]

    def _sampled_before(self, at_s: float) -> float:
        """Returns the time of the last sample up to this time."""
        return next((each.at_s for each in reversed(self.samples) if each.at_s <= at_s), self.samples[0].at_s)
