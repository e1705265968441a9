"""Drill `endpoint-loss`: takes one endpoint out of service for a while, and gives it back."""

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
        serving = [each for each in sample.endpoints if each.serves and self.pool in (None, each.pool)]
        if self.endpoint is None:
            if not serving:
                raise DrillRefused("no endpoint is serving; run `headgate doctor --live`")
            counts = {each.pool: sum(other.pool == each.pool for other in serving) for each in serving}
            chosen = max(serving, key=lambda each: (counts[each.pool] > 1, each.in_flight, each.id))
        else:
            named = [each for each in serving if each.id == self.endpoint]
            if not named:
                known = ", ".join(each.id for each in serving) or "none"
                raise DrillRefused(f'"{self.endpoint}" is not a serving endpoint; serving: {known}')
            [chosen] = named
        if not self.force and not any(each.pool == chosen.pool and each.id != chosen.id for each in serving):
            raise DrillRefused(
                f"{chosen.id} is the only serving endpoint of pool {chosen.pool}, so its requests would be rejected; "
                "use --force to drill that"
            )
        return chosen

    def act(self, run: DrillRun, chosen: DrillEndpoint) -> OverrideAct:
        terms = {"interrupt": True} if self.interrupt else {}
        return OverrideAct(run, NAME, "drain", chosen.id, self.for_s, **terms)

    def describe(self, sample: DrillSample) -> str:
        chosen = self.choose(sample)
        how = "its open requests are aborted, as if it had failed" if self.interrupt else "its open requests continue"
        return (
            f"would watch for {self.before_s} s, drain {chosen.id} (pool {chosen.pool}, {chosen.in_flight} in flight) "
            f"for {self.for_s} s, where {how}, give it back, and watch for {self.after_s} s"
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
