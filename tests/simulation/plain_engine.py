"""Reference model of the simulated engine, without optimizations.

The simulated engine is compared with this model. The model executes every step, updates every sequence in every step
and keeps every block as an object in a list.
"""

from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.sequence import (
    EngineEvent,
    EngineRequest,
    FirstTokenGenerated,
    SequenceCost,
    SequenceFinished,
    SequencePreempted,
)

Name = int | tuple[int, int]


@dataclass(frozen=True)
class Add:
    at: Instant
    request: EngineRequest


@dataclass(frozen=True)
class Cancel:
    at: Instant
    request_id: RequestId


Entry = Add | Cancel


@dataclass(eq=False)
class Block:
    name: Name | None = None
    holders: int = 0


@dataclass(eq=False)
class Plain:
    """State of one sequence."""

    request: EngineRequest
    rank: tuple[int, int]
    arrived_at: Instant
    blocks: list[Block] = field(default_factory=list[Block])
    computed: int = 0
    generated: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    prefilled: int = 0
    worked_ps: int = 0
    begun_at: Instant | None = None
    first_token_at: Instant | None = None
    cancelled: bool = False
    decoding: bool = False
    """Whether all tokens except the newest had been computed when the step began."""

    @property
    def tokens(self) -> int:
        return self.request.prompt_tokens + self.generated

    def name(self, position: int) -> Name:
        prefix = self.request.prefix
        return prefix[position] if position < len(prefix) else (self.rank[1], position)

    def own_name(self, position: int) -> Name:
        """Returns the name of a block whose content is already cached under its shared name."""
        return (self.rank[1], -position - 1)


def instant(work: int) -> Instant:
    return Instant(-(-work // 1000))


class PlainEngine:
    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.free = [Block() for _ in range(profile.kv_blocks)]
        """Free blocks. Allocation takes the first one."""
        self.cache: dict[Name, Block] = {}
        self.waiting: list[Plain] = []
        self.running: list[Plain] = []
        self.leaving: list[Plain] = []
        self.parting: list[Plain] = []
        self.seen_at = Instant(0)
        self.happened: list[EngineEvent] = []
        self.arrivals = 0
        self.steps = 0

    def run(self, script: Row[Entry]) -> list[EngineEvent]:
        """Returns everything that happens until all work is done. The script must be sorted by time."""
        entries = list(script)
        work = 0
        while entries or self.busy:
            if self.busy:
                start = instant(work)
                work += self.begin(start)
                while entries and entries[0].at < instant(work):
                    self.during(entries.pop(0))
                self.end(instant(work))
                self.seen_at = start
            while entries and (entries[0].at == instant(work) or not self.busy):
                if not self.busy:
                    work, self.seen_at = entries[0].at * 1000, entries[0].at
                self.between(entries.pop(0))
        return self.happened

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    # ---------------------------------------------------------------------------------------------------- the script

    def during(self, entry: Entry) -> None:
        match entry:
            case Add(at, request):
                self.arrivals += 1
                priority = request.priority if self.profile.priority_scheduling else 0
                self.waiting.append(Plain(request, (priority, self.arrivals), at))
            case Cancel(_, request_id):
                self.waiting = [each for each in self.waiting if each.request.request_id != request_id]
                for each in self.running:
                    if each.request.request_id == request_id and not each.cancelled:
                        each.cancelled = True
                        self.leaving.append(each)

    def between(self, entry: Entry) -> None:
        self.during(entry)
        self.drop_cancelled()

    def drop_cancelled(self) -> None:
        for each in self.leaving:
            if each in self.running:
                self.running.remove(each)
                self.give_back(each)
        self.leaving = []
        if not self.busy:
            self.part()

    def part(self) -> None:
        for each in self.parting:
            self.give_back(each)
        self.parting = []

    # ------------------------------------------------------------------------------------------------------ one step

    def begin(self, now: Instant) -> int:
        """Composes a step and returns its duration in picoseconds."""
        scheduled = self.compose(now)
        if self.profile.async_scheduling and not scheduled:
            self.part()
            self.seen_at = now
            scheduled = self.compose(now)
        self.part()
        return self.duration([(each, scheduled[id(each)]) for each in self.running if id(each) in scheduled])

    def compose(self, now: Instant) -> dict[int, int]:
        """Returns the number of tokens scheduled for each sequence."""
        profile = self.profile
        budget = profile.chunk_tokens
        scheduled: dict[int, int] = {}
        preempted = False
        for each in list(self.running):
            chunk = min(each.tokens - each.computed, budget)
            while each in self.running:
                if self.extend(each, each.computed + chunk):
                    scheduled[id(each)] = chunk
                    budget -= chunk
                    break
                preempted = True
                victim = max(self.running, key=lambda plain: plain.rank)
                budget += scheduled.pop(id(victim), 0)
                self.preempt(victim, now)
        places = profile.sequences_max - len(self.parting)
        while not preempted and budget > 0 and self.waiting and len(self.running) < places:
            head = min(self.waiting, key=lambda plain: plain.rank)
            unseen = profile.async_scheduling and head.arrived_at > self.seen_at
            if unseen or not self.admit(head, now):
                break
            chunk = scheduled[id(head)] = min(head.tokens - head.computed, budget)
            assert self.extend(head, head.computed + chunk)
            budget -= chunk
        return scheduled

    def duration(self, batch: list[tuple[Plain, int]]) -> int:
        profile = self.profile
        taken = profile.step_ps
        for each, chunk in batch:
            if each.decoding:
                own = profile.decode_sequence_ps + profile.kv_token_ps * each.tokens
            else:
                own = profile.prefill_token_ps * chunk
                own += profile.attention_ps * chunk * (2 * each.computed + chunk) // 2
                each.prefilled += chunk
            taken += own
            each.worked_ps += own + profile.step_ps // len(batch)
            each.computed += chunk
        self.steps += 1
        return taken

    def end(self, now: Instant) -> None:
        done = [each for each in self.running if each.computed == each.tokens]
        decoded = sorted((each for each in done if each.decoding), key=lambda plain: plain.rank)
        for each in decoded + [each for each in done if not each.decoding]:
            each.decoding = True
            if each.request.output_tokens:
                each.generated += 1
            if each.first_token_at is None:
                each.first_token_at = now
                if each.request.output_tokens and not each.cancelled:
                    self.happened.append(FirstTokenGenerated(each.request.request_id, now))
            if each.generated >= each.request.output_tokens:
                self.running.remove(each)
                self.parting.append(each)
                if not self.profile.async_scheduling:
                    self.part()
                if not each.cancelled:
                    self.happened.append(self.finished(each, now))
        self.drop_cancelled()

    def finished(self, each: Plain, now: Instant) -> SequenceFinished:
        assert each.begun_at is not None
        assert each.first_token_at is not None
        return SequenceFinished(
            each.request.request_id,
            now,
            prompt_tokens=each.request.prompt_tokens,
            output_tokens=each.generated,
            cached_tokens=each.cached_tokens,
            arrived_at=each.arrived_at,
            started_at=each.begun_at,
            first_token_at=each.first_token_at,
            preemptions=each.preemptions,
            cost=SequenceCost(each.prefilled, each.worked_ps),
        )

    # -------------------------------------------------------------------------------------------------------- blocks

    def admit(self, each: Plain, now: Instant) -> bool:
        found: list[Block] = []
        if self.profile.prefix_cache:
            for position in range((each.tokens - 1) // self.profile.block_tokens):
                block = self.cache.get(each.name(position)) or self.cache.get(each.own_name(position))
                if block is None:
                    break
                found.append(block)
        needed = self.profile.blocks_for(each.tokens) - sum(block.holders > 0 for block in found)
        if needed + self.profile.watermark_blocks > len(self.free):
            return False
        for block in found:
            if block.holders == 0:
                self.free.remove(block)
            block.holders += 1
        each.blocks = found
        each.computed = len(found) * self.profile.block_tokens
        if each.begun_at is None:
            each.begun_at = now
            each.cached_tokens = each.computed
        self.waiting.remove(each)
        self.running.append(each)
        return True

    def extend(self, each: Plain, tokens: int) -> bool:
        """Allocates blocks for this number of tokens and names the full ones."""
        count = self.profile.blocks_for(tokens) - len(each.blocks)
        if count > len(self.free):
            return False
        for _ in range(count):
            block = self.free.pop(0)
            if block.name is not None and self.cache.get(block.name) is block:
                del self.cache[block.name]
            block.name, block.holders = None, 1
            each.blocks.append(block)
        if self.profile.prefix_cache:
            for position in range(tokens // self.profile.block_tokens):
                block = each.blocks[position]
                if block.name is None:
                    self.name(block, each, position)
        return True

    def name(self, block: Block, each: Plain, position: int) -> None:
        name = each.name(position)
        if name in self.cache:
            name = each.own_name(position)
        block.name = name
        self.cache[name] = block

    def give_back(self, each: Plain) -> None:
        for block in reversed(each.blocks):
            block.holders -= 1
            if block.holders == 0:
                self.free.append(block)
        each.blocks = []

    def preempt(self, each: Plain, now: Instant) -> None:
        self.running.remove(each)
        for block in each.blocks[each.computed // self.profile.block_tokens :]:
            if block.name is not None:
                del self.cache[block.name]
                block.name = None
        self.give_back(each)
        each.computed = 0
        each.decoding = False
        each.preemptions += 1
        self.waiting.append(each)
        self.happened.append(SequencePreempted(each.request.request_id, now))
