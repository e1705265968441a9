"""Attributes each endpoint's time to the attempts it serves.

All of an endpoint's time is accounted for, from the moment it joins until it has left. If no attempt is in flight, the
endpoint is starting, not ready, or idle. Otherwise, its time is divided among the attempts in flight. A step of an
engine has a fixed cost `a`, and each sequence adds a cost `m`. With B sequences in flight, a step costs W = a + Σ m,
and each sequence gets

    (m + a/B) / W

of the time: its own work and an equal share of the fixed cost. A request with several prompts counts as that many
sequences. The work per step changes once, when the prefill ends (`prefill_step_ps`, `decode_step_ps`). Time before that
is input and time after it is output. An attempt that is still in flight after its request has ended is called late. A
late attempt gets its share like any other, but no tenant is billed for it.

Starting, changing and ending an attempt each take a constant number of operations, regardless of the number of attempts
in flight. Two running sums over time are kept, one of 1/W and one of a/(B·W), and each attempt stores the values they
had when it started. The sums are integers on a fine scale. Each rounding remainder is carried to the next attempt that
is measured, and the last attempt before the endpoint becomes empty gets the rest. Bills then add up exactly to the
billed time. If that last attempt was late, the one or two missing nanoseconds go to the next attempt.

Endpoints of several pools on one engine have one clock. One of them reports the engine's time, except for the attempts
of the others: their time is reported under their own endpoints once it has been measured.

An island owns a fraction of each endpoint and accounts for that fraction of the endpoint's time.

Limitations:

- The cost per step uses predicted prompt and response lengths.
- Time used under an earlier scheduler is estimated from the attempt's age and its share at the takeover (`adopt`). It
  is not part of this scheduler's `EndpointTime`, because the earlier scheduler has reported it as billed.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headgate.model.money import EndpointTime
from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration, EndpointId, Instant, PoolName

_BITS: Final = 64
"""Resolution of the time sums. After a hundred thousand changes, less than one nanosecond has been lost."""
_FRACTION: Final = (1 << _BITS) - 1
_HALF: Final = 1 << _BITS - 1
_NO_TIME: Final = Duration(0)
DEPARTED_MAX: Final = 1_024
"""Maximum number of departed endpoints with uncollected time."""
TIMES_MAX: Final = 65_536
"""Maximum number of endpoints in one time report."""


def prefill_step_ps(speed: EngineSpeed, prompt_tokens: int, cached_tokens: int, prompts: int = 1) -> int:
    """Returns the time that a prompt adds to each of its prefill steps.

    A prompt longer than a chunk takes several steps.
    """
    whole = speed.prefill_ps(prompt_tokens, cached_tokens, prompts)
    chunk, pending = speed.chunk_tokens, prompt_tokens - cached_tokens
    return whole if pending <= chunk else whole * chunk // pending


def decode_step_ps(speed: EngineSpeed, prompt_tokens: int, output_tokens: int, answers: int) -> int:
    """Returns the time that completions add to each decode step, averaged over their length."""
    return speed.decode_sequence_ps * answers + speed.kv_token_ps * (prompt_tokens + output_tokens // 2)


class AttemptTime:
    """One attempt's share of its endpoint's time."""

    __slots__ = (
        "added_step_ps",
        "clock",
        "input_ns",
        "output_ns",
        "prefill_scaled",
        "prefilled",
        "request_ended",
        "sequences",
        "shared_ns",
        "shared_since",
        "since",
    )

    def __init__(self, clock: "EngineTime", adds_ps: int, sequences: int, since: int, shared_since: int) -> None:
        self.clock = clock
        """Clock that measures the attempt. An endpoint that joins a shared engine changes its clock."""
        self.added_step_ps = adds_ps
        """Time that the attempt adds to a step, in picoseconds."""
        self.sequences = sequences
        """Number of equal shares of a step's fixed cost that the attempt carries."""
        self.request_ended = False
        """Whether the request has ended but the attempt is still in flight. If so, the attempt is already measured."""
        self.input_ns = self.output_ns = self.shared_ns = _NO_TIME
        """Measured times. They are set once the attempt has been measured."""
        self.prefilled = False
        self.prefill_scaled = 0
        """Prefill time on the fine scale. It is set once the prefill has ended."""
        self.since, self.shared_since = since, shared_since
        """The endpoint's time sums when the attempt or its decoding started."""


class EngineTime:
    """The time of one endpoint."""

    __slots__ = (
        "_abort_lag_reported_ns",
        "_added_ps",
        "_adopted",
        "_at",
        "_attributed_ns",
        "_busy_ns",
        "_busy_reported_ns",
        "_carry",
        "_due",
        "_in_flight",
        "_late",
        "_late_count",
        "_late_ps",
        "_popped_at",
        "_popped_remainder_ns",
        "_remainder_ns",
        "_scheduler_count",
        "_shared",
        "_step_ps",
        "_virtual",
        "abort_lag_ns",
        "billed_ns",
        "endpoint_id",
        "ever_ready",
        "idle_ns",
        "pool",
        "ready",
        "starting_ns",
        "unready_ns",
    )

    def __init__(
        self, endpoint_id: EndpointId, pool: PoolName, speed: EngineSpeed, now: Instant, *, scheduler_count: int
    ) -> None:
        """`scheduler_count` is the number of schedulers that share this endpoint."""
        self.endpoint_id, self.pool = endpoint_id, pool
        self._step_ps = max(1, speed.step_ps)
        self._scheduler_count = scheduler_count
        self._at = self._popped_at = now
        self._remainder_ns = self._popped_remainder_ns = 0
        """Sub-nanosecond remainder of this scheduler's fraction."""
        self.ready = self.ever_ready = False
        """Whether the endpoint is ready, and whether it has ever been."""
        self.starting_ns = self.unready_ns = self.idle_ns = self.billed_ns = self.abort_lag_ns = 0
        """Times since the last `pop`."""
        self._adopted: list[tuple[AttemptTime, Duration, int]] = []
        """Adopted attempts whose earlier time is estimated once all are known. Each entry holds the attempt, its age
        and the fraction of its work that is input."""
        self._due: dict[tuple[EndpointId, PoolName], int] | None = None
        """Measured time of attempts by endpoint, to be reported under these endpoints. None if there is only one."""
        self._in_flight = self._added_ps = 0
        self._late_count = self._late_ps = 0
        """Sequences in flight that belong to late attempts, and the time they add to a step."""
        self._reset(0)

    def _reset(self, lost_ns: int) -> None:
        """Resets the sums of an empty endpoint. `lost_ns` is time reported as billed that belongs to no attempt yet."""
        self._virtual = self._shared = self._late = 0
        """Sums over time of 1/W, of a/(B·W) and of the shares of late attempts."""
        self._carry, self._attributed_ns = lost_ns << _BITS, 0
        """Rounding carry for the next measured attempt, and total time of the attempts measured so far."""
        self._busy_ns = self._busy_reported_ns = lost_ns
        self._abort_lag_reported_ns = 0
        """Parts of `_busy_ns` and `_late` that `billed_ns` and `abort_lag_ns` already include."""

    # Time

    def advance(self, now: Instant) -> None:
        passed = now - self._at
        if passed <= 0:
            return
        self._at = now
        if self._scheduler_count > 1:
            passed, self._remainder_ns = divmod(passed + self._remainder_ns, self._scheduler_count)
        if self._in_flight:
            if self._adopted:
                self._estimate_adopted()
            self._busy_ns += passed
            virtual = (passed << _BITS) // (self._step_ps + self._added_ps)
            even = virtual * self._step_ps // self._in_flight
            self._virtual += virtual
            self._shared += even
            if self._late_count:
                self._late += virtual * self._late_ps + even * self._late_count
        elif self.ready:
            self.idle_ns += passed
        elif self.ever_ready:
            self.unready_ns += passed
        else:
            self.starting_ns += passed

    def mark_ready(self, now: Instant) -> None:
        self.advance(now)
        self.ready = self.ever_ready = True

    def mark_unready(self, now: Instant) -> None:
        self.advance(now)
        self.ready = False

    def change_speed(self, speed: EngineSpeed, now: Instant) -> None:
        """Changes the fixed cost of a step. Attempts in flight keep the cost that they add."""
        self.advance(now)
        self._step_ps = max(1, speed.step_ps)

    # Attempts

    def begin(self, adds_ps: int, now: Instant, sequences: int = 1) -> AttemptTime:
        if now > self._at:
            self.advance(now)
        stay = AttemptTime(self, adds_ps, sequences, self._virtual, self._shared)
        self._in_flight += sequences
        self._added_ps += adds_ps
        return stay

    def begin_at_decode(self, adds_ps: int, now: Instant, sequences: int) -> AttemptTime:
        """Like `begin` and `begin_decode` at the same time, for a prompt that needs no time."""
        stay = self.begin(adds_ps, now, sequences)
        stay.prefilled = True
        return stay

    def begin_decode(self, stay: AttemptTime, adds_ps: int, now: Instant) -> None:
        """Records that the prefill has ended. From now on, the attempt adds `adds_ps` to each step."""
        if now > self._at:
            self.advance(now)
        stay.prefill_scaled, stay.since = stay.added_step_ps * (self._virtual - stay.since), self._virtual
        stay.prefilled = True
        self._added_ps += adds_ps - stay.added_step_ps
        if stay.request_ended:
            self._late_ps += adds_ps - stay.added_step_ps
        stay.added_step_ps = adds_ps

    def adopt(self, stay: AttemptTime, age_ns: Duration, *, input_ps: int, output_ps: int) -> None:
        """Records an attempt that started under another scheduler, with its age and its estimated work."""
        self._adopted.append((stay, age_ns, (input_ps << _BITS) // max(1, input_ps + output_ps)))

    def _estimate_adopted(self) -> None:
        """Estimates the time that adopted attempts used before the takeover."""
        whole_ps = self._step_ps + self._added_ps
        for stay, age_ns, input_part in self._adopted:
            ours_ns = age_ns // self._scheduler_count
            work_ns = ours_ns * stay.added_step_ps // whole_ps
            stay.input_ns = Duration(work_ns * input_part >> _BITS)
            stay.output_ns = Duration(work_ns - stay.input_ns)
            stay.shared_ns = Duration(ours_ns * self._step_ps * stay.sequences // (whole_ps * self._in_flight))
        self._adopted.clear()

    def mark_request_ended(self, stay: AttemptTime, now: Instant) -> None:
        """Measures an attempt whose request has ended. Time after this point is not billed."""
        self.advance(now)
        self._measure(stay)
        self.count_request_ended(stay)

    def count_request_ended(self, stay: AttemptTime) -> None:
        """Marks the attempt as late. Time after this point is not billed."""
        stay.request_ended = True
        self._late_count += stay.sequences
        self._late_ps += stay.added_step_ps

    def end(self, stay: AttemptTime, now: Instant) -> None:
        """Measures the attempt unless it is late. The last attempt on the endpoint gets the rounding remainder."""
        if now > self._at:
            self.advance(now)
        if stay.request_ended:
            self._late_count -= stay.sequences
            self._late_ps -= stay.added_step_ps
        else:
            self._measure(stay)
        self._in_flight -= stay.sequences
        self._added_ps -= stay.added_step_ps
        if not self._in_flight:
            lost_ns = self._busy_ns - self._attributed_ns - (self._late + _HALF >> _BITS)
            if not stay.request_ended:
                stay.shared_ns = Duration(stay.shared_ns + lost_ns)
                lost_ns = 0
            self._report_busy()
            self._reset(lost_ns)

    def _measure(self, stay: AttemptTime) -> None:
        if self._adopted:
            self._estimate_adopted()
        work = stay.added_step_ps * (self._virtual - stay.since)
        even = stay.sequences * (self._shared - stay.shared_since)
        whole = stay.prefill_scaled + work + even + self._carry
        whole_ns, self._carry = whole >> _BITS, whole & _FRACTION
        self._attributed_ns += whole_ns
        # Only the shared part absorbs the rounding carry.
        input_ns = 0
        if stay.prefilled:
            output_ns = work >> _BITS
            stay.output_ns = Duration(stay.output_ns + output_ns)
            whole_ns -= output_ns
            work = stay.prefill_scaled
        if work:
            input_ns = work >> _BITS
            stay.input_ns = Duration(stay.input_ns + input_ns)
        stay.shared_ns = Duration(stay.shared_ns + whole_ns - input_ns)

    # Shared engines

    def share(self) -> None:
        """Prepares the clock for attempts of several endpoints."""
        if self._due is None:
            self._due = {}

    def split_off(self, endpoint_id: EndpointId, pool: PoolName, *, ready: bool) -> "EngineTime":
        """Returns a new clock for an endpoint that no longer shares this one."""
        own = EngineTime(endpoint_id, pool, EngineSpeed(), self._at, scheduler_count=self._scheduler_count)
        own._step_ps, own.ready, own.ever_ready = self._step_ps, ready, self.ever_ready
        return own

    def attribute(self, endpoint_id: EndpointId, pool: PoolName, stay: AttemptTime) -> None:
        """Reports the time of a measured attempt under its own endpoint."""
        if self._due is not None and endpoint_id != self.endpoint_id:
            key = (endpoint_id, pool)
            self._due[key] = self._due.get(key, 0) + stay.input_ns + stay.output_ns + stay.shared_ns

    @property
    def has_run(self) -> bool:
        """Whether time has passed since the last `pop`."""
        return self._at > self._popped_at

    @property
    def in_use(self) -> bool:
        """Whether attempts are in flight."""
        return self._in_flight > 0

    # Reports

    def _report_busy(self) -> None:
        late_ns = self._late + _HALF >> _BITS
        late_more_ns = late_ns - self._abort_lag_reported_ns
        self.abort_lag_ns += late_more_ns
        self.billed_ns += self._busy_ns - self._busy_reported_ns - late_more_ns
        self._busy_reported_ns, self._abort_lag_reported_ns = self._busy_ns, late_ns

    def pop(self) -> EndpointTime:
        """Returns how the endpoint has spent its time since the last call."""
        self._report_busy()
        told = EndpointTime(
            self.endpoint_id,
            self.pool,
            Duration((self._at - self._popped_at + self._popped_remainder_ns) // self._scheduler_count),
            Duration(self.starting_ns),
            Duration(self.unready_ns),
            Duration(self.idle_ns),
            Duration(self.billed_ns),
            Duration(self.abort_lag_ns),
        )
        self.starting_ns = self.unready_ns = self.idle_ns = self.billed_ns = self.abort_lag_ns = 0
        self._popped_at, self._popped_remainder_ns = self._at, self._remainder_ns
        return told

    def pop_by_endpoint(self) -> list[EndpointTime]:
        """Like `pop`, for each endpoint that shares the clock.

        The time of attempts in flight is billed before it is measured, so it is first reported under the endpoint that
        reports the engine's time, and later less is reported there.
        """
        told = self.pop()
        if not self._due:
            return [told]
        parts: list[EndpointTime] = []
        left_ns, due, self._due = told.billed_ns, self._due, {}
        for (endpoint_id, pool), due_ns in due.items():
            if given_ns := Duration(min(due_ns, left_ns)):
                left_ns = Duration(left_ns - given_ns)
                parts.append(
                    EndpointTime(endpoint_id, pool, given_ns, _NO_TIME, _NO_TIME, _NO_TIME, given_ns, _NO_TIME)
                )
            if given_ns < due_ns:
                self._due[endpoint_id, pool] = due_ns - given_ns
        total_ns = Duration(told.total_ns - (told.billed_ns - left_ns))
        return [replace(told, total_ns=total_ns, billed_ns=left_ns), *parts]


class DepartedTimes:
    """Uncollected times of departed endpoints.

    When the limit is reached, the endpoint that departed first is dropped.
    """

    __slots__ = ("_by_name", "_retired")

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], EndpointTime] = {}
        self._retired: list[EngineTime] = []
        """Clocks that no endpoint uses any more, with attempts in flight."""

    def add(self, time: EngineTime) -> None:
        for told in time.pop_by_endpoint():
            name = (told.endpoint_id, told.pool)
            earlier = self._by_name.pop(name, None)
            self._by_name[name] = told if earlier is None else _sum(earlier, told)
            if len(self._by_name) > DEPARTED_MAX:
                del self._by_name[next(iter(self._by_name))]

    def retire(self, time: EngineTime, now: Instant) -> None:
        """Adds the clock of an endpoint that has joined a shared engine. Its attempts in flight stay on this clock."""
        time.advance(now)
        if time.in_use and len(self._retired) < DEPARTED_MAX:
            self._retired.append(time)
        elif time.has_run:
            self.add(time)

    def pop_all(self, present: Iterable[EngineTime], now: Instant) -> tuple[EndpointTime, ...]:
        """Returns the times of present and departed endpoints, one entry per endpoint."""
        left, self._by_name = self._by_name, {}
        clocks = (*present, *self._retired)
        for each in clocks:
            each.advance(now)
        self._retired = [each for each in self._retired if each.in_use]
        return merge_times((*left.values(), *(told for each in clocks for told in each.pop_by_endpoint())))


def merge_times(times: Iterable[EndpointTime]) -> tuple[EndpointTime, ...]:
    """Merges the times into one entry per endpoint.

    If there are more entries than the limit, the last ones are kept.
    """
    by_name: dict[tuple[str, str], EndpointTime] = {}
    for told in times:
        name = (told.endpoint_id, told.pool)
        earlier = by_name.get(name)
        by_name[name] = told if earlier is None else _sum(earlier, told)
    return tuple(by_name.values())[-TIMES_MAX:]


def _sum(one: EndpointTime, other: EndpointTime) -> EndpointTime:
    return EndpointTime(
        one.endpoint_id,
        one.pool,
        Duration(one.total_ns + other.total_ns),
        Duration(one.starting_ns + other.starting_ns),
        Duration(one.unready_ns + other.unready_ns),
        Duration(one.idle_ns + other.idle_ns),
        Duration(one.billed_ns + other.billed_ns),
        Duration(one.abort_lag_ns + other.abort_lag_ns),
    )
