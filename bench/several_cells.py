"""Measure several live cells: limits under shifting load, the loss of a cell, and the division of budgets.

    python -m bench.several_cells [--cells N] [--seconds N] [--seeds N] [--smoke]

Each cell has its own Redis, gateway process and simulated engine. `headgate cells run` divides the limit of one tenant,
which sends more than its limit. The load moves between two cells, then one of them is killed. As a load balancer does,
the client sends a request that a cell did not serve to the next cell, once.

Two more cells share a PostgreSQL ledger and one hard budget. A request costs one dollar. Three times the budget is
requested, four fifths of it from one cell.

Two parts run in virtual time. The share controller runs against simulated cells with random faults, one per seed. Two
schedulers spend one budget, while the ledger reports the amount spent with a delay.

The last line is one JSON object:

- `lost`: requests that no cell answered within one retry.
- `overspent_ppm`: requests admitted beyond the limit and the burst of one minute that a single gateway allows too.
- `takeover_s`: time from the kill to the first response from the other cell.
- `share_takeover_s`: time from the kill until the other cell has the share of the lost one.
- `violations`: accounts whose shares in use exceeded the whole in the simulation.
- `budget_overspent_ppm`: amount spent beyond the budget in the simulation.
- `live_budget_spent_ppm`: amount that the live cells spent, in parts per million of the budget.
- `live_budget_usd`: the budget of the live cells.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.cli import print_progress, stop_cleanly_on_sigterm
from headgate.core.commands import Dispatch
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    BudgetSpent,
    BudgetsSynced,
    RequestArrived,
    TenantShare,
)
from headgate.model.limits import LimitShare
from headgate.model.money import NANO_USD_PER_USD, Budget, NanoUsd, Period, Price
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Instant, RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import a_policy, a_pool, a_scheduler, an_endpoint, arrived, at
from testing.cell_fleet import FLOOR_PERCENT, LIMIT, LiveFleet, excess_ppm, live_fleet, migrate
from testing.cells_world import violations_under_faults
from testing.postgres import postgres
from testing.tenant_shares import shares_assigned

SYNC_S = 10
"""Interval at which gateways read the ledger (control/budget_sync.py)."""
LEDGER_DELAY_S = 2
"""Assumed time from the end of a request to its row in the ledger."""
BUDGET_USD = 1_000
BUDGET_PPM_MAX = 40_000
"""Bound on the overspending: at 20 dollars per second, the simulated cells spend 40 of their 1,000 dollars before the
ledger shows it."""
_SHARE_CHANGE_S = 4


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    with tempfile.TemporaryDirectory(prefix="headgate-cells-") as folder:
        figures = asyncio.run(measure_live(Path(folder), arguments.cells, arguments.seconds))
    with tempfile.TemporaryDirectory(prefix="headgate-cells-") as folder:
        figures |= asyncio.run(measure_budget(Path(folder), 2 * arguments.seconds))
    print_progress(f"live cells: {figures}")
    began = time.monotonic()
    broken = [(seed, found) for seed in range(arguments.seeds) for found in violations_under_faults(seed)]
    for seed, found in broken:
        print(f"seed {seed}: {found}")
    budgets = [simulated_overspending(per_second) for per_second in (1, 4)]
    figures |= {
        "seeds": arguments.seeds,
        "violations": len(broken),
        "seeds_s": round(time.monotonic() - began, 1),
        "budget_overspent_ppm": max(budgets),
    }
    print(json.dumps(figures))
    return 1 if broken else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.several_cells", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--cells", type=int, default=3, help="number of cells, at least 2 (default 3)")
    parser.add_argument("--seconds", type=float, default=30, help="length of each phase with load (default 30)")
    parser.add_argument("--seeds", type=int, default=2_000, help="number of simulated fleets (default 2000)")
    parser.add_argument("--smoke", action="store_true", help="run for a few seconds")
    arguments = parser.parse_args(words)
    if arguments.smoke:
        arguments.cells, arguments.seconds, arguments.seeds = 2, 5, 20
    return arguments


# Live cells


async def measure_live(folder: Path, count: int, seconds: float) -> dict[str, float]:
    async with live_fleet(folder, count) as fleet:
        fleet.start_controller()
        await fleet.wait_for_shares(lambda shares: min(shares["a"], shares["b"]) > FLOOR_PERCENT)
        rate = 2 * LIMIT / 60
        for busy, quiet in (("a", "b"), ("b", "a")):
            print_progress(f"{seconds:g} s of load, most of it on cell {busy}")
            await asyncio.gather(fleet.send(rate, seconds, busy, quiet), fleet.send(rate / 10, seconds, quiet, busy))
        lost, takeover_s, share_takeover_s = await _lose_a_cell(fleet, rate, seconds)
        return {
            "cells": count,
            "lost": lost,
            "overspent_ppm": excess_ppm(fleet.admitted),
            "admitted": len(fleet.admitted),
            "takeover_s": round(takeover_s, 3),
            "share_takeover_s": round(share_takeover_s, 1),
        }


async def _lose_a_cell(fleet: LiveFleet, rate: float, seconds: float) -> tuple[int, float, float]:
    """Kills cell b under load. Returns the number of lost requests and both takeover times."""
    sending = asyncio.create_task(fleet.send(rate, seconds, "b", "a"))
    await asyncio.sleep(seconds / 5)
    began = time.monotonic()
    fleet.cells["b"].kill()
    rest = 100 - FLOOR_PERCENT
    await fleet.wait_for_shares(lambda shares: "b" not in shares and shares["a"] >= rest - 6)
    share_takeover_s = time.monotonic() - began
    statuses = await sending
    answered = (at for at, cell, status in fleet.answers if cell == "a" and status in (200, 429) and at > began)
    takeover_s = next(answered) - began
    return sum(count for status, count in statuses.items() if status not in (200, 429)), takeover_s, share_takeover_s


# Budget of live cells


async def measure_budget(folder: Path, seconds: float) -> dict[str, float]:
    """Returns what two live cells spend of one hard budget, while three times the budget is requested."""
    rate = 10
    budget_usd = round(rate * seconds / 3)
    with postgres() as database:
        await asyncio.to_thread(migrate, database.url, folder)
        async with live_fleet(folder, database=database.url, budget_usd=budget_usd) as fleet:
            fleet.start_controller()
            await fleet.wait_for_shares(lambda shares: min(shares["a"], shares["b"]) > FLOOR_PERCENT)
            print_progress(f"{seconds:g} s of load that costs {rate} dollars per second, budget {budget_usd} dollars")
            await asyncio.gather(fleet.send(0.8 * rate, seconds, "a"), fleet.send(0.2 * rate, seconds, "b"))
            # Each cell has served one request before.
            spent = len(fleet.admitted) + len(fleet.cells)
    print_progress(f"live cells: spent {spent} of {budget_usd} dollars")
    return {"live_budget_usd": budget_usd, "live_budget_spent_ppm": spent * 1_000_000 // budget_usd}


# Budgets in virtual time


def simulated_overspending(per_second: int, *, seconds: int = 600) -> int:
    """Returns what two cells spend beyond one budget, in parts per million of the budget.

    Requests cost one dollar. Most of them go to one cell, then to the other. Each cell reads the ledger every ten
    seconds, at different times, and the ledger lags. The controller moves the shares every four seconds, in the right
    order.
    """
    price = Price(input_per_1m_tokens=NanoUsd(100_000 * NANO_USD_PER_USD))
    budget = Budget(Period.DAY, NanoUsd(BUDGET_USD * NANO_USD_PER_USD))
    policy = a_policy(
        tenants=(Tenant(TenantId("acme"), budgets=(budget,)),), pools=(replace(a_pool(), prices=(price,)),)
    )
    cells = [a_scheduler(an_endpoint(places=1_000), policy=policy) for _ in range(2)]
    spent = 0
    rows: deque[tuple[int, int]] = deque()
    in_ledger = 0
    shares = [500_000, 500_000]
    for second in range(seconds):
        now = at(second)
        while rows and rows[0][0] <= second - LEDGER_DELAY_S:
            in_ledger += rows.popleft()[1]
        busy = second // 60 % 2
        if second % _SHARE_CHANGE_S == 0:
            shares = [750_000 if cell == busy else 250_000 for cell in range(2)]
        for cell, scheduler in enumerate(cells):
            share = TenantShare(TenantId("acme"), LimitShare(shares[cell], shares[cell]), at(second + 15))
            scheduler.handle(shares_assigned(250_000, share), now)
            if second % SYNC_S == 3 * cell:
                scheduler.handle(_ledger_of(in_ledger), now)
            for number in range(per_second * (4 if cell == busy else 1)):
                name = RequestId(f"{cell} {second} {number}")
                ticket = replace(arrived(name, prompt_bytes=40).ticket, output_tokens_max=1)
                if any(isinstance(each, Dispatch) for each in scheduler.handle(RequestArrived(ticket), now)):
                    usage = Usage(10, 1, 0, UsageSource.ENGINE)
                    scheduler.handle(AttemptEnded(name, 1, AttemptEnding.COMPLETED, usage=usage), now)
                    rows.append((second, 1))
                    spent += 1
    print_progress(f"{per_second} requests/s and cell: spent {spent} of {BUDGET_USD} dollars")
    return max(0, spent - BUDGET_USD) * 1_000_000 // BUDGET_USD


def _ledger_of(spent_usd: int) -> BudgetsSynced:
    day = 86_400 * SECOND
    amounts = (BudgetSpent("tenant:acme", Period.DAY, NanoUsd(spent_usd * NANO_USD_PER_USD)),)
    return BudgetsSynced(
        Instant(0), Instant(at(0) + day), Instant(0), Instant(at(0) + 30 * day), amounts, ledger_read=True
    )


if __name__ == "__main__":
    sys.exit(main())
