"""Pure state machine that divides tenants' limits among cells.

For each account and each of its cells, the controller keeps a share in parts per million and renews it as a lease with
every process of the cell, because any of them may be or become the cell's scheduler. Without a lease, a process uses
the floor. Request limits and token limits are divided separately, each by its own demand. While a process is too old
for separate shares, all limits are divided by the demand in requests.

Invariant: the shares that an account's cells may believe to have never add up to more than the whole. A share is
therefore raised only by what is free, and `_Process.bound` counts the highest share that a process may be using: any
share that was sent since the last acknowledged message, until all of these leases have expired. The order is always:
lower one share, wait for the acknowledgement of all processes of that cell or for the end of the lease, raise another.

A cell that cannot be reached gets no renewals. Once its leases have expired, it is counted with the floor, and the
other cells get the rest. After a restart, the controller first reads the shares in force. A process that it has not
reached yet is counted with the whole until leases from an earlier controller must have expired.

Each controller has an epoch. A process ignores epochs lower than the highest one it has seen, and a controller that is
ignored stops. If two controllers each reached only cells that the other could not reach, both would count the other
cells as lost. Only one controller must therefore run at a time; the epoch only covers the short time in which one
replaces the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from headgate.control.cells.assignment import cells_of
from headgate.control.cells.messages import REVISION, LeasedShare, ProcessReport, ShareMessage
from headgate.control.cells.options import CellFleet, FleetCellState
from headgate.control.cells.share_split import MILLION, split_by_demand
from headgate.model.limits import WHOLE_SHARE, LimitShare

DRIFT_PPM = 10_000
"""Maximum difference between the rates of two clocks."""
HYSTERESIS_PPM = 50_000
"""Shares stay as they are while no share would change by more than this."""
IDLE_ROUNDS = 30
"""Number of rounds without demand after which a cell that the account is not assigned to loses its share."""
SILENT_ROUNDS = 3
"""Number of rounds without a report after which a cell counts as unreachable."""


_Kind = Literal[0, 1]
"""Kind of limits: the index of its share in `LimitShare`, and of its demand in `_Demand`."""
_REQUESTS: Final = 0
_TOKENS: Final = 1
_BOTH: Final[tuple[_Kind, ...]] = (_REQUESTS, _TOKENS)
_SEPARATE: Final[tuple[tuple[_Kind, ...], ...]] = ((_REQUESTS,), (_TOKENS,))
_TOGETHER: Final[tuple[tuple[_Kind, ...], ...]] = (_BOTH,)
_NO_SHARE: Final = LimitShare(0, 0)


class _Demand(NamedTuple):
    requests: int
    tokens: int


_NO_DEMAND: Final = _Demand(0, 0)


@dataclass(slots=True)
class _Belief:
    """Highest share of each kind that a process may be using for an account, and when it must have expired."""

    share: LimitShare
    expires_at: int


class _Process:
    def __init__(self, url: str, cell: str, now: int, lease_ns: int) -> None:
        self.url = url
        self.cell = cell
        self.session = ""
        """Session of the last report. Empty until the first report."""
        self.stamp_ns = 0
        self.heard_at: int | None = None
        self.epoch = -1
        """Epoch of this controller that the process has confirmed."""
        self.floor_ppm = 0
        self.beliefs: dict[str, _Belief] = {}
        self.unknown_until = now + _with_drift(lease_ns) + lease_ns // 2
        """When all leases from an earlier controller must have expired, if the process has not reported yet."""
        self.sent: ShareMessage | None = None
        """Last message with shares. It may have been applied or not."""
        self.revision = REVISION
        self.arrived: dict[str, _Demand] = {}
        self.demand: dict[str, _Demand] = {}
        """Smoothed demand of each account, in thousandths."""
        self.held: dict[str, int] = {}
        """Part of the concurrency limit that is in use, for each account."""
        self.reports = 0
        """Number of reports in this session. The demand is known after the second one."""

    def bound(self, account: str, now: int) -> LimitShare:
        if not self.session:
            return WHOLE_SHARE if now < self.unknown_until else _NO_SHARE
        belief = self.beliefs.get(account)
        return _NO_SHARE if belief is None or now >= belief.expires_at else belief.share

    def is_split(self, account: str, share: LimitShare) -> bool:
        """Whether a message must contain a separate token share.

        Without one, a process keeps a lower token share until its lease expires.
        """
        belief = self.beliefs.get(account)
        shares = (share,) if belief is None or self.revision < REVISION else (share, belief.share)
        return any(each.requests_ppm != each.tokens_ppm for each in shares)

    def send(self, message: ShareMessage, now: int) -> None:
        assert self.heard_at is not None, "shares are sent only to a process that has reported"
        self.sent = message
        expires_at = self.heard_at + _with_drift(message.lease_ns)
        for account in message.shares:
            share, known = _sent_share(message, account), self.beliefs.get(account)
            if known is None or now >= known.expires_at:
                self.beliefs[account] = _Belief(share, expires_at)
            else:
                known.share = LimitShare(*map(max, known.share, share))
                known.expires_at = max(known.expires_at, expires_at)

    def report(self, report: ProcessReport, now: int) -> None:
        if report.session != self.session:
            self._restart(report, now)
        sent = self.sent
        if sent is not None and (report.epoch, report.version) == (sent.epoch, sent.version):
            # Earlier messages can no longer be applied.
            for account in sent.shares:
                self.beliefs[account].share = _sent_share(sent, account)
        self.stamp_ns, self.heard_at, self.floor_ppm = report.stamp_ns, now, report.floor_ppm
        self._measure(report)

    def _restart(self, report: ProcessReport, now: int) -> None:
        """Starts with the shares in force. The process ignores messages that belong to an earlier session."""
        self.session, self.sent, self.arrived, self.epoch = report.session, None, {}, -1
        self.demand, self.held, self.reports, self.revision = {}, {}, 0, report.revision
        self.beliefs = {name: _belief(share, now) for name, share in report.shares.items()}

    def _measure(self, report: ProcessReport) -> None:
        demand: dict[str, _Demand] = {}
        for account, each in report.demand.items():
            arrived = _Demand(each.arrived, each.tokens or 0)
            fresh = [max(0, now - then) for now, then in zip(arrived, self.arrived.get(account, arrived), strict=True)]
            seen = _Demand(1_000 * (fresh[0] + each.open), 1_000 * (fresh[1] + each.open_tokens))
            before = self.demand.get(account, seen) if self.reports > 1 else seen
            demand[account] = _Demand((before.requests + seen.requests) // 2, (before.tokens + seen.tokens) // 2)
            self.arrived[account] = arrived
        self.held = {account: each.held_ppm for account, each in report.demand.items() if each.held_ppm}
        for account in self.arrived.keys() - report.demand.keys():
            del self.arrived[account]
        self.demand = demand
        self.reports += 1

    @property
    def is_measured(self) -> bool:
        return self.reports > 1

    def silent(self, now: int, interval_ns: int) -> bool:
        return self.heard_at is None or now - self.heard_at > SILENT_ROUNDS * interval_ns

    def drop_expired(self, now: int) -> None:
        self.beliefs = {name: each for name, each in self.beliefs.items() if each.expires_at > now}


@dataclass(slots=True)
class _Account:
    assigned: tuple[str, ...]
    """Cells to which the account is assigned."""
    granted: dict[str, LimitShare] = field(default_factory=dict[str, LimitShare])
    """Share of each cell that the controller is renewing."""
    busy_round: dict[str, int] = field(default_factory=dict[str, int])
    """Last round in which a cell reported demand."""


class ShareController:
    def __init__(self, fleet: CellFleet, epoch: int, now: int) -> None:
        self.fleet = fleet
        self.epoch = epoch
        self.superseded = False
        """Whether a later controller has taken over. This one must stop."""
        self._version = 0
        self._round = 0
        self._has_granted = False
        self._processes: dict[str, _Process] = {}
        self._by_cell: dict[str, list[_Process]] = {}
        self._live: dict[str, list[_Process]] = {}
        """Processes of each cell that have reported recently."""
        self._reachable: set[str] = set()
        """Cells that may get more than the floor."""
        self._divisions: tuple[tuple[_Kind, ...], ...] = _SEPARATE
        """Kinds of limits. Kinds in one tuple have the same share."""
        self._floors: dict[str, int] = {}
        """Highest floor of each cell's processes. It is higher than in the file if a gateway's setting is."""
        self._accounts: dict[str, _Account] = {}
        self.change_fleet(fleet, now)

    def change_fleet(self, fleet: CellFleet, now: int) -> None:
        """Applies a new version of the file. Removed cells get no further renewals."""
        self.fleet = fleet
        known = self._processes
        self._processes = {
            url: known.get(url) or _Process(url, cell.name, now, fleet.lease_ns)
            for cell in fleet.cells
            for url in cell.admin_urls
        }
        # A removed process keeps its leases until they expire.
        self._processes |= {url: each for url, each in known.items() if each.beliefs and url not in self._processes}
        self._index(now)
        for name, account in self._accounts.items():
            account.assigned = cells_of(name, fleet)

    # Rounds

    def next_round(self, now: int) -> list[ShareMessage]:
        """Divides all limits again and returns one message for each process of the fleet."""
        if self.superseded:
            return []
        self._round += 1
        listed = {url for cell in self.fleet.cells for url in cell.admin_urls}
        for url, each in tuple(self._processes.items()):
            each.drop_expired(now)
            if url not in listed and not each.beliefs:
                del self._processes[url]
        self._index(now)
        for account in self._known_accounts():
            self._divide(account, now)
        return [self._message(process, now) for url, process in self._processes.items() if url in listed]

    def receive(self, process: str, report: ProcessReport, now: int) -> None:
        """Handles the report with which a process responded to a message."""
        known = self._processes.get(process)
        if report.epoch > self.epoch:
            if self._has_granted:
                self.superseded = True
            else:
                # This controller has just started, so it may be the later one even if its number is lower.
                self.epoch = report.epoch + 1
            return
        if known is not None:
            known.report(report, now)
            if report.epoch == self.epoch:
                known.epoch = self.epoch

    def _index(self, now: int) -> None:
        """Prepares what does not depend on the account."""
        self._by_cell = {cell.name: [] for cell in self.fleet.cells}
        for each in self._processes.values():
            self._by_cell.setdefault(each.cell, []).append(each)
        self._live = {
            name: [each for each in processes if not each.silent(now, self.fleet.interval_ns)]
            for name, processes in self._by_cell.items()
        }
        is_old = any(each.session and each.revision < REVISION for each in self._processes.values())
        self._divisions = _TOGETHER if is_old else _SEPARATE
        lost = {each.name for each in self.fleet.cells if each.state is FleetCellState.LOST}
        self._reachable = {name for name, live in self._live.items() if live and name not in lost}
        self._floors = {
            name: max((self.fleet.share_floor_ppm, *(each.floor_ppm for each in processes)))
            for name, processes in self._by_cell.items()
        }

    def _message(self, process: _Process, now: int) -> ShareMessage:
        self._version += 1
        # Before a process has confirmed the epoch, an earlier controller could still change its shares.
        claimed = process.epoch == self.epoch
        granted: dict[str, LimitShare] = {}
        if claimed:
            found = ((name, account.granted.get(process.cell)) for name, account in self._accounts.items())
            granted = {name: share for name, share in found if share is not None}
        message = ShareMessage(
            process.url,
            self.epoch,
            self._version,
            process.session if claimed else "",
            process.stamp_ns,
            self.fleet.lease_ns,
            {name: share.requests_ppm for name, share in granted.items()},
            {name: share.tokens_ppm for name, share in granted.items() if process.is_split(name, share)},
        )
        assert process.revision >= REVISION or not message.token_shares, f"{process.url} knows no separate shares"
        if claimed:
            self._has_granted = True
            process.send(message, now)
        return message

    # Division

    def _known_accounts(self) -> list[str]:
        """Returns the accounts with limits. Accounts that no process reports or uses any more are dropped."""
        reported: dict[str, None] = {}
        for process in self._processes.values():
            reported |= dict.fromkeys(process.demand)
            reported |= dict.fromkeys(process.beliefs)
        known = self._accounts
        self._accounts = {name: known.get(name) or _Account(cells_of(name, self.fleet)) for name in sorted(reported)}
        return list(self._accounts)

    def _divide(self, name: str, now: int) -> None:
        account = self._accounts[name]
        for cell in self.fleet.cells:
            if self._demand(cell.name, name, _REQUESTS):
                account.busy_round[cell.name] = self._round
        members = self._members(name, account, now)
        by_kind = {
            kind: granted
            for kinds in self._divisions
            for granted in (self._divide_kinds(name, members, kinds, now),)
            for kind in kinds
        }
        # Until all processes of a cell have reported, its share in force is unknown.
        account.granted = {
            cell: LimitShare(by_kind[_REQUESTS][cell], by_kind[_TOKENS][cell])
            for cell in members
            if not self._is_unknown(cell, now)
        }

    def _divide_kinds(self, name: str, members: Sequence[str], kinds: tuple[_Kind, ...], now: int) -> dict[str, int]:
        """Returns each cell's share of these kinds of limits."""
        known = self._accounts[name].granted
        granted = {
            cell: min(known[cell][kind] for kind in kinds) if cell in known else self._in_force(cell, name, kinds, now)
            for cell in members
        }
        targets = self._targets(granted, {cell: self._demand(cell, name, kinds[0]) for cell in members}, now)
        for cell, target in targets.items():
            granted[cell] = min(granted[cell], target)
        free = MILLION - self._used(name, granted, kinds, now)
        for cell in sorted(members, key=lambda each: granted[each] - targets[each]):
            if (raised := min(targets[cell] - granted[cell], free)) > 0 and cell in self._reachable:
                granted[cell] += raised
                free -= raised
        return granted

    def _members(self, name: str, account: _Account, now: int) -> list[str]:
        """Returns the assigned cells, and the cells that the account still uses."""
        members = dict.fromkeys(account.assigned)
        for cell in self.fleet.cells:
            last = account.busy_round.get(cell.name)
            busy = last is not None and self._round - last < IDLE_ROUNDS
            if busy or self._bound(cell.name, name, _BOTH, now) > self.fleet.share_floor_ppm:
                members[cell.name] = None
        return list(members)

    def _targets(self, granted: Mapping[str, int], demand: Mapping[str, int], now: int) -> dict[str, int]:
        floor = self.fleet.share_floor_ppm
        present = {cell: wanted for cell, wanted in demand.items() if cell in self._reachable}
        targets = dict.fromkeys(granted, floor)
        left = MILLION - floor * (len(granted) - len(present))
        targets |= split_by_demand(present, floor, max(0, left))
        if sum(granted.values()) <= MILLION and any(self._is_unmeasured(cell) for cell in present):
            return dict(granted)
        moved = max((abs(target - granted[cell]) for cell, target in targets.items()), default=0)
        settled = abs(MILLION - sum(granted.values())) <= HYSTERESIS_PPM and sum(granted.values()) <= MILLION
        return dict(granted) if settled and moved <= HYSTERESIS_PPM else targets

    def _used(self, name: str, granted: Mapping[str, int], kinds: tuple[_Kind, ...], now: int) -> int:
        """Returns the sum of the highest shares that all cells may be using."""
        used = sum(
            max(ppm, self._bound(cell, name, kinds, now), self._floors.get(cell, 0)) for cell, ppm in granted.items()
        )
        others = (self._bound(cell, name, kinds, now) for cell in self._by_cell if cell not in granted)
        return used + sum(bound for bound in others if bound > self.fleet.share_floor_ppm)

    # Cells

    def _of_cell(self, cell: str) -> list[_Process]:
        return self._by_cell.get(cell, [])

    def _bound(self, cell: str, name: str, kinds: tuple[_Kind, ...], now: int) -> int:
        """Returns the highest share of these kinds of limits that a cell may be using.

        Requests that were open before the share was lowered count until they have ended.
        """
        processes = self._of_cell(cell)
        held = sum(each.held.get(name, 0) for each in processes) if _REQUESTS in kinds else 0
        bounds = [each.bound(name, now) for each in processes]
        return max(held, *(each[kind] for each in bounds for kind in kinds), 0)

    def _is_unknown(self, cell: str, now: int) -> bool:
        return any(not each.session and now < each.unknown_until for each in self._of_cell(cell))

    def _in_force(self, cell: str, name: str, kinds: tuple[_Kind, ...], now: int) -> int:
        """Returns the share to start with: the one in force, or the floor."""
        if self._is_unknown(cell, now):
            return self.fleet.share_floor_ppm
        return max(self.fleet.share_floor_ppm, min(self._bound(cell, name, (kind,), now) for kind in kinds))

    def _is_unmeasured(self, cell: str) -> bool:
        return any(not each.is_measured for each in self._live.get(cell, ()))

    def _demand(self, cell: str, name: str, kind: _Kind) -> int:
        return sum(each.demand.get(name, _NO_DEMAND)[kind] for each in self._live.get(cell, ()))

    # Status

    def is_settled(self, account: str, now: int) -> bool:
        """Whether all of the account's cells have room for at least the floor."""
        known = self._accounts.get(account)
        return known is not None and all(
            self._used(account, {cell: share[kind] for cell, share in known.granted.items()}, (kind,), now) <= MILLION
            for kind in _BOTH
        )

    def shares(self) -> dict[str, dict[str, LimitShare]]:
        """Returns the shares that the controller is renewing, by account and cell."""
        return {name: dict(account.granted) for name, account in self._accounts.items() if account.granted}


def _with_drift(length_ns: int) -> int:
    return length_ns + length_ns * DRIFT_PPM // MILLION


def _belief(share: LeasedShare, now: int) -> _Belief:
    return _Belief(LimitShare(share.ppm, share.tokens), now + _with_drift(share.left_ns))


def _sent_share(message: ShareMessage, account: str) -> LimitShare:
    requests_ppm = message.shares[account]
    return LimitShare(requests_ppm, message.token_shares.get(account, requests_ppm))
