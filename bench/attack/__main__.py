"""Run every known attack against a live gateway on loopback, one after the other.

    python -m bench.attack [NAME ...] [--assert]

The gateway withstands an attack (`held`) if the attack has no effect, the gateway keeps running, and another tenant's
short requests are served throughout. The last line is JSON: the number of attacks and how many were withstood, the
longest event loop iteration in thread CPU time, and the 99th percentile of the `/health` latency.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.attack.attacked_gateway import AttackedGateway, HealthProbe, attacked_gateway
from bench.attack.attacks import ATTACKS, Attack
from bench.cli import print_progress, stop_cleanly_on_sigterm

LONGEST_TURN_MS_MAX = 50.0
HEALTH_P99_MS_MAX = 250.0
VICTIM_S_MAX = 5.0
"""Timeout for another tenant's short request. Such a request takes far less, even on a loaded machine."""


async def run_attack(stage: AttackedGateway, attack: Attack) -> str | None:
    """Run one attack. Return None if the gateway withstood it, else a description of its effect."""
    stage.victim_waits_s.clear()
    stage.victim_failures.clear()
    victim = asyncio.create_task(stage.send_victim_requests())
    try:
        found = await attack(stage)
        await asyncio.sleep(0.3)
    finally:
        victim.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await victim
    if found is None and stage.victim_failures:
        found = f"{len(stage.victim_failures)} requests of another tenant failed: {stage.victim_failures[0]}"
    slowest = max(stage.victim_waits_s, default=0.0)
    return f"another tenant waited {slowest:.1f} s" if found is None and slowest > VICTIM_S_MAX else found


async def run(names: list[str], folder: Path) -> dict[str, float]:
    chosen = [each for each in ATTACKS if not names or each.__name__ in names]
    held = 0
    async with attacked_gateway(folder) as stage:
        with HealthProbe(stage.gateway.admin_url.removeprefix("http://")) as probe:
            for attack in chosen:
                began = time.monotonic()
                found = await run_attack(stage, attack)
                held += found is None
                print_progress(
                    f"{attack.__name__:40} {'held' if found is None else found} ({time.monotonic() - began:.1f} s)"
                )
        turn_ms = await stage.longest_turn_ms()
    figures = {"attacks": len(chosen), "held": held, "longest_turn_ms": round(turn_ms, 1)}
    figures |= {"health_p99_ms": round(probe.p99_ms(), 1), "health_failures": probe.failures}
    return figures | {"not_held": len(chosen) - held}


def main() -> None:
    stop_cleanly_on_sigterm()
    parser = argparse.ArgumentParser(prog="attack", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="run only these attacks")
    parser.add_argument(
        "--assert", dest="check", action="store_true", help="exit 1 if an attack succeeded or a limit was missed"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headgate-attack-") as folder:
        figures = asyncio.run(run(arguments.names, Path(folder)))
    print(json.dumps(figures))
    met = not figures["not_held"] and not figures["health_failures"]
    met = met and figures["longest_turn_ms"] <= LONGEST_TURN_MS_MAX and figures["health_p99_ms"] <= HEALTH_P99_MS_MAX
    if arguments.check and not met:
        sys.exit(1)


if __name__ == "__main__":
    main()
