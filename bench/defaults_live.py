"""Compare how well a gateway with default settings and a fully configured one protect their clients.

    just defaults-live [--quick] [--smoke] [--assert]

Four simulated engines of three speeds run as processes. `headgate init --from` writes the first configuration; only the
addresses are added to it. The second also specifies the engines' speed and KV capacity and the classes' objectives.
Each gateway first gets ten minutes of normal traffic to learn from, and then 1.5 times the engines' capacity.
Attainment is the share of interactive requests in the overload whose first token arrives within 2 s. A table is written
to stdout, followed by the results as JSON on the last line.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bench.cli import print_progress, stop_cleanly_on_sigterm
from bench.incidents_live.settings import MODEL, PROFILE, request_s
from bench.incidents_live.traffic import Callers, Traffic
from bench.incidents_live.world import START_S_MAX
from testing.gateway import urls_of
from testing.ports import free_ports
from testing.processes import ChildProcess
from testing.simulated_engines import HEADGATE

SPEEDS: Final = (1.0, 1.0, 1.4, 0.7)
"""Speed of each engine, as a multiple of its profile."""
TTFT_S: Final = 2.0
NORMAL, OVERLOAD = 0.6, 1.5
"""Load as a multiple of the engines' capacity."""
INTERACTIVE_SHARE: Final = 0.8
"""Interactive share of the load. In the overload it exceeds the engines' capacity. The rest is batch work."""
RATIO_MIN: Final = 0.95
INIT_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Times:
    learn_s: float
    overload_s: float


WHOLE, QUICK, SMOKE = Times(600.0, 120.0), Times(90.0, 45.0), Times(4.0, 4.0)


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    times = SMOKE if arguments.smoke else QUICK if arguments.quick else WHOLE
    attainment = dict[str, float]()
    for name in ("configured", "defaults"):
        attainment[name] = asyncio.run(_attainment(times, configured=name == "configured"))
        print_progress(
            f"{name}: {attainment[name]:.3f} of the interactive requests got their first token within {TTFT_S:g} s"
        )
    ratio = attainment["defaults"] / attainment["configured"] if attainment["configured"] else 0.0
    print(f"{'configuration':<16}attainment")
    for name, value in attainment.items():
        print(f"{name:<16}{value:>10.3f}")
    figures = {"attainment_ratio": round(ratio, 3), **{name: round(value, 3) for name, value in attainment.items()}}
    print(json.dumps(figures))
    return 1 if arguments.check and ratio < RATIO_MIN else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="just defaults-live", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"Learn for {QUICK.learn_s:g} s instead of ten minutes.")
    parser.add_argument("--smoke", action="store_true", help="Run for a few seconds; the results are meaningless.")
    parser.add_argument("--assert", dest="check", action="store_true", help="Exit 1 if the limit is missed.")
    return parser.parse_args(words)


async def _attainment(times: Times, *, configured: bool) -> float:
    with tempfile.TemporaryDirectory(prefix="headgate-defaults-") as folder, ExitStack() as stack:
        urls = [_engine(stack, port, speed) for port, speed in zip(free_ports(len(SPEEDS)), SPEEDS, strict=True)]
        config = configuration(Path(folder), urls, configured=configured)
        file = Path(folder) / "headgate.yaml"
        file.write_text(yaml.safe_dump(config, sort_keys=False))
        url, admin_url = urls_of(config)
        gateway = stack.enter_context(ChildProcess("gateway", [*HEADGATE, "serve", "--config", str(file)]))
        gateway.wait_until_ok(f"{admin_url}/ready", START_S_MAX)
        return await _attainment_under_load(url, times)


def _engine(stack: ExitStack, port: int, speed: float) -> str:
    """Start one engine and return its address."""
    command = [*HEADGATE, "engine", "--profile", PROFILE.name, "--model", MODEL, "--port", str(port)]
    engine = stack.enter_context(ChildProcess(f"engine-{port}", [*command, "--speed-up", str(speed)]))
    url = f"http://127.0.0.1:{port}"
    engine.wait_until_ok(f"{url}/health", START_S_MAX)
    return url


def configuration(folder: Path, urls: Sequence[str], *, configured: bool) -> dict[str, Any]:
    """Let `headgate init` probe the first engine, then add the other addresses and, if `configured`, the numbers."""
    file = folder / "init.yaml"
    for tries_left in reversed(range(INIT_TRIES)):
        # `headgate init` waits five seconds for an engine to respond, which may not be long enough on a busy machine.
        asked = subprocess.run(
            [*HEADGATE, "init", "--from", urls[0], "--config", str(file)], check=False, capture_output=True
        )
        if asked.returncode == 0 or not tries_left:
            asked.check_returncode()
            break
    config: dict[str, Any] = yaml.safe_load(file.read_text())
    listen, admin = free_ports(2)
    config |= {"listen": f"127.0.0.1:{listen}", "admin_listen": f"127.0.0.1:{admin}"}
    [pool] = config["pools"].values()
    pool["endpoints"] = list(urls)
    if configured:
        pool |= {"speed": PROFILE.name, "kv_tokens": PROFILE.kv_blocks * PROFILE.block_tokens}
        config["classes"]["interactive"] |= {"ttft": f"{TTFT_S:g}s", "tpot": "100ms"}
    return config


async def _attainment_under_load(url: str, times: Times) -> float:
    capacity = sum(SPEEDS) / request_s()
    interactive = Callers("", 0.0, ttft_s=TTFT_S)
    batch = Callers("", 0.0, service_class="batch", timeout_s=120.0)
    traffic = asyncio.create_task(Traffic(url, 0, [interactive, batch]).run())

    async def run(load: float, seconds: float) -> None:
        interactive.rate = load * capacity * INTERACTIVE_SHARE
        batch.rate = load * capacity * (1 - INTERACTIVE_SHARE)
        await asyncio.sleep(seconds)

    try:
        await run(NORMAL, times.learn_s)
        sent, in_time = interactive.sent, interactive.in_time
        await run(OVERLOAD, times.overload_s)
        offered = interactive.sent - sent
        # Let open requests run until their target has passed.
        interactive.rate = batch.rate = 0.0
        await asyncio.sleep(TTFT_S)
        return (interactive.in_time - in_time) / max(1, offered)
    finally:
        traffic.cancel()
        await asyncio.gather(traffic, return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main())
