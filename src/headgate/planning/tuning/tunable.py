"""A setting that can be changed, and the values to try."""

from dataclasses import dataclass

from headgate.planning.tuning.change import SettingChange

Values = tuple[str | None, ...]
"""Values in the notation of the configuration file. None removes the setting."""


@dataclass(frozen=True, slots=True)
class Direction:
    """Values to try in one direction, such as larger ones, nearest first."""

    values: Values
    probe: int = 0
    """Position of the value to try first. The others are tried only if it looks good."""


@dataclass(frozen=True, slots=True)
class Tunable:
    path: str
    before: str | None
    """Value in effect."""
    directions: tuple[Direction, ...]

    @property
    def values(self) -> Values:
        return tuple(dict.fromkeys(value for direction in self.directions for value in direction.values))

    def change(self, value: str | None) -> SettingChange:
        return SettingChange(self.path, self.before, value)
