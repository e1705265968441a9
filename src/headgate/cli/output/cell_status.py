"""What part does a gateway take in its cell, in words for people?"""

from collections.abc import Iterator

from msgspec import Struct


class MemberState(Struct, frozen=True):
    standing: str
    policy_hash: str = ""
    staged: str | None = None


class CellState(Struct, frozen=True):
    name: str
    member: str
    mode: str
    leads: bool
    share: str
    store: str
    epoch: int | None = None
    scheduler: str | None = None
    store_problem: str | None = None
    unacknowledged: int = 0
    members: dict[str, MemberState] = {}
    staged: str | None = None
    name_problem: str | None = None


def cell_lines(cell: CellState) -> Iterator[str]:
    """What matters first: who decides, and what is wrong."""
    yield f"cell {cell.name}, member {cell.member}: {_part(cell)}"
    if cell.name_problem is not None:
        yield f"  {cell.name_problem}"
    if cell.store != "up":
        yield f"  the store is away: {cell.store_problem or 'it has yet to answer'}"
    others = [f"{name} is {each.standing}" for name, each in cell.members.items() if each.standing != "present"]
    if others:
        yield f"  {'; '.join(others)}: what they may take is kept free"
    if cell.staged is not None:
        behind = [name for name, each in cell.members.items() if cell.staged not in (each.staged, each.policy_hash)]
        whom = f", not yet by {', '.join(behind)}" if behind else ""
        yield f"  configuration {cell.staged} has been read here{whom}; it comes into force for all at once"


def _part(cell: CellState) -> str:
    if cell.leads:
        return f"it is the scheduler, epoch {cell.epoch}, of {len(cell.members)} gateways"
    if cell.mode == "following":
        who = f"it follows the scheduler {cell.scheduler}, epoch {cell.epoch}"
        return f"{who}; what waits and runs is told of its own requests alone"
    if cell.mode == "island":
        return f"an ISLAND; no scheduler answers, so it decides by itself over share {cell.share} of places and limits"
    return "no scheduler has answered yet"
