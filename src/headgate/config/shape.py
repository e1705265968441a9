"""Does the file have the shape that the schema asks for?

The schema is walked beside the tree, and every place where they differ is reported. What
cannot be read is replaced by a stand-in that has the right shape, so that the rest of the file
can still be checked; with a problem reported, the stand-in is never used for anything else.

What was read is shown in messages as it is written in the file, before `${NAME}` is expanded,
and never at all where the schema says that it is a secret.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar, cast

import msgspec
from msgspec import inspect

from headgate.config import quantities
from headgate.config.document import Tree
from headgate.config.environment import Unexpandable, expand
from headgate.config.problems import Place, Report
from headgate.config.schema import Section

Whole = TypeVar("Whole", bound=Section)


def read(tree: Tree, kind: type[Whole], environ: Mapping[str, str], report: Report) -> Whole:
    """The file as the schema knows this kind of file, with stand-ins where it is wrong."""
    shape = _Shape(environ, report).value({} if tree is None else tree, inspect.type_info(kind), ())
    return msgspec.convert(shape, kind)


def suggestion(word: str, known: Iterable[str], *, quiet: str = "") -> str:
    """`; did you mean "x"?` where something known looks like the word, else what `quiet` says."""
    near = nearest(word, known)
    return f'; did you mean "{near}"?' if near else quiet


def nearest(word: str, known: Iterable[str]) -> str | None:
    """What looks like the word; first what goes on where the word ends. A slip seldom changes the first letter."""
    names = list(known)
    begun = [name for name in names if name.startswith(f"{word}_")]
    alike = [name for name in names if name[:1] == word[:1]]
    close = get_close_matches(word, alike, n=1, cutoff=0.6) or get_close_matches(word, names, n=1, cutoff=0.7)
    return next(iter(begun or close), None)


@dataclass(frozen=True, slots=True)
class _Shape:
    environ: Mapping[str, str]
    report: Report

    def value(self, tree: Tree, info: inspect.Type, place: Place) -> object:
        match info:
            case inspect.StructType():
                return self._section(tree, info, place)
            case inspect.DictType():
                return self._named(tree, info, place)
            case inspect.ListType():
                return self._items(tree, info, place)
            case inspect.UnionType():
                return self._either(tree, info, place)
            case inspect.Metadata(type=inspect.DictType()):
                alone = _extra(info).get("alone")
                return self.value({tree: str(alone)} if alone and isinstance(tree, str) else tree, info.type, place)
            case inspect.Metadata(type=inspect.ListType()):
                # One thing may stand for a list of one where the schema says so.
                tree = [tree] if isinstance(tree, dict) and _extra(info).get("alone") else tree
                return self.value(tree, info.type, place)
            case _:
                return self._leaf(tree, info, place)

    # Sections and lists

    def _section(self, tree: Tree, info: inspect.StructType, place: Place) -> dict[str, object]:
        short = cast("type[Section]", info.cls).SHORT
        if short is not None and isinstance(tree, str | list):
            tree = {short: tree}
        if tree is None and place:
            tree = {}
        if not isinstance(tree, dict):
            named = _listed(field.encode_name for field in info.fields)
            self._unexpected(place, tree, f"a mapping with the settings {named}")
            tree = {}
        fields = {field.encode_name: field for field in info.fields}
        return self._fields(self._without_unknown(tree, fields, place), fields, place)

    def _fields(self, tree: dict[str, Tree], fields: Mapping[str, inspect.Field], place: Place) -> dict[str, object]:
        values: dict[str, object] = {}
        for name, field in fields.items():
            here = (*place, name)
            if (given := tree.get(name)) is not None:
                values[name] = self.value(given, field.type, here)
            elif field.required:
                self.report.problem(here, f"missing; {_extra(field.type)['next']}")
                values[name] = _stand_in(field.type)
        return values

    def _without_unknown(self, tree: dict[str, Tree], known: Iterable[str], place: Place) -> dict[str, Tree]:
        """The settings by their right names; what is misspelled is read as what was probably meant."""
        understood: dict[str, Tree] = {}
        for name, value in tree.items():
            if name in known:
                understood[name] = value
                continue
            left = [each for each in known if each not in tree]
            hint = suggestion(name, left, quiet=f"; the settings here are {_listed(known)}")
            self.report.problem((*place, name), f"unknown key{hint}")
            if meant := nearest(name, left):
                understood.setdefault(meant, value)
                self.report.lines.setdefault((*place, meant), self.report.lines.get((*place, name), 1))
        return understood

    def _named(self, tree: Tree, info: inspect.DictType, place: Place) -> dict[str, object]:
        if not isinstance(tree, dict):
            self._unexpected(place, tree, "a mapping from names to their settings")
            return {}
        return {name: self.value(value, info.value_type, (*place, name)) for name, value in tree.items()}

    def _items(self, tree: Tree, info: inspect.ListType, place: Place) -> list[object]:
        if isinstance(tree, str):
            tree = [tree]
        if not isinstance(tree, list):
            self._unexpected(place, tree, "a list")
            return []
        return [self.value(item, info.item_type, (*place, number)) for number, item in enumerate(tree)]

    # Single values

    def _either(self, tree: Tree, info: inspect.UnionType, place: Place) -> object:
        """A value of one kind, or one of a few words that may stand for it."""
        words = tuple(str(word) for each in info.types if isinstance(each, inspect.LiteralType) for word in each.values)
        (kind,) = (each for each in info.types if not isinstance(each, inspect.NoneType | inspect.LiteralType))
        return self._leaf(tree, kind, place, words) if words else self.value(tree, kind, place)

    def _leaf(self, tree: Tree, info: inspect.Type, place: Place, words: tuple[str, ...] = ()) -> object:
        extra = _extra(info)
        secret, unit = "secret" in extra, extra.get("reads")
        info = info.type if isinstance(info, inspect.Metadata) else info
        if not isinstance(tree, str):
            self._unexpected(place, None if secret else tree, _or(_expected(info), words))
            return _stand_in(info)
        try:
            text = expand(tree, self.environ)
            value = text if text in words else _understood(text, info, unit)
        except Unexpandable as missing:
            self.report.problem(place, str(missing))
        except quantities.Unreadable as expected:
            self._unexpected(place, None if secret else tree, _or(str(expected), words))
        else:
            if (
                value in words
                or not isinstance(info, inspect.IntType | inspect.FloatType)
                or self._is_within(value, info, tree, place, unit)
            ):
                return value
        return _stand_in(info)

    def _is_within(
        self, value: object, info: inspect.IntType | inspect.FloatType, text: str, place: Place, unit: object
    ) -> bool:
        assert isinstance(value, int | float)
        if info.gt is not None and value <= info.gt:
            self.report.problem(place, f"must be more than {_bound(info.gt, unit)}, not {text}")
        elif info.ge is not None and value < info.ge:
            self.report.problem(place, f"must be at least {_bound(info.ge, unit)}, not {text}")
        elif info.le is not None and value > info.le:
            self.report.problem(place, f"must be at most {_bound(info.le, unit)}, not {text}")
        else:
            return True
        return False

    def _unexpected(self, place: Place, found: Tree, expected: str) -> None:
        match found:
            case str():
                self.report.problem(place, f'expected {expected}, found "{found}"')
            case list():
                self.report.problem(place, f"expected {expected}, found a list")
            case dict():
                self.report.problem(place, f"expected {expected}, found a mapping")
            case None:
                self.report.problem(place, f"expected {expected}")


def _understood(text: str, info: inspect.Type, reads: object) -> object:
    if isinstance(reads, str):
        return quantities.READERS[reads](text)
    match info:
        case inspect.IntType():
            return quantities.whole_number(text)
        case inspect.FloatType():
            return quantities.decimal_number(text)
        case inspect.BoolType():
            return quantities.flag(text)
        case _:
            if not text:
                raise quantities.Unreadable("some text; it is empty")
            return text


def _expected(info: inspect.Type) -> str:
    match info:
        case inspect.IntType() | inspect.FloatType():
            return "a number"
        case inspect.BoolType():
            return "true or false"
        case _:
            return "text"


def _stand_in(info: inspect.Type) -> object:
    """Something of the right shape, for the place of what could not be read."""
    match info:
        case inspect.Metadata():
            return _stand_in(info.type)
        case inspect.IntType():
            return info.ge or 0
        case inspect.FloatType():
            return info.le or 1.0
        case inspect.BoolType():
            return False
        case inspect.TupleType():
            return [_stand_in(each) for each in info.item_types]
        case inspect.ListType():
            return []
        case inspect.DictType():
            return {}
        case _:
            return ""


def _or(expected: str, words: tuple[str, ...]) -> str:
    return " or ".join((expected, *words))


def _extra(info: inspect.Type) -> dict[str, object]:
    """What the schema says of a setting beside its type."""
    if not isinstance(info, inspect.Metadata):
        return {}
    return cast("dict[str, object]", info.extra or {})


def _bound(limit: float, unit: object) -> str:
    match unit:
        case "duration":
            return quantities.duration_text(int(limit))
        case "fine":
            return quantities.fine_text(int(limit))
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
