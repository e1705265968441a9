"""How is the history of one request told?

As one sentence, and as steps: when, what and why. The reasons are those that the scheduler gave with its commands. What
no command says is read from the histories of the other requests: one that waited is told who was sent meanwhile.
"""

from collections import Counter
from dataclasses import fields
from datetime import UTC, datetime

from headgate.core.commands import Abort, Dispatch, End, Hold
from headgate.core.events import AttemptEnded, AttemptEnding, FirstToken
from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.units import BYTES_PER_TOKEN, MILLISECOND, SECOND, Duration, Instant, PoolName, RequestId, seconds
from headgate.telemetry.decisions import STEPS_MAX, History, Picture, Reach

_GROUPS_NAMED_MAX = 3
_USUAL_CAPS = Caps()
_HOW = {
    AttemptEnding.COMPLETED: "completed",
    AttemptEnding.FAILED: "failed",
    AttemptEnding.SILENT: "fell silent",
    AttemptEnding.REFUSED: "was refused by the engine",
    AttemptEnding.ABORTED: "stopped",
}


def explained(picture: Picture, now: Instant) -> dict[str, object]:
    """All that is known of the request, as plain data."""
    telling = _Telling(picture, now)
    telling.tell()
    history = picture.history
    of_class = "" if telling.service_class is None else f", class {telling.service_class},"
    return {
        "request_id": history.request_id,
        "tenant": history.tenant,
        "model": history.model,
        "class": telling.service_class,
        "outcome": None if telling.end is None else telling.end.outcome.value,
        "arrived_at": datetime.fromtimestamp(history.arrived_at / SECOND, UTC).isoformat(timespec="milliseconds"),
        "summary": f"{history.request_id} of tenant {history.tenant}{of_class} {'; '.join(telling.clauses)}.",
        "steps": telling.rows,
    }


def unknown(
    request_id: RequestId, reach: Reach, now: Instant, *, longer_ns: Duration | None = None
) -> dict[str, object]:
    """What is said of a request that nothing is known of. `longer_ns` is how long files keep what memory does not."""
    oldest = "" if reach.since is None else f", the oldest of which came {_lasting(now - reach.since)} ago"
    kept = f"the last {reach.requests_max} requests and the last {reach.refused_max} refused on arrival{oldest}"
    if longer_ns is None:
        which, where = "of this gateway, since its start?", f"It keeps {kept}; records in its configuration keeps more"
    else:
        which = f"of the last {_span(longer_ns)}?"
        where = f"Files keep that long, unless they grew too large; memory has {kept}"
    asked = f"nothing is known of request {request_id}: is it the x-request-id of an answer {which}"
    return {"request_id": request_id, "error": f"{asked} {where}"}


class _Telling:
    """One walk through a history, which becomes the clauses of a sentence and the rows of a table."""

    def __init__(self, picture: Picture, now: Instant) -> None:
        self._picture = picture
        self._history = picture.history
        self._now = now
        # More may be added while this is read in another thread.
        self._steps = tuple(picture.history.steps)
        self._running: dict[int, tuple[Instant, Dispatch]] = {}
        self._waited_ns = 0
        self._held_ns = 0
        """How much of its waiting has been told, and of what it was held."""
        self._hold: Hold | None = None
        """Why it was last held."""
        self._pool: PoolName | None = None
        """Where it was last sent."""
        ends = [(at, step) for at, step in self._steps if isinstance(step, End)]
        self._over: Instant | None = ends[0][0] if ends else None
        self.end = ends[0][1] if ends else None
        self.service_class = _last_class(self._steps)
        self.clauses: list[str] = []
        self.rows: list[dict[str, object]] = []

    def tell(self) -> None:
        self._row(self._history.arrived_at, "arrived", "arrived", ", ".join(_asked(self._history)))
        for at, step in self._steps:
            match step:
                case Dispatch():
                    self._dispatched(step, at)
                case Hold():
                    self._held(step, at)
                case FirstToken():
                    self._first_token(step, at)
                case Abort():
                    self._aborted(step, at)
                case AttemptEnded():
                    self._attempt_ended(step, at)
                case End():
                    self._ended(step, at)
        self._meanwhile()
        if self.end is None:
            self._still_open()
        self.rows.sort(key=_moment)

    # In the order of a request's life

    def _held(self, hold: Hold, at: Instant) -> None:
        self._hold = hold
        self._row(at, "held", f"held for pool {hold.pool}", hold.reason, pool=hold.pool)

    def _was_held(self, held_ns: int, *, so_far: bool = False) -> bool:
        """Tells that it was held so long altogether; false where it was not."""
        length_ns = held_ns - self._held_ns
        if self._hold is None or length_ns <= 0:
            return False
        self._held_ns += length_ns
        self._waited_ns += length_ns
        held = f"has been held {_lasting(length_ns)} so far" if so_far else f"was held {_lasting(length_ns)}"
        self.clauses.append(f"{held} for the first endpoint of pool {self._hold.pool} to start")
        return True

    def _waited(self, length_ns: int, until: Instant, pool: PoolName | None, *, so_far: bool = False) -> bool:
        """Tells that it waited so long up to this moment; false where that is nothing to speak of."""
        if length_ns < MILLISECOND:
            return False
        self._waited_ns += length_ns
        since = Instant(until - length_ns)
        where = f"pool {pool}" if pool is not None else f"model {self._history.model}"
        sent = self._sent_meanwhile(since, until, pool)
        if sent:
            others = "1 other was" if sent.total() == 1 else f"{sent.total()} others were"
            at_least = "at least " if self._picture.forgotten_until >= since else ""
            why = f"{at_least}{others} sent to {where} ({_groups(sent, self.service_class)})"
        else:
            why = f"nothing was sent to {where}, where no endpoint was ready and had room"
        waited = f"has waited {_lasting(length_ns)} so far" if so_far else f"waited {_lasting(length_ns)}"
        self.clauses.append(f"{waited} while {why}")
        what = "queued" if self.service_class is None else f"queued in class {self.service_class}"
        listed = [{"tenant": tenant, "class": name, "requests": count} for (tenant, name), count in sent.most_common()]
        self._row(since, "queued", what, f"while it waited, {why}", waited_ms=_ms(length_ns), sent_meanwhile=listed)
        return True

    def _dispatched(self, dispatch: Dispatch, at: Instant) -> None:
        held = self._was_held(dispatch.held_ns)
        waited = not dispatch.hedge and self._waited(dispatch.waited_ns - self._waited_ns, at, dispatch.pool)
        self._running[dispatch.attempt], self._pool = (at, dispatch), dispatch.pool
        at_most = _at_most(self._history, dispatch.caps)
        allowed = f"at most {', '.join(at_most)}" if at_most else ""
        endpoint, reason = dispatch.endpoint_id, f" ({dispatch.reason})" if dispatch.reason else ""
        if dispatch.hedge:
            what = f"hedged at {endpoint}"
            self.clauses.append(f"was sent to {endpoint} as well, as a hedge{reason}")
        else:
            what = f"sent to {endpoint}"
            at_once = "" if held or waited or dispatch.attempt > 1 else " at once"
            self.clauses.append(f"went{at_once} to {endpoint}{reason}")
        if dispatch.level:
            self.clauses.append(f"was degraded at level {dispatch.level}{f' ({allowed})' if allowed else ''}")
            allowed = f"degraded at level {dispatch.level}{f', {allowed}' if allowed else ''}"
        self._row(
            at,
            "dispatched",
            what if dispatch.attempt == 1 else f"{what}, attempt {dispatch.attempt}",
            _joined(dispatch.reason, _score(dispatch), allowed),
            endpoint=endpoint,
            pool=dispatch.pool,
            attempt=dispatch.attempt,
            level=dispatch.level,
            hedge=dispatch.hedge,
            caps=at_most,
            costs_ms={name: round(cost_ns / MILLISECOND, 3) for name, cost_ns in dispatch.costs},
        )

    def _first_token(self, event: FirstToken, at: Instant) -> None:
        several = event.attempt > 1 or len(self._running) > 1
        streamed = self._history.stream or not event.delivered
        what = "first token" if streamed else "the answer begins"
        self._row(at, "first_token", what, f"of attempt {event.attempt}" if several else "")

    def _aborted(self, abort: Abort, at: Instant) -> None:
        self._row(at, "aborted", f"attempt {abort.attempt} is told to stop", abort.reason, attempt=abort.attempt)
        if at != self._over:
            self.clauses.append(f"attempt {abort.attempt} was stopped ({abort.reason})")

    def _attempt_ended(self, event: AttemptEnded, at: Instant) -> None:
        how, usage = _HOW[event.ending], event.usage
        tokens = "" if usage is None else f"{usage.prompt_tokens} prompt and {usage.output_tokens} output tokens"
        why, ending = _joined(event.detail, tokens), event.ending.value
        self._row(at, "attempt_ended", f"attempt {event.attempt} {how}", why, attempt=event.attempt, ending=ending)
        # An end at the same moment repeats what the attempt ended of.
        if at != self._over and event.ending is not AttemptEnding.ABORTED:
            self.clauses.append(f"attempt {event.attempt} {how}{f' ({event.detail})' if event.detail else ''}")
        if event.attempt in self._running:
            since, dispatch = self._running.pop(event.attempt)
            self._ejected(dispatch, since, at)

    def _ended(self, end: End, at: Instant) -> None:
        self._was_held(end.held_ns)
        self._waited(end.waited_ns - self._waited_ns, at, self._pool)
        wait = "" if end.retry_after_ns is None else f"Retry-After {_lasting(end.retry_after_ns)}"
        why, outcome = _joined(end.reason, wait), end.outcome.value
        self._row(at, "ended", f"ended: {outcome}", why, outcome=outcome, attempts=end.attempts)
        self.clauses.append(_verdict(end, Duration(at - self._history.arrived_at), why))

    def _still_open(self) -> None:
        if not self._running:
            since = self._steps[-1][0] if self._steps else self._history.arrived_at
            if self._steps and isinstance(self._steps[-1][1], Hold):
                self._was_held(self._held_ns + self._now - since, so_far=True)
            elif not self._waited(self._now - since, self._now, self._pool, so_far=True):
                self.clauses.append("has just been queued")
            return
        where = " and ".join(dispatch.endpoint_id for _, dispatch in self._running.values())
        began = any(isinstance(step, FirstToken) and step.attempt in self._running for _, step in self._steps)
        doing = "its answer has begun" if began else "its first token has not come"
        self.clauses.append(f"is still there after {_lasting(self._now - self._history.arrived_at)}, {doing}")
        self._row(self._now, "open", f"still at {where}", doing)

    # What happened around it

    def _ejected(self, dispatch: Dispatch, since: Instant, until: Instant) -> None:
        """The ejections of the endpoint that it was at, while it was there."""
        for at, eject in self._picture.ejections:
            if eject.endpoint_id == dispatch.endpoint_id and since <= at <= until:
                what = f"{eject.endpoint_id} ejected for {_lasting(eject.until - at)}"
                self._row(at, "ejected", what, eject.reason, endpoint=eject.endpoint_id)

    def _meanwhile(self) -> None:
        over = self._now if self._over is None else self._over
        for at, policy_hash in self._picture.policies:
            if self._history.arrived_at < at <= over:
                self._row(at, "policy_changed", "policy changed", f"configuration {policy_hash} came into force")
        if len(self._steps) >= STEPS_MAX:
            self._row(self._steps[-1][0], "left_out", "more may have happened", f"{STEPS_MAX} steps are kept")

    def _sent_meanwhile(self, since: Instant, until: Instant, pool: PoolName | None) -> Counter[tuple[str, str]]:
        """How many others of each tenant and class were sent to this pool, else for this model, while it waited."""
        sent: Counter[tuple[str, str]] = Counter()
        for history in self._picture.requests:
            if history is self._history or (pool is None and history.model != self._history.model):
                continue
            for at, step in tuple(history.steps):
                if isinstance(step, Dispatch) and since <= at < until and pool in (None, step.pool):
                    sent[history.tenant, step.service_class] += 1
        return sent

    def _row(self, at: Instant, kind: str, what: str, why: str, **facts: object) -> None:
        at_ms = _ms(at - self._history.arrived_at)
        self.rows.append({"at_ms": at_ms, "kind": kind, "what": what, "why": why, **facts})


# Words


def _asked(history: History) -> list[str]:
    """What the request asked for, as far as it had a say in what was decided."""
    asked = [f"{history.api.value} for model {history.model}", "streamed" if history.stream else "not streamed"]
    prompt = "a prompt" if history.prompts == 1 else f"{history.prompts} prompts"
    asked.append(f"{prompt} of {history.prompt_bytes} bytes")
    if history.n > 1:
        asked.append(f"{history.n} answers")
    if history.output_tokens_max is not None:
        asked.append(f"at most {history.output_tokens_max} output tokens")
    named = (("class", history.class_named), ("service_tier", history.service_tier), ("rung", history.rung))
    asked.extend(f'{what} "{name}"' for what, name in named if name is not None)
    if history.client_retries:
        asked.append(f"retry {history.client_retries} of its caller")
    within = ((history.first_token_ns_left, "first token"), (history.completion_ns_left, "whole answer"))
    asked.extend(f"{goal} within {_lasting(left)}" for left, goal in within if left is not None)
    return asked


def _at_most(history: History, caps: Caps) -> list[str]:
    """What it may ask for and may have asked beyond, as `x-headgate-degraded` spells it."""
    limits = [(each.name, getattr(caps, each.name)) for each in fields(Caps) if each.name != "trims_prompt"]
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
                told.append(f"{name}={limit} (asked for {known})")
        elif limit != getattr(_USUAL_CAPS, name):
            told.append(f"{name}={limit}")
    return told


def _groups(sent: Counter[tuple[str, str]], service_class: str | None) -> str:
    """`9 of bolt, 5 of acme in batch`: the class where it is another one."""
    most = sent.most_common(_GROUPS_NAMED_MAX)
    named = [f"{count} of {tenant}{'' if name == service_class else f' in {name}'}" for (tenant, name), count in most]
    rest = sent.total() - sum(count for _, count in most)
    return ", ".join([*named, f"{rest} more"] if rest else named)


def _verdict(end: End, length: Duration, why: str) -> str:
    match end.outcome:
        case Outcome.COMPLETED:
            return f"completed after {_lasting(length)}"
        case Outcome.CANCELLED:
            return f"was cancelled after {_lasting(length)} ({end.reason})"
        case _ if not length and not end.attempts:
            return f"was refused on arrival as {end.outcome.value}: {why}"
        case _:
            return f"ended after {_lasting(length)} as {end.outcome.value}: {why}"


def _last_class(steps: tuple[tuple[Instant, object], ...]) -> str | None:
    named = [step.service_class for _, step in steps if isinstance(step, Dispatch | Hold | End)]
    return named[-1] if named else None


def _score(dispatch: Dispatch) -> str:
    """The routing score of the endpoint, and the share of each cost term; empty if none was recorded."""
    if not dispatch.costs:
        return ""
    shares = ", ".join(f"{name.replace('_', ' ')} {_cost(cost_ns)}" for name, cost_ns in dispatch.costs)
    return f"score {_cost(sum(cost_ns for _, cost_ns in dispatch.costs))}: {shares}"


def _cost(cost_ns: int) -> str:
    return f"{cost_ns / SECOND:.2f} s" if abs(cost_ns) >= SECOND else f"{cost_ns / MILLISECOND:.2f} ms"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _lasting(length_ns: int) -> str:
    return f"{length_ns // MILLISECOND} ms" if 0 <= length_ns < SECOND else seconds(Duration(length_ns))


def _span(length_ns: int) -> str:
    """In the largest unit that fits."""
    units = (("days", 86_400 * SECOND), ("hours", 3_600 * SECOND), ("minutes", 60 * SECOND))
    fitting = next(((name, unit) for name, unit in units if length_ns >= 2 * unit), None)
    return _lasting(length_ns) if fitting is None else f"{length_ns // fitting[1]} {fitting[0]}"


def _ms(length_ns: int) -> float:
    return round(length_ns / MILLISECOND, 1)


def _moment(row: dict[str, object]) -> float:
    at_ms = row["at_ms"]
    assert isinstance(at_ms, float)
    return at_ms
