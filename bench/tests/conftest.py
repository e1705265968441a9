"""Fixtures for the benchmark tools: an upstream in the test's event loop."""

from collections.abc import AsyncGenerator

import pytest

from bench.mock_upstream import listening


@pytest.fixture
async def upstream_port() -> AsyncGenerator[int]:
    async with listening(0) as port:
        yield port
