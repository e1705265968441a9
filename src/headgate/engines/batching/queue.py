"""Which inputs are asked together next, and when?

Told what happened and when, it answers with the batches to send: no clock, no I/O. Inputs wait by what may be joined
(`key`), in each such group by tenant, in each tenant in the order of arrival. A group is sent

- when as many wait as a batch may hold, in number or in tokens,
- when exactly a preferred number waits, so that nobody stays behind,
- when the first of them has waited for company as long as it may,
- when nothing is in flight here: an idle engine never waits for work.

While as many calls run as may none of this holds, but for a group with a request that has waited for as long as it can
bear: a bound on calls is there to make batches large, and not worth more than a promise.

A batch is filled by turns, one input of each tenant after the other, and of each tenant's requests likewise. So a list
of a thousand inputs fills the places that others leave, and never stands before them, be they of the same tenant. Of
one request only so many inputs and tokens are out at a time, and none while its answer is not being read; these rest
here and do not count as waiting.

A batch that the engine refuses is divided between its requests and asked again in halves, until the one is found that
was meant: an input that an engine cannot take must fail nobody else's. A refusal costs an engine next to nothing; a
failure may not, so after one the halves are asked only as long as there is credit, which good answers earn. A tenant
whose input spoiled a batch is joined with nobody else's for a while.

What is not ideal: groups are looked at one after the other, so many requests that all differ in their parameters cost
time in proportion to their number, which the endpoint's places bound.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from headgate.model.policy import BatchRules
from headgate.model.units import Duration, Instant, TenantId

CREDIT_MAX: Final = 1_000
CREDIT_PER_ANSWER: Final = 20
CREDIT_PER_CALL: Final = 100
"""What may be asked again after failures: ten calls, and one more for each five batches that were answered."""
SHUNNED_REQUESTS: Final = 32
"""So many further requests of a tenant are joined with its own only, after one of them has spoiled a batch."""
SHUNNED_TENANTS_MAX: Final = 1_024


class Input(NamedTuple):
    """One input of a request, by the request's number and its own place in there."""

    request: int
    place: int


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    inputs: tuple[Input, ...]
    """Those of one request stand in their order."""
    waits_ns: tuple[Duration, ...] = ()
    """How long each request waited whose first input is among these."""
    again: bool = False
    """Whether it is part of one that was refused or failed."""

    def requests(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(each.request for each in self.inputs))


class _Bounds(NamedTuple):
    """What of one request may be out at a time."""

    inputs: int
    tokens: int


class _Request:
    __slots__ = (
        "_sums",
        "arrived",
        "due",
        "group",
        "late",
        "next",
        "number",
        "out",
        "out_tokens",
        "resting",
        "tenant",
        "total",
    )

    def __init__(self, number: int, tenant: TenantId, group: "_Group", tokens: Iterable[int]) -> None:
        self.number = number
        self.tenant = tenant
        self.group = group
        self._sums = (0, *accumulate(tokens))
        self.total = len(self._sums) - 1
        self.next = 0
        """The place of its first input that has not been sent."""
        self.out = self.out_tokens = 0
        """How many of its inputs are in flight, and how long they are."""
        self.resting = False
        """Whether its answer is not being read, so that no more is to be asked."""
        self.arrived = self.due = Instant(0)
        self.late: Instant | None = None
        """From when on it goes whatever else runs."""

    def ready(self, most: _Bounds) -> int:
        """How many of its inputs may be sent. One always may when none is out, however long it is."""
        if self.resting:
            return 0
        fit = bisect_right(self._sums, self._sums[self.next] + most.tokens - self.out_tokens) - 1 - self.next
        return max(0 if self.out else 1, min(fit, most.inputs - self.out)) if self.next < self.total else 0

    def send(self) -> int:
        """The next of its inputs goes; gives its place."""
        self.out += 1
        self.out_tokens += self.tokens(self.next, 1)
        self.next += 1
        return self.next - 1

    def come_back(self, places: Iterable[int]) -> None:
        for place in places:
            self.out -= 1
            self.out_tokens -= self.tokens(place, 1)

    def tokens(self, first: int, count: int) -> int:
        return self._sums[first + count] - self._sums[first]


_Key = tuple[bytes, TenantId | int | None]
"""What may be joined; of one tenant alone, or of one request, where that stands beside it."""


class _Group:
    """Requests that may be asked together."""

    __slots__ = ("due", "inputs", "key", "late", "tenants", "tokens")

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.tenants: dict[TenantId, deque[_Request]] = {}
        """Whose turn it is stands first."""
        self.inputs = 0
        self.tokens = 0
        """What may be sent of all of them."""
        self.due: Instant | None = None
        """When the first of those must go that may be sent."""
        self.late: Instant | None = None
        """When the first of them must that has had nothing sent, whatever else runs."""

    def count(self, request: _Request, most: _Bounds) -> None:
        """It is one of those who may be sent, as far as it may."""
        ready = request.ready(most)
        if not ready:
            return
        self.inputs += ready
        self.tokens += request.tokens(request.next, ready)
        self.due = request.due if self.due is None else min(self.due, request.due)
        if request.late is not None and request.next == 0:
            self.late = request.late if self.late is None else min(self.late, request.late)


class BatchQueue:
    def __init__(self, rules: BatchRules) -> None:
        self._rules = rules
        self._groups: dict[_Key, _Group] = {}
        self._requests: dict[int, _Request] = {}
        """Those with inputs that are not sent yet, or in flight."""
        self._calls: dict[int, Batch] = {}
        self._shunned: dict[TenantId, int] = {}
        self._credit = CREDIT_MAX
        self._numbers = 0

    def __len__(self) -> int:
        """How many inputs have yet to be sent."""
        return sum(request.total - request.next for request in self._requests.values())

    @property
    def calls(self) -> int:
        return len(self._calls)

    @property
    def rules(self) -> BatchRules:
        return self._rules

    # What happened

    def change(self, rules: BatchRules) -> None:
        """Other rules; how long those may wait who are here already stays as it was."""
        self._rules = rules
        for group in list(self._groups.values()):
            self._recount(group)

    def add(
        self,
        tenant: TenantId,
        key: bytes,
        tokens: Iterable[int],
        *,
        hold_ns: Duration,
        now: Instant,
        patience_ns: Duration | None = None,
        alone: bool = False,
    ) -> int:
        """A request has come that may be held for so long. Gives the number by which it goes here.

        `patience_ns` is what it bears to wait while other calls run; None where that has no end. Where it is `alone` it
        is joined with none, and waits for none.
        """
        self._numbers += 1
        shunned = self._shunned.get(tenant)
        if shunned is not None:
            self._shun(tenant, shunned - 1)
        group = self._group((key, self._numbers if alone else None if shunned is None else tenant))
        request = _Request(self._numbers, tenant, group, tokens)
        request.arrived = now
        request.due = Instant(now if alone else now + max(0, min(hold_ns, self._rules.delay_ns_max)))
        request.late = None if patience_ns is None else Instant(max(request.due, now + patience_ns))
        self._requests[request.number] = request
        group.tenants.setdefault(tenant, deque()).append(request)
        group.count(request, self._out_max)
        return request.number

    def leave(self, number: int) -> tuple[int, ...]:
        """Nobody waits for this request any more. Gives the calls that nobody waits for either."""
        request = self._requests.pop(number, None)
        if request is None:
            return ()
        self._remove(request)
        return tuple(
            batch.number
            for batch in self._calls.values()
            if number in (requests := batch.requests()) and not any(each in self._requests for each in requests)
        )

    def rest(self, number: int, *, resting: bool) -> None:
        """Whether this request's answer is unread, so that nothing more is to be asked for it."""
        request = self._requests.get(number)
        if request is not None and request.resting != resting:
            request.resting = resting
            if request.next < request.total:
                self._recount(request.group)

    def answered(self, batch: Batch) -> None:
        """The call has ended well."""
        self._credit = min(CREDIT_MAX, self._credit + CREDIT_PER_ANSWER)
        self._end(batch)

    def ended(self, batch: Batch) -> None:
        """The call has ended, and what it asked for is not asked again."""
        self._end(batch)

    def spoiled(self, batch: Batch, *, refused: bool) -> tuple[Batch, ...]:
        """The call was refused, or failed: the halves in which to ask again, or none if it is to stay at that.

        Half by half this comes to the one request that has spoiled the batch for the others.
        """
        del self._calls[batch.number]
        asked = batch.requests()
        wanted = [number for number in asked if number in self._requests]
        cost = 0 if refused else 2 * CREDIT_PER_CALL
        if len(asked) < 2 or not wanted or self._credit < cost:
            if batch.again and len(asked) == 1 and wanted:
                self._shun(self._requests[wanted[0]].tenant, SHUNNED_REQUESTS)
            self._come_back(batch)
            return ()
        self._credit -= cost
        middle = (len(wanted) + 1) // 2
        halves = (set(wanted[:middle]), set(wanted[middle:]))
        return tuple(
            self._call(tuple(each for each in batch.inputs if each.request in half), again=True)
            for half in halves
            if half
        )

    # What to do

    def next(self, now: Instant) -> list[Batch]:
        """The batches to send at this moment."""
        batches: list[Batch] = []
        while (group := self._due_group(now)) is not None:
            batches.append(self._fill(group, now))
        return batches

    def wakeup(self) -> Instant | None:
        """When to ask again if nothing happens until then."""
        moments = (group.due if self._free else group.late for group in self._groups.values())
        return min((moment for moment in moments if moment is not None), default=None)

    # Choosing

    @property
    def _free(self) -> bool:
        return self._rules.calls_max is None or len(self._calls) < self._rules.calls_max

    def _due_group(self, now: Instant) -> _Group | None:
        """Of the groups that are to be sent, the one whose first has waited longest."""
        found: _Group | None = None
        for group in self._groups.values():
            if group.due is None or not self._is_due(group, now):
                continue
            if found is None or found.due is None or group.due < found.due:
                found = group
        return found

    def _is_due(self, group: _Group, now: Instant) -> bool:
        rules = self._rules
        if not self._free:
            return group.late is not None and group.late <= now
        return (
            group.inputs >= rules.inputs_max
            or group.tokens >= rules.tokens_max
            or group.inputs in rules.preferred
            or not self._calls
            or (group.due is not None and group.due <= now)
        )

    def _fill(self, group: _Group, now: Instant) -> Batch:
        """One input of each tenant in turn, and of its requests in turn, until the batch is full or nobody is left."""
        taken: dict[int, list[Input]] = {}
        waits: list[Duration] = []
        count = tokens = 0
        turns = deque(group.tenants)
        while turns and count < self._rules.inputs_max:
            tenant = turns.popleft()
            request = self._first_ready(group.tenants[tenant])
            if request is None:
                continue
            size = request.tokens(request.next, 1)
            if count and tokens + size > self._rules.tokens_max:
                turns.appendleft(tenant)
                break
            if request.number not in taken and request.next == 0:
                waits.append(Duration(now - request.arrived))
            taken.setdefault(request.number, []).append(Input(request.number, request.send()))
            count, tokens = count + 1, tokens + size
            group.tenants[tenant].remove(request)
            if request.next < request.total:
                group.tenants[tenant].append(request)
            turns.append(tenant)
        # Whoever would have been next goes first in the next batch.
        group.tenants = {tenant: group.tenants[tenant] for tenant in dict.fromkeys((*turns, *group.tenants))}
        self._recount(group)
        return self._call(tuple(each for inputs in taken.values() for each in inputs), tuple(waits))

    def _first_ready(self, requests: Iterable[_Request]) -> _Request | None:
        most = self._out_max
        return next((request for request in requests if request.ready(most)), None)

    @property
    def _out_max(self) -> _Bounds:
        rules = self._rules
        return _Bounds(rules.inputs_max * rules.parallel, rules.tokens_max * rules.parallel)

    # Keeping count

    def _call(self, inputs: tuple[Input, ...], waits_ns: tuple[Duration, ...] = (), *, again: bool = False) -> Batch:
        self._numbers += 1
        batch = self._calls[self._numbers] = Batch(self._numbers, inputs, waits_ns, again)
        return batch

    def _end(self, batch: Batch) -> None:
        del self._calls[batch.number]
        self._come_back(batch)

    def _come_back(self, batch: Batch) -> None:
        """Its inputs are in flight no more, and others of the same requests may be."""
        for number in batch.requests():
            request = self._requests.get(number)
            if request is None:
                continue
            request.come_back(each.place for each in batch.inputs if each.request == number)
            if request.next < request.total:
                self._recount(request.group)
            elif not request.out:
                del self._requests[number]

    def _group(self, key: _Key) -> _Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key)
        return group

    def _remove(self, request: _Request) -> None:
        waiting = request.group.tenants.get(request.tenant)
        if waiting is not None and request in waiting:
            waiting.remove(request)
            self._recount(request.group)

    def _recount(self, group: _Group) -> None:
        most = self._out_max
        for tenant in [tenant for tenant, waiting in group.tenants.items() if not waiting]:
            del group.tenants[tenant]
        group.inputs = group.tokens = 0
        group.due = group.late = None
        for waiting in group.tenants.values():
            for request in waiting:
                group.count(request, most)
        if not group.tenants:
            del self._groups[group.key]

    def _shun(self, tenant: TenantId, requests: int) -> None:
        self._shunned.pop(tenant, None)
        if requests > 0:
            self._shunned[tenant] = requests
            if len(self._shunned) > SHUNNED_TENANTS_MAX:
                # Whoever has been there longest is joined with others again.
                del self._shunned[next(iter(self._shunned))]
