"""Arbitrary datagrams from a name server result in either the name's addresses or a failed lookup."""

import asyncio
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.fleets.dns.name_server import name_server_resolver
from headgate.fleets.dns.resolve import HostPort, LookupFailed
from testing.dns_server import AAAA, A, DnsServer

FLAGS = struct.pack("!5H", 0x8180, 1, 1, 0, 0)
ASKED = b"\x01a\x04test\x00" + struct.pack("!2H", A, 1)
FORGED = b"\xc0\x0c" + struct.pack("!2HIH", A, 1, 5, 4) + bytes([10, 6, 6, 6])
GENUINE = ("10.0.0.1", 8000)


async def looked_up(server: DnsServer, name: str = "a.test") -> list[HostPort]:
    async with server.serving():
        return await name_server_resolver(name, 8000, ("127.0.0.1", server.port), try_s_max=20)()


def id_of(query: bytes) -> bytes:
    return query[:2]


def other_id(query: bytes) -> bytes:
    return bytes([query[0] ^ 1, query[1]])


@pytest.mark.parametrize(
    "forge",
    [
        lambda query: other_id(query) + FLAGS + ASKED + FORGED,
        lambda query: id_of(query) + FLAGS + ASKED.replace(b"a", b"b", 1) + FORGED,
        lambda query: id_of(query) + b"\x01\x00" + FLAGS[2:] + ASKED + FORGED,
        lambda query: id_of(query) + FLAGS + ASKED + FORGED[:-1],
        lambda query: id_of(query) + FLAGS + ASKED + b"\xc0\x18" + FORGED[2:],
        lambda query: id_of(query) + FLAGS + ASKED,
        lambda _: b"",
    ],
    ids=["other id", "other name", "a query", "cut", "compression loop", "record missing", "empty"],
)
async def test_datagram_not_answering_the_query_is_ignored(forge) -> None:
    server = DnsServer({("a.test", A): ["10.0.0.1"]}, before=lambda query: [forge(query)])

    assert await looked_up(server, "A.Test.") == [GENUINE]


async def test_address_for_another_name_is_ignored() -> None:
    server = DnsServer({("a.test", A): []}, beside={"b.test": ["10.6.6.6"]})

    assert await looked_up(server) == []


@given(st.binary(max_size=200), st.integers(0, 6))
@example(FORGED, 1)
def test_any_bytes_yield_addresses_or_a_failed_lookup(rest: bytes, answers: int) -> None:
    def forge(query: bytes) -> list[bytes]:
        return [id_of(query) + struct.pack("!5H", 0x8180, 1, answers, 0, 1) + ASKED + rest]

    server = DnsServer({("a.test", A): ["10.0.0.1"], ("a.test", AAAA): []}, before=forge)
    try:
        found = asyncio.run(looked_up(server))
    except LookupFailed:
        return
    assert len(found) <= max(1, answers)


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".test", ".".join(["abc"] * 80)])
async def test_invalid_query_name_fails_the_lookup(name: str) -> None:
    with pytest.raises(LookupFailed, match=r"query for .* failed"):
        await looked_up(DnsServer(), name)
