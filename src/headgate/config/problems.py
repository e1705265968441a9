"""What is wrong with the file, where, and what is to be done about it?

Every problem is collected before anything is refused, one per place: whoever mends a file
wants the whole list, and no echo of the same mistake in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Place = tuple[str | int, ...]
"""Where something stands in the file: names of keys and numbers of list items."""


@dataclass(frozen=True, slots=True)
class Problem:
    file: str
    line: int | None
    """None where the whole file is meant."""
    place: str
    message: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (where, self.place, self.message) if part)


class ConfigErrors(Exception):
    """The configuration cannot be used. It says everything that is wrong, in the order of the file."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(each) for each in problems))
        self.problems = problems


class Report:
    """The problems and warnings found so far."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Place, int] = {}
        """The line of each key and item, as far as the file could be read."""
        self._problems: dict[Place, Problem] = {}
        self._unread: set[Place] = set()
        """Places whose content is not known, so that nothing more can be said about them."""
        self._warnings: dict[Place, Problem] = {}

    def problem(self, place: Place, message: str, *, read: bool = False) -> None:
        """Notes a problem, unless this place or one around it is known to be wrong: that is the cause to mend.

        `read` says that what stands inside could be read all the same and may have problems of its own.
        """
        if self.is_wrong(place):
            return
        self._problems[place] = self._at(place, message)
        if not read:
            self._unread.add(place)

    def warn(self, place: Place, message: str) -> None:
        if not self.is_wrong(place):
            self._warnings.setdefault(place, self._at(place, message))

    def is_wrong(self, place: Place) -> bool:
        return place in self._problems or any(place[:length] in self._unread for length in range(len(place)))

    def warnings(self) -> tuple[Problem, ...]:
        return _in_order(self._warnings)

    def raise_if_wrong(self) -> None:
        if self._problems:
            raise ConfigErrors(_in_order(self._problems))

    def where(self, place: Place) -> str:
        """How a message about this place begins, for whoever finds something after the file has been read."""
        return str(self._at(place, ""))

    def _at(self, place: Place, message: str) -> Problem:
        return Problem(self.file, self._line(place), dotted(place), message)

    def _line(self, place: Place) -> int | None:
        """The line of the place itself, or of what it would stand in."""
        lines = (self.lines.get(place[:length]) for length in range(len(place), -1, -1))
        return next((line for line in lines if line is not None), None)


def dotted(place: Place) -> str:
    """`pools.small.endpoints[0].url`"""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _in_order(problems: Mapping[Place, Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems.values(), key=lambda each: each.line or 0))
