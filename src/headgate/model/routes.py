"""Routes: weighted alternatives that serve a public model name.

Routes with equal matches form a group. The first group that matches a request decides, and its weights divide the
requests. The names and the meaning of weights follow the Gateway API: a weight is relative to the sum of the group, and
0 means no traffic.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.model.tenant import Plan
from headgate.model.units import ClassName, PoolName, TenantId

WEIGHT_MAX: Final = 1_000_000
ROUTES_MAX: Final = 32
"""Maximum number of routes of a model. It bounds the metrics."""
STICKY_CHARS_MAX: Final = 512
"""Maximum length of a sticky key or a header value. Longer ones are ignored."""
SESSION_HEADER: Final = "x-session-id"


class Sticky(StrEnum):
    """Property of a request whose value decides between the routes of a group."""

    REQUEST = "request"
    """The request id: every request is decided independently."""
    USER = "user"
    """The field `user` of the request."""
    SESSION = "session"
    """The header `x-session-id` or, without it, the field `prompt_cache_key`."""
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """Criteria of a group of routes. An omitted criterion matches every request."""

    tenants: tuple[TenantId, ...] = ()
    """Tenants, including all tenants below them."""
    plans: tuple[Plan, ...] = ()
    classes: tuple[ClassName, ...] = ()
    headers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names of request headers in lower case, each with its accepted values."""


@dataclass(frozen=True, slots=True)
class ModelRoute:
    name: str
    """Unique within the model."""
    pools: tuple[PoolName, ...]
    weight: int = 1
    match: RouteMatch = RouteMatch()


@dataclass(frozen=True, slots=True)
class RouteInputs:
    """Parts of a request that the routes of the configured models need in the ticket."""

    headers: tuple[str, ...] = ()
    sticky: frozenset[Sticky] = frozenset()
