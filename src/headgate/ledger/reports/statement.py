"""Monthly tenant statements.

A tenant is charged for its usage, by key path, model and class, and for its share of the pools' idle cost if idle cost
is shared. The platform pays for waste, which does not appear in any line. Amounts are exact, in nano-dollars, so that
the total is always the sum of the lines.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from headgate.ledger.reports.cost_breakdown import path_prefix
from headgate.model.money import NanoUsd
from headgate.ports.cost_reports import Statement, StatementLine


def statements(
    lines: Sequence[StatementLine],
    idle: Mapping[str, Mapping[str, int]],
    *,
    month: str,
    complete: bool,
    tenant: str,
) -> list[Statement]:
    """One statement per organisation, or one for `tenant` if it is given. `idle` is keyed by pool, then by tenant."""
    depth = tenant.count("/") + 1
    every = [*lines, *_idle_lines(idle, tenant)]
    every.sort(key=lambda line: (path_prefix(line.path, depth), line.kind == "idle", -line.charged_nano_usd, line.path))
    return [
        Statement(name, month, complete, found, NanoUsd(sum(line.charged_nano_usd for line in found)))
        for name, group in groupby(every, key=lambda line: path_prefix(line.path, depth))
        if (found := list(group))
    ]


def _idle_lines(idle: Mapping[str, Mapping[str, int]], tenant: str) -> list[StatementLine]:
    none = NanoUsd(0)
    return [
        StatementLine("idle", path, pool, "", 0, 0, 0, 0, none, none, none, NanoUsd(charged))
        for pool, shares in idle.items()
        for path, charged in shares.items()
        if charged and (not tenant or path == tenant or path.startswith(f"{tenant}/"))
    ]


def round_to_sum(amounts: Sequence[int], unit: int) -> list[int]:
    """Rounds amounts to units so that they add up to the rounded total (largest remainder method)."""
    down = [amount // unit for amount in amounts]
    short = (2 * sum(amounts) + unit) // (2 * unit) - sum(down)
    by_loss = sorted(range(len(amounts)), key=lambda place: (-(amounts[place] % unit), place))
    for place in by_loss[:short]:
        down[place] += 1
    return down
