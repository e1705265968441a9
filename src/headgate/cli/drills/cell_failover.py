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
from headgate.cli.input.admin_request import AdminRequestFailed

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
        await self._hand_over(run)
        run.note(f"{cell.member} handed over (epoch {cell.epoch})")
        await self._watch_takeover(run, takeover)
        await run.take_sample("during")
        run.mark_undone()
        await run.watch("after", self.after_s)
        return self._result(run, cell, takeover)

    async def _hand_over(self, run: DrillRun) -> None:
        body = {"pause_s": self.pause_s, "reason": f"{REASON}: {NAME}"}
        # The time without decisions begins at some point during the call. Counting from its start is the upper bound.
        run.mark_acted()
        try:
            await run.fleet.post("cell/hand-over", body)
        except AdminRequestFailed as problem:
            raise DrillRefused(str(problem)) from None

    async def _watch_takeover(self, run: DrillRun, takeover: _Takeover) -> None:
        assert run.acted_at_s is not None, "the drill has acted"
        fleet, gateways, last_s = run.fleet, len(run.last.statuses), run.fleet.now_s()
        # If nothing takes over, the old scheduler does after its pause.
        over_s = run.acted_at_s + self.pause_s + max(5.0, 3 * self.gap_s_max)
        never = asyncio.Event()
        while fleet.now_s() < over_s:
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
