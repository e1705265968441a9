"""Values of settings that a running scheduler can change, in the notation of the configuration file."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.config.quantities import InvalidQuantity, boolean, duration, duration_text, whole_number
from headgate.config.setting_types import PRESSURE_PER_PERCENT, UNLIMITED
from headgate.model import live_settings
from headgate.model.live_settings import LiveSetting, SettingUnit

_NOTATIONS: Final[Mapping[SettingUnit, str]] = MappingProxyType(
    {
        SettingUnit.COUNT: "a whole number",
        SettingUnit.PERCENT: "a whole number of percent",
        SettingUnit.PRESSURE: "a whole number of percent",
        SettingUnit.DURATION: "a duration",
        SettingUnit.SWITCH: "true or false",
    }
)


class LiveValueNotation:
    """The notation of the configuration file, for setting trials."""

    def parse(self, setting: LiveSetting, text: str) -> int:
        """Raises `ValueError` with the valid values."""
        return parse_live_value(setting, text)

    def text(self, setting: LiveSetting, value: int) -> str:
        return live_value_text(setting, value)


def parse_live_value(setting: LiveSetting, text: str) -> int:
    """Parses a value. Raises `ValueError` with the valid values."""
    if setting.may_be_unlimited and text == UNLIMITED:
        return live_settings.UNLIMITED
    try:
        value = _parse(setting.unit, text.strip().removesuffix("%") if _is_percent(setting) else text.strip())
    except InvalidQuantity as problem:
        raise ValueError(f'{setting.name}: "{text}" is not {problem}') from None
    if not setting.low <= value <= setting.high:
        low, high = live_value_text(setting, setting.low), live_value_text(setting, setting.high)
        raise ValueError(f"{setting.name}: {text} is out of range; it can be {low} to {high}")
    return value


def live_value_text(setting: LiveSetting, value: int) -> str:
    if setting.may_be_unlimited and value == live_settings.UNLIMITED:
        return UNLIMITED
    match setting.unit:
        case SettingUnit.SWITCH:
            return "true" if value else "false"
        case SettingUnit.DURATION:
            return duration_text(value)
        case SettingUnit.PRESSURE:
            return str(value // PRESSURE_PER_PERCENT)
        case SettingUnit.COUNT | SettingUnit.PERCENT:
            return str(value)


def bounds_text(setting: LiveSetting) -> str:
    """Describes the valid values."""
    unlimited = f", or {UNLIMITED}" if setting.may_be_unlimited else ""
    if setting.unit is SettingUnit.SWITCH:
        return _NOTATIONS[setting.unit]
    low, high = live_value_text(setting, setting.low), live_value_text(setting, setting.high)
    return f"{_NOTATIONS[setting.unit]} from {low} to {high}{unlimited}"


def _is_percent(setting: LiveSetting) -> bool:
    return setting.unit in (SettingUnit.PERCENT, SettingUnit.PRESSURE)


def _parse(unit: SettingUnit, text: str) -> int:
    match unit:
        case SettingUnit.SWITCH:
            return int(boolean(text))
        case SettingUnit.DURATION:
            return duration(text)
        case SettingUnit.PRESSURE:
            return PRESSURE_PER_PERCENT * whole_number(text)
        case SettingUnit.COUNT | SettingUnit.PERCENT:
            return whole_number(text)
