"""A cell's member, leader and Redis code depend only on the protocol, not on each other."""

import ast
from pathlib import Path

import pytest

from headgate.hosts import cell

ROLES = ("protocol", "member", "leader", "redis")


def imports(role: str) -> set[str]:
    """Returns the roles that one role's modules import."""
    found: set[str] = set()
    for path in (Path(cell.__file__).parent / role).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headgate.hosts.cell"):
                found.add((node.module or "").removeprefix("headgate.hosts.cell").strip(".").partition(".")[0])
    return found & set(ROLES)


@pytest.mark.parametrize("role", ["member", "leader", "redis"])
def test_role_imports_only_the_protocol_and_itself(role: str) -> None:
    assert imports(role) == {"protocol", role}


def test_protocol_imports_no_role() -> None:
    assert imports("protocol") == {"protocol"}
