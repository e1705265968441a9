"""Run every known attack against a live gateway on loopback, one after the other.

    python -m bench.attack [NAME ...] [--assert]

An attack is held if it has no effect, the gateway keeps running, and short requests of another tenant are served
throughout.
The last line is JSON: the number of attacks and of attacks held, the longest turn of the event loop in thread CPU time,
and the 99th percentile of the latency of `/health`.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.attack.attacks import ATTACKS, Attack
from bench.attack.stage import HealthProbe, Stage, a_stage
from bench.command import stop_cleanly_on_sigterm, tell

LONGEST_TURN_MS_MAX = 50.0
HEALTH_P99_MS_MAX = 250.0
VICTIM_S_MAX = 5.0
"""Time limit for a short request of another tenant; far longer than such a request takes on a loaded machine."""


async def hold(stage: Stage, attack: Attack) -> str | None:
    """Run one attack. Return None if it was held, else a description of its effect."""
    stage.victim_waits_s.clear()
    stage.victim_failures.clear()
    victim = asyncio.create_task(stage.suffer())
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
    async with a_stage(folder) as stage:
        with HealthProbe(stage.gateway.admin_url.removeprefix("http://")) as probe:
            for attack in chosen:
                began = time.monotonic()
                found = await hold(stage, attack)
                held += found is None
                tell(f"{attack.__name__:40} {'held' if found is None else found} ({time.monotonic() - began:.1f} s)")
        turn_ms = await stage.longest_turn_ms()
    figures = {"attacks": len(chosen), "held": held, "longest_turn_ms": round(turn_ms, 1)}
    figures |= {"health_p99_ms": round(probe.p99_ms(), 1), "health_failures": probe.failures}
    return figures | {"not_held": len(chosen) - held}


def main() -> None:
    stop_cleanly_on_sigterm()
    parser = argparse.ArgumentParser(prog="attack", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="run only these attacks")
    parser.add_argument("--assert", dest="check", action="store_true", help="exit 1 if an attack was not held")
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
