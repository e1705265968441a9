"""Simulated cells, controllers and a network with faults, in virtual time.

Each process of a cell has the share leases of a gateway and its own clock. Messages and reports may be delayed, lost
or delivered twice. `World.believed` returns the share that a cell may be using. All randomness comes from the seed.
"""

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headgate.control.cells.assignment import cells_of
from headgate.control.cells.messages import AccountDemand, LeasedShare, ProcessReport, ShareMessage
from headgate.control.cells.options import CellFleet, FleetCell
from headgate.control.cells.share_controller import ShareController
from headgate.control.cells.share_leases import ShareLeases
from headgate.control.cells.share_split import MILLION
from headgate.core.events import SharesAssigned
from headgate.model.limits import LimitShare
from headgate.model.units import Instant, TenantId

SECOND = 1_000_000_000
PAIR = {"acme": ("a", "b")}
_STEPS = 12


def a_fleet(cells: int = 3, *, processes: int = 2, cells_per_tenant: int = 2, floor_ppm: int = 250_000) -> CellFleet:
    names = "abcdefgh"[:cells]
    return CellFleet(
        tuple(
            FleetCell(name, f"http://{name}", tuple(f"http://{name}{number}" for number in range(processes)))
            for name in names
        ),
        cells_per_tenant=cells_per_tenant,
        share_floor_ppm=floor_ppm,
    )


@dataclass
class Faults:
    loss: float = 0.0
    """Probability that a message or a report is lost."""
    twice: float = 0.0
    delay_ns_max: int = SECOND // 10
    late: float = 0.0
    """Probability that a message arrives up to a minute late."""


class SimulatedProcess:
    """One gateway process with its own clock."""

    def __init__(
        self,
        url: str,
        cell: str,
        floor_ppm: int,
        world_now: Callable[[], int],
        *,
        rate_ppm: int = 0,
        offset_ns: int = 0,
    ) -> None:
        self.url, self.cell, self.floor_ppm = url, cell, floor_ppm
        self.up = True
        self.arrived: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self.is_old = False
        """Whether the process has a version without token shares."""
        self._world_now = world_now
        self._rate_ppm, self._offset_ns = rate_ppm, offset_ns
        self._session = 0
        self._assigned = SharesAssigned(floor_ppm)
        self.restart()

    def now(self) -> Instant:
        world = self._world_now()
        return Instant(self._offset_ns + world + world * self._rate_ppm // 1_000_000)

    def believed(self, account: str) -> LimitShare:
        now = self.now()
        known = self._assigned.shares.get(TenantId(account))
        floor = self._assigned.floor_ppm
        return LimitShare(floor, floor) if known is None or known.until <= now else known.share

    def restart(self) -> None:
        self._session += 1
        self.arrived, self.tokens = dict.fromkeys(self.arrived, 0), dict.fromkeys(self.tokens, 0)
        self.leases = ShareLeases(str(self._session), self.floor_ppm, self.now, self._assign, self._demand)

    def handle(self, message: ShareMessage) -> ProcessReport:
        if not self.is_old:
            return self.leases.handle(message)
        if message.token_shares:
            assert message.session != str(self._session), "an old process rejects fields that it does not know"
            # The controller's client asks for the report after such a rejection.
            report = self.leases.report()
        else:
            report = self.leases.handle(message)
        demand = {name: AccountDemand(each.arrived, each.open) for name, each in report.demand.items()}
        return replace(report, demand=demand, revision=1)

    def _assign(self, assigned: SharesAssigned) -> None:
        self._assigned = assigned

    def _demand(self) -> Mapping[str, AccountDemand]:
        return {
            name: AccountDemand(count, 0, tokens=self.tokens.get(name, count)) for name, count in self.arrived.items()
        }


class World:
    def __init__(self, fleet: CellFleet, seed: int = 0, *, faults: Faults | None = None) -> None:
        self.random = random.Random(seed)
        self.fleet = fleet
        self.faults = faults or Faults()
        self.now = 0
        self._order = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.processes = {
            url: SimulatedProcess(
                url,
                cell.name,
                fleet.share_floor_ppm,
                lambda: self.now,
                rate_ppm=self.random.randrange(-4_000, 4_000),
                offset_ns=self.random.randrange(10**15),
            )
            for cell in fleet.cells
            for url in cell.admin_urls
        }
        self.controllers: list[ShareController] = []
        self.per_round: dict[tuple[str, str], int] = {}
        """Requests per round, by cell and account."""
        self.tokens_per_request: dict[str, int] = {}
        """Tokens of each request, by cell (default 1)."""
        self.routed: dict[str, dict[str, None]] = {}
        """Cells to which the load balancer may send an account's requests."""
        self.on_step: Callable[[], None] = lambda: None

    # Actions

    def start_controller(self) -> ShareController:
        return self._start(ShareController(self.fleet, len(self.controllers) + 1, self.now))

    def start_old_controller(self) -> ShareController:
        """Starts a controller of a version without token shares."""
        return self._start(_OldController(self.fleet, len(self.controllers) + 1, self.now))

    def _start(self, controller: ShareController) -> ShareController:
        self.controllers.append(controller)
        self._at(self.random.randrange(SECOND), lambda: self._round(controller))
        return controller

    def stop_controller(self, controller: ShareController) -> None:
        self.controllers[self.controllers.index(controller)] = _Stopped(self.fleet, 0, self.now)

    def demand(self, account: str, **per_round: int) -> None:
        """Sets the number of requests per round in each cell. Other cells than those of the account get none."""
        routed = self.routed.setdefault(account, dict.fromkeys(cells_of(account, self.fleet)))
        for cell in self.fleet.cells:
            self.per_round[cell.name, account] = per_round.get(cell.name, 0) if cell.name in routed else 0
        for process in self.processes.values():
            process.arrived.setdefault(account, 0)

    def change_fleet(self, **changes: object) -> None:
        self.fleet = replace(self.fleet, **changes)  # pyright: ignore[reportArgumentType]
        for controller in self.controllers:
            controller.change_fleet(self.fleet, self.now)

    def lose(self, cell: str) -> None:
        for process in self.of_cell(cell):
            process.up = False

    def restore(self, cell: str) -> None:
        for process in self.of_cell(cell):
            if not process.up:
                process.up = True
                process.restart()

    def of_cell(self, cell: str) -> list[SimulatedProcess]:
        return [each for each in self.processes.values() if each.cell == cell]

    def run(self, seconds: float) -> None:
        until = self.now + round(seconds * SECOND)
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self.on_step()
        self.now = until
        self.on_step()

    # Observations

    def believed(self, cell: str, account: str) -> int:
        """Highest request share of an account that a running process of the cell uses."""
        return self._believed(cell, account).requests_ppm

    def believed_tokens(self, cell: str, account: str) -> int:
        return self._believed(cell, account).tokens_ppm

    def _believed(self, cell: str, account: str) -> LimitShare:
        found = [each.believed(account) for each in self.of_cell(cell) if each.up]
        return LimitShare(
            max((each.requests_ppm for each in found), default=0), max((each.tokens_ppm for each in found), default=0)
        )

    def total(self, account: str) -> int:
        """Sum of the request shares or of the token shares, whichever is higher."""
        shares = [self._believed(cell, account) for cell in self.routed[account]]
        return max(sum(each.requests_ppm for each in shares), sum(each.tokens_ppm for each in shares))

    def shares(self, account: str) -> Mapping[str, int]:
        return {cell.name: self.believed(cell.name, account) for cell in self.fleet.cells}

    # Events

    def _at(self, wait_ns: int, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + wait_ns, self._order, event))

    def _round(self, controller: ShareController) -> None:
        if controller not in self.controllers:
            return
        for (cell, account), count in self.per_round.items():
            up = [each for each in self.of_cell(cell) if each.up]
            if up and controller is self.controllers[-1]:
                up[0].arrived[account] = up[0].arrived.get(account, 0) + count
                tokens = count * self.tokens_per_request.get(cell, 1)
                up[0].tokens[account] = up[0].tokens.get(account, 0) + tokens
        for message in controller.next_round(self.now):
            self._send(controller, message)
        self._route(controller)
        self._at(self.fleet.interval_ns, lambda: self._round(controller))

    def _route(self, controller: ShareController) -> None:
        """Changes the load balancer's map once the new cells have room."""
        for account, before in self.routed.items():
            if (cells := dict.fromkeys(cells_of(account, self.fleet))) != before and controller.is_settled(
                account, self.now
            ):
                self.routed[account] = cells
                moved = sum(self.per_round.pop((cell, account), 0) for cell in before)
                for cell in cells:
                    self.per_round[cell, account] = moved // len(cells)

    def _send(self, controller: ShareController, message: ShareMessage) -> None:
        for _ in range(1 + (self.random.random() < self.faults.twice)):
            if self.random.random() >= self.faults.loss:
                self._at(self._delay(), lambda: self._deliver(controller, message))

    def _deliver(self, controller: ShareController, message: ShareMessage) -> None:
        process = self.processes[message.process]
        if not process.up:
            return
        report = process.handle(message)
        if self.random.random() >= self.faults.loss:
            # A client gives up waiting for a response after a while.
            wait = min(self._delay(), self.fleet.interval_ns)
            self._at(wait, lambda: self._answer(controller, message.process, report))

    def _answer(self, controller: ShareController, process: str, report: ProcessReport) -> None:
        if controller in self.controllers:
            controller.receive(process, report, self.now)

    def _delay(self) -> int:
        if self.random.random() < self.faults.late:
            return self.random.randrange(60 * SECOND)
        return self.random.randrange(1, self.faults.delay_ns_max)


class _Stopped(ShareController):
    """Takes the place of a controller that has been killed."""


class _OldController(ShareController):
    """Ignores the fields of reports that it does not know."""

    def receive(self, process: str, report: ProcessReport, now: int) -> None:
        shares = {name: LeasedShare(each.ppm, each.left_ns) for name, each in report.shares.items()}
        demand = {name: AccountDemand(each.arrived, each.open, each.held_ppm) for name, each in report.demand.items()}
        super().receive(process, replace(report, shares=shares, demand=demand, revision=1), now)


# Random faults


def violations_under_faults(seed: int) -> list[str]:
    """Runs a world with random faults and changes. Returns a line for each account that exceeded the whole."""
    dice = random.Random(seed)
    faults = Faults(loss=dice.choice((0.0, 0.1, 0.4)), twice=0.1, late=dice.choice((0.0, 0.05)))
    world = World(a_fleet(dice.choice((2, 3)), processes=dice.choice((1, 2))), seed, faults=faults)
    world.change_fleet(pins=PAIR)
    world.demand("acme", a=200, b=100)
    world.demand("bolt", a=50, b=50, c=100)
    found: dict[str, str] = {}

    def check() -> None:
        for account in world.routed:
            if (total := world.total(account)) > MILLION:
                found.setdefault(account, f"{account} uses {total} ppm at {world.now / SECOND:.3f} s")

    world.on_step = check
    world.start_controller()
    for _ in range(_STEPS):
        world.run(dice.randrange(1, 20))
        _disturb(world, dice)
    return list(found.values())


def _disturb(world: World, dice: random.Random) -> None:
    """Causes one random fault or change."""
    cells = [each.name for each in world.fleet.cells]
    world.tokens_per_request = {name: dice.choice((1, 10)) for name in cells}
    match dice.randrange(8):
        case 0:
            world.lose(dice.choice(cells))
        case 1 | 2:
            world.restore(dice.choice(cells))
        case 3:
            process = world.processes[dice.choice(list(world.processes))]
            # It may be upgraded or downgraded.
            process.is_old = dice.random() < 0.3
            process.restart()
        case 4:
            for controller in world.controllers[:-1]:
                if dice.random() < 0.7:
                    world.stop_controller(controller)
            world.start_controller()
        case 5:
            world.change_fleet(pins={"acme": tuple(dice.sample(cells, 2))})
        case _:
            world.demand("acme", **{name: dice.randrange(400) for name in cells})
