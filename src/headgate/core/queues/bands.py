"""Which waiting request goes next at a pool?

Bands in the order of priority; inside a band the tenants take turns; inside a tenant those that
come back after a failed attempt go first, then the oldest. A request that may use several pools
waits for all of them at once and goes to whichever has room first.

The requests of a tenant that may go to the same places stand in one line. So if there is no
room for the head of a line there is none for those behind it, and a request that waits for
another endpoint than the one that failed it holds up nobody else.
"""

from collections import OrderedDict
from collections.abc import Callable

from headgate.core.queues.fair import Answer, Turns
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.state import Request
from headgate.model.units import ClassName, PoolName, TenantId

_Places = tuple[tuple[PoolName, ...], EndpointRecord | None]
"""The pools that a request may use, and the endpoint that it avoids."""


class Backlog:
    """Every request that waits."""

    __slots__ = ("_bands", "_per_class", "_per_tenant")

    def __init__(self) -> None:
        self._bands: dict[int, _Band] = {}
        """In the order of priority."""
        self._per_class: dict[ClassName, int] = {}
        self._per_tenant: dict[tuple[ClassName, TenantId], int] = {}

    def in_class(self, name: ClassName) -> int:
        return self._per_class.get(name, 0)

    def of_tenant(self, name: ClassName, tenant: TenantId) -> int:
        return self._per_tenant.get((name, tenant), 0)

    def push(self, request: Request) -> None:
        self._band(request.service_class.band).push(request)
        self._tally(request, 1)

    def remove(self, request: Request) -> None:
        self._bands[request.service_class.band].remove(request)
        self._tally(request, -1)

    def offer(self, pool: PoolName, ask: Callable[[Request], bool]) -> bool:
        """Offers a place at `pool` to the waiting heads in order; true if one took it."""
        for band in self._bands.values():
            if (request := band.offer(pool, ask)) is not None:
                self._tally(request, -1)
                return True
        return False

    def _band(self, number: int) -> "_Band":
        if (band := self._bands.get(number)) is None:
            self._bands[number] = band = _Band()
            self._bands = {each: self._bands[each] for each in sorted(self._bands)}
        return band

    def _tally(self, request: Request, change: int) -> None:
        name, tenant = request.service_class.name, request.ticket.tenant
        self._per_class[name] = self._per_class.get(name, 0) + change
        left = self._per_tenant.get((name, tenant), 0) + change
        if left:
            self._per_tenant[name, tenant] = left
        else:
            del self._per_tenant[name, tenant]


class _Band:
    __slots__ = ("_turns", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[TenantId, dict[_Places, OrderedDict[int, Request]]] = {}
        """Per tenant its lines, each in the order in which it came to stand."""
        self._turns: dict[PoolName, Turns] = {}

    def push(self, request: Request) -> None:
        tenant = request.ticket.tenant
        lines = self._waiting.setdefault(tenant, {})
        lines.setdefault((request.pools, request.avoid), OrderedDict())[request.sequence] = request
        for pool in request.pools:
            if pool not in self._turns:
                self._turns[pool] = Turns()
            self._turns[pool].list(tenant)

    def remove(self, request: Request) -> None:
        lines = self._waiting[request.ticket.tenant]
        line = lines[request.pools, request.avoid]
        del line[request.sequence]
        if not line:
            del lines[request.pools, request.avoid]
            if not lines:
                del self._waiting[request.ticket.tenant]

    def offer(self, pool: PoolName, ask: Callable[[Request], bool]) -> Request | None:
        turns = self._turns.get(pool)
        taken: Request | None = None

        def ask_tenant(tenant: TenantId) -> Answer:
            nonlocal taken
            heads = self._heads(tenant, pool)
            taken = next((head for head in heads if ask(head)), None)
            if taken is not None:
                return Answer.TAKES
            return Answer.PASSES if heads else Answer.IDLE

        if turns is not None and turns.offer(ask_tenant) and taken is not None:
            self.remove(taken)
        return taken

    def _heads(self, tenant: TenantId, pool: PoolName) -> list[Request]:
        """The heads of the tenant's lines that may use this pool, in the order in which they go."""
        lines = self._waiting.get(tenant, {})
        heads = [next(iter(line.values())) for (pools, _), line in lines.items() if pool in pools]
        return sorted(heads, key=_precedence)


def _precedence(request: Request) -> tuple[bool, int]:
    return (request.avoid is None, request.sequence)
