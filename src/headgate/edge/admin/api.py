"""Administration API: paths below `/admin/v1/` for operators.

The list of paths is fixed. All of them take a POST with a JSON body, reject unknown fields and return JSON, with errors
in OpenAI format. Operators have their own keys and tokens (`operator_auth.py`), and each path requires a permission
(`route_permissions.py`). Callers' keys are not accepted. A new key is returned once, in the response that creates it.
Only its hash is stored, and the hash is never returned.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from headgate.edge.admin.operator_auth import AdminRejection, OperatorAuth
from headgate.edge.admin.recorded_reads import record_read
from headgate.edge.admin.route_permissions import API_PERMISSIONS, RECORDED_API
from headgate.edge.client import BodyTooLarge, Client, ClientDisconnected
from headgate.edge.error_replies import JSON_HEADER
from headgate.model.units import SECOND, Instant
from headgate.ports.admin_roles import Operator, Permission
from headgate.ports.directory import (
    Actor,
    AuditRow,
    ChangeRejected,
    DirectoryUnavailable,
    NotFound,
    OverrideRow,
    OverrideStore,
)
from headgate.ports.read_audit import AuditUnavailable, BadCursor, ReadAudit
from headgate.wire.openai_bodies import error_body, json_body

BODY_BYTES_MAX: Final = 64 * 1024
RECEIVE_S_MAX: Final = 10.0
LISTED_MAX: Final = 1_000
_NAMES_SHOWN_MAX: Final = 100
"""Maximum number of names in the message about an unknown name."""
OVERRIDE_S_MAX: Final = 7 * 86_400

# Every pattern ends with \Z, because `$` would also match before a final newline.
STEP: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
TEXT: Final = r"^[^\0]*\Z"
"""Any text that does not contain NUL, which the database cannot store."""
TenantPath = Annotated[str, Meta(max_length=256, pattern=rf"^{STEP}(/{STEP}){{0,2}}\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=TEXT)]
Names = Annotated[list[Name], Meta(max_length=256)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Limit = Annotated[int, Meta(ge=1, le=LISTED_MAX)]


class AdminBody(Struct, frozen=True, forbid_unknown_fields=True):
    """JSON body of an admin request."""


class ListUnder(AdminBody, frozen=True):
    under: TenantPath | None = None
    after: Annotated[str, Meta(max_length=256, pattern=TEXT)] = ""
    limit: Limit = 100


class NewOverride(AdminBody, frozen=True):
    verb: Annotated[str, Meta(pattern=r"^(throttle|hold|drain|pin|scale)\Z")]
    target: Name
    duration_s: Annotated[int, Meta(ge=1, le=OVERRIDE_S_MAX)]
    reason: Annotated[str, Meta(max_length=500, pattern=TEXT)] = ""
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    concurrency: Positive | None = None
    level: Annotated[int, Meta(ge=0, le=6)] | None = None
    interrupt: bool = False
    endpoints: Positive | None = None


class OverrideRef(AdminBody, frozen=True):
    override: Name


class ListOverrides(AdminBody, frozen=True):
    limit: Limit = 100


class ListReads(AdminBody, frozen=True):
    before: Name | None = None
    tenant: TenantPath | None = None
    limit: Limit = 100


class ListAudit(AdminBody, frozen=True):
    before: Positive | None = None
    limit: Limit = 100


@dataclass(frozen=True, slots=True)
class AdminRoute:
    body: type[AdminBody]
    handler: Callable[[Any, Actor], Awaitable[Mapping[str, object]]]
    writes: bool


class _UnknownTarget(Exception):
    """`problem` is the message, and `known` are the valid targets."""

    def __init__(self, problem: str, known: Collection[str]) -> None:
        super().__init__(problem)
        self.known = known


class AdminApi:
    def __init__(
        self,
        overrides: OverrideStore,
        auth: OperatorAuth,
        wait_applied: Callable[[], Awaitable[None]],
        targets: Callable[[str], Collection[str] | None],
        reads: ReadAudit,
        *,
        more_routes: Mapping[bytes, AdminRoute] | None = None,
        hint: str = "",
    ) -> None:
        """`wait_applied` waits until a change has been applied in this process. `targets` returns the valid targets for
        a verb. `reads` records reads of tenants' data. `more_routes` contains the paths of other modules. `hint` is
        added to the response for an unknown path.
        """
        self._overrides = overrides
        self._auth = auth
        self._wait_applied = wait_applied
        self._targets = targets
        self._reads = reads
        self._hint = hint
        self.routes: Mapping[bytes, AdminRoute] = {
            b"/admin/v1/overrides/list": AdminRoute(ListOverrides, self._list_overrides, writes=False),
            b"/admin/v1/overrides/create": AdminRoute(NewOverride, self._create_override, writes=True),
            b"/admin/v1/overrides/end": AdminRoute(OverrideRef, self._end_override, writes=True),
            b"/admin/v1/audit/list": AdminRoute(ListAudit, self._list_audit, writes=False),
            b"/admin/v1/audit/reads": AdminRoute(ListReads, self._list_reads, writes=False),
            **(more_routes or {}),
        }
        _check_permissions(self.routes)

    @property
    def overrides(self) -> OverrideStore:
        return self._overrides

    def add_routes(self, routes: Mapping[bytes, AdminRoute]) -> None:
        _check_permissions(routes)
        self.routes = {**self.routes, **routes}

    async def __call__(self, client: Client) -> None:
        try:
            status, headers, body = 200, [JSON_HEADER, (b"cache-control", b"no-store")], await self._handle(client)
        except AdminRejection as refused:
            kind = "server_error" if refused.status >= 500 else "invalid_request_error"
            status, headers = refused.status, [JSON_HEADER, *refused.headers]
            body = error_body(message=refused.message, type=kind, code=refused.code)
        except ClientDisconnected:
            return
        client.reply(status, headers, body)

    async def _handle(self, client: Client) -> bytes:
        # Authenticate first, so that unauthenticated callers learn nothing about the paths.
        operator = await self._auth.operator(client)
        route = self.routes.get(client.path)
        if route is None:
            known = ", ".join(path.decode() for path in self.routes)
            message = f"unknown path; {self._hint}POST to one of: {known}"
            raise AdminRejection(404, "unknown_url", message)
        if client.method != "POST":
            raise AdminRejection(
                405, "unknown_url", "method not allowed; use POST with a JSON body", [(b"allow", b"POST")]
            )
        permission = API_PERMISSIONS[client.path]
        if permission not in operator.permissions:
            message = (
                f'operator "{operator.name}" lacks the permission "{permission}"; '
                "grant it under admin_keys or identity.operators in the configuration file"
            )
            await self._record(client, operator, None, 403)
            raise AdminRejection(403, "permission_denied", message)
        asked = _decode(await _read_body(client), route.body)
        try:
            said = await self._run(route, asked, operator, client.peer)
        except AdminRejection as rejected:
            await self._record(client, operator, asked, rejected.status)
            raise
        await self._record(client, operator, asked, 200)
        if route.writes:
            await self._wait_applied()
        return json_body(said)

    async def _run(self, route: AdminRoute, asked: AdminBody, operator: Operator, origin: str) -> Mapping[str, object]:
        try:
            return await route.handler(asked, Actor(operator.name, origin))
        except _UnknownTarget as unknown:
            # Only operators who may read tenants may see their names.
            known = f"; known: {_listed(unknown.known)}" if Permission.READ in operator.permissions else ""
            raise AdminRejection(404, "not_found", f"{unknown}{known}") from None
        except NotFound as unknown:
            raise AdminRejection(404, "not_found", str(unknown)) from None
        except ChangeRejected as refusal:
            raise AdminRejection(409, "conflict", str(refusal)) from None
        except DirectoryUnavailable as away:
            look = "check whether the change was made, then retry" if route.writes else "retry"
            message = f"the database did not respond: {away}; {look}"
            raise AdminRejection(503, "database_unavailable", message) from None

    async def _record(self, client: Client, operator: Operator, asked: AdminBody | None, status: int) -> None:
        """Records a read of tenants' data, before the response is sent."""
        if client.path not in RECORDED_API:
            return
        tenant = getattr(asked, "tenant", None) or getattr(asked, "under", None) or ""
        target = getattr(asked, "request", "")
        await record_read(self._reads, client, operator, status=status, tenant=tenant, target=target)

    # Overrides

    async def _list_overrides(self, asked: ListOverrides, _: Actor) -> Mapping[str, object]:
        return {"data": [_override_json(each) for each in await self._overrides.overrides(limit=asked.limit)]}

    async def _create_override(self, asked: NewOverride, actor: Actor) -> Mapping[str, object]:
        terms = _override_terms(asked)
        known = self._targets(asked.verb)
        if known is not None and asked.target not in known:
            raise _UnknownTarget(f'cannot {asked.verb} "{asked.target}": unknown name', known)
        row = await self._overrides.create_override(
            asked.verb, asked.target, terms, actor, reason=asked.reason, duration_s=asked.duration_s
        )
        return _override_json(row)

    async def _end_override(self, asked: OverrideRef, actor: Actor) -> Mapping[str, object]:
        return _override_json(await self._overrides.end_override(asked.override, actor))

    async def _list_audit(self, asked: ListAudit, _: Actor) -> Mapping[str, object]:
        rows = await self._overrides.audit(before=asked.before, limit=asked.limit)
        return {
            "data": [_audit_json(each) for each in rows],
            "next": rows[-1].number if len(rows) == asked.limit else None,
        }

    async def _list_reads(self, asked: ListReads, _: Actor) -> Mapping[str, object]:
        try:
            page = await self._reads.entries(before=asked.before, tenant=asked.tenant, limit=asked.limit)
        except BadCursor as problem:
            raise AdminRejection(400, "invalid_request_error", str(problem)) from None
        except AuditUnavailable as problem:
            raise AdminRejection(503, "audit_unavailable", f"{problem}; retry") from None
        return {
            "data": [{**asdict(each), "at": utc_text(Instant(each.at_ns))} for each in page.entries],
            "next": page.next,
            "skipped": page.skipped,
        }


def _check_permissions(routes: Mapping[bytes, AdminRoute]) -> None:
    assert routes.keys() <= API_PERMISSIONS.keys(), "every route needs an entry in route_permissions.py"


def _override_terms(asked: NewOverride) -> dict[str, int]:
    limits = {name: getattr(asked, name) for name in ("requests_per_minute", "tokens_per_minute", "concurrency")}
    limits = {name: value for name, value in limits.items() if value is not None}
    if bool(limits) is not (asked.verb == "throttle"):
        raise ChangeRejected("throttle needs at least one limit; other overrides must not set limits")
    if (asked.level is not None) is not (asked.verb == "pin"):
        raise ChangeRejected("pin needs a degradation level from 0 to 6; other overrides must not set a level")
    if (asked.endpoints is not None) is not (asked.verb == "scale"):
        raise ChangeRejected("scale needs a number of endpoints; other overrides must not set one")
    if asked.interrupt and asked.verb != "drain":
        raise ChangeRejected("only drain can interrupt attempts")
    others = {"level": asked.level, "endpoints": asked.endpoints, "interrupt": 1 if asked.interrupt else None}
    return limits | {name: value for name, value in others.items() if value is not None}


async def _read_body(client: Client) -> bytes | bytearray:
    kind = client.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        message = "the body must be JSON; send `Content-Type: application/json`"
        raise AdminRejection(415, "unsupported_media_type", message)
    if client.headers.get(b"content-encoding") is not None:
        message = "compressed bodies are not supported; send uncompressed JSON"
        raise AdminRejection(415, "unsupported_media_type", message)
    try:
        async with asyncio.timeout(RECEIVE_S_MAX):
            return await client.body(BODY_BYTES_MAX)
    except BodyTooLarge:
        message = f"the body exceeds {BODY_BYTES_MAX} bytes; send a smaller one"
        raise AdminRejection(413, "request_too_large", message) from None
    except TimeoutError:
        raise AdminRejection(
            408, "request_timeout", f"the body did not arrive within {RECEIVE_S_MAX:g} s; send it faster"
        ) from None


def _decode(body: bytes | bytearray, kind: type[AdminBody]) -> AdminBody:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        fields = ", ".join(kind.__struct_encode_fields__)
        raise AdminRejection(400, "invalid_request_error", f"{error}; valid fields: {fields}") from None


# JSON output


def _override_json(row: OverrideRow) -> dict[str, object]:
    return {
        "override": row.id,
        "verb": row.verb,
        "target": row.target,
        **row.parameters,
        "reason": row.reason,
        "created_by": row.created_by,
        "created_at": utc_text(row.created_at),
        "expires_at": utc_text(row.expires_at),
    }


def _audit_json(row: AuditRow) -> dict[str, object]:
    return {**asdict(row), "at": utc_text(row.at)}


def utc_text(instant: Instant | None) -> str | None:
    """Formats an instant in UTC, to the second."""
    return None if instant is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(instant // SECOND))


def _listed(names: Collection[str]) -> str:
    if len(names) <= _NAMES_SHOWN_MAX:
        return ", ".join(sorted(names)) or "none"
    return f"{', '.join(islice(names, _NAMES_SHOWN_MAX))} and others"
