"""What does the YAML say, and on which line?

Every scalar stays the text that was written: what kind of thing it is the schema says, not
YAML. So `no` can name a model, `0x10` and `1:30` are not numbers behind anyone's back, and
`${NAME}` may stand for a number as well as for text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import yaml

from headgate.config.problems import Place, Report

Tree = str | list["Tree"] | dict[str, "Tree"] | None

# Aliases can make a small file very large; no honest one comes near this.
PLACES_MAX = 500_000

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Loader = type[yaml.SafeLoader] | type[yaml.CSafeLoader]
_TAG = "tag:yaml.org,2002:"
_BARE_VARIABLE = re.compile(r"[:,\[]\s*(\$\{\w*\})")
_TAGS_OF_TEXT = frozenset(_TAG + kind for kind in ("str", "int", "float", "bool", "timestamp", "value"))


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    line: int
    value: yaml.Node


def parse(text: str, report: Report, *, loader: _Loader = LOADER) -> Tree:
    """The tree of the file; the report learns its lines. After broken YAML the report is wrong as a whole."""
    try:
        root = cast("yaml.Node | None", yaml.compose(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
    except yaml.YAMLError as error:
        report.lines = {(): _line_of(error)}
        report.problem((), _explained(error, text))
        return None
    reading = _Reading(report)
    report.lines = reading.lines
    try:
        return None if root is None else reading.tree(root, ())
    except _TooLarge:
        report.problem((), f"holds more than {PLACES_MAX} values once its aliases are followed; use fewer of them")
        return None


class _TooLarge(Exception):
    pass


@dataclass(slots=True)
class _Reading:
    report: Report
    lines: dict[Place, int] = field(default_factory=lambda: {(): 1})
    open: set[int] = field(default_factory=set[int])
    """The nodes that the one being read stands in, by identity: an alias of one of them would never end."""

    def tree(self, node: yaml.Node, place: Place) -> Tree:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if len(self.lines) > PLACES_MAX:
            raise _TooLarge
        if id(node) in self.open:
            self.report.problem(place, "is an alias of something that it stands in itself; write it out")
            return None
        self.open.add(id(node))
        try:
            return self._tree(node, place)
        finally:
            self.open.discard(id(node))

    def _tree(self, node: yaml.Node, place: Place) -> Tree:
        match node:
            case yaml.MappingNode():
                return self._mapping(node, place)
            case yaml.SequenceNode():
                return [self.tree(item, (*place, number)) for number, item in enumerate(node.value)]
            case yaml.ScalarNode(tag=tag, value=value) if tag in _TAGS_OF_TEXT:
                return value
            case _:
                if node.tag != _TAG + "null":
                    self.report.problem(place, f'has the YAML tag "{node.tag}", which means nothing here; remove it')
                return None

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Tree]:
        tree: dict[str, Tree] = {}
        for entry in self._own(node, place):
            here = (*place, entry.key)
            if entry.key in tree:
                problem = f"stands on line {self.lines[here]} and again on line {entry.line}; keep one"
                self.report.problem(here, problem, read=True)
                continue
            self.lines[here] = entry.line
            tree[entry.key] = self.tree(entry.value, here)
        for entry in self._merged(node, place):
            if entry.key not in tree:
                here = (*place, entry.key)
                self.lines[here] = entry.line
                tree[entry.key] = self.tree(entry.value, here)
        return tree

    def _own(self, node: yaml.MappingNode, place: Place) -> Iterator[_Entry]:
        """What is written in the mapping itself."""
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.report.problem(place, f"has a key on line {line} that is not plain text; write a name there")
            elif key.tag != _TAG + "merge":
                yield _Entry(key.value, line, value)

    def _merged(self, node: yaml.MappingNode, place: Place) -> Iterator[_Entry]:
        """What comes in by `<<`, nearest first."""
        for key, value in node.value:
            if key.tag != _TAG + "merge":
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode) or id(source) in self.open:
                    self.report.problem((*place, "<<"), "must name a mapping that it does not stand in itself")
                    continue
                yield from self._own(source, place)
                self.open.add(id(source))
                yield from self._merged(source, place)
                self.open.discard(id(source))


def _line_of(error: yaml.YAMLError) -> int:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return mark.line + 1 if mark else 1


def _explained(error: yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        said = ", ".join(part for part in (error.context, error.problem) if part)
    else:
        said = str(error).partition("\n")[0]
    line = "".join(text.splitlines()[_line_of(error) - 1 : _line_of(error)])
    hint = "; indent with spaces, not tabs" if "\t" in line else ""
    if said.startswith("while parsing a flow") and (found := _BARE_VARIABLE.search(line)):
        hint = f'; inside braces and brackets a variable stands in quotes: "{found[1]}"'
    return f"is not YAML: {said}{hint}"
