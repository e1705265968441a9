"""What does an engine like vLLM do next, and when?

Each step takes the running sequences first: one token for each that decodes, the next chunk for the one whose prompt is
not finished. What is left of the step's tokens goes to waiting sequences in their order, as long as there is a place,
and as long as the whole prompt would fit into free blocks. Where a running sequence cannot get a block the newest
running one is preempted: it waits at the head again and is computed anew, less what the prefix cache still holds of it.
At most one running sequence has an unfinished prompt, since only the end of the tokens of a step cuts a prompt short.

Pure code: no clock, no chance. Its owner says what arrives and when, asks for the next instant at which something
happens, and advances it there. While the batch stays the same the engine leaps over any number of steps in one go;
the instants, tokens and state are exactly those of going step by step.

A step takes in what came up to the instant it starts. It is fixed when somebody asks beyond that instant, so several
requests that come at one instant start together. A sequence that is cancelled while it runs leaves when its step ends.

An engine that schedules asynchronously composes a step when the one before it starts. So a step takes in only what had
come by then, and whoever ends with the step before still has a place and blocks while it is composed. When all that ran
has ended there is nothing to compose ahead, and the next step is composed when it starts.

What is not as in vLLM: a sequence preempted by priority does not cost others their turn in that step; all gauges are
those of this instant, where vLLM's are written after a step.
"""

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.accounts import Accounts
from headgate.simulation.engine.batch import DecodeBatch
from headgate.simulation.engine.kv_cache import KvCache
from headgate.simulation.engine.line import WaitingLine
from headgate.simulation.engine.pace import Pace
from headgate.simulation.engine.plan import Plan
from headgate.simulation.engine.sequence import (
    EngineRequest,
    Finished,
    FirstToken,
    Happening,
    Place,
    Preempted,
    Sequence,
    Spent,
    Stepped,
)
from headgate.simulation.engine.state import EngineState


class SimulatedEngine:
    def __init__(self, profile: EngineProfile, *, by_step: bool = False) -> None:
        """`by_step` never leaps, and tells of each step."""
        self.profile = profile
        self._by_step = by_step
        self._pace = Pace()
        self._kv = KvCache(profile)
        self._batch = DecodeBatch(profile.block_tokens)
        self._grown = 0
        """Up to which step, itself excluded, decoding sequences have their blocks."""
        self._known: dict[RequestId, Sequence] = {}
        self._waiting = WaitingLine()
        self._running: dict[RequestId, Sequence] = {}
        self._partial: Sequence | None = None
        self._leaving: list[Sequence] = []
        """Cancelled while they run."""
        self._parting: list[Sequence] = []
        """Have ended, but the next step is composed without knowing it."""
        self._seen_at = Instant(0)
        """What came later is not seen by the next step, if that is composed ahead."""
        self._step_at = Instant(0)
        """When the first step of the plan started."""
        self._plan: Plan | None = None
        self._start = 0
        """The work at which the next step starts, if there is one to make."""
        self._start_at = Instant(0)
        self._now = Instant(0)
        self._accounts = Accounts(profile)
        self._happened: list[Happening] = []
        self._arrivals = 0

    # ------------------------------------------------------------------------------------------ what its owner says

    def add(self, request: EngineRequest, now: Instant) -> None:
        assert self.profile.fits(request.prompt_tokens + request.output_tokens), f"{request.request_id} can never fit"
        assert request.prompt_tokens > 0, f"{request.request_id} has no prompt"
        assert request.request_id not in self._known, f"{request.request_id} is here already"
        self._run_to(now)
        if not self._known:
            self._start, self._start_at = self._pace.work(now), now
            self._seen_at = now
        if len(self._running) < self.profile.sequences_max and (self._waiting.length == 0 or self.profile.by_priority):
            self._end_leap_soon()
        self._arrivals += 1
        rank = (request.priority if self.profile.by_priority else 0, self._arrivals)
        sequence = self._known[request.request_id] = Sequence(request, rank, now)
        self._waiting.join(sequence)

    def cancel(self, request_id: RequestId, now: Instant) -> None:
        """Ends a request without a word; one that has ended already is nobody's mistake."""
        self._run_to(now)
        sequence = self._known.get(request_id)
        if sequence is None or sequence.cancelled:
            return
        sequence.cancelled = True
        self._end_leap_soon()
        if sequence.place is Place.WAITING:
            self._waiting.leave(sequence)
            self._forget(sequence)
        elif self._plan is None:
            self._drop(sequence)
        else:
            self._leaving.append(sequence)

    def stall(self, now: Instant, until: Instant) -> None:
        """Stands still; what runs goes on afterwards where it was."""
        self._run_to(now)
        self._split_leap()
        self._pace.stall(now, until)

    def change_speed(self, now: Instant, speed: int) -> None:
        """In thousandths of the profile's."""
        self._run_to(now)
        self._split_leap()
        self._pace.change(now, speed)

    # ----------------------------------------------------------------------------------------------- what it answers

    def next_instant(self) -> Instant | None:
        """When to advance it next; None while it has nothing to do."""
        if self._happened:
            return self._now
        if self._plan is None:
            if not self._known:
                return None
            self._begin()
        assert self._plan is not None
        return self._pace.instant(self._plan.end)

    def advance(self, until: Instant) -> list[Happening]:
        """What has happened up to and including an instant, in order."""
        self._run_to(until)
        happened, self._happened = self._happened, []
        return happened

    def state(self) -> EngineState:
        """As of the last instant it was told."""
        self._split_leap()
        accounts = self._accounts
        return EngineState(
            running=len(self._running),
            waiting=self._waiting.length,
            kv_blocks_used=self._kv.pool.used,
            kv_used_fraction=self._kv.pool.used / self._kv.pool.capacity,
            prefix_queried_tokens=accounts.prefix_queried_tokens,
            prefix_hit_tokens=accounts.prefix_hit_tokens,
            preemptions=accounts.preemptions,
            prompt_tokens=accounts.prompt_tokens,
            generated_tokens=accounts.generated_tokens,
            steps=self._batch.step,
            worked_ps=accounts.worked_ps,
        )

    def generated(self, request_id: RequestId) -> int | None:
        """How many tokens a request has by now; None if it is not here."""
        sequence = self._known.get(request_id)
        if sequence is None:
            return None
        if sequence.place is not Place.DECODING:
            return sequence.generated
        self._split_leap()
        return self._batch.step + sequence.ahead - sequence.request.prompt_tokens

    def produced(self) -> list[tuple[RequestId, int]]:
        """How many tokens each running request has by now."""
        self._split_leap()
        step = self._batch.step
        return [
            (
                request_id,
                step + each.ahead - each.request.prompt_tokens if each.place is Place.DECODING else each.generated,
            )
            for request_id, each in self._running.items()
        ]

    def spent(self, request_id: RequestId, *, step_ends: bool = True) -> Spent | None:
        """What has been done for a request by now; None if it is not here.

        Of the step that goes on a chunk of its prompt counts, unless that step will never end; a token does not.
        """
        sequence = self._known.get(request_id)
        if sequence is None:
            return None
        self._split_leap()
        under_way = self._plan is not None and sequence in self._plan.pieces
        return self._accounts.spent(sequence, self._batch.step, without_chunk=under_way and not step_ends)

    # ----------------------------------------------------------------------------------------------------- the loop

    def _run_to(self, until: Instant) -> None:
        assert until >= self._now, "time does not go backwards"
        self._now = until
        while True:
            if self._plan is None:
                if not self._known or self._start_at >= until:
                    return
                self._begin()
            assert self._plan is not None
            if self._plan.end > self._pace.work(until):
                return
            self._end(self._plan)

    def _begin(self) -> None:
        """Makes the next step, or the leap that starts with it."""
        preemptions = self._accounts.preemptions
        pieces, prefill_ps = self._compose()
        batch = self._batch
        if not pieces and not batch.size and self.profile.asynchronous:
            self._part()
            self._seen_at = self._start_at
            pieces, prefill_ps = self._compose()
        first_ps = self.profile.decode_ps(batch.size, kv_tokens=batch.tokens) + prefill_ps
        single = bool(pieces) or self._accounts.preemptions > preemptions or self._by_step or self._next_sees_more()
        steps = 1 if single else batch.steps_to_end()
        if steps > 1:
            steps = 1 + batch.steps_with(self._kv.pool.free, steps - 1, after=1)
        growth_ps = self.profile.kv_token_ps * batch.size
        self._plan = Plan(self._start, first_ps=first_ps, growth_ps=growth_ps, steps=steps, pieces=pieces)
        self._step_at = self._start_at
        self._part()

    def _compose(self) -> tuple[list[Sequence], int]:
        """Gives the next step's tokens to sequences; those that get a chunk of their prompt, and what that takes."""
        preemptions = self._accounts.preemptions
        self._make_room()
        batch = self._batch
        budget = self.profile.chunk_tokens - batch.size
        pieces: list[Sequence] = []
        prefill_ps = 0
        if (partial := self._partial) is not None:
            chunk = self._continue(partial, budget)
            if chunk:
                pieces.append(partial)
                prefill_ps += self._accounts.give_chunk(partial, chunk)
                budget -= chunk
        # A step that preempts admits nobody.
        room = self._accounts.preemptions == preemptions
        while room and budget > 0 and (chunk := self._admit(budget)):
            admitted = next(reversed(self._running.values()))
            pieces.append(admitted)
            prefill_ps += self._accounts.give_chunk(admitted, chunk)
            budget -= chunk
        return pieces, prefill_ps

    def _next_sees_more(self) -> bool:
        """Whether the step after the one that was just composed may be another for what that one could not know."""
        head = self._waiting.first() if self.profile.asynchronous else None
        return bool(self._parting) or (head is not None and head.arrived_at > self._seen_at)

    def _end(self, plan: Plan) -> None:
        """The plan's last step is over: tokens come out, sequences come and go."""
        self._make_steps(plan, plan.steps)
        self._plan = None
        last_start = plan.start + plan.length(plan.steps - 1)
        self._seen_at = self._step_at if plan.steps == 1 else self._pace.instant(last_start)
        self._start, self._start_at = plan.end, self._pace.instant(plan.end)
        finished_prompts = [each for each in plan.pieces if each.computed == each.goal]
        if self._by_step:
            self._tell_step(plan, finished_prompts)
        for sequence in self._batch.ended():
            self._leave_batch(sequence)
            self._finish(sequence)
        for sequence in finished_prompts:
            self._finish_prompt(sequence)
        leaving, self._leaving = self._leaving, []
        for sequence in leaving:
            self._drop(sequence)

    def _make_steps(self, plan: Plan, steps: int) -> None:
        """Accounts for steps of the plan that have ended, with the blocks of the next if one follows."""
        batch = self._batch
        further = steps if steps < plan.steps else steps - 1
        if further:
            self._kv.pool.take(batch.blocks_needed(further, after=1))
        batch.step += steps
        self._grown = batch.step + (steps < plan.steps)
        self._accounts.make_steps(plan, steps, decoding=batch.size)

    def _tell_step(self, plan: Plan, finished_prompts: list[Sequence]) -> None:
        decoded = [each for each in self._running.values() if each.place is Place.DECODING and not each.cancelled] + [
            each for each in finished_prompts if each.request.output_tokens and not each.cancelled
        ]
        ids = [each.request.request_id for each in decoded]
        self._happened.append(Stepped(self._start_at, plan.first_ps, ids))

    def _end_leap_soon(self) -> None:
        """Lets a leap end with the step that goes on, since the next one may have another batch."""
        if self._plan is not None and self._plan.steps > 1:
            # A step that ends at this very instant has room for what comes at this instant.
            ended = self._plan.steps_by(self._pace.work(Instant(self._now - 1)))
            self._plan.steps = min(self._plan.steps, ended + 1)

    def _split_leap(self) -> None:
        """Accounts for those steps of a leap that have ended by now."""
        plan = self._plan
        if plan is None or not (ended := plan.steps_by(self._pace.work(self._now))):
            return
        if self._pace.instant(plan.start + plan.length(ended)) >= self._now:
            # The last of them ends at this very instant, and the next has yet to begin and take its blocks.
            plan.steps = ended
            self._end(plan)
        else:
            self._make_steps(plan, ended)
            plan.skip(ended)
            self._step_at = self._pace.instant(plan.start)

    # ----------------------------------------------------------------------------------------- the life of a sequence

    def _admit(self, budget: int) -> int:
        """Starts the first in the queue if it fits; the size of its first chunk."""
        sequence = self._waiting.first()
        if sequence is None or len(self._running) + len(self._parting) >= self.profile.sequences_max:
            return 0
        if self.profile.asynchronous and sequence.arrived_at > self._seen_at:
            return 0
        sequence.goal = sequence.request.prompt_tokens + sequence.generated
        if not self._kv.find(sequence):
            return 0
        self._waiting.pop()
        self._running[sequence.request.request_id] = sequence
        sequence.place = Place.PREFILLING
        self._accounts.enter(sequence)
        if sequence.begun_at is None:
            sequence.begun_at = self._start_at
            sequence.cached_tokens = sequence.computed
            self._accounts.prefix_queried_tokens += sequence.goal
            self._accounts.prefix_hit_tokens += sequence.computed
        return self._compute(sequence, min(sequence.goal - sequence.computed, budget))

    def _compute(self, sequence: Sequence, chunk: int) -> int:
        self._kv.extend(sequence, chunk)
        self._partial = sequence if sequence.computed < sequence.goal else None
        return chunk

    def _continue(self, sequence: Sequence, budget: int) -> int:
        """The next chunk of a prompt that was begun; none if it is preempted for want of blocks."""
        chunk = min(sequence.goal - sequence.computed, budget)
        while not self._kv.has_room(sequence, chunk):
            if self._preempt_one() is sequence:
                return 0
        return self._compute(sequence, chunk)

    def _make_room(self) -> None:
        """Takes the blocks of the next step's decoding sequences, if need be from one of them."""
        while (needed := self._batch.blocks_needed(1)) > self._kv.pool.free:
            self._preempt_one()
        self._kv.pool.take(needed)
        self._grown = self._batch.step + 1

    def _preempt_one(self) -> Sequence:
        running = self._running.values()
        # Sequences start in their order, so without priorities the last is the greatest in rank.
        victim = max(running, key=lambda each: each.rank) if self.profile.by_priority else next(reversed(running))
        self._kv.set_aside(victim, self._take_out(victim))
        victim.preemptions += 1
        self._accounts.preemptions += 1
        self._happened.append(Preempted(victim.request.request_id, self._start_at))
        self._waiting.join(victim)
        return victim

    def _take_out(self, sequence: Sequence) -> int:
        """Takes a sequence out of the running ones; how many blocks it holds."""
        profile = self.profile
        del self._running[sequence.request.request_id]
        self._accounts.leave(sequence)
        if sequence.place is Place.DECODING:
            self._leave_batch(sequence)
            return profile.blocks(sequence.ahead + self._grown - 1)
        if sequence is self._partial:
            self._partial = None
        return profile.blocks(sequence.computed)

    def _leave_batch(self, sequence: Sequence) -> None:
        self._accounts.stop_decoding(sequence, self._batch.step)
        self._batch.leave(sequence)

    def _finish_prompt(self, sequence: Sequence) -> None:
        """All that was to be computed is, and the next token comes out, unless nobody wants one."""
        request = sequence.request
        self._accounts.prompt_tokens += request.prompt_tokens if sequence.first_token_at is None else 0
        if request.output_tokens:
            sequence.generated += 1
            self._accounts.generated_tokens += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = self._start_at
            if request.output_tokens and not sequence.cancelled:
                self._happened.append(FirstToken(request.request_id, self._start_at))
        if sequence.generated >= request.output_tokens:
            self._finish(sequence)
        else:
            self._batch.join(sequence)

    def _finish(self, sequence: Sequence) -> None:
        request = sequence.request
        del self._running[request.request_id]
        self._accounts.leave(sequence)
        self._parting.append(sequence)
        if not self.profile.asynchronous:
            self._part()
        self._forget(sequence)
        if sequence.cancelled:
            return
        assert sequence.begun_at is not None
        assert sequence.first_token_at is not None
        self._happened.append(
            Finished(
                request.request_id,
                self._start_at,
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

    def _part(self) -> None:
        """Takes the blocks of those who have ended."""
        for sequence in self._parting:
            self._kv.give_back(sequence, self.profile.blocks(sequence.computed))
        self._parting.clear()

    def _drop(self, sequence: Sequence) -> None:
        """Ends a cancelled sequence between two steps."""
        if sequence.place is not Place.GONE:
            self._kv.give_back(sequence, self._take_out(sequence))
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        sequence.place = Place.GONE
        self._known.pop(sequence.request.request_id, None)
        if not self._known:
            self._part()
