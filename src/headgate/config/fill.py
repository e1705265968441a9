"""Fill the options of a part from the settings of its section.

A setting goes into the field of its name. The unit is part of a field's name and not of the setting's:
the duration `head_max` fills `head_ns_max`, and the share `sample_percent` fills `sample_ppm`.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from headgate.config.schema import Section

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_PPM: Final = 10_000
"""Parts per million in a percent."""

_Options = TypeVar("_Options", bound="DataclassInstance")


def fill(options: type[_Options], settings: Mapping[str, object]) -> _Options:
    """Every setting must have its field; a field without a setting keeps its default."""
    known = {_setting(field.name): field.name for field in fields(options)}
    unknown = settings.keys() - known.keys()
    assert not unknown, f"{options.__name__} has no field for {sorted(unknown)}"
    return options(**{known[name]: _value(known[name], value) for name, value in settings.items()})


def given(section: Section) -> dict[str, object]:
    """The settings of a section; those that were left out and have no default are absent."""
    return {name: value for name, value in msgspec.structs.asdict(section).items() if value is not None}


def _setting(field: str) -> str:
    words = field.split("_")
    return "_".join("percent" if word == "ppm" else word for word in words if word != "ns")


def _value(field: str, value: object) -> object:
    if field.endswith("_ppm") and isinstance(value, int | float):
        return round(value * _PPM)
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
