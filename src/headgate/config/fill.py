"""Converts a section's settings to an options dataclass.

Each setting fills the field of the same name. Field names include the unit, but setting names do not: the duration
`header_timeout` fills `header_timeout_ns`, and the share `sample_percent` fills `sample_ppm`.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headgate.config.section import Section
from headgate.config.setting_types import PPM_PER_PERCENT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_Options = TypeVar("_Options", bound="DataclassInstance")


def fill(options: type[_Options], settings: Mapping[str, object]) -> _Options:
    """Each setting must have a field. A field without a setting keeps its default."""
    known = {_setting(field.name): field.name for field in fields(options)}
    unknown = settings.keys() - known.keys()
    assert not unknown, f"{options.__name__} has no field for {sorted(unknown)}"
    return options(**{known[name]: _value(known[name], value) for name, value in settings.items()})


def given_settings(section: Section) -> dict[str, object]:
    """A section's settings, excluding those that are omitted and have no default."""
    return {name: value for name, value in msgspec.structs.asdict(section).items() if value is not None}


def _setting(field: str) -> str:
    words = field.split("_")
    return "_".join("percent" if word == "ppm" else word for word in words if word != "ns")


def _value(field: str, value: object) -> object:
    if field.endswith("_ppm") and isinstance(value, int | float):
        return round(value * PPM_PER_PERCENT)
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
