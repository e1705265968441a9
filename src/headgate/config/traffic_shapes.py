"""How are requests treated in four common kinds of traffic?

Each shape is a part of a configuration file, as text with its reasons, because what `headgate init` writes is read and
changed by people. The bounds of queues are filled in: they follow from how many requests the engines run at once, how
long a class may wait and how long an answer is taken to last, since whoever waits beyond that would only expire.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

QUEUE_LENGTH_MIN = 16
"""Below this a bound says more about chance than about load."""
QUEUE_LENGTH_MAX = 10_000
"""Half of what one process holds by default (`limits.requests_open_max`)."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What a class may let wait, and the guess behind it."""

    wait_s: int
    answer_s: int

    def length(self, places: int) -> int:
        # Twice what can be served in time, since answers differ and the guess is one.
        served_in_time = places * self.wait_s // self.answer_s
        return min(QUEUE_LENGTH_MAX, max(QUEUE_LENGTH_MIN, 2 * served_in_time))


@dataclass(frozen=True, slots=True)
class Shape:
    purpose: str
    drain_grace: str
    drain_reason: str
    queues: Mapping[str, Queue]
    classes: str
    """The section `classes`; {NAME} and {NAME_each} stand for the bounds of the class's queue, {targets} for its
    targets."""
    ttft: str | None = None
    """The time to first token of interactive requests; None leaves the default."""

    def section(self, places: int) -> str:
        bounds: dict[str, int] = {}
        for name, queue in self.queues.items():
            bounds[name] = queue.length(places)
            bounds[f"{name}_each"] = bounds[name] // 2
        targets = (_DEFAULT_TARGETS if self.ttft is None else _TARGETS).format(ttft=self.ttft)
        return self.classes.format(places=places, targets=targets, **bounds)


_OTHER_TARGETS = """\
    # How many must get that over thirty days. `headgate rules` makes alerts of it; `headgate report` says if they did.
    # objectives: {{ttft_percent: 99, served_percent: 99.5}}"""

_DEFAULT_TARGETS = f"""\
    # The defaults: a stream begins within 2 s, and each further token takes 100 ms. Requests that cannot begin in time
    # are rejected. A default gives way if the engines turn out to be too slow for it; a value that you set does not.
    # ttft: 2s
    # tpot: 100ms
{_OTHER_TARGETS}"""

_TARGETS = f"""\
    # A stream should begin within this time; the default of 2 s would reject what may wait longer here.
    ttft: {{ttft}}
    # The default time per token. It gives way if the engines turn out to be too slow for it; a value that you set does
    # not.
    # tpot: 100ms
{_OTHER_TARGETS}"""

_CHAT = """\
classes:
  # Prompts up to 8000 tokens, the default. People watch these answers come, so they go first.
  interactive:
    band: 0
    # Who has waited 5 s presses the button again. Refused at once with a Retry-After, the caller can say so instead.
    queue_wait_max: 5s
{targets}
    # Twice what {places} places serve in 5 s when an answer takes 5 s, 16 at least; whoever came later would expire.
    queue_length_max: {interactive}
    # Half of it, so that one tenant's burst leaves room for the others.
    queue_length_per_tenant_max: {interactive_each}
    # An engine that takes longer to its first token is stuck for a person; another one is tried.
    first_token_max: 30s
  # Longer prompts. They hold up whoever comes after them, so they go second and may wait longer.
  long:
    band: 1
    queue_wait_max: 15s
    # Twice what {places} places serve in 15 s when an answer takes 20 s, 16 at least, and half of it for one tenant.
    queue_length_max: {long}
    queue_length_per_tenant_max: {long_each}
"""

_BURSTY = """\
classes:
  # Prompts up to 8000 tokens, the default.
  interactive:
    band: 0
    # A burst brings several times what the engines run at once and is over within a minute. Whoever waits it out gets
    # an answer; refused and retried, the same requests would come back as the next burst.
    queue_wait_max: 30s
{targets}
    # Twice what {places} places serve in 30 s when an answer takes 5 s, 16 at least.
    queue_length_max: {interactive}
    # Half of it: a burst usually comes from one tenant, and the others go on beside it.
    queue_length_per_tenant_max: {interactive_each}
    # Engines that are full take long to a first token; that alone is no reason to try another, which is full too.
    first_token_max: 1m
  # Longer prompts: behind the short ones, so that the many are through soon.
  long:
    band: 1
    queue_wait_max: 1m
    # Twice what {places} places serve in 1 min when an answer takes 20 s, 16 at least, and half of it for one tenant.
    queue_length_max: {long}
    queue_length_per_tenant_max: {long_each}
    first_token_max: 2m
"""

_BATCH = """\
classes:
  # For whoever asks for it, by service_tier "priority" or the header x-headgate-class: a person who tries something
  # must not wait behind a night's work.
  interactive:
    band: 0
    unnamed: false
    queue_wait_max: 10s
{targets}
    # Twice what {places} places serve in 10 s when an answer takes 5 s, 16 at least, and half of it for one tenant.
    queue_length_max: {interactive}
    queue_length_per_tenant_max: {interactive_each}
  # Everything else. It keeps the engines full and takes what is left of them.
  batch:
    band: 1
    unnamed: true
    # Of the engines' time this much is its own, whatever goes first.
    floor_percent: 5
    # Nobody watches, so waiting is better than being refused. Callers must be as patient: the openai client gives up
    # after 10 minutes unless it is made with a longer timeout.
    queue_wait_max: 1h
    # Twice what {places} places serve in an hour when an answer takes 30 s, 10000 at most: each one that waits is an
    # open connection.
    queue_length_max: {batch}
    # Half of it, so that one tenant's job does not shut the others out.
    queue_length_per_tenant_max: {batch_each}
    # Long prompts on full engines: silence is normal for longer than with people.
    first_token_max: 5m
    idle_max: 2m
    total_max: 1h
"""

_MIXED = """\
classes:
  # In this order unnamed requests are offered to the classes: prompts up to 8000 tokens are interactive, longer ones
  # long. batch takes only those who ask for it. A lower band goes first, whatever waits in the others.
  interactive:
    band: 0
    # People wait ten seconds at most.
    queue_wait_max: 10s
{targets}
    # Twice what {places} places serve in 10 s when an answer takes 5 s, 16 at least; whoever came later would expire.
    queue_length_max: {interactive}
    # Half of it, in each class, so that one tenant's burst leaves room for the others.
    queue_length_per_tenant_max: {interactive_each}
    first_token_max: 30s
  long:
    band: 1
    queue_wait_max: 30s
    # Twice what {places} places serve in 30 s when an answer takes 20 s, 16 at least.
    queue_length_max: {long}
    queue_length_per_tenant_max: {long_each}
    first_token_max: 1m
  # By service_tier "flex" or the header x-headgate-class. It takes what the others leave of the engines.
  batch:
    band: 2
    # Of the engines' time this much is its own, whatever the others want; so it gets on even on the busiest day.
    floor_percent: 5
    # As long as the openai client waits before it gives up by itself.
    queue_wait_max: 10m
    # Twice what {places} places serve in 10 min when an answer takes 30 s, 10000 at most.
    queue_length_max: {batch}
    queue_length_per_tenant_max: {batch_each}
    first_token_max: 5m
    idle_max: 2m
    total_max: 1h
"""

SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "chat": Shape(
            purpose="people wait for an answer and watch it come: short waits, short queues",
            drain_grace="30s",
            drain_reason="as long as an answer that somebody reads usually takes",
            queues={"interactive": Queue(5, 5), "long": Queue(15, 20)},
            classes=_CHAT,
        ),
        "bursty": Shape(
            purpose="quiet for long, then far too much at once: bursts wait instead of being refused",
            drain_grace="1m",
            drain_reason="long enough for a burst that waits to be served",
            queues={"interactive": Queue(30, 5), "long": Queue(60, 20)},
            ttft="20s",
            classes=_BURSTY,
        ),
        "batch": Shape(
            purpose="jobs that nobody watches: long waits, full engines",
            drain_grace="5m",
            drain_reason="long answers are dear to begin again",
            queues={"interactive": Queue(10, 5), "batch": Queue(3600, 30)},
            ttft="5s",
            classes=_BATCH,
        ),
        "mixed": Shape(
            purpose="people and jobs on the same engines: each class has its own wait and its own bounds",
            drain_grace="1m",
            drain_reason="long enough for people; jobs ask again",
            queues={"interactive": Queue(10, 5), "long": Queue(30, 20), "batch": Queue(600, 30)},
            classes=_MIXED,
        ),
    }
)
