"""The permission that each route of the admin API requires.

This table is the only place that grants access. A route without an entry cannot be registered.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.ports.admin_roles import Permission

ADMIN_API: Final = b"/admin/v1/"
_READ, _COST, _BUDGETS = Permission.READ, Permission.COST, Permission.BUDGETS
_KEYS, _OPERATE = Permission.KEYS, Permission.OPERATE

API_PERMISSIONS: Final[Mapping[bytes, Permission]] = MappingProxyType(
    {
        ADMIN_API + path: permission
        for path, permission in (
            (b"tenants/list", _READ),
            (b"tenants/create", _KEYS),
            (b"tenants/change", _KEYS),
            (b"tenants/remove", _KEYS),
            (b"keys/list", _READ),
            (b"keys/create", _KEYS),
            (b"keys/rotate", _KEYS),
            (b"keys/revoke", _KEYS),
            (b"budgets/list", _COST),
            (b"budgets/show", _COST),
            (b"budgets/set", _BUDGETS),
            (b"budgets/remove", _BUDGETS),
            (b"cost/report", _COST),
            (b"cost/request", _COST),
            (b"cost/statement", _COST),
            (b"cost/forecast", _COST),
            (b"cost/drift", _COST),
            (b"overrides/list", _READ),
            (b"overrides/create", _OPERATE),
            (b"overrides/end", _OPERATE),
            (b"audit/list", _READ),
            (b"shares/assign", _OPERATE),
            (b"shares/report", _READ),
        )
    }
)
