"""Runs rollouts: looks at the measurements every second, and moves to the next step or reverts.

The process that makes scheduling decisions runs them, because it sees the requests of all gateways. The state of a
rollout is an override in the store. After a change of the scheduler or a restart, the rollout continues from its step
with new measurements.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.control.rollouts.plan import (
    LOOK_S,
    STEPS_PERCENT,
    Action,
    InvalidRollout,
    Measurement,
    Rollout,
    RolloutPhase,
    decide,
    measurements,
    new_rollout,
    rollout_of,
)
from headgate.control.rollouts.samples import RolloutSamples
from headgate.control.trials.plan import running_trial
from headgate.model.overrides import SetRouteWeights
from headgate.model.policy import Policy
from headgate.model.units import Instant, ModelName
from headgate.ports.directory import Actor, ChangeRejected, DirectoryUnavailable, NotFound, OverrideRow, OverrideStore
from headgate.ports.observer import Observer
from headgate.telemetry.log import log_event

VERB: Final = "rollout"
OVERRIDE_S: Final = 7 * 86_400
"""Duration of a step's override. After that, the weights of the configuration file apply again."""
_OVERRIDES_MAX: Final = 1_000
_REASON_CHARS_MAX: Final = 500
_CONTROLLER: Final = Actor("rollout", "")


@dataclass(slots=True)
class _Step:
    """Progress within one step, as far as this process knows."""

    override: str
    looks: int = 0
    counted: int = 0
    """Number of requests at the last look."""
    found: tuple[Measurement, ...] = ()
    reason: str = ""


class RolloutService:
    """All rollouts. `samples` must observe the scheduler."""

    def __init__(self, now: Callable[[], Instant], *, observes: bool = True) -> None:
        """`observes` tells whether `samples` is connected to the scheduler."""
        self.policy = Policy()
        """Policy in force."""
        self.observes = observes
        self._now = now
        self.samples = RolloutSamples()
        self.store: OverrideStore | None = None
        """Store of the overrides. None if no operator can authenticate."""
        self._steps: dict[ModelName, _Step] = {}
        self.changing = asyncio.Lock()
        """Held while a rollout or a setting trial is read and changed. Otherwise two operators could each start one."""

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Observers for the scheduler."""
        return (self.samples,) if self.observes else ()

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
                log_event(logging.WARNING, "rollout could not be updated; retrying", reason=failure)

    async def look(self, *, decides: bool = True) -> None:
        """Looks at all rollouts once, and changes the weights if that is due."""
        has_weights = any(isinstance(each, SetRouteWeights) for each in self.policy.overrides)
        if self.store is None or not (has_weights or self._steps):
            return
        async with self.changing:
            await self._look(decides=decides)

    async def _look(self, *, decides: bool) -> None:
        rollouts = await self._rollouts() if decides else []
        running = [(row, each) for row, each in rollouts if each.phase is RolloutPhase.RUNNING]
        for gone in self._steps.keys() - {each.model for _, each in running}:
            self.samples.forget(gone)
            del self._steps[gone]
        for row, rollout in running:
            await self._advance(row, rollout)

    async def _advance(self, row: OverrideRow, rollout: Rollout) -> None:
        step = self._steps.get(rollout.model)
        if step is None or step.override != row.id:
            self._steps[rollout.model] = _Step(row.id)
            # Without traffic on the base, the last step is compared with the step before.
            kept = (rollout.base,) if rollout.percent == STEPS_PERCENT[-1] else ()
            self.samples.watch(rollout.model, (rollout.base, rollout.candidate), kept)
            return
        sides = self.samples.of(rollout.model)
        counted = sum(each.errors.count for each in sides.values())
        if counted != step.counted or not step.looks:
            step.looks, step.counted = step.looks + 1, counted
        step.found = measurements(rollout, sides, step.looks)
        action, step.reason = decide(rollout, step.found, stepped_at=row.created_at, now=self._now())
        if action is Action.ADVANCE:
            await self._replace(row, rollout.next_step(), _CONTROLLER, step.reason)
        elif action is Action.REVERT:
            await self._replace(row, rollout.reverted(), _CONTROLLER, step.reason)

    async def _replace(self, row: OverrideRow, rollout: Rollout, actor: Actor, reason: str) -> OverrideRow:
        """Writes the new state before it ends the old one. The latest override applies, so no weights are lost."""
        written = await self._write(rollout, actor, reason)
        await self._store.end_override(row.id, actor)
        log_event(
            logging.WARNING if rollout.phase is RolloutPhase.REVERTED else logging.INFO,
            f"rollout {rollout.phase.value}",
            model=rollout.model,
            candidate=rollout.candidate,
            percent=rollout.percent,
            reason=reason,
        )
        return written

    async def _write(self, rollout: Rollout, actor: Actor, reason: str) -> OverrideRow:
        text = reason[:_REASON_CHARS_MAX]
        return await self._store.create_override(
            VERB, rollout.model, rollout.terms(), actor, reason=text, duration_s=OVERRIDE_S
        )

    @property
    def _store(self) -> OverrideStore:
        assert self.store is not None, "an operator can only authenticate if there is a store"
        return self.store

    async def _rollouts(self) -> list[tuple[OverrideRow, Rollout]]:
        """Returns the latest rollout of each model."""
        found: dict[str, tuple[OverrideRow, Rollout]] = {}
        for row in await self._store.overrides(limit=_OVERRIDES_MAX):
            if row.verb == VERB and (rollout := rollout_of(row.target, row.parameters)) is not None:
                latest = found.get(row.target)
                if latest is None or row.created_at >= latest[0].created_at:
                    found[row.target] = row, rollout
        return list(found.values())

    # Operators

    async def start(
        self, model: str, candidate: str, base: str | None, actor: Actor, *, step_s: int, tolerance_percent: int
    ) -> Mapping[str, object]:
        if not self.observes:
            raise ChangeRejected("no model had routes when the gateway started; restart it to measure rollouts")
        declared = next((each for each in self.policy.models if each.name == model), None)
        if declared is None:
            raise NotFound(f'no model "{model}"')
        async with self.changing:
            if (trial := running_trial(await self._store.overrides(limit=_OVERRIDES_MAX))) is not None:
                raise ChangeRejected(f"a trial of {trial[1].setting} is running; wait for its end, or abort it")
            earlier = await self._find(model)
            if earlier is not None and earlier[1].phase is RolloutPhase.RUNNING:
                raise ChangeRejected(f'a rollout of "{model}" is running; abort it first')
            try:
                rollout = new_rollout(declared, candidate, base, step_s=step_s, tolerance_percent=tolerance_percent)
            except InvalidRollout as problem:
                raise ChangeRejected(str(problem)) from None
            row = await self._write(rollout, actor, "started")
            if earlier is not None:
                await self._store.end_override(earlier[0].id, actor)
        return self._json(row, rollout)

    async def step(self, model: str, actor: Actor) -> Mapping[str, object]:
        """Moves to the next step without waiting for evidence."""
        async with self.changing:
            row, rollout = await self._known(model)
            if rollout.phase is not RolloutPhase.RUNNING:
                raise ChangeRejected(f'the rollout of "{model}" is {rollout.phase.value}; start a new one')
            later = rollout.next_step()
            return self._json(await self._replace(row, later, actor, f"step by {actor.name}"), later)

    async def abort(self, model: str, actor: Actor) -> Mapping[str, object]:
        """Returns the traffic of the candidate to the base route."""
        async with self.changing:
            row, rollout = await self._known(model)
            if rollout.phase is RolloutPhase.REVERTED:
                raise ChangeRejected(f'the rollout of "{model}" is already reverted')
            undone = rollout.reverted()
            return self._json(await self._replace(row, undone, actor, f"aborted by {actor.name}"), undone)

    async def status(self, model: str | None) -> Sequence[Mapping[str, object]]:
        return [self._json(row, each) for row, each in await self._rollouts() if model in (None, row.target)]

    async def _find(self, model: str) -> tuple[OverrideRow, Rollout] | None:
        return next((each for each in await self._rollouts() if each[0].target == model), None)

    async def _known(self, model: str) -> tuple[OverrideRow, Rollout]:
        if (found := await self._find(model)) is None:
            raise NotFound(f'no rollout of "{model}"; start one with `headgate rollout start`')
        return found

    def _json(self, row: OverrideRow, rollout: Rollout) -> Mapping[str, object]:
        step = self._steps.get(rollout.model)
        known = step is not None and step.override == row.id
        return {
            "model": rollout.model,
            "base": rollout.base,
            "candidate": rollout.candidate,
            "phase": rollout.phase.value,
            "percent": rollout.percent,
            "override": row.id,
            "reason": step.reason if known and step is not None and step.reason else row.reason,
            "looks": step.looks if known and step is not None else 0,
            "measurements": [_measurement_json(each) for each in (step.found if known and step is not None else ())],
            "since": row.created_at,
            "expires": row.expires_at,
        }


def _measurement_json(each: Measurement) -> dict[str, object]:
    found = each.interval
    return {
        "name": each.name,
        "unit": each.unit,
        "low": None if found is None else found.low,
        "estimate": None if found is None else found.estimate,
        "high": None if found is None else found.high,
        "limit": each.limit,
    }
