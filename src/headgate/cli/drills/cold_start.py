"""Drill `cold-start`: makes the fleet start one more endpoint, measures how long that takes, and restores the count."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headgate.cli.drills.drill_result import DrillResult, DrillVerdict, objective_verdicts
from headgate.cli.drills.drill_run import DrillRefused, DrillRun
from headgate.cli.drills.figures import objectives_of
from headgate.cli.drills.fleet import DrillEndpoint, DrillSample
from headgate.cli.drills.override_act import OverrideAct
from headgate.cli.drills.preflight import watch_before

NAME = "cold-start"
_INTERVAL_S: Final = 0.25
_FIRST_REQUEST_S_MAX: Final = 30.0
"""Maximum wait, once the endpoint is ready, for its first request to complete."""


@dataclass(slots=True)
class _Progress:
    """Times in seconds since the act. None if not reached."""

    known: frozenset[str]
    endpoint: str = ""
    reached_s: dict[str, float] = field(default_factory=dict[str, float])

    def reach(self, phase: str, at_s: float) -> None:
        self.reached_s.setdefault(phase, round(at_s, 2))


@dataclass(frozen=True, slots=True)
class ColdStartDrill:
    pool: str | None
    before_s: int
    wait_s: int | None
    """Maximum wait for the endpoint. None for three times the configured cold start, but at least a minute."""
    after_s: int
    force: bool

    def choose(self, sample: DrillSample) -> str:
        """Returns the pool to scale. Raises `DrillRefused`."""
        scaling = {} if sample.status is None else sample.status.scaling
        pools = {each.pool for each in sample.endpoints} | scaling.keys()
        if self.pool is not None and self.pool not in pools:
            raise DrillRefused(f'there is no pool "{self.pool}"; pools: {", ".join(sorted(pools)) or "none"}')
        wanted = [each for each in sorted(scaling) if self.pool in (None, each)]
        if not wanted:
            which = "no pool is" if self.pool is None else f"pool {self.pool} is not"
            raise DrillRefused(
                f"{which} autoscaled, so the gateway cannot start an endpoint: set pools.NAME.scaling with a fleet of "
                "kind processes, ray or dns. An endpoint that is only drained and readmitted starts nothing, so it "
                "would not measure a cold start; `headgate drill endpoint-loss` drains one"
            )
        if len(wanted) > 1:
            raise DrillRefused(f"several pools are autoscaled: {', '.join(wanted)}; choose one with --pool")
        [pool] = wanted
        limits, count = scaling[pool], self.count(sample, pool)
        if count >= limits.endpoints_max:
            raise DrillRefused(
                f"pool {pool} has {count} endpoints, which is the most that endpoints_max and the budget allow; "
                "raise one of them"
            )
        return pool

    @staticmethod
    def count(sample: DrillSample, pool: str) -> int:
        """Number of endpoints that the pool has or wants, whichever is larger."""
        there = sum(each.pool == pool and not each.leaving for each in sample.endpoints)
        return there if sample.status is None else max(there, sample.status.scaling[pool].desired)

    def wait_max_s(self, sample: DrillSample, pool: str) -> int:
        assert sample.status is not None, "the pool was chosen from the status"
        return self.wait_s or max(60, round(3 * sample.status.scaling[pool].cold_start_s))

    def act(self, run: DrillRun, pool: str) -> OverrideAct:
        longest_s = self.wait_max_s(run.last, pool) + round(_FIRST_REQUEST_S_MAX)
        return OverrideAct(run, NAME, "scale", pool, longest_s, endpoints=self.count(run.last, pool) + 1)

    def describe(self, sample: DrillSample) -> str:
        pool = self.choose(sample)
        count = self.count(sample, pool)
        return (
            f"would watch for {self.before_s} s, raise the minimum of pool {pool} from {count} to {count + 1} "
            f"endpoints, wait at most {self.wait_max_s(sample, pool)} s until the new endpoint is ready and "
            f"{_FIRST_REQUEST_S_MAX:g} s more for its first request, end the minimum, so that the fleet drains one "
            f"endpoint, and watch for {self.after_s} s"
        )

    async def perform(self, run: DrillRun) -> DrillResult:
        await watch_before(run, self.before_s, force=self.force)
        pool = self.choose(run.last)
        status = run.last.status
        assert status is not None, "the pool was chosen from the status"
        configured_s, count = status.scaling[pool].cold_start_s, self.count(run.last, pool)
        progress = _Progress(frozenset(each.id for each in run.last.endpoints))
        longest_s = self.wait_max_s(run.last, pool)
        act = self.act(run, pool)
        await act.place()
        try:
            if await self._watch(run, act, progress, pool, phase="ready", seconds=longest_s):
                phase = "first request served"
                await self._watch(run, act, progress, pool, phase=phase, seconds=_FIRST_REQUEST_S_MAX)
        finally:
            await act.undo()
        restored_s = await self._watch_restored(run, pool, count)
        objectives = objectives_of(run.last.gauges)
        verdicts = [_start_verdict(progress, configured_s), *objective_verdicts(objectives, run.since_act())]
        facts = {
            "endpoint": progress.endpoint or None,
            **{f"{phase} after (s)": progress.reached_s.get(phase) for phase in ("listed", "ready")},
            "first request served after (s)": progress.reached_s.get("first request served"),
            "configured cold start (s)": configured_s,
            "count restored after (s)": restored_s,
            "undo": act.undone,
        }
        return DrillResult(NAME, pool, verdicts, run, act.undone, facts, in_force=act.in_force)

    async def _watch(
        self, run: DrillRun, act: OverrideAct, progress: _Progress, pool: str, *, phase: str, seconds: float
    ) -> bool:
        def until(sample: DrillSample) -> bool:
            _observe(run, progress, _new_endpoint(sample.endpoints, progress, pool), sample.at_s)
            return phase in progress.reached_s

        return await act.watch("during", seconds, until=until, interval_s=_INTERVAL_S)

    async def _watch_restored(self, run: DrillRun, pool: str, count: int) -> float | None:
        """Returns the time since the undo until the pool has its endpoints of before. None if it does not in time."""
        restored: list[float] = []

        def until(sample: DrillSample) -> bool:
            there = sum(each.pool == pool and not each.leaving for each in sample.endpoints)
            if sample.endpoints and there <= count and not restored and run.undone_at_s is not None:
                restored.append(round(sample.at_s - run.undone_at_s, 2))
                run.note(f"the number of endpoints of pool {pool} is {there} again")
            return False

        await run.watch("after", self.after_s, until=until)
        return restored[0] if restored else None


def _new_endpoint(endpoints: Sequence[DrillEndpoint], progress: _Progress, pool: str) -> DrillEndpoint | None:
    new = [each for each in endpoints if each.pool == pool and each.id not in progress.known]
    return next((each for each in new if progress.endpoint in ("", each.id)), None)


def _observe(run: DrillRun, progress: _Progress, endpoint: DrillEndpoint | None, at_s: float) -> None:
    if endpoint is None or run.acted_at_s is None:
        return
    progress.endpoint = endpoint.id
    since_s = at_s - run.acted_at_s
    for phase, reached in (
        ("listed", True),
        ("ready", endpoint.serves),
        ("first request served", endpoint.served > 0),
    ):
        if reached and phase not in progress.reached_s:
            progress.reach(phase, since_s)
            run.note(f"{endpoint.id}: {phase}")


def _start_verdict(progress: _Progress, configured_s: float) -> DrillVerdict:
    served_s, ready_s = progress.reached_s.get("first request served"), progress.reached_s.get("ready")
    target = f"at most {configured_s:g} s (scaling.cold_start)"
    if ready_s is None:
        return DrillVerdict(NAME, target, "the endpoint was not ready in time", held=False)
    if served_s is None:
        # Without traffic for it, the endpoint can only be measured up to the moment when it could serve.
        measured = f"ready after {ready_s:g} s; no request was sent to it"
        return DrillVerdict(NAME, target, measured, ready_s <= configured_s)
    return DrillVerdict(NAME, target, f"first request served after {served_s:g} s", served_s <= configured_s)
