"""Explains the history of one request.

The explanation consists of a sentence and a list of steps, each with its time, event and reason. The reasons come from
the scheduler's commands. The histories of other requests show which of them were sent while this request waited.
"""

from collections import Counter
from dataclasses import fields
from datetime import UTC, datetime

from headgate.core.commands import Abort, Dispatch, End, Hold
from headgate.core.events import AttemptEnded, AttemptEnding, FirstToken
from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.routes import mirrored_id
from headgate.model.units import (
    BYTES_PER_TOKEN,
    MILLISECOND,
    SECOND,
    Duration,
    Instant,
    PoolName,
    RequestId,
    format_seconds,
)
from headgate.telemetry.decision_history import STEPS_MAX, HistoryRetention, HistorySnapshot, RequestHistory

_GROUPS_SHOWN_MAX = 3
_DEFAULT_CAPS = Caps()
_ENDING_TEXT = {
    AttemptEnding.COMPLETED: "completed",
    AttemptEnding.FAILED: "failed",
    AttemptEnding.TIMEOUT: "timed out",
    AttemptEnding.REJECTED: "was rejected by the engine",
    AttemptEnding.ABORTED: "stopped",
}


def explain(picture: HistorySnapshot, now: Instant) -> dict[str, object]:
    """The explanation as plain data types."""
    telling = _ExplanationBuilder(picture, now)
    telling.build()
    history = picture.history
    of_class = "" if telling.service_class is None else f", class {telling.service_class}"
    return {
        "request_id": history.request_id,
        "tenant": history.tenant,
        "model": history.model,
        "class": telling.service_class,
        "outcome": None if telling.end is None else telling.end.outcome.value,
        "arrived_at": datetime.fromtimestamp(history.arrived_at / SECOND, UTC).isoformat(timespec="milliseconds"),
        "summary": f"{history.request_id} (tenant {history.tenant}{of_class}) {'; '.join(telling.clauses)}.",
        "steps": telling.rows,
    }


def unknown_request(
    request_id: RequestId, retention: HistoryRetention, now: Instant, *, file_retention_ns: Duration | None = None
) -> dict[str, object]:
    """Response for an unknown request.

    `file_retention_ns` is how long record files are retained; None without files.
    """
    oldest = "" if retention.oldest_at is None else f", the oldest from {_duration_text(now - retention.oldest_at)} ago"
    kept = (
        f"the last {retention.requests_max} requests and the last {retention.rejected_max} rejected on arrival{oldest}"
    )
    if file_retention_ns is None:
        where = f"This gateway keeps {kept}. Configure `records` to keep more, and to keep them across restarts."
    else:
        held_for = _long_duration_text(file_retention_ns)
        where = f"Requests are kept in files for {held_for} or up to their size limit. Memory holds {kept}."
    unknown_id = f"request {request_id} is unknown; check the x-request-id of the response."
    return {"request_id": request_id, "error": f"{unknown_id} {where}"}


class _ExplanationBuilder:
    """Walks through a history and builds the clauses of the sentence and the rows of the table."""

    def __init__(self, picture: HistorySnapshot, now: Instant) -> None:
        self._picture = picture
        self._history = picture.history
        self._now = now
        # Copy first, because the event loop may add steps while this thread reads.
        self._steps = tuple(picture.history.steps)
        self._running: dict[int, tuple[Instant, Dispatch]] = {}
        self._waited_ns = 0
        self._held_ns = 0
        """Hold time already mentioned in `clauses`. `_waited_ns` is the same for the total waiting time.
        """
        self._hold: Hold | None = None
        """Latest hold."""
        self._pool: PoolName | None = None
        """Pool of the latest attempt."""
        ends = [(at, step) for at, step in self._steps if isinstance(step, End)]
        self._ended_at: Instant | None = ends[0][0] if ends else None
        self.end = ends[0][1] if ends else None
        self.service_class = _last_class(self._steps)
        self.clauses: list[str] = []
        self.rows: list[dict[str, object]] = []

    def build(self) -> None:
        if (original := mirrored_id(self._history.request_id)) is not None:
            self.clauses.append(f"is a mirrored copy of {original}, and its response was discarded")
        self._add_row(self._history.arrived_at, "arrived", "arrived", ", ".join(_request_facts(self._history)))
        for at, step in self._steps:
            match step:
                case Dispatch():
                    self._dispatched(step, at)
                case Hold():
                    self._add_hold_row(step, at)
                case FirstToken():
                    self._first_token(step.attempt, at, delivered=step.delivered)
                case Abort():
                    self._aborted(step, at)
                case AttemptEnded():
                    self._attempt_ended(step, at)
                case End():
                    self._ended(step, at)
        self._add_policy_changes()
        self._add_mirror_row()
        if self.end is None:
            self._add_open_clause()
        self.rows.sort(key=_row_time)

    # Steps, in their usual order

    def _add_hold_row(self, hold: Hold, at: Instant) -> None:
        self._hold = hold
        self._add_row(at, "held", f"held for pool {hold.pool}", hold.reason, pool=hold.pool)

    def _add_hold_clause(self, held_ns: int, *, so_far: bool = False) -> bool:
        """Adds a clause for the time spent on hold, `held_ns` in total. Returns false if there is nothing to add."""
        length_ns = held_ns - self._held_ns
        if self._hold is None or length_ns <= 0:
            return False
        self._held_ns += length_ns
        self._waited_ns += length_ns
        held = (
            f"has been held {_duration_text(length_ns)} so far" if so_far else f"was held {_duration_text(length_ns)}"
        )
        self.clauses.append(f"{held} for a cold start of pool {self._hold.pool}")
        return True

    def _add_wait_clause(self, length_ns: int, until: Instant, pool: PoolName | None, *, so_far: bool = False) -> bool:
        """Adds a clause for a wait that ended at `until`. Returns false if the wait was shorter than a millisecond."""
        if length_ns < MILLISECOND:
            return False
        self._waited_ns += length_ns
        since = Instant(until - length_ns)
        where = f"to pool {pool}" if pool is not None else f"for model {self._history.model}"
        sent = self._sent_meanwhile(since, until, pool)
        if sent:
            others = "1 other request was" if sent.total() == 1 else f"{sent.total()} other requests were"
            at_least = "at least " if self._picture.evicted_until >= since else ""
            why = f"{at_least}{others} sent {where} ({_group_text(sent, self.service_class)})"
        else:
            limits = "slots, pending prefill, KV cache or time per token"
            why = f"nothing was sent {where} because no ready endpoint had headroom ({limits})"
        waited = f"has waited {_duration_text(length_ns)} so far" if so_far else f"waited {_duration_text(length_ns)}"
        self.clauses.append(f"{waited} while {why}")
        what = "queued" if self.service_class is None else f"queued in class {self.service_class}"
        listed = [{"tenant": tenant, "class": name, "requests": count} for (tenant, name), count in sent.most_common()]
        self._add_row(since, "queued", what, f"meanwhile {why}", waited_ms=_ms(length_ns), sent_meanwhile=listed)
        return True

    def _dispatched(self, dispatch: Dispatch, at: Instant) -> None:
        held = self._add_hold_clause(dispatch.held_ns)
        waited = not dispatch.hedge and self._add_wait_clause(dispatch.waited_ns - self._waited_ns, at, dispatch.pool)
        self._running[dispatch.attempt], self._pool = (at, dispatch), dispatch.pool
        at_most = _applied_caps(self._history, dispatch.caps)
        allowed = f"limited to {', '.join(at_most)}" if at_most else ""
        endpoint, reason = dispatch.endpoint_id, f" ({dispatch.reason})" if dispatch.reason else ""
        if dispatch.hedge:
            what = f"hedged to {endpoint}"
            self.clauses.append(f"was hedged to {endpoint}{reason}")
        else:
            what = f"sent to {endpoint}"
            at_once = "" if held or waited or dispatch.attempt > 1 else " immediately"
            self.clauses.append(f"was sent{at_once} to {endpoint}{reason}")
        by_route = f"route {dispatch.route}" if dispatch.route else ""
        if by_route and dispatch.attempt == 1:
            self.clauses.append(f'took route "{dispatch.route}"')
        if dispatch.level:
            self.clauses.append(f"was degraded to level {dispatch.level}{f' ({allowed})' if allowed else ''}")
            allowed = f"degraded to level {dispatch.level}{f', {allowed}' if allowed else ''}"
        self._add_row(
            at,
            "dispatched",
            what if dispatch.attempt == 1 else f"{what}, attempt {dispatch.attempt}",
            _join_nonempty(by_route, dispatch.reason, _score_text(dispatch), allowed),
            endpoint=endpoint,
            pool=dispatch.pool,
            attempt=dispatch.attempt,
            level=dispatch.level,
            hedge=dispatch.hedge,
            caps=at_most,
            **({"adapter": dispatch.adapter} if dispatch.adapter else {}),
            costs_ms={name: round(cost_ns / MILLISECOND, 3) for name, cost_ns in dispatch.costs},
            **({"route": dispatch.route} if dispatch.route else {}),
        )

    def _first_token(self, attempt: int, at: Instant, *, delivered: bool) -> None:
        several = attempt > 1 or len(self._running) > 1
        streamed = self._history.stream or not delivered
        what = "first token" if streamed else "response begins"
        self._add_row(at, "first_token", what, f"of attempt {attempt}" if several else "")

    def _aborted(self, abort: Abort, at: Instant) -> None:
        self._add_row(at, "aborted", f"attempt {abort.attempt} aborted", abort.reason, attempt=abort.attempt)
        if at != self._ended_at:
            self.clauses.append(f"attempt {abort.attempt} was aborted ({abort.reason})")

    def _attempt_ended(self, event: AttemptEnded, at: Instant) -> None:
        if event.first_token:
            self._first_token(event.attempt, at, delivered=True)
        how, usage = _ENDING_TEXT[event.ending], event.usage
        tokens = "" if usage is None else f"{usage.prompt_tokens} prompt and {usage.output_tokens} output tokens"
        why, ending = _join_nonempty(event.detail, tokens), event.ending.value
        self._add_row(at, "attempt_ended", f"attempt {event.attempt} {how}", why, attempt=event.attempt, ending=ending)
        # If the request ends at the same time, it ends for the same reason.
        if at != self._ended_at and event.ending is not AttemptEnding.ABORTED:
            self.clauses.append(f"attempt {event.attempt} {how}{f' ({event.detail})' if event.detail else ''}")
        if event.attempt in self._running:
            since, dispatch = self._running.pop(event.attempt)
            self._add_ejections(dispatch, since, at)

    def _ended(self, end: End, at: Instant) -> None:
        self._add_hold_clause(end.held_ns)
        self._add_wait_clause(end.waited_ns - self._waited_ns, at, self._pool)
        wait = "" if end.retry_after_ns is None else f"Retry-After {_duration_text(end.retry_after_ns)}"
        why, outcome = _join_nonempty(end.reason, wait), end.outcome.value
        self._add_row(at, "ended", f"ended: {outcome}", why, outcome=outcome, attempts=end.attempts)
        self.clauses.append(_outcome_clause(end, Duration(at - self._history.arrived_at), why))

    def _add_open_clause(self) -> None:
        if not self._running:
            since = self._steps[-1][0] if self._steps else self._history.arrived_at
            if self._steps and isinstance(self._steps[-1][1], Hold):
                self._add_hold_clause(self._held_ns + self._now - since, so_far=True)
            elif not self._add_wait_clause(self._now - since, self._now, self._pool, so_far=True):
                self.clauses.append("has just been queued")
            return
        where = " and ".join(dispatch.endpoint_id for _, dispatch in self._running.values())
        began = any(isinstance(step, FirstToken) and step.attempt in self._running for _, step in self._steps)
        doing = "the response has begun" if began else "no token has arrived"
        self.clauses.append(
            f"is still in progress after {_duration_text(self._now - self._history.arrived_at)} ({doing})"
        )
        self._add_row(self._now, "open", f"still in progress at {where}", doing)

    # Concurrent events

    def _add_ejections(self, dispatch: Dispatch, since: Instant, until: Instant) -> None:
        """Adds ejections of the attempt's endpoint that happened during the attempt."""
        for at, eject in self._picture.ejections:
            if eject.endpoint_id == dispatch.endpoint_id and since <= at <= until:
                what = f"{eject.endpoint_id} ejected for {_duration_text(eject.until - at)}"
                self._add_row(at, "ejected", what, eject.reason, endpoint=eject.endpoint_id)

    def _add_policy_changes(self) -> None:
        over = self._now if self._ended_at is None else self._ended_at
        for at, policy_hash in self._picture.policies:
            if self._history.arrived_at < at <= over:
                self._add_row(at, "policy_changed", "policy changed", f"configuration {policy_hash} took effect")
        if len(self._steps) >= STEPS_MAX:
            self._add_row(
                self._steps[-1][0], "left_out", "later steps omitted", f"a history has at most {STEPS_MAX} steps"
            )

    def _add_mirror_row(self) -> None:
        copy = self._picture.mirror
        if copy is not None:
            self.clauses.append(f"was copied to a mirror as {copy.request_id}")
            self._add_row(copy.arrived_at, "mirrored", "copied to a mirror", copy.request_id, copy=copy.request_id)

    def _sent_meanwhile(self, since: Instant, until: Instant, pool: PoolName | None) -> Counter[tuple[str, str]]:
        """Requests sent while this one waited: to the pool, or for the model if `pool` is None. By tenant and class."""
        sent: Counter[tuple[str, str]] = Counter()
        for history in self._picture.requests:
            if history is self._history or (pool is None and history.model != self._history.model):
                continue
            for at, step in tuple(history.steps):
                if isinstance(step, Dispatch) and since <= at < until and pool in (None, step.pool):
                    sent[history.tenant, step.service_class] += 1
        return sent

    def _add_row(self, at: Instant, kind: str, event: str, reason: str, **facts: object) -> None:
        at_ms = _ms(at - self._history.arrived_at)
        self.rows.append({"at_ms": at_ms, "kind": kind, "event": event, "reason": reason, **facts})


# Wording


def _request_facts(history: RequestHistory) -> list[str]:
    """Properties of the request that matter for scheduling decisions."""
    asked = [f"{history.api.value} for model {history.model}", "streaming" if history.stream else "non-streaming"]
    prompt = "prompt" if history.prompts == 1 else f"{history.prompts} prompts"
    asked.append(f"{prompt} of {history.prompt_bytes} bytes")
    if history.n > 1:
        asked.append(f"{history.n} choices")
    if history.output_tokens_max is not None:
        asked.append(f"at most {history.output_tokens_max} output tokens")
    named = (
        ("class", history.requested_class),
        ("service_tier", history.service_tier),
        ("model tier", history.model_tier),
    )
    asked.extend(f'{what} "{name}"' for what, name in named if name is not None)
    if history.client_retries:
        asked.append(f"client retry {history.client_retries}")
    within = ((history.first_token_ns_left, "first token"), (history.completion_ns_left, "complete response"))
    asked.extend(f"{goal} within {_duration_text(left)}" for left, goal in within if left is not None)
    return asked


def _applied_caps(history: RequestHistory, caps: Caps) -> list[str]:
    """Limits that the request exceeded or may exceed, in `x-headgate-degraded` notation."""
    limits = [(each.name, getattr(caps, each.name)) for each in fields(Caps) if each.name != "trim_prompt"]
    asked = {
        "n": history.n,
        "output_tokens": history.output_tokens_max,
        "prompt_tokens": history.prompt_bytes // BYTES_PER_TOKEN,
    }
    told: list[str] = []
    for name, limit in limits:
        if limit is None:
            continue
        if (known := asked.get(name)) is not None:
            if known > limit:
                told.append(f"{name}={limit} instead of {known}")
        elif limit != getattr(_DEFAULT_CAPS, name):
            told.append(f"{name}={limit}")
    return told


def _group_text(sent: Counter[tuple[str, str]], service_class: str | None) -> str:
    """Text such as `9 from bolt, 5 from acme in class batch`.

    The class is included only if it differs from the request's.
    """
    most = sent.most_common(_GROUPS_SHOWN_MAX)
    named = [
        f"{count} from {tenant}{'' if name == service_class else f' in class {name}'}" for (tenant, name), count in most
    ]
    rest = sent.total() - sum(count for _, count in most)
    return ", ".join([*named, f"{rest} more"] if rest else named)


def _outcome_clause(end: End, length: Duration, why: str) -> str:
    match end.outcome:
        case Outcome.COMPLETED:
            return f"completed after {_duration_text(length)}"
        case Outcome.CANCELLED:
            return f"was cancelled after {_duration_text(length)} ({end.reason})"
        case _ if not length and not end.attempts:
            return f"was rejected on arrival with {end.outcome.value}: {why}"
        case _:
            return f"ended after {_duration_text(length)} with {end.outcome.value}: {why}"


def _last_class(steps: tuple[tuple[Instant, object], ...]) -> str | None:
    named = [step.service_class for _, step in steps if isinstance(step, Dispatch | Hold | End)]
    return named[-1] if named else None


def _score_text(dispatch: Dispatch) -> str:
    """The endpoint's routing score and its cost terms; empty if none were recorded."""
    if not dispatch.costs:
        return ""
    shares = ", ".join(f"{name.replace('_', ' ')} {_cost_text(cost_ns)}" for name, cost_ns in dispatch.costs)
    return f"score {_cost_text(sum(cost_ns for _, cost_ns in dispatch.costs))}: {shares}"


def _cost_text(cost_ns: int) -> str:
    return f"{cost_ns / SECOND:.2f} s" if abs(cost_ns) >= SECOND else f"{cost_ns / MILLISECOND:.2f} ms"


def _join_nonempty(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _duration_text(length_ns: int) -> str:
    return f"{length_ns // MILLISECOND} ms" if 0 <= length_ns < SECOND else format_seconds(Duration(length_ns))


def _long_duration_text(length_ns: int) -> str:
    """The duration in the largest unit in which it is at least 2."""
    units = (("days", 86_400 * SECOND), ("hours", 3_600 * SECOND), ("minutes", 60 * SECOND))
    fitting = next(((name, unit) for name, unit in units if length_ns >= 2 * unit), None)
    return _duration_text(length_ns) if fitting is None else f"{length_ns // fitting[1]} {fitting[0]}"


def _ms(length_ns: int) -> float:
    return round(length_ns / MILLISECOND, 1)


def _row_time(row: dict[str, object]) -> float:
    at_ms = row["at_ms"]
    assert isinstance(at_ms, float)
    return at_ms
