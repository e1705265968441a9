"""The source of a conversion: notes about its settings, and sections of its YAML.

A section records which of its settings a reader has asked for. The others are reported as not carried over, so that no
setting is dropped silently.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

from headgate.config import yaml_document
from headgate.config.problems import ConfigReport, SettingPath, dotted
from headgate.config.yaml_document import Tree
from headgate.model.units import SECOND
from headgate.wire.escape import printable

SOURCE_BYTES_MAX: Final = 8 * 1024 * 1024
NOTE_CHARS_MAX: Final = 400
PATH_CHARS_MAX: Final = 64
NO_EQUIVALENT: Final = "has no equivalent"
_CAMEL: Final = re.compile(r"_([a-z0-9])")


class ConversionError(Exception):
    """The source cannot be converted. The message is one line that names the file, the place and the next step."""


class ConversionNote(NamedTuple):
    """A setting that is not carried over or whose meaning changes. It never quotes the value of an unknown setting,
    which may be a secret.
    """

    file: str
    line: int | None
    setting: str
    message: str
    changed: bool = False
    """Whether the setting is carried over in another form."""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        state = "changed" if self.changed else "not carried over"
        return printable(f"{where}: {self.setting}: {state}: {self.message}", NOTE_CHARS_MAX)


@dataclass(slots=True)
class SourceFile:
    """Name and notes of one source file."""

    name: str
    notes: list[ConversionNote] = field(default_factory=list[ConversionNote])

    def drop(self, line: int | None, setting: str, message: str = NO_EQUIVALENT) -> None:
        self.notes.append(ConversionNote(self.name, line, setting, message))

    def change(self, line: int | None, setting: str, message: str) -> None:
        self.notes.append(ConversionNote(self.name, line, setting, message, changed=True))

    def error(self, line: int | None, setting: str, message: str) -> ConversionError:
        where = self.name if line is None else f"{self.name}:{line}"
        text = ": ".join(part for part in (where, setting, message) if part)
        return ConversionError(printable(text, NOTE_CHARS_MAX))


class YamlSource:
    """The YAML documents of a source file."""

    def __init__(self, file: SourceFile, text: str) -> None:
        """Raises `ConversionError`."""
        self.file = file
        self.report = ConfigReport(file.name)
        self._sections: list[SourceSection] = []
        self._has_lines = "\n" in text.strip()
        self._trees = yaml_document.parse_all(text, self.report)
        for problem in self.report.problems():
            # The first part of a path is the number of the document.
            raise file.error(problem.line, problem.setting.partition("]")[2].removeprefix("."), problem.message)

    def documents(self) -> "Iterator[SourceSection]":
        """The mappings among the documents. Empty documents are skipped."""
        for number, tree in enumerate(self._trees):
            if isinstance(tree, dict):
                yield self.section(tree, (number,))
            elif tree is not None:
                raise self.error((number,), "must be a mapping of settings")

    def items(self) -> "Iterator[SourceSection]":
        """The mappings among the documents, and those in documents that are lists."""
        for number, tree in enumerate(self._trees):
            values = tree if isinstance(tree, list) else [tree]
            for index, each in enumerate(values):
                place = (number, index) if isinstance(tree, list) else (number,)
                if not isinstance(each, dict):
                    raise self.error(place, "must be a mapping of settings")
                yield self.section(each, place)

    def section(self, tree: dict[str, Tree], place: SettingPath) -> "SourceSection":
        made = SourceSection(self, tree, place)
        self._sections.append(made)
        return made

    def line(self, place: SettingPath) -> int | None:
        lines = (self.report.lines.get(place[:length]) for length in range(len(place), -1, -1))
        return next((line for line in lines if line is not None), None)

    def shown(self, place: SettingPath) -> str:
        """Returns a setting's path for messages. A long path is cut to its end if a line number locates the setting."""
        start, full = 0, dotted(place)
        while self._has_lines and start < len(place) - 1 and len(dotted(place[start:])) > PATH_CHARS_MAX:
            start += 1
        while start and isinstance(place[start], int):
            start -= 1
        return f"...{dotted(place[start:])}" if start else full

    def error(self, place: SettingPath, message: str) -> ConversionError:
        return self.file.error(self.line(place), self.shown(place[1:]), message)

    def drop_unread(self) -> None:
        """Reports every setting that no reader has asked for."""
        for each in self._sections:
            each.drop(*each.unread())


class SourceSection:
    """A mapping in a YAML source. The methods that read a setting raise `ConversionError` if its type is wrong."""

    def __init__(self, source: YamlSource, tree: dict[str, Tree], place: SettingPath) -> None:
        self._source = source
        self._tree = tree
        # An empty setting has no effect, so it is not worth a note.
        self._unread = {name: None for name, value in tree.items() if value not in (None, "", [], {})}
        self.place = place

    # Reading. A name in snake_case also finds the setting in camelCase, because Envoy accepts both.

    def take(self, name: str) -> Tree:
        self._unread.pop(found := self._spelling(name), None)
        return self._tree.get(found)

    def __contains__(self, name: str) -> bool:
        return self._tree.get(self._spelling(name)) is not None

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if isinstance(value, dict | list):
            raise self.error(name, "must be a single value")
        return value

    def number(self, name: str) -> Decimal | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = Decimal(text.replace("_", ""))
        except InvalidOperation:
            value = None
        if value is None or not value.is_finite() or not 0 <= value <= 10**15:
            raise self.error(name, "must be a number, not negative and at most 10^15")
        return value

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        if value is not None and value != int(value):
            raise self.error(name, "must be a whole number")
        return None if value is None else int(value)

    def flag(self, name: str) -> bool:
        text = self.text(name)
        if text is not None and text.lower() not in ("true", "false", "yes", "no", "on", "off"):
            raise self.error(name, "must be true or false")
        return text is not None and text.lower() in ("true", "yes", "on")

    def seconds(self, name: str) -> int | None:
        """A number of seconds, with or without the unit `s`, in nanoseconds."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = Decimal(text.removesuffix("s"))
        except InvalidOperation:
            value = None
        if value is None or not value.is_finite() or not 0 <= value <= 10**9:
            raise self.error(name, "must be a number of seconds")
        return int(value * SECOND)

    def section(self, name: str) -> "SourceSection":
        """The mapping, which is empty if the setting is missing."""
        value = self.take(name)
        if not isinstance(value, dict | None):
            raise self.error(name, "must be a mapping of settings")
        return self._source.section(value or {}, (*self.place, self._spelling(name)))

    def sections(self, name: str) -> "list[SourceSection]":
        """The mappings in a list, which is empty if the setting is missing."""
        value = self.take(name)
        if not isinstance(value, list | None):
            raise self.error(name, "must be a list")
        place = (*self.place, self._spelling(name))
        found: list[SourceSection] = []
        for number, each in enumerate(value or []):
            if not isinstance(each, dict):
                raise self._source.error((*place, number), "must be a mapping of settings")
            found.append(self._source.section(each, (*place, number)))
        return found

    def texts(self, name: str) -> list[str]:
        """A list of values, or a single value."""
        value = self.take(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(each, str) for each in values):
            raise self.error(name, "must be a list of names")
        return [each for each in values if isinstance(each, str)]

    def list_of(self, name: str) -> list[Tree]:
        """The items of a list, without marking it as read. Empty if the setting is not a list."""
        value = self._tree.get(self._spelling(name))
        return value if isinstance(value, list) else []

    def names(self) -> list[str]:
        return list(self._tree)

    def skip(self, *names: str) -> None:
        """Marks settings, or all settings, as read: the whole section is reported, or they are only descriptions."""
        for name in names or self.names():
            self.take(name)

    # Reporting

    def unread(self) -> list[str]:
        return list(self._unread)

    def drop(self, *names: str, message: str = NO_EQUIVALENT) -> None:
        """Reports settings that are present as not carried over."""
        for name in names:
            if self._tree.get(self._spelling(name)) not in (None, "", [], {}):
                self.take(name)
                self._source.file.drop(self.line(name), self.setting(name), message)

    def drop_all(self, messages: Iterable[tuple[str, str]]) -> None:
        for name, message in messages:
            self.drop(name, message=message)

    def report(self, message: str) -> None:
        """Reports that the whole section is not carried over."""
        self._source.file.drop(*self.at(), message)

    def change(self, name: str, message: str) -> None:
        self._source.file.change(self.line(name), self.setting(name), message)

    def error(self, name: str, message: str) -> ConversionError:
        return self._source.error((*self.place, self._spelling(name)), message)

    def setting(self, name: str = "") -> str:
        place = (*self.place[1:], self._spelling(name)) if name else self.place[1:]
        return self._source.shown(place)

    def line(self, name: str = "") -> int | None:
        return self._source.line((*self.place, self._spelling(name)) if name else self.place)

    def at(self, name: str = "") -> tuple[int | None, str]:
        """Place of a setting, or of the section."""
        return self.line(name), self.setting(name)

    def _spelling(self, name: str) -> str:
        if name not in self._tree and (camel := _CAMEL.sub(lambda found: found[1].upper(), name)) in self._tree:
            return camel
        return name
