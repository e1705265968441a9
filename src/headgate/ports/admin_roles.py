"""Permissions of operators, and the roles that group them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Permission(StrEnum):
    """Permission of an operator on the admin listener."""

    READ = "read"
    """Read everything except the read log. Includes `cost`."""
    COST = "cost"
    """Read costs and budgets."""
    BUDGETS = "budgets"
    """Change budgets."""
    KEYS = "keys"
    """Change tenants and keys. Includes `budgets`."""
    OPERATE = "operate"
    """Create and end overrides, and make the scheduler of a cell hand over."""
    AUDIT = "audit"
    """Read the read log."""
    RECORD = "record"
    """Record traffic: sizes, tenants and prompt hashes of requests."""
    SHARES = "shares"
    """Divide tenants' limits between cells. For the share controller; no role includes it."""


class Role(StrEnum):
    """Named set of permissions."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ACCOUNTANT = "accountant"
    ADMIN = "admin"


ROLES: Final[Mapping[Role, frozenset[Permission]]] = MappingProxyType(
    {
        Role.VIEWER: frozenset({Permission.READ}),
        Role.OPERATOR: frozenset({Permission.READ, Permission.OPERATE}),
        Role.ACCOUNTANT: frozenset({Permission.COST, Permission.BUDGETS}),
        Role.ADMIN: frozenset(Permission) - {Permission.SHARES},
    }
)
_INCLUDED: Final[Mapping[Permission, frozenset[Permission]]] = MappingProxyType(
    {
        Permission.READ: frozenset({Permission.COST}),
        Permission.KEYS: frozenset({Permission.BUDGETS}),
    }
)
"""Further permissions that a permission includes."""


def granted(permissions: Iterable[str]) -> frozenset[Permission]:
    """Returns the permissions together with those that they include."""
    named = frozenset(Permission(each) for each in permissions)
    return named.union(*(_INCLUDED.get(each, frozenset()) for each in named))


def permissions_of(roles: Iterable[Role]) -> frozenset[Permission]:
    """Returns the permissions of all the roles together."""
    return granted(permission for role in roles for permission in ROLES[role])


@dataclass(frozen=True, slots=True)
class Operator:
    """A person or program that has authenticated on the admin listener."""

    name: str
    permissions: frozenset[Permission]
    expires_at_s: float = float("inf")
    """Unix time at which the token or session ends."""
