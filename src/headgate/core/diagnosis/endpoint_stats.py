"""Measures the speed of each endpoint relative to its load.

Open streams, produced tokens and prefilled prompts are counted. The pool's declared speed gives the expected time per
token for that number and length of streams and prompts. The usual ratio of actual to expected time is learned for each
endpoint separately, because a pool may mix older and newer machines. An endpoint is slow if its current ratio is far
above its usual one.
"""

from collections import deque
from typing import Final

from headgate.core.diagnosis.baseline import LearnedBaseline
from headgate.model.speed import EngineSpeed
from headgate.model.units import SECOND, Duration, EndpointId, Instant, PoolName

PACE_SECONDS: Final = 6
"""Number of checks over which the time per token is measured."""
TOKENS_MIN: Final = 40
"""Minimum number of tokens for a measurement."""
TOKENS_SLOW_MIN: Final = 10
SLOW_PERCENT: Final = 155
"""Percentage of the usual time per token at which an endpoint counts as slow. A slow endpoint produces few tokens, so
`TOKENS_SLOW_MIN` tokens are enough to confirm that it is still slow."""
LEARNED_PERCENT: Final = 130
"""Maximum value that is learned, in percent of the usual value."""
RESTARTS_MIN: Final = 2
RESTARTS_MAX: Final = 16
RESTARTS_NS: Final = Duration(120 * SECOND)
"""Time within which an endpoint must disappear `RESTARTS_MIN` times to count as restarting in a loop."""
STEADY_NS: Final = Duration(10 * SECOND)
"""Time of continuous service after which a restart loop is considered over."""
_PS_PER_NS: Final = 1_000


class EndpointStats:
    __slots__ = (
        "_kept",
        "_looked_at",
        "decoding",
        "decoding_tokens",
        "disappearances",
        "failed_at",
        "failed_silently",
        "failing_since",
        "failures",
        "id",
        "is_gone",
        "joined_at",
        "kv_percent",
        "last_progress_at",
        "open_streams",
        "pace_baseline",
        "pace_percent",
        "pending_prefill_at_progress_ns",
        "pending_prefill_ns",
        "pool",
        "prompt_tokens",
        "readied_at",
        "running",
        "serving_since",
        "tokens",
        "tpot_ns",
        "waiting",
    )

    def __init__(self, endpoint_id: EndpointId, pool: PoolName, now: Instant) -> None:
        self.id, self.pool = endpoint_id, pool
        self.joined_at = self.last_progress_at = self._looked_at = now
        self.readied_at: Instant | None = None
        self.open_streams = 0
        """Number of open streams."""
        self.decoding = 0
        """Number of open streams that have started."""
        self.decoding_tokens = 0
        """Prompt tokens of the started streams. The engine reads them for every output token."""
        self.pending_prefill_ns = 0
        """Prefill time, at the pool's speed, of prompts that have no first token yet."""
        self.pending_prefill_at_progress_ns = 0
        """Value of `pending_prefill_ns` when the endpoint last responded.

        Prompts that arrived later may be waiting because of the problem.
        """
        self.tokens = self.prompt_tokens = 0
        """Output tokens, and prompt tokens prefilled, since the last check."""
        self.failures = 0
        """Consecutive failed attempts."""
        self.failing_since = self.failed_at = now
        """Times of the first and the last of the consecutive failures."""
        self.failed_silently = False
        """Whether the last of the consecutive failures was a timeout without a response."""
        self.disappearances: deque[Instant] = deque(maxlen=RESTARTS_MAX)
        """Most recent times at which the endpoint disappeared after serving requests."""
        self.is_gone = False
        self.serving_since: Instant | None = now
        """Time since which the endpoint has been serving. None while it is not serving."""
        self.running = self.waiting = 0
        self.kv_percent: int | None = None
        """Percentage of the KV cache in use, as reported by the engine."""
        self._kept: deque[tuple[int, int, int, int, int]] = deque(maxlen=PACE_SECONDS)
        """Rows of (duration, streams times duration, tokens read times duration, output tokens, prompt tokens)."""
        self.tpot_ns: Duration | None = None
        """Recent time between two tokens of a stream."""
        self.pace_percent: int | None = None
        """Time between tokens in percent of the time that the load explains. None if there are too few tokens."""
        self.pace_baseline = LearnedBaseline()

    def record_sent(self, now: Instant) -> None:
        if not self.open_streams:
            self.last_progress_at = now
        self.open_streams += 1

    def record_failure(self, now: Instant, *, silently: bool) -> None:
        if not self.failures:
            self.failing_since = now
        self.failed_at, self.failed_silently = now, silently
        self.failures += 1

    def record_state(self, now: Instant, *, out: bool, gone: bool) -> None:
        """Records whether the endpoint is serving at this check, and whether it seems to have exited or restarted."""
        if not out:
            self.serving_since = self.serving_since or now
            self.is_gone = False
        else:
            self.serving_since = None
        if gone and not self.is_gone:
            self.is_gone = True
            if self.readied_at is not None:
                self.disappearances.append(now)
        while self.disappearances and now - self.disappearances[0] > RESTARTS_NS:
            self.disappearances.popleft()

    def restarts(self, now: Instant) -> int:
        """Returns how often the endpoint disappeared recently, or 0 if that is too few to be a loop."""
        count = sum(now - each <= RESTARTS_NS for each in self.disappearances)
        return count if count >= RESTARTS_MIN else 0

    def is_steady(self, now: Instant) -> bool:
        """Returns whether the endpoint has served for at least `STEADY_NS`."""
        return self.serving_since is not None and now - self.serving_since >= STEADY_NS

    def silent_ns(self, now: Instant) -> Duration:
        """Returns how long the open streams have produced no output."""
        return Duration(now - self.last_progress_at if self.open_streams else 0)

    @property
    def slower_percent(self) -> int | None:
        """Time per token in percent of the usual time. None if either is unknown."""
        pace, usual = self.pace_percent, self.pace_baseline.value
        return None if pace is None or usual is None else 100 * pace // max(1, usual)

    def learn(self) -> None:
        """Learns the current speed while the pool is healthy.

        Outliers are given less weight, because they may be the start of an incident that is not visible yet.
        """
        pace, usual = self.pace_percent, self.pace_baseline.value
        if pace is not None:
            self.pace_baseline.add(pace if usual is None else min(pace, usual * LEARNED_PERCENT // 100))

    def update_pace(self, speed: EngineSpeed, computed_percent: int, answer_tokens: int, now: Instant) -> None:
        """Updates the time per token at a check.

        `computed_percent` is the percentage of prompt tokens that are not cached, and `answer_tokens` is the mean
        response length.
        """
        if self.last_progress_at >= self._looked_at:
            self.pending_prefill_at_progress_ns = self.pending_prefill_ns
        passed = max(1, now - self._looked_at)
        self._looked_at = now
        read = self.decoding_tokens + self.decoding * answer_tokens // 2
        computed = self.prompt_tokens * computed_percent // 100
        self._kept.append((passed, self.decoding * passed, read * passed, self.tokens, computed))
        self.tokens = self.prompt_tokens = 0
        whole_ns = streams_ns = read_ns = tokens = prompts = 0
        for took, each_ns, each_read_ns, came, computed in self._kept:
            whole_ns += took
            streams_ns += each_ns
            read_ns += each_read_ns
            tokens += came
            prompts += computed
        slower = self.slower_percent
        least = TOKENS_MIN if slower is None or slower < SLOW_PERCENT else TOKENS_SLOW_MIN
        if tokens < least or not streams_ns:
            self.tpot_ns = self.pace_percent = None
            return
        self.tpot_ns = Duration(streams_ns // tokens)
        streams = max(1, streams_ns // whole_ns)
        step_ns = speed.decode_ps(streams, kv_tokens=read_ns // whole_ns) // _PS_PER_NS
        # Prefill steps delay decoding, so the expected time per token includes its share of the prefill time.
        busy_ns = min(whole_ns * 9 // 10, prompts * speed.prefill_token_ps // _PS_PER_NS)
        expected_ns = step_ns * whole_ns // (whole_ns - busy_ns)
        self.pace_percent = 100 * self.tpot_ns // max(1, expected_ns)
