"""Whose is the time of an endpoint?

Theory of operation. From when it joins until it has left, each moment of an endpoint is somebody's. While nothing is in
flight it is nobody's in particular: it starts, cannot serve, or is idle. While something is, it belongs to those who
are: a step of an engine takes what it takes whatever is in it, and what each sequence adds. So with B in flight, of
which each adds m to a step, and a step that takes a by itself, W = a + Σ m, and each has

    (m + a/B) / W

of the moment: its own work, and an even share of the rest. A request with several prompts counts as that many sequences
and has as many shares. The work per step changes once, when the prompt is computed (`prompt_ps`, `answer_ps`): it is
input before, and output after. An attempt that is in flight after its request has ended has its share like the others,
but it is late: no tenant is billed for it.

To begin, to change and to end takes the same few operations however many are in flight: kept are the sums over time of
1/W and of a/(B·W), and of each attempt where they stood when it came. They are whole numbers of a fine scale; what is
lost in rounding is owed to the next who is measured, and all of it to the last before the endpoint is empty. So then
the bills come to what is told as billed exactly; where the last was late, the next who comes has the nanosecond or two
that they lack.

An island has a part of each endpoint, as it has of its places: it counts one of so many nanoseconds.

What is not ideal: what an attempt adds to a step goes by how long its prompt and its answer were thought to be. What it
took under an earlier scheduler is reckoned from its age and from its share when it was told of (`adopt`). That part is
in no `EndpointTime` of this scheduler: the earlier one had it among what is billed.
"""

from collections.abc import Iterable
from typing import Final

from headgate.model.money import EndpointTime
from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration, EndpointId, Instant, PoolName

_BITS: Final = 64
"""A nanosecond is divided so finely that a hundred thousand changes lose less than one."""
_FRACTION: Final = (1 << _BITS) - 1
_HALF: Final = 1 << _BITS - 1
LEFT_MAX: Final = 1_024
"""Endpoints that have left, and whose time nobody has asked for since."""
TIMES_MAX: Final = 65_536
"""Endpoints of whose time anything is told at once."""


def prompt_ps(speed: EngineSpeed, prompt_tokens: int, cached_tokens: int, *, prompts: int = 1) -> int:
    """What a prompt adds to each step in which it is computed. One that is longer than a chunk takes several."""
    whole = speed.prefill_ps(prompt_tokens, cached=cached_tokens, prompts=prompts)
    chunk, pending = speed.chunk_tokens, prompt_tokens - cached_tokens
    return whole if pending <= chunk else whole * chunk // pending


def answer_ps(speed: EngineSpeed, prompt_tokens: int, output_tokens: int, *, answers: int) -> int:
    """What answers add to each step in which they get a token, on the mean over their length."""
    return speed.decode_sequence_ps * answers + speed.kv_token_ps * (prompt_tokens + output_tokens // 2)


class Stay:
    """One attempt's part of its endpoint's time."""

    __slots__ = (
        "adds_ps",
        "computed",
        "even_since",
        "input",
        "input_ns",
        "late",
        "output_ns",
        "sequences",
        "shared_ns",
        "since",
    )

    def __init__(self, adds_ps: int, sequences: int = 1) -> None:
        self.adds_ps = adds_ps
        """What it adds to a step."""
        self.sequences = sequences
        """The number of even shares that it has in the rest of a step."""
        self.late = False
        """Whether its request has ended: it is measured already."""
        self.input_ns = self.output_ns = self.shared_ns = Duration(0)
        """What it had, once it is measured."""
        self.computed = False
        self.input = 0
        """What its prompt took, once that is computed, in the finest scale."""
        self.since = self.even_since = 0


class EngineTime:
    """The time of one endpoint."""

    __slots__ = (
        "_added_ps",
        "_adopted",
        "_at",
        "_busy_ns",
        "_busy_told_ns",
        "_even",
        "_given_ns",
        "_in_flight",
        "_late",
        "_late_count",
        "_late_ps",
        "_late_told_ns",
        "_of",
        "_owed",
        "_rest_ns",
        "_step_ps",
        "_taken_at",
        "_taken_rest_ns",
        "_virtual",
        "billed_ns",
        "endpoint_id",
        "idle_ns",
        "late_ns",
        "pool",
        "ready",
        "starting_ns",
        "unready_ns",
        "was_ready",
    )

    def __init__(self, endpoint_id: EndpointId, pool: PoolName, speed: EngineSpeed, now: Instant, *, of: int) -> None:
        """`of` is how many there are that count this endpoint."""
        self.endpoint_id, self.pool = endpoint_id, pool
        self._step_ps = max(1, speed.step_ps)
        self._of = of
        self._at = self._taken_at = now
        self._rest_ns = self._taken_rest_ns = 0
        """What is less than one nanosecond of ours."""
        self.ready = self.was_ready = False
        """Whether it can serve, and whether it ever could."""
        self.starting_ns = self.unready_ns = self.idle_ns = self.billed_ns = self.late_ns = 0
        """Since they were last taken."""
        self._adopted: list[tuple[Stay, Duration, int]] = []
        """Those whose earlier time is to be reckoned when all are known, with their ages and what is input of it."""
        self._in_flight = self._added_ps = 0
        self._late_count = self._late_ps = 0
        """Of these, those that are late."""
        self._begin_anew(0)

    def _begin_anew(self, lost_ns: int) -> None:
        """Nothing is in flight, and so nothing but what was lost is owed to anybody: it has been told of as billed."""
        self._virtual = self._even = self._late = 0
        """The sums over time of 1/W, of a/(B·W), and of what those who are late had."""
        self._owed, self._given_ns = lost_ns << _BITS, 0
        """What the next has beside its own part, and what those have had who were measured."""
        self._busy_ns = self._busy_told_ns = lost_ns
        self._late_told_ns = 0
        """What is in `billed_ns` and `late_ns`, or was before these were taken."""

    # Time goes on

    def advance(self, now: Instant) -> None:
        passed = now - self._at
        if passed <= 0:
            return
        self._at = now
        if self._of > 1:
            passed, self._rest_ns = divmod(passed + self._rest_ns, self._of)
        if self._in_flight:
            if self._adopted:
                self._reckon()
            self._busy_ns += passed
            virtual = (passed << _BITS) // (self._step_ps + self._added_ps)
            even = virtual * self._step_ps // self._in_flight
            self._virtual += virtual
            self._even += even
            if self._late_count:
                self._late += virtual * self._late_ps + even * self._late_count
        elif self.ready:
            self.idle_ns += passed
        elif self.was_ready:
            self.unready_ns += passed
        else:
            self.starting_ns += passed

    def turn_ready(self, now: Instant) -> None:
        self.advance(now)
        self.ready = self.was_ready = True

    def turn_unready(self, now: Instant) -> None:
        self.advance(now)
        self.ready = False

    def change_speed(self, speed: EngineSpeed, now: Instant) -> None:
        """What is in flight adds to a step what it did."""
        self.advance(now)
        self._step_ps = max(1, speed.step_ps)

    # Those who stay

    def begin(self, adds_ps: int, now: Instant, *, sequences: int = 1) -> Stay:
        if now > self._at:
            self.advance(now)
        stay = Stay(adds_ps, sequences)
        stay.since, stay.even_since = self._virtual, self._even
        self._in_flight += sequences
        self._added_ps += adds_ps
        return stay

    def compute(self, stay: Stay, adds_ps: int, now: Instant) -> None:
        """Its prompt has been computed: from here on it adds so much."""
        if now > self._at:
            self.advance(now)
        stay.input, stay.since = stay.adds_ps * (self._virtual - stay.since), self._virtual
        stay.computed = True
        self._added_ps += adds_ps - stay.adds_ps
        if stay.late:
            self._late_ps += adds_ps - stay.adds_ps
        stay.adds_ps = adds_ps

    def adopt(self, stay: Stay, age_ns: Duration, *, input_ps: int, output_ps: int) -> None:
        """It began so long ago under another scheduler, and did about so much work."""
        self._adopted.append((stay, age_ns, (input_ps << _BITS) // max(1, input_ps + output_ps)))

    def _reckon(self) -> None:
        """Gives those who were adopted what they have probably had before."""
        whole_ps = self._step_ps + self._added_ps
        for stay, age_ns, input_part in self._adopted:
            ours_ns = age_ns // self._of
            work_ns = ours_ns * stay.adds_ps // whole_ps
            stay.input_ns = Duration(work_ns * input_part >> _BITS)
            stay.output_ns = Duration(work_ns - stay.input_ns)
            stay.shared_ns = Duration(ours_ns * self._step_ps * stay.sequences // (whole_ps * self._in_flight))
        self._adopted.clear()

    def turn_late(self, stay: Stay, now: Instant) -> None:
        """Its request has ended, and it has not: it is measured, and what follows is nobody's."""
        self.advance(now)
        self._measure(stay)
        self.count_late(stay)

    def count_late(self, stay: Stay) -> None:
        """What it has from here on is nobody's."""
        stay.late = True
        self._late_count += stay.sequences
        self._late_ps += stay.adds_ps

    def end(self, stay: Stay, now: Instant) -> None:
        """It is measured, if it is not yet. Who leaves the endpoint empty takes what was lost in rounding."""
        if now > self._at:
            self.advance(now)
        if stay.late:
            self._late_count -= stay.sequences
            self._late_ps -= stay.adds_ps
        else:
            self._measure(stay)
        self._in_flight -= stay.sequences
        self._added_ps -= stay.adds_ps
        if not self._in_flight:
            lost_ns = self._busy_ns - self._given_ns - (self._late + _HALF >> _BITS)
            if not stay.late:
                stay.shared_ns = Duration(stay.shared_ns + lost_ns)
                lost_ns = 0
            self._tell_busy()
            self._begin_anew(lost_ns)

    def _measure(self, stay: Stay) -> None:
        if self._adopted:
            self._reckon()
        work, even = stay.adds_ps * (self._virtual - stay.since), stay.sequences * (self._even - stay.even_since)
        whole = stay.input + work + even + self._owed
        whole_ns, self._owed = whole >> _BITS, whole & _FRACTION
        self._given_ns += whole_ns
        # Of what is less than a nanosecond only the shared part has what it is owed.
        if stay.computed:
            input_ns, output_ns = stay.input >> _BITS, work >> _BITS
            stay.output_ns = Duration(stay.output_ns + output_ns)
            whole_ns -= output_ns
        else:
            input_ns = work >> _BITS
        stay.input_ns = Duration(stay.input_ns + input_ns)
        stay.shared_ns = Duration(stay.shared_ns + whole_ns - input_ns)

    # For those who ask

    def _tell_busy(self) -> None:
        late_ns = self._late + _HALF >> _BITS
        late_more_ns = late_ns - self._late_told_ns
        self.late_ns += late_more_ns
        self.billed_ns += self._busy_ns - self._busy_told_ns - late_more_ns
        self._busy_told_ns, self._late_told_ns = self._busy_ns, late_ns

    def take(self) -> EndpointTime:
        """How it was spent since this was last asked."""
        self._tell_busy()
        told = EndpointTime(
            self.endpoint_id,
            self.pool,
            Duration((self._at - self._taken_at + self._taken_rest_ns) // self._of),
            Duration(self.starting_ns),
            Duration(self.unready_ns),
            Duration(self.idle_ns),
            Duration(self.billed_ns),
            Duration(self.late_ns),
        )
        self.starting_ns = self.unready_ns = self.idle_ns = self.billed_ns = self.late_ns = 0
        self._taken_at, self._taken_rest_ns = self._at, self._rest_ns
        return told


class LeftTimes:
    """The time of endpoints that have left since somebody asked. Of too many the first to leave are forgotten."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], EndpointTime] = {}

    def keep(self, time: EngineTime) -> None:
        told = time.take()
        name = (told.endpoint_id, told.pool)
        earlier = self._by_name.pop(name, None)
        self._by_name[name] = told if earlier is None else _both(earlier, told)
        if len(self._by_name) > LEFT_MAX:
            del self._by_name[next(iter(self._by_name))]

    def take(self, present: Iterable[EngineTime], now: Instant) -> tuple[EndpointTime, ...]:
        """That of all, each endpoint once."""
        left, self._by_name = self._by_name, {}
        for each in (all_present := tuple(present)):
            each.advance(now)
        return together((*left.values(), *(each.take() for each in all_present)))


def together(times: Iterable[EndpointTime]) -> tuple[EndpointTime, ...]:
    """The same with each endpoint once. Of too many the last are kept."""
    by_name: dict[tuple[str, str], EndpointTime] = {}
    for told in times:
        name = (told.endpoint_id, told.pool)
        earlier = by_name.get(name)
        by_name[name] = told if earlier is None else _both(earlier, told)
    return tuple(by_name.values())[-TIMES_MAX:]


def _both(one: EndpointTime, other: EndpointTime) -> EndpointTime:
    return EndpointTime(
        one.endpoint_id,
        one.pool,
        Duration(one.whole_ns + other.whole_ns),
        Duration(one.starting_ns + other.starting_ns),
        Duration(one.unready_ns + other.unready_ns),
        Duration(one.idle_ns + other.idle_ns),
        Duration(one.billed_ns + other.billed_ns),
        Duration(one.late_ns + other.late_ns),
    )
