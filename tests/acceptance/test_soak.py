"""A gateway's memory and open resources after ten minutes of churn.

Keys change every few seconds, clients disconnect at any time, engines fail occasionally and requests are invalid in
many ways. A leak in this test would kill a process within a week. `HEADGATE_SOAK_S` sets a shorter duration for a trial
run.
"""

import asyncio
import os
import random
import secrets
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import mean

import aiohttp
import pytest
import yaml

from headgate.telemetry.decision_history import REQUESTS_MAX
from headgate.telemetry.records.record_keeper import RECENT_MAX
from headgate.wire.keys import digest, format_digest
from testing.gateway import Config, RunningGateway, a_config, chat, gateway_process_with_client
from testing.ports import free_port
from testing.processes import ChildProcess
from testing.simulated_engines import resident_mib, simulated_engines

SECONDS = float(os.environ.get("HEADGATE_SOAK_S", "600"))
SHORT_SECONDS = 10.0
RATE = 25.0
KEYS_EVERY_S = 5.0
SECRET = "the secret of the soak test"
TENANTS = 20
# Number of requests needed to fill the gateway's bounded stores: recent requests and unsent traces. At the soak's own
# rate, those stores would still be filling when memory growth is measured.
REMEMBERED = RECENT_MAX * 3 // 2
FILLERS = 16
FAULTS = ("--error-rate", "0.02", "--reset-rate", "0.02", "--truncate-rate", "0.02", "--hang-every", "60")
RECORDS_BYTES_MAX = 16 * 1024 * 1024
EMPTY = ("requests", "attempts", "command_channels", "metered_requests")


class Soak:
    def __init__(self, gateway: RunningGateway, process: ChildProcess, config: Config) -> None:
        self.gateway = gateway
        self.process = process
        self.config = config
        self.chance = random.Random(7)
        self.keys: dict[str, str] = {}
        self.old_keys = ["hg-never-known"]
        self.seen: Counter[str] = Counter()
        self.resident: list[float] = []

    async def fill(self) -> None:
        """Fill the bounded stores with short requests, so that any later growth is a leak."""
        body = chat("word", model="sim", stream=True, max_tokens=4)
        headers = {"authorization": f"Bearer {self.keys['tenant-0']}"}

        async def some() -> None:
            for _ in range(REMEMBERED // FILLERS):
                with suppress(aiohttp.ClientError):
                    async with self.gateway.post(body, headers=headers) as answer:
                        await answer.read()

        async with asyncio.TaskGroup() as callers:
            for _ in range(FILLERS):
                callers.create_task(some())

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        side = [asyncio.create_task(self.churn_keys()), asyncio.create_task(self.watch_memory())]
        async with asyncio.TaskGroup() as callers:
            while loop.time() < until:
                callers.create_task(self.call())
                await asyncio.sleep(self.chance.expovariate(RATE))
        for task in side:
            task.cancel()

    def new_keys(self) -> None:
        self.old_keys = [*self.keys.values(), *self.old_keys][:100]
        self.keys = {f"tenant-{number}": f"hg-{secrets.token_hex(16)}" for number in range(TENANTS)}
        self.config["tenants"] = {
            tenant: {"keys": [format_digest(digest(SECRET.encode(), key))]} for tenant, key in self.keys.items()
        }
        self.gateway.file.write_text(yaml.safe_dump(self.config))

    async def churn_keys(self) -> None:
        while True:
            await asyncio.sleep(KEYS_EVERY_S)
            self.new_keys()
            os.kill(self.process.pid, signal.SIGHUP)

    async def watch_memory(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.resident.append(resident_mib(self.process.pid))

    async def call(self) -> None:
        """Send one random request, which may be cancelled at any time."""
        patience = self.chance.choice([None, None, 0.01, 0.1, 0.5, 2.0])
        key = self.chance.choice([*self.keys.values(), self.chance.choice(self.old_keys)])
        model = self.chance.choice(["sim"] * 20 + ["unknown"])
        body = chat(
            "word " * self.chance.randrange(1, 2000),
            model=model,
            stream=self.chance.random() < 0.8,
            max_tokens=self.chance.randrange(1, 200),
        )
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(patience):
                async with self.gateway.post(body, headers={"authorization": f"Bearer {key}"}) as answer:
                    await answer.read()
                self.seen[str(answer.status)] += 1
                return
        self.seen["disconnected or failed"] += 1


@pytest.mark.process
@pytest.mark.timeout(400)
async def test_ten_seconds_of_churn_leave_nothing_open(tmp_path: Path) -> None:
    await churned(tmp_path, SHORT_SECONDS)


@pytest.mark.endurance
@pytest.mark.timeout(1200)
async def test_ten_minutes_of_churn_leak_no_memory(tmp_path: Path) -> None:
    soak = await churned(tmp_path, SECONDS, fill=True)

    assert soak.seen["200"] > 0.3 * sum(soak.seen.values())
    early, late = thirds(soak.resident)
    print(f"resident memory: {early:.1f} MiB in the second third, {late:.1f} MiB in the last")
    print("MiB every 20 s:", *(f"{mib:.1f}" for mib in soak.resident[::20]))
    assert late < 1.05 * early


async def churned(tmp_path: Path, seconds: float, *, fill: bool = False) -> Soak:
    """Run the churn and check that no resources stay open afterwards."""
    with simulated_engines(3, "--profile", "h200-llama-8b", *FAULTS) as urls:
        config = a_config(*urls, served_model="sim", model="sim", in_flight_max=8, key_secret=SECRET)
        del config["anonymous_tenant"]
        config["tenants"] = {"nobody": {"keys": [format_digest(digest(SECRET.encode(), "hg-first"))]}}
        config["records"] = {"directory": str(tmp_path / "records"), "bytes_max": f"{RECORDS_BYTES_MAX // 1024}KiB"}
        # No collector is listening on this port, so traces are queued and eventually dropped.
        config["tracing"] = {"endpoint": f"http://127.0.0.1:{free_port()}", "sample_percent": 100}
        async with gateway_process_with_client(config, tmp_path) as (gateway, process):
            first = await gateway.status()
            floor = first["held"]
            soak = Soak(gateway, process, config)
            soak.new_keys()
            os.kill(process.pid, signal.SIGHUP)
            await gateway.wait_for_status(lambda status: status["config_hash"] != first["config_hash"])
            if fill:
                await soak.fill()
                assert (await gateway.status())["explainable"] >= REQUESTS_MAX
            await soak.run(seconds)
            await gateway.wait_until_idle(seconds_max=60)
            held = await settled(gateway, floor)

    print(f"baseline {floor}, afterwards {held}, responses {dict(soak.seen)}")
    assert {what: held[what] for what in EMPTY} == dict.fromkeys(EMPTY, 0)
    kept = sum(path.stat().st_size for path in (tmp_path / "records").rglob("*.*") if path.is_file())
    # A segment may reach a sixteenth of the limit before old segments are deleted.
    assert 0 < kept <= RECORDS_BYTES_MAX * 9 / 8
    assert held["tasks"] <= floor["tasks"] + 2
    assert held["open_files"] <= floor["open_files"] + 4
    assert {"200", "401", "404", "disconnected or failed"} <= set(soak.seen)
    return soak


def _has_settled(held: dict[str, int], floor: dict[str, int]) -> bool:
    at_rest = not any(held[what] for what in EMPTY)
    return at_rest and held["open_files"] <= floor["open_files"] + 2 and held["tasks"] <= floor["tasks"] + 2


async def settled(gateway: RunningGateway, floor: dict[str, int]) -> dict[str, int]:
    """Open resources after all idle connections to engines and from clients have closed."""
    await gateway.http.connector.close()
    gateway.http = aiohttp.ClientSession()
    try:
        with suppress(TimeoutError):
            await gateway.wait_for_status(lambda status: _has_settled(status["held"], floor), seconds_max=60)
        return (await gateway.status())["held"]
    finally:
        await gateway.http.close()


def thirds(values: list[float]) -> tuple[float, float]:
    """Means over the second and last thirds. The first third is for warm-up."""
    third = len(values) // 3
    return mean(values[third : 2 * third]), mean(values[2 * third :])
