"""Request histories for the explanation tests.

Each history lists the events and commands that the observer sees. No scheduler is involved, so the tests cover the
explanation and not the decisions.
"""

from collections.abc import Sequence
from dataclasses import replace

from headgate.core.commands import Abort, Command, Dispatch, Eject, End, Hold
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.model.caps import Caps, ReasoningEffort
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.ticket import Api, Ticket
from headgate.model.units import SECOND, Duration, Instant
from headgate.model.usage import Usage, UsageSource
from headgate.telemetry.decision_history import DecisionHistory

START = Instant(1_767_225_600 * SECOND)
"""2026-01-01T00:00:00Z."""
ID = "req_0123456789abcdef01234567"
LEAST = "least loaded, 3 of 8 requests in flight"
COSTS = (("pending_prefill", 1_500_000), ("own_prefill", 30_404_000), ("prefix_hit", -20_000_000))


def at(seconds: float) -> Instant:
    return Instant(START + round(seconds * SECOND))


def arrived(request_id: str = ID, tenant: str = "acme", **fields: object) -> RequestArrived:
    asked: dict[str, object] = {"stream": True, "prompt_bytes": 1_234, **fields}
    return RequestArrived(Ticket(request_id, Api.CHAT, asked.pop("model", "m"), tenant, **asked))


def sent(
    request_id: str = ID,
    endpoint: str = "main/2",
    *,
    attempt: int = 1,
    waited: float = 0,
    service_class: str = "interactive",
    reason: str = LEAST,
    caps: Caps | None = None,
    level: int = 0,
    hedge: bool = False,
    costs: tuple[tuple[str, int], ...] = (),
) -> Dispatch:
    pool, waited_ns = endpoint.partition("/")[0], Duration(round(waited * SECOND))
    return Dispatch(
        *(request_id, attempt, endpoint, pool, service_class, waited_ns, 1, 1, 1, caps or Caps(), reason, level, hedge),
        costs=costs,
    )


def over(
    outcome: Outcome = Outcome.COMPLETED,
    reason: str = "",
    *,
    attempts: int = 1,
    waited: float = 0,
    retry_after: float | None = None,
    service_class: str | None = "interactive",
) -> End:
    wait = None if retry_after is None else Duration(round(retry_after * SECOND))
    return End(ID, outcome, service_class, attempts, Duration(round(waited * SECOND)), wait, reason)


def attempt_over(
    ending: AttemptEnding = AttemptEnding.COMPLETED, detail: str = "", *, attempt: int = 1, usage: Usage | None = None
) -> AttemptEnded:
    return AttemptEnded(ID, attempt, ending, detail, usage)


Moment = tuple[float, Event, Sequence[Command]]
USED = Usage(311, 87, 0, UsageSource.ENGINE)
CALLER_LEFT = RequestWithdrawn(ID, WithdrawalCause.CLIENT_DISCONNECTED)


def others(count: int, tenant: str, *, first: float, service_class: str = "interactive") -> list[Moment]:
    """Another tenant's requests, which arrived earlier and are sent one every 50 ms."""
    names = [f"{tenant}-{service_class}-{number}" for number in range(count)]
    came: list[Moment] = [(-1, arrived(name, tenant), []) for name in names]
    went: list[Moment] = [
        (first + 0.05 * number, TimerFired(), [sent(name, waited=1, service_class=service_class)])
        for number, name in enumerate(names)
    ]
    return came + went


HELD = Hold(
    ID,
    "main",
    "interactive",
    "no endpoint in pool main is available; held until the first endpoint in pool main starts",
)
HISTORIES: dict[str, list[Moment]] = {
    "held for a cold start": [
        (0, arrived(), [HELD]),
        (20.5, TimerFired(), [replace(sent(waited=20.5), held_ns=20 * SECOND)]),
        (21, attempt_over(usage=USED), [replace(over(waited=20.5), held_ns=20 * SECOND)]),
    ],
    "completed immediately": [
        (0, arrived(), [sent()]),
        (0.318, FirstToken(ID, 1), []),
        (1.25, attempt_over(usage=USED), [over()]),
    ],
    "first token and end reported together": [
        (0, arrived(stream=False), [sent()]),
        (0.4, replace(attempt_over(usage=USED), first_token=True), [over()]),
    ],
    "waited, then completed": [
        *others(9, "bolt", first=0.1),
        *others(4, "acme", first=0.11),
        *others(3, "coil", first=0.3, service_class="batch"),
        *others(1, "dune", first=0.4),
        *others(3, "late", first=2.0),
        (0, arrived(), []),
        (1.2, TimerFired(), [sent(waited=1.2, costs=COSTS)]),
        (1.52, FirstToken(ID, 1), []),
        (3.41, attempt_over(usage=USED), [over(waited=1.2)]),
    ],
    "streamed internally, retried and delivered complete": [
        (0, arrived(stream=False), [sent(endpoint="main/1")]),
        (0.2, FirstToken(ID, 1, delivered=False), []),
        (0.4, attempt_over(AttemptEnding.FAILED, "the stream was truncated"), [sent(attempt=2)]),
        (0.9, FirstToken(ID, 2, delivered=False), []),
        (2.1, FirstToken(ID, 2), []),
        (2.1, attempt_over(attempt=2, usage=USED), [over(attempts=2)]),
    ],
    "retried after a failure": [
        (0, arrived(), [sent(endpoint="main/1")]),
        (
            0.4,
            attempt_over(AttemptEnding.FAILED, "connection refused"),
            [
                Eject("main/1", at(10.4), "connection refused"),
                Eject("other/1", at(10.4), "another endpoint"),
                sent(attempt=2),
            ],
        ),
        (0.9, FirstToken(ID, 2), []),
        (2.1, attempt_over(attempt=2), [over(attempts=2)]),
    ],
    "degraded": [
        (
            0,
            arrived(output_tokens_max=1024, n=4),
            [sent(level=2, caps=Caps(output_tokens=256, reasoning_effort=ReasoningEffort.LOW))],
        ),
        (0.7, attempt_over(), [over()]),
    ],
    "rejected by a rate limit": [
        (
            0,
            arrived(service_tier="flex", client_retries=1),
            [
                over(
                    Outcome.RATE_LIMITED,
                    'tenant "acme" has reached its limit of 60 requests per minute; '
                    "retry in 12 s or raise requests_per_minute",
                    attempts=0,
                    retry_after=12,
                    service_class="batch",
                )
            ],
        ),
    ],
    "expired": [
        *others(2, "bolt", first=3),
        (0, arrived(requested_class="interactive"), []),
        (12, PolicyChanged(Policy(), "0123abcd"), []),
        (
            30,
            TimerFired(),
            [
                over(
                    Outcome.QUEUE_TIMEOUT,
                    'waited 30 s, the maximum in class "interactive"',
                    attempts=0,
                    waited=30,
                    retry_after=4,
                )
            ],
        ),
    ],
    "cancelled": [
        (0, arrived(first_token_ns_left=2 * SECOND, completion_ns_left=20 * SECOND), [sent()]),
        (
            0.812,
            CALLER_LEFT,
            [Abort(ID, 1, "main/2", "client_left"), over(Outcome.CANCELLED, "the client disconnected")],
        ),
        (0.815, attempt_over(AttemptEnding.ABORTED, "client_left"), []),
    ],
    "hedged": [
        (0, arrived(), [sent(endpoint="main/1")]),
        (0.6, TimerFired(), [sent(attempt=2, hedge=True, reason="main/1 has been silent for 0.6 s")]),
        (0.9, FirstToken(ID, 2), [Abort(ID, 1, "main/1", "attempt 2 responded first")]),
        (0.902, attempt_over(AttemptEnding.ABORTED, "attempt 2 responded first"), []),
        (1.7, attempt_over(attempt=2, usage=USED), [over(attempts=2)]),
    ],
}


def observed(history: Sequence[Moment], decisions: DecisionHistory | None = None) -> DecisionHistory:
    """An observer that has seen the history in chronological order."""
    decisions = decisions or DecisionHistory()
    for moment, event, commands in sorted(history, key=lambda each: each[0]):
        decisions.observe(event, commands, at(moment))
    return decisions
