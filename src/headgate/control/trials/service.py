"""Runs setting trials: changes the value at the beginning of each block, measures, and keeps or reverts it.

The process that makes scheduling decisions runs the trial, because it sees the requests of all gateways. The state of a
trial is an override in the store, and each block with the new value is another override, which expires at the end of
the block. If the process that measures is killed or cannot reach the store, no further block gets the new value.
"""

import asyncio
import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from headgate.control.trials.harm import harm
from headgate.control.trials.plan import (
    BASELINE_BLOCKS,
    BLOCK_VERB,
    VERB,
    Effect,
    SettingTrial,
    TrialPhase,
    TrialResult,
    complete_groups,
    decide,
    effects,
    result_of,
    running_trial,
    trials_in,
)
from headgate.control.trials.refusals import refusal
from headgate.control.trials.samples import BlockSamples, BlockSchedule, BlockTally
from headgate.control.trials.start_checks import SettingNotation, check_free, clock_problem, new_trial
from headgate.edge.admin.trials import NewTrial
from headgate.model.live_settings import setting_place
from headgate.model.overrides import SetSetting
from headgate.model.policy import Policy
from headgate.model.units import SECOND, ClassName, Duration, Instant, PoolName, after
from headgate.ports.directory import Actor, ChangeRejected, DirectoryUnavailable, NotFound, OverrideRow, OverrideStore
from headgate.ports.observer import Observer
from headgate.telemetry.log import log_event
from headgate.telemetry.trial_metrics import TrialStats

LOOK_S: Final = 0.5
KEPT_S: Final = 7 * 86_400
"""Time for which a kept value applies, unless the configuration changes the setting before."""
RESULT_S: Final = 86_400
"""Time for which the result of a reverted trial is shown."""
SETTLE_NS: Final = Duration(120 * SECOND)
"""Time after the end of a block at which its open requests count by what is known about them."""
_SETTLE_S: Final = SETTLE_NS // SECOND
_SLACK_S: Final = 60
_OVERRIDES_MAX: Final = 1_000
_REASON_CHARS_MAX: Final = 500
_CONTROLLER: Final = Actor("trial", "")


@dataclass(slots=True)
class _Run:
    """Progress of the trial that this process measures."""

    override: str
    trial: SettingTrial
    schedule: BlockSchedule
    block: int = 0
    """Number of the present block."""
    block_override: OverrideRow | None = None
    """Override that sets the new value for the present block."""
    looks: int = 0
    complete: int = 0
    """Number of groups that `found` covers."""
    found: tuple[Effect, ...] = ()
    reason: str = "the trial has just started"
    decision: TrialResult = TrialResult.NONE
    """Result that is not yet stored, because the store failed."""


class Evaluate(Protocol):
    """Computes the effects that settled blocks show."""

    async def __call__(
        self, trial: SettingTrial, blocks: Mapping[int, BlockTally], classes: Sequence[ClassName]
    ) -> tuple[Effect, ...]: ...


class TrialService:
    """All setting trials. `samples` must observe the scheduler."""

    def __init__(
        self,
        now: Callable[[], Instant],
        notation: SettingNotation,
        changing: asyncio.Lock,
        *,
        observes: bool = True,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(31),
        evaluate: Evaluate | None = None,
    ) -> None:
        """`changing` is held while a trial or a rollout is started or changed. `observes` tells whether `samples` is
        connected to the scheduler. `evaluate` computes effects, by default in a thread.
        """
        self._evaluate = evaluate or _evaluate_in_thread
        self.in_flight_limits: Callable[[PoolName], Collection[int]] = _no_limits
        """Returns the values of `in_flight_max` that a pool's endpoints have."""
        self.policy = Policy()
        """Policy in force, without the overrides applied."""
        self.store: OverrideStore | None = None
        self.samples = BlockSamples()
        self.results: Counter[TrialResult] = Counter()
        """Number of trials that this process has ended, by result."""
        self._now = now
        self._notation = notation
        self._changing = changing
        self._observes = observes
        self._draw_seed = draw_seed
        self._run: _Run | None = None
        self._last: tuple[str, tuple[Effect, ...]] = ("", ())
        """Override with the result of the last trial, and the effects that it showed."""
        self._reloaded = False

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Observers for the scheduler."""
        return (self.samples,) if self._observes else ()

    @property
    def has_new_value(self) -> bool:
        """Whether the present block has the new value."""
        return self._run is not None and self._run.block_override is not None

    def stats(self) -> TrialStats:
        results = {each.value: self.results[each] for each in TrialResult if each is not TrialResult.NONE}
        return TrialStats(self._run is not None, self.has_new_value, results)

    def configuration_applied(self) -> None:
        """Ends the running trial, because its blocks can no longer be compared."""
        self._reloaded = self._run is not None

    async def run(self, decides: Callable[[], bool], *, look_s: float = LOOK_S) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(look_s)
            failure = ""
            try:
                await self.look(decides=decides())
            except (ChangeRejected, DirectoryUnavailable, NotFound) as error:
                failure = str(error)
            if failure:
                log_event(logging.WARNING, "setting trial could not be updated; retrying", reason=failure)

    async def look(self, *, decides: bool = True) -> None:
        """Looks at the trial once: changes the value if a block begins, and keeps or reverts it if that is decided."""
        running = any(isinstance(each, SetSetting) and each.value == each.before for each in self.policy.overrides)
        if self.store is not None and (self._run is not None or (running and decides)):
            async with self._changing:
                await self._look(decides=decides)

    async def _look(self, *, decides: bool) -> None:
        rows = await self._rows()
        found = running_trial(rows)
        run = self._run
        if run is not None and (not decides or found is None or found[0].id != run.override):
            # An operator has ended it, or another process makes the decisions now.
            self._forget()
            run = None
            if decides:
                await self._end_blocks(rows)
        if not decides or found is None:
            return
        row, trial = found
        if (result := result_of(rows, row, trial)) is not None:
            # The store failed between the two writes at the end of the trial.
            await self._complete(rows, *result, _CONTROLLER)
        elif run is None:
            if self._now() >= after(row.created_at, Duration(BASELINE_BLOCKS * trial.block_ns)):
                reason = (
                    "the process that measured the trial has ended or no longer makes the decisions, or its clock "
                    "differs from that of the database"
                )
                await self._finish(row, trial, TrialResult.INTERRUPTED, reason, _CONTROLLER)
            else:
                self._begin(row, trial)
        elif self._reloaded:
            await self._finish(row, trial, TrialResult.RELOADED, "a new configuration was applied", _CONTROLLER)
        else:
            await self._advance(run, row)

    def _begin(self, row: OverrideRow, trial: SettingTrial) -> None:
        new = frozenset(trial.new_block(group) for group in range(trial.groups))
        schedule = BlockSchedule(
            trial.setting, trial.value, row.created_at, trial.block_ns, trial.guard_ns, new, trial.blocks
        )
        self._run = _Run(row.id, trial, schedule)
        self._reloaded = False
        self.samples.watch(schedule)

    def _forget(self) -> None:
        self._run, self._reloaded = None, False
        self.samples.stop()

    async def _advance(self, run: _Run, row: OverrideRow) -> None:
        now, trial = self._now(), run.trial
        if run.decision is TrialResult.NONE:
            await self._decide(run, now)
        if run.decision is not TrialResult.NONE:
            await self._finish(row, trial, run.decision, run.reason, _CONTROLLER)
            return
        await self._change_block(run, run.schedule.block(now), now)

    async def _decide(self, run: _Run, now: Instant) -> None:
        trial = run.trial
        if reason := self._harm(run, now):
            run.decision, run.reason = TrialResult.WORSE, reason
            return
        settled = self.samples.settled(now, SETTLE_NS)
        over = now >= run.schedule.begin(trial.blocks) and len(settled) == len(self.samples.blocks)
        complete = complete_groups(trial, settled)
        if over or complete != run.complete:
            found = await self._evaluate(trial, settled, [each.name for each in self.policy.classes])
            if self._reloaded:
                return
            run.complete, run.found = complete, found
            run.decision, run.reason = decide(trial, found, over=over)

    def _harm(self, run: _Run, now: Instant) -> str:
        block = self.samples.blocks.get(run.block)
        if block is None or not block.has_new_value:
            return ""
        run.looks += 1
        return harm(block, self.samples.blocks.values(), self.samples.open_requests(block, now), run.looks)

    async def _change_block(self, run: _Run, block: int, now: Instant) -> None:
        """Sets the value of the block that has just begun."""
        if block == run.block:
            return
        if (earlier := run.block_override) is not None:
            run.block_override = None
            await self._end(earlier.id, _CONTROLLER)
        if run.trial.has_new_value(block):
            left_s = math.ceil((run.schedule.begin(block + 1) - now) / SECOND)
            terms = {"before": run.trial.before, "value": run.trial.value}
            run.block_override = await self._store.create_override(
                BLOCK_VERB, run.trial.setting, terms, _CONTROLLER, reason=f"block {block}", duration_s=left_s
            )
        run.block = block

    async def _finish(
        self, row: OverrideRow, trial: SettingTrial, result: TrialResult, reason: str, actor: Actor
    ) -> OverrideRow:
        """Stores the result, and ends the trial's override last. If the store fails, the next look continues here."""
        kept = result in (TrialResult.IMPROVED, TrialResult.HARMLESS)
        ended = trial.ended(TrialPhase.KEPT if kept else TrialPhase.REVERTED, result)
        rows = await self._rows()
        if not kept:
            # An attempt to keep the value may have failed halfway. Revert the value before the result is stored.
            await self._end_blocks(rows)
            await self._end_trials(rows, trial.setting, actor, spare=row.id)
        written = await self._write(ended, actor, reason, KEPT_S if kept else RESULT_S)
        await self._complete(rows, written, ended, actor)
        return written

    async def _complete(
        self, rows: Sequence[OverrideRow], written: OverrideRow, ended: SettingTrial, actor: Actor
    ) -> None:
        """Ends the other overrides of a trial whose result is stored."""
        await self._end_blocks(rows)
        await self._end_trials(rows, ended.setting, actor, spare=written.id)
        self._last = (written.id, () if self._run is None else self._run.found)
        self._forget()
        self.results[ended.result] += 1
        level = logging.WARNING if ended.result is TrialResult.WORSE else logging.INFO
        result, reason = ended.result.value, written.reason
        log_event(level, f"setting trial {ended.phase}", setting=ended.setting, result=result, reason=reason)

    async def _end_trials(self, rows: Sequence[OverrideRow], setting: str, actor: Actor, *, spare: str) -> None:
        """Ends all trials of a setting but one. The running one is last, because it makes the next look continue."""
        others = [(row, trial) for row, trial in trials_in(rows) if trial.setting == setting and row.id != spare]
        for row, _ in sorted(others, key=lambda each: each[1].phase is TrialPhase.RUNNING):
            await self._end(row.id, actor)

    async def _end_blocks(self, rows: Sequence[OverrideRow]) -> None:
        for each in rows:
            if each.verb == BLOCK_VERB:
                await self._end(each.id, _CONTROLLER)

    async def _end(self, override: str, actor: Actor) -> None:
        # It may have expired, or an operator may have ended it.
        with suppress(NotFound):
            await self._store.end_override(override, actor)

    async def _write(self, trial: SettingTrial, actor: Actor, reason: str, duration_s: int) -> OverrideRow:
        return await self._store.create_override(
            VERB, trial.setting, trial.terms(), actor, reason=reason[:_REASON_CHARS_MAX], duration_s=duration_s
        )

    @property
    def _store(self) -> OverrideStore:
        assert self.store is not None, "an operator can only authenticate if there is a store"
        return self.store

    async def _rows(self) -> Sequence[OverrideRow]:
        return await self._store.overrides(limit=_OVERRIDES_MAX)

    # Operators

    async def start(self, asked: NewTrial, actor: Actor) -> Mapping[str, object]:
        if not self._observes:
            raise ChangeRejected("no operator was configured when the gateway started; restart it to measure trials")
        place = setting_place(asked.setting)
        if place is None:
            raise ChangeRejected(refusal(asked.setting))
        async with self._changing:
            rows = await self._rows()
            check_free(rows, asked.setting)
            trial = new_trial(asked, place, self.policy, self.in_flight_limits, self._notation, seed=self._draw_seed())
            asked_at = self._now()
            row = await self._write(trial, actor, "started", trial.blocks * trial.block_s + _SETTLE_S + _SLACK_S)
            if problem := clock_problem(trial, row, asked_at, self._now()):
                await self._end(row.id, actor)
                raise ChangeRejected(problem)
            for earlier, ended in trials_in(rows):
                if ended.phase is TrialPhase.REVERTED:
                    await self._end(earlier.id, actor)
        return self._json(row, trial)

    async def abort(self, actor: Actor) -> Mapping[str, object]:
        """Returns to the old value."""
        async with self._changing:
            found = running_trial(await self._rows())
            if found is None:
                raise NotFound("no setting trial is running; `headgate operate list` shows a value that was kept")
            row, trial = found
            written = await self._finish(row, trial, TrialResult.ABORTED, f"aborted by {actor.name}", actor)
        return self._json(written, trial.ended(TrialPhase.REVERTED, TrialResult.ABORTED))

    async def status(self) -> Sequence[Mapping[str, object]]:
        return [self._json(row, trial) for row, trial in trials_in(await self._rows())]

    def _json(self, row: OverrideRow, trial: SettingTrial) -> Mapping[str, object]:
        run = self._run if self._run is not None and self._run.override == row.id else None
        place = setting_place(trial.setting)
        assert place is not None, "only known settings have trials"
        blocks = self.samples.blocks.values() if run is not None else ()
        ended, effects_at_end = self._last
        found = run.found if run is not None else effects_at_end if ended == row.id else ()
        return {
            "setting": trial.setting,
            "before": self._notation.text(place.setting, trial.before),
            "value": self._notation.text(place.setting, trial.value),
            "phase": trial.phase.value,
            "result": trial.result.value,
            "reason": row.reason if run is None else run.reason,
            "share_percent": trial.share_percent,
            "block_s": trial.block_s,
            "duration_s": trial.duration_s,
            "keep_if": trial.keep_if.value,
            "tolerance_percent": trial.tolerance_percent,
            "seed": trial.seed,
            "blocks": trial.blocks,
            "block": None if run is None else run.block,
            "new_value_in_force": trial.phase is TrialPhase.KEPT or (run is not None and self.has_new_value),
            "blocks_left_out": sum(each.wrong_value for each in blocks),
            "effects": [_effect_json(each) for each in found],
            "override": row.id,
            "since": row.created_at,
            "expires": row.expires_at,
        }


async def _evaluate_in_thread(
    trial: SettingTrial, blocks: Mapping[int, BlockTally], classes: Sequence[ClassName]
) -> tuple[Effect, ...]:
    """Computes effects while the event loop serves requests: many groups need up to a second."""
    return await asyncio.to_thread(effects, trial, blocks, classes)


def _no_limits(_: PoolName) -> Collection[int]:
    """Used until the gateway's fleets are known."""
    return ()


def _effect_json(each: Effect) -> dict[str, object]:
    found = each.interval
    return {
        "subject": each.subject.value,
        "name": each.name,
        "low": None if found is None else found.low,
        "estimate": None if found is None else found.estimate,
        "high": None if found is None else found.high,
        "groups": each.groups,
    }
