"""Classes for four common kinds of traffic, as commented text for `headgate init`.

Queue lengths are computed from the number of concurrent requests, the class's maximum wait and the assumed response
duration, because requests beyond that length would only time out in the queue.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

QUEUE_LENGTH_MIN = 16
"""Minimum queue length. A shorter queue would reject requests because of random bursts rather than load."""
QUEUE_LENGTH_MAX = 10_000
"""Maximum queue length: half of the default `limits.requests_open_max`."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """A class's maximum wait and the assumed response duration, in seconds."""

    wait_s: int
    answer_s: int

    def length(self, in_flight_max: int) -> int:
        # Twice as many as can be served in time, because durations vary and are only estimates.
        served_in_time = in_flight_max * self.wait_s // self.answer_s
        return min(QUEUE_LENGTH_MAX, max(QUEUE_LENGTH_MIN, 2 * served_in_time))


@dataclass(frozen=True, slots=True)
class TrafficShape:
    purpose: str
    drain_grace: str
    drain_reason: str
    queues: Mapping[str, QueueBounds]
    classes: str
    """Text of the `classes` section.

    The placeholders {NAME} and {NAME_each} are a class's queue lengths, and {targets} its targets.
    """
    ttft: str | None = None
    """Time-to-first-token target for interactive requests; None for the default."""

    def classes_section(self, in_flight_max: int) -> str:
        bounds: dict[str, int] = {}
        for name, queue in self.queues.items():
            bounds[name] = queue.length(in_flight_max)
            bounds[f"{name}_each"] = bounds[name] // 2
        targets = (_DEFAULT_TARGETS if self.ttft is None else _TARGETS).format(ttft=self.ttft)
        return self.classes.format(slots=in_flight_max, targets=targets, **bounds)


_OTHER_TARGETS = """\
    # Objectives over thirty days. `headgate generate rules` turns them into alerts, `headgate report` evaluates them.
    # objectives: {{ttft_percent: 99, availability_percent: 99.5}}"""

_DEFAULT_TARGETS = f"""\
    # Defaults: the first token within 2 s and 100 ms per output token after it. Requests that cannot start in time are
    # rejected. A default is relaxed if the engines are too slow for it; a value that you set is not.
    # ttft: 2s
    # tpot: 100ms
{_OTHER_TARGETS}"""

_TARGETS = f"""\
    # Target for the first token. The default of 2 s would reject requests that may wait longer here.
    ttft: {{ttft}}
    # Default time per token. It is relaxed if the engines are too slow for it; a value that you set is not.
    # tpot: 100ms
{_OTHER_TARGETS}"""

_CHAT = """\
classes:
  # Prompts up to 8000 tokens, the default. Users watch these responses, so they have the highest priority.
  interactive:
    priority_band: 0
    # After 5 s, users retry. An early rejection with Retry-After lets the client show a message instead.
    queue_wait_max: 5s
{targets}
    # Twice the number that {slots} slots serve in 5 s if a response takes 5 s, at least 16. Later ones would time out.
    queue_length_max: {interactive}
    # Half of it, so that a burst of one tenant leaves room for the others.
    queue_length_per_tenant_max: {interactive_each}
    # After this time without a first token, another engine is tried.
    first_token_timeout: 30s
  # Longer prompts. They delay other requests, so they have a lower priority and may wait longer.
  long:
    priority_band: 1
    queue_wait_max: 15s
    # Twice the number that {slots} slots serve in 15 s if a response takes 20 s, at least 16; half per tenant.
    queue_length_max: {long}
    queue_length_per_tenant_max: {long_each}
"""

_BURSTY = """\
classes:
  # Prompts up to 8000 tokens, the default.
  interactive:
    priority_band: 0
    # A burst is several times the engines' capacity and ends within a minute. Waiting requests are served;
    # rejected ones would be retried and cause the next burst.
    queue_wait_max: 30s
{targets}
    # Twice the number that {slots} slots serve in 30 s if a response takes 5 s, at least 16.
    queue_length_max: {interactive}
    # Half of that: a burst usually comes from one tenant, and the others need room.
    queue_length_per_tenant_max: {interactive_each}
    # Full engines are slow to send the first token, and another engine would be full too.
    first_token_timeout: 1m
  # Longer prompts, with a lower priority than the many short ones.
  long:
    priority_band: 1
    queue_wait_max: 1m
    # Twice the number that {slots} slots serve in 1 min if a response takes 20 s, at least 16; half per tenant.
    queue_length_max: {long}
    queue_length_per_tenant_max: {long_each}
    first_token_timeout: 2m
"""

_BATCH = """\
classes:
  # Selected by service_tier "priority" or the header x-headgate-class, so that a user does not wait behind batch jobs.
  interactive:
    priority_band: 0
    accepts_unclassified: false
    queue_wait_max: 10s
{targets}
    # Twice the number that {slots} slots serve in 10 s if a response takes 5 s, at least 16; half per tenant.
    queue_length_max: {interactive}
    queue_length_per_tenant_max: {interactive_each}
  # All other requests. They use the engines' remaining capacity.
  batch:
    priority_band: 1
    accepts_unclassified: true
    # Minimum share of engine time, even if higher priorities need more.
    min_share_percent: 5
    # For batch jobs, waiting is better than being rejected. Clients need an equally long timeout; the openai client's
    # default is 10 minutes.
    queue_wait_max: 1h
    # Twice the number that {slots} slots serve in an hour if a response takes 30 s, at most 10000, because each waiting
    # request is an open connection.
    queue_length_max: {batch}
    # Half of that, so that one tenant's job leaves room for the others.
    queue_length_per_tenant_max: {batch_each}
    # With long prompts and full engines, the first token takes longer.
    first_token_timeout: 5m
    stream_idle_timeout: 2m
    attempt_timeout: 1h
"""

_MIXED = """\
classes:
  # Unclassified requests are matched in this order: prompts up to 8000 tokens are interactive, longer ones long. batch
  # is only for requests that select it. Lower priority bands are served first.
  interactive:
    priority_band: 0
    # Users wait at most ten seconds.
    queue_wait_max: 10s
{targets}
    # Twice the number that {slots} slots serve in 10 s if a response takes 5 s, at least 16. Later ones would time out.
    queue_length_max: {interactive}
    # Half of that, in each class, so that a burst from one tenant leaves room for the others.
    queue_length_per_tenant_max: {interactive_each}
    first_token_timeout: 30s
  long:
    priority_band: 1
    queue_wait_max: 30s
    # Twice the number that {slots} slots serve in 30 s if a response takes 20 s, at least 16.
    queue_length_max: {long}
    queue_length_per_tenant_max: {long_each}
    first_token_timeout: 1m
  # Selected by service_tier "flex" or the header x-headgate-class. It uses the engines' remaining capacity.
  batch:
    priority_band: 2
    # Minimum share of engine time, so that batch makes progress under overload.
    min_share_percent: 5
    # The openai client's default timeout.
    queue_wait_max: 10m
    # Twice the number that {slots} slots serve in 10 min if a response takes 30 s, at most 10000.
    queue_length_max: {batch}
    queue_length_per_tenant_max: {batch_each}
    first_token_timeout: 5m
    stream_idle_timeout: 2m
    attempt_timeout: 1h
"""

SHAPES: Mapping[str, TrafficShape] = MappingProxyType(
    {
        "chat": TrafficShape(
            purpose="users wait for responses and watch them stream; short waits, short queues",
            drain_grace="30s",
            drain_reason="the usual duration of an interactive response",
            queues={"interactive": QueueBounds(5, 5), "long": QueueBounds(15, 20)},
            classes=_CHAT,
        ),
        "bursty": TrafficShape(
            purpose="long quiet periods, then bursts above capacity; bursts wait instead of being rejected",
            drain_grace="1m",
            drain_reason="long enough to serve a waiting burst",
            queues={"interactive": QueueBounds(30, 5), "long": QueueBounds(60, 20)},
            ttft="20s",
            classes=_BURSTY,
        ),
        "batch": TrafficShape(
            purpose="batch jobs; long waits, full engines",
            drain_grace="5m",
            drain_reason="long responses are expensive to restart",
            queues={"interactive": QueueBounds(10, 5), "batch": QueueBounds(3600, 30)},
            ttft="5s",
            classes=_BATCH,
        ),
        "mixed": TrafficShape(
            purpose="users and batch jobs on the same engines; each class has its own wait and queue length",
            drain_grace="1m",
            drain_reason="long enough for interactive requests; batch jobs retry",
            queues={"interactive": QueueBounds(10, 5), "long": QueueBounds(30, 20), "batch": QueueBounds(600, 30)},
            classes=_MIXED,
        ),
    }
)
