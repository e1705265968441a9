"""Fixtures for the engine tests."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from headgate.engines.page import open_session
from testing.fake_engine import FakeEngine


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as session:
        yield session


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine
