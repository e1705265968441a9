"""JSON Schema of the configuration file, for editors and other tools.

It describes the file as written (`30s`, `small` for `{pools: [small]}`), the form that `schema_reader.py` reads. Every
file that Headgate accepts is valid under the schema. The reverse does not hold: `headgate check` also checks references
between sections, and the bounds of values that have a unit.
"""

from collections.abc import Iterable
from typing import Any, Final, cast

from msgspec import NODEFAULT, inspect

from headgate.config import quantities
from headgate.config.pool_schema import PoolSection, SpeedSection
from headgate.config.schema import ConfigFile
from headgate.config.section import Section

Schema = dict[str, Any]

_TEXT: Final = ("string", "number", "boolean")
"""JSON types of a text setting: Headgate reads every YAML scalar as text."""
_VARIABLE: Final = {"type": "string", "pattern": r"\$\{"}
_PROFILE_FILE: Final = {"type": "string", "pattern": r"/|\.ya?ml$"}
_NULL: Final = {"type": "null"}
_GROUPED_DIGITS: Final = {"type": "string", "pattern": "^[+-]?[0-9]{1,3}(_?[0-9]{3})*$"}
_NUMERIC_UNITS: Final = ("range", "share", "usd")
"""Units whose text may be a plain number."""


def config_schema(*, engines: Iterable[str], profiles: Iterable[str]) -> Schema:
    """JSON Schema of the configuration. `engines` and `profiles` are the names that the file may use."""
    made = _Schemas(
        {
            (PoolSection, "engine"): [{"enum": sorted(engines)}],
            (SpeedSection, "profile"): [{"enum": sorted(profiles)}, _PROFILE_FILE],
        }
    )
    root = made.section(inspect.type_info(ConfigFile))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headgate configuration",
        **root,
        "$defs": made.definitions,
    }


class _Schemas:
    """Schemas of all sections. `choices` has the alternatives, by section and setting, of text settings that accept
    only certain values.
    """

    def __init__(self, choices: dict[tuple[type[Section], str], list[Schema]]) -> None:
        self._choices = choices
        self.definitions: dict[str, Schema] = {}

    def section(self, info: inspect.Type) -> Schema:
        """The section as a mapping."""
        assert isinstance(info, inspect.StructType)
        return {
            "type": "object",
            "additionalProperties": False,
            "required": [field.encode_name for field in info.fields if field.required],
            "properties": {field.encode_name: self._setting(field, info.cls) for field in info.fields},
        }

    def _setting(self, field: inspect.Field, section: type[Any]) -> Schema:
        choices = self._choices.get((section, field.name))
        schema = _any([*choices, _VARIABLE]) if choices else self._value(field.type)
        if field.required:
            return schema
        # A setting without a value has its default.
        default = _default(field)
        return {**_any([schema, _NULL]), **({} if default is None else {"default": default})}

    def _value(self, info: inspect.Type) -> Schema:
        match info:
            case inspect.StructType():
                return self._reference(info)
            case inspect.DictType():
                # A section with no settings may be left empty.
                return {"type": "object", "additionalProperties": _any([self._value(info.value_type), _NULL])}
            case inspect.ListType():
                return self._list(info, alone=False)
            case inspect.UnionType():
                kinds = [each for each in info.types if not isinstance(each, inspect.NoneType)]
                return _any([self._value(each) for each in kinds])
            case inspect.LiteralType():
                return {"enum": list(info.values)}
            case inspect.Metadata(type=inspect.ListType() as items):
                return self._list(items, alone=bool(_extra(info).get("alone")))
            case inspect.Metadata(type=inspect.DictType() as named):
                return self._value(named)
            case inspect.Metadata():
                return _leaf(info.type, cast("str | None", _extra(info).get("reads")))
            case _:
                return _leaf(info, None)

    def _reference(self, info: inspect.StructType) -> Schema:
        name = info.cls.__name__.removesuffix("Section")
        if name not in self.definitions:
            self.definitions[name] = {}  # Sections can refer to each other.
            short = self._short(info)
            self.definitions[name] = _any([self.section(info), *([] if short is None else [short])])
        return {"$ref": f"#/$defs/{name}"}

    def _short(self, info: inspect.StructType) -> Schema | None:
        """The setting whose value may be written in place of the whole section."""
        short = cast("type[Section]", info.cls).SHORTHAND
        return next(
            (_without_default(self._setting(each, info.cls)) for each in info.fields if each.name == short), None
        )

    def _list(self, info: inspect.ListType, *, alone: bool) -> Schema:
        """Schema of a list. A list with one item may be written without brackets."""
        item = info.item_type
        ways: list[Schema] = [{"type": "array", "items": self._value(item)}]
        if alone or not isinstance(item, inspect.StructType):
            ways.append(self._value(item))
        elif (short := self._short(item)) is not None:
            ways.append(short)
        return _any(ways)


def _leaf(info: inspect.Type, unit: str | None) -> Schema:
    if unit is not None:
        number: list[Schema] = [{"type": "number"}] if unit in _NUMERIC_UNITS else []
        text = {"type": "string", "pattern": f"^(?:{quantities.PATTERNS[unit]})$"}
        return {**_any([*number, text, _VARIABLE]), "description": _expected(unit)}
    match info:
        case inspect.IntType():
            return _any([{"type": "integer", **_bounds(info)}, _GROUPED_DIGITS, _VARIABLE])
        case inspect.FloatType():
            return _any([{"type": "number", **_bounds(info)}, _VARIABLE])
        case inspect.BoolType():
            return _any([{"type": "boolean"}, _VARIABLE])
        case _:
            return {"type": list(_TEXT)}


def _bounds(info: inspect.IntType | inspect.FloatType) -> Schema:
    bounds = {"minimum": info.ge, "exclusiveMinimum": info.gt, "maximum": info.le}
    return {name: value for name, value in bounds.items() if value is not None}


def _expected(unit: str) -> str:
    try:
        quantities.PARSERS[unit]("")
    except quantities.InvalidQuantity as expected:
        text = str(expected)
        return f"{text[0].upper()}{text[1:]}."
    raise AssertionError(unit)


def _default(field: inspect.Field) -> object:
    """The default as it would be written in the file; None if there is no default or the default is a section."""
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    match default, _unit(field.type):
        case int(), "duration":
            return quantities.duration_text(default)
        case int(), "size":
            return quantities.size_text(default)
        case int(), "days":
            return quantities.days_text(default)
        case (str(host), int(port)), "address":
            return quantities.address_text(host, port)
        case ((str() | int() | float()), None):
            return default
        case _:
            return None


def _unit(info: inspect.Type) -> object:
    if isinstance(info, inspect.UnionType):
        return next((unit for each in info.types if (unit := _unit(each)) is not None), None)
    return _extra(info).get("reads") if isinstance(info, inspect.Metadata) else None


def _extra(info: inspect.Metadata) -> dict[str, object]:
    return cast("dict[str, object]", info.extra or {})


def _any(ways: Iterable[Schema]) -> Schema:
    """Alternatives, flattened and without duplicates. If one of them has a description, it is used for all."""
    flat: list[Schema] = []
    about: Schema = {}
    for way in ways:
        about |= {"description": way["description"]} if "description" in way else {}
        bare = {name: value for name, value in way.items() if name != "description"}
        flat += [each for each in (bare["anyOf"] if set(bare) == {"anyOf"} else [bare]) if each not in flat]
    return ({**flat[0]} if len(flat) == 1 else {"anyOf": flat}) | about


def _without_default(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name != "default"}
