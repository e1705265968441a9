"""Which waiting request goes next at a pool?

Bands in the order of priority, except that a band whose floor is due goes before all others; inside a band the least
charged tenant; inside a tenant those that come back after a failed attempt go first, then those whose answers are due
first, then the oldest. A request that may use several pools waits for all of them at once and goes to whichever has
room first.

The requests of a tenant that may go to the same places, and are of the same size, stand in one line. So if there is no
room for the head of a line there is hardly any for those behind it. Three kinds of request hold up no others: a
request that waits for another endpoint than the one that failed it, a long one that waits for its lane, and those of a
member that cannot reach an endpoint.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from headgate.core.counters import TurnsCounter
from headgate.core.queues.fair import IDLE, PASSES, Turns
from headgate.core.queues.floors import Floors
from headgate.core.queues.work import Work
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.state import Request
from headgate.model.units import ClassName, Instant, PoolName, TenantId

_HUSKS_TOLERATED: Final = 64
_NO_CLASS: Final = ClassName("")


class Places(NamedTuple):
    """What the requests of one line have in common."""

    pools: tuple[PoolName, ...]
    avoid: EndpointRecord | None
    long: bool
    reserved_for: ClassName
    """The class that has places kept for it, or is held by an operator; empty for all others."""
    member: str = ""
    """The member of a cell that stays away from an endpoint; empty for all others."""


class Backlog:
    """Every request that waits."""

    __slots__ = ("_bands", "_floors", "_per_class", "_per_tenant", "apart", "held", "length", "work")

    def __init__(self, floors: Floors) -> None:
        self._bands: dict[int, _Band] = {}
        """In the order of priority."""
        self._floors = floors
        self._per_class: dict[ClassName, int] = {}
        self._per_tenant: dict[tuple[ClassName, TenantId], int] = {}
        self.held: dict[tuple[PoolName, ClassName], int] = {}
        """Of those who came while a pool had no endpoint, by class: they have a bound of their own."""
        self.work = Work()
        self.length = 0
        self.apart: tuple[ClassName, ...] = ()
        """Classes that stand in lines of their own, because an operator holds them: nobody waits behind them."""

    def in_class(self, name: ClassName) -> int:
        """Those who take places of the class's queue."""
        return self._per_class.get(name, 0)

    def of_class(self, name: ClassName) -> int:
        """All of the class, those who are held too."""
        count = self._per_class.get(name, 0)
        for (_, service_class), held in self.held.items():
            count += held if service_class == name else 0
        return count

    def held_for(self, pool: PoolName) -> int:
        return sum(count for (name, _), count in self.held.items() if name == pool)

    def of_tenant(self, name: ClassName, tenant: TenantId) -> int:
        return self._per_tenant.get((name, tenant), 0)

    def by_tenant(self) -> dict[tuple[ClassName, TenantId], int]:
        """Of each class what each tenant has in its queue. One copy, since those who look are many and slow."""
        return dict(self._per_tenant)

    def push(self, request: Request) -> None:
        self._band(request.service_class.band).push(request, self.apart)
        self._tally(request, 1)
        self.work.add(request)

    def remove(self, request: Request) -> None:
        self._bands[request.service_class.band].remove(request)
        self._tally(request, -1)
        self.work.take(request)

    def realign(self, request: Request) -> None:
        """Moves a waiting request into another line after the places that it may go to have changed."""
        self._bands[request.service_class.band].realign(request, self.apart)

    def offer(self, pool: PoolName, ask: Callable[[Request], int | None], closed: tuple[int, ...] = ()) -> bool:
        """Offers a place at `pool` to the waiting heads in order; who takes it answers with its tenant's charge.

        Nobody of the bands that are `closed` is asked.
        """
        for number in self._floors.order(pool, self._bands):
            band = self._bands[number]
            if number in closed or not band.waits_for(pool):
                continue
            if (request := band.offer(pool, ask)) is not None:
                self._tally(request, -1)
                self.work.take(request)
                if self._floors.kept:
                    self._floors.served(pool, number, request.cost_ns, self._waiting_bands(pool))
                return True
        return False

    def settle(self, band: int, pool: PoolName, account: TenantId, difference: int) -> None:
        """Charges a tenant more or less for what it took before."""
        if difference and band in self._bands:
            self._bands[band].settle(pool, account, difference)

    def turns(self) -> tuple[TurnsCounter, ...]:
        """What has been charged to whom, for a successor."""
        return tuple(counter for number, band in self._bands.items() for counter in band.turns(number))

    def restore(self, counter: TurnsCounter) -> None:
        self._band(counter.band).restore(counter)

    def _waiting_bands(self, pool: PoolName) -> Iterator[int]:
        return (number for number, band in self._bands.items() if band.waits_for(pool))

    def _band(self, number: int) -> "_Band":
        if (band := self._bands.get(number)) is None:
            self._bands[number] = band = _Band()
            self._bands = {each: self._bands[each] for each in sorted(self._bands)}
        return band

    def _tally(self, request: Request, change: int) -> None:
        self.length += change
        name, tenant = request.service_class.name, request.ticket.tenant
        if request.hold is not None:
            self._tally_held((request.hold, name), change)
            return
        self._per_class[name] = self._per_class.get(name, 0) + change
        left = self._per_tenant.get((name, tenant), 0) + change
        if left:
            self._per_tenant[name, tenant] = left
        else:
            del self._per_tenant[name, tenant]

    def _tally_held(self, key: tuple[PoolName, ClassName], change: int) -> None:
        left = self.held.get(key, 0) + change
        if left:
            self.held[key] = left
        else:
            del self.held[key]


class _Band:
    __slots__ = ("_line_of", "_turns", "_waiting", "_waiting_for")

    def __init__(self) -> None:
        self._waiting: dict[TenantId, dict[Places, _Line]] = {}
        """Per tenant its lines."""
        self._line_of: dict[int, _Line] = {}
        """Where each request stands, by its number."""
        self._waiting_for: dict[PoolName, int] = {}
        self._turns: dict[PoolName, Turns] = {}

    def waits_for(self, pool: PoolName) -> bool:
        return self._waiting_for.get(pool, 0) > 0

    def turns(self, number: int) -> Iterator[TurnsCounter]:
        return (turns.counter(number, pool) for pool, turns in self._turns.items())

    def restore(self, counter: TurnsCounter) -> None:
        turns = self._turns[counter.pool] = Turns()
        turns.restore(counter)

    def push(self, request: Request, apart: tuple[ClassName, ...]) -> None:
        account = request.account
        self._stand(request, apart)
        for pool in request.pools:
            self._waiting_for[pool] = self._waiting_for.get(pool, 0) + 1
            if pool not in self._turns:
                self._turns[pool] = Turns()
            self._turns[pool].list(account)

    def realign(self, request: Request, apart: tuple[ClassName, ...]) -> None:
        if request.sequence in self._line_of:
            self._stand_back(request)
            self._stand(request, apart)

    def _stand(self, request: Request, apart: tuple[ClassName, ...]) -> None:
        lines = self._waiting.setdefault(request.account, {})
        places = _places(request, apart)
        if (line := lines.get(places)) is None:
            line = lines[places] = _Line(places)
        line.push(request)
        self._line_of[request.sequence] = line

    def _stand_back(self, request: Request) -> None:
        lines = self._waiting[request.account]
        line = self._line_of.pop(request.sequence)
        line.remove(request)
        if not line.length:
            del lines[line.places]
            if not lines:
                del self._waiting[request.account]

    def remove(self, request: Request) -> None:
        self._stand_back(request)
        for pool in request.pools:
            self._waiting_for[pool] -= 1
            if not self._waiting_for[pool]:
                self._turns[pool].disband()

    def settle(self, pool: PoolName, account: TenantId, difference: int) -> None:
        if pool in self._turns:
            self._turns[pool].settle(account, difference)

    def offer(self, pool: PoolName, ask: Callable[[Request], int | None]) -> Request | None:
        turns = self._turns.get(pool)
        taken: Request | None = None

        def ask_tenant(account: TenantId) -> int:
            nonlocal taken
            heads = self._heads(account, pool)
            for head in heads:
                if (charge := ask(head)) is not None:
                    taken = head
                    return charge
            return PASSES if heads else IDLE

        if turns is not None and turns.offer(ask_tenant) and taken is not None:
            self.remove(taken)
        return taken

    def _heads(self, account: TenantId, pool: PoolName) -> list[Request]:
        """The heads of the tenant's lines that may use this pool, in the order in which they go."""
        lines = self._waiting.get(account)
        if lines is None:
            return []
        heads = [line.head() for places, line in lines.items() if pool in places.pools]
        return heads if len(heads) == 1 else sorted(heads, key=_precedence)


class _Line:
    """Requests of one tenant that may go to the same places, in the order in which they go."""

    __slots__ = ("_heap", "_waiting", "places")

    def __init__(self, places: Places) -> None:
        self.places = places
        self._heap: list[tuple[Instant, int, Request]] = []
        """Holds some that no longer wait: they are dropped when they come up."""
        self._waiting: dict[int, Request] = {}

    @property
    def length(self) -> int:
        return len(self._waiting)

    def push(self, request: Request) -> None:
        self._waiting[request.sequence] = request
        heappush(self._heap, (request.due, request.sequence, request))
        if len(self._heap) > 2 * len(self._waiting) + _HUSKS_TOLERATED:
            self._heap = [(each.due, each.sequence, each) for each in self._waiting.values()]
            heapify(self._heap)

    def remove(self, request: Request) -> None:
        del self._waiting[request.sequence]

    def head(self) -> Request:
        heap = self._heap
        while heap[0][1] not in self._waiting:
            heappop(heap)
        return heap[0][2]


def _places(request: Request, apart: tuple[ClassName, ...]) -> Places:
    service_class = request.service_class
    own = service_class.reserve_percent or service_class.name in apart
    reserved_for = service_class.name if own else _NO_CLASS
    return Places(request.pools, request.avoid, request.long, reserved_for, request.member_line)


def _precedence(request: Request) -> tuple[bool, Instant, int]:
    return (request.avoid is None, request.due, request.sequence)
