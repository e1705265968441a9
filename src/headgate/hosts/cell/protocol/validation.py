"""Validates data from members, schedulers and the store before it is used.

Numbers must be within their ranges, shares must exist, and names have a maximum length. `InvalidMessage` describes the
problem, and the protocol handles it with a new session and then fencing. Assertions are not used, because an error in
another process must not bring down this one.

These checks are stateless. `leader/member_report.py` checks whether a report contradicts itself or the assignments.
"""

from typing import Final

from headgate.core.events import (
    AttemptEnded,
    AttemptProgress,
    AttemptReported,
    AttemptsProgressed,
    FirstToken,
    RequestReported,
    RequestSettled,
    RequestWithdrawn,
)
from headgate.hosts.cell.protocol.messages import (
    CellVersion,
    Echo,
    EndpointUpdate,
    Epoch,
    FinishedAttempt,
    FromMember,
    FromScheduler,
    Grant,
    GrantDeclined,
    MemberHead,
    NewRequest,
    QueuedRequest,
    RunningAttempt,
    SchedulerHead,
    SettledRequest,
    Share,
    Snapshot,
    SnapshotCoverage,
    SnapshotId,
)
from headgate.model.caps import Caps
from headgate.model.provider_limits import ProviderLimits
from headgate.model.ticket import PROMPT_BYTES_MAX, PROMPTS_MAX, Ticket
from headgate.model.usage import TOKENS_MAX, Usage

SERIAL_MAX: Final = 1 << 52
"""Maximum epoch, session or serial. The store compares numbers as floats, which are exact up to this value."""
TIMESTAMP_MAX: Final = 1 << 62
"""Largest incarnation or timestamp, in nanoseconds (year 2116)."""
DURATION_MAX: Final = 1 << 58
"""Maximum duration: nine years in nanoseconds. The sum of several such durations fits into 64 bits."""
MEMBERS_MAX: Final = 4_096
"""Maximum number of members in a cell."""
SHARES_MAX: Final = 16
"""Maximum number of shares that one member may have in the scheduler's view while some are unacknowledged."""
ATTEMPTS_MAX: Final = 1_000
"""Maximum number of attempts of one request."""
SEQUENCES_MAX: Final = 1 << 16
"""Maximum number of choices that one request may ask for."""
NAME_MAX: Final = 1_024
"""Maximum length of an id or of a name from the configuration, in characters."""
TEXTS_MAX: Final = 1 << 17
"""Maximum total length of the texts in one ticket, and of the detail of how an attempt ended, in characters.

The edge's default limits are lower. Encoded as UTF-8, the texts take at most half an entry.
"""
_LEVEL_MAX: Final = 64
_MONEY_MAX: Final = 1 << 62


class InvalidMessage(Exception):
    """Data that no correct process would send. The message describes the problem."""


def require(condition: bool, what: str) -> None:  # noqa: FBT001  The condition is the argument.
    """Raises if the condition is false. Checks of frequent messages format their text only if they fail."""
    if not condition:
        raise InvalidMessage(what)


def valid_durations(*lengths: int | None) -> bool:
    # This function and the next ones are loops, because generators take twice as long.
    for length in lengths:  # noqa: SIM110
        if length is not None and not 0 <= length <= DURATION_MAX:
            return False
    return True


def valid_names(*names: str | None) -> bool:
    for name in names:  # noqa: SIM110
        if name is not None and not 0 < len(name) <= NAME_MAX:
            return False
    return True


def non_negative(*numbers: int) -> bool:
    return all(0 <= number <= TIMESTAMP_MAX for number in numbers)


def _valid_serials(*numbers: int) -> bool:
    for number in numbers:  # noqa: SIM110
        if not 0 <= number <= SERIAL_MAX:
            return False
    return True


# Heads


def check_member_head(head: MemberHead) -> None:
    require(valid_names(head.member), "member name is empty or too long")
    if not 0 <= head.incarnation < TIMESTAMP_MAX:
        raise InvalidMessage(f"incarnation {head.incarnation} is out of range")
    kept = (head.session_first_serial, head.oldest_kept_serial, head.first_serial)
    require(_valid_serials(head.session, *kept, head.received_serial), "a serial is out of range")
    if not 1 <= head.session_first_serial <= head.oldest_kept_serial <= head.first_serial:
        raise InvalidMessage(
            f"serials {head.session_first_serial}, {head.oldest_kept_serial}, {head.first_serial} are out of order"
        )
    _check_epoch(head.followed_epoch)
    _check_stamps(head.stamp, head.echo)
    _check_share(head.share)


def check_scheduler_head(head: SchedulerHead) -> None:
    if not 0 <= head.incarnation < TIMESTAMP_MAX:
        raise InvalidMessage(f"incarnation {head.incarnation} is out of range")
    require(
        _valid_serials(
            head.session, head.rejected_session, head.first_serial, head.received_serial, head.decided_serial or 0
        ),
        "a serial is out of range",
    )
    _check_epoch(head.epoch)
    _check_stamps(head.stamp, head.echo)


def _check_epoch(epoch: Epoch | None) -> None:
    if epoch is not None and not (_valid_serials(epoch.number) and valid_names(epoch.id)):
        raise InvalidMessage(f"epoch {epoch.number} is invalid")


def _check_stamps(stamp: int, echo: Echo | None) -> None:
    if not -TIMESTAMP_MAX < stamp < TIMESTAMP_MAX:
        raise InvalidMessage(f"timestamp {stamp} is out of range")
    if echo is not None and not (-TIMESTAMP_MAX < echo.stamp < TIMESTAMP_MAX and valid_durations(echo.held_ns)):
        raise InvalidMessage(f"echo {echo.stamp}, {echo.held_ns} is out of range")


def _check_share(share: Share) -> None:
    if not 0 <= share.rank < share.total <= MEMBERS_MAX:
        raise InvalidMessage(f"share {share.rank} of {share.total} is invalid")


# Messages from members


def check_from_member(age_ns: int, message: FromMember) -> None:
    if not valid_durations(age_ns):
        raise InvalidMessage(f"message age of {age_ns} ns is out of range")
    match message:
        # Frequent messages come first.
        case FirstToken(request_id, attempt):
            _check_attempt(request_id, attempt)
            _check_limits(message.limits)
        case AttemptsProgressed(attempts):
            _check_progress(attempts)
        case FinishedAttempt(event):
            _check_ended(event)
        case NewRequest(ticket, waited_ns):
            check_ticket(ticket)
            _check_wait(waited_ns)
        case QueuedRequest(report, arrived):
            _check_waiting(report)
            require(_valid_serials(arrived), "a serial is out of range")
        case RunningAttempt():
            _check_running(message)
        case SettledRequest():
            _check_settled(message)
        case GrantDeclined():
            _check_attempt(message.request_id, message.attempt)
            _check_wait(message.waited_ns)
            require(len(message.reason) <= TEXTS_MAX, "reason is too long")
        case RequestWithdrawn(request_id):
            require(valid_names(request_id), "request id is empty or too long")
        case _:
            pass


def _check_progress(attempts: tuple[AttemptProgress, ...]) -> None:
    for each in attempts:
        _check_attempt(each.request_id, each.attempt)
        if not 0 <= each.tokens <= TOKENS_MAX:
            raise InvalidMessage(f"token count {each.tokens} is out of range")


def _check_limits(limits: ProviderLimits | None) -> None:
    if limits is not None and not limits.valid:
        raise InvalidMessage("a rate limit of a provider is out of range")


def _check_wait(waited_ns: int) -> None:
    if not valid_durations(waited_ns):
        raise InvalidMessage(f"wait of {waited_ns} ns is out of range")


def check_holder(member: str, said: FromMember) -> None:
    """Checks that a member reports only its own requests, so that it cannot count as several members.

    Older versions do not set the holder.
    """
    match said:
        case NewRequest(ticket):
            holder = ticket.gateway
        case QueuedRequest(report) | RunningAttempt(report) | SettledRequest(report):
            holder = report.ticket.gateway
        case _:
            return
    require(holder in ("", member), f'the request belongs to member "{holder}"')


def _check_attempt(request_id: str, attempt: int) -> None:
    if not (valid_names(request_id) and 0 < attempt <= ATTEMPTS_MAX):
        raise InvalidMessage(f"attempt {attempt} or its request id is invalid")


def check_ticket(ticket: Ticket) -> None:
    """Checks a ticket.

    Members also call this before they send a ticket, so that values from a caller cannot get a member fenced. The model
    is limited as a text, not as a name, because callers may send names of models that do not exist.
    """
    require(
        valid_names(ticket.request_id, ticket.tenant) and ticket.model != "",
        "request id, tenant or model is empty or too long",
    )
    if _texts_length(ticket) > TEXTS_MAX:
        raise InvalidMessage(f"names and texts exceed {TEXTS_MAX} characters")
    if not 0 <= ticket.prompt_bytes <= PROMPT_BYTES_MAX:
        raise InvalidMessage(f"prompt size of {ticket.prompt_bytes} bytes is out of range")
    if not 0 <= ticket.untrimmable_bytes <= PROMPT_BYTES_MAX:
        raise InvalidMessage(f"{ticket.untrimmable_bytes} prompt bytes to keep are out of range")
    require(
        0 <= ticket.prompt_bytes_before_prefix <= ticket.prompt_bytes,
        "the part before the hashed prefix exceeds the prompt",
    )
    if not 0 < ticket.prompts <= PROMPTS_MAX:
        raise InvalidMessage(f"prompt count {ticket.prompts} is out of range")
    if not 0 < ticket.n <= SEQUENCES_MAX:
        raise InvalidMessage(f"response count {ticket.n} is out of range")
    if not 0 <= (ticket.output_tokens_max or 0) <= TOKENS_MAX:
        raise InvalidMessage(f"limit of {ticket.output_tokens_max} output tokens is out of range")
    if not _valid_serials(ticket.client_retries):
        raise InvalidMessage(f"retry count {ticket.client_retries} is out of range")
    require(
        len(ticket.prefix_hashes) % 8 == 0 and len(ticket.prefix_hashes) <= 512, "prefix is not a sequence of hashes"
    )
    require(valid_durations(ticket.first_token_ns_left, ticket.completion_ns_left), "a deadline is out of range")
    require(max(len(ticket.fingerprint), len(ticket.session)) <= NAME_MAX, "fingerprint or session is too long")


def _texts_length(ticket: Ticket) -> int:
    """Returns the total length of all texts, in characters."""
    length = len(ticket.model) + len(ticket.zone) + len(ticket.gateway) + len(ticket.mirror_route)
    for text in (ticket.requested_class, ticket.service_tier, ticket.model_tier, ticket.idempotency_key):
        if text is not None:
            length += len(text)
    for name, value in (*ticket.metadata, *ticket.route_headers, *ticket.sticky_keys):
        length += len(name) + len(value)
    return length


def _check_waiting(report: RequestReported) -> None:
    check_ticket(report.ticket)
    require(valid_names(report.failed_at, report.route or None), "endpoint name is empty or too long")
    require(0 <= report.attempts <= ATTEMPTS_MAX, f"attempt count {report.attempts} is out of range")
    require(valid_durations(report.waited_ns, report.age_ns, report.held_ns), "a duration is out of range")


def _check_running(said: RunningAttempt) -> None:
    report: AttemptReported = said.report
    check_ticket(report.ticket)
    _check_caps(report.caps)
    _check_attempt(report.ticket.request_id, report.attempt)
    require(
        valid_names(report.endpoint_id, report.pool, report.service_class, report.model, report.route or None),
        "a name in the attempt is empty or too long",
    )
    require(
        0 <= report.tokens <= TOKENS_MAX and 0 <= report.level <= _LEVEL_MAX, "a token count or level is out of range"
    )
    require(
        valid_durations(report.age_ns, report.waited_ns, report.held_ns, report.request_age_ns),
        "a duration is out of range",
    )
    require(_valid_serials(said.arrival_serial, said.report_serial, said.end_serial), "a serial is out of range")
    _check_snapshot_id(said.dispatch_snapshot)
    require(all(0 <= (cost or 0) <= _MONEY_MAX for cost in (said.cost, report.cost)), "a cost is out of range")


def _check_caps(caps: Caps) -> None:
    """Checks caps. Zero responses or prompts would cause a division by zero."""
    at_least_one = (caps.n, caps.best_of, caps.prompts, caps.inputs)
    require(all(each is None or 0 < each <= TIMESTAMP_MAX for each in at_least_one), "a cap is out of range")
    others = (caps.prompt_tokens, caps.output_tokens, caps.logprobs, caps.prompt_logprobs)
    require(non_negative(*(each or 0 for each in others)), "a cap is out of range")


def _check_settled(said: SettledRequest) -> None:
    report: RequestSettled = said.report
    check_ticket(report.ticket)
    require(0 <= report.attempts <= ATTEMPTS_MAX, f"attempt count {report.attempts} is out of range")
    require(valid_names(report.pool, report.service_class, report.model), "a name in the result is empty or too long")
    require(valid_durations(report.age_ns), "a duration is out of range")
    require(_valid_serials(said.serial, said.arrival_serial, said.end_serial), "a serial is out of range")
    _check_usage(report.usage)
    _check_snapshot_id(said.dispatch_snapshot)
    require(0 <= (report.cost or 0) <= _MONEY_MAX, "a cost is out of range")


def _check_ended(event: AttemptEnded) -> None:
    _check_attempt(event.request_id, event.attempt)
    _check_usage(event.usage)
    _check_limits(event.limits)
    require(len(event.detail) <= TEXTS_MAX, "detail is too long")


def _check_usage(usage: Usage | None) -> None:
    if usage is not None:
        for count in (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens):
            require(0 <= count <= TOKENS_MAX, "token usage is out of range")


def _check_snapshot_id(sent: SnapshotId | None) -> None:
    if sent is not None:
        require(_valid_serials(sent.epoch, sent.number), "a snapshot number is out of range")


# Messages from schedulers


def check_from_scheduler(age_ns: int, message: FromScheduler) -> None:
    require(valid_durations(age_ns), f"message age of {age_ns} ns is out of range")
    match message:
        case Grant(order, start_within_ns, sent):
            _check_attempt(order.request_id, order.attempt)
            require(
                valid_names(order.endpoint_id, order.pool, order.service_class, order.model, order.route or None),
                "a name in the grant is empty or too long",
            )
            limits = (order.first_token_ns_max, order.idle_ns_max, order.total_ns_max)
            require(
                valid_durations(order.waited_ns, order.held_ns, start_within_ns, *limits), "a duration is out of range"
            )
            require(0 <= order.level <= _LEVEL_MAX, f"level {order.level} is out of range")
            _check_caps(order.caps)
            _check_snapshot_id(sent)
        case EndpointUpdate(endpoint):
            require(valid_names(endpoint.id, endpoint.pool), "endpoint or pool name is empty or too long")
            require(valid_names(*(endpoint.adapters or ())), "adapter name is empty or too long")
            require(_valid_serials(endpoint.in_flight_max), f"slot count {endpoint.in_flight_max} is out of range")
        case Share():
            _check_share(message)
        case SnapshotCoverage(number) | CellVersion(number):
            require(_valid_serials(number), "a serial or version is out of range")
        case _:
            pass


# Snapshots


def check_snapshot(snapshot: Snapshot) -> None:
    """Checks everything except the counters, which the scheduler checks when it starts from the snapshot.

    `counter_validation.py` has those checks.
    """
    require(_valid_serials(snapshot.at.epoch, snapshot.at.number), "a snapshot number is out of range")
    require(len(snapshot.members) <= MEMBERS_MAX, f"member count {len(snapshot.members)} is out of range")
    for each in snapshot.members:
        require(
            valid_names(each.member) and 0 <= each.incarnation < TIMESTAMP_MAX,
            "a member's name or incarnation is invalid",
        )
        require(_valid_serials(each.covered_serial), "a serial is out of range")
        require(
            len(each.earlier_shares) <= SHARES_MAX,
            f"number of earlier shares {len(each.earlier_shares)} is out of range",
        )
        for share in (each.share, *each.earlier_shares):
            _check_share(share)
