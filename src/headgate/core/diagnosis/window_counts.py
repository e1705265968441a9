"""Event counts of a pool for the current second, the last few seconds and the baseline.

Events are counted in the current second, which ends at every check. The last few seconds are the recent values. Earlier
seconds without an incident form the baseline, which is the sum over about half an hour of such seconds. The baseline is
kept in a few blocks, and the oldest block is dropped when a new one starts. Sums are exact, so rare events are
represented as accurately as frequent ones. A tenant that no longer sends requests disappears with the last block that
contains it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from headgate.model.units import ClassName, TenantId

RECENT_SECONDS: Final = 10
"""Length of the recent window in seconds. A second enters the baseline after this delay."""
LAST_SECONDS: Final = 3
"""Window, in seconds, within which an event counts as still happening."""
KEPT_SECONDS: Final = 20
"""Window for response lengths, in seconds."""
SKIPPED_SECONDS: Final = 10
"""Number of initial seconds that are not part of the baseline, because only short responses have ended by then."""
BLOCK_SECONDS: Final = 300
BLOCKS: Final = 6
"""Number of blocks in the baseline."""
TENANTS_MAX: Final = 256
"""Maximum number of tenants or classes counted per second and kept in the baseline."""
COUNTS: Final = (
    "arrivals",
    "prompt_tokens",
    "prompt_squares",
    "retries",
    "rejected",
    "missing",
    "failed",
    "judged",
    "late",
    "unjudged",
    "paced",
    "slow",
    "sent",
    "waited_ns",
    "begun",
    "prefill_ns",
    "asked_tokens",
    "cached_tokens",
    "attempts_failed",
    "attempts_unsent",
    "attempts_stalled",
    "gave_up",
)


class NamedTotals:
    """Amounts by name. Once the maximum number of names is reached, new names are not counted."""

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}

    def add(self, name: str, amount: int) -> None:
        by_name = self.by_name
        if name in by_name:
            by_name[name] += amount
        elif len(by_name) < TENANTS_MAX:
            by_name[name] = amount

    def remove(self, name: str, amount: int) -> None:
        """Undoes an addition made within the same second."""
        left = self.by_name.get(name, 0) - amount
        if left > 0:
            self.by_name[name] = left
        else:
            self.by_name.pop(name, None)

    def add_all(self, other: "NamedTotals") -> None:
        for name, amount in other.by_name.items():
            self.add(name, amount)


class AnswerLengths:
    """Response statistics of one class: number, tokens, squared tokens and cost."""

    __slots__ = ("asked", "cost", "count", "squares", "tokens")

    def __init__(self) -> None:
        self.asked = 0
        """Requests of the class that were sent for the first time or ended without being sent."""
        self.count = self.tokens = self.squares = self.cost = 0

    def add_all(self, other: "AnswerLengths") -> None:
        self.asked += other.asked
        self.count += other.count
        self.tokens += other.tokens
        self.squares += other.squares
        self.cost += other.cost


class WindowCounts:
    """Counts for one or more seconds."""

    __slots__ = (
        "answers",
        "arrivals",
        "asked_tokens",
        "attempts_failed",
        "attempts_stalled",
        "attempts_unsent",
        "bad_by",
        "begun",
        "cached_tokens",
        "failed",
        "gave_up",
        "judged",
        "late",
        "missing",
        "paced",
        "prefill_ns",
        "prompt_squares",
        "prompt_tokens",
        "rejected",
        "retries",
        "seconds",
        "sent",
        "slow",
        "tenants",
        "tenants_work",
        "ttft_by",
        "unjudged",
        "waited_ns",
    )

    def __init__(self) -> None:
        self.seconds = 0
        self.arrivals = self.prompt_tokens = self.prompt_squares = 0
        self.retries = 0
        """Arrivals that the caller declares to be retries."""
        self.rejected = self.missing = self.failed = 0
        """Requests not served: rejected for lack of capacity or time, without an endpoint, or failed on engines."""
        self.judged = self.late = 0
        """Number of first tokens with a time limit, and of those that missed it."""
        self.unjudged = 0
        """Served requests without a time limit for the first token, such as non-streaming ones."""
        self.paced = self.slow = 0
        """Responses with a target for the time per token, and those that missed it."""
        self.sent = self.waited_ns = self.begun = self.prefill_ns = 0
        """Attempts sent and queue time of their requests; first tokens and their time since the attempt was sent."""
        self.asked_tokens = self.cached_tokens = 0
        """Prompt tokens and cached prompt tokens, as reported by the engines."""
        self.attempts_failed = self.attempts_unsent = 0
        """Failed attempts, and the subset that a gateway could not send because it lacked resources."""
        self.attempts_stalled = 0
        """Attempts aborted because their endpoint sent nothing for too long. They are not counted as failed."""
        self.gave_up = 0
        """Requests that callers cancelled, or whose own deadline was shorter than their time limit."""
        self.tenants, self.tenants_work = NamedTotals(), NamedTotals()
        """Requests and tokens of each tenant, excluding retries."""
        self.bad_by = NamedTotals()
        """Harmed requests by `class tenant`."""
        self.ttft_by: dict[ClassName, tuple[int, int]] = {}
        """For each class, the number of first tokens and their total time since request arrival."""
        self.answers: dict[ClassName, AnswerLengths] = {}

    @property
    def bad(self) -> int:
        return self.late + self.slow + self.rejected + self.missing + self.failed

    @property
    def resolved(self) -> int:
        """Number of requests with a known result."""
        return self.judged + self.unjudged + self.rejected + self.missing + self.failed

    def count_request(self, tenant: TenantId, work: int) -> None:
        requests, tenants_work = self.tenants.by_name, self.tenants_work.by_name
        # Both counters have the same keys. Known keys are incremented here, because a call would cost more.
        if tenant in requests and tenant in tenants_work:
            requests[tenant] += 1
            tenants_work[tenant] += work
        else:
            self.tenants.add(tenant, 1)
            self.tenants_work.add(tenant, work)

    def count_bad(self, service_class: ClassName | None, tenant: TenantId) -> None:
        self.bad_by.add(f"{service_class or ''} {tenant}", 1)

    def record_ttft(self, service_class: ClassName, ttft_ns: int) -> None:
        count, total_ns = self.ttft_by.get(service_class, (0, 0))
        self.ttft_by[service_class] = (count + 1, total_ns + ttft_ns)

    def lengths_of(self, service_class: ClassName) -> AnswerLengths:
        lengths = self.answers.get(service_class)
        if lengths is None:
            lengths = self.answers[service_class] = AnswerLengths()
        return lengths

    def add_all(self, other: "WindowCounts") -> None:
        self.seconds += other.seconds
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.tenants.add_all(other.tenants)
        self.tenants_work.add_all(other.tenants_work)
        self.bad_by.add_all(other.bad_by)
        for service_class, (count, total_ns) in other.ttft_by.items():
            before = self.ttft_by.get(service_class, (0, 0))
            self.ttft_by[service_class] = (before[0] + count, before[1] + total_ns)
        for service_class, lengths in other.answers.items():
            self.answers.setdefault(service_class, AnswerLengths()).add_all(lengths)


def merged(seconds: Iterable[WindowCounts]) -> WindowCounts:
    whole = WindowCounts()
    for each in seconds:
        whole.add_all(each)
    return whole


class PoolHistory:
    """The current second, the last seconds and the baseline."""

    __slots__ = ("_blocks", "_first", "_kept", "baseline", "current")

    def __init__(self) -> None:
        self.current = WindowCounts()
        self._first = SKIPPED_SECONDS
        self._kept: deque[WindowCounts] = deque(maxlen=KEPT_SECONDS)
        self.baseline = WindowCounts()
        self._blocks: deque[WindowCounts] = deque([WindowCounts()], maxlen=BLOCKS)
        """Blocks that add up to `baseline`, oldest first."""

    def close(self, *, healthy: bool) -> None:
        """Closes the current second.

        The second that leaves the recent window enters the baseline if the pool is `healthy`.
        """
        self.current.seconds = 1
        self._kept.append(self.current)
        self.current = WindowCounts()
        if len(self._kept) <= RECENT_SECONDS:
            return
        old = self._kept[-1 - RECENT_SECONDS]
        if self._first:
            # Seconds before the first request do not count as initial seconds.
            self._first -= 1 if old.arrivals else 0
        elif healthy:
            self._learn(old)

    def _learn(self, old: WindowCounts) -> None:
        if self._blocks[-1].seconds >= BLOCK_SECONDS:
            self._blocks.append(WindowCounts())
            self.baseline = merged(self._blocks)
        self._blocks[-1].add_all(old)
        self.baseline.add_all(old)

    def forget_answers(self, service_class: ClassName) -> None:
        """Drops the usual response length of this class so that it is learned again."""
        for each in (*self._blocks, self.baseline):
            each.answers.pop(service_class, None)

    def recent(self, seconds: int = RECENT_SECONDS) -> WindowCounts:
        kept = self._kept
        return merged(kept[place] for place in range(max(0, len(kept) - seconds), len(kept)))
