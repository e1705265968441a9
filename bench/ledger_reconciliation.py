"""Check that the ledger's rows account for the full cost of the endpoints.

    just ledger-adds-up [--seconds N] [--assert] [--seed N]

The setup consists of a real PostgreSQL, one gateway with prices and three simulated engines. For most of the time
clients send streaming and non-streaming requests, some clients disconnect early, and one engine is killed (-9) and
restarted, so that attempts fail and are retried. In the last fifth there is no load. The amount paid is computed only
from this program's clock: the number of engines, times the time from when the gateway starts listening until it
receives SIGTERM, times the price, even while an engine is down. It is compared with the bills in the database, for all
payers, and with the endpoint time that is not in any bill: idle, not ready, starting, or spent on attempts that ended
after their requests.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import asyncio
import json
import random
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import asyncpg
import yaml

from bench.cli import print_progress, stop_cleanly_on_sigterm
from headgate.control.directory_sync import migrate_database
from testing.ports import free_port
from testing.postgres import Postgres, postgres
from testing.processes import ChildProcess
from testing.simulated_engines import HEADGATE

ENGINES = 3
CALLERS = 24
LEAVING = 0.1
"""Share of clients that disconnect before the response is complete."""
PER_HOUR_USD = 2.5
UNEXPLAINED_MAX = 0.01
READY_S_MAX = 120.0
LEAVE_S_MAX = 120.0
_WASTE = "select coalesce(sum({part}_us::numeric * hour_nano_usd / 3600e6), 0) as nano_usd from headgate.endpoint_time"
_BILLS = (
    "select cause, payer, count(*) as attempts,"
    " sum(input_nano_usd + output_nano_usd + overhead_nano_usd) as nano_usd"
    " from headgate.usage where attempt > 0 group by cause, payer order by payer, cause"
)
_PARTS = ("idle", "unready", "starting", "abort_lag")


@dataclass(slots=True)
class Reconciliation:
    paid_usd: float
    bills: list[tuple[str, str, int, float]]
    """Cause, payer, number of attempts and US dollars for each group of bills."""
    unbilled: dict[str, float]
    """Cost in US dollars of unbilled endpoint time, by endpoint state."""

    @property
    def unexplained_usd(self) -> float:
        return self.paid_usd - sum(each[3] for each in self.bills) - sum(self.unbilled.values())

    @property
    def unexplained_fraction(self) -> float:
        return self.unexplained_usd / self.paid_usd


class BilledGateway:
    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self.database: Postgres = stack.enter_context(postgres())
        asyncio.run(migrate_database(self.database.url, lambda _: None))
        self.ports = [free_port() for _ in range(ENGINES)]
        self.engines = [self.start_engine(port) for port in self.ports]
        self.listen, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        file = folder / "gateway.yaml"
        file.write_text(yaml.safe_dump(self._config(folder)))
        self.gateway = stack.enter_context(ChildProcess("gateway", [*HEADGATE, "serve", "--config", str(file)]))
        until_it_listens(self.admin)
        self.began = time.monotonic()
        self.gateway.wait_until_ok(f"http://{self.admin}/ready", seconds_max=READY_S_MAX)

    def start_engine(self, port: int) -> ChildProcess:
        arguments = ("--profile", "h200-llama-8b", "--model", "m", "--port", str(port))
        engine = self._stack.enter_context(ChildProcess("engine", [*HEADGATE, "engine", *arguments]))
        engine.wait_until_ok(f"http://127.0.0.1:{port}/health", seconds_max=READY_S_MAX)
        return engine

    def _config(self, folder: Path) -> dict[str, object]:
        return {
            "listen": self.listen,
            "admin_listen": self.admin,
            "pools": {
                "large": {
                    "engine": "vllm",
                    "served_model": "m",
                    "in_flight_max": 64,
                    "endpoints": [f"http://127.0.0.1:{port}" for port in self.ports],
                    "prices": {"per_hour": PER_HOUR_USD},
                }
            },
            "models": {"m": "large"},
            "tenants": {"acme": {}},
            "anonymous_tenant": "acme",
            "key_secret": "a secret of a benchmark",
            "database": {"url": self.database.url},
            "ledger": {"spool_directory": str(folder / "spool")},
        }

    def stop_gateway(self) -> float:
        """Stop the gateway with SIGTERM. Return how long it ran, in seconds."""
        lasted = time.monotonic() - self.began
        self.gateway.terminate()
        self.gateway.wait_until_ended(LEAVE_S_MAX)
        return lasted


def until_it_listens(address: str) -> None:
    host, _, port = address.rpartition(":")
    give_up_at = time.monotonic() + READY_S_MAX
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
        else:
            return


# Load and faults


async def call_for_ever(stage: BilledGateway, chance: random.Random, http: aiohttp.ClientSession) -> None:
    while True:
        await asyncio.sleep(0.2 * chance.random())
        content = f"{chance.getrandbits(64):x} " * chance.randint(1, 400)
        leaves_after_s = chance.uniform(0.05, 0.5) if chance.random() < LEAVING else 60.0
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": chance.randint(4, 120),
            "stream": chance.random() < 0.5,
        }
        try:
            async with asyncio.timeout(leaves_after_s):
                async with http.post(f"http://{stage.listen}/v1/chat/completions", json=body) as answer:
                    await answer.read()
        except (TimeoutError, aiohttp.ClientError):
            continue


async def run_load(stage: BilledGateway, seconds: float, seed: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        callers = [
            asyncio.create_task(call_for_ever(stage, random.Random(f"{seed} {number}"), http))
            for number in range(CALLERS)
        ]
        print_progress(f"{CALLERS} clients send requests for {0.8 * seconds:.0f} s")
        await asyncio.sleep(0.25 * seconds)
        print_progress("killing an engine (kill -9)")
        stage.engines[0].kill()
        await asyncio.sleep(0.2 * seconds)
        print_progress("restarting the engine")
        stage.engines[0] = await asyncio.to_thread(stage.start_engine, stage.ports[0])
        await asyncio.sleep(0.35 * seconds)
        for task in callers:
            task.cancel()
        for result in await asyncio.gather(*callers, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        print_progress(f"no load for {0.2 * seconds:.0f} s")
        await asyncio.sleep(0.2 * seconds)


async def reconcile(stage: BilledGateway, lasted_s: float) -> Reconciliation:
    link = await asyncpg.connect(stage.database.url)
    try:
        rows = await link.fetch(_BILLS)
        unbilled = {part: float(await link.fetchval(_WASTE.format(part=part))) / 1e9 for part in _PARTS}
    finally:
        await link.close()
    bills = [(row["cause"], row["payer"], row["attempts"], float(row["nano_usd"]) / 1e9) for row in rows]
    return Reconciliation(ENGINES * lasted_s / 3600 * PER_HOUR_USD, bills, unbilled)


def table_of(found: Reconciliation) -> str:
    lines = [(f"paid: {ENGINES} endpoints by wall-clock time", "", found.paid_usd)]
    lines += [(f"{cause}, paid by the {payer}", f"{attempts:,}", usd) for cause, payer, attempts, usd in found.bills]
    lines += [(f"in no bill: {part}", "", usd) for part, usd in found.unbilled.items()]
    lines.append(("unexplained", "", found.unexplained_usd))
    head = f"{'':<44}{'attempts':>10}{'USD':>12}{'share':>9}"
    told = (f"{name:<44}{count:>10}{usd:>12.6f}{100 * usd / found.paid_usd:>8.2f}%" for name, count, usd in lines)
    return "\n".join((head, *told))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="duration without start and stop (default 60)")
    parser.add_argument("--assert", dest="check", action="store_true", help="exit 1 if more than 1 % is unexplained")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    stop_cleanly_on_sigterm()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-adds-up-")))
        stage = BilledGateway(stack, folder)
        asyncio.run(run_load(stage, options.seconds, options.seed))
        found = asyncio.run(reconcile(stage, stage.stop_gateway()))
    print(table_of(found))
    attempts = sum(each[2] for each in found.bills)
    fraction = round(found.unexplained_fraction, 6)
    print(json.dumps({"unexplained_fraction": fraction, "paid_usd": round(found.paid_usd, 6), "attempts": attempts}))
    sys.exit(1 if options.check and abs(fraction) > UNEXPLAINED_MAX else 0)


if __name__ == "__main__":
    main()
