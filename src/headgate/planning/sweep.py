"""Calibration sweep: which requests to send to a live engine, and what their times say about it.

The sweep is a generator without a clock or I/O. It yields one burst of requests at a time and receives the measured
responses. After each burst, it refits the profile and uses it to predict how long the next burst would take. A burst
that would exceed its share of the time, the engine's limits or the permitted concurrency is not sent. A burst starts
only after the previous one has ended, so bursts do not affect each other.

The speed of some engines changes while they are measured, above all on a CPU. The phases therefore take turns, so that
a slow minute does not look like the effect of one size. The unseen load is sent twice, some time apart. The difference
between the two shows how much the engine's latencies vary by themselves, which no profile can predict.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from math import exp, log
from random import Random
from statistics import median
from types import MappingProxyType
from typing import Final

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.planning.bursts import Burst, MeasuredBurst, SweepPhase, SweepResult
from headgate.planning.calibration import HUBER_DELTA, PARAMETERS, Calibration, CalibrationError, fit, initial_profile
from headgate.planning.engine_replay import RunRequest, TokenTimes, replay

SHARES: Final = MappingProxyType(
    {
        SweepPhase.PROMPTS: 0.15,
        SweepPhase.CONCURRENCY: 0.1,
        SweepPhase.CONTEXTS: 0.25,
        SweepPhase.UNSEEN: 0.15,
        SweepPhase.MIXED: 0.2,
    }
)
"""Share of the time for each phase. The unseen load is sent twice."""
BURST_SHARE_MAX: Final = 0.5
"""Maximum duration of one burst relative to its phase. The rest leaves room for other sizes."""
PROMPT_TOKENS_MIN: Final = 32
REPEATS: Final = 3
"""Maximum number of bursts of the same size."""
CONTEXTS_AT_ONCE: Final = (16, 4, 1)
"""Numbers of long requests that start together. Many of them show how long reading the KV cache takes."""
OUTPUTS: Final = (8, 64)
"""Minimum and maximum number of output tokens per request."""
KV_SHARE_MAX: Final = 0.8
"""Maximum share of the KV cache that a burst fills, so that the engine preempts no sequence."""
LOADS: Final = MappingProxyType({SweepPhase.MIXED: 0.6, SweepPhase.UNSEEN: 0.5})
"""Arrival rate of a mixed load relative to the engine's throughput."""
REQUESTS_MIN: Final = 10
REQUESTS_WANTED: Final = 60
REQUESTS_MAX: Final = 200
"""Minimum, desired and maximum number of requests in a mixed load."""
DIGITS: Final = 4
"""Significant digits of a fitted parameter."""
TTFT_WEIGHT: Final = 1.0
"""Weight of TTFT differences. Most requests start on an idle engine, so their TTFT is not random."""
OVERHEAD_GUESS_NS: Final = Duration(MILLISECOND)
TRIALS_QUICK: Final = 50
"""Trials of a fit between two bursts."""
TRIALS_CHOICE: Final = 80
"""Trials for each chunk size and kind of scheduling."""
TRIALS_FINAL: Final = 250
CHUNK_TOKENS: Final = (64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
"""Chunk sizes to try if the engine's is unknown."""
_PAUSE_NS: Final = SECOND
"""Pause between two bursts in the replayed timeline, in which the engine is idle."""


Steps = Generator[Burst, MeasuredBurst, SweepResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    limits: EngineProfile
    """Limits of the engine. The five time parameters are placeholders."""
    seconds: float
    """Time for all bursts together."""
    concurrency_max: int
    seed: int = 0
    chunk_known: bool = True
    """Whether the chunk size in `limits` is the engine's. If not, several are tried."""
    async_known: bool = True
    """The same for asynchronous scheduling."""


def sweep(options: SweepOptions) -> Steps:
    """Yields the bursts to send, in order. Raises `CalibrationError` if the time is too short for a phase."""
    return _Sweep(options).run()


@dataclass(slots=True)
class _Phase:
    """Bursts of one phase and the time left for them."""

    name: SweepPhase
    bursts: Iterator[Sequence[RunRequest]]
    share_ns: float
    left_ns: float = 0.0
    sent: int = 0

    def __post_init__(self) -> None:
        self.left_ns = self.share_ns


@dataclass(slots=True)
class _Sweep:
    options: SweepOptions
    guess: Calibration | None = None
    requests: list[RunRequest] = field(default_factory=list[RunRequest])
    token_times: list[TokenTimes] = field(default_factory=list[TokenTimes])
    alone: list[int] = field(default_factory=list[int])
    """Indexes of the requests that were alone in their burst."""
    together: int = 0
    """Number of requests before the mixed load."""
    end: Instant = Instant(0)
    """End of the last burst in the timeline of all bursts."""

    def run(self) -> Steps:
        prompts = self._phase(SweepPhase.PROMPTS, self._prompt_lengths())
        # Without a first guess, it is unknown whether a burst of other requests fits into the time.
        yield from self._send_next(prompts)
        yield from self._take_turns(
            prompts,
            self._phase(SweepPhase.CONCURRENCY, self._concurrencies()),
            self._phase(SweepPhase.CONTEXTS, self._long_contexts()),
        )
        self.together = len(self.requests)
        load = self._mixed(SweepPhase.UNSEEN)
        first = yield load
        measured = yield self._mixed(SweepPhase.MIXED)
        self._record(measured)
        unseen = first, (yield load)
        calibration = _rounded(self._final_fit())
        predicted = (
            tuple(replay(calibration.profile, each.requests, overhead_ns=calibration.overhead_ns)) for each in unseen
        )
        return SweepResult(calibration, unseen, tuple(predicted))

    # ---------------------------------------------------------------------------------------------------- the phases

    def _phase(self, name: SweepPhase, bursts: Iterator[Sequence[RunRequest]]) -> _Phase:
        return _Phase(name, bursts, share_ns=self.options.seconds * SHARES[name] * SECOND)

    def _take_turns(self, *phases: _Phase) -> Generator[Burst, MeasuredBurst, None]:
        left = list(phases)
        while left:
            for phase in tuple(left):
                if not (yield from self._send_next(phase)):
                    left.remove(phase)
        for phase in phases:
            if not phase.sent:
                raise CalibrationError(
                    f"no request fits into the {phase.share_ns / SECOND:.0f} s for the phase {phase.name}; "
                    "raise --seconds"
                )

    def _send_next(self, phase: _Phase) -> Generator[Burst, MeasuredBurst, bool]:
        """Sends the phase's next burst that fits into its time. Returns False if there is none."""
        for requests in phase.bursts:
            limit_ns = min(phase.left_ns, phase.share_ns * BURST_SHARE_MAX)
            if self.guess is not None and self._duration_ns(requests) > limit_ns:
                continue
            measured = yield Burst(phase.name, tuple(requests))
            self._record(measured)
            phase.left_ns -= measured.end
            phase.sent += 1
            return True
        return False

    def _prompt_lengths(self) -> Iterator[list[RunRequest]]:
        """Single requests, short prompts first."""
        chance = self._chance(SweepPhase.PROMPTS)
        room = self._prompt_tokens_max(OUTPUTS[0])
        lengths = list(takewhile(lambda each: each <= room, (PROMPT_TOKENS_MIN << step for step in count())))
        for _ in range(REPEATS):
            for length in lengths:
                yield _together(1, max(1, round(length * chance.uniform(0.8, 1.0))), OUTPUTS[0])

    def _concurrencies(self) -> Iterator[list[RunRequest]]:
        """Increasing numbers of short requests that start together."""
        most = min(self.options.concurrency_max, self.options.limits.sequences_max)
        numbers = list(takewhile(lambda each: each <= most, (1 << step for step in count())))
        for _ in range(REPEATS):
            for number in numbers:
                yield _together(number, 2 * PROMPT_TOKENS_MIN, self._output_tokens())

    def _long_contexts(self) -> Iterator[list[RunRequest]]:
        """Several long requests at once and single ones, the longest first."""
        options = self.options
        output = self._output_tokens()
        kv_tokens = round(options.limits.kv_blocks * options.limits.block_tokens * KV_SHARE_MAX)
        most = min(options.concurrency_max, options.limits.sequences_max)
        for halvings in range(8):
            for number in (each for each in CONTEXTS_AT_ONCE if each <= most):
                room = min(self._prompt_tokens_max(output), kv_tokens // number - output)
                if room >> halvings > 2 * PROMPT_TOKENS_MIN:
                    yield _together(number, room >> halvings, output)

    def _mixed(self, phase: SweepPhase) -> Burst:
        """Requests of different sizes at random times."""
        chance = self._chance(phase)
        share_ns = self.options.seconds * SHARES[phase] * SECOND
        sizes, gap_ns = self._sizes(chance, share_ns, LOADS[phase])
        seed = chance.random()
        while True:
            at, requests, arrivals = 0.0, list[RunRequest](), Random(seed)
            for each in sizes:
                requests.append(replace(each, arrived_at=Instant(round(at))))
                at += arrivals.expovariate(1 / gap_ns)
                if at > share_ns:
                    break
            if len(requests) < REQUESTS_MIN:
                raise CalibrationError(
                    f"only {len(requests)} requests fit into the {share_ns / SECOND:.0f} s for the phase {phase}; "
                    f"raise --seconds to {self.options.seconds * 2 * REQUESTS_MIN / len(requests):.0f}, "
                    "or raise --concurrency-max"
                )
            if self._concurrency(requests) <= self.options.concurrency_max:
                return Burst(phase, tuple(requests))
            gap_ns *= 1.25

    def _sizes(self, chance: Random, share_ns: float, load: float) -> tuple[list[RunRequest], float]:
        """Random sizes for a mixed load, and the mean time between two arrivals.

        On a slow engine, the sizes are smaller, so that enough requests fit into the phase.
        """
        prompt, output, seed = self._prompt_tokens_max(OUTPUTS[1]), self._output_tokens(), chance.random()
        while True:
            draw = Random(seed)
            sizes = [
                RunRequest(
                    Instant(0),
                    prompt_tokens=_log_uniform(draw, PROMPT_TOKENS_MIN, max(prompt, PROMPT_TOKENS_MIN)),
                    output_tokens=_log_uniform(draw, OUTPUTS[0], max(output, OUTPUTS[0])),
                )
                for _ in range(REQUESTS_MAX)
            ]
            gap_ns = self._duration_ns(sizes) / len(sizes) / load
            small = prompt <= 2 * PROMPT_TOKENS_MIN and output <= OUTPUTS[0]
            if share_ns / gap_ns >= REQUESTS_WANTED or small:
                return sizes, gap_ns
            prompt, output = max(prompt // 2, 2 * PROMPT_TOKENS_MIN), max(output * 3 // 4, OUTPUTS[0])

    # -------------------------------------------------------------------------------------------------------- sizing

    def _prompt_tokens_max(self, output: int) -> int:
        limits = self.options.limits
        kv_tokens = round(limits.kv_blocks * limits.block_tokens * KV_SHARE_MAX)
        # Token counts are estimates, so a prompt stays clear of the limit.
        return min(limits.context_tokens, kv_tokens) * 9 // 10 - output

    def _output_tokens(self) -> int:
        """Output length at which decoding takes about a tenth of a phase."""
        assert self.guess is not None
        share_ps = self.options.seconds * SHARES[SweepPhase.CONCURRENCY] * 1e12
        return round(max(OUTPUTS[0], min(OUTPUTS[1], share_ps / 10 / self.guess.profile.step_ps)))

    def _duration_ns(self, requests: Sequence[RunRequest]) -> int:
        return max(each.last_token_at for each in self._replayed(requests))

    def _concurrency(self, requests: Sequence[RunRequest]) -> int:
        """Maximum number of open requests."""
        times = self._replayed(requests)
        changes = sorted([(each.arrived_at, 1) for each in requests] + [(each.last_token_at, -1) for each in times])
        most = now = 0
        for _, change in changes:
            now += change
            most = max(most, now)
        return most

    def _replayed(self, requests: Sequence[RunRequest]) -> list[TokenTimes]:
        assert self.guess is not None
        return replay(self.guess.profile, requests, overhead_ns=self.guess.overhead_ns)

    def _chance(self, phase: SweepPhase) -> Random:
        return Random(f"{self.options.seed} {phase}")

    # --------------------------------------------------------------------------------------------------- the profile

    def _record(self, measured: MeasuredBurst) -> None:
        """Adds a burst to the timeline and refits the profile."""
        start = self.end + _PAUSE_NS
        if len(measured.requests) == 1:
            self.alone.append(len(self.requests))
        self.requests += [replace(each, arrived_at=Instant(start + each.arrived_at)) for each in measured.requests]
        self.token_times += [
            TokenTimes(Instant(start + each.first_token_at), Instant(start + each.last_token_at))
            for each in measured.token_times
        ]
        self.end = Instant(start + measured.end)
        guess = self.guess or Calibration(
            initial_profile(self.options.limits, self.requests, self.token_times), 0.0, OVERHEAD_GUESS_NS
        )
        self.guess = self._fitted(guess, TRIALS_QUICK)

    def _final_fit(self) -> Calibration:
        """Fits the profile to all bursts, with the chunk size and scheduling that explain them best."""
        options = self.options
        assert self.guess is not None
        guess = self.guess
        if not options.chunk_known:
            # Requests that start together on an idle engine show the chunk size, whatever the kind of scheduling.
            chunks = [replace(guess.profile, chunk_tokens=each) for each in self._possible_chunks()]
            guess = self._best(guess, chunks, self.together)
        if not options.async_known:
            kinds = [replace(guess.profile, async_scheduling=each) for each in (False, True)]
            guess = self._best(guess, kinds, len(self.requests))
        return self._fitted(guess, TRIALS_FINAL)

    def _possible_chunks(self) -> list[int]:
        """Chunk sizes that could have affected a request, and one that could not."""
        longest = max(each.prompt_tokens for each in self.requests)
        sizes = [each for each in CHUNK_TOKENS if each >= self.options.limits.sequences_max]
        return [each for each in sizes if each < 2 * longest] or sizes[:1] or [self.options.limits.sequences_max]

    def _best(self, guess: Calibration, profiles: Sequence[EngineProfile], number: int) -> Calibration:
        """The profile that explains the first `number` requests best."""
        # Errors are comparable only with the same weights.
        noise_ns = self._noise_ns(guess)
        requests, times = self.requests[:number], self.token_times[:number]
        found = (
            fit(
                replace(guess, profile=each),
                requests,
                times,
                ttft_weight=TTFT_WEIGHT,
                noise_ns=noise_ns,
                trials_max=TRIALS_CHOICE,
            )
            for each in profiles
        )
        return min(found, key=lambda each: each.squared_error)

    def _fitted(self, guess: Calibration, trials_max: int) -> Calibration:
        return fit(
            guess,
            self.requests,
            self.token_times,
            ttft_weight=TTFT_WEIGHT,
            noise_ns=self._noise_ns(guess),
            trials_max=trials_max,
        )

    def _noise_ns(self, guess: Calibration) -> float:
        """Typical delay of a response that no profile explains, from the TTFTs of requests that were alone.

        An engine whose speed varies has errors that grow with the TTFT. They say nothing about short requests, so only
        the shorter half counts, and less so if the relative errors of all requests are large.
        """
        alone = [(self.requests[each], self.token_times[each]) for each in self.alone]
        made = replay(guess.profile, [request for request, _ in alone], overhead_ns=guess.overhead_ns)
        errors = sorted(
            (times.first_token_at - request.arrived_at, abs(own.first_token_at - times.first_token_at))
            for (request, times), own in zip(alone, made, strict=True)
        )
        delay_ns = median(error for _, error in errors[: (len(errors) + 1) // 2])
        variation = median(error / ttft for ttft, error in errors)
        return delay_ns * min(1.0, HUBER_DELTA / variation) if variation else delay_ns


def _rounded(calibration: Calibration) -> Calibration:
    """The profile without digits that no measurement supports."""
    profile = calibration.profile
    figures = {name: max(1, int(float(f"{getattr(profile, name):.{DIGITS}g}"))) for name in PARAMETERS}
    return replace(calibration, profile=replace(profile, **figures))


def _together(number: int, prompt_tokens: int, output_tokens: int) -> list[RunRequest]:
    return [RunRequest(Instant(0), prompt_tokens, output_tokens)] * number


def _log_uniform(chance: Random, low: int, high: int) -> int:
    return round(exp(chance.uniform(log(low), log(high))))
