"""The sequences of an engine: those that wait, those that run, and the blocks that they hold.

They change only between steps; loop.py makes the steps.
"""

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.accounts import Accounts
from headgate.simulation.engine.batch import DecodeBatch
from headgate.simulation.engine.kv_cache import KvCache
from headgate.simulation.engine.line import WaitingLine
from headgate.simulation.engine.sequence import Finished, FirstToken, Happening, Place, Preempted, Sequence, Spent


class Sequences:
    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.kv = KvCache(profile)
        self.batch = DecodeBatch(profile.block_tokens)
        self.grown = 0
        """Up to which step, itself excluded, decoding sequences have their blocks."""
        self.known: dict[RequestId, Sequence] = {}
        self.waiting = WaitingLine()
        self.running: dict[RequestId, Sequence] = {}
        self.partial: Sequence | None = None
        self.parting: list[Sequence] = []
        """Have ended, but the next step is composed without knowing it."""
        self.seen_at = Instant(0)
        """What came later is not seen by the next step, if that is composed ahead."""
        self.start_at = Instant(0)
        """When the next step starts, if there is one to make."""
        self.accounts = Accounts(profile)
        self.happened: list[Happening] = []

    def admit(self, budget: int) -> int:
        """Starts the first in the queue if it fits; the size of its first chunk."""
        sequence = self.waiting.first()
        if sequence is None or len(self.running) + len(self.parting) >= self.profile.sequences_max:
            return 0
        if self.profile.asynchronous and sequence.arrived_at > self.seen_at:
            return 0
        sequence.goal = sequence.request.prompt_tokens + sequence.generated
        if not self.kv.find(sequence):
            return 0
        self.waiting.pop()
        self.running[sequence.request.request_id] = sequence
        sequence.place = Place.PREFILLING
        self.accounts.enter(sequence)
        if sequence.begun_at is None:
            sequence.begun_at = self.start_at
            sequence.cached_tokens = sequence.computed
            self.accounts.prefix_queried_tokens += sequence.goal
            self.accounts.prefix_hit_tokens += sequence.computed
        return self._compute(sequence, min(sequence.goal - sequence.computed, budget))

    def _compute(self, sequence: Sequence, chunk: int) -> int:
        self.kv.extend(sequence, chunk)
        self.partial = sequence if sequence.computed < sequence.goal else None
        return chunk

    def go_on(self, sequence: Sequence, budget: int) -> int:
        """The next chunk of a prompt that was begun; none if it is preempted for want of blocks."""
        chunk = min(sequence.goal - sequence.computed, budget)
        while not self.kv.has_room(sequence, chunk):
            if self._preempt_one() is sequence:
                return 0
        return self._compute(sequence, chunk)

    def make_room(self) -> None:
        """Takes the blocks of the next step's decoding sequences, if need be from one of them."""
        while (needed := self.batch.blocks_needed(1)) > self.kv.pool.free:
            self._preempt_one()
        self.kv.pool.take(needed)
        self.grown = self.batch.step + 1

    def _preempt_one(self) -> Sequence:
        running = self.running.values()
        # Sequences start in their order, so without priorities the last is the greatest in rank.
        victim = max(running, key=lambda each: each.rank) if self.profile.by_priority else next(reversed(running))
        self.kv.set_aside(victim, self._take_out(victim))
        victim.preemptions += 1
        self.accounts.preemptions += 1
        self.happened.append(Preempted(victim.request.request_id, self.start_at))
        self.waiting.join(victim)
        return victim

    def _take_out(self, sequence: Sequence) -> int:
        """Takes a sequence out of the running ones; how many blocks it holds."""
        profile = self.profile
        del self.running[sequence.request.request_id]
        self.accounts.leave(sequence)
        if sequence.place is Place.DECODING:
            self.leave_batch(sequence)
            return profile.blocks(sequence.ahead + self.grown - 1)
        if sequence is self.partial:
            self.partial = None
        return profile.blocks(sequence.computed)

    def leave_batch(self, sequence: Sequence) -> None:
        self.accounts.stop_decoding(sequence, self.batch.step)
        self.batch.leave(sequence)

    def finish_prompt(self, sequence: Sequence) -> None:
        """All that was to be computed is, and the next token comes out, unless nobody wants one."""
        request = sequence.request
        self.accounts.prompt_tokens += request.prompt_tokens if sequence.first_token_at is None else 0
        if request.output_tokens:
            sequence.generated += 1
            self.accounts.generated_tokens += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = self.start_at
            if request.output_tokens and not sequence.cancelled:
                self.happened.append(FirstToken(request.request_id, self.start_at))
        if sequence.generated >= request.output_tokens:
            self.finish(sequence)
        else:
            self.batch.join(sequence)

    def finish(self, sequence: Sequence) -> None:
        request = sequence.request
        del self.running[request.request_id]
        self.accounts.leave(sequence)
        self.parting.append(sequence)
        if not self.profile.asynchronous:
            self.part()
        self.forget(sequence)
        if sequence.cancelled:
            return
        assert sequence.begun_at is not None
        assert sequence.first_token_at is not None
        self.happened.append(
            Finished(
                request.request_id,
                self.start_at,
                prompt_tokens=request.prompt_tokens,
                output_tokens=sequence.generated,
                cached_tokens=sequence.cached_tokens,
                arrived_at=sequence.arrived_at,
                begun_at=sequence.begun_at,
                first_token_at=sequence.first_token_at,
                preemptions=sequence.preemptions,
                spent=Spent(sequence.prefilled, sequence.worked_ps),
            )
        )

    def part(self) -> None:
        """Takes the blocks of those who have ended."""
        for sequence in self.parting:
            self.kv.give_back(sequence, self.profile.blocks(sequence.computed))
        self.parting.clear()

    def drop(self, sequence: Sequence) -> None:
        """Ends a cancelled sequence between two steps."""
        if sequence.place is not Place.GONE:
            self.kv.give_back(sequence, self._take_out(sequence))
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        sequence.place = Place.GONE
        self.known.pop(sequence.request.request_id, None)
        if not self.known:
            self.part()
