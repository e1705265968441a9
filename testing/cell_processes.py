"""A cell of gateway processes with a real Redis store, one of which can be killed.

async with cell_processes(config, folder) as cell:
    leader = await cell.kill_leader()          # the killed gateway; the others continue
    ...                                        # cell.gateways are those that are left
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.hosts.cell.protocol.codec import decode_snapshot
from headgate.hosts.cell.protocol.messages import Share
from testing.gateway import Config, RunningGateway, a_config, gateway_process_with_client
from testing.ports import free_port
from testing.processes import ChildProcess
from testing.stores import Server, redis


@dataclass
class CellProcesses:
    gateways: list[RunningGateway]
    processes: list[ChildProcess]

    async def leader(self) -> int:
        """Returns the number of the gateway that makes the decisions."""
        leads = [(await each.status())["cell"]["leads"] for each in self.gateways]
        return leads.index(True)

    async def kill_leader(self) -> RunningGateway:
        """Kills the leader's process and returns without waiting for the next leader."""
        number = await self.leader()
        self.processes.pop(number).kill()
        return self.gateways.pop(number)

    async def until_led(self) -> None:
        """Waits until one of the gateways is the leader and all follow it."""
        for each in self.gateways:
            await each.wait_for_status(lambda status: status["cell"]["mode"] == "following")
        if len(self.gateways) == 1:
            await self.gateways[0].wait_for_status(lambda status: status["cell"]["leads"])


@asynccontextmanager
async def cell_processes(config: Config, folder: Path, *, count: int = 2) -> AsyncIterator[CellProcesses]:
    """Starts gateways with this configuration and waits until all of them follow one scheduler."""
    async with AsyncExitStack() as stack:
        store = stack.enter_context(redis())
        cell = CellProcesses([], [])
        for number in range(count):
            (own := folder / str(number)).mkdir()
            listeners = {name: f"127.0.0.1:{free_port()}" for name in ("listen", "admin_listen")}
            member = {"store": store.url, "member_name": f"gateway-{number}", "member_count": count}
            of_gateway = a_config() | config | listeners | {"cell": member}
            if "ledger" in config:
                of_gateway["ledger"] = config["ledger"] | {"spool_directory": str(own / "spool")}
            gateway, process = await stack.enter_async_context(gateway_process_with_client(of_gateway, own))
            cell.gateways.append(gateway)
            cell.processes.append(process)
        await _until_shares_are_settled(store, count)
        await cell.until_led()
        yield cell


async def _until_shares_are_settled(store: Server, count: int) -> None:
    """Waits until a stored snapshot contains only the final shares.

    Otherwise, the next leader would reserve the whole capacity for a killed gateway that was once alone.
    """
    expected = {(Share(rank, count), ()) for rank in range(count)}
    with store.client() as client:
        async with asyncio.timeout(60):
            while True:
                written = client.hget("{headgate:headgate}:snapshot", "bytes")
                members = decode_snapshot(written).members if isinstance(written, bytes) else ()
                if {(each.share, each.earlier_shares) for each in members} == expected:
                    return
                await asyncio.sleep(0.05)
