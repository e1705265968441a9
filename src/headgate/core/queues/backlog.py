"""Backlog: all queued requests, and the order in which each pool serves them.

The order is:

1. Bands that are due their minimum share, then the other bands in order of priority.
2. Within a band, the tenant with the lowest charge.
3. Within a tenant, requests that return after a failed attempt, then those with the earliest due time, then the oldest.

A request that may use several pools waits for all of them and is sent to the first one with capacity. Pools that share
engines (`shared_engines`) are served in one order, as if they were one pool. A request that may overflow waits for the
overflow pools of its model in the same way, but its work counts only for its own pools.

A tenant's requests share a queue if they may use the same endpoints and are similar in size. If the head of a queue
does not fit, the requests behind it are unlikely to fit either. Five kinds of request have separate queues so that
they do not block others: requests that should not return to the endpoint of their failed attempt, requests with long
prompts that wait for the long lane, requests from a member that cannot reach an endpoint, requests of each LoRA
adapter, and requests that may overflow.
"""

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from headgate.core.counters import FairQueueCounter
from headgate.core.queues.fair_queue import IDLE, PASSED, FairQueue
from headgate.core.queues.min_shares import MinShares
from headgate.core.queues.queued_work import QueuedWork
from headgate.core.request_state import Request
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.shared_engines import PoolGroups
from headgate.model.units import ClassName, Instant, PoolName, TenantId

_STALE_ENTRIES_MAX: Final = 64


_QueueKey = tuple[tuple[PoolName, ...], EndpointRecord | None, bool, str, str, str]
"""Properties that all requests in one queue of a tenant share. In order:

- the pools, including the overflow pools for which the requests wait;
- the endpoint to avoid;
- whether the prompt is long;
- the class if slots are reserved for it or an operator holds it, the class and the tenant if the requests may overflow,
  because their budget may not cover that, otherwise empty;
- the cell member that holds the requests if there is an endpoint that the member cannot use, otherwise empty;
- the LoRA adapter, which may have to wait for a slot of its own, otherwise empty.

A plain tuple, because each request needs one and a named tuple takes much longer to create.
"""


class Backlog:
    """All queued requests."""

    __slots__ = (
        *("_bands", "_groups", "_min_shares", "_per_class", "_per_tenant", "held", "held_classes", "length"),
        *("waiting_adapters", "work"),
    )

    def __init__(self, min_shares: MinShares, groups: PoolGroups) -> None:
        self._bands: dict[int, _Band] = {}
        """Bands by number, highest priority first."""
        self._min_shares, self._groups = min_shares, groups
        self._per_class: dict[ClassName, int] = {}
        self._per_tenant: dict[tuple[ClassName, TenantId], int] = {}
        self.held: dict[tuple[PoolName, ClassName], int] = {}
        """Number of held requests by pool and class. They have a separate limit (`held_requests_max`)."""
        self.work = QueuedWork(groups)
        self.waiting_adapters: dict[str, int] = {}
        """Number of queued requests of each LoRA adapter."""
        self.length = 0
        self.held_classes: tuple[ClassName, ...] = ()
        """Classes that an operator holds. They have separate queues so that they do not block others."""

    def regroup(self, groups: PoolGroups) -> None:
        """Applies new groups of pools that share engines. A group continues with the charges of its first pool."""
        waiting = [request for band in self._bands.values() for request in band.requests()]
        before = self._bands
        self._groups, self.work = groups, QueuedWork(groups)
        self._bands = {number: _Band(groups) for number in before}
        for number, band in self._bands.items():
            band.take_charges(before[number].fair_queues)
        for request in sorted(waiting, key=lambda each: each.sequence):
            self._bands[request.service_class.band].push(request, self.held_classes)
            self.work.add(request)

    def is_waited_for(self, pool: PoolName) -> bool:
        """Returns whether any request waits for the pool."""
        return any(band.waiting_for.get(pool) for band in self._bands.values())

    def queued_in_class(self, name: ClassName) -> int:
        """Returns the number of requests that count toward the class's queue limit."""
        return self._per_class.get(name, 0)

    def waiting_in_class(self, name: ClassName) -> int:
        """Returns the number of waiting requests of the class, including held ones."""
        count = self._per_class.get(name, 0)
        for (_, service_class), held in self.held.items():
            count += held if service_class == name else 0
        return count

    def held_for(self, pool: PoolName) -> int:
        return sum(count for (name, _), count in self.held.items() if name == pool)

    def queued_of_tenant(self, name: ClassName, tenant: TenantId) -> int:
        return self._per_tenant.get((name, tenant), 0)

    def queued_by_tenant(self) -> dict[tuple[ClassName, TenantId], int]:
        """Returns the queue length of each class and tenant, as a copy that callers can read at any time."""
        return dict(self._per_tenant)

    def push(self, request: Request) -> None:
        number = request.service_class.band
        band = self._bands.get(number) or self._add_band(number)
        band.push(request, self.held_classes)
        self._count(request, 1)
        self.work.add(request)

    def remove(self, request: Request) -> None:
        self._bands[request.service_class.band].remove(request)
        self.uncount(request)

    def uncount(self, request: Request) -> None:
        """Stops counting a request that leaves the backlog."""
        self._count(request, -1)
        self.work.remove(request)

    def add_overflow(self, request: Request, pools: tuple[PoolName, ...]) -> None:
        """Lets a queued request wait for these overflow pools, too."""
        self._bands[request.service_class.band].add_overflow(request, pools, self.held_classes)

    def requeue(self, request: Request) -> None:
        """Moves a request to another queue after the endpoints that it may use have changed, if it is queued."""
        # After a policy change or a takeover, there is no band until a request is queued in it.
        if (band := self._bands.get(request.service_class.band)) is not None:
            band.requeue(request, self.held_classes)

    def offer(
        self,
        pool: PoolName,
        ask: Callable[[Request], int | None],
        is_blocked: Callable[[str], bool],
        closed: tuple[int, ...] = (),
    ) -> bool:
        """Offers a slot in `pool` to the head of each queue, in order, until one accepts it.

        If the request accepts the slot, `ask` calls `uncount` and returns the charge for the tenant. `is_blocked`
        returns whether no request of a LoRA adapter can accept it. Bands in `closed` are skipped. Returns whether any
        request accepted the slot.
        """
        for number in self._min_shares.order(pool, self._bands):
            band = self._bands[number]
            if number in closed or not band.waiting_for.get(pool):
                continue
            if (request := band.offer(pool, ask, is_blocked)) is not None:
                if self._min_shares.enabled:
                    self._min_shares.record_served(pool, number, request.cost_ns, self._waiting_bands(pool))
                return True
        return False

    def offer_to_group(
        self,
        pools: tuple[PoolName, ...],
        ask: Callable[[Request], int | None],
        is_blocked: Callable[[str], bool],
        closed: set[int],
    ) -> bool:
        """Like `offer`, for a slot on an engine that these pools share."""
        group = pools[0]
        for number in self._min_shares.order(group, self._bands, pools):
            band = self._bands[number]
            if number in closed or not any(band.waiting_for.get(each) for each in pools):
                continue
            if (request := band.offer_to_group(pools, ask, is_blocked)) is not None:
                if self._min_shares.enabled:
                    waiting = dict.fromkeys(number for each in pools for number in self._waiting_bands(each))
                    self._min_shares.record_served(group, number, request.cost_ns, waiting)
                return True
        return False

    def may_use_slots(self, band: int, pool: PoolName) -> bool:
        """Returns whether requests of the band may use free slots in the pool now, as its minimum share allows."""
        group = self._groups.get(pool, ())
        return bool(self._min_shares.order(group[0] if group else pool, (band,), group))

    def fair_queue(self, band: int, pool: PoolName) -> FairQueue:
        """Returns the order of the tenants in this band of the pool."""
        return (self._bands.get(band) or self._add_band(band)).fair_queue(pool)

    def settle(self, band: int, pool: PoolName, account: TenantId, difference: int) -> None:
        """Corrects a tenant's charge for earlier work."""
        if difference and band in self._bands:
            self._bands[band].settle(pool, account, difference)

    def fair_queue_counters(self) -> tuple[FairQueueCounter, ...]:
        """Returns the fairness charges of all tenants, for a successor."""
        return tuple(counter for number, band in self._bands.items() for counter in band.fair_queue_counters(number))

    def restore(self, counter: FairQueueCounter) -> None:
        band = self._bands.get(counter.band) or self._add_band(counter.band)
        band.restore(counter)

    def _waiting_bands(self, pool: PoolName) -> list[int]:
        return [number for number, band in self._bands.items() if band.waiting_for.get(pool)] if self.length else []

    def _add_band(self, number: int) -> "_Band":
        self._bands[number] = band = _Band(self._groups)
        self._bands = {each: self._bands[each] for each in sorted(self._bands)}
        return band

    def _count(self, request: Request, change: int) -> None:
        self.length += change
        if request.adapter:
            self._count_adapter(request.adapter, change)
        name, tenant = request.service_class.name, request.ticket.tenant
        if request.held_for is not None:
            self._count_held((request.held_for, name), change)
            return
        self._per_class[name] = self._per_class.get(name, 0) + change
        key = (name, tenant)
        left = self._per_tenant.get(key, 0) + change
        if left:
            self._per_tenant[key] = left
        else:
            del self._per_tenant[key]

    def _count_adapter(self, adapter: str, change: int) -> None:
        left = self.waiting_adapters.get(adapter, 0) + change
        if left:
            self.waiting_adapters[adapter] = left
        else:
            del self.waiting_adapters[adapter]

    def _count_held(self, key: tuple[PoolName, ClassName], change: int) -> None:
        left = self.held.get(key, 0) + change
        if left:
            self.held[key] = left
        else:
            del self.held[key]


class _Band:
    __slots__ = ("_groups", "_queue_of", "_waiting", "fair_queues", "waiting_for")

    def __init__(self, groups: PoolGroups) -> None:
        self._groups = groups
        self._waiting: dict[TenantId, dict[_QueueKey, _TenantQueue]] = {}
        """Queues of each tenant."""
        self._queue_of: dict[int, _TenantQueue] = {}
        """Queue of each request, by sequence number."""
        self.waiting_for: dict[PoolName, int] = {}
        """Number of requests that wait for each pool."""
        self.fair_queues: dict[PoolName, FairQueue] = {}
        """Order of the tenants by pool, or by the first pool of a group."""

    def requests(self) -> Iterator[Request]:
        return (request for lines in self._waiting.values() for line in lines.values() for request in line.requests())

    def take_charges(self, before: Mapping[PoolName, FairQueue]) -> None:
        """Takes over the charges of a band that had other groups. Its requests are pushed afterwards."""
        for pool, turns in before.items():
            if pool not in self._groups or self._groups[pool][0] == pool:
                turns.clear()
                self.fair_queues[pool] = turns

    def fair_queue_counters(self, number: int) -> Iterator[FairQueueCounter]:
        return (turns.counter(number, pool) for pool, turns in self.fair_queues.items())

    def restore(self, counter: FairQueueCounter) -> None:
        turns = self.fair_queues[counter.pool] = FairQueue()
        turns.restore(counter)

    def push(self, request: Request, held_classes: tuple[ClassName, ...]) -> None:
        self._wait_for(self._enqueue(request, held_classes), request.account)

    def _wait_for(self, pools: tuple[PoolName, ...], account: TenantId) -> None:
        for pool in pools:
            self.waiting_for[pool] = self.waiting_for.get(pool, 0) + 1
            self.fair_queue(pool).add(account)

    def fair_queue(self, pool: PoolName) -> FairQueue:
        if self._groups and pool in self._groups:
            pool = self._groups[pool][0]
        if (turns := self.fair_queues.get(pool)) is None:
            turns = self.fair_queues[pool] = FairQueue()
        return turns

    def requeue(self, request: Request, held_classes: tuple[ClassName, ...]) -> None:
        if request.sequence in self._queue_of:
            self._dequeue(request)
            self._enqueue(request, held_classes)

    def add_overflow(self, request: Request, pools: tuple[PoolName, ...], held_classes: tuple[ClassName, ...]) -> None:
        self._dequeue(request)
        request.overflow_pools = pools
        self._enqueue(request, held_classes)
        self._wait_for(pools, request.account)

    def _enqueue(self, request: Request, held_classes: tuple[ClassName, ...]) -> tuple[PoolName, ...]:
        """Adds the request to a queue of its tenant. Returns the pools for which it waits."""
        if (lines := self._waiting.get(request.account)) is None:
            lines = self._waiting[request.account] = {}
        places = _queue_key(request, held_classes)
        if (line := lines.get(places)) is None:
            line = lines[places] = _TenantQueue(places)
        line.push(request)
        self._queue_of[request.sequence] = line
        return line.pools

    def _dequeue(self, request: Request) -> tuple[PoolName, ...]:
        """Removes the request from its queue. Returns the pools for which it has waited."""
        line = self._queue_of.pop(request.sequence)
        del line.waiting[request.sequence]
        if not line.waiting:
            lines = self._waiting[request.account]
            if len(lines) == 1:
                del self._waiting[request.account]
            else:
                del lines[line.key]
        return line.pools

    def remove(self, request: Request) -> None:
        for pool in self._dequeue(request):
            self.waiting_for[pool] = left = self.waiting_for[pool] - 1
            if not left and self._group_is_idle(pool):
                self.fair_queue(pool).clear()

    def _group_is_idle(self, pool: PoolName) -> bool:
        """Returns whether no request waits for another pool of the group."""
        return not self._groups or not any(self.waiting_for.get(each) for each in self._groups.get(pool, ()))

    def settle(self, pool: PoolName, account: TenantId, difference: int) -> None:
        if self._groups and pool in self._groups:
            pool = self._groups[pool][0]
        if pool in self.fair_queues:
            self.fair_queues[pool].settle(account, difference)

    def offer(
        self, pool: PoolName, ask: Callable[[Request], int | None], is_blocked: Callable[[str], bool]
    ) -> Request | None:
        turns = self.fair_queues.get(pool)
        taken: Request | None = None

        def ask_tenant(account: TenantId) -> int:
            nonlocal taken
            heads = self._heads(account, pool, is_blocked)
            for head in heads:
                if (charge := ask(head)) is not None:
                    taken = head
                    return charge
            return PASSED if heads or self._waits(account, pool) else IDLE

        if turns is not None and turns.offer(ask_tenant) and taken is not None:
            self.remove(taken)
        return taken

    def offer_to_group(
        self, pools: tuple[PoolName, ...], ask: Callable[[Request], int | None], is_blocked: Callable[[str], bool]
    ) -> Request | None:
        taken: Request | None = None

        def ask_tenant(account: TenantId) -> int:
            nonlocal taken
            heads = dict.fromkeys(head for pool in pools for head in self._heads(account, pool, is_blocked))
            for head in sorted(heads, key=_precedence):
                if (charge := ask(head)) is not None:
                    taken = head
                    return charge
            return PASSED if heads or any(self._waits(account, pool) for pool in pools) else IDLE

        if self.fair_queue(pools[0]).offer(ask_tenant) and taken is not None:
            self.remove(taken)
        return taken

    def _waits(self, account: TenantId, pool: PoolName) -> bool:
        """Returns whether the tenant has queued requests that may use this pool."""
        return any(pool in line.pools for line in self._waiting.get(account, {}).values())

    def _heads(self, account: TenantId, pool: PoolName, is_blocked: Callable[[str], bool]) -> list[Request]:
        """Returns the heads of the tenant's queues that may use this pool, in dispatch order.

        Queues of blocked adapters are left out, because there may be many.
        """
        lines = self._waiting.get(account)
        if lines is None:
            return []
        heads: list[Request] = []
        for line in lines.values():
            if pool in line.pools and not (line.adapter and is_blocked(line.adapter)):
                heads.append(line.head())  # noqa: PERF401 - A comprehension would be one more function call.
        return heads if len(heads) == 1 else sorted(heads, key=_precedence)


class _TenantQueue:
    """Requests of one tenant that may use the same endpoints, in dispatch order."""

    __slots__ = ("_heap", "adapter", "key", "pools", "waiting")

    def __init__(self, key: _QueueKey) -> None:
        self.key = key
        self.pools, self.adapter = key[0], key[5]
        self._heap: list[tuple[Instant, int, Request]] = []
        """Heap of (due time, sequence number, request). Stale entries are dropped when they reach the top."""
        self.waiting: dict[int, Request] = {}
        """Requests by sequence number."""

    def push(self, request: Request) -> None:
        self.waiting[request.sequence] = request
        heappush(self._heap, (request.due, request.sequence, request))
        if len(self._heap) > 2 * len(self.waiting) + _STALE_ENTRIES_MAX:
            self._heap = [(each.due, each.sequence, each) for each in self.waiting.values()]
            heapify(self._heap)

    def requests(self) -> Iterator[Request]:
        return iter(self.waiting.values())

    def head(self) -> Request:
        heap = self._heap
        while heap[0][1] not in self.waiting:
            heappop(heap)
        return heap[0][2]


def _queue_key(request: Request, apart: tuple[ClassName, ...]) -> _QueueKey:
    service_class = request.service_class
    pools = request.pools
    own = service_class.reserve_percent or service_class.name in apart
    separate: str = service_class.name if own else ""
    if request.overflow_pools:
        pools += request.overflow_pools
        separate = f"{service_class.name} {request.ticket.tenant}"
    return pools, request.avoid, request.long_prompt, separate, request.isolated_member, request.adapter


def _precedence(request: Request) -> tuple[bool, Instant, int]:
    return (request.avoid is None, request.due, request.sequence)
