"""Measure target attainment under overload with and without overflow to a hosted provider, and check its bill.

    just hosted-overflow-live [--seconds N] [--assert]

A gateway, a simulated engine of its own and PostgreSQL run as processes, and a real LiteLLM proxy with a simulated
engine behind it as the provider. The load is 1.5 times the capacity of the own engine. Attainment is the share of
interactive requests whose first token arrives within 2 s. The cost of the provider in the ledger is compared with the
tokens that the engine behind LiteLLM has counted.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.cli import format_figures, print_progress, stop_cleanly_on_sigterm
from testing.live_overflow import OverflowRun, run_overload, vendor_behind_litellm

SECONDS: Final = 60.0
GAIN_MIN: Final = 0.2
"""Minimum difference between the attainment with and without overflow."""


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    runs = dict[bool, OverflowRun]()
    with tempfile.TemporaryDirectory(prefix="headgate-overflow-") as name:
        folder = Path(name)
        with vendor_behind_litellm(folder) as vendor:
            for overflows in (False, True):
                print_progress(f"{arguments.seconds:g} s of overload {'with' if overflows else 'without'} overflow")
                own = folder / str(overflows)
                own.mkdir()
                run = run_overload(vendor, own, seconds=arguments.seconds, overflows=overflows)
                runs[overflows] = asyncio.run(run)
    figures = _figures(runs[False], runs[True])
    print(format_figures(figures))
    print(json.dumps(figures))
    missed = figures["attainment_gain"] < GAIN_MIN or figures["ledger_difference_nano_usd"]
    return 1 if arguments.check and missed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="just hosted-overflow-live", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"Duration of each run (default {SECONDS:g}).")
    parser.add_argument("--assert", dest="check", action="store_true", help="Exit 1 if a limit is missed.")
    return parser.parse_args(words)


def _figures(without: OverflowRun, overflowing: OverflowRun) -> dict[str, float]:
    differences = [
        abs(overflowing.recorded.nano_usd - found)
        for found in (overflowing.billed_nano_usd, overflowing.reported_nano_usd)
    ]
    return {
        "attainment_without": round(without.attainment, 3),
        "attainment_with": round(overflowing.attainment, 3),
        "attainment_gain": round(overflowing.attainment - without.attainment, 3),
        "requests": overflowing.sent,
        "provider_requests": overflowing.billed.requests,
        "provider_prompt_tokens": overflowing.billed.prompt,
        "provider_output_tokens": overflowing.billed.output,
        "provider_usd": round(overflowing.billed_nano_usd / 1e9, 6),
        "ledger_difference_nano_usd": max(differences),
    }


if __name__ == "__main__":
    sys.exit(main())
