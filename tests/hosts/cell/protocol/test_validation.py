"""Data that no correct process sends is rejected before it is used."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headgate.core.counters import (
    Counters,
    EndpointCounter,
    FirstTokensCounter,
    LadderCounter,
    LengthsCounter,
    LimitCounter,
    PromptCounter,
    QuarantineCounter,
    RouteCounter,
    StartCounter,
    TurnsCounter,
    WindowCounter,
)
from headgate.core.events import AttemptProgress, Progressed, RequestReported, RequestWithdrawn, WithdrawalCause
from headgate.core.hedging import FIRST_TOKEN_BUCKETS
from headgate.core.prediction import LENGTH_BOUNDS, LENGTH_BUCKETS, RATE_MAX, Predictions
from headgate.core.routing.learning import Learned
from headgate.edge.intake import IDEMPOTENCY_KEY_CHARS_MAX
from headgate.edge.options import EdgeLimits
from headgate.hosts.cell.protocol.codec import (
    Unintelligible,
    UntrustedMember,
    UntrustedScheduler,
    decoded_snapshot,
    encoded,
    encoded_snapshot,
    member_entry,
    scheduler_entry,
)
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
    MemberEntry,
    MemberHead,
    MemberNoted,
    Runs,
    SchedulerEntry,
    SchedulerHead,
    Settled,
    Share,
    Snapshot,
    Snapshots,
    Waits,
)
from headgate.hosts.cell.protocol.validation import (
    ATTEMPTS_MAX,
    DURATION_MAX,
    LEARNED_ANSWERS_MAX,
    LEARNED_BYTES_MAX,
    MEMBERS_MAX,
    MOMENT_MAX,
    NUMBER_MAX,
    PROMPTS_MAX,
    TEXTS_MAX,
    Implausible,
    check_counters,
)
from headgate.model.caps import Caps
from headgate.model.money import NanoUsd
from headgate.model.units import ClassName, Duration, EndpointId, ModelName, PoolName, RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from headgate.wire.checks import CHOICES_MAX
from headgate.wire.fields import NAMES_CHARS_MAX
from headgate.wire.request import METADATA_KEYS_MAX, METADATA_VALUE_BYTES_MAX
from testing.builders import an_endpoint, at, completed, dispatch, first_token, lasting
from tests.hosts.cell.builders import a_ticket
from tests.hosts.cell.protocol.test_codec import FROM_MEMBER, FROM_SCHEDULER

TICKET = a_ticket("r1")
MEMBER = MemberHead("g1", 5, Epoch(1, "one"), False, 2, 3, 4, 5, 6, at(1), Echo(at(2), lasting(1)), Share(0, 2), "h")
SCHEDULER = SchedulerHead(Epoch(1, "one"), 5, 2, 1, 4, 6, at(1), None, "h")
RUNS = next(each for each in FROM_MEMBER if isinstance(each, Runs))
SETTLED = next(each for each in FROM_MEMBER if isinstance(each, Settled))
GRANTED = next(each for each in FROM_SCHEDULER if isinstance(each, Granted))


def read_member(head: MemberHead, *messages: FromMember, age_ns: int = 0) -> MemberEntry:
    (written,) = encoded(MemberEntry(head, tuple((Duration(age_ns), each) for each in messages)))
    return member_entry(written)


def read_scheduler(head: SchedulerHead, *messages: FromScheduler, age_ns: int = 0) -> SchedulerEntry:
    (written,) = encoded(SchedulerEntry(head, tuple((Duration(age_ns), each) for each in messages)))
    return scheduler_entry(written)


@pytest.mark.parametrize(
    "wrong",
    [
        {"member": ""},
        {"member": "g" * 2_000},
        {"incarnation": -1},
        {"incarnation": MOMENT_MAX},
        {"session": -1},
        {"taken": NUMBER_MAX + 1},
        {"base": 0},
        {"kept": 2},
        {"first": 3},
        {"bound": Epoch(NUMBER_MAX + 1, "one")},
        {"bound": Epoch(1, "")},
        {"stamp": MOMENT_MAX},
        {"echo": Echo(at(1), Duration(-1))},
        {"share": Share(0, 0)},
        {"share": Share(2, 2)},
        {"share": Share(-1, 2)},
        {"share": Share(0, MEMBERS_MAX + 1)},
    ],
)
def test_member_entry_with_an_impossible_head_is_skipped(wrong: dict[str, Any]) -> None:
    with pytest.raises(Unintelligible) as refused:
        read_member(replace(MEMBER, **wrong))

    assert not isinstance(refused.value, UntrustedMember)


@pytest.mark.parametrize(
    "wrong", [{"incarnation": -1}, {"wanted": -1}, {"epoch": Epoch(-1, "one")}, {"stamp": -MOMENT_MAX}]
)
def test_scheduler_entry_with_an_impossible_head_is_skipped(wrong: dict[str, Any]) -> None:
    with pytest.raises(Unintelligible):
        read_scheduler(replace(SCHEDULER, **wrong))


def impossible_messages() -> list[FromMember]:
    negative, ticket = Duration(-1), TICKET
    usage = Usage(-1, 0, 0, UsageSource.ENGINE)
    return [
        Arrived(replace(ticket, n=0)),
        Arrived(replace(ticket, prompt_bytes=-1)),
        Arrived(replace(ticket, prefix=b"odd")),
        Arrived(replace(ticket, completion_ns_left=negative)),
        Arrived(replace(ticket, request_id=RequestId(""))),
        Arrived(replace(ticket, client_retries=-1)),
        Arrived(ticket, negative),
        Arrived(replace(ticket, fingerprint="f" * 2_000)),
        Arrived(replace(ticket, prompts=0)),
        Arrived(replace(ticket, prompts=PROMPTS_MAX + 1)),
        Arrived(replace(ticket, prompt_bytes_before=-1)),
        Arrived(replace(ticket, prompt_bytes_before=ticket.prompt_bytes + 1)),
        Arrived(replace(ticket, model=ModelName(""))),
        Waits(RequestReported(ticket, Duration(0), failed_at=EndpointId("")), 1),
        RequestWithdrawn(RequestId(""), WithdrawalCause.CLIENT_LEFT),
        replace(RUNS, report=replace(RUNS.report, caps=Caps(n=0))),
        replace(RUNS, report=replace(RUNS.report, caps=Caps(prompts=0))),
        replace(RUNS, report=replace(RUNS.report, caps=Caps(output_tokens=-1))),
        replace(RUNS, report=replace(RUNS.report, cost=NanoUsd(-1))),
        Arrived(replace(ticket, gateway="g2")),
        Waits(RequestReported(replace(ticket, gateway="g2"), Duration(0)), 1),
        replace(RUNS, report=replace(RUNS.report, ticket=replace(ticket, gateway="g2"))),
        replace(SETTLED, report=replace(SETTLED.report, ticket=replace(ticket, gateway="g2"))),
        replace(RUNS, report=replace(RUNS.report, attempt=0)),
        replace(RUNS, report=replace(RUNS.report, attempt=ATTEMPTS_MAX + 1)),
        replace(RUNS, report=replace(RUNS.report, tokens=-1)),
        replace(RUNS, report=replace(RUNS.report, age_ns=negative)),
        replace(RUNS, report=replace(RUNS.report, pool=PoolName(""))),
        replace(RUNS, sent=Snapshots(-1, 0)),
        replace(RUNS, told=-1),
        replace(SETTLED, report=replace(SETTLED.report, usage=usage)),
        replace(SETTLED, report=replace(SETTLED.report, attempts=-1)),
        replace(SETTLED, serial=-1),
        first_token("r1", attempt=0),
        Progressed((AttemptProgress(RequestId("r1"), 1, -1),)),
        Ended(replace(completed("r1"), usage=usage), over=True),
        Declined(RequestId("r1"), 1, False, negative),
    ]


@pytest.mark.parametrize("said", impossible_messages(), ids=repr)
def test_impossible_member_message_is_rejected_with_the_head_of_its_entry(said: FromMember) -> None:
    with pytest.raises(UntrustedMember, match='member "g1" sent an invalid message') as refused:
        read_member(MEMBER, said)

    assert refused.value.head == MEMBER


@pytest.mark.parametrize(
    "said",
    [
        Granted(replace(dispatch("r1"), attempt=0), lasting(1), Snapshots(1, 2)),
        replace(GRANTED, start_within_ns=Duration(-1)),
        replace(GRANTED, order=replace(GRANTED.order, total_ns_max=Duration(-1))),
        replace(GRANTED, order=replace(GRANTED.order, caps=Caps(n=0))),
        replace(GRANTED, order=replace(GRANTED.order, level=-1)),
        EndpointTold(replace(an_endpoint(), in_flight_max=-1), ready=True),
        EndpointTold(replace(an_endpoint(), id=EndpointId("")), ready=True),
        Share(3, 3),
        Covered(-1),
    ],
    ids=repr,
)
def test_impossible_scheduler_message_is_rejected_with_the_head_of_its_entry(said: FromScheduler) -> None:
    with pytest.raises(UntrustedScheduler, match="epoch 1 sent an invalid message") as refused:
        read_scheduler(SCHEDULER, said)

    assert refused.value.head == SCHEDULER


@pytest.mark.parametrize(
    "said",
    [
        Arrived(replace(TICKET, model=ModelName("m" * (TEXTS_MAX + 1)))),
        Arrived(replace(TICKET, class_named="c" * TEXTS_MAX)),
        Arrived(replace(TICKET, metadata=(("team", "t" * TEXTS_MAX),))),
        Ended(replace(completed("r1"), detail="d" * (TEXTS_MAX + 1)), over=True),
        Declined(RequestId("r1"), 1, False, reason="r" * (TEXTS_MAX + 1)),
    ],
    ids=["model", "class", "metadata", "detail", "reason"],
)
def test_member_message_with_an_oversized_text_is_rejected(said: FromMember) -> None:
    with pytest.raises(UntrustedMember):
        read_member(MEMBER, said)


@pytest.mark.parametrize("letter", ["m", "é", "\N{GRINNING FACE}"])
def test_longest_texts_accepted_by_the_edge_are_valid_and_fit_into_an_entry(letter: str) -> None:
    limits = EdgeLimits()
    # NAMES_CHARS_MAX bounds names in a body and does not depend on `field_bytes_max`.
    name = letter * max(NAMES_CHARS_MAX, limits.field_bytes_max)
    header = "é" * (limits.head_bytes_max // 2)
    ticket = replace(
        TICKET,
        model=ModelName(name),
        service_tier=name,
        class_named=header,
        rung=header,
        idempotency_key="k" * IDEMPOTENCY_KEY_CHARS_MAX,
        metadata=tuple((f"{number:64}", "v" * METADATA_VALUE_BYTES_MAX) for number in range(METADATA_KEYS_MAX)),
        prompts=limits.body_bytes_max // len('"",'),
        n=CHOICES_MAX,
    )

    assert read_member(MEMBER, Arrived(ticket)).messages == ((0, Arrived(ticket)),)


def test_message_with_a_negative_age_is_rejected() -> None:
    with pytest.raises(UntrustedMember, match="-1 ns old"):
        read_member(MEMBER, FROM_MEMBER[0], age_ns=-1)
    with pytest.raises(UntrustedScheduler, match="-1 ns old"):
        read_scheduler(SCHEDULER, FROM_SCHEDULER[0], age_ns=-1)


@pytest.mark.parametrize(
    "snapshot",
    [
        Snapshot(Snapshots(-1, 1), Counters(), ()),
        Snapshot(Snapshots(1, 1), Counters(), (MemberNoted("g1", 1, -1, Share(0, 1)),)),
        Snapshot(Snapshots(1, 1), Counters(), (MemberNoted("g1", 1, 1, Share(0, 0)),)),
        Snapshot(Snapshots(1, 1), Counters(), (MemberNoted("", 1, 1, Share(0, 1)),)),
        Snapshot(Snapshots(1, 1), Counters(), (MemberNoted("g1", 1, 1, Share(0, 1), (Share(2, 1),)),)),
        Snapshot(Snapshots(1, 1), Counters(), (MemberNoted("g1", 1, 1, Share(0, 1), (Share(0, 1),) * 99),)),
    ],
    ids=repr,
)
def test_decoder_rejects_an_impossible_snapshot(snapshot: Snapshot) -> None:
    with pytest.raises(Unintelligible, match="not a snapshot"):
        decoded_snapshot(encoded_snapshot(snapshot))


def impossible_counters() -> list[Counters]:
    tenant, pool, model = TenantId("acme"), PoolName("p"), ModelName("m")
    far = 1 << 63
    route = RouteCounter((pool,), (), 0, 0, ())
    return [
        Counters(turns=(TurnsCounter(0, pool, far, (), ()),)),
        Counters(credits=((tenant, far),)),
        Counters(limits=(LimitCounter(tenant, -1, 0, Duration(0)),)),
        Counters(windows=(WindowCounter(pool, ((Duration(-1), 1),), ()),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((1, -1, 0),)),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((1, 1, 1), (1, 1, 1))),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((1, 9, 9),)), LengthsCounter(tenant, model, ((2, 9, 9),)))),
        Counters(lengths=(LengthsCounter(tenant, model, ((LENGTH_BUCKETS, 1, 1),)),)),
        Counters(prompts=(PromptCounter(model, 1, 1, tenant), PromptCounter(model, 2, 2, tenant))),
        Counters(first_tokens=(FirstTokensCounter(ClassName("c"), pool, None, ((FIRST_TOKEN_BUCKETS, 1),)),)),
        Counters(first_tokens=(FirstTokensCounter(ClassName("c"), pool, None, ()),) * 2),
        Counters(prompts=(PromptCounter(model, -1, 0),)),
        Counters(prompts=(PromptCounter(model, 0, 1),)),
        Counters(prompts=(PromptCounter(model, 5_000, 1 << 61, tenant),)),
        Counters(prompts=(PromptCounter(model, 5_000, 5_001 * RATE_MAX + 1, tenant),)),
        Counters(prompts=(PromptCounter(model, LEARNED_BYTES_MAX + 1, 1, tenant),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((3, 20, 20 * LENGTH_BOUNDS[3] + 1),)),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((3, LEARNED_ANSWERS_MAX + 1, 1),)),)),
        Counters(first_tokens=(FirstTokensCounter(ClassName("c"), pool, Duration(DURATION_MAX + 1), ()),)),
        Counters(starts=(StartCounter(pool, Duration(DURATION_MAX + 1)),)),
        Counters(endpoints=(EndpointCounter(EndpointId("e1"), (1, 1), (-2_000_000, 0, 0, 0, 0), 0),)),
        Counters(endpoints=(EndpointCounter(EndpointId("e1"), (1, 1), (0, 2_000_000, 0, 0, 0), 0),)),
        Counters(endpoints=(EndpointCounter(EndpointId("e1"), (1, 1), (1 << 61, 0, 1 << 61, 0, 0), 0),)),
        Counters(first_tokens=(FirstTokensCounter(ClassName("c"), pool, Duration(-1), ()),)),
        Counters(routes=(route._replace(fraction=1_000_000),)),
        Counters(routes=(route._replace(ladders=(LadderCounter(0, -1, None, None, False),)),)),
        Counters(endpoints=(EndpointCounter(EndpointId("e1"), (1, 1), (0, 0, 0, 0, 0), -1),)),
        Counters(starts=(StartCounter(pool, Duration(-1)),)),
        Counters(quarantine=(QuarantineCounter("f", Duration(-1)),)),
        Counters(quarantine=(QuarantineCounter("", Duration(1)),)),
    ]


@pytest.mark.parametrize("counters", impossible_counters(), ids=repr)
def test_impossible_counters_are_rejected(counters: Counters) -> None:
    with pytest.raises(Implausible):
        check_counters(counters)


def test_learned_counters_are_accepted() -> None:
    predictions, speed, chance = Predictions(), Learned(), Random(3)
    for number in range(3_000):
        # The highest counted rate of tokens per byte, and byte counts that are sometimes halved to an odd number.
        prompt_bytes = chance.randint(1, 70_000)
        usage = Usage(prompt_bytes + 1_000, chance.choice((0, 1, 2, 3, 300_000)), 0, UsageSource.ENGINE)
        ticket = replace(TICKET, tenant=TenantId(f"t{number % 3}"), prompt_bytes=prompt_bytes)
        predictions.learn(ticket, ModelName("m"), usage, answers=1, output_most=None)
        speed.observe(decode_ns=chance.randint(1, 9), prefill_ns=chance.randint(0, 9), took_ns=chance.randint(0, 99))
        endpoint = EndpointCounter(EndpointId("e1"), *speed.counters(), 0)

        check_counters(Counters(lengths=predictions.lengths(), prompts=predictions.prompts(), endpoints=(endpoint,)))


def test_valid_messages_and_counters_are_accepted() -> None:
    checks: list[Callable[[], object]] = [
        lambda: read_member(MEMBER, *FROM_MEMBER),
        lambda: read_member(MEMBER, Arrived(replace(TICKET, gateway="g1"))),
        lambda: read_scheduler(SCHEDULER, *FROM_SCHEDULER),
        lambda: check_counters(Counters()),
        lambda: check_counters(
            Counters(
                lengths=(
                    LengthsCounter(TenantId("acme"), ModelName("m"), ((LENGTH_BUCKETS - 1, 1, 1),)),
                    LengthsCounter(TenantId("bolt"), ModelName("m"), ((0, 1, 1),)),
                ),
                first_tokens=(
                    FirstTokensCounter(ClassName("c"), PoolName("p"), None, ((FIRST_TOKEN_BUCKETS - 1, 1),)),
                ),
            )
        ),
    ]
    for check in checks:
        check()
