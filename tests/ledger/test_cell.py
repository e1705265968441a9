"""All gateways in a cell know the same tenants, and none is ahead of the scheduler."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from testing.stores import redis
from tests.ledger.databases import SECRET, until
from tests.ledger.test_gateway import admin, asked, hashed, made

pytestmark = [pytest.mark.cell, pytest.mark.timeout(600)]


async def test_new_key_works_on_all_gateways_and_is_never_rejected_as_invalid(url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, AsyncExitStack() as stack:
        store = stack.enter_context(redis())
        gateways: list[GatewayInLoop] = []
        for number in range(2):
            config = a_config(
                engine.url,
                cell={"store": store.url, "member_name": f"gateway-{number}", "member_count": 2},
                key_secret=SECRET.decode(),
                database={"url": url, "poll_interval": "5s"},
                admin_keys={"alice": {"key": hashed("hg-operator"), "permissions": ["read", "keys", "operate"]}},
            )
            (tmp_path / str(number)).mkdir()
            gateways.append(await stack.enter_async_context(gateway_in_loop(config, tmp_path / str(number))))
        one, other = gateways
        for each in gateways:
            await each.wait_for_status(
                lambda status: status["database"]["fresh"] and status["cell"]["mode"] == "following"
            )
        secret = await made(one, requests_per_minute=1_000_000)

        async def until_told(gateway: GatewayInLoop, status: int) -> set[int]:
            """Send requests until one gets this status and return all statuses."""
            seen: list[int] = []
            async with asyncio.timeout(60):
                while not seen or seen[-1] != status:
                    seen.append((await asked(gateway, secret))[0])
                    await asyncio.sleep(0.02)
            return set(seen)

        # The other gateway may learn of the key later and reject it as unknown until then. After that, it waits for the
        # cell's scheduler.
        await until(
            lambda: other.gateway._accounts._directory is not None and other.gateway._accounts._directory._snapshot.keys
        )
        assert await until_told(one, 200) <= {200, 503}
        assert await until_told(other, 200) <= {200, 503}
        hashes = {gateway.gateway._accounts.policy_hash(gateway.gateway._settings) for gateway in (one, other)}
        assert len(hashes) == 1, "the policy hashes differ"

        await admin(one, "keys/revoke", key="acme/search/ci")
        await until(
            lambda: (
                other.gateway._accounts._directory is not None and not other.gateway._accounts._directory._snapshot.keys
            )
        )
        assert await until_told(other, 401) <= {401, 503}
