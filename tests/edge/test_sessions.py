"""Tests for the session in a ticket."""

import json

import pytest

from headgate.edge.client import Client, Headers
from headgate.edge.parsed_request import ParsedRequest, read_request
from headgate.edge.session import SESSION_BYTES_MAX
from headgate.model.ticket import Api
from headgate.model.units import RequestId, TenantId
from testing.gateway import chat

ACME, BOLT = TenantId("acme"), TenantId("bolt")
FIELDS = ("prompt_cache_key", "user")


class NoWire:
    """A client connection that discards everything sent to it."""

    blocked = False

    def mark_authenticated(self, _tenant: TenantId | None = None) -> bool:
        return True

    def pause_body(self) -> None: ...

    def resume_body(self) -> None: ...

    def send_continue(self) -> None: ...

    def send_head(self, status: int, headers: Headers) -> None: ...

    def send(self, data: bytes) -> None: ...

    def send_end(self, data: bytes) -> None: ...

    def chunk_writer(self) -> None: ...


async def read(
    header: bytes | None = None,
    *,
    tenant: TenantId = ACME,
    fields: tuple[str, ...] | None = FIELDS,
    **body: object,
) -> ParsedRequest:
    headers = {} if header is None else {b"x-session-id": header}
    client = Client(NoWire(), method="POST", path=b"/", headers=headers, body_bytes_max=2**21)
    client.add_body(json.dumps(chat(**body)).encode())
    client.complete_body()
    return await read_request(
        client, api=Api.CHAT, tenant=tenant, request_id=RequestId("r1"), body_bytes_max=2**21, session_fields=fields
    )


async def session(header: bytes | None = None, **settings: object) -> str:
    return (await read(header, **settings)).ticket.session  # type: ignore[arg-type]


async def test_header_and_fields_name_the_same_session() -> None:
    named = await session(b"chat-1")

    assert named
    assert await session(prompt_cache_key="chat-1") == named
    assert await session(user="chat-1") == named


async def test_header_precedes_the_fields_and_they_precede_each_other_in_order() -> None:
    assert await session(b"a", prompt_cache_key="b") == await session(b"a")
    assert await session(prompt_cache_key="a", user="b") == await session(b"a")
    assert await session(prompt_cache_key="", user="b") == await session(b"b")


@pytest.mark.parametrize("body", [{}, {"prompt_cache_key": 7}, {"prompt_cache_key": None}, {"prompt_cache_key": ""}])
async def test_request_without_a_name_has_no_session(body: dict[str, object]) -> None:
    assert await session(**body) == ""


async def test_fields_are_read_only_if_configured() -> None:
    assert await session(fields=("prompt_cache_key",), user="a") == ""
    assert await session(b"a", fields=()) == await session(b"a")


async def test_sessions_are_ignored_unless_they_are_used() -> None:
    assert await session(b"a", fields=None, prompt_cache_key="b") == ""


async def test_too_long_name_is_ignored() -> None:
    assert await session(b"x" * (SESSION_BYTES_MAX + 1)) == ""
    assert await session(b"x" * SESSION_BYTES_MAX)


async def test_tenants_have_their_own_sessions() -> None:
    acmes = await read(b"chat-1")
    bolts = await read(b"chat-1", tenant=BOLT)

    assert acmes.ticket.session != bolts.ticket.session
    assert acmes.for_tenant(BOLT).ticket.session == bolts.ticket.session


async def test_session_name_is_not_shown() -> None:
    assert "chat-1" not in repr(await read(b"chat-1"))
