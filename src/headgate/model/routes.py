"""Routes: weighted alternatives that serve a public model name.

Routes with equal matches form a group. The first group that matches a request decides, and its weights divide the
requests. The names and the meaning of weights follow the Gateway API: a weight is relative to the sum of the group, and
0 means no traffic.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.model.tenant import Plan
from headgate.model.units import ClassName, PoolName, RequestId, TenantId

WEIGHT_MAX: Final = 1_000_000
ROUTES_MAX: Final = 32
"""Maximum number of routes of a model. It bounds the metrics."""
STICKY_CHARS_MAX: Final = 512
"""Maximum length of a sticky key or a header value. Longer ones are ignored."""
SESSION_HEADER: Final = "x-session-id"
WHOLE_SHARE_PPM: Final = 1_000_000
MIRROR_CLASS: Final = ClassName("mirror")
"""Class of all copies, below the classes of the policy. A configured class cannot have this name."""
MIRROR_TENANT: Final = TenantId("_mirror")
"""Tenant of all copies. It has no limits and no budgets, and a configured tenant cannot have this name."""
_MIRROR_SUFFIX: Final = "-mirror"


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


class MirrorResult(StrEnum):
    """Result for a request that was selected for copying."""

    COMPLETED = "completed"
    """The response to the copy was complete."""
    FAILED = "failed"
    """The copy was sent, and its engine failed, rejected it or took too long."""
    STOPPED = "stopped"
    """The copy was stopped because a request waited for its pool or the gateway shut down."""
    PRESSURE = "pressure"
    """The copy was not sent, because requests waited for its pool, or because a pool was overloaded."""
    BUSY = "busy"
    """The copy was not sent, because no endpoint of its pool had idle capacity."""
    NO_ENDPOINTS = "no_endpoints"
    """The copy was not sent, because no endpoint of its pool was available."""
    BODY_TOO_LARGE = "body_too_large"
    """The request was not copied, because its body was too large."""
    LIMIT = "limit"
    """The request was not copied, because the gateway had reached `limits.mirrors_open_max`."""


@dataclass(frozen=True, slots=True)
class RouteMirror:
    """Pools that receive copies of a share of a route's requests. The gateway discards the responses."""

    pools: tuple[PoolName, ...]
    share_ppm: int = WHOLE_SHARE_PPM
    """Share of the route's requests that are copied, in parts per million."""


@dataclass(frozen=True, slots=True)
class ModelRoute:
    name: str
    """Unique within the model."""
    pools: tuple[PoolName, ...]
    weight: int = 1
    match: RouteMatch = RouteMatch()
    mirror: RouteMirror | None = None
    """Pools that receive copies of the route's requests. None if there are none."""


@dataclass(frozen=True, slots=True)
class RouteInputs:
    """Parts of a request that the routes of the configured models need in the ticket."""

    headers: tuple[str, ...] = ()
    sticky: frozenset[Sticky] = frozenset()


def mirror_id(request_id: RequestId) -> RequestId:
    """Returns the request id of a request's copy."""
    return RequestId(request_id + _MIRROR_SUFFIX)


def mirrored_id(request_id: RequestId) -> RequestId | None:
    """Returns the id of the request that was copied. None if this id does not belong to a copy."""
    return RequestId(request_id.removesuffix(_MIRROR_SUFFIX)) if request_id.endswith(_MIRROR_SUFFIX) else None
