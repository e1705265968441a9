"""What do tests of the instruments stand on? A bench upstream of their own, in the event loop of the test."""

from collections.abc import AsyncGenerator

import pytest

from bench.upstream import listening


@pytest.fixture
async def upstream_port() -> AsyncGenerator[int]:
    async with listening(0) as port:
        yield port
