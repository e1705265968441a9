"""Changes a tenant's pin in `cells.yaml`, preserving the rest of the text.

As in config/edit.py, the edited text is parsed. If it is not the old file with the new pin, the edit is rejected.
"""

from collections.abc import Sequence
from typing import cast

import yaml

from headgate.config import yaml_document
from headgate.config.edit import EditNotPossible
from headgate.config.problems import ConfigReport
from headgate.config.yaml_document import Tree


def set_pin(text: str, tenant: str, cells: Sequence[str]) -> str:
    """Returns the text with the tenant pinned to these cells. Raises `EditNotPossible`."""
    before = _tree(text)
    pins = before.get("pins")
    if pins is not None and not isinstance(pins, dict):
        raise EditNotPossible
    expected = {**before, "pins": {**(pins or {}), tenant: list(cells)}}
    edited = _with_pin(text, tenant, f"[{', '.join(cells)}]")
    if _tree(edited) != expected:
        raise EditNotPossible
    return edited


def _tree(text: str) -> dict[str, Tree]:
    report = ConfigReport("")
    tree = yaml_document.parse(text, report)
    if report.has_problem(()) or not isinstance(tree, dict):
        raise EditNotPossible
    return tree


def _with_pin(text: str, tenant: str, listed: str) -> str:
    root = cast("yaml.Node | None", yaml.compose(text, Loader=yaml_document.LOADER))  # pyright: ignore[reportUnknownMemberType]
    found = _entry(root, "pins")
    if found is None:
        return f"{text.rstrip()}\n\npins:\n  {tenant}: {listed}\n"
    key, pins = found
    if (known := _entry(pins, tenant)) is not None:
        start, end = known[1].start_mark.index, known[1].end_mark.index
        # A block list ends at the next key, so only flow lists are replaced.
        return text[:start] + listed + text[end:]
    match pins:
        case yaml.MappingNode(flow_style=False, value=[(first, _), *_]):
            start = first.start_mark.index
            return f"{text[:start]}{tenant}: {listed}\n{' ' * first.start_mark.column}{text[start:]}"
        case yaml.MappingNode(flow_style=True, value=[]):
            start, end = pins.start_mark.index, pins.end_mark.index
            return f"{text[:start]}{{{tenant}: {listed}}}{text[end:]}"
        case yaml.MappingNode(flow_style=True):
            end = pins.end_mark.index - 1
            return f"{text[:end]}, {tenant}: {listed}{text[end:]}"
        case yaml.ScalarNode(value=""):
            end = key.end_mark.index + 1
            return f"{text[:end]}\n  {tenant}: {listed}{text[end:]}"
        case _:
            raise EditNotPossible


def _entry(node: yaml.Node | None, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    entries: list[tuple[yaml.Node, yaml.Node]] = node.value if isinstance(node, yaml.MappingNode) else []
    return next((each for each in entries if each[0].value == name), None)
