"""Converts the parsed file into the structs of the schema.

The reader walks the schema and the file together and reports every difference. A value that cannot be read is replaced
by a placeholder of the right type, so that the rest of the file can still be checked. Because a problem has been
reported, the placeholder is never used for anything else.

Messages quote values as written in the file, before `${NAME}` and `${file:PATH}` are expanded, and never quote
secrets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar, cast

import msgspec
from msgspec import inspect

from headgate.config import quantities
from headgate.config.environment import ExpansionError, References
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.section import Section
from headgate.config.yaml_document import Tree

FileSection = TypeVar("FileSection", bound=Section)


def read(tree: Tree, kind: type[FileSection], references: References, report: ConfigReport) -> FileSection:
    """The file as a struct from the schema, with placeholders for invalid values."""
    shape = _SchemaReader(references, report).value({} if tree is None else tree, inspect.type_info(kind), ())
    return msgspec.convert(shape, kind)


def suggestion(word: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """Returns `; did you mean "x"?` if a known name is similar to the word, otherwise `otherwise`."""
    near = closest_match(word, known)
    return f'; did you mean "{near}"?' if near else otherwise


def available(names: Iterable[str]) -> str:
    """End of a message about an unknown name: a list of the names that exist."""
    listed = _listed(names)
    return f"; available: {listed}" if listed else "; none is defined"


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """The most similar known name. Names that continue the word are preferred, then those with the same first letter,
    because typos seldom change it.
    """
    names = list(known)
    begun = [name for name in names if name.startswith(f"{word}_")]
    alike = [name for name in names if name[:1] == word[:1]]
    close = get_close_matches(word, alike, n=1, cutoff=0.6) or get_close_matches(word, names, n=1, cutoff=0.7)
    return next(iter(begun or close), None)


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    references: References
    report: ConfigReport

    def value(self, tree: Tree, info: inspect.Type, place: SettingPath) -> object:
        match info:
            case inspect.StructType():
                return self._section(tree, info, place)
            case inspect.DictType():
                return self._mapping(tree, info, place)
            case inspect.ListType():
                return self._items(tree, info, place)
            case inspect.UnionType():
                return self._union(tree, info, place)
            case inspect.Metadata(type=inspect.DictType()):
                alone = _extra(info).get("alone")
                return self.value({tree: str(alone)} if alone and isinstance(tree, str) else tree, info.type, place)
            case inspect.Metadata(type=inspect.ListType()):
                # With `alone`, a single mapping is read as a list with one item.
                tree = [tree] if isinstance(tree, dict) and _extra(info).get("alone") else tree
                return self.value(tree, info.type, place)
            case _:
                return self._scalar(tree, info, place)

    # Sections and lists

    def _section(self, tree: Tree, info: inspect.StructType, place: SettingPath) -> dict[str, object]:
        short = cast("type[Section]", info.cls).SHORTHAND
        if short is not None and isinstance(tree, str | list):
            tree = {short: tree}
        if tree is None and place:
            tree = {}
        if not isinstance(tree, dict):
            named = _listed(field.encode_name for field in info.fields)
            self._unexpected(place, tree, f"a mapping with the settings {named}")
            tree = {}
        fields = {field.encode_name: field for field in info.fields}
        return self._fields(self._known_settings(tree, fields, place), fields, place)

    def _fields(
        self, tree: dict[str, Tree], fields: Mapping[str, inspect.Field], place: SettingPath
    ) -> dict[str, object]:
        values: dict[str, object] = {}
        for name, field in fields.items():
            here = (*place, name)
            if (given := tree.get(name)) is not None:
                values[name] = self.value(given, field.type, here)
            elif field.required:
                self.report.add_problem(here, f"missing; {_extra(field.type)['next']}")
                values[name] = _placeholder(field.type)
        return values

    def _known_settings(self, tree: dict[str, Tree], known: Iterable[str], place: SettingPath) -> dict[str, Tree]:
        """Settings by their correct names. A misspelled name is read as its closest match."""
        understood: dict[str, Tree] = {}
        for name, value in tree.items():
            if name in known:
                understood[name] = value
                continue
            left = [each for each in known if each not in tree]
            hint = suggestion(name, left, otherwise=f"; the settings here are {_listed(known)}")
            self.report.add_problem((*place, name), f"unknown key{hint}")
            if meant := closest_match(name, left):
                understood.setdefault(meant, value)
                self.report.lines.setdefault((*place, meant), self.report.lines.get((*place, name), 1))
        return understood

    def _mapping(self, tree: Tree, info: inspect.DictType, place: SettingPath) -> dict[str, object]:
        if not isinstance(tree, dict):
            self._unexpected(place, tree, "a mapping from names to their settings")
            return {}
        return {name: self.value(value, info.value_type, (*place, name)) for name, value in tree.items()}

    def _items(self, tree: Tree, info: inspect.ListType, place: SettingPath) -> list[object]:
        if isinstance(tree, str):
            return [self.value(tree, info.item_type, place)]
        if not isinstance(tree, list):
            self._unexpected(place, tree, "a list")
            return []
        return [self.value(item, info.item_type, (*place, number)) for number, item in enumerate(tree)]

    # Single values

    def _union(self, tree: Tree, info: inspect.UnionType, place: SettingPath) -> object:
        """Reads a value that either has one type or is one of a few fixed words."""
        words = tuple(str(word) for each in info.types if isinstance(each, inspect.LiteralType) for word in each.values)
        (kind,) = (each for each in info.types if not isinstance(each, inspect.NoneType | inspect.LiteralType))
        return self._scalar(tree, kind, place, words) if words else self.value(tree, kind, place)

    def _scalar(self, tree: Tree, info: inspect.Type, place: SettingPath, words: tuple[str, ...] = ()) -> object:
        extra = _extra(info)
        secret, unit = "secret" in extra, extra.get("reads")
        info = info.type if isinstance(info, inspect.Metadata) else info
        if not isinstance(tree, str):
            self._unexpected(place, None if secret else tree, _alternatives(_expected(info), words))
            return _placeholder(info)
        try:
            text = self.references.expand(tree)
            value = text if text in words else _parsed(text, info, unit)
        except ExpansionError as missing:
            self.report.add_problem(place, str(missing))
        except quantities.InvalidQuantity as expected:
            self._unexpected(place, None if secret else tree, _alternatives(str(expected), words))
        else:
            if (
                value in words
                or not isinstance(info, inspect.IntType | inspect.FloatType)
                or self._in_bounds(value, info, tree, place, unit)
            ):
                return value
        return _placeholder(info)

    def _in_bounds(
        self, value: object, info: inspect.IntType | inspect.FloatType, text: str, place: SettingPath, unit: object
    ) -> bool:
        assert isinstance(value, int | float)
        if info.gt is not None and value <= info.gt:
            self.report.add_problem(place, f"must be above {_bound(info.gt, unit)}, not {text}")
        elif info.ge is not None and value < info.ge:
            self.report.add_problem(place, f"must be at least {_bound(info.ge, unit)}, not {text}")
        elif info.le is not None and value > info.le:
            self.report.add_problem(place, f"must be at most {_bound(info.le, unit)}, not {text}")
        else:
            return True
        return False

    def _unexpected(self, place: SettingPath, found: Tree, expected: str) -> None:
        match found:
            case str():
                self.report.add_problem(place, f'expected {expected}, found "{found}"')
            case list():
                self.report.add_problem(place, f"expected {expected}, found a list")
            case dict():
                self.report.add_problem(place, f"expected {expected}, found a mapping")
            case None:
                self.report.add_problem(place, f"expected {expected}")


def _parsed(text: str, info: inspect.Type, reads: object) -> object:
    if isinstance(reads, str):
        return quantities.PARSERS[reads](text)
    match info:
        case inspect.IntType():
            return quantities.whole_number(text)
        case inspect.FloatType():
            return quantities.decimal_number(text)
        case inspect.BoolType():
            return quantities.boolean(text)
        case _:
            if not text:
                raise quantities.InvalidQuantity("a non-empty string")
            return text


def _expected(info: inspect.Type) -> str:
    match info:
        case inspect.IntType() | inspect.FloatType():
            return "a number"
        case inspect.BoolType():
            return "true or false"
        case _:
            return "text"


def _placeholder(info: inspect.Type) -> object:
    """Value of the right type that replaces an invalid one."""
    match info:
        case inspect.Metadata():
            return _placeholder(info.type)
        case inspect.IntType():
            return info.ge or 0
        case inspect.FloatType():
            return info.le or 1.0
        case inspect.BoolType():
            return False
        case inspect.TupleType():
            return [_placeholder(each) for each in info.item_types]
        case inspect.ListType():
            return []
        case inspect.DictType():
            return {}
        case _:
            return ""


def _alternatives(expected: str, words: tuple[str, ...]) -> str:
    return " or ".join((expected, *words))


def _extra(info: inspect.Type) -> dict[str, object]:
    """A setting's metadata in the schema."""
    if not isinstance(info, inspect.Metadata):
        return {}
    return cast("dict[str, object]", info.extra or {})


def _bound(limit: float, unit: object) -> str:
    match unit:
        case "duration":
            return quantities.duration_text(int(limit))
        case "fine":
            return quantities.short_duration_text(int(limit))
        case "size":
            return quantities.size_text(int(limit))
        case "usd":
            return quantities.usd_text(int(limit))
        case "days":
            return quantities.days_text(int(limit))
        case "day":
            return quantities.day_text(int(limit))
        case _:
            return f"{limit:g}" if isinstance(limit, float) else str(limit)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
