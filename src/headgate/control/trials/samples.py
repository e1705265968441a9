"""Observer that counts good requests in blocks of time, from the scheduler's events.

A request counts for the block in which it arrived, and is good if it completed within all targets of its class. Errors
of the caller, limits of the tenant and cancellations before a target was missed are left out. Memory is bounded: only
open requests are kept, and a number for each block.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headgate.control.rollouts.comparison import Proportion
from headgate.core.admission.gate import Admitted, check_policy
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, Event, FirstToken, PolicyChanged, RequestArrived
from headgate.core.rules import Rules
from headgate.model.outcome import Outcome
from headgate.model.overrides import SetSetting
from headgate.model.policy import Policy, ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import ClassName, Duration, Instant, RequestId, after
from headgate.telemetry.meter_types import UNAVAILABLE_OUTCOMES

OPEN_MAX: Final = 20_000
"""Maximum number of open requests measured. Others are not. They are counted twice per second, in about 50 ms."""


@dataclass(slots=True)
class ClassTally:
    good: int = 0
    bad: int = 0


@dataclass(slots=True)
class BlockTally:
    """Requests that arrived in one block, after its guard period."""

    number: int
    has_new_value: bool
    ends_at: Instant
    classes: dict[ClassName, ClassTally] = field(default_factory=dict[ClassName, ClassTally])
    cost_nano_usd: int = 0
    open: int = 0
    wrong_value: bool = False
    """Whether a request arrived under the other value, because the change took longer than the guard period."""

    def count(self, name: ClassName, *, good: bool) -> None:
        tally = self.classes.setdefault(name, ClassTally())
        if good:
            tally.good += 1
        else:
            tally.bad += 1

    @property
    def good(self) -> int:
        return sum(each.good for each in self.classes.values())

    def share(self, name: ClassName, requests_min: int) -> float | None:
        """Returns the share of good requests of a class. None if there are too few."""
        tally = self.classes.get(name, ClassTally())
        total = tally.good + tally.bad
        return tally.good / total if total >= requests_min else None

    def log_good(self) -> float | None:
        """Returns the logarithm of the number of good requests, or of a half if there are none."""
        return math.log(max(0.5, self.good)) if self.classes else None

    def log_good_per_cost(self) -> float | None:
        return math.log(max(0.5, self.good) / self.cost_nano_usd) if self.cost_nano_usd else None


def pooled_counts(name: ClassName, blocks: Iterable[BlockTally]) -> Proportion:
    """Counts the requests of a class in all these blocks, and the bad ones."""
    known = [each.classes[name] for each in blocks if name in each.classes]
    return Proportion(sum(each.good + each.bad for each in known), sum(each.bad for each in known))


class OpenCount(NamedTuple):
    open: int
    late: int


@dataclass(slots=True)
class _OpenRequest:
    ticket: Ticket
    arrived_at: Instant
    block: BlockTally
    service_class: ServiceClass | None = None
    first_token_at: Instant | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """When requests count, for one trial."""

    setting: str
    value: int
    began_at: Instant
    block_ns: Duration
    guard_ns: Duration
    new_blocks: frozenset[int]
    blocks: int

    def block(self, now: Instant) -> int:
        return (now - self.began_at) // self.block_ns

    def begin(self, block: int) -> Instant:
        return Instant(self.began_at + block * self.block_ns)


class BlockSamples:
    """Tallies of the blocks of one trial, since `watch` was called."""

    def __init__(self, *, open_max: int = OPEN_MAX) -> None:
        self._open_max = open_max
        self._policy: Policy | None = None
        self._rules: Rules | None = None
        self._schedule: BlockSchedule | None = None
        self._new_until = Instant(0)
        """Time until which the new value is in force."""
        self._open: dict[RequestId, _OpenRequest] = {}
        self.blocks: dict[int, BlockTally] = {}

    def watch(self, schedule: BlockSchedule) -> None:
        self._schedule, self._open, self.blocks = schedule, {}, {}
        if self._policy is not None:
            self._policy_changed(self._policy)

    def stop(self) -> None:
        self._schedule, self._open = None, {}

    def settled(self, now: Instant, settle_ns: Duration) -> Mapping[int, BlockTally]:
        """Returns the blocks whose requests have all ended, by number.

        Requests that are still open long after the end of their block count by what is known about them.
        """
        self._add_empty_blocks(now)
        overdue = any(each.open and now >= after(each.ends_at, settle_ns) for each in self.blocks.values())
        for name, found in list(self._open.items()) if overdue else ():
            if now >= after(found.block.ends_at, settle_ns):
                del self._open[name]
                self._settle(found, now)
        return {number: block for number, block in self.blocks.items() if now >= block.ends_at and not block.open}

    def _add_empty_blocks(self, now: Instant) -> None:
        """Adds the past blocks in which no request arrived."""
        if (schedule := self._schedule) is not None:
            for number in range(min(schedule.blocks, schedule.block(now))):
                if number not in self.blocks:
                    self._add_block(number, schedule)

    def _add_block(self, number: int, schedule: BlockSchedule) -> BlockTally:
        block = BlockTally(number, number in schedule.new_blocks, schedule.begin(number + 1))
        self.blocks[number] = block
        return block

    def open_requests(self, block: BlockTally, now: Instant) -> dict[ClassName, OpenCount]:
        """Counts the open requests of a block, and those that have already missed a target, by class."""
        found: dict[ClassName, OpenCount] = {}
        for each in self._open.values():
            if each.block is not block:
                continue
            of_class = each.service_class = each.service_class or self._classify(each.ticket)
            if of_class is not None:
                late = _missed(each, of_class, now, ended=False)
                known = found.get(of_class.name, OpenCount(0, 0))
                found[of_class.name] = OpenCount(known.open + 1, known.late + late)
        return found

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if type(event) is PolicyChanged:
            self._policy, self._rules = event.policy, None
            self._policy_changed(event.policy)
        if self._schedule is None:
            return
        if type(event) is RequestArrived:
            self._arrived(event.ticket, self._schedule, now)
        elif type(event) is FirstToken:
            self._first_token(event.request_id, now)
        elif type(event) is AttemptEnded:
            self._attempt_ended(event, now)
        for command in commands:
            if type(command) is Dispatch:
                if (found := self._open.get(command.request_id)) is not None:
                    found.service_class = self._class(command.service_class)
            elif type(command) is End:
                self._ended(command, now)

    def _policy_changed(self, policy: Policy) -> None:
        if (schedule := self._schedule) is not None:
            until = [
                each.until
                for each in policy.overrides
                if isinstance(each, SetSetting) and (each.setting, each.value) == (schedule.setting, schedule.value)
            ]
            self._new_until = max(until, default=Instant(0))

    def _arrived(self, ticket: Ticket, schedule: BlockSchedule, now: Instant) -> None:
        number = schedule.block(now)
        if not 0 <= number < schedule.blocks or now - schedule.begin(number) < schedule.guard_ns:
            return
        if ticket.mirror_route or len(self._open) >= self._open_max:
            return
        if (block := self.blocks.get(number)) is None:
            block = self._add_block(number, schedule)
        if block.has_new_value is not (now < self._new_until):
            block.wrong_value = True
        block.open += 1
        self._open[ticket.request_id] = _OpenRequest(ticket, now, block)

    def _first_token(self, request_id: RequestId, now: Instant) -> None:
        found = self._open.get(request_id)
        if found is not None and found.ticket.stream and found.first_token_at is None:
            found.first_token_at = now

    def _attempt_ended(self, event: AttemptEnded, now: Instant) -> None:
        if event.first_token:
            self._first_token(event.request_id, now)
        found = self._open.get(event.request_id)
        if found is not None and event.ending is AttemptEnding.COMPLETED and event.usage is not None:
            found.tokens = event.usage.output_tokens

    def _ended(self, end: End, now: Instant) -> None:
        if (found := self._open.pop(end.request_id, None)) is None:
            return
        found.block.open -= 1
        found.block.cost_nano_usd += sum(each.nano_usd for each in end.bills)
        if end.service_class is not None:
            found.service_class = self._class(end.service_class)
        of_class = found.service_class or self._classify(found.ticket)
        if of_class is None:
            return
        if end.outcome is Outcome.COMPLETED:
            found.block.count(of_class.name, good=not _missed(found, of_class, now, ended=True))
        elif end.outcome in UNAVAILABLE_OUTCOMES or (
            end.outcome is Outcome.CANCELLED and _missed(found, of_class, now, ended=False)
        ):
            found.block.count(of_class.name, good=False)

    def _settle(self, found: _OpenRequest, now: Instant) -> None:
        found.block.open -= 1
        of_class = found.service_class or self._classify(found.ticket)
        if of_class is None:
            return
        if _missed(found, of_class, now, ended=False):
            found.block.count(of_class.name, good=False)
        elif found.first_token_at is not None:
            found.block.count(of_class.name, good=True)

    # Classes

    def _rules_in_force(self) -> Rules | None:
        """Returns the rules. They are built only if a request needs them, because policies can be large."""
        if self._rules is None and self._policy is not None:
            self._rules = Rules(self._policy, "")
        return self._rules

    def _class(self, name: ClassName) -> ServiceClass | None:
        rules = self._rules_in_force()
        return None if rules is None else rules.classes.get(name)

    def _classify(self, ticket: Ticket) -> ServiceClass | None:
        """Returns the class of a request that was not sent."""
        rules = self._rules_in_force()
        verdict = None if rules is None else check_policy(ticket, rules)
        return verdict.service_class if isinstance(verdict, Admitted) else None


def _missed(found: _OpenRequest, of_class: ServiceClass, now: Instant, *, ended: bool) -> bool:
    """Returns whether a request has missed a target of its class. TTFT and TPOT apply only to streams."""
    if of_class.e2e_ns is not None and now - found.arrived_at > of_class.e2e_ns:
        return True
    if not found.ticket.stream:
        return False
    first_at = found.first_token_at
    if of_class.ttft_ns is not None and (now if first_at is None else first_at) - found.arrived_at > of_class.ttft_ns:
        return True
    further = found.tokens - 1
    if not ended or first_at is None or of_class.tpot_ns is None or further < 1:
        return False
    return now - first_at > of_class.tpot_ns * further
