"""Does a ticket carry the hashes of its prompt's beginning, and are they its tenant's own?"""

import json

from headgate.edge.client import Client, Headers
from headgate.edge.intake import Intake, take_in
from headgate.model.prefix import unpack
from headgate.model.ticket import Api
from headgate.model.units import RequestId, TenantId
from testing.gateway import chat

ACME, BOLT = TenantId("acme"), TenantId("bolt")


class NoWire:
    """A caller that is sent nothing."""

    blocked = False

    def identified(self, _tenant: TenantId | None = None) -> bool:
        return True

    def ask_for_body(self) -> None: ...

    def send_head(self, status: int, headers: Headers) -> None: ...

    def send(self, data: bytes) -> None: ...

    def send_end(self, data: bytes) -> None: ...


async def taken_in(words: str, tenant: TenantId = ACME) -> Intake:
    client = Client(NoWire(), method="POST", path=b"/", headers={}, body_bytes_max=2**21)
    client.take_body(json.dumps(chat(messages=[{"role": "user", "content": words}])).encode())
    client.complete_body()
    return await take_in(client, api=Api.CHAT, tenant=tenant, request_id=RequestId("r1"), body_bytes_max=2**21)


async def test_the_same_beginning_has_the_same_hashes_for_one_tenant() -> None:
    one = unpack((await taken_in("why? " * 1_000)).ticket.prefix)
    other = unpack((await taken_in("why? " * 1_000 + "and how?")).ticket.prefix)

    assert one == other
    assert len(one) == 3


async def test_and_others_for_another() -> None:
    acmes = await taken_in("why? " * 1_000, ACME)
    bolts = await taken_in("why? " * 1_000, BOLT)

    assert not set(unpack(acmes.ticket.prefix)) & set(unpack(bolts.ticket.prefix))
    assert acmes.of(BOLT).ticket.prefix == bolts.ticket.prefix


async def test_a_large_body_has_them_too() -> None:
    assert len(unpack((await taken_in("x" * 400_000)).ticket.prefix)) == 60
