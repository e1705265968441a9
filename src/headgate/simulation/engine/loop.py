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
from headgate.simulation.engine.pace import Pace
from headgate.simulation.engine.plan import Plan
from headgate.simulation.engine.sequence import (
    EngineRequest,
    Happening,
    Place,
    Sequence,
    Spent,
    Stepped,
)
from headgate.simulation.engine.sequences import Sequences
from headgate.simulation.engine.state import EngineState


class SimulatedEngine:
    def __init__(self, profile: EngineProfile, *, by_step: bool = False) -> None:
        """`by_step` never leaps, and tells of each step."""
        self.profile = profile
        self._by_step = by_step
        self._pace = Pace()
        self._sequences = Sequences(profile)
        self._leaving: list[Sequence] = []
        """Cancelled while they run."""
        self._step_at = Instant(0)
        """When the first step of the plan started."""
        self._plan: Plan | None = None
        self._start = 0
        """The work at which the next step starts, if there is one to make."""
        self._now = Instant(0)
        self._arrivals = 0

    # ------------------------------------------------------------------------------------------ what its owner says

    def add(self, request: EngineRequest, now: Instant) -> None:
        assert self.profile.fits(request.prompt_tokens + request.output_tokens), f"{request.request_id} can never fit"
        assert request.prompt_tokens > 0, f"{request.request_id} has no prompt"
        assert request.request_id not in self._sequences.known, f"{request.request_id} is here already"
        self._run_to(now)
        if not self._sequences.known:
            self._start, self._sequences.start_at = self._pace.work(now), now
            self._sequences.seen_at = now
        if len(self._sequences.running) < self.profile.sequences_max and (
            self._sequences.waiting.length == 0 or self.profile.by_priority
        ):
            self._end_leap_soon()
        self._arrivals += 1
        rank = (request.priority if self.profile.by_priority else 0, self._arrivals)
        sequence = self._sequences.known[request.request_id] = Sequence(request, rank, now)
        self._sequences.waiting.join(sequence)

    def cancel(self, request_id: RequestId, now: Instant) -> None:
        """Ends a request without a word; one that has ended already is nobody's mistake."""
        self._run_to(now)
        sequence = self._sequences.known.get(request_id)
        if sequence is None or sequence.cancelled:
            return
        sequence.cancelled = True
        self._end_leap_soon()
        if sequence.place is Place.WAITING:
            self._sequences.waiting.leave(sequence)
            self._sequences.forget(sequence)
        elif self._plan is None:
            self._sequences.drop(sequence)
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
        if self._sequences.happened:
            return self._now
        if self._plan is None:
            if not self._sequences.known:
                return None
            self._begin()
        assert self._plan is not None
        return self._pace.instant(self._plan.end)

    def advance(self, until: Instant) -> list[Happening]:
        """What has happened up to and including an instant, in order."""
        self._run_to(until)
        happened, self._sequences.happened = self._sequences.happened, []
        return happened

    def state(self) -> EngineState:
        """As of the last instant it was told."""
        self._split_leap()
        accounts = self._sequences.accounts
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

    def generated(self, request_id: RequestId) -> int | None:
        """How many tokens a request has by now; None if it is not here."""
        sequence = self._sequences.known.get(request_id)
        if sequence is None:
            return None
        if sequence.place is not Place.DECODING:
            return sequence.generated
        self._split_leap()
        return self._sequences.batch.step + sequence.ahead - sequence.request.prompt_tokens

    def produced(self) -> list[tuple[RequestId, int]]:
        """How many tokens each running request has by now."""
        self._split_leap()
        step = self._sequences.batch.step
        return [
            (
                request_id,
                step + each.ahead - each.request.prompt_tokens if each.place is Place.DECODING else each.generated,
            )
            for request_id, each in self._sequences.running.items()
        ]

    def spent(self, request_id: RequestId, *, step_ends: bool = True) -> Spent | None:
        """What has been done for a request by now; None if it is not here.

        Of the step that goes on a chunk of its prompt counts, unless that step will never end; a token does not.
        """
        sequence = self._sequences.known.get(request_id)
        if sequence is None:
            return None
        self._split_leap()
        under_way = self._plan is not None and sequence in self._plan.pieces
        return self._sequences.accounts.spent(
            sequence, self._sequences.batch.step, without_chunk=under_way and not step_ends
        )

    # ----------------------------------------------------------------------------------------------------- the loop

    def _run_to(self, until: Instant) -> None:
        assert until >= self._now, "time does not go backwards"
        self._now = until
        while True:
            if self._plan is None:
                if not self._sequences.known or self._sequences.start_at >= until:
                    return
                self._begin()
            assert self._plan is not None
            if self._plan.end > self._pace.work(until):
                return
            self._end(self._plan)

    def _begin(self) -> None:
        """Makes the next step, or the leap that starts with it."""
        preemptions = self._sequences.accounts.preemptions
        pieces, prefill_ps = self._compose()
        batch = self._sequences.batch
        if not pieces and not batch.size and self.profile.asynchronous:
            self._sequences.part()
            self._sequences.seen_at = self._sequences.start_at
            pieces, prefill_ps = self._compose()
        first_ps = self.profile.decode_ps(batch.size, kv_tokens=batch.tokens) + prefill_ps
        single = (
            bool(pieces)
            or self._sequences.accounts.preemptions > preemptions
            or self._by_step
            or self._next_sees_more()
        )
        steps = 1 if single else batch.steps_to_end()
        if steps > 1:
            steps = 1 + batch.steps_with(self._sequences.kv.pool.free, steps - 1, after=1)
        growth_ps = self.profile.kv_token_ps * batch.size
        self._plan = Plan(self._start, first_ps=first_ps, growth_ps=growth_ps, steps=steps, pieces=pieces)
        self._step_at = self._sequences.start_at
        self._sequences.part()

    def _compose(self) -> tuple[list[Sequence], int]:
        """Gives the next step's tokens to sequences; those that get a chunk of their prompt, and what that takes."""
        preemptions = self._sequences.accounts.preemptions
        self._sequences.make_room()
        batch = self._sequences.batch
        budget = self.profile.chunk_tokens - batch.size
        pieces: list[Sequence] = []
        prefill_ps = 0
        if (partial := self._sequences.partial) is not None:
            chunk = self._sequences.go_on(partial, budget)
            if chunk:
                pieces.append(partial)
                prefill_ps += self._sequences.accounts.give_chunk(partial, chunk)
                budget -= chunk
        # A step that preempts admits nobody.
        room = self._sequences.accounts.preemptions == preemptions
        while room and budget > 0 and (chunk := self._sequences.admit(budget)):
            admitted = next(reversed(self._sequences.running.values()))
            pieces.append(admitted)
            prefill_ps += self._sequences.accounts.give_chunk(admitted, chunk)
            budget -= chunk
        return pieces, prefill_ps

    def _next_sees_more(self) -> bool:
        """Whether the step after the one that was just composed may be another for what that one could not know."""
        head = self._sequences.waiting.first() if self.profile.asynchronous else None
        return bool(self._sequences.parting) or (head is not None and head.arrived_at > self._sequences.seen_at)

    def _end(self, plan: Plan) -> None:
        """The plan's last step is over: tokens come out, sequences come and go."""
        self._make_steps(plan, plan.steps)
        self._plan = None
        last_start = plan.start + plan.length(plan.steps - 1)
        self._sequences.seen_at = self._step_at if plan.steps == 1 else self._pace.instant(last_start)
        self._start, self._sequences.start_at = plan.end, self._pace.instant(plan.end)
        finished_prompts = [each for each in plan.pieces if each.computed == each.goal]
        if self._by_step:
            self._tell_step(plan, finished_prompts)
        for sequence in self._sequences.batch.ended():
            self._sequences.leave_batch(sequence)
            self._sequences.finish(sequence)
        for sequence in finished_prompts:
            self._sequences.finish_prompt(sequence)
        leaving, self._leaving = self._leaving, []
        for sequence in leaving:
            self._sequences.drop(sequence)

    def _make_steps(self, plan: Plan, steps: int) -> None:
        """Accounts for steps of the plan that have ended, with the blocks of the next if one follows."""
        batch = self._sequences.batch
        further = steps if steps < plan.steps else steps - 1
        if further:
            self._sequences.kv.pool.take(batch.blocks_needed(further, after=1))
        batch.step += steps
        self._sequences.grown = batch.step + (steps < plan.steps)
        self._sequences.accounts.make_steps(plan, steps, decoding=batch.size)

    def _tell_step(self, plan: Plan, finished_prompts: list[Sequence]) -> None:
        decoded = [
            each for each in self._sequences.running.values() if each.place is Place.DECODING and not each.cancelled
        ] + [each for each in finished_prompts if each.request.output_tokens and not each.cancelled]
        ids = [each.request.request_id for each in decoded]
        self._sequences.happened.append(Stepped(self._sequences.start_at, plan.first_ps, ids))

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
