"""Invalid messages, snapshots and counters are rejected before use."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headgate.core.counters import (
    Counters,
)
from headgate.core.events import AttemptProgress, AttemptsProgressed, RequestReported, RequestWithdrawn, WithdrawalCause
from headgate.edge.options import EdgeLimits
from headgate.edge.parsed_request import IDEMPOTENCY_KEY_CHARS_MAX
from headgate.hosts.cell.protocol.codec import (
    InvalidMemberEntry,
    InvalidSchedulerEntry,
    UnreadableEntry,
    decode_member_entry,
    decode_scheduler_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
)
from headgate.hosts.cell.protocol.messages import (
    Echo,
    EndpointUpdate,
    Epoch,
    FinishedAttempt,
    FromMember,
    FromScheduler,
    Grant,
    GrantDeclined,
    MemberEntry,
    MemberEntryState,
    MemberHead,
    NewRequest,
    QueuedRequest,
    RunningAttempt,
    SchedulerEntry,
    SchedulerHead,
    SettledRequest,
    Share,
    Snapshot,
    SnapshotCoverage,
    SnapshotId,
)
from headgate.hosts.cell.protocol.validation import (
    ATTEMPTS_MAX,
    MEMBERS_MAX,
    SERIAL_MAX,
    TEXTS_MAX,
    TIMESTAMP_MAX,
)
from headgate.model.caps import Caps
from headgate.model.money import NanoUsd
from headgate.model.ticket import PROMPTS_MAX
from headgate.model.units import Duration, EndpointId, ModelName, PoolName, RequestId
from headgate.model.usage import Usage, UsageSource
from headgate.wire.fields import NAMES_CHARS_MAX
from headgate.wire.request_body import METADATA_KEYS_MAX, METADATA_VALUE_BYTES_MAX
from headgate.wire.request_checks import CHOICES_MAX
from testing.builders import an_endpoint, at, completed, dispatch, duration, first_token
from testing.cell_samples import FROM_MEMBER, FROM_SCHEDULER
from tests.hosts.cell.builders import a_ticket

TICKET = a_ticket("r1")
MEMBER = MemberHead("g1", 5, Epoch(1, "one"), False, 2, 3, 4, 5, 6, at(1), Echo(at(2), duration(1)), Share(0, 2), "h")
SCHEDULER = SchedulerHead(Epoch(1, "one"), 5, 2, 1, 4, 6, at(1), None, "h")
RUNS = next(each for each in FROM_MEMBER if isinstance(each, RunningAttempt))
SETTLED = next(each for each in FROM_MEMBER if isinstance(each, SettledRequest))
GRANTED = next(each for each in FROM_SCHEDULER if isinstance(each, Grant))


def read_member(head: MemberHead, *messages: FromMember, age_ns: int = 0) -> MemberEntry:
    (written,) = encode_entry(MemberEntry(head, tuple((Duration(age_ns), each) for each in messages)))
    return decode_member_entry(written)


def read_scheduler(head: SchedulerHead, *messages: FromScheduler, age_ns: int = 0) -> SchedulerEntry:
    (written,) = encode_entry(SchedulerEntry(head, tuple((Duration(age_ns), each) for each in messages)))
    return decode_scheduler_entry(written)


@pytest.mark.parametrize(
    "wrong",
    [
        {"member": ""},
        {"member": "g" * 2_000},
        {"incarnation": -1},
        {"incarnation": TIMESTAMP_MAX},
        {"session": -1},
        {"received_serial": SERIAL_MAX + 1},
        {"session_first_serial": 0},
        {"oldest_kept_serial": 2},
        {"first_serial": 3},
        {"followed_epoch": Epoch(SERIAL_MAX + 1, "one")},
        {"followed_epoch": Epoch(1, "")},
        {"stamp": TIMESTAMP_MAX},
        {"echo": Echo(at(1), Duration(-1))},
        {"share": Share(0, 0)},
        {"share": Share(2, 2)},
        {"share": Share(-1, 2)},
        {"share": Share(0, MEMBERS_MAX + 1)},
    ],
)
def test_member_entry_with_an_invalid_head_is_skipped(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnreadableEntry) as refused:
        read_member(replace(MEMBER, **wrong))

    assert not isinstance(refused.value, InvalidMemberEntry)


@pytest.mark.parametrize(
    "wrong", [{"incarnation": -1}, {"rejected_session": -1}, {"epoch": Epoch(-1, "one")}, {"stamp": -TIMESTAMP_MAX}]
)
def test_scheduler_entry_with_an_invalid_head_is_skipped(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnreadableEntry):
        read_scheduler(replace(SCHEDULER, **wrong))


def impossible_messages() -> list[FromMember]:
    negative, ticket = Duration(-1), TICKET
    usage = Usage(-1, 0, 0, UsageSource.ENGINE)
    return [
        NewRequest(replace(ticket, n=0)),
        NewRequest(replace(ticket, prompt_bytes=-1)),
        NewRequest(replace(ticket, prefix_hashes=b"odd")),
        NewRequest(replace(ticket, completion_ns_left=negative)),
        NewRequest(replace(ticket, request_id=RequestId(""))),
        NewRequest(replace(ticket, client_retries=-1)),
        NewRequest(ticket, negative),
        NewRequest(replace(ticket, fingerprint="f" * 2_000)),
        NewRequest(replace(ticket, prompts=0)),
        NewRequest(replace(ticket, prompts=PROMPTS_MAX + 1)),
        NewRequest(replace(ticket, prompt_bytes_before_prefix=-1)),
        NewRequest(replace(ticket, prompt_bytes_before_prefix=ticket.prompt_bytes + 1)),
        NewRequest(replace(ticket, model=ModelName(""))),
        QueuedRequest(RequestReported(ticket, Duration(0), failed_at=EndpointId("")), 1),
        RequestWithdrawn(RequestId(""), WithdrawalCause.CLIENT_DISCONNECTED),
        replace(RUNS, report=replace(RUNS.report, caps=Caps(n=0))),
        replace(RUNS, report=replace(RUNS.report, caps=Caps(prompts=0))),
        replace(RUNS, report=replace(RUNS.report, caps=Caps(output_tokens=-1))),
        replace(RUNS, report=replace(RUNS.report, cost=NanoUsd(-1))),
        NewRequest(replace(ticket, gateway="g2")),
        QueuedRequest(RequestReported(replace(ticket, gateway="g2"), Duration(0)), 1),
        replace(RUNS, report=replace(RUNS.report, ticket=replace(ticket, gateway="g2"))),
        replace(SETTLED, report=replace(SETTLED.report, ticket=replace(ticket, gateway="g2"))),
        replace(RUNS, report=replace(RUNS.report, attempt=0)),
        replace(RUNS, report=replace(RUNS.report, attempt=ATTEMPTS_MAX + 1)),
        replace(RUNS, report=replace(RUNS.report, tokens=-1)),
        replace(RUNS, report=replace(RUNS.report, age_ns=negative)),
        replace(RUNS, report=replace(RUNS.report, pool=PoolName(""))),
        replace(RUNS, dispatch_snapshot=SnapshotId(-1, 0)),
        replace(RUNS, report_serial=-1),
        replace(SETTLED, report=replace(SETTLED.report, usage=usage)),
        replace(SETTLED, report=replace(SETTLED.report, attempts=-1)),
        replace(SETTLED, serial=-1),
        first_token("r1", attempt=0),
        AttemptsProgressed((AttemptProgress(RequestId("r1"), 1, -1),)),
        FinishedAttempt(replace(completed("r1"), usage=usage), request_over=True),
        GrantDeclined(RequestId("r1"), 1, False, negative),
    ]


@pytest.mark.parametrize("said", impossible_messages(), ids=repr)
def test_invalid_member_message_is_rejected_with_the_head_of_its_entry(said: FromMember) -> None:
    with pytest.raises(InvalidMemberEntry, match='member "g1" sent an invalid message') as refused:
        read_member(MEMBER, said)

    assert refused.value.head == MEMBER


@pytest.mark.parametrize(
    "said",
    [
        Grant(replace(dispatch("r1"), attempt=0), duration(1), SnapshotId(1, 2)),
        replace(GRANTED, start_within_ns=Duration(-1)),
        replace(GRANTED, dispatch=replace(GRANTED.dispatch, total_ns_max=Duration(-1))),
        replace(GRANTED, dispatch=replace(GRANTED.dispatch, caps=Caps(n=0))),
        replace(GRANTED, dispatch=replace(GRANTED.dispatch, level=-1)),
        EndpointUpdate(replace(an_endpoint(), in_flight_max=-1), ready=True),
        EndpointUpdate(replace(an_endpoint(), id=EndpointId("")), ready=True),
        Share(3, 3),
        SnapshotCoverage(-1),
    ],
    ids=repr,
)
def test_invalid_scheduler_message_is_rejected_with_the_head_of_its_entry(said: FromScheduler) -> None:
    with pytest.raises(InvalidSchedulerEntry, match="epoch 1 sent an invalid message") as refused:
        read_scheduler(SCHEDULER, said)

    assert refused.value.head == SCHEDULER


@pytest.mark.parametrize(
    "said",
    [
        NewRequest(replace(TICKET, model=ModelName("m" * (TEXTS_MAX + 1)))),
        NewRequest(replace(TICKET, requested_class="c" * TEXTS_MAX)),
        NewRequest(replace(TICKET, metadata=(("team", "t" * TEXTS_MAX),))),
        FinishedAttempt(replace(completed("r1"), detail="d" * (TEXTS_MAX + 1)), request_over=True),
        GrantDeclined(RequestId("r1"), 1, False, reason="r" * (TEXTS_MAX + 1)),
    ],
    ids=["model", "class", "metadata", "detail", "reason"],
)
def test_member_message_with_oversized_text_is_rejected(said: FromMember) -> None:
    with pytest.raises(InvalidMemberEntry):
        read_member(MEMBER, said)


@pytest.mark.parametrize("letter", ["m", "é", "\N{GRINNING FACE}"])
def test_longest_texts_accepted_by_the_edge_are_valid_and_fit_in_an_entry(letter: str) -> None:
    limits = EdgeLimits()
    # NAMES_CHARS_MAX limits the names in a body and does not depend on `field_bytes_max`.
    name = letter * max(NAMES_CHARS_MAX, limits.field_bytes_max)
    header = "é" * (limits.header_bytes_max // 2)
    ticket = replace(
        TICKET,
        model=ModelName(name),
        service_tier=name,
        requested_class=header,
        model_tier=header,
        idempotency_key="k" * IDEMPOTENCY_KEY_CHARS_MAX,
        metadata=tuple((f"{number:64}", "v" * METADATA_VALUE_BYTES_MAX) for number in range(METADATA_KEYS_MAX)),
        prompts=limits.body_bytes_max // len('"",'),
        n=CHOICES_MAX,
    )

    assert read_member(MEMBER, NewRequest(ticket)).messages == ((0, NewRequest(ticket)),)


def test_message_with_a_negative_age_is_rejected() -> None:
    with pytest.raises(InvalidMemberEntry, match="age of -1 ns"):
        read_member(MEMBER, FROM_MEMBER[0], age_ns=-1)
    with pytest.raises(InvalidSchedulerEntry, match="age of -1 ns"):
        read_scheduler(SCHEDULER, FROM_SCHEDULER[0], age_ns=-1)


@pytest.mark.parametrize(
    "snapshot",
    [
        Snapshot(SnapshotId(-1, 1), Counters(), ()),
        Snapshot(SnapshotId(1, 1), Counters(), (MemberEntryState("g1", 1, -1, Share(0, 1)),)),
        Snapshot(SnapshotId(1, 1), Counters(), (MemberEntryState("g1", 1, 1, Share(0, 0)),)),
        Snapshot(SnapshotId(1, 1), Counters(), (MemberEntryState("", 1, 1, Share(0, 1)),)),
        Snapshot(SnapshotId(1, 1), Counters(), (MemberEntryState("g1", 1, 1, Share(0, 1), (Share(2, 1),)),)),
        Snapshot(SnapshotId(1, 1), Counters(), (MemberEntryState("g1", 1, 1, Share(0, 1), (Share(0, 1),) * 99),)),
    ],
    ids=repr,
)
def test_decoder_rejects_an_invalid_snapshot(snapshot: Snapshot) -> None:
    with pytest.raises(UnreadableEntry, match="invalid snapshot"):
        decode_snapshot(encode_snapshot(snapshot))


def test_valid_messages_are_accepted() -> None:
    checks: list[Callable[[], object]] = [
        lambda: read_member(MEMBER, *FROM_MEMBER),
        lambda: read_member(MEMBER, NewRequest(replace(TICKET, gateway="g1"))),
        lambda: read_scheduler(SCHEDULER, *FROM_SCHEDULER),
    ]
    for check in checks:
        check()
