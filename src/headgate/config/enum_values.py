"""Settings with a fixed set of values."""

from enum import StrEnum
from typing import TypeVar

from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.schema_reader import available, suggestion

Choice = TypeVar("Choice", bound=StrEnum)


def parse_enum(
    kind: type[Choice], text: str | None, default: Choice, place: SettingPath, report: ConfigReport
) -> Choice:
    """The enum value for `text`.

    Returns `default` if the setting is omitted or invalid. An invalid value is reported.
    """
    if text is None:
        return default
    known = [each.value for each in kind]
    if text in known:
        return kind(text)
    hint = suggestion(text, known, otherwise=available(known))
    report.add_problem(place, f'"{text}" is not a valid value{hint}')
    return default
