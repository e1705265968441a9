"""Simulated engine: a deterministic model of vLLM's scheduling loop.

Each step serves the running sequences first: one token for each decoding sequence and the next chunk of the one
unfinished prompt. The remaining token budget goes to waiting sequences in queue order, as long as a slot is free and
the complete prompt fits into free blocks. If a running sequence cannot get a block, the newest running sequence is
preempted. It returns to the head of the queue and is recomputed, except for the part that is still in the prefix cache.
At most one running sequence has an unfinished prompt, because only the token budget of a step cuts a prompt short.

The engine has no clock and no randomness. The caller reports arrivals with their times, asks for the instant of the
next event and advances the engine to it. While the batch stays the same, the engine computes any number of steps at
once (a leap). Instants, tokens and state are exactly the same as for single steps.

A step includes everything that arrived up to its start. Its batch is fixed when the caller first asks for a later
instant, so that requests that arrive at the same instant start together. A sequence that is cancelled while running
leaves at the end of the step.

With asynchronous scheduling, the engine composes a step when the previous step starts. The step therefore includes only
sequences that had arrived by then, and sequences that end with the previous step still occupy their slots and blocks.
If all running sequences have ended, the next step is composed when it starts.

Differences from vLLM:

- When a sequence is preempted by priority, other sequences do not lose their turn in that step.
- All gauges show the current state. vLLM updates them after each step.
"""

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.sequence import (
    EngineEvent,
    EngineRequest,
    Sequence,
    SequenceCost,
    SequenceState,
    StepFinished,
)
from headgate.simulation.engine.sequences import Sequences
from headgate.simulation.engine.state import EngineState
from headgate.simulation.engine.step_plan import StepPlan
from headgate.simulation.engine.work_clock import WorkClock


class SimulatedEngine:
    def __init__(self, profile: EngineProfile, *, by_step: bool = False) -> None:
        """Creates an idle engine. With `by_step`, it never leaps and reports every step."""
        self.profile = profile
        self._by_step = by_step
        self._clock = WorkClock()
        self._sequences = Sequences(profile)
        self._leaving: list[Sequence] = []
        """Running sequences that have been cancelled and will leave at the end of the step."""
        self._step_at = Instant(0)
        """Start of the plan's first step."""
        self._plan: StepPlan | None = None
        self._start = 0
        """Total work done by the time the next step starts. Meaningful only if there is a next step."""
        self._now = Instant(0)
        self._arrivals = 0

    # -------------------------------------------------------------------------------------------------------- inputs

    def add(self, request: EngineRequest, now: Instant) -> None:
        assert self.profile.fits(request.prompt_tokens + request.output_tokens), (
            f"{request.request_id} does not fit into the KV cache"
        )
        assert request.prompt_tokens > 0, f"{request.request_id} has no prompt"
        assert request.request_id not in self._sequences.by_id, f"{request.request_id} is already known"
        self._advance_to(now)
        if not self._sequences.by_id:
            self._start, self._sequences.start_at = self._clock.work_by(now), now
            self._sequences.arrival_cutoff = now
        if len(self._sequences.running) < self.profile.sequences_max and (
            self._sequences.waiting.length == 0 or self.profile.priority_scheduling
        ):
            self._end_leap_soon()
        self._arrivals += 1
        rank = (request.priority if self.profile.priority_scheduling else 0, self._arrivals)
        sequence = self._sequences.by_id[request.request_id] = Sequence(request, rank, now)
        self._sequences.waiting.push(sequence)

    def cancel(self, request_id: RequestId, now: Instant) -> None:
        """Ends a request without an event. Has no effect if the request has already ended."""
        self._advance_to(now)
        sequence = self._sequences.by_id.get(request_id)
        if sequence is None or sequence.cancelled:
            return
        sequence.cancelled = True
        self._end_leap_soon()
        if sequence.state is SequenceState.WAITING:
            self._sequences.waiting.remove(sequence)
            self._sequences.forget(sequence)
        elif self._plan is None:
            self._sequences.drop(sequence)
        else:
            self._leaving.append(sequence)

    def stall(self, now: Instant, until: Instant) -> None:
        """Stops the engine until `until`. After that, running sequences continue where they left off."""
        self._advance_to(now)
        self._split_leap()
        self._clock.stall(now, until)

    def change_speed(self, now: Instant, speed: int) -> None:
        """Sets the speed in thousandths of the profile's speed."""
        self._advance_to(now)
        self._split_leap()
        self._clock.set_speed(now, speed)

    # ------------------------------------------------------------------------------------------------------- queries

    def next_instant(self) -> Instant | None:
        """Returns the instant to advance to next. None if the engine is idle."""
        if self._sequences.events:
            return self._now
        if self._plan is None:
            if not self._sequences.by_id:
                return None
            self._plan_next()
        assert self._plan is not None
        return self._clock.instant_of(self._plan.end)

    def advance(self, until: Instant) -> list[EngineEvent]:
        """Returns the events up to and including an instant, in order."""
        self._advance_to(until)
        happened, self._sequences.events = self._sequences.events, []
        return happened

    def state(self) -> EngineState:
        """Returns the state as of the last instant passed to the engine."""
        self._split_leap()
        accounts = self._sequences.accounting
        return EngineState(
            running=len(self._sequences.running),
            waiting=self._sequences.waiting.length,
            kv_blocks_used=self._sequences.kv.pool.used,
            kv_used_fraction=self._sequences.kv.pool.used / self._sequences.kv.pool.capacity,
            prefix_queried_tokens=accounts.prefix_queried_tokens,
            prefix_hit_tokens=accounts.prefix_hit_tokens,
            preemptions=accounts.preemptions,
            prompt_tokens=accounts.prompt_tokens,
            generated_tokens=accounts.generated_tokens,
            steps=self._sequences.batch.step,
            worked_ps=accounts.worked_ps,
        )

    def generated_tokens(self, request_id: RequestId) -> int | None:
        """Returns the number of tokens generated for a request. None if the request is unknown."""
        sequence = self._sequences.by_id.get(request_id)
        if sequence is None:
            return None
        if sequence.state is not SequenceState.DECODING:
            return sequence.generated_tokens
        self._split_leap()
        return self._sequences.batch.step + sequence.token_offset - sequence.request.prompt_tokens

    def generated_by_request(self) -> list[tuple[RequestId, int]]:
        """Returns the number of tokens generated for each running request."""
        self._split_leap()
        step = self._sequences.batch.step
        return [
            (
                request_id,
                step + each.token_offset - each.request.prompt_tokens
                if each.state is SequenceState.DECODING
                else each.generated_tokens,
            )
            for request_id, each in self._sequences.running.items()
        ]

    def cost_of(self, request_id: RequestId, *, step_finishes: bool = True) -> SequenceCost | None:
        """Returns the work done for a request so far. None if the request is unknown.

        A prompt chunk in the current step is included, unless the step will never end (`step_finishes` is False).
        Tokens in the current step are excluded.
        """
        sequence = self._sequences.by_id.get(request_id)
        if sequence is None:
            return None
        self._split_leap()
        under_way = self._plan is not None and sequence in self._plan.prefilling
        return self._sequences.accounting.cost_of(
            sequence, self._sequences.batch.step, without_chunk=under_way and not step_finishes
        )

    # ----------------------------------------------------------------------------------------------------- the loop

    def _advance_to(self, until: Instant) -> None:
        assert until >= self._now, "time must not go backwards"
        self._now = until
        while True:
            if self._plan is None:
                if not self._sequences.by_id or self._sequences.start_at >= until:
                    return
                self._plan_next()
            assert self._plan is not None
            if self._plan.end > self._clock.work_by(until):
                return
            self._finish_plan(self._plan)

    def _plan_next(self) -> None:
        """Plans the next step, or a leap that starts with it."""
        preemptions = self._sequences.accounting.preemptions
        pieces, prefill_ps = self._schedule_step()
        batch = self._sequences.batch
        if not pieces and not batch.size and self.profile.async_scheduling:
            self._sequences.free_finished()
            self._sequences.arrival_cutoff = self._sequences.start_at
            pieces, prefill_ps = self._schedule_step()
        first_ps = self.profile.decode_ps(batch.size, kv_tokens=batch.tokens) + prefill_ps
        single = (
            bool(pieces)
            or self._sequences.accounting.preemptions > preemptions
            or self._by_step
            or self._next_batch_may_differ()
        )
        steps = 1 if single else batch.steps_to_end()
        if steps > 1:
            steps = 1 + batch.steps_possible(self._sequences.kv.pool.free, steps - 1, after=1)
        growth_ps = self.profile.kv_token_ps * batch.size
        self._plan = StepPlan(self._start, first_ps=first_ps, growth_ps=growth_ps, steps=steps, pieces=pieces)
        self._step_at = self._sequences.start_at
        self._sequences.free_finished()

    def _schedule_step(self) -> tuple[list[Sequence], int]:
        """Distributes the next step's token budget. Returns the sequences that get a prompt chunk, and their work."""
        preemptions = self._sequences.accounting.preemptions
        self._sequences.allocate_decode_blocks()
        batch = self._sequences.batch
        budget = self.profile.chunk_tokens - batch.size
        pieces: list[Sequence] = []
        prefill_ps = 0
        if (partial := self._sequences.prefilling) is not None:
            chunk = self._sequences.continue_prefill(partial, budget)
            if chunk:
                pieces.append(partial)
                prefill_ps += self._sequences.accounting.charge_chunk(partial, chunk)
                budget -= chunk
        # A step with a preemption does not admit waiting sequences.
        room = self._sequences.accounting.preemptions == preemptions
        while room and budget > 0 and (chunk := self._sequences.admit(budget)):
            admitted = next(reversed(self._sequences.running.values()))
            pieces.append(admitted)
            prefill_ps += self._sequences.accounting.charge_chunk(admitted, chunk)
            budget -= chunk
        return pieces, prefill_ps

    def _next_batch_may_differ(self) -> bool:
        """Returns whether the next step may have a different batch because of events too late for this step."""
        head = self._sequences.waiting.peek() if self.profile.async_scheduling else None
        return bool(self._sequences.finished) or (head is not None and head.arrived_at > self._sequences.arrival_cutoff)

    def _finish_plan(self, plan: StepPlan) -> None:
        """Ends the plan: emits tokens and removes finished and cancelled sequences."""
        self._record_steps(plan, plan.steps)
        self._plan = None
        last_start = plan.start + plan.duration_ps(plan.steps - 1)
        self._sequences.arrival_cutoff = self._step_at if plan.steps == 1 else self._clock.instant_of(last_start)
        self._start, self._sequences.start_at = plan.end, self._clock.instant_of(plan.end)
        finished_prompts = [each for each in plan.prefilling if each.computed_tokens == each.prefill_tokens]
        if self._by_step:
            self._emit_step(plan, finished_prompts)
        for sequence in self._sequences.batch.pop_finished():
            self._sequences.leave_batch(sequence)
            self._sequences.finish(sequence)
        for sequence in finished_prompts:
            self._sequences.finish_prompt(sequence)
        leaving, self._leaving = self._leaving, []
        for sequence in leaving:
            self._sequences.drop(sequence)

    def _record_steps(self, plan: StepPlan, steps: int) -> None:
        """Counts the plan's finished steps, and allocates the blocks for the following step if there is one."""
        batch = self._sequences.batch
        further = steps if steps < plan.steps else steps - 1
        if further:
            self._sequences.kv.pool.allocate(batch.blocks_needed(further, after=1))
        batch.step += steps
        self._sequences.allocated_step = batch.step + (steps < plan.steps)
        self._sequences.accounting.record_steps(plan, steps, decoding=batch.size)

    def _emit_step(self, plan: StepPlan, finished_prompts: list[Sequence]) -> None:
        decoded = [
            each
            for each in self._sequences.running.values()
            if each.state is SequenceState.DECODING and not each.cancelled
        ] + [each for each in finished_prompts if each.request.output_tokens and not each.cancelled]
        ids = [each.request.request_id for each in decoded]
        self._sequences.events.append(StepFinished(self._sequences.start_at, plan.first_ps, ids))

    def _end_leap_soon(self) -> None:
        """Shortens a leap to the current step, because the next step may have a different batch."""
        if self._plan is not None and self._plan.steps > 1:
            # A step that ends at this instant includes arrivals at this instant.
            ended = self._plan.steps_done_by(self._clock.work_by(Instant(self._now - 1)))
            self._plan.steps = min(self._plan.steps, ended + 1)

    def _split_leap(self) -> None:
        """Counts the steps in a leap that have ended by now."""
        plan = self._plan
        if plan is None or not (ended := plan.steps_done_by(self._clock.work_by(self._now))):
            return
        if self._clock.instant_of(plan.start + plan.duration_ps(ended)) >= self._now:
            # The last finished step ends at this instant. The next one has not started and has not allocated its
            # blocks.
            plan.steps = ended
            self._finish_plan(plan)
        else:
            self._record_steps(plan, ended)
            plan.skip(ended)
            self._step_at = self._clock.instant_of(plan.start)
