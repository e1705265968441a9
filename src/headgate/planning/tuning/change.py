"""One change of one setting, as `headgate tune` suggests it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SettingChange:
    path: str
    """Path in the configuration file, such as `pools.main.in_flight_max`."""
    before: str | None
    """Value in effect, in the notation of the file. None if there is none, such as no limit."""
    after: str | None
    """New value, in the notation of the file. None removes the setting from the file."""

    def __str__(self) -> str:
        return f"{self.path}: {_text(self.before)} -> {_text(self.after)}"


def _text(value: str | None) -> str:
    return "not set" if value is None else value
