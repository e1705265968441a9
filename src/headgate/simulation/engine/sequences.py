"""An engine's waiting and running sequences, and the KV blocks that they hold.

They change only between steps. loop.py computes the steps.
"""

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.batch import DecodeBatch
from headgate.simulation.engine.kv_cache import KvCache
from headgate.simulation.engine.sequence import (
    EngineEvent,
    FirstTokenGenerated,
    Sequence,
    SequenceCost,
    SequenceFinished,
    SequencePreempted,
    SequenceState,
)
from headgate.simulation.engine.waiting_queue import WaitingQueue
from headgate.simulation.engine.work_accounting import WorkAccounting


class Sequences:
    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.kv = KvCache(profile)
        self.batch = DecodeBatch(profile.block_tokens)
        self.allocated_step = 0
        """First step for which decoding sequences do not have their blocks yet."""
        self.by_id: dict[RequestId, Sequence] = {}
        self.waiting = WaitingQueue()
        self.running: dict[RequestId, Sequence] = {}
        self.prefilling: Sequence | None = None
        self.finished: list[Sequence] = []
        """Sequences that have ended, but still occupy slots and blocks while the next step is being composed."""
        self.arrival_cutoff = Instant(0)
        """Latest arrival time that the next step includes if it is composed ahead."""
        self.start_at = Instant(0)
        """Start of the next step. Meaningful only if there is a next step."""
        self.accounting = WorkAccounting(profile)
        self.events: list[EngineEvent] = []

    def admit(self, budget: int) -> int:
        """Starts the first waiting sequence if it fits.

        Returns the size of its first chunk, or 0 if it does not fit.
        """
        sequence = self.waiting.peek()
        if sequence is None or len(self.running) + len(self.finished) >= self.profile.sequences_max:
            return 0
        if self.profile.async_scheduling and sequence.arrived_at > self.arrival_cutoff:
            return 0
        sequence.prefill_tokens = sequence.request.prompt_tokens + sequence.generated_tokens
        if not self.kv.acquire_cached(sequence):
            return 0
        self.waiting.pop()
        self.running[sequence.request.request_id] = sequence
        sequence.state = SequenceState.PREFILLING
        self.accounting.enter(sequence)
        if sequence.started_at is None:
            sequence.started_at = self.start_at
            sequence.cached_tokens = sequence.computed_tokens
            self.accounting.prefix_queried_tokens += sequence.prefill_tokens
            self.accounting.prefix_hit_tokens += sequence.computed_tokens
        return self._compute(sequence, min(sequence.prefill_tokens - sequence.computed_tokens, budget))

    def _compute(self, sequence: Sequence, chunk: int) -> int:
        self.kv.extend(sequence, chunk)
        self.prefilling = sequence if sequence.computed_tokens < sequence.prefill_tokens else None
        return chunk

    def continue_prefill(self, sequence: Sequence, budget: int) -> int:
        """Computes the next chunk of an unfinished prompt and returns its size. Returns 0 if there are not enough
        blocks.
        """
        chunk = min(sequence.prefill_tokens - sequence.computed_tokens, budget)
        while not self.kv.has_room(sequence, chunk):
            if self._preempt_one() is sequence:
                return 0
        return self._compute(sequence, chunk)

    def allocate_decode_blocks(self) -> None:
        """Allocates the blocks that decoding sequences need in the next step, preempting sequences if necessary."""
        while (needed := self.batch.blocks_needed(1)) > self.kv.pool.free:
            self._preempt_one()
        self.kv.pool.allocate(needed)
        self.allocated_step = self.batch.step + 1

    def _preempt_one(self) -> Sequence:
        running = self.running.values()
        # Sequences start in rank order. Without priorities, the last one has the highest rank.
        victim = (
            max(running, key=lambda each: each.rank) if self.profile.priority_scheduling else next(reversed(running))
        )
        self.kv.release_preempted(victim, self._remove_running(victim))
        victim.preemptions += 1
        self.accounting.preemptions += 1
        self.events.append(SequencePreempted(victim.request.request_id, self.start_at))
        self.waiting.push(victim)
        return victim

    def _remove_running(self, sequence: Sequence) -> int:
        """Removes a running sequence and returns the number of blocks that it holds."""
        profile = self.profile
        del self.running[sequence.request.request_id]
        self.accounting.leave(sequence)
        if sequence.state is SequenceState.DECODING:
            self.leave_batch(sequence)
            return profile.blocks_for(sequence.token_offset + self.allocated_step - 1)
        if sequence is self.prefilling:
            self.prefilling = None
        return profile.blocks_for(sequence.computed_tokens)

    def leave_batch(self, sequence: Sequence) -> None:
        self.accounting.stop_decoding(sequence, self.batch.step)
        self.batch.leave(sequence)

    def finish_prompt(self, sequence: Sequence) -> None:
        """Emits the first token after a prompt, or ends the sequence if it needs no output."""
        request = sequence.request
        self.accounting.prompt_tokens += request.prompt_tokens if sequence.first_token_at is None else 0
        if request.output_tokens:
            sequence.generated_tokens += 1
            self.accounting.generated_tokens += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = self.start_at
            if request.output_tokens and not sequence.cancelled:
                self.events.append(FirstTokenGenerated(request.request_id, self.start_at))
        if sequence.generated_tokens >= request.output_tokens:
            self.finish(sequence)
        else:
            self.batch.join(sequence)

    def finish(self, sequence: Sequence) -> None:
        request = sequence.request
        del self.running[request.request_id]
        self.accounting.leave(sequence)
        self.finished.append(sequence)
        if not self.profile.async_scheduling:
            self.free_finished()
        self.forget(sequence)
        if sequence.cancelled:
            return
        assert sequence.started_at is not None
        assert sequence.first_token_at is not None
        self.events.append(
            SequenceFinished(
                request.request_id,
                self.start_at,
                prompt_tokens=request.prompt_tokens,
                output_tokens=sequence.generated_tokens,
                cached_tokens=sequence.cached_tokens,
                arrived_at=sequence.arrived_at,
                started_at=sequence.started_at,
                first_token_at=sequence.first_token_at,
                preemptions=sequence.preemptions,
                cost=SequenceCost(sequence.prefilled_tokens, sequence.worked_ps),
            )
        )

    def free_finished(self) -> None:
        """Releases the blocks of sequences that have ended."""
        for sequence in self.finished:
            self.kv.release(sequence, self.profile.blocks_for(sequence.computed_tokens))
        self.finished.clear()

    def drop(self, sequence: Sequence) -> None:
        """Ends a cancelled sequence between two steps."""
        if sequence.state is not SequenceState.REMOVED:
            self.kv.release(sequence, self._remove_running(sequence))
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.REMOVED
        self.by_id.pop(sequence.request.request_id, None)
        if not self.by_id:
            self.free_finished()
