"""Paths of the administration API for setting trials."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

from msgspec import Meta

from headgate.edge.admin.api import AdminBody, AdminRoute, Name, utc_text
from headgate.model.units import Instant
from headgate.ports.directory import Actor

BLOCK_S_MAX = 3_600
TRIAL_S_MAX = 86_400


class NewTrial(AdminBody, frozen=True):
    setting: Name
    value: Name
    share_percent: Annotated[int, Meta(ge=5, le=50)] = 50
    block_s: Annotated[int, Meta(ge=1, le=BLOCK_S_MAX)] = 30
    duration_s: Annotated[int, Meta(ge=1, le=TRIAL_S_MAX)] = 2_400
    keep_if: Annotated[str, Meta(pattern=r"^(better|harmless)\Z")] = "better"
    tolerance_percent: Annotated[int, Meta(ge=1, le=50)] = 1


class NoTrialFields(AdminBody, frozen=True):
    """There is at most one running trial, so it needs no name."""


class Trials(Protocol):
    """Setting trials. The methods raise the exceptions of `OverrideStore`."""

    async def start(self, asked: NewTrial, actor: Actor) -> Mapping[str, object]: ...

    async def abort(self, actor: Actor) -> Mapping[str, object]: ...

    async def status(self) -> Sequence[Mapping[str, object]]: ...


def trial_routes(trials: Trials) -> Mapping[bytes, AdminRoute]:
    paths = _TrialPaths(trials)
    return {
        b"/admin/v1/trials/start": AdminRoute(NewTrial, paths.start, writes=True),
        b"/admin/v1/trials/abort": AdminRoute(NoTrialFields, paths.abort, writes=True),
        b"/admin/v1/trials/status": AdminRoute(NoTrialFields, paths.status, writes=False),
    }


class _TrialPaths:
    def __init__(self, trials: Trials) -> None:
        self._trials = trials

    async def start(self, asked: NewTrial, actor: Actor) -> Mapping[str, object]:
        return _dated(await self._trials.start(asked, actor))

    async def abort(self, _: NoTrialFields, actor: Actor) -> Mapping[str, object]:
        return _dated(await self._trials.abort(actor))

    async def status(self, _: NoTrialFields, __: Actor) -> Mapping[str, object]:
        return {"data": [_dated(each) for each in await self._trials.status()]}


def _dated(trial: Mapping[str, object]) -> dict[str, object]:
    """Returns the trial with its instants as text."""
    return {
        name: utc_text(Instant(value)) if name in ("since", "expires") and isinstance(value, int) else value
        for name, value in trial.items()
    }
