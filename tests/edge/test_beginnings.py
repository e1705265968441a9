"""Tests for a ticket's prompt prefix hashes."""

import json

from headgate.edge.client import Client, Headers
from headgate.edge.parsed_request import ParsedRequest, read_request
from headgate.model.prefix import unpack_hashes
from headgate.model.ticket import Api
from headgate.model.units import RequestId, TenantId
from testing.gateway import chat

ACME, BOLT = TenantId("acme"), TenantId("bolt")


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


async def taken_in(words: str, tenant: TenantId = ACME) -> ParsedRequest:
    client = Client(NoWire(), method="POST", path=b"/", headers={}, body_bytes_max=2**21)
    client.add_body(json.dumps(chat(messages=[{"role": "user", "content": words}])).encode())
    client.complete_body()
    return await read_request(client, api=Api.CHAT, tenant=tenant, request_id=RequestId("r1"), body_bytes_max=2**21)


async def test_equal_prefixes_from_one_tenant_have_equal_hashes() -> None:
    one = unpack_hashes((await taken_in("why? " * 1_000)).ticket.prefix_hashes)
    other = unpack_hashes((await taken_in("why? " * 1_000 + "and how?")).ticket.prefix_hashes)

    assert one == other
    assert len(one) == 3


async def test_equal_prefixes_from_different_tenants_have_different_hashes() -> None:
    acmes = await taken_in("why? " * 1_000, ACME)
    bolts = await taken_in("why? " * 1_000, BOLT)

    assert not set(unpack_hashes(acmes.ticket.prefix_hashes)) & set(unpack_hashes(bolts.ticket.prefix_hashes))
    assert acmes.for_tenant(BOLT).ticket.prefix_hashes == bolts.ticket.prefix_hashes


async def test_large_body_has_prefix_hashes() -> None:
    assert len(unpack_hashes((await taken_in("x" * 400_000)).ticket.prefix_hashes)) == 60
