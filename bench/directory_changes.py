"""Measure the longest event-loop turn of a gateway while few of 100,000 tenants in its database change.

A new PostgreSQL is filled with tenants, each with a key and limits. A gateway process starts and loads them. Then
single tenants, keys and budgets are changed, and one organisation with all of its tenants. For each kind of change, the
output shows the longest turn of the event loop and its CPU time, and, as a yardstick, the time of fixed Python work on
the same machine. A turn lasts from the return of one `select` to the next call. The last line is one JSON object.

    python -m bench.directory_changes [--tenants 100000] [--times 10] [--assert]
"""

import argparse
import asyncio
import json
import os
import secrets
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO, Final

import asyncpg
import yaml

from bench.cli import print_progress
from bench.python_yardstick import Yardstick
from headgate.compose.gateway import Gateway
from headgate.config.load import load
from headgate.config.settings import Settings
from headgate.control.directory_sync import migrate_database
from headgate.core.commands import Command
from headgate.core.events import Event, PolicyChanged
from headgate.engines.dialects import DIALECTS
from headgate.hosts.garbage_collection import tune_garbage_collector
from headgate.ledger.database import Database
from headgate.ledger.directory.postgres_directory import PostgresDirectory
from headgate.model.engine_profile import PROFILES
from headgate.model.money import NanoUsd, Period
from headgate.model.units import Instant
from headgate.ports.directory import Actor, TenantSettings
from headgate.wire.keys import digest
from testing.gateway import a_config
from testing.postgres import postgres

TURN_MS_MAX: Final = 20.0
"""Maximum CPU time of a turn of the event loop that one changed tenant, key or budget causes, in milliseconds."""
PER_ORGANISATION: Final = 100
ADDED_MAX: Final = 200
"""Number of tenants below the limit of a directory that are left for the changes."""
LOAD_S_MAX: Final = 120.0
SECRET: Final = b"a key secret of thirty-two bytes"
BENCH: Final = Actor("bench", "127.0.0.1")
YARDSTICK_ROUNDS: Final = 200

_FILL: Final = """
insert into headgate.tenants (id, changed_version) select 'org' || n, 1 from generate_series(0, $1 / {each} - 1) n;
insert into headgate.tenants (id, changed_version)
    select 'org' || n || '/p', 1 from generate_series(0, $1 / {each} - 1) n;
insert into headgate.tenants (id, requests_per_minute, concurrency, changed_version)
    select 'org' || n / {each} || '/p/key' || n, 600, 8, 1 from generate_series(0, $1 - 1) n;
insert into headgate.keys (digest, tenant, changed_version)
    select sha256(('key' || n)::bytea), 'org' || n / {each} || '/p/key' || n, 1 from generate_series(0, $1 - 1) n;
insert into headgate.budgets (tenant, period, limit_nano_usd, hard, changed_version)
    select 'org' || n, 'day', 1000000000000, true, 1 from generate_series(0, $1 / {each} - 1) n;
update headgate.directory_state set version = 1;
analyze
"""


# The gateway process


class TurnTimer(selectors.DefaultSelector):
    """Selector that records the longest time between two calls of `select`."""

    def __init__(self) -> None:
        super().__init__()
        self._began: tuple[float, float] | None = None
        self.wall_s = self.cpu_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._began is not None:
            self.wall_s = max(self.wall_s, time.perf_counter() - self._began[0])
            self.cpu_s = max(self.cpu_s, time.thread_time() - self._began[1])
        found = super().select(timeout)
        self._began = time.perf_counter(), time.thread_time()
        return found

    def pop(self) -> dict[str, float]:
        longest = {"wall_ms": round(1e3 * self.wall_s, 2), "cpu_ms": round(1e3 * self.cpu_s, 2)}
        self.wall_s = self.cpu_s = 0.0
        return longest


class Version:
    """Observer that keeps the name of the latest policy."""

    def __init__(self) -> None:
        self.policy = ""
        self.tenants = 0

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        del commands, now
        if isinstance(event, PolicyChanged):
            self.policy, self.tenants = event.hash, len(event.policy.tenants)


def run_gateway(file: Path) -> None:
    """Run a gateway. For each line on stdin, print the longest turn since the last line and the policy in force."""

    def read() -> Settings:
        return load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)

    timer, version = TurnTimer(), Version()

    async def run() -> None:
        gateway = Gateway(read(), read, observers=[version])
        running = asyncio.create_task(gateway.run(lambda *_: None))

        def answer_all() -> None:
            for line in os.read(sys.stdin.fileno(), 4_096).decode().splitlines() or [""]:
                answer(line)

        def answer(line: str) -> None:
            match line:
                case "turns":
                    print(json.dumps({"policy": version.policy, "tenants": version.tenants, **timer.pop()}), flush=True)
                case "":
                    gateway.shut_down()
                    gateway.shut_down()
                case _:
                    reloading.append(asyncio.ensure_future(gateway.reload()))

        reloading: list[asyncio.Future[None]] = []
        asyncio.get_running_loop().add_reader(sys.stdin, answer_all)
        await running

    tune_garbage_collector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(timer)) as runner:
        runner.run(run())


class GatewayProcess:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def turns(self) -> dict[str, float | str]:
        self.tell("turns")
        return json.loads(_pipe(self._process.stdout).readline())

    def tell(self, line: str) -> None:
        stdin = _pipe(self._process.stdin)
        stdin.write(f"{line}\n")
        stdin.flush()

    async def wait_for(self, reached: Callable[[str, int], bool]) -> dict[str, float]:
        """Wait until the policy in force satisfies the condition. Return the longest turn until then."""
        longest = {"wall_ms": 0.0, "cpu_ms": 0.0}
        async with asyncio.timeout(LOAD_S_MAX):
            is_last = False
            while True:
                found = self.turns()
                longest = {name: max(value, float(found[name])) for name, value in longest.items()}
                if is_last:
                    return longest
                # The turn that applies the policy ends after it is in force.
                is_last = reached(str(found["policy"]), int(found["tenants"]))
                await asyncio.sleep(0.05)


def _pipe(pipe: "IO[str] | None") -> "IO[str]":
    assert pipe is not None
    return pipe


# Changes

Change = Callable[[int], Awaitable[object]]


def changes_of(directory: PostgresDirectory, keys: int) -> dict[str, Change]:
    def name(number: int) -> str:
        place = number * 7_919 % keys
        return f"org{place // PER_ORGANISATION}/p/key{place}"

    async def new_key(number: int) -> None:
        text = f"hg-{secrets.token_hex(8)}"
        await directory.create_key(f"{name(number)}-new", digest(SECRET, text), TenantSettings(), None, BENCH)

    async def rotated(number: int) -> None:
        text = f"hg-{secrets.token_hex(8)}"
        await directory.rotate_key(name(number), digest(SECRET, text), None, 60, BENCH)

    async def limits(number: int) -> None:
        await directory.change_tenant(name(number), TenantSettings(requests_per_minute=700 + number), BENCH)

    async def added(number: int) -> None:
        await directory.create_tenant(f"new{number}", TenantSettings(concurrency=4), BENCH)

    async def removed(number: int) -> None:
        await directory.remove_tenant(f"new{number}", BENCH)

    async def budget(number: int) -> None:
        await directory.set_budget(name(number), Period.DAY, NanoUsd(10**12 + number), BENCH, hard=True)

    async def organisation(number: int) -> None:
        await directory.change_tenant(f"org{number}", TenantSettings(plan="free", concurrency=100 + number), BENCH)

    return {
        "new key": new_key,
        "changed key": rotated,
        "changed limits": limits,
        "new tenant": added,
        "removed tenant": removed,
        "changed budget": budget,
        f"changed organisation of {PER_ORGANISATION}": organisation,
    }


async def measure(url: str, tenants: int, times: int, folder: Path) -> dict[str, dict[str, float]]:
    await migrate_database(url, lambda _: None)
    link = await asyncpg.connect(url)
    # Organisations and projects count as tenants too, and the changes add some.
    keys = (tenants - ADDED_MAX) * PER_ORGANISATION // (PER_ORGANISATION + 2)
    print_progress(f"filling the directory with {tenants:,} tenants and {keys:,} keys")
    for statement in _FILL.format(each=PER_ORGANISATION).split(";"):
        await link.execute(statement.replace("$1", str(keys)))
    file = folder / "headgate.yaml"
    pricing = {"per_hour": 1.0}
    config = a_config("http://127.0.0.1:9", database=url, key_secret=SECRET.decode())
    config["pools"]["small"]["prices"] = pricing
    config["ledger"] = {"spool_directory": str(folder / "spool")}
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "bench.directory_changes", "--gateway", str(file)]
    figures: dict[str, dict[str, float]] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        gateway = GatewayProcess(process)
        try:
            figures["first load"] = await gateway.wait_for(lambda policy, _: "+" in policy)
            database = Database(url)
            for kind, change in changes_of(PostgresDirectory(database), keys).items():
                longest = {"wall_ms": 0.0, "cpu_ms": 0.0}
                for number in range(times):
                    await change(number)
                    version = await link.fetchval("select version from headgate.directory_state")
                    turn = await gateway.wait_for(lambda policy, _, at=version: policy.endswith(f".{at}"))
                    longest = {name: max(value, turn[name]) for name, value in longest.items()}
                figures[kind] = longest
                print_progress(f"{kind:34} {longest['wall_ms']:8.1f} ms {longest['cpu_ms']:8.1f} ms of CPU")
            await database.stop()
            before = str(gateway.turns()["policy"]).partition("+")[0]
            config["pools"]["small"]["in_flight_max"] = 9
            file.write_text(yaml.safe_dump(config))
            gateway.tell("reload")
            figures["reloaded file"] = await gateway.wait_for(lambda policy, _: not policy.startswith(before))
        finally:
            gateway.tell("")
    await link.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tenants", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=10, help="changes of each kind")
    parser.add_argument("--assert", dest="check", action="store_true", help="exit 1 if a change takes too long")
    parser.add_argument("--gateway", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.gateway is not None:
        run_gateway(options.gateway)
        return
    yardstick = Yardstick()
    yardstick.run_rounds(YARDSTICK_ROUNDS)
    round_us = yardstick.us_per_round(YARDSTICK_ROUNDS)
    with postgres() as server, tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(server.url, options.tenants, options.times, Path(folder)))
    single = {kind: turn for kind, turn in figures.items() if kind.startswith(("new", "changed", "removed"))}
    print("| change | longest turn | CPU time | yardstick rounds |\n|---|---|---|---|")
    for kind, turn in figures.items():
        rounds = round(1e3 * turn["cpu_ms"] / round_us)
        print(f"| {kind} | {turn['wall_ms']:.1f} ms | {turn['cpu_ms']:.1f} ms | {rounds:,} |")
    longest = max(turn["cpu_ms"] for turn in single.values())
    print(
        json.dumps(
            {"tenants": options.tenants, "round_us": round(round_us, 1), "longest_ms": longest, "changes": figures}
        )
    )
    if options.check and longest > TURN_MS_MAX:
        sys.exit(f"a change took {longest} ms of CPU in one turn; the maximum is {TURN_MS_MAX} ms")


if __name__ == "__main__":
    main()
