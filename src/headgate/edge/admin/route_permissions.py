"""The permission that each route of the admin API requires, and the routes whose use is recorded.

These tables are the only place that grants access. A route without an entry cannot be registered.
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
            (b"rollouts/status", _READ),
            (b"trials/status", _READ),
            (b"trials/start", _OPERATE),
            (b"trials/abort", _OPERATE),
            (b"rollouts/start", _OPERATE),
            (b"rollouts/step", _OPERATE),
            (b"rollouts/abort", _OPERATE),
            (b"cell/hand-over", _OPERATE),
            (b"audit/list", _READ),
            (b"audit/reads", Permission.AUDIT),
            (b"traffic/start", Permission.RECORD),
            (b"traffic/read", Permission.RECORD),
            (b"shares/assign", Permission.SHARES),
            (b"shares/report", Permission.SHARES),
        )
    }
)

RECORDED_API: Final = frozenset(
    ADMIN_API + path
    for path in (
        b"tenants/list",
        b"keys/list",
        b"budgets/list",
        b"budgets/show",
        b"cost/report",
        b"cost/request",
        b"cost/statement",
        b"cost/forecast",
        b"cost/drift",
        b"audit/list",
        b"audit/reads",
        b"traffic/start",
    )
)
"""Admin API paths that return tenants' data. Each use is recorded in the read log.

A recording of traffic is recorded when it starts, and not each time that its reader fetches more of it.
"""
RECORDED_PAGES: Final = (b"/requests", b"/explain/", b"/console/events")
"""Pages that show tenants' requests. Each use is recorded in the read log."""
_PUBLIC_PAGES: Final = (b"/health", b"/ready")
_PUBLIC_FOLDER: Final = b"/docs/"


def page_permission(path: bytes) -> Permission | None:
    """Returns the permission that a page requires if operators log in. None if it is public: it has no data."""
    return None if path in _PUBLIC_PAGES or path.startswith(_PUBLIC_FOLDER) else _READ
