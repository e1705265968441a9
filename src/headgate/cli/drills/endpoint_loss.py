"""Drill `endpoint-loss`: takes one endpoint out of service for a while, and gives it back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.cli.drills.drill_result import DrillResult, objective_verdicts, recovery_text
from headgate.cli.drills.drill_run import DrillRefused, DrillRun
from headgate.cli.drills.figures import DrillObjective, objectives_of
from headgate.cli.drills.fleet import DrillEndpoint, DrillSample
from headgate.cli.drills.override_act import OverrideAct
from headgate.cli.drills.preflight import watch_before

NAME = "endpoint-loss"


@dataclass(frozen=True, slots=True)
class EndpointLossDrill:
    endpoint: str | None
    """None for the busiest endpoint."""
    pool: str | None
    interrupt: bool
    before_s: int
    for_s: int
    after_s: int
    force: bool

    def choose(self, sample: DrillSample) -> DrillEndpoint:
        """Returns the endpoint to take away. Raises `DrillRefused`."""
        ready = [each for each in sample.endpoints if each.serves]
        serving = [each for each in ready if self.pool in (None, each.pool)]
        if self.endpoint is None:
            if not serving:
                raise DrillRefused("no endpoint is serving; run `headgate doctor --live`")
            chosen = max(serving, key=lambda each: (not any(_emptied(each, ready)), each.in_flight, each.id))
        else:
            named = [each for each in serving if each.id == self.endpoint]
            if not named:
                known = ", ".join(each.id for each in serving) or "none"
                raise DrillRefused(f'"{self.endpoint}" is not a serving endpoint; serving: {known}')
            [chosen] = named
        if not self.force and (emptied := next(_emptied(chosen, ready), None)) is not None:
            shared = "" if emptied.id == chosen.id else f", and a drain of {chosen.id} applies to the whole engine"
            raise DrillRefused(
                f"{emptied.id} is the only serving endpoint of pool {emptied.pool}{shared}, so its requests would be "
                "rejected; use --force to drill that"
            )
        return chosen

    def act(self, run: DrillRun, chosen: DrillEndpoint) -> OverrideAct:
        terms = {"interrupt": True} if self.interrupt else {}
        return OverrideAct(run, NAME, "drain", chosen.id, self.for_s, **terms)

    def describe(self, sample: DrillSample) -> str:
        chosen = self.choose(sample)
        how = "its open requests are aborted, as if it had failed" if self.interrupt else "its open requests continue"
        others = [
            f"{each.id} (pool {each.pool})" for each in _affected(chosen, sample.endpoints) if each.id != chosen.id
        ]
        shared = f"with {', '.join(others)} on the same engine, " if others else ""
        return (
            f"would watch for {self.before_s} s, drain {chosen.id} (pool {chosen.pool}, {chosen.in_flight} in flight) "
            f"{shared}for {self.for_s} s, where {how}, give it back, and watch for {self.after_s} s"
        )

    async def perform(self, run: DrillRun) -> DrillResult:
        await watch_before(run, self.before_s, force=self.force)
        chosen = self.choose(run.last)
        objectives = check_baseline(run, force=self.force)
        act = self.act(run, chosen)
        await act.place()
        try:
            await act.watch("during", self.for_s)
        finally:
            await act.undo()
        await run.watch("after", self.after_s)
        facts = {"recovered after": recovery_text(run, objectives), "undo": act.undone}
        return DrillResult(
            NAME,
            chosen.id,
            objective_verdicts(objectives, run.since_act()),
            run,
            act.undone,
            facts,
            in_force=act.in_force,
        )


def _affected(chosen: DrillEndpoint, endpoints: Sequence[DrillEndpoint]) -> list[DrillEndpoint]:
    """Returns the endpoint and all others on its engine, because a drain applies to the whole engine."""
    return [each for each in endpoints if each.id == chosen.id or (each.engine and each.engine == chosen.engine)]


def _emptied(chosen: DrillEndpoint, serving: Sequence[DrillEndpoint]) -> Iterator[DrillEndpoint]:
    """Yields the affected endpoints whose pools would have no serving endpoint left."""
    affected = _affected(chosen, serving)
    left = {each.pool for each in serving if each not in affected}
    # The chosen endpoint comes first, so that the message is about its own pool if possible.
    yield from sorted((each for each in affected if each.pool not in left), key=lambda each: each.id != chosen.id)


def check_baseline(run: DrillRun, *, force: bool) -> tuple[DrillObjective, ...]:
    """Returns the objectives to judge. Raises `DrillRefused` if there is nothing to judge."""
    objectives = objectives_of(run.last.gauges)
    if not objectives:
        raise DrillRefused("no class has objectives; set classes.NAME.objectives (docs/guides/slo.md)")
    before = run.phases()["before"]
    if not force and not any(before.judged(each) for each in objectives):
        raise DrillRefused(
            f"no request of a class with objectives ended in the {before.seconds:.0f} s before the drill, so nothing "
            "could be measured; send traffic (`headgate loadtest`), use a longer --before, or use --force"
        )
    return objectives
