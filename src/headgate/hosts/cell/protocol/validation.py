"""Validates data from other members, from schedulers and from the store before it is used.

Numbers must be within their ranges, shares must exist, and names have a bounded length. `Implausible` names the
problem. The protocol handles it (a new session, then fencing); assertions do not, because an error in another process
must not end this one.

These checks are stateless. Whether a report contradicts itself or the book is checked in `leader/reports.py`.
"""

from collections.abc import Sequence
from typing import Final

from headgate.core.counters import MILLION, Counters, LengthsCounter, PromptCounter
from headgate.core.events import (
    AttemptEnded,
    AttemptReported,
    FirstToken,
    Progressed,
    RequestReported,
    RequestSettled,
    RequestWithdrawn,
)
from headgate.core.hedging import FIRST_TOKEN_BUCKETS
from headgate.core.prediction import LENGTH_BOUNDS, LENGTH_BUCKETS, RATE_MAX
from headgate.hosts.cell.protocol.messages import (
    Arrived,
    Covered,
    Declined,
    Echo,
    Ended,
    EndpointTold,
    Epoch,
    FromMember,
    FromScheduler,
    Granted,
    MemberHead,
    Runs,
    SchedulerHead,
    Settled,
    Share,
    Snapshot,
    Snapshots,
    Waits,
)
from headgate.model.caps import Caps
from headgate.model.ticket import Ticket
from headgate.model.usage import TOKENS_MAX, Usage

NUMBER_MAX: Final = 1 << 52
"""Largest epoch, session or serial. The store compares numbers as floats, which are exact up to here."""
MOMENT_MAX: Final = 1 << 62
"""Largest incarnation or stamp, in nanoseconds: the year 2116."""
DURATION_MAX: Final = 1 << 58
"""Nine years in nanoseconds. Several of these can be added without leaving 64 bits."""
MEMBERS_MAX: Final = 4_096
"""Members of one cell."""
SHARES_MAX: Final = 16
"""Shares that one member may hold as far as the scheduler knows, because some are not acknowledged."""
ATTEMPTS_MAX: Final = 1_000
"""Attempts of one request."""
SEQUENCES_MAX: Final = 1 << 16
"""Answers that one request may ask for."""
BYTES_MAX: Final = 1 << 31
"""Bytes of one prompt."""
PROMPTS_MAX: Final = 1 << 24
"""Prompts of one request."""
NAME_MAX: Final = 1_024
"""Characters of an id, or of a name from the configuration."""
TEXTS_MAX: Final = 1 << 17
"""Characters of all texts of one ticket, and of the detail of an end.

The default limits of the edge allow less. As UTF-8 this is at most half an entry."""
LEARNED_ANSWERS_MAX: Final = 1 << 20
"""Answers in one length bucket. Like the next limit, this is far more than a scheduler keeps, because another version
may keep more."""
LEARNED_BYTES_MAX: Final = 1 << 30
"""Bytes of a tenant's prompts."""
_SUM_MAX: Final = 1 << 40
"""Largest sum from which the speed of an endpoint is computed, in millionths."""
_LEVEL_MAX: Final = 64
_MONEY_MAX: Final = 1 << 62


class Implausible(Exception):
    """Data that no correct process sends; the text names the problem."""


def _require(true: bool, what: str) -> None:  # noqa: FBT001  The condition itself.
    if not true:
        raise Implausible(what)


def _lasts(*lengths: int | None) -> bool:
    return all(length is None or 0 <= length <= DURATION_MAX for length in lengths)


def _named(*names: str | None) -> bool:
    return all(name is None or 0 < len(name) <= NAME_MAX for name in names)


def _counts(*numbers: int) -> bool:
    return all(0 <= number <= NUMBER_MAX for number in numbers)


# Heads


def check_member_head(head: MemberHead) -> None:
    _require(_named(head.member), "a member without a name, or with one that is too long")
    _require(0 <= head.incarnation < MOMENT_MAX, f"incarnation {head.incarnation}")
    _require(_counts(head.session, head.base, head.kept, head.first, head.taken), "a serial out of range")
    _require(1 <= head.base <= head.kept <= head.first, f"serials {head.base}, {head.kept}, {head.first} out of order")
    _check_epoch(head.bound)
    _check_stamps(head.stamp, head.echo)
    _check_share(head.share)


def check_scheduler_head(head: SchedulerHead) -> None:
    _require(0 <= head.incarnation < MOMENT_MAX, f"incarnation {head.incarnation}")
    _require(_counts(head.session, head.wanted, head.first, head.taken, head.judged or 0), "a serial out of range")
    _check_epoch(head.epoch)
    _check_stamps(head.stamp, head.echo)


def _check_epoch(epoch: Epoch | None) -> None:
    if epoch is not None:
        _require(_counts(epoch.number) and _named(epoch.id), f"epoch {epoch.number}")


def _check_stamps(stamp: int, echo: Echo | None) -> None:
    _require(-MOMENT_MAX < stamp < MOMENT_MAX, f"stamp {stamp}")
    if echo is not None:
        _require(-MOMENT_MAX < echo.stamp < MOMENT_MAX and _lasts(echo.held_ns), f"echo {echo.stamp}, {echo.held_ns}")


def _check_share(share: Share) -> None:
    _require(0 <= share.rank < share.of <= MEMBERS_MAX, f"share {share.rank} of {share.of}")


# Messages of members


def check_from_member(age_ns: int, said: FromMember) -> None:
    _require(_lasts(age_ns), f"a message that is {age_ns} ns old")
    match said:
        case Arrived(ticket, waited_ns):
            check_ticket(ticket)
            _require(_lasts(waited_ns), f"a wait of {waited_ns} ns")
        case Waits(report, arrived):
            _check_waiting(report)
            _require(_counts(arrived), "a serial out of range")
        case Runs():
            _check_running(said)
        case Settled():
            _check_settled(said)
        case FirstToken(request_id, attempt):
            _check_attempt(request_id, attempt)
        case Progressed(attempts):
            for each in attempts:
                _check_attempt(each.request_id, each.attempt)
                _require(0 <= each.tokens <= TOKENS_MAX, f"{each.tokens} tokens")
        case Ended(event):
            _check_ended(event)
        case Declined():
            _check_attempt(said.request_id, said.attempt)
            _require(_lasts(said.waited_ns), f"a wait of {said.waited_ns} ns")
            _require(len(said.reason) <= TEXTS_MAX, "a reason that is too long")
        case RequestWithdrawn(request_id):
            _require(_named(request_id), "a request without an id")
        case _:
            pass


def check_holder(member: str, said: FromMember) -> None:
    """A member may report only requests that it holds, so that it cannot count as several members.

    Older versions leave the holder empty.
    """
    match said:
        case Arrived(ticket):
            holder = ticket.gateway
        case Waits(report) | Runs(report) | Settled(report):
            holder = report.ticket.gateway
        case _:
            return
    _require(holder in ("", member), f'a request that member "{holder}" holds')


def _check_attempt(request_id: str, attempt: int) -> None:
    _require(_named(request_id) and 0 < attempt <= ATTEMPTS_MAX, f"attempt {attempt}")


def check_ticket(ticket: Ticket) -> None:
    """Members call this too before they send a ticket, so that values from a caller cannot get a member fenced.

    The model is bounded as a text, not as a name, because callers may send names of models that do not exist.
    """
    _require(
        _named(ticket.request_id, ticket.tenant) and ticket.model != "", "a request without an id, a model or a tenant"
    )
    _require(_texts_length(ticket) <= TEXTS_MAX, f"names and texts of more than {TEXTS_MAX} characters")
    _require(0 <= ticket.prompt_bytes <= BYTES_MAX, f"a prompt of {ticket.prompt_bytes} bytes")
    _require(0 <= ticket.prompt_bytes_kept <= BYTES_MAX, f"a prompt that keeps {ticket.prompt_bytes_kept} bytes")
    _require(0 <= ticket.prompt_bytes_before <= ticket.prompt_bytes, "a leading part longer than its prompt")
    _require(0 < ticket.prompts <= PROMPTS_MAX, f"a request of {ticket.prompts} prompts")
    _require(0 < ticket.n <= SEQUENCES_MAX, f"a request for {ticket.n} answers")
    _require(0 <= (ticket.output_tokens_max or 0) <= TOKENS_MAX, f"{ticket.output_tokens_max} output tokens")
    _require(_counts(ticket.client_retries), f"{ticket.client_retries} retries")
    _require(len(ticket.prefix) % 8 == 0 and len(ticket.prefix) <= 512, "a prefix that is not a sequence of hashes")
    _require(_lasts(ticket.first_token_ns_left, ticket.completion_ns_left), "a deadline out of range")
    _require(len(ticket.fingerprint) <= NAME_MAX, "a fingerprint that is too long")


def _texts_length(ticket: Ticket) -> int:
    """Total length of all texts, in characters."""
    texts = (ticket.model, ticket.class_named, ticket.service_tier, ticket.rung, ticket.idempotency_key)
    length = sum(len(each) for each in texts if each is not None)
    length += len(ticket.zone) + len(ticket.gateway)
    return length + sum(len(name) + len(value) for name, value in ticket.metadata)


def _check_waiting(report: RequestReported) -> None:
    check_ticket(report.ticket)
    _require(_named(report.failed_at), "an endpoint without a name")
    _require(0 <= report.attempts <= ATTEMPTS_MAX, f"{report.attempts} attempts")
    _require(_lasts(report.waited_ns, report.age_ns, report.held_ns), "a duration out of range")


def _check_running(said: Runs) -> None:
    report: AttemptReported = said.report
    check_ticket(report.ticket)
    _check_caps(report.caps)
    _check_attempt(report.ticket.request_id, report.attempt)
    _require(_named(report.endpoint_id, report.pool, report.service_class, report.model), "an attempt without names")
    _require(
        0 <= report.tokens <= TOKENS_MAX and 0 <= report.level <= _LEVEL_MAX, "a token count or level out of range"
    )
    _require(_lasts(report.age_ns, report.waited_ns, report.held_ns, report.request_age_ns), "a duration out of range")
    _require(_counts(said.arrived, said.told, said.ended), "a serial out of range")
    _check_sent(said.sent)
    _require(all(0 <= (cost or 0) <= _MONEY_MAX for cost in (said.cost, report.cost)), "a cost out of range")


def _check_caps(caps: Caps) -> None:
    """Zero answers or prompts would cause a division by zero."""
    at_least_one = (caps.n, caps.best_of, caps.prompts, caps.inputs)
    _require(all(each is None or 0 < each <= MOMENT_MAX for each in at_least_one), "a cap out of range")
    others = (caps.prompt_tokens, caps.output_tokens, caps.logprobs, caps.prompt_logprobs)
    _require(_counted(*(each or 0 for each in others)), "a cap out of range")


def _check_settled(said: Settled) -> None:
    report: RequestSettled = said.report
    check_ticket(report.ticket)
    _require(0 <= report.attempts <= ATTEMPTS_MAX, f"{report.attempts} attempts")
    _require(_named(report.pool, report.service_class, report.model), "an end without names")
    _require(_lasts(report.age_ns), "a duration out of range")
    _require(_counts(said.serial, said.arrived, said.ended), "a serial out of range")
    _check_usage(report.usage)
    _check_sent(said.sent)
    _require(0 <= (report.cost or 0) <= _MONEY_MAX, "a cost out of range")


def _check_ended(event: AttemptEnded) -> None:
    _check_attempt(event.request_id, event.attempt)
    _check_usage(event.usage)
    _require(len(event.detail) <= TEXTS_MAX, "a detail that is too long")


def _check_usage(usage: Usage | None) -> None:
    if usage is not None:
        counts = (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens)
        _require(all(0 <= each <= TOKENS_MAX for each in counts), "token usage out of range")


def _check_sent(sent: Snapshots | None) -> None:
    if sent is not None:
        _require(_counts(sent.epoch, sent.number), "a snapshot's number out of range")


# Messages of schedulers


def check_from_scheduler(age_ns: int, said: FromScheduler) -> None:
    _require(_lasts(age_ns), f"a message that is {age_ns} ns old")
    match said:
        case Granted(order, start_within_ns, sent):
            _check_attempt(order.request_id, order.attempt)
            _require(_named(order.endpoint_id, order.pool, order.service_class, order.model), "a grant without names")
            limits = (order.first_token_ns_max, order.idle_ns_max, order.total_ns_max)
            _require(_lasts(order.waited_ns, order.held_ns, start_within_ns, *limits), "a duration out of range")
            _require(0 <= order.level <= _LEVEL_MAX, f"level {order.level}")
            _check_caps(order.caps)
            _check_sent(sent)
        case EndpointTold(endpoint):
            _require(_named(endpoint.id, endpoint.pool), "an endpoint without names")
            _require(_counts(endpoint.in_flight_max), f"an endpoint with {endpoint.in_flight_max} places")
        case Share():
            _check_share(said)
        case Covered(serial):
            _require(_counts(serial), "a serial out of range")
        case _:
            pass


# Snapshots


def check_snapshot(snapshot: Snapshot) -> None:
    """Checks everything except the counters; the scheduler that starts from the snapshot checks those."""
    _require(_counts(snapshot.at.epoch, snapshot.at.number), "a snapshot's number out of range")
    _require(len(snapshot.members) <= MEMBERS_MAX, f"{len(snapshot.members)} members")
    for each in snapshot.members:
        _require(_named(each.member) and 0 <= each.incarnation < MOMENT_MAX, "a member out of range")
        _require(_counts(each.covered), "a serial out of range")
        _require(len(each.earlier) <= SHARES_MAX, f"{len(each.earlier)} earlier shares")
        for share in (each.share, *each.earlier):
            _check_share(share)


def check_counters(counters: Counters) -> None:
    """Counts must not be negative; turns, credits and floors may be."""
    for turns in counters.turns:
        _require(_bounded(turns.level, *(charged for _, charged in (*turns.waiting, *turns.others))), "turns")
    _require(_bounded(*(each.credit for each in counters.floors), *(each for _, each in counters.credits)), "credits")
    for limit in counters.limits:
        _require(_counted(limit.requests, limit.tokens, limit.life_ns), f'limits of "{limit.tenant}"')
    for window in counters.windows:
        attempts = (*window.firsts, *window.extras)
        _require(_counted(*(number for each in attempts for number in each)), f'attempts at "{window.pool}"')
    _require(_unique([(each.tenant, each.model) for each in counters.lengths]), "duplicate lengths")
    for lengths in counters.lengths:
        _check_buckets(lengths.buckets, f'lengths of "{lengths.model}"', LENGTH_BUCKETS)
        _require(_possible_lengths(lengths), f'lengths of "{lengths.model}"')
    _require(_unique([(each.tenant, each.model) for each in counters.prompts]), "duplicate prompts")
    for prompts in counters.prompts:
        _require(_counted(prompts.prompt_bytes, prompts.tokens), f'prompts of "{prompts.model}"')
        _require(_possible_prompts(prompts), f'prompts of "{prompts.model}"')
    _require(_unique([(each.service_class, each.pool) for each in counters.first_tokens]), "duplicate first tokens")
    for waits in counters.first_tokens:
        _check_buckets(waits.buckets, f'first tokens at "{waits.pool}"', FIRST_TOKEN_BUCKETS)
        _require(_lasts(waits.wait_ns), f'first tokens at "{waits.pool}"')
    for route in counters.routes:
        _require(0 <= route.fraction < MILLION and _bounded(route.pressure, *route.ranks), "a route")
        for ladder in route.ladders:
            _require(_counted(ladder.step, ladder.above_ns or 0, ladder.below_ns or 0), "a ladder")
    for endpoint in counters.endpoints:
        _require(_counted(endpoint.ejections), f'ejections of "{endpoint.endpoint_id}"')
        _require(_bounded(*endpoint.factors) and _possible_sums(*endpoint.sums), f'speed of "{endpoint.endpoint_id}"')
    for start in counters.starts:
        _require(_lasts(start.took_ns), f'starts of "{start.pool}"')
    quarantined = counters.quarantine
    _require(all(_named(each.identity) and _lasts(each.left_ns) for each in quarantined), "a quarantined request")
    for budget in counters.budgets:
        _require(_bounded(budget.spent, budget.began or 0), f'a budget of "{budget.scope}"')


def _check_buckets(buckets: tuple[tuple[int, ...], ...], what: str, length: int) -> None:
    """Each bucket may occur only once, otherwise answers would count twice. `length` is the number of buckets."""
    _require(_unique([each[0] for each in buckets]) and all(each[0] < length for each in buckets), what)
    _require(_counted(*(number for each in buckets for number in each)), what)


def _possible_lengths(lengths: LengthsCounter) -> bool:
    """Whether no answer in a bucket is longer than the upper bound of the bucket."""
    return all(
        answers <= LEARNED_ANSWERS_MAX and tokens <= answers * LENGTH_BOUNDS[bucket]
        for bucket, answers, tokens in lengths.buckets
    )


def _possible_prompts(prompts: PromptCounter) -> bool:
    """Whether the bytes can be this many tokens.

    Bytes and tokens are halved from time to time and rounded down, so one more byte is allowed for.
    """
    if not prompts.prompt_bytes:
        return not prompts.tokens
    most = (prompts.prompt_bytes + 1) * RATE_MAX
    return prompts.prompt_bytes <= LEARNED_BYTES_MAX and prompts.tokens <= most


def _possible_sums(dd: int, dp: int, pp: int, dy: int, py: int) -> bool:
    """Whether these can be sums of squares and products; otherwise the equations have no solution or a wrong one."""
    return all(0 <= each <= _SUM_MAX for each in (dd, dp, pp, dy, py)) and dp * dp <= (dd + 2) * (pp + 2)


def _unique(keys: Sequence[object]) -> bool:
    return len(set(keys)) == len(keys)


def _counted(*numbers: int) -> bool:
    return all(0 <= number <= MOMENT_MAX for number in numbers)


def _bounded(*numbers: int) -> bool:
    return all(-MOMENT_MAX <= number <= MOMENT_MAX for number in numbers)
