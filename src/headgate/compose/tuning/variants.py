"""A scenario file and variants of it in which some settings have other values.

A variant is read and checked exactly like a file, so a value that the file must not have is rejected.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Final

from headgate.config import schema_reader, yaml_document
from headgate.config.classes import DEFAULT_CLASSES
from headgate.config.environment import References
from headgate.config.load import read_text
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.scenarios.load import MISSING_HINT, read_tree
from headgate.config.scenarios.schema import ScenarioFile
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.config.yaml_document import Tree
from headgate.model.engine_profile import EngineProfile
from headgate.planning.tuning.change import SettingChange

_NAMED_SECTIONS: Final = ("pools", "classes", "tenants", "models")
_INDEX: Final = re.compile(r"(.*)\[(\d+)\]")


class ScenarioVariants:
    """Raises `ConfigErrors` if the file is invalid."""

    def __init__(
        self,
        text: str,
        path: Path,
        environ: Mapping[str, str],
        *,
        profiles: Mapping[str, EngineProfile],
        schedulers: Collection[str],
    ) -> None:
        report = ConfigReport(str(path))
        self._tree = yaml_document.parse(text, report)
        self._path = path
        self._environ = environ
        self._profiles = profiles
        self._schedulers = schedulers
        self._base = self._read(self._tree, report)
        self._tree = _uniform(self._tree)

    def fixed(self, changes: Sequence[SettingChange]) -> "ScenarioVariants":
        """Returns the scenario with these changes as a file of its own. Raises `ConfigErrors` if it is invalid."""
        found = copy(self)
        found.__dict__ |= {"_base": self.settings(changes), "_tree": self._changed(changes)}
        return found

    def settings(self, changes: Sequence[SettingChange] = ()) -> ScenarioSettings:
        """Returns the scenario with these changes. Raises `ConfigErrors` if it is invalid."""
        if not changes:
            return self._base
        return self._read(self._changed(changes), ConfigReport(str(self._path)))

    def file(self, changes: Sequence[SettingChange] = ()) -> ScenarioFile:
        """Returns the settings in the file with these changes, which must be valid."""
        references = References(self._environ, self._path.parent)
        return schema_reader.read(self._changed(changes), ScenarioFile, references, ConfigReport(str(self._path)))

    def has(self, path: str, changes: Sequence[SettingChange] = ()) -> bool:
        """Whether the file with these changes sets a value at this path."""
        node = self._changed(changes)
        for part in _parts(path, node):
            if isinstance(node, list) and isinstance(part, int) and part < len(node):
                node = node[part]
            elif isinstance(node, dict) and isinstance(part, str):
                node = node.get(part)
            else:
                return False
        return node is not None

    def _read(self, tree: Tree, report: ConfigReport) -> ScenarioSettings:
        return read_tree(tree, self._path, self._environ, report, profiles=self._profiles, schedulers=self._schedulers)

    def _changed(self, changes: Sequence[SettingChange]) -> Tree:
        tree = _copied(self._tree)
        for change in changes:
            _write(tree, _parts(change.path, tree), change.after)
        return tree


def load_variants(
    path: Path, environ: Mapping[str, str], *, profiles: Mapping[str, EngineProfile], schedulers: Collection[str]
) -> ScenarioVariants:
    """Reads the file. Raises `ConfigErrors` with all problems."""
    text = read_text(path, missing=MISSING_HINT)
    return ScenarioVariants(text, path, environ, profiles=profiles, schedulers=schedulers)


def _parts(path: str, tree: Tree) -> SettingPath:
    """Splits a path such as `pools.main.engines[0].count`. A name, such as that of a pool, may contain dots."""
    section, _, rest = path.partition(".")
    if not rest:
        return (section,)
    found: list[str | int] = [section]
    if section in _NAMED_SECTIONS and isinstance(tree, dict) and isinstance(names := tree.get(section), dict):
        name = max((each for each in names if rest.startswith(f"{each}.")), key=len)
        found.append(name)
        rest = rest[len(name) + 1 :]
    for word in rest.split("."):
        indexed = _INDEX.fullmatch(word)
        found += [word] if indexed is None else [indexed[1], int(indexed[2])]
    return tuple(found)


def _write(tree: Tree, parts: SettingPath, value: str | None) -> None:
    """Sets the value, or removes it. Missing sections are added."""
    *around, last = parts
    node = tree
    for part in around:
        if isinstance(node, list) and isinstance(part, int):
            node = node[part]
            continue
        assert isinstance(node, dict)
        assert isinstance(part, str)
        if node.get(part) is None:
            node[part] = {}
        node = node[part]
    assert isinstance(node, dict)
    assert isinstance(last, str)
    if value is None:
        node.pop(last, None)
    elif value.startswith("["):
        node[last] = list[Tree](each.strip() for each in value[1:-1].split(","))
    else:
        node[last] = value


def _uniform(tree: Tree) -> Tree:
    """Writes engines as sections, and the default classes, so that each of their settings can be set."""
    tree = _copied(tree)
    assert isinstance(tree, dict)
    if tree.get("classes") is None:
        tree["classes"] = {name: {} for name in DEFAULT_CLASSES}
    pools = tree["pools"]
    assert isinstance(pools, dict)
    for pool in pools.values():
        assert isinstance(pool, dict)
        engines = pool["engines"]
        groups = engines if isinstance(engines, list) else [engines]
        pool["engines"] = list[Tree]({"profile": each} if isinstance(each, str) else each for each in groups)
    return tree


def _copied(tree: Tree) -> Tree:
    """Copies the tree. Aliases, which share a value, become values of their own."""
    if isinstance(tree, dict):
        return {name: _copied(value) for name, value in tree.items()}
    return [_copied(each) for each in tree] if isinstance(tree, list) else tree
