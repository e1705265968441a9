"""Check the cell's store."""

from headgate.cli.checkup.finding import CheckFinding, note, ok, problem
from headgate.config.settings import Settings

_SLOW_S = 0.005
"""Round-trip time above which the store counts as slow. Each request waits for four round trips before it starts.
"""


async def check_store(settings: Settings) -> list[CheckFinding]:
    cell = settings.cell
    if cell is None:
        return []
    about = f"the store at {cell.store_shown}"
    try:
        from headgate.hosts.cell.redis.store_check import check_store
    except ImportError:
        return []  # `missing_extras` reports the missing library.
    found = await check_store(cell.store, cell.name)
    if isinstance(found, str):
        message, _, then = found.partition("; ")
        return [problem(about, message, next_step=then)]
    findings = [ok(about, f"{found.program}, response time {1000 * found.round_trip_s:.2g} ms")]
    if found.is_old:
        findings.append(problem(about, f"is {found.program}", next_step="use Redis or Valkey 7 or later"))
    if found.round_trip_s > _SLOW_S:
        message = f"response time is {1000 * found.round_trip_s:.0f} ms, and each request waits for four round trips"
        findings.append(note(about, message, next_step="move it closer to the gateways, or reduce its load"))
    if found.eviction_policy is not None:
        message = f"evicts the cell's keys when its memory is full (maxmemory-policy {found.eviction_policy})"
        findings.append(note(about, message, next_step="set maxmemory-policy noeviction, or use a dedicated store"))
    return findings
