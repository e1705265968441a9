"""What may an operator change, and who is an operator?

A closed list of paths below `/admin/v1/`, each with the permission it needs; whatever is not on it does not exist. All
are asked by POST with a JSON body of known fields and answered in JSON, errors in the OpenAI shape. Operators have keys
of their own, known by their keyed hash; a caller's key opens nothing here. A key that is made is shown in that one
answer and never again: what is kept of it is its hash, which is shown to nobody.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from headgate.edge.auth import bearer
from headgate.edge.client import BodyTooLarge, Client, ClientLeft
from headgate.edge.replies import JSON
from headgate.model.units import SECOND, Instant
from headgate.ports.directory import (
    Actor,
    AuditRow,
    DirectoryAway,
    OrderBook,
    OrderRow,
    Unknown,
    Unwritten,
)
from headgate.wire.keys import digest
from headgate.wire.replies import error_body, json_body

ADMIN_API: Final = b"/admin/v1/"
BODY_BYTES_MAX: Final = 64 * 1024
RECEIVE_S_MAX: Final = 10.0
READ, KEYS, OPERATE = "read", "keys", "operate"
LISTED_MAX: Final = 1_000
LASTS_S_MAX: Final = 7 * 86_400

# Every pattern ends with \Z, since `$` would let the end of a line follow.
STEP: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
TEXT: Final = r"^[^\0]*\Z"
"""Anything but what the database cannot hold."""
TenantPath = Annotated[str, Meta(max_length=256, pattern=rf"^{STEP}(/{STEP}){{0,2}}\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=TEXT)]
Names = Annotated[list[Name], Meta(max_length=256)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Limit = Annotated[int, Meta(ge=1, le=LISTED_MAX)]


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """What a path is asked with."""


class ListBelow(Body, frozen=True):
    below: TenantPath | None = None
    after: Annotated[str, Meta(max_length=256, pattern=TEXT)] = ""
    limit: Limit = 100


class NewOrder(Body, frozen=True):
    verb: Annotated[str, Meta(pattern=r"^(throttle|hold|drain|pin)\Z")]
    target: Name
    lasts_s: Annotated[int, Meta(ge=1, le=LASTS_S_MAX)]
    reason: Annotated[str, Meta(max_length=500, pattern=TEXT)] = ""
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    concurrency: Positive | None = None
    level: Annotated[int, Meta(ge=0, le=6)] | None = None


class OrderNamed(Body, frozen=True):
    order: Name


class ListOrders(Body, frozen=True):
    limit: Limit = 100


class ListAudit(Body, frozen=True):
    before: Positive | None = None
    limit: Limit = 100


@dataclass(frozen=True, slots=True)
class Operator:
    name: str
    permissions: Collection[str]


@dataclass(frozen=True, slots=True)
class Route:
    permission: str
    body: type[Body]
    answer: Callable[[Any, Actor], Awaitable[Mapping[str, object]]]
    writes: bool


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


class AdminApi:
    def __init__(
        self,
        orders: OrderBook,
        secret: bytes,
        operators: Mapping[bytes, Operator],
        taken_over: Callable[[], Awaitable[None]],
        names: Callable[[str], Collection[str] | None],
        *,
        others: Mapping[bytes, Route] | None = None,
        hint: str = "",
    ) -> None:
        """`taken_over` waits until a change is known in this process; `names` returns the possible targets of a verb;
        `others` are the paths of other modules; `hint` is added to the response for an unknown path."""
        self._orders = orders
        self._secret = secret
        self._operators = operators
        self._taken_over = taken_over
        self._names = names
        self._hint = hint
        self.routes: Mapping[bytes, Route] = {
            b"/admin/v1/orders/list": Route(READ, ListOrders, self._list_orders, writes=False),
            b"/admin/v1/orders/place": Route(OPERATE, NewOrder, self._place_order, writes=True),
            b"/admin/v1/orders/end": Route(OPERATE, OrderNamed, self._end_order, writes=True),
            b"/admin/v1/audit/list": Route(READ, ListAudit, self._list_audit, writes=False),
            **(others or {}),
        }

    async def __call__(self, client: Client) -> None:
        try:
            status, headers, body = 200, [JSON, (b"cache-control", b"no-store")], await self._answer(client)
        except _Refused as refused:
            kind = "server_error" if refused.status >= 500 else "invalid_request_error"
            status, headers = refused.status, [JSON, *refused.headers]
            body = error_body(message=refused.message, type=kind, code=refused.code)
        except ClientLeft:
            return
        client.reply(status, headers, body)

    async def _answer(self, client: Client) -> bytes:
        # Who is nobody here is not told what there is.
        operator = self._operator(client.headers.get(b"authorization"))
        route = self.routes.get(client.path)
        if route is None:
            known = ", ".join(path.decode() for path in self.routes)
            message = f"there is nothing at this path; {self._hint}POST to one of: {known}"
            raise _Refused(404, "unknown_url", message)
        if client.method != "POST":
            raise _Refused(405, "unknown_url", "this is asked by POST, with a JSON body", [(b"allow", b"POST")])
        if route.permission not in operator.permissions:
            message = (
                f'"{operator.name}" lacks the permission "{route.permission}"; it is given in admin_keys of the file'
            )
            raise _Refused(403, "not_allowed", message)
        asked = _decoded(await _received(client), route.body)
        try:
            said = await route.answer(asked, Actor(operator.name, client.peer))
        except Unknown as unknown:
            raise _Refused(404, "not_found", str(unknown)) from None
        except Unwritten as refusal:
            raise _Refused(409, "conflict", str(refusal)) from None
        except DirectoryAway as away:
            look = "look whether it was done, and try again" if route.writes else "try again"
            message = f"the database did not answer: {away}; {look}"
            raise _Refused(503, "database_away", message, [(b"retry-after", b"5")]) from None
        if route.writes:
            await self._taken_over()
        return json_body(said)

    def _operator(self, authorization: bytes | None) -> Operator:
        """Every key that is known is compared, and each of them whole: the time tells nothing."""
        shown, found = digest(self._secret, bearer(authorization)), None
        for known, operator in self._operators.items():
            if hmac.compare_digest(known, shown):
                found = operator
        if found is None:
            raise _Refused(
                401, "invalid_api_key", "no key of an operator was given; send it as `Authorization: Bearer KEY`"
            )
        return found

    # Orders

    async def _list_orders(self, asked: ListOrders, _: Actor) -> Mapping[str, object]:
        return {"data": [_order(each) for each in await self._orders.orders(limit=asked.limit)]}

    async def _place_order(self, asked: NewOrder, actor: Actor) -> Mapping[str, object]:
        terms = _order_terms(asked)
        known = self._names(asked.verb)
        if known is not None and asked.target not in known:
            raise Unknown(
                f'there is no "{asked.target}" to {asked.verb}; there is {", ".join(sorted(known)) or "none"}'
            )
        row = await self._orders.place_order(
            asked.verb, asked.target, terms, actor, reason=asked.reason, lasts_s=asked.lasts_s
        )
        return _order(row)

    async def _end_order(self, asked: OrderNamed, actor: Actor) -> Mapping[str, object]:
        return _order(await self._orders.end_order(asked.order, actor))

    async def _list_audit(self, asked: ListAudit, _: Actor) -> Mapping[str, object]:
        rows = await self._orders.audit(before=asked.before, limit=asked.limit)
        return {"data": [_audit(each) for each in rows], "next": rows[-1].number if len(rows) == asked.limit else None}


def _order_terms(asked: NewOrder) -> dict[str, int]:
    limits = {name: getattr(asked, name) for name in ("requests_per_minute", "tokens_per_minute", "concurrency")}
    limits = {name: value for name, value in limits.items() if value is not None}
    if bool(limits) is not (asked.verb == "throttle"):
        raise Unwritten(
            "a throttle names at least one of its limits, and nothing else does; name them, or take them out"
        )
    if (asked.level is not None) is not (asked.verb == "pin"):
        raise Unwritten("a pin names the level of the ladder, 0 to 6, and nothing else does; name it, or take it out")
    return limits if asked.level is None else {"level": asked.level}


async def _received(client: Client) -> bytes | bytearray:
    kind = client.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise _Refused(415, "unsupported_media_type", "the body is JSON; send `Content-Type: application/json`")
    if client.headers.get(b"content-encoding") is not None:
        raise _Refused(415, "unsupported_media_type", "the body is compressed; send it as it is")
    try:
        async with asyncio.timeout(RECEIVE_S_MAX):
            return await client.body(BODY_BYTES_MAX)
    except BodyTooLarge:
        message = f"the body is larger than {BODY_BYTES_MAX} bytes; send less at a time"
        raise _Refused(413, "request_too_large", message) from None
    except TimeoutError:
        raise _Refused(408, "too_slow", f"the body did not come within {RECEIVE_S_MAX:g} s; send it faster") from None


def _decoded(body: bytes | bytearray, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        fields = ", ".join(kind.__struct_encode_fields__)
        raise _Refused(400, "invalid_request_error", f"{error}; the fields are: {fields}") from None


# What is shown of each


def _order(row: OrderRow) -> dict[str, object]:
    return {
        "order": row.id,
        "verb": row.verb,
        "target": row.target,
        **row.terms,
        "reason": row.reason,
        "ordered_by": row.ordered_by,
        "created_at": at_text(row.created_at),
        "expires_at": at_text(row.expires_at),
    }


def _audit(row: AuditRow) -> dict[str, object]:
    return {**asdict(row), "at": at_text(row.at)}


def at_text(instant: Instant | None) -> str | None:
    """In UTC, to the second."""
    return None if instant is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(instant // SECOND))
