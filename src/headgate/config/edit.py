"""Inserts a value into a configuration file, preserving its comments and layout.

The new text is inserted next to the existing text. The result is then parsed: if it is not the old file plus the new
value, the edit is rejected and the file is left unchanged. This check keeps the insertion code simple.
"""

import json
from copy import deepcopy
from typing import cast

import yaml

from headgate.config import yaml_document
from headgate.config.problems import ConfigReport
from headgate.config.yaml_document import Tree

_INDENT = "  "


class EditNotPossible(Exception):
    """The value cannot be inserted into this file automatically."""


def add_item(text: str, path: tuple[str, ...], item: str) -> str:
    """Returns the text with an item appended to the list at this path. Raises `EditNotPossible`."""
    return _edit_and_verify(text, path, item, as_list=True)


def add_value(text: str, path: tuple[str, ...], value: str) -> str:
    """Returns the text with a value added at this path, which must not have one yet. Raises `EditNotPossible`."""
    return _edit_and_verify(text, path, value, as_list=False)


def has_value(text: str, path: tuple[str, ...]) -> bool:
    """Whether the text has a value at this path. Raises `EditNotPossible` if it cannot be parsed."""
    inner = _tree(text)
    for name in path:
        if not isinstance(inner, dict) or name not in inner:
            return False
        inner = inner[name]
    return True


def _edit_and_verify(text: str, path: tuple[str, ...], value: str, *, as_list: bool) -> str:
    before = _tree(text)
    edited = _inserted(text, path, json.dumps(value), as_list=as_list)
    if _tree(edited) != _expected(before, path, value, as_list=as_list):
        raise EditNotPossible
    return edited


def _tree(text: str) -> Tree:
    report = ConfigReport("")
    tree = yaml_document.parse(text, report)
    if report.has_problem(()):
        raise EditNotPossible
    return {} if tree is None else tree


def _expected(tree: Tree, path: tuple[str, ...], value: str, *, as_list: bool) -> Tree:
    *around, last = path
    expected = inner = deepcopy(tree)
    for name in around:
        if not isinstance(inner, dict):
            raise EditNotPossible
        if inner.get(name) is None:
            inner[name] = {}
        inner = inner[name]
    if not isinstance(inner, dict):
        raise EditNotPossible
    present = inner.get(last)
    if not as_list:
        inner[last] = value
    elif present is None or isinstance(present, list):
        inner[last] = [*(present or []), value]
    else:
        raise EditNotPossible
    return expected


def _inserted(text: str, path: tuple[str, ...], quoted: str, *, as_list: bool) -> str:
    """The text with the value inserted into the innermost existing node on the path."""
    root = cast("yaml.Node | None", yaml.compose(text, Loader=yaml_document.LOADER))  # pyright: ignore[reportUnknownMemberType]
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    if root is None:
        return "".join([*lines, *_block("", path, quoted, as_list=as_list)])
    node, key, rest = _innermost_node(root, path)
    match node:
        case yaml.MappingNode(flow_style=True) | yaml.SequenceNode(flow_style=True):
            comma = ", " if node.value else ""
            row, column = node.end_mark.line, node.end_mark.column - 1
            lines[row] = lines[row][:column] + comma + _flow(rest, quoted, as_list=as_list) + lines[row][column:]
        case yaml.MappingNode() | yaml.SequenceNode():
            indent = " " * node.start_mark.column
            lines[_last_row(node) + 1 : _last_row(node) + 1] = _block(indent, rest, quoted, as_list=as_list)
        case yaml.ScalarNode(value="") if key is not None:
            indent = " " * key.start_mark.column + _INDENT
            row = key.start_mark.line + 1
            lines[row:row] = _block(indent, rest, quoted, as_list=as_list)
        case _:
            raise EditNotPossible
    return "".join(lines)


def _innermost_node(root: yaml.Node, path: tuple[str, ...]) -> tuple[yaml.Node, yaml.Node | None, tuple[str, ...]]:
    """The innermost existing node on the path, its key, and the rest of the path."""
    node, key = root, None
    for depth, name in enumerate(path):
        found = next((entry for entry in _entries(node) if entry[0].value == name), None)
        if found is None:
            return node, key, path[depth:]
        key, node = found
    return node, key, ()


def _entries(node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
    return node.value if isinstance(node, yaml.MappingNode) else []


def _last_row(node: yaml.Node) -> int:
    """Last row of the node's text. The parser reports the start of the next node as this node's end."""
    match node:
        case yaml.MappingNode(flow_style=False, value=[*_, (_, yaml.Node() as last)]):
            return _last_row(last)
        case yaml.SequenceNode(flow_style=False, value=[*_, yaml.Node() as last]):
            return _last_row(last)
        case _:
            return node.end_mark.line


def _block(indent: str, path: tuple[str, ...], quoted: str, *, as_list: bool) -> list[str]:
    lines = [f"{indent}{_INDENT * depth}{name}:\n" for depth, name in enumerate(path)]
    if as_list:
        return [*lines, f"{indent}{_INDENT * len(path)}- {quoted}\n"]
    return [*lines[:-1], f"{lines[-1].rstrip()} {quoted}\n"]


def _flow(path: tuple[str, ...], quoted: str, *, as_list: bool) -> str:
    text = f"[{quoted}]" if as_list and path else quoted
    for depth, name in reversed(list(enumerate(path))):
        text = f"{name}: {text}" if depth == 0 else f"{{{name}: {text}}}"
    return text
