"""How quickly does an endpoint answer, beside what its load explains?

Counted are the streams that are open there, the tokens that come, and the prompts that are computed. From the speed
that the policy names follows how long a token should take with so many streams, of such length, and so many prompts.
How far it is off usually is learned of each endpoint by itself, for a pool may have older machines among newer ones;
how far it is off that is how much slower the endpoint is than it was.
"""

from collections import deque
from typing import Final

from headgate.core.diagnosis.usual import Usual
from headgate.model.speed import EngineSpeed
from headgate.model.units import SECOND, Duration, EndpointId, Instant, PoolName

SECONDS: Final = 6
"""Its pace is measured over so many."""
TOKENS_MIN: Final = 40
"""Of fewer nothing is said."""
TOKENS_SLOW_MIN: Final = 10
SLOW_PERCENT: Final = 155
"""An endpoint is slow from this percentage of its usual pace at its load. A slow endpoint produces few tokens, so
`TOKENS_SLOW_MIN` of them are enough to confirm that it is still slow."""
LEARNED_PERCENT: Final = 130
"""Of the usual, what is learned at most."""
RESTARTS_MIN: Final = 2
RESTARTS_MAX: Final = 16
RESTARTS_NS: Final = Duration(120 * SECOND)
"""An endpoint that disappears `RESTARTS_MIN` times within this time restarts in a loop."""
STEADY_NS: Final = Duration(10 * SECOND)
"""The loop is over once the endpoint has served for this long."""
_PS_PER_NS: Final = 1_000


class EndpointSeen:
    __slots__ = (
        "_kept",
        "_looked_at",
        "awaited_ns",
        "back_at",
        "decoding",
        "decoding_tokens",
        "failed_at",
        "failed_silently",
        "failing_since",
        "failures",
        "heard_at",
        "id",
        "is_gone",
        "joined_at",
        "kv_percent",
        "open",
        "outs",
        "pace_percent",
        "pace_usual",
        "pool",
        "prompt_tokens",
        "readied_at",
        "running",
        "tokens",
        "tpot_ns",
        "unbegun_ns",
        "waiting",
    )

    def __init__(self, endpoint_id: EndpointId, pool: PoolName, now: Instant) -> None:
        self.id, self.pool = endpoint_id, pool
        self.joined_at = self.heard_at = self._looked_at = now
        self.readied_at: Instant | None = None
        self.open = 0
        """Streams that were sent there and have not ended."""
        self.decoding = 0
        """Those of them that have begun."""
        self.decoding_tokens = 0
        """What their prompts have, which is read for every token of theirs."""
        self.unbegun_ns = 0
        """What the prompts there take to compute that have not begun to be answered, by the pool's speed."""
        self.awaited_ns = 0
        """The same when it was last heard of: what came since may wait behind whatever is the matter."""
        self.tokens = self.prompt_tokens = 0
        """Since the last look: tokens of answers, and of prompts that were computed."""
        self.failures = 0
        """Attempts that failed there since one did not."""
        self.failing_since = self.failed_at = now
        """When the first of them did, and the last."""
        self.failed_silently = False
        """Whether the last of these failures was a timeout without a response."""
        self.outs: deque[Instant] = deque(maxlen=RESTARTS_MAX)
        """The latest moments at which it disappeared after it had served."""
        self.is_gone = False
        self.back_at: Instant | None = now
        """The time since which it has been serving again; None while it does not."""
        self.running = self.waiting = 0
        self.kv_percent: int | None = None
        """As its engine says."""
        self._kept: deque[tuple[int, int, int, int, int]] = deque(maxlen=SECONDS)
        """Of each look: how long it was, streams times that, what they read times that, tokens, prompt tokens."""
        self.tpot_ns: Duration | None = None
        """Between two tokens of a stream, of late."""
        self.pace_percent: int | None = None
        """What that is in percent of what its load explains; None where too little came."""
        self.pace_usual = Usual()

    def sent(self, now: Instant) -> None:
        if not self.open:
            self.heard_at = now
        self.open += 1

    def failed(self, now: Instant, *, silently: bool) -> None:
        if not self.failures:
            self.failing_since = now
        self.failed_at, self.failed_silently = now, silently
        self.failures += 1

    def note_out(self, now: Instant, *, out: bool, gone: bool) -> None:
        """Records whether it serves at this look, and whether it seems to be gone or to have restarted."""
        if not out:
            self.back_at = self.back_at or now
            self.is_gone = False
        else:
            self.back_at = None
        if gone and not self.is_gone:
            self.is_gone = True
            if self.readied_at is not None:
                self.outs.append(now)
        while self.outs and now - self.outs[0] > RESTARTS_NS:
            self.outs.popleft()

    def restarts(self, now: Instant) -> int:
        """How often it disappeared recently; 0 if too few times to call it a loop."""
        count = sum(now - each <= RESTARTS_NS for each in self.outs)
        return count if count >= RESTARTS_MIN else 0

    def steady(self, now: Instant) -> bool:
        """Whether it has served for at least `STEADY_NS`."""
        return self.back_at is not None and now - self.back_at >= STEADY_NS

    def silent_ns(self, now: Instant) -> Duration:
        """For how long nothing has come of the streams that are open there."""
        return Duration(now - self.heard_at if self.open else 0)

    @property
    def slower_percent(self) -> int | None:
        """Its pace in percent of what is usual of itself; None where either is unknown."""
        pace, usual = self.pace_percent, self.pace_usual.value
        return None if pace is None or usual is None else 100 * pace // max(1, usual)

    def learn(self) -> None:
        """All is well: so fast it is usually. By what is far off that it follows slowly: nobody may feel it yet."""
        pace, usual = self.pace_percent, self.pace_usual.value
        if pace is not None:
            self.pace_usual.add(pace if usual is None else min(pace, usual * LEARNED_PERCENT // 100))

    def look(self, speed: EngineSpeed, computed_percent: int, answer_tokens: int, now: Instant) -> None:
        """`computed_percent` is what of prompts is not cached; an answer has so many tokens on the mean."""
        if self.heard_at >= self._looked_at:
            self.awaited_ns = self.unbegun_ns
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
        # What computes prompts does not decode: a token waits for its part of them.
        busy_ns = min(whole_ns * 9 // 10, prompts * speed.prefill_token_ps // _PS_PER_NS)
        expected_ns = step_ns * whole_ns // (whole_ns - busy_ns)
        self.pace_percent = 100 * self.tpot_ns // max(1, expected_ns)
