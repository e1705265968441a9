"""Tests for hashing large request bodies without blocking the event loop."""

import asyncio

import pytest

from headgate.edge.parsed_request import hash_body
from headgate.wire.fingerprint import HASHED_AT_ONCE_BYTES, body_digest


@pytest.mark.parametrize(("size", "gives_way"), [(HASHED_AT_ONCE_BYTES, False), (HASHED_AT_ONCE_BYTES + 1, True)])
async def test_large_bodies_are_hashed_without_blocking_the_event_loop(size: int, gives_way: bool) -> None:
    body = bytearray(size)
    turns: list[bool] = []
    asyncio.get_running_loop().call_soon(turns.append, True)

    digest = await hash_body(body)

    assert digest == body_digest(body)
    assert bool(turns) is gives_way
