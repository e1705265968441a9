"""Settings that the scheduler can change while it runs, each with its bounds.

A path has the form of the configuration file: `headroom.kv_percent`, `classes.chat.queue_length_max` or
`pools.main.in_flight_max`. Values are integers in the core's units. These settings belong to queues that all requests
share, so they can only be changed for all requests at the same time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from headgate.model.overrides import OperatorOverride, SetSetting
from headgate.model.policy import Policy
from headgate.model.units import MILLISECOND, MINUTE

UNLIMITED: Final = 0
"""Value of a cap that is not set."""
_HOUR: Final = 60 * MINUTE
_COUNT_MAX: Final = 1_000_000
IN_FLIGHT: Final = "in_flight_max"


class SettingUnit(StrEnum):
    COUNT = "count"
    PERCENT = "percent"
    PRESSURE = "pressure"
    """Thousandths in the core, percent in the configuration file."""
    DURATION = "duration"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class LiveSetting:
    """One kind of setting. `field` is its attribute in the policy."""

    section: str
    name: str
    field: str
    unit: SettingUnit
    low: int
    high: int
    may_be_unlimited: bool = False

    @property
    def pattern(self) -> str:
        name = "NAME." if self.section in _NAMED else ""
        return f"{self.section}.{name}{self.name}"


class SettingPlace(NamedTuple):
    """A setting of one policy. `item` is the name of the pool or class, or empty."""

    setting: LiveSetting
    item: str


_NAMED: Final = ("pools", "classes")
_COUNT, _PERCENT, _SPAN = SettingUnit.COUNT, SettingUnit.PERCENT, SettingUnit.DURATION
_PRESSURE, _SWITCH = SettingUnit.PRESSURE, SettingUnit.SWITCH
LIVE_SETTINGS: Final = (
    LiveSetting("pools", IN_FLIGHT, "in_flight_replacement", _COUNT, 1, 100_000),
    LiveSetting("classes", "queue_length_max", "queue_length_max", _COUNT, 1, _COUNT_MAX),
    LiveSetting("classes", "queue_length_per_tenant_max", "queue_length_per_tenant_max", _COUNT, 1, _COUNT_MAX),
    LiveSetting("classes", "queue_wait_max", "queue_wait_ns_max", _SPAN, MILLISECOND, _HOUR),
    LiveSetting("classes", "min_share_percent", "min_share_percent", _PERCENT, 0, 100),
    LiveSetting("classes", "reserve_percent", "reserve_percent", _PERCENT, 0, 100),
    LiveSetting("classes", "hedging", "hedging", _SWITCH, 0, 1),
    LiveSetting("headroom", "pending_prefill_percent", "pending_prefill_percent", _PERCENT, 1, 1_000),
    LiveSetting("headroom", "measured_tpot_percent", "measured_tpot_percent", _PERCENT, 1, 1_000),
    LiveSetting("headroom", "predicted_tpot_percent", "predicted_tpot_percent", _PERCENT, 1, 1_000),
    LiveSetting("headroom", "kv_percent", "kv_percent", _PERCENT, 1, 100),
    LiveSetting("headroom", "long_prompt_tokens", "long_prompt_tokens", _COUNT, 1, 10_000_000),
    LiveSetting("headroom", "long_lane_percent", "long_lane_percent", _PERCENT, 0, 100),
    LiveSetting(
        "admission",
        "predicted_wait_percent_max",
        "predicted_wait_percent_max",
        _PERCENT,
        1,
        1_000,
        may_be_unlimited=True,
    ),
    LiveSetting("routing", "prefix_affinity", "prefix_affinity", _SWITCH, 0, 1),
    LiveSetting("routing", "cross_zone_penalty", "cross_zone_penalty_ns", _SPAN, 0, MINUTE),
    LiveSetting("routing", "adapter_load_penalty", "adapter_load_penalty_ns", _SPAN, 0, MINUTE),
    LiveSetting("routing", "session_preference", "session_preference_ns", _SPAN, 0, MINUTE),
    LiveSetting("shedding", "enabled", "enabled", _SWITCH, 0, 1),
    LiveSetting("shedding", "target_pressure_percent", "target_pressure", _PRESSURE, 10, 10_000),
    LiveSetting("shedding", "proportional_gain", "proportional_gain", _COUNT, 0, 100_000),
    LiveSetting("shedding", "integral_gain", "integral_gain", _COUNT, 0, 100_000),
    LiveSetting("shedding", "shed_percent_max", "shed_percent_max", _PERCENT, 0, 100),
    LiveSetting("degradation", "enabled", "enabled", _SWITCH, 0, 1),
    LiveSetting("degradation", "escalate_above_percent", "escalate_above", _PRESSURE, 10, 10_000),
    LiveSetting("degradation", "escalate_after", "escalate_after_ns", _SPAN, MILLISECOND, _HOUR),
    LiveSetting("degradation", "recover_below_percent", "recover_below", _PRESSURE, 10, 10_000),
    LiveSetting("degradation", "recover_after", "recover_after_ns", _SPAN, MILLISECOND, _HOUR),
    LiveSetting("degradation", "level_max", "level_max", _COUNT, 0, 6),
    LiveSetting("degradation", "downgrade_prompt_tokens_max", "downgrade_prompt_tokens_max", _COUNT, 0, 10_000_000),
)
_BY_NAME: Final[Mapping[tuple[str, str], LiveSetting]] = MappingProxyType(
    {(each.section, each.name): each for each in LIVE_SETTINGS}
)


def setting_place(path: str) -> SettingPlace | None:
    """Returns the setting with this path. None if the scheduler cannot change it while it runs."""
    section, _, rest = path.partition(".")
    item, _, name = rest.rpartition(".")
    found = _BY_NAME.get((section, name))
    return None if found is None or bool(item) is not (section in _NAMED) else SettingPlace(found, item)


def value_in(policy: Policy, place: SettingPlace) -> int | None:
    """Returns the setting's value. None if the policy has no such class, or does not know the value."""
    rules = _rules(policy, place)
    if rules is None or place.setting.name == IN_FLIGHT:
        return None
    value: int | None = getattr(rules, place.setting.field)
    return UNLIMITED if value is None else int(value)


def with_value(policy: Policy, place: SettingPlace, value: int, *, before: int) -> Policy:
    """Returns the policy with this value of the setting, or unchanged if its present value is not `before`.

    Endpoints are not part of the policy, so their values of `in_flight_max` are compared when the policy is applied.
    """
    rules, setting = _rules(policy, place), place.setting
    if rules is None:
        return policy
    replacement: object = value
    if setting.unit is _SWITCH:
        # In a compiled build, a conditional expression of both types would be an integer.
        replacement = bool(value)
    if setting.name == IN_FLIGHT:
        replacement = (before, value)
    elif value_in(policy, place) != before:
        return policy
    elif setting.may_be_unlimited and value == UNLIMITED:
        replacement = None
    changed: Any = replace(rules, **{setting.field: replacement})
    if setting.section in _NAMED:
        changed = tuple(changed if each is rules else each for each in getattr(policy, setting.section))
    sections: dict[str, Any] = {setting.section: changed}
    return replace(policy, **sections)


def with_settings(policy: Policy, overrides: Iterable[OperatorOverride]) -> Policy:
    """Returns the policy with the settings that operators have set. The latest override of a setting applies.

    Overrides whose values conflict with other settings, for example after a reload, are ignored.
    """
    latest = {each.setting: each for each in overrides if isinstance(each, SetSetting)}
    for each in latest.values():
        if each.value != each.before and (place := setting_place(each.setting)) is not None:
            changed = with_value(policy, place, each.value, before=each.before)
            if settings_conflict(changed) is None or settings_conflict(policy) is not None:
                policy = changed
    return policy


def settings_conflict(policy: Policy) -> str | None:
    """Returns why settings of this policy do not fit together. None if they do."""
    shares: dict[int, int] = {}
    for each in policy.classes:
        shares[each.band] = max(shares.get(each.band, 0), each.min_share_percent)
    if (total := sum(shares.values())) > 100:
        return f"the minimum shares of all priority bands would add up to {total} percent"
    if (total := sum(each.reserve_percent for each in policy.classes)) > 100:
        return f"the reserved shares of all classes would add up to {total} percent"
    if policy.degradation.recover_below >= policy.degradation.escalate_above:
        return "recover_below_percent would not be below escalate_above_percent"
    return None


def _rules(policy: Policy, place: SettingPlace) -> Any:
    section = getattr(policy, place.setting.section)
    if place.setting.section not in _NAMED:
        return section
    return next((each for each in section if each.name == place.item), None)
