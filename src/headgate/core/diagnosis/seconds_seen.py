"""What happened at a pool within a second, of late, and usually?

Events are counted into the second that goes on. Every look closes it. The last few seconds together are what happens of
late; those before them, as long as all was well, make up what is usual: the sums of about half an hour of such
seconds, kept in a few blocks of which the oldest is given up for a new one. Nothing is rounded, so what comes once an
hour is as right as what comes all the time, and whoever has gone is forgotten with the last block that knew them.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from headgate.model.units import ClassName, TenantId

LATE_SECONDS: Final = 10
"""What happens of late; and so late does a second become a part of what is usual."""
LATEST_SECONDS: Final = 3
"""Something is still happening if it has happened within this many seconds."""
KEPT_SECONDS: Final = 20
"""Lengths of answers are judged over so many."""
FIRST_SECONDS: Final = 10
"""The first are not usual: only short answers have ended."""
BLOCK_SECONDS: Final = 300
BLOCKS: Final = 6
"""What is usual is what happened in the last so many blocks of so many seconds."""
TENANTS_MAX: Final = 256
"""Of so many tenants, and as many models' classes, anything is counted within a second, and kept as usual."""
COUNTS: Final = (
    "arrivals",
    "prompt_tokens",
    "prompt_squares",
    "retries",
    "refused",
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


class Shares:
    """How much of something was whose; of those who are too many nothing is kept."""

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
        """Takes back what was added within the same second."""
        left = self.by_name.get(name, 0) - amount
        if left > 0:
            self.by_name[name] = left
        else:
            self.by_name.pop(name, None)

    def add_all(self, other: "Shares") -> None:
        for name, amount in other.by_name.items():
            self.add(name, amount)


class Lengths:
    """Of answers of one class: how many, their tokens, the squares of these, and what they cost."""

    __slots__ = ("asked", "cost", "count", "squares", "tokens")

    def __init__(self) -> None:
        self.asked = 0
        """Requests of the class that were sent for the first time, or ended without being sent."""
        self.count = self.tokens = self.squares = self.cost = 0

    def add_all(self, other: "Lengths") -> None:
        self.asked += other.asked
        self.count += other.count
        self.tokens += other.tokens
        self.squares += other.squares
        self.cost += other.cost


class Seen:
    """What was counted, in one second or in several."""

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
        "refused",
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
        """Of the arrivals, those that their callers say they have asked before."""
        self.refused = self.missing = self.failed = 0
        """Not served: for want of room or time, of any endpoint, or because engines failed."""
        self.judged = self.late = 0
        """First tokens of which it is known by when they should have come, and those that did not."""
        self.unjudged = 0
        """Requests that were served and of which nobody said by when: whole answers, classes that do not hurry."""
        self.paced = self.slow = 0
        """Answers of which it is known how quickly their tokens should come, and those whose did not."""
        self.sent = self.waited_ns = self.begun = self.prefill_ns = 0
        """Attempts sent and what their requests had waited; first tokens and how long after that they came."""
        self.asked_tokens = self.cached_tokens = 0
        """Of answers, by the engines' own word: tokens of prompts, and those that were cached."""
        self.attempts_failed = self.attempts_unsent = 0
        """Failed attempts, and the subset that a gateway could not send because it lacked resources."""
        self.attempts_stalled = 0
        """Attempts that were aborted because their endpoint sent nothing for too long; not among the failed ones."""
        self.gave_up = 0
        """Requests that callers cancelled, or whose own deadline was shorter than the time promised to them."""
        self.tenants, self.tenants_work = Shares(), Shares()
        """What each asked for the first time: requests, and tokens of prompts and answers."""
        self.bad_by = Shares()
        """Whose first token was late or never came, `class tenant`."""
        self.ttft_by: dict[ClassName, tuple[int, int]] = {}
        """First tokens of each class, and how long they took since their requests arrived."""
        self.answers: dict[ClassName, Lengths] = {}

    @property
    def bad(self) -> int:
        return self.late + self.slow + self.refused + self.missing + self.failed

    @property
    def resolved(self) -> int:
        """Of how many it is known whether they were served well."""
        return self.judged + self.unjudged + self.refused + self.missing + self.failed

    def bad_one(self, service_class: ClassName | None, tenant: TenantId) -> None:
        self.bad_by.add(f"{service_class or ''} {tenant}", 1)

    def took(self, service_class: ClassName, ttft_ns: int) -> None:
        count, total_ns = self.ttft_by.get(service_class, (0, 0))
        self.ttft_by[service_class] = (count + 1, total_ns + ttft_ns)

    def of(self, service_class: ClassName) -> Lengths:
        lengths = self.answers.get(service_class)
        if lengths is None:
            lengths = self.answers[service_class] = Lengths()
        return lengths

    def add_all(self, other: "Seen") -> None:
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
            self.answers.setdefault(service_class, Lengths()).add_all(lengths)


def together(seconds: Iterable[Seen]) -> Seen:
    whole = Seen()
    for each in seconds:
        whole.add_all(each)
    return whole


class History:
    """The second that goes on, those before it, and what is usual."""

    __slots__ = ("_blocks", "_first", "_kept", "now", "usual")

    def __init__(self) -> None:
        self.now = Seen()
        self._first = FIRST_SECONDS
        self._kept: deque[Seen] = deque(maxlen=KEPT_SECONDS)
        self.usual = Seen()
        self._blocks: deque[Seen] = deque([Seen()], maxlen=BLOCKS)
        """What it is the sum of, the oldest first."""

    def close(self, *, well: bool) -> None:
        """The second is over. What is old by now is usual, unless something is wrong."""
        self.now.seconds = 1
        self._kept.append(self.now)
        self.now = Seen()
        if len(self._kept) <= LATE_SECONDS:
            return
        old = self._kept[-1 - LATE_SECONDS]
        if self._first:
            # Seconds before anybody asked are no beginning.
            self._first -= 1 if old.arrivals else 0
        elif well:
            self._learn(old)

    def _learn(self, old: Seen) -> None:
        if self._blocks[-1].seconds >= BLOCK_SECONDS:
            self._blocks.append(Seen())
            self.usual = together(self._blocks)
        self._blocks[-1].add_all(old)
        self.usual.add_all(old)

    def forget_answers(self, service_class: ClassName) -> None:
        """How long answers of this class are is learned anew, from here on."""
        for each in (*self._blocks, self.usual):
            each.answers.pop(service_class, None)

    def late(self, seconds: int = LATE_SECONDS) -> Seen:
        kept = self._kept
        return together(kept[place] for place in range(max(0, len(kept) - seconds), len(kept)))
