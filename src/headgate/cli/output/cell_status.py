"""Text that describes a gateway's role in its cell."""

from collections.abc import Iterator

from msgspec import Struct


class MemberState(Struct, frozen=True):
    standing: str
    policy_hash: str = ""
    staged: str | None = None
    policy_for_s: float | None = None
    protocol: int | None = None


class ProtocolState(Struct, frozen=True):
    version: int
    lowest_in_cell: int


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
    protocol: ProtocolState | None = None


def cell_lines(cell: CellState) -> Iterator[str]:
    """The gateway's role, followed by any problems."""
    yield f"cell {cell.name}, member {cell.member}: {_role_text(cell)}"
    if cell.name_problem is not None:
        yield f"  {cell.name_problem}"
    if cell.store != "up":
        yield f"  store unreachable: {cell.store_problem or 'no response yet'}"
    others = [f"{name} is {each.standing}" for name, each in cell.members.items() if each.standing != "present"]
    if others:
        yield f"  {'; '.join(others)}; their shares stay reserved"
    if cell.protocol is not None and cell.protocol.lowest_in_cell < cell.protocol.version:
        yield _versions_text(cell, cell.protocol)
    if cell.staged is not None:
        behind = [name for name, each in cell.members.items() if cell.staged not in (each.staged, each.policy_hash)]
        whom = f", waiting for {', '.join(behind)}" if behind else ""
        yield f"  configuration {cell.staged} is staged{whom}; all members activate it together"
    elif len({each.policy_hash for each in cell.members.values()}) > 1:
        yield from (_configuration_text(name, each) for name, each in cell.members.items())


def _versions_text(cell: CellState, protocol: ProtocolState) -> str:
    older = [name for name, each in cell.members.items() if each.protocol and each.protocol < protocol.version]
    whom = f": {', '.join(older)}" if older else ""
    return f"  protocol version {protocol.version}; other processes still use version {protocol.lowest_in_cell}{whom}"


def _configuration_text(name: str, member: MemberState) -> str:
    known = "" if member.policy_for_s is None else f" for at least {member.policy_for_s:.0f} s"
    return f"  {name} has had configuration {member.policy_hash or 'unknown'}{known}"


def _role_text(cell: CellState) -> str:
    if cell.leads:
        return f"scheduler of {len(cell.members)} gateways, epoch {cell.epoch}"
    if cell.mode == "following":
        who = f"follows scheduler {cell.scheduler}, epoch {cell.epoch}"
        return f"{who}; the request counts cover only this gateway"
    if cell.mode == "island":
        return f"ISLAND; no scheduler is responding, so it schedules its {cell.share} share of slots and limits"
    return "no scheduler has responded yet"
