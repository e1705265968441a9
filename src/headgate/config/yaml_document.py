"""YAML parser that keeps line numbers.

Every scalar is kept as text, because its type is determined by the schema, not by YAML. A model may therefore be called
`no`, `0x10` and `1:30` are not numbers, and `${NAME}` may be the value of a number.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import yaml

from headgate.config.problems import ConfigReport, SettingPath
from headgate.wire.escape import escaped

Tree = str | list["Tree"] | dict[str, "Tree"] | None

# Aliases can expand a small file to a very large one. Real files are far below this limit.
VALUES_MAX = 500_000
# libyaml composes nested values recursively, without a limit of its own, and so do the readers of the tree.
NESTING_MAX = 100

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Loader = type[yaml.SafeLoader] | type[yaml.CSafeLoader]
_TAG = "tag:yaml.org,2002:"
_BARE_VARIABLE = re.compile(r"[:,\[]\s*(\$\{(?:\w*|file:[^{}]*)\})")
_SCALAR_TAGS = frozenset(_TAG + kind for kind in ("str", "int", "float", "bool", "timestamp", "value"))


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    line: int
    value: yaml.Node


def parse(text: str, report: ConfigReport, *, loader: _Loader = LOADER) -> Tree:
    """Parses the file into a tree and stores line numbers in the report. Invalid YAML is reported as a problem with the
    whole file.
    """
    try:
        _check_nesting(text, loader)
        root = cast("yaml.Node | None", yaml.compose(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
    except yaml.YAMLError as error:
        report.lines = {(): _line_of(error)}
        report.add_problem((), _yaml_error_text(error, text))
        return None
    except _LimitExceeded as error:
        report.add_problem((), str(error))
        return None
    return _document(root, (), _TreeReader(report), report)


def parse_all(text: str, report: ConfigReport) -> list[Tree]:
    """Like `parse`, for a file with any number of documents. Paths begin with the number of the document, from 0."""
    try:
        _check_nesting(text, LOADER)
        roots = list(cast("Iterator[yaml.Node]", yaml.compose_all(text, Loader=LOADER)))  # pyright: ignore[reportUnknownMemberType]
    except yaml.YAMLError as error:
        report.lines = {(): _line_of(error)}
        report.add_problem((), _yaml_error_text(error, text))
        return []
    except _LimitExceeded as error:
        report.add_problem((), str(error))
        return []
    reading = _TreeReader(report)
    return [_document(root, (number,), reading, report) for number, root in enumerate(roots)]


def quoted(text: str) -> str:
    """The text as a YAML string, with `${` escaped. Every JSON string is a YAML string."""
    return escaped(json.dumps(text, ensure_ascii=False)).replace("${", "$${")


def _document(root: yaml.Node | None, place: SettingPath, reading: "_TreeReader", report: ConfigReport) -> Tree:
    report.lines = reading.lines
    try:
        return None if root is None else reading.tree(root, place)
    except _LimitExceeded as error:
        report.add_problem((), str(error))
        return None


class _LimitExceeded(Exception):
    """The file has too many values or levels. The message gives the limit."""


def _check_nesting(text: str, loader: _Loader) -> None:
    """Raises `_LimitExceeded` if the text has too many levels, before a recursive function reads it."""
    depth = 0
    for event in cast("Iterator[yaml.Event]", yaml.parse(text, Loader=loader)):  # pyright: ignore[reportUnknownMemberType]
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > NESTING_MAX:
            raise _too_deep()


def _too_deep() -> _LimitExceeded:
    return _LimitExceeded(f"has more than {NESTING_MAX} nested levels after aliases are expanded; use fewer levels")


@dataclass(slots=True)
class _TreeReader:
    report: ConfigReport
    lines: dict[SettingPath, int] = field(default_factory=lambda: {(): 1})
    open: set[int] = field(default_factory=set[int])
    """IDs of the enclosing nodes. An alias to one of them would cause an infinite loop."""

    def tree(self, node: yaml.Node, place: SettingPath) -> Tree:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if len(self.lines) > VALUES_MAX:
            problem = f"has more than {VALUES_MAX} values after aliases are expanded; use fewer aliases"
            raise _LimitExceeded(problem)
        if len(self.open) >= NESTING_MAX:
            raise _too_deep()
        if id(node) in self.open:
            self.report.add_problem(place, "is an alias of an enclosing value; remove the alias")
            return None
        self.open.add(id(node))
        try:
            return self._tree(node, place)
        finally:
            self.open.discard(id(node))

    def _tree(self, node: yaml.Node, place: SettingPath) -> Tree:
        match node:
            case yaml.MappingNode():
                return self._mapping(node, place)
            case yaml.SequenceNode():
                return [self.tree(item, (*place, number)) for number, item in enumerate(node.value)]
            case yaml.ScalarNode(tag=tag, value=value) if tag in _SCALAR_TAGS:
                return value
            case _:
                if node.tag != _TAG + "null":
                    self.report.add_problem(place, f'has the YAML tag "{node.tag}", which is not supported; remove it')
                return None

    def _mapping(self, node: yaml.MappingNode, place: SettingPath) -> dict[str, Tree]:
        tree: dict[str, Tree] = {}
        for entry in self._own_entries(node, place):
            here = (*place, entry.key)
            if entry.key in tree:
                problem = f"is on line {self.lines[here]} and again on line {entry.line}; remove one"
                self.report.add_problem(here, problem, contents_valid=True)
                continue
            self.lines[here] = entry.line
            tree[entry.key] = self.tree(entry.value, here)
        for entry in self._merged_entries(node, place):
            if entry.key not in tree:
                here = (*place, entry.key)
                self.lines[here] = entry.line
                tree[entry.key] = self.tree(entry.value, here)
        return tree

    def _own_entries(self, node: yaml.MappingNode, place: SettingPath) -> Iterator[_Entry]:
        """Entries of the mapping itself."""
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.report.add_problem(place, f"has a key on line {line} that is not a string; use a name")
            elif key.tag != _TAG + "merge":
                yield _Entry(key.value, line, value)

    def _merged_entries(self, node: yaml.MappingNode, place: SettingPath) -> Iterator[_Entry]:
        """Entries merged with `<<`, nearest first."""
        for key, value in node.value:
            if key.tag != _TAG + "merge":
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode) or id(source) in self.open:
                    self.report.add_problem((*place, "<<"), "must be an alias of a mapping that does not enclose it")
                    continue
                if len(self.open) >= NESTING_MAX:
                    raise _too_deep()
                yield from self._own_entries(source, place)
                self.open.add(id(source))
                yield from self._merged_entries(source, place)
                self.open.discard(id(source))


def _line_of(error: yaml.YAMLError) -> int:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return mark.line + 1 if mark else 1


def _yaml_error_text(error: yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        said = ", ".join(part for part in (error.context, error.problem) if part)
    else:
        said = str(error).partition("\n")[0]
    line = "".join(text.splitlines()[_line_of(error) - 1 : _line_of(error)])
    hint = "; indent with spaces, not tabs" if "\t" in line else ""
    if said.startswith("while parsing a flow") and (found := _BARE_VARIABLE.search(line)):
        hint = f'; inside braces and brackets, quote the reference: "{found[1]}"'
    return f"is not YAML: {said}{hint}"
