"""Problems and warnings found in a configuration file.

All problems are collected before the file is rejected, at most one per setting, so that a single run lists everything
to fix and reports no error twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from headgate.control.options import FileStamp

SettingPath = tuple[str | int, ...]
"""Path of a setting: keys and list indexes."""
NO_FILES: Final[Mapping[Path, FileStamp]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    file: str
    line: int | None
    """Line number. None if the problem is with the whole file."""
    setting: str
    message: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (where, self.setting, self.message) if part)


class ConfigErrors(Exception):
    """The configuration is invalid. The message lists all problems, sorted by line."""

    def __init__(self, problems: tuple[ConfigProblem, ...], files: Mapping[Path, FileStamp] = NO_FILES) -> None:
        super().__init__("\n".join(str(each) for each in problems))
        self.problems = problems
        self.files = files
        """Stamps of the files that were read or are missing."""


class ConfigReport:
    """The problems and warnings found so far."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[SettingPath, int] = {}
        """Line of each key and list item that could be parsed."""
        self.files: Mapping[Path, FileStamp] = NO_FILES
        """Stamps of the files that were read or are missing."""
        self._problems: dict[SettingPath, ConfigProblem] = {}
        self._unread: set[SettingPath] = set()
        """Paths whose contents could not be read. No further problems are reported inside them."""
        self._warnings: dict[SettingPath, ConfigProblem] = {}

    def add_problem(self, place: SettingPath, message: str, *, contents_valid: bool = False) -> None:
        """Records a problem, unless this path or an enclosing path already has one, which is then the cause.

        With `contents_valid`, the contents of the path could be read, and further problems may be reported inside it.
        """
        if self.has_problem(place):
            return
        self._problems[place] = self._problem_at(place, message)
        if not contents_valid:
            self._unread.add(place)

    def add_warning(self, place: SettingPath, message: str) -> None:
        if not self.has_problem(place):
            self._warnings.setdefault(place, self._problem_at(place, message))

    def has_problem(self, place: SettingPath) -> bool:
        return place in self._problems or any(place[:length] in self._unread for length in range(len(place)))

    def warnings(self) -> tuple[ConfigProblem, ...]:
        return _sorted_by_line(self._warnings)

    def problems(self) -> tuple[ConfigProblem, ...]:
        return _sorted_by_line(self._problems)

    def raise_if_invalid(self) -> None:
        if self._problems:
            raise ConfigErrors(self.problems(), self.files)

    def location_text(self, place: SettingPath) -> str:
        """Location prefix for messages about problems found after the file was read."""
        return str(self._problem_at(place, ""))

    def _problem_at(self, place: SettingPath, message: str) -> ConfigProblem:
        return ConfigProblem(self.file, self._line(place), dotted(place), message)

    def _line(self, place: SettingPath) -> int | None:
        """Line number of the path, or of the nearest enclosing path that is in the file."""
        lines = (self.lines.get(place[:length]) for length in range(len(place), -1, -1))
        return next((line for line in lines if line is not None), None)


def dotted(place: SettingPath) -> str:
    """Text of a path, such as `pools.small.endpoints[0].url`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _sorted_by_line(problems: Mapping[SettingPath, ConfigProblem]) -> tuple[ConfigProblem, ...]:
    return tuple(sorted(problems.values(), key=lambda each: each.line or 0))
