"""Drill `cell-failover`: makes the scheduler of a cell hand over, and measures what the cell loses."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headgate.cli.drills.drill_result import DrillResult, DrillVerdict, objective_verdicts
from headgate.cli.drills.drill_run import DrillRefused, DrillRun
from headgate.cli.drills.figures import objectives_of
from headgate.cli.drills.fleet import DrillCell, DrillSample, DrillStatus
from headgate.cli.drills.override_act import REASON
from headgate.cli.drills.preflight import watch_before
from headgate.cli.input.admin_request import AdminRequestFailed, AdminResponseLost

NAME = "cell-failover"
_POLL_S: Final = 0.02


@dataclass(slots=True)
class _Takeover:
    """What was seen of the takeover. Times are in seconds since the hand-over."""

    old_epoch: int
    decided_after_s: float | None = None
    """None while no other scheduler decides."""
    followed_after_s: float | None = None
    """None while a gateway does not follow the new scheduler."""
    scheduler: str = ""
    epoch: int = 0
    islands: int = 0
    """Largest number of gateways that were islands at the same time."""
    resolution_s: float = 0.0
    """Longest time between two looks before a scheduler decided."""

    def look(self, statuses: Mapping[str, DrillStatus], since_s: float, gateways: int) -> bool:
        """Records the state. Returns whether the takeover is complete."""
        cells = [each.cell for each in statuses.values() if each.cell is not None]
        self.islands = max(self.islands, sum(each.mode == "island" for each in cells))
        new = [each for each in cells if each.decides and each.epoch is not None and each.epoch > self.old_epoch]
        if new and self.decided_after_s is None:
            self.decided_after_s, self.scheduler = since_s, new[0].member
            self.epoch = new[0].epoch or 0
        following = sum(each.mode == "following" and (each.epoch or 0) > self.old_epoch for each in cells)
        if self.decided_after_s is not None and following == gateways and self.followed_after_s is None:
            self.followed_after_s = since_s
        return self.followed_after_s is not None


@dataclass(frozen=True, slots=True)
class CellFailoverDrill:
    before_s: int
    after_s: int
    gap_s_max: float
    """Longest time without decisions that counts as held."""
    pause_s: int
    """Time during which the old scheduler does not take over again."""
    force: bool

    def choose(self, sample: DrillSample) -> DrillCell:
        """Returns the cell as its scheduler sees it. Raises `DrillRefused`."""
        cell = next((each.cell for each in sample.statuses.values()), None)
        if cell is None:
            raise DrillRefused("the gateway does not belong to a cell; see docs/guides/run-a-cell.md")
        if not cell.decides:
            address = cell.admin_addresses.get(cell.scheduler or "", "its admin listener")
            raise DrillRefused(f"{cell.member} is not the cell's scheduler, but {cell.scheduler}; use --url {address}")
        if not cell.members.keys() - {cell.member}:
            raise DrillRefused("the cell has no other process that could take over; start another gateway")
        return cell

    def describe(self, sample: DrillSample) -> str:
        cell = self.choose(sample)
        return (
            f"would watch for {self.before_s} s, make {cell.member} (scheduler of {len(cell.members)} processes, "
            f"epoch {cell.epoch}) hand over, so that it is no candidate for {self.pause_s} s, and watch for "
            f"{self.after_s} s; nothing has to be undone, because it becomes a candidate again by itself"
        )

    async def perform(self, run: DrillRun) -> DrillResult:
        await watch_before(run, self.before_s, force=self.force)
        cell = self.choose(run.last)
        assert cell.epoch is not None, "a scheduler follows its own epoch"
        takeover = _Takeover(cell.epoch)
        await self._hand_over(run, cell, takeover)
        await run.take_sample("during")
        run.mark_undone()
        await run.watch("after", self.after_s)
        return self._result(run, cell, takeover)

    async def _hand_over(self, run: DrillRun, cell: DrillCell, takeover: _Takeover) -> None:
        """Requests the hand-over and watches the takeover meanwhile, because the response may be late or lost."""
        # The time without decisions begins at some point during the call. Counting from its start is the upper bound.
        run.mark_acted()
        call = asyncio.create_task(self._request(run, cell))
        try:
            await self._watch_takeover(run, takeover, call)
            problem = call.result() if call.done() else None
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        if problem is None:
            return
        if not isinstance(problem, AdminResponseLost):
            raise DrillRefused(str(problem))
        statuses = await run.fleet.statuses()
        if any(each.cell and each.cell.decides and each.cell.epoch == cell.epoch for each in statuses.values()):
            raise DrillRefused(f"{problem}; {cell.member} is still the scheduler (epoch {cell.epoch})")

    async def _request(self, run: DrillRun, cell: DrillCell) -> AdminRequestFailed | None:
        body = {"pause_s": self.pause_s, "reason": f"{REASON}: {NAME}"}
        try:
            await run.fleet.post("cell/hand-over", body)
        except AdminResponseLost as problem:
            run.note(f"{problem}; the epoch will show whether {cell.member} handed over")
            return problem
        except AdminRequestFailed as problem:
            return problem
        run.note(f"{cell.member} handed over (epoch {cell.epoch})")
        return None

    async def _watch_takeover(
        self, run: DrillRun, takeover: _Takeover, call: "asyncio.Task[AdminRequestFailed | None]"
    ) -> None:
        """Watches until the takeover is complete, it is late, or the gateway has rejected the request."""
        assert run.acted_at_s is not None, "the drill has acted"
        fleet, gateways, last_s = run.fleet, len(run.last.statuses), run.fleet.now_s()
        # If nothing takes over, the old scheduler does after its pause.
        longest_s, never = self.pause_s + max(5.0, 3 * self.gap_s_max), asyncio.Event()
        over_s = fleet.now_s() + longest_s
        while fleet.now_s() < over_s:
            if not call.done():
                over_s = fleet.now_s() + longest_s
            elif (problem := call.result()) is not None and not isinstance(problem, AdminResponseLost):
                return
            statuses = await fleet.statuses()
            now_s = fleet.now_s()
            if takeover.decided_after_s is None:
                takeover.resolution_s = max(takeover.resolution_s, now_s - last_s)
            last_s, decided = now_s, takeover.decided_after_s is not None
            complete = takeover.look(statuses, now_s - run.acted_at_s, gateways)
            if not decided and takeover.decided_after_s is not None:
                run.note(f"{takeover.scheduler} decides (epoch {takeover.epoch})")
            if complete:
                run.note("all gateways follow it")
                return
            await fleet.wait(_POLL_S, never)

    def _result(self, run: DrillRun, cell: DrillCell, takeover: _Takeover) -> DrillResult:
        figures, gap_s = run.since_act(), takeover.decided_after_s
        measured = "no scheduler decided again" if gap_s is None else f"{gap_s:.2f} s"
        verdicts = [
            DrillVerdict(
                "time without decisions",
                f"at most {self.gap_s_max:g} s",
                measured,
                held=gap_s is not None and gap_s <= self.gap_s_max,
            ),
            DrillVerdict("lost requests", "0", f"{figures.lost} of {figures.requests}", held=not figures.lost),
            *objective_verdicts(objectives_of(run.last.gauges), figures),
        ]
        facts: dict[str, object] = {
            "new scheduler": takeover.scheduler or None,
            "without decisions (s)": gap_s,
            "measured to within (s)": round(takeover.resolution_s, 3),
            "followed by all gateways after (s)": takeover.followed_after_s,
            "gateways that became islands": takeover.islands,
            "outcomes since the hand-over": figures.outcomes(),
            "retries": figures.retries,
        }
        undone = f"{cell.member} is a candidate again after {self.pause_s} s; the scheduler role stays where it is"
        return DrillResult(NAME, cell.member, verdicts, run, undone, facts)
