"""Decides which inputs are sent together, and when.

The queue receives events with their time and returns the batches to send. It has no clock and no I/O. Inputs that may
be joined (same `key`) wait in one group, separated by tenant and in order of arrival within each tenant. A group is
sent when

- it has as many inputs or tokens as a batch may hold,
- its number of inputs is one of the preferred sizes, so that no input is left over,
- its first request has been held for its maximum delay, or
- no call is in flight, because an idle engine never waits for work.

While the maximum number of calls is in flight, a group is sent only if one of its requests has used up its wait budget.
The limit on calls exists to make batches larger, and latency objectives take precedence over it.

A batch is filled round-robin across tenants, and across each tenant's requests. A list of a thousand inputs therefore
uses only the space that other requests leave and never delays them, not even requests from the same tenant. The inputs
and tokens in flight are limited per request. While its response is not being read, a request is paused: it sends
nothing and does not count as waiting.

A batch that the engine rejects is split by request and sent again in halves, until the request that caused the
rejection is found, so that an invalid input does not fail other requests. A rejection costs an engine almost nothing,
but a failure can be expensive. After a failure the halves are sent only while there is credit, which successful calls
earn. A tenant whose input failed a batch is temporarily excluded from batches with other tenants.

Known limitation: groups are scanned one by one, so the cost grows with the number of requests that have different
parameters. The endpoint's slots limit that number.
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
"""Credit needed to resend a call after a failure.

There is credit for ten calls, plus one for every five successful batches.
"""
EXCLUDED_REQUESTS: Final = 32
"""After one of a tenant's requests has failed a batch, this many of its requests are batched only with its own."""
EXCLUDED_TENANTS_MAX: Final = 1_024


class Input(NamedTuple):
    """One input: its request's number and its index within the request."""

    request: int
    place: int


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    inputs: tuple[Input, ...]
    """Inputs of the batch. Those of one request are in their original order."""
    waits_ns: tuple[Duration, ...] = ()
    """Batch wait of each request whose first input is in this batch."""
    is_retry: bool = False
    """Whether the batch is part of one that was rejected or failed."""

    def requests(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(each.request for each in self.inputs))


class _Bounds(NamedTuple):
    """Maximum number of inputs and tokens that one request may have in flight."""

    inputs: int
    tokens: int


class _Request:
    __slots__ = (
        "_sums",
        "arrived",
        "due_at",
        "group",
        "in_flight",
        "in_flight_tokens",
        "latest_at",
        "next",
        "number",
        "paused",
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
        """Index of the first input that has not been sent."""
        self.in_flight = self.in_flight_tokens = 0
        """Number of inputs in flight and their total tokens."""
        self.paused = False
        """Whether the response is currently not being read, so that no more inputs may be sent."""
        self.arrived = self.due_at = Instant(0)
        self.latest_at: Instant | None = None
        """Time at which the request is sent even if the maximum number of calls is in flight."""

    def ready(self, most: _Bounds) -> int:
        """Returns how many inputs may be sent. If none is in flight, at least one may, regardless of its size."""
        if self.paused:
            return 0
        fit = bisect_right(self._sums, self._sums[self.next] + most.tokens - self.in_flight_tokens) - 1 - self.next
        return max(0 if self.in_flight else 1, min(fit, most.inputs - self.in_flight)) if self.next < self.total else 0

    def send(self) -> int:
        """Marks the next input as sent and returns its index."""
        self.in_flight += 1
        self.in_flight_tokens += self.tokens(self.next, 1)
        self.next += 1
        return self.next - 1

    def release(self, places: Iterable[int]) -> None:
        for place in places:
            self.in_flight -= 1
            self.in_flight_tokens -= self.tokens(place, 1)

    def tokens(self, first: int, count: int) -> int:
        return self._sums[first + count] - self._sums[first]


_Key = tuple[bytes, TenantId | int | None]
"""Key shared by inputs that may be joined, and the tenant or request number if the group is limited to one."""


class _Group:
    """Requests that may be sent together."""

    __slots__ = ("due_at", "inputs", "key", "latest_at", "tenants", "tokens")

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.tenants: dict[TenantId, deque[_Request]] = {}
        """Requests by tenant. The tenant whose turn is next comes first."""
        self.inputs = 0
        self.tokens = 0
        """Tokens of the inputs that may be sent."""
        self.due_at: Instant | None = None
        """Earliest due time of the requests that may be sent."""
        self.latest_at: Instant | None = None
        """Earliest `latest_at` of the requests for which nothing has been sent yet."""

    def count(self, request: _Request, most: _Bounds) -> None:
        """Adds the inputs of a request that may be sent."""
        ready = request.ready(most)
        if not ready:
            return
        self.inputs += ready
        self.tokens += request.tokens(request.next, ready)
        self.due_at = request.due_at if self.due_at is None else min(self.due_at, request.due_at)
        if request.latest_at is not None and request.next == 0:
            self.latest_at = request.latest_at if self.latest_at is None else min(self.latest_at, request.latest_at)


class BatchQueue:
    def __init__(self, rules: BatchRules) -> None:
        self._rules = rules
        self._groups: dict[_Key, _Group] = {}
        self._requests: dict[int, _Request] = {}
        """Requests with inputs that are unsent or in flight."""
        self._calls: dict[int, Batch] = {}
        self._excluded: dict[TenantId, int] = {}
        self._credit = CREDIT_MAX
        self._numbers = 0

    def __len__(self) -> int:
        """Number of inputs that have not been sent yet."""
        return sum(request.total - request.next for request in self._requests.values())

    @property
    def calls(self) -> int:
        return len(self._calls)

    @property
    def rules(self) -> BatchRules:
        return self._rules

    def wait_budget_ns(self, targets: Iterable[Duration | None]) -> Duration | None:
        """Returns how long a request with these latency targets may be held. None if it has no target."""
        percent = self._rules.delay_ttft_percent_max
        return min((Duration(percent * target // 100) for target in targets if target is not None), default=None)

    # Events

    def set_rules(self, rules: BatchRules) -> None:
        """Applies new rules. Requests that are already queued keep their due times."""
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
        wait_budget_ns: Duration | None = None,
        unbatched: bool = False,
    ) -> int:
        """Adds a request that may be held for `hold_ns`, and returns its number in this queue.

        `wait_budget_ns` is how long the request may wait while the maximum number of calls is in flight. None means no
        limit. A request that is `unbatched` is neither joined with others nor held.
        """
        self._numbers += 1
        shunned = self._excluded.get(tenant)
        if shunned is not None:
            self._exclude(tenant, shunned - 1)
        group = self._group((key, self._numbers if unbatched else None if shunned is None else tenant))
        request = _Request(self._numbers, tenant, group, tokens)
        request.arrived = now
        request.due_at = Instant(now if unbatched else now + max(0, min(hold_ns, self._rules.delay_ns_max)))
        request.latest_at = None if wait_budget_ns is None else Instant(max(request.due_at, now + wait_budget_ns))
        self._requests[request.number] = request
        group.tenants.setdefault(tenant, deque()).append(request)
        group.count(request, self._in_flight_max)
        return request.number

    def remove(self, number: int) -> tuple[int, ...]:
        """Removes a request. Returns the calls in flight that serve no other request."""
        request = self._requests.pop(number, None)
        if request is None:
            return ()
        self._remove(request)
        return tuple(
            batch.number
            for batch in self._calls.values()
            if number in (requests := batch.requests()) and not any(each in self._requests for each in requests)
        )

    def set_paused(self, number: int, *, paused: bool) -> None:
        """Pauses or resumes a request. A request is paused while its response is not being read."""
        request = self._requests.get(number)
        if request is not None and request.paused != paused:
            request.paused = paused
            if request.next < request.total:
                self._recount(request.group)

    def succeed(self, batch: Batch) -> None:
        """Ends a successful call."""
        self._credit = min(CREDIT_MAX, self._credit + CREDIT_PER_ANSWER)
        self._end(batch)

    def finish(self, batch: Batch) -> None:
        """Ends a call whose inputs are not sent again."""
        self._end(batch)

    def split_failed(self, batch: Batch, *, rejected: bool) -> tuple[Batch, ...]:
        """Ends a call that was rejected or failed. Returns the halves to resend, if any.

        Repeated splitting ends at the one request that caused the failure.
        """
        del self._calls[batch.number]
        asked = batch.requests()
        wanted = [number for number in asked if number in self._requests]
        cost = 0 if rejected else 2 * CREDIT_PER_CALL
        if len(asked) < 2 or not wanted or self._credit < cost:
            if batch.is_retry and len(asked) == 1 and wanted:
                self._exclude(self._requests[wanted[0]].tenant, EXCLUDED_REQUESTS)
            self._release(batch)
            return ()
        self._credit -= cost
        middle = (len(wanted) + 1) // 2
        halves = (set(wanted[:middle]), set(wanted[middle:]))
        return tuple(
            self._call(tuple(each for each in batch.inputs if each.request in half), again=True)
            for half in halves
            if half
        )

    # Decisions

    def next(self, now: Instant) -> list[Batch]:
        """Returns the batches to send now."""
        batches: list[Batch] = []
        while (group := self._due_group(now)) is not None:
            batches.append(self._fill(group, now))
        return batches

    def wakeup(self) -> Instant | None:
        """Returns when to call `next` again if no event occurs first."""
        moments = (group.due_at if self._has_free_call else group.latest_at for group in self._groups.values())
        return min((moment for moment in moments if moment is not None), default=None)

    # Selection

    @property
    def _has_free_call(self) -> bool:
        return self._rules.calls_max is None or len(self._calls) < self._rules.calls_max

    def _due_group(self, now: Instant) -> _Group | None:
        """Returns the group with the earliest due time among those to send now."""
        found: _Group | None = None
        for group in self._groups.values():
            if group.due_at is None or not self._is_due(group, now):
                continue
            if found is None or found.due_at is None or group.due_at < found.due_at:
                found = group
        return found

    def _is_due(self, group: _Group, now: Instant) -> bool:
        rules = self._rules
        if not self._has_free_call:
            return group.latest_at is not None and group.latest_at <= now
        return (
            group.inputs >= rules.batch_size_max
            or group.tokens >= rules.tokens_max
            or group.inputs in rules.preferred_batch_sizes
            or not self._calls
            or (group.due_at is not None and group.due_at <= now)
        )

    def _fill(self, group: _Group, now: Instant) -> Batch:
        """Fills a batch round-robin over tenants and their requests, until it is full or no input is left."""
        taken: dict[int, list[Input]] = {}
        waits: list[Duration] = []
        count = tokens = 0
        turns = deque(group.tenants)
        while turns and count < self._rules.batch_size_max:
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
        # The next batch starts with the tenant that would have been next.
        group.tenants = {tenant: group.tenants[tenant] for tenant in dict.fromkeys((*turns, *group.tenants))}
        self._recount(group)
        return self._call(tuple(each for inputs in taken.values() for each in inputs), tuple(waits))

    def _first_ready(self, requests: Iterable[_Request]) -> _Request | None:
        most = self._in_flight_max
        return next((request for request in requests if request.ready(most)), None)

    @property
    def _in_flight_max(self) -> _Bounds:
        rules = self._rules
        return _Bounds(
            rules.batch_size_max * rules.calls_per_request_max, rules.tokens_max * rules.calls_per_request_max
        )

    # Accounting

    def _call(self, inputs: tuple[Input, ...], waits_ns: tuple[Duration, ...] = (), *, again: bool = False) -> Batch:
        self._numbers += 1
        batch = self._calls[self._numbers] = Batch(self._numbers, inputs, waits_ns, again)
        return batch

    def _end(self, batch: Batch) -> None:
        del self._calls[batch.number]
        self._release(batch)

    def _release(self, batch: Batch) -> None:
        """Releases the inputs of a call, so that more inputs from the same requests may be sent."""
        for number in batch.requests():
            request = self._requests.get(number)
            if request is None:
                continue
            request.release(each.place for each in batch.inputs if each.request == number)
            if request.next < request.total:
                self._recount(request.group)
            elif not request.in_flight:
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
        most = self._in_flight_max
        for tenant in [tenant for tenant, waiting in group.tenants.items() if not waiting]:
            del group.tenants[tenant]
        group.inputs = group.tokens = 0
        group.due_at = group.latest_at = None
        for waiting in group.tenants.values():
            for request in waiting:
                group.count(request, most)
        if not group.tenants:
            del self._groups[group.key]

    def _exclude(self, tenant: TenantId, requests: int) -> None:
        self._excluded.pop(tenant, None)
        if requests > 0:
            self._excluded[tenant] = requests
            if len(self._excluded) > EXCLUDED_TENANTS_MAX:
                # End the oldest exclusion.
                del self._excluded[next(iter(self._excluded))]
