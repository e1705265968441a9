"""Settings of a scenario that can be tuned, and the values to try.

Every setting in the schema is either in `TUNABLE` or in `FIXED`, with the reason why it is not tuned; a test checks
this. The type of a setting, its bounds and its default come from the schema.

Numbers and durations are scaled from the value in effect. Numbers of engines, priority bands and degradation levels
change by one at first. Switches and choices have all their other values. If the file sets a value, the default is tried
too.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from types import MappingProxyType
from typing import Final, cast

from msgspec import inspect

from headgate.compose.tuning.tunable_settings import TunableRule, rule_of
from headgate.compose.tuning.variants import ScenarioVariants
from headgate.config.pool_schema import HOSTED_ENGINE
from headgate.config.problems import ConfigErrors
from headgate.config.quantities import duration_text
from headgate.config.scenarios.schema import ScenarioFile
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.config.section import Section
from headgate.config.setting_types import UNLIMITED
from headgate.model.policy import ServiceClass
from headgate.model.units import MILLISECOND, SECOND, ClassName, PoolName
from headgate.planning.tuning.change import SettingChange
from headgate.planning.tuning.tunable import Direction, Tunable

_LARGEST: Final = 2**31
_FACTORS: Final = ((0.75, 0.5, 0.25, 0.1), (1.5, 2.0, 4.0, 10.0))
_PROBE: Final = 1
"""Position of the factors 0.5 and 2, which are tried first."""
_STEPS: Final = (1, 2, 4, 8)
_POOL_SETS_MAX: Final = 16


_CLASS_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "priority_band": "band",
        "queue_wait_max": "queue_wait_ns_max",
        "first_token_timeout": "first_token_ns_max",
        "stream_idle_timeout": "idle_ns_max",
        "attempt_timeout": "total_ns_max",
        "cold_start_wait_max": "cold_start_wait_ns_max",
    }
)
"""Attributes of a class whose names differ from those of their settings."""

_ENGINE_SIZES: Final = frozenset({"sequences_max", "chunk_tokens", "async_scheduling"})


def schema_settings() -> Iterator[tuple[str, inspect.Type]]:
    """Yields every setting of a scenario, with `*` for names and numbers, and its type."""
    yield from _settings_in(inspect.type_info(ScenarioFile), "")


def _settings_in(info: inspect.Type, path: str) -> Iterator[tuple[str, inspect.Type]]:
    match info:
        case inspect.Metadata():
            inner = list(_settings_in(info.type, path))
            # A scalar keeps its bounds and its notation, which are in the metadata.
            yield from [(path, info)] if [each for each, _ in inner] == [path] else inner
        case inspect.StructType():
            for each in info.fields:
                yield from _settings_in(each.type, f"{path}.{each.encode_name}" if path else each.encode_name)
        case inspect.DictType() if _has_section(info.value_type):
            yield from _settings_in(info.value_type, f"{path}.*")
        case inspect.DictType():
            yield f"{path}.*", info.value_type
        case inspect.ListType() if _has_section(info.item_type):
            yield from _settings_in(info.item_type, f"{path}[*]")
        case inspect.UnionType() if sections := [each for each in info.types if _has_section(each)]:
            yield from _settings_in(sections[0], path)
        case _:
            yield path, info


def _has_section(info: inspect.Type) -> bool:
    match info:
        case inspect.StructType():
            return True
        case inspect.Metadata():
            return _has_section(info.type)
        case inspect.UnionType():
            return any(_has_section(each) for each in info.types)
        case inspect.DictType():
            return _has_section(info.value_type)
        case inspect.ListType():
            return _has_section(info.item_type)
        case _:
            return False


@dataclass(frozen=True, slots=True)
class _Kind:
    """What values a setting accepts."""

    is_duration: bool = False
    is_switch: bool = False
    is_optional: bool = False
    is_unlimited: bool = False
    """Whether it accepts `unlimited`."""
    least: int = 0
    most: int = _LARGEST


def _kind(info: inspect.Type) -> _Kind:
    types = [info]
    optional = unlimited = switch = duration = False
    least, most = 0, _LARGEST
    while types:
        each = types.pop()
        match each:
            case inspect.Metadata():
                duration |= cast("dict[str, object]", each.extra or {}).get("reads") == "duration"
                types.append(each.type)
            case inspect.UnionType():
                types += each.types
            case inspect.NoneType():
                optional = True
            case inspect.LiteralType():
                unlimited = UNLIMITED in each.values
            case inspect.BoolType():
                switch = True
            case inspect.IntType():
                least = max(least, each.ge or 0)
                most = min(most, each.le or (10**18 if duration else _LARGEST))
            case _:
                pass
    return _Kind(duration, switch, optional, unlimited, least, 10**18 if duration else most)


class ScenarioTunables:
    """The tunable settings of one scenario, whose workload has these classes."""

    def __init__(self, variants: ScenarioVariants, classes: Collection[ClassName], pattern: str = "*") -> None:
        self._variants = variants
        self._classes = classes
        self._pattern = pattern
        self._kinds = {path: _kind(info) for path, info in schema_settings() if rule_of(path) is not None}

    def __call__(self, changes: Sequence[SettingChange] = ()) -> list[Tunable]:
        """Returns the settings that can be changed further after these changes."""
        file, settings = self._variants.file(changes), self._variants.settings(changes)
        found: list[Tunable] = []
        for path, schema_path in self._paths(file, settings):
            if path == self._pattern or fnmatchcase(path, self._pattern):
                found.append(self._tunable(path, schema_path, changes, file, settings))
        return [each for each in found if each.directions]

    def _paths(self, file: ScenarioFile, settings: ScenarioSettings) -> Iterator[tuple[str, str]]:
        """Yields each tunable setting of this file with its path in the schema."""
        names = {
            "pools": list(file.pools),
            "classes": [each.name for each in settings.policy.classes if each.name in self._classes],
            "tenants": list(file.tenants),
            "models": list(file.models),
        }
        for schema_path in self._kinds:
            for path in _expanded(schema_path, names, file):
                if self._applies(path, schema_path, file):
                    yield path, schema_path

    def _applies(self, path: str, schema_path: str, file: ScenarioFile) -> bool:
        """Whether the setting can have an effect in this file."""
        section, _, rest = schema_path.partition(".*.")
        if section == "pools" and rest.startswith("engines") and self._is_hosted(path, file):
            return False
        if schema_path == "pools.*.engines[*].in_flight_max":
            return self._variants.has(path)
        if section == "pools" and rest.startswith(("prompt_tokens", "output_tokens")):
            return len(file.pools) > 1
        if schema_path == "classes.*.pools":
            return len(file.pools) > 1
        for optional in ("scaling", "batching"):
            if section == "pools" and rest.startswith(f"{optional}."):
                return getattr(file.pools[_name(path, file.pools)], optional) is not None
        if schema_path == "classes.*.cold_start_wait_max":
            return any(each.scaling is not None for each in file.pools.values())
        return True

    @staticmethod
    def _is_hosted(path: str, file: ScenarioFile) -> bool:
        return file.pools[_name(path, file.pools)].engine == HOSTED_ENGINE

    def _tunable(
        self,
        path: str,
        schema_path: str,
        changes: Sequence[SettingChange],
        file: ScenarioFile,
        settings: ScenarioSettings,
    ) -> Tunable:
        kind, rule = self._kinds[schema_path], rule_of(schema_path)
        assert rule is not None
        value = _effective(path, schema_path, file, settings)
        directions = [each for each in _directions(value, kind, rule, list(file.pools)) if each.values]
        before = _text(value, kind)
        default = self._default(path, schema_path, changes, before) if self._variants.has(path, changes) else before
        tried = {each for direction in directions for each in direction.values}
        if default != before and default not in tried:
            directions.append(Direction((default,)))
        return Tunable(path, before, tuple(directions))

    def _default(self, path: str, schema_path: str, changes: Sequence[SettingChange], before: str | None) -> str | None:
        """Returns the value in effect if the setting is removed. If it is required, it has no default."""
        without = (*changes, SettingChange(path, None, None))
        try:
            settings = self._variants.settings(without)
        except ConfigErrors:
            return before
        return _text(_effective(path, schema_path, self._variants.file(without), settings), self._kinds[schema_path])


def _expanded(schema_path: str, names: Mapping[str, Sequence[str]], file: ScenarioFile) -> Iterator[str]:
    section, star, rest = schema_path.partition(".*.")
    if not star:
        yield schema_path
        return
    for name in names[section]:
        inner, numbered, setting = rest.partition("[*].")
        if not numbered:
            yield f"{section}.{name}.{rest}"
            continue
        container: Mapping[str, Section] = getattr(file, section) or {}
        sections: Sequence[Section] = getattr(container.get(name), inner, None) or []
        yield from (f"{section}.{name}.{inner}[{number}].{setting}" for number in range(len(sections)))


def _name(path: str, names: Collection[str]) -> str:
    rest = path.partition(".")[2]
    return max((each for each in names if rest.startswith(f"{each}.")), key=len)


Value = int | bool | str | tuple[str, ...] | None


def _effective(path: str, schema_path: str, file: ScenarioFile, settings: ScenarioSettings) -> Value:
    """Returns the setting's value from the file, or the value in effect if the file does not set it."""
    value = _written(path, schema_path, file)
    if value is not None and value != []:
        return tuple(cast("list[str]", value)) if isinstance(value, list) else cast("Value", value)
    section, _, setting = schema_path.partition(".*.")
    if section == "classes":
        classes = {str(each.name): each for each in settings.policy.classes}
        return _class_value(classes[_name(path, classes)], setting)
    if section == "pools":
        return _pool_value(PoolName(_name(path, file.pools)), path, setting, file, settings)
    return None


def _class_value(service_class: ServiceClass, setting: str) -> Value:
    found: object = service_class
    for word in setting.split("."):
        found = getattr(found, _CLASS_ATTRIBUTES.get(word, word), None)
    return None if found == () else cast("Value", found)


def _pool_value(pool: PoolName, path: str, setting: str, file: ScenarioFile, settings: ScenarioSettings) -> Value:
    engines = [each for each in settings.engines if each.pool == pool]
    if setting.startswith("engines[*]."):
        name, number = setting.rpartition(".")[2], int(path.rpartition("[")[2].partition("]")[0])
        first = sum(each.count for each in file.pools[pool].engines[:number])
        if name in _ENGINE_SIZES:
            return cast("Value", getattr(engines[first].profile, name))
        return engines[first].in_flight_max
    if setting == "kv_tokens":
        [known] = [each for each in settings.policy.pools if each.name == pool]
        return known.kv_tokens
    return engines[0].in_flight_max if setting == "in_flight_max" else None


def _written(path: str, schema_path: str, file: ScenarioFile) -> object:
    """Returns the value in the file or its default in the schema. None if neither exists."""
    node: object = file
    section, star, rest = schema_path.partition(".*.")
    if star:
        names: Mapping[str, object] = getattr(file, section) or {}
        node = names.get(name := _name(path, names) if names else "")
        rest = path[len(section) + len(name) + 2 :]
    else:
        rest = schema_path
    for word in rest.split("."):
        field, indexed, number = word.partition("[")
        node = getattr(node, field, None)
        if indexed and node is not None:
            node = cast("list[object]", node)[int(number[:-1])]
    return node


def _directions(value: Value, kind: _Kind, rule: TunableRule, pools: Sequence[str]) -> Iterator[Direction]:
    if rule.lists_pools:
        yield from (Direction((each,)) for each in _pool_sets(value, pools))
    elif rule.choices:
        yield from (Direction((each,)) for each in rule.choices if each != value)
    elif kind.is_switch:
        yield Direction(("false" if value else "true",))
    elif isinstance(value, int) and value > 0:
        for direction in _scaled(value, kind, rule):
            values = tuple(dict.fromkeys(_number_text(each, kind) for each in direction))
            yield Direction(values, 0 if rule.by_steps else min(_PROBE, len(values) - 1))
        if kind.is_unlimited:
            yield Direction((UNLIMITED,))
    else:
        usual = rule.usual or ((1, 2, 4) if rule.by_steps or not kind.is_duration else (SECOND, 10 * SECOND))
        values = tuple(_number_text(each, kind) for each in usual if kind.least <= each <= kind.most)
        yield Direction(values, len(values) // 2)


def _scaled(value: int, kind: _Kind, rule: TunableRule) -> Iterator[list[int]]:
    """Yields the smaller and the larger values, nearest first."""
    if rule.by_steps:
        found = ([value - step for step in _STEPS], [value + step for step in _STEPS])
    else:
        unit = MILLISECOND if kind.is_duration else 1
        found = tuple([round(value * factor / unit) * unit for factor in factors] for factors in _FACTORS)
    for values in found:
        yield [each for each in values if each != value and kind.least <= each <= kind.most]


def _pool_sets(value: Value, pools: Sequence[str]) -> Iterator[str | None]:
    present = set(value) if isinstance(value, tuple) else set(pools)
    if present != set(pools):
        yield None
    some = [each for size in (1, 2) if size < len(pools) for each in combinations(pools, size)]
    for each in some[:_POOL_SETS_MAX]:
        if set(each) != present:
            yield f"[{', '.join(each)}]"


def _number_text(value: int, kind: _Kind) -> str:
    return duration_text(value) if kind.is_duration else str(value)


def _text(value: Value, kind: _Kind) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case int():
            return _number_text(value, kind)
        case str():
            return value
        case _:
            return f"[{', '.join(value)}]" if value else None
