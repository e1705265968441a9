"""Can the store of the cell do what the configuration asks of it?"""

from headgate.cli.checkup.finding import Finding, note, ok, problem
from headgate.config.settings import Settings

_SLOW_S = 0.005
"""Each request passes the store four times before it begins."""


async def look_at_store(settings: Settings) -> list[Finding]:
    cell = settings.cell
    if cell is None:
        return []
    about = f"the store at {cell.store_shown}"
    try:
        from headgate.hosts.cell.redis.look import look
    except ImportError:
        return []  # The missing library is reported by `missing_extras`.
    found = await look(cell.store, cell.name)
    if isinstance(found, str):
        message, _, then = found.partition("; ")
        return [problem(about, message, then=then)]
    findings = [ok(about, f"is {found.program} and answers in {1000 * found.round_trip_s:.2g} ms")]
    if found.is_old:
        findings.append(problem(about, f"is {found.program}", then="use Redis or Valkey of version 7 or later"))
    if found.round_trip_s > _SLOW_S:
        message = f"needs {1000 * found.round_trip_s:.0f} ms to answer, and each request waits for it four times"
        findings.append(note(about, message, then="bring it nearer to the gateways, or take load from it"))
    if found.evicts is not None:
        message = f"throws keys away by {found.evicts} when its memory is full, the cell's among them"
        findings.append(
            note(about, message, then="set maxmemory-policy noeviction, or give the cell a store of its own")
        )
    return findings
