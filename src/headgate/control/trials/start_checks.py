"""Checks before a setting trial starts. All raise `ChangeRejected` or `NotFound` with the next step."""

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from headgate.control.rollouts.plan import RolloutPhase, rollout_of
from headgate.control.rollouts.service import VERB as ROLLOUT_VERB
from headgate.control.trials.plan import InvalidTrial, KeepIf, SettingTrial, TrialPhase, check_schedule, trials_in
from headgate.edge.admin.trials import NewTrial
from headgate.model.live_settings import (
    IN_FLIGHT,
    LiveSetting,
    SettingPlace,
    settings_conflict,
    value_in,
    with_settings,
    with_value,
)
from headgate.model.policy import Policy
from headgate.model.units import SECOND, Instant, PoolName
from headgate.ports.directory import ChangeRejected, NotFound, OverrideRow

DRILL_REASON: Final = "drill: "
"""Beginning of the reason of an override that `headgate drill` has created."""


class SettingNotation(Protocol):
    """Values in the notation of the configuration file."""

    def parse(self, setting: LiveSetting, text: str) -> int:
        """Raises `ValueError` with the valid values."""
        ...

    def text(self, setting: LiveSetting, value: int) -> str: ...


def check_free(rows: Sequence[OverrideRow], setting: str) -> None:
    """Checks that nothing else changes what the trial measures."""
    for row, trial in trials_in(rows):
        if trial.phase is TrialPhase.RUNNING:
            raise ChangeRejected(f"a trial of {trial.setting} is running; wait for its end, or abort it")
        if trial.phase is TrialPhase.KEPT and trial.setting == setting:
            raise ChangeRejected(
                f"an earlier trial has set {setting}; write its value into the configuration, reload it, and run "
                f"`headgate operate end {row.id}`"
            )
    for row in rows:
        if row.reason.startswith(DRILL_REASON):
            raise ChangeRejected(f"a drill is running ({row.verb} {row.target}); wait for its end")
        rollout = rollout_of(row.target, row.parameters) if row.verb == ROLLOUT_VERB else None
        if rollout is not None and rollout.phase is RolloutPhase.RUNNING:
            raise ChangeRejected(f'a rollout of "{row.target}" is running; wait for its end, or abort it')


def value_in_force(policy: Policy, place: SettingPlace, in_flight_limits: Callable[[PoolName], Collection[int]]) -> int:
    """Returns the configured value of the setting."""
    section = place.setting.section
    known: list[str] = [each.name for each in (policy.pools if section == "pools" else policy.classes)]
    if place.item and place.item not in known:
        raise NotFound(f'{section} has no "{place.item}"; known: {", ".join(known) or "none"}')
    if place.setting.name != IN_FLIGHT:
        before = value_in(policy, place)
        assert before is not None, "only a pool's in_flight_max is not part of the policy"
        return before
    limits = in_flight_limits(PoolName(place.item))
    if len(limits) != 1:
        problem = "endpoints with different values" if limits else "no endpoints"
        raise ChangeRejected(f'pool "{place.item}" has {problem}, so its in_flight_max cannot be tried')
    return next(iter(limits))


def checked_value(policy: Policy, place: SettingPlace, before: int, text: str, notation: SettingNotation) -> int:
    """Returns the new value if it is valid and differs from the one in force."""
    try:
        value = notation.parse(place.setting, text)
    except ValueError as problem:
        raise ChangeRejected(str(problem)) from None
    if value == before:
        raise ChangeRejected(f"{place.setting.name} is already {text}; choose another value")
    in_force = with_settings(policy, policy.overrides)
    if (problem := settings_conflict(with_value(in_force, place, value, before=before))) is not None:
        raise ChangeRejected(f"{place.setting.name} cannot be {text}: {problem}")
    return value


def new_trial(
    asked: NewTrial,
    place: SettingPlace,
    policy: Policy,
    in_flight_limits: Callable[[PoolName], Collection[int]],
    notation: SettingNotation,
    *,
    seed: int,
) -> SettingTrial:
    """Returns the trial that was asked for, if it is valid."""
    before = value_in_force(policy, place, in_flight_limits)
    trial = SettingTrial(
        asked.setting,
        before,
        checked_value(policy, place, before, asked.value, notation),
        asked.share_percent,
        asked.block_s,
        asked.duration_s,
        seed,
        KeepIf(asked.keep_if),
        asked.tolerance_percent,
    )
    try:
        check_schedule(trial, len(policy.classes))
    except InvalidTrial as problem:
        raise ChangeRejected(str(problem)) from None
    return trial


def clock_problem(trial: SettingTrial, row: OverrideRow, asked_at: Instant, now: Instant) -> str:
    """Returns why this gateway cannot follow the schedule of a trial that was stored between these instants."""
    skew = max(asked_at - row.created_at, row.created_at - now)
    if skew <= trial.guard_ns:
        return ""
    return (
        f"the clocks of this gateway and the database differ by {skew / SECOND:.1f} s, and at most "
        f"{trial.guard_ns / SECOND:.1f} s are allowed, a quarter of a block; synchronize the clocks"
    )
