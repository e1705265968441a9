"""The act of a drill: one override, which the gateway ends by itself if this command cannot.

The override's reason contains a number drawn for this drill, so that it is found even if the response to its creation
was lost.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from headgate.cli.drills.drill_run import DrillRefused, DrillRun
from headgate.cli.drills.fleet import DrillSample, active_overrides
from headgate.cli.input.admin_request import AdminRequestFailed

REASON: Final = "drill"
EXPIRY_MARGIN_S: Final = 5
"""How much longer than the drill the override lasts if nothing ends it."""
_UNDO_TRIES: Final = 5
_CHECK_EVERY_S: Final = 5.0
_CUT_SHORT: Final = "the drill's override ended before its time"
_RETRY_S: Final = 1.0


def is_drill(override: Mapping[str, Any]) -> bool:
    return str(override.get("reason", "")).startswith(f"{REASON}: ")


class OverrideAct:
    def __init__(self, run: DrillRun, kind: str, verb: str, target: str, duration_s: int, **terms: object) -> None:
        self._run = run
        self.duration_s = duration_s + EXPIRY_MARGIN_S
        self.reason = f"{REASON}: {kind} {secrets.token_hex(3)}"
        self._body = {"verb": verb, "target": target, "reason": self.reason, "duration_s": self.duration_s, **terms}
        self._id: str | None = None
        self._expires_s = 0.0
        self._end_requested = False
        self.undone = "not placed"
        """How the act ended."""
        self.in_force = False
        """Whether the override may still be in force."""

    @property
    def request(self) -> Mapping[str, object]:
        """Body of the request that places the override, without the random number."""
        return {**self._body, "reason": self.reason.rpartition(" ")[0]}

    async def place(self) -> None:
        """Places the override. Raises `DrillRefused` if the gateway rejects it.

        If another drill has begun since the last check, undoes the act and ends the drill.
        """
        fleet = self._run.fleet
        self._expires_s = fleet.now_s() + self.duration_s
        self.undone, self.in_force = "unknown", True
        try:
            answer = await fleet.post("overrides/create", self._body)
        except AdminRequestFailed as problem:
            # The override may exist, if only the response was lost.
            await self.undo()
            raise DrillRefused(str(problem)) from None
        self._id = str(answer["override"])
        self._run.mark_acted()
        expires = f"expires at {answer['expires_at']} if nothing ends it"
        self._run.note(f"placed {self._id}: {self._body['verb']} {self._body['target']}; {expires}")
        known = {self._id, *self._run.known_overrides}
        if any(is_drill(each) and each["override"] not in known for each in await self._others()):
            await self._give_way()

    async def _give_way(self) -> None:
        placed_s = self._run.fleet.now_s()
        await self.undo()
        undone = self.undone if self.in_force else f"undone after {self._run.fleet.now_s() - placed_s:.1f} s"
        self._run.end_early(f"another drill started at the same moment; {undone}; run `headgate operate list`")

    async def _others(self) -> list[dict[str, Any]]:
        try:
            return await active_overrides(self._run.fleet)
        except AdminRequestFailed:
            return []

    async def is_active(self) -> bool:
        """Whether the override is in force. True if the gateway does not say."""
        try:
            return any(each["override"] == self._id for each in await active_overrides(self._run.fleet))
        except AdminRequestFailed:
            return True

    async def watch(
        self,
        phase: str,
        seconds: float,
        *,
        until: Callable[[DrillSample], bool] = lambda _: False,
        interval_s: float | None = None,
    ) -> bool:
        """Watches the fleet like `DrillRun.watch`, and ends the drill if its override is not in force any more."""
        run, over_s = self._run, self._run.fleet.now_s() + seconds
        while (left_s := over_s - run.fleet.now_s()) > _CHECK_EVERY_S:
            if await run.watch(phase, _CHECK_EVERY_S, until=until, interval_s=interval_s):
                return True
            if run.stopped:
                return False
            if not await self.is_active() and run.fleet.now_s() < self._expires_s:
                run.end_early(_CUT_SHORT)
        return await run.watch(phase, max(0.0, left_s), until=until, interval_s=interval_s)

    async def undo(self) -> None:
        """Ends the override, if it may still be in force. Never raises `AdminRequestFailed`."""
        if not self.in_force:
            return
        fleet, never = self._run.fleet, asyncio.Event()
        for number in range(_UNDO_TRIES):
            try:
                await self._end()
            except AdminRequestFailed as problem:
                if fleet.now_s() >= self._expires_s:
                    self.undone, self.in_force = "the override expired by itself", False
                    break
                left_s = max(0, round(self._expires_s - fleet.now_s()))
                self.undone = f"NOT ended by this command ({problem}); it expires by itself within {left_s} s"
                if number + 1 < _UNDO_TRIES:
                    await fleet.wait(_RETRY_S, never)
            else:
                self.in_force = False
                break
        self._run.mark_undone()
        self._run.note(f"undo: {self.undone}")

    async def _end(self) -> None:
        mine = [each for each in await active_overrides(self._run.fleet) if each.get("reason") == self.reason]
        if not mine:
            self.undone = "the override was not in force any more"
            # If an earlier try has ended it, only its response was lost.
            if not self._end_requested and self._run.fleet.now_s() < self._expires_s:
                self._run.end_early(_CUT_SHORT)
            return
        self._end_requested = True
        for each in mine:
            await self._run.fleet.post("overrides/end", {"override": each["override"]})
        self.undone = f"ended {', '.join(str(each['override']) for each in mine)}"
