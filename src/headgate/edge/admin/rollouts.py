"""Rollout paths of the administration API."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

from msgspec import Meta

from headgate.edge.admin.api import AdminBody, AdminRoute, Name, utc_text
from headgate.model.units import Instant
from headgate.ports.directory import Actor

STEP_S_MAX = 6 * 86_400


class RolloutRef(AdminBody, frozen=True):
    model: Name


class NewRollout(AdminBody, frozen=True):
    model: Name
    candidate: Name
    base: Name | None = None
    step_s: Annotated[int, Meta(ge=1, le=STEP_S_MAX)] = 300
    tolerance_percent: Annotated[int, Meta(ge=1, le=100)] = 10


class RolloutQuery(AdminBody, frozen=True):
    model: Name | None = None


class Rollouts(Protocol):
    """Rollouts of models. The methods raise the exceptions of `OverrideStore`."""

    async def start(
        self, model: str, candidate: str, base: str | None, actor: Actor, *, step_s: int, tolerance_percent: int
    ) -> Mapping[str, object]: ...

    async def step(self, model: str, actor: Actor) -> Mapping[str, object]: ...

    async def abort(self, model: str, actor: Actor) -> Mapping[str, object]: ...

    async def status(self, model: str | None) -> Sequence[Mapping[str, object]]: ...


def rollout_routes(rollouts: Rollouts) -> Mapping[bytes, AdminRoute]:
    paths = _RolloutPaths(rollouts)
    return {
        b"/admin/v1/rollouts/start": AdminRoute(NewRollout, paths.start, writes=True),
        b"/admin/v1/rollouts/step": AdminRoute(RolloutRef, paths.step, writes=True),
        b"/admin/v1/rollouts/abort": AdminRoute(RolloutRef, paths.abort, writes=True),
        b"/admin/v1/rollouts/status": AdminRoute(RolloutQuery, paths.status, writes=False),
    }


class _RolloutPaths:
    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    async def start(self, asked: NewRollout, actor: Actor) -> Mapping[str, object]:
        return _dated(
            await self._rollouts.start(
                asked.model,
                asked.candidate,
                asked.base,
                actor,
                step_s=asked.step_s,
                tolerance_percent=asked.tolerance_percent,
            )
        )

    async def step(self, asked: RolloutRef, actor: Actor) -> Mapping[str, object]:
        return _dated(await self._rollouts.step(asked.model, actor))

    async def abort(self, asked: RolloutRef, actor: Actor) -> Mapping[str, object]:
        return _dated(await self._rollouts.abort(asked.model, actor))

    async def status(self, asked: RolloutQuery, _: Actor) -> Mapping[str, object]:
        return {"data": [_dated(each) for each in await self._rollouts.status(asked.model)]}


def _dated(rollout: Mapping[str, object]) -> dict[str, object]:
    """Returns the rollout with its instants as text."""
    return {
        name: utc_text(Instant(value)) if name in ("since", "expires") and isinstance(value, int) else value
        for name, value in rollout.items()
    }
