"""Changes from one configuration to another."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from headgate.config.effective import Effective, EffectiveSettings
from headgate.config.schema import ConfigFile

_SECTIONS: Final = {name: number for number, name in enumerate(ConfigFile.__struct_fields__)}


class SettingDifference(NamedTuple):
    setting: str
    before: str | None
    """Empty for an object. None if there was no such setting or object."""
    after: str | None


def setting_changes(before: EffectiveSettings, after: EffectiveSettings) -> list[SettingDifference]:
    """The settings that differ, by section. An added or removed object is one change, without its settings."""
    return sorted(_changes(before, after), key=lambda change: _SECTIONS[_section(change.setting)])


def _changes(before: EffectiveSettings, after: EffectiveSettings) -> Iterator[SettingDifference]:
    whole: set[str] = set()
    for path in dict.fromkeys((*before, *after)):
        old, new = before.get(path), after.get(path)
        if _is_inside(path, whole) or _same(old, new):
            continue
        if "" in (old and old.text, new and new.text):
            whole.add(path)
        yield SettingDifference(path, old and old.text, new and new.text)


def _same(old: Effective | None, new: Effective | None) -> bool:
    """Whether nothing changed. A setting without a value that exists on only one side does not count as a change."""
    if old is None or new is None:
        there = old or new
        return there is None or not there.value
    return old.value == new.value


def _is_inside(path: str, whole: set[str]) -> bool:
    return any(path[:end] in whole for end, each in enumerate(path) if each in ".[")


def _section(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]
