"""What is a tenant charged for a month?

For what it used, by the path of its key, model and class; and, where idle time is shared, for its part of each pool's.
What was in vain is the platform's and stands in no line. Amounts are exact, to the billionth of a dollar, so that the
total is the sum of the lines however they are added.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from headgate.ledger.reports.accounts import path_of
from headgate.model.money import NanoUsd
from headgate.ports.reports import Statement, StatementLine


def statements(
    lines: Sequence[StatementLine],
    idle: Mapping[str, Mapping[str, int]],
    *,
    month: str,
    complete: bool,
    tenant: str,
) -> list[Statement]:
    """One for each organisation, or one for the tenant that is asked for. `idle` is by pool, then by tenant."""
    depth = tenant.count("/") + 1
    every = [*lines, *_idle_lines(idle, tenant)]
    every.sort(key=lambda line: (path_of(line.path, depth), line.kind == "idle", -line.charged_nano_usd, line.path))
    return [
        Statement(name, month, complete, found, NanoUsd(sum(line.charged_nano_usd for line in found)))
        for name, group in groupby(every, key=lambda line: path_of(line.path, depth))
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


def rounded(amounts: Sequence[int], unit: int) -> list[int]:
    """The amounts in whole units, so that they come to the rounded sum: those that lose most by rounding get one."""
    down = [amount // unit for amount in amounts]
    short = (2 * sum(amounts) + unit) // (2 * unit) - sum(down)
    by_loss = sorted(range(len(amounts)), key=lambda place: (-(amounts[place] % unit), place))
    for place in by_loss[:short]:
        down[place] += 1
    return down
