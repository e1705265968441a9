"""A request produces one row per attempt, or one row with attempt 0 if it was never dispatched."""

from dataclasses import replace

from headgate.core.commands import Dispatch, End
from headgate.core.events import AttemptEnded, RequestArrived
from headgate.ledger.recorder import UsageRecorder
from headgate.model.money import Bill, BillCause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.units import ClassName, Duration, ModelName, RequestId
from headgate.model.usage import Usage, UsageSource
from headgate.ports.ledger import UsageRow
from testing.builders import (
    aborted,
    arrived,
    at,
    client_disconnected,
    completed,
    dispatch,
    end,
    failed,
    first_token,
    progressed,
)
from testing.memory_ledger import MemoryLedger


def a_bill(attempt: int, cause: BillCause = BillCause.ANSWER) -> Bill:
    times = Duration(4_000), Duration(60_000), Duration(9_000)
    return Bill(attempt, cause, *times, NanoUsd(1), NanoUsd(2), NanoUsd(3))


def ended(request: str, outcome: Outcome = Outcome.COMPLETED, *bills: Bill, reserved: int = 0, **terms: float) -> End:
    return replace(end(request, outcome, **terms), bills=bills, reserved=NanoUsd(reserved))


def with_usage(event: AttemptEnded, usage: Usage) -> AttemptEnded:
    return replace(event, usage=usage)


def rows_of(twin: MemoryLedger) -> list[UsageRow]:
    return list(twin.rows.values())


def a_recorder(**options: int) -> tuple[UsageRecorder, MemoryLedger]:
    twin = MemoryLedger()
    return UsageRecorder(twin, **options), twin


def test_end_that_reports_the_first_token_sets_its_time() -> None:
    recorder, twin = a_recorder()
    for name in ("alone", "after"):
        recorder.observe(arrived(name), [dispatch(name)], at(0))
    recorder.observe(first_token("after"), [], at(0.5))
    for name in ("alone", "after"):
        recorder.observe(completed(name, first_token=True), [ended(name, Outcome.COMPLETED)], at(2))

    assert [row.ttft_us for row in rows_of(twin)] == [2_000_000, 500_000]


def test_completed_request_produces_one_complete_row() -> None:
    recorder, twin = a_recorder()
    ticket = replace(arrived("a").ticket, metadata=(("feature", "search"),))
    sent = replace(dispatch("a", waited=0.5), model=ModelName("m-small"), level=2)
    usage = Usage(100, 30, 20, UsageSource.ENGINE, 5)
    recorder.observe(RequestArrived(ticket), [], at(0))
    recorder.observe(progressed(), [sent], at(0.5))
    recorder.observe(first_token("a"), [], at(0.75))
    recorder.observe(with_usage(completed("a"), usage), [ended("a", Outcome.COMPLETED, a_bill(1), reserved=70)], at(2))

    [row] = rows_of(twin)
    assert row == UsageRow(
        *(at(0), "a", 1, 0, "acme", "interactive", "m", "m-small", "p", "e1", "chat", True),
        *(
            100,
            20,
            30,
            5,
            "engine",
            500_000,
            750_000,
            1_500_000,
            4,
            60,
            9,
            "completed",
            "completed",
            "answer",
            "tenant",
        ),
        *(2, NanoUsd(1), NanoUsd(2), NanoUsd(3), NanoUsd(70), (("feature", "search"),)),
    )
    assert recorder.open_requests == 0


def test_rejected_request_produces_one_row_with_attempt_zero() -> None:
    recorder, twin = a_recorder()
    refusal = replace(ended("a", Outcome.RATE_LIMITED), service_class=None)
    recorder.observe(arrived("a"), [refusal], at(0))

    [row] = rows_of(twin)
    assert (row.attempt, row.outcome, row.service_class, row.pool, row.usage_source) == (0, "rate_limited", "", "", "")
    assert (row.tokens_in, row.tokens_out, row.cause, row.payer) == (0, 0, "", "")


def test_row_for_a_request_cancelled_in_the_queue_contains_its_wait() -> None:
    recorder, twin = a_recorder()
    recorder.observe(arrived("a"), [], at(0))
    recorder.observe(client_disconnected("a"), [ended("a", Outcome.CANCELLED, waited=3)], at(3))

    [row] = rows_of(twin)
    assert (row.attempt, row.outcome, row.queue_us, row.duration_us) == (0, "cancelled", 3_000_000, 3_000_000)


def test_each_attempt_has_a_row_with_its_number_endpoint_and_payer() -> None:
    recorder, twin = a_recorder()
    recorder.observe(arrived("a"), [dispatch("a", "e1")], at(0))
    recorder.observe(failed("a"), [dispatch("a", "e2", attempt=2)], at(1))
    bills = a_bill(1, BillCause.RETRY), a_bill(2)
    recorder.observe(completed("a", 2, tokens=7), [ended("a", Outcome.COMPLETED, *bills, reserved=50)], at(3))

    first, second = rows_of(twin)
    assert (first.attempt, first.endpoint, first.ending, first.cause, first.payer) == (
        *(1, "e1", "failed", "retry", "platform"),
    )
    assert (second.attempt, second.endpoint, second.ending, second.cause, second.payer) == (
        *(2, "e2", "completed", "answer", "tenant"),
    )
    assert (first.reserved_nano_usd, second.reserved_nano_usd) == (0, 50)
    assert (first.tokens_in, first.tokens_out, second.tokens_out) == (0, 0, 7)


def test_rows_wait_for_an_attempt_that_ends_after_its_request() -> None:
    recorder, twin = a_recorder()
    recorder.observe(arrived("a"), [dispatch("a", "e1")], at(0))
    recorder.observe(progressed(), [replace(dispatch("a", "e2", attempt=2), hedge=True)], at(1))
    recorder.observe(
        completed("a", 2, tokens=7), [ended("a", Outcome.COMPLETED, a_bill(1, BillCause.HEDGE), a_bill(2))], at(2)
    )
    before = len(twin.rows)
    late = with_usage(aborted("a"), Usage(9, 3, 0, UsageSource.ENGINE))
    recorder.observe(late, [], at(2.5))

    loser, winner = rows_of(twin)
    assert before == 0
    assert (loser.attempt, loser.ending, loser.cause, loser.payer, loser.tokens_out, loser.duration_us) == (
        *(1, "aborted", "hedge", "platform", 3, 2_500_000),
    )
    assert (winner.attempt, winner.tokens_out) == (2, 7)
    assert recorder.open_requests == 0


def test_unreported_tokens_are_estimated_from_relayed_tokens() -> None:
    recorder, twin = a_recorder()
    recorder.observe(arrived("a", prompt_bytes=400), [dispatch("a")], at(0))
    recorder.observe(first_token("a"), [], at(1))
    recorder.observe(progressed("a"), [], at(1))
    recorder.observe(progressed("a", "unknown"), [], at(2))
    recorder.observe(
        client_disconnected("a"), [ended("a", Outcome.CANCELLED, a_bill(1, BillCause.CLIENT_DISCONNECTED))], at(3)
    )
    recorder.observe(aborted("a"), [], at(3))

    [row] = rows_of(twin)
    assert (row.usage_source, row.tokens_in, row.tokens_out, row.payer) == ("estimated", 100, 16, "tenant")


def test_row_with_attempt_zero_is_written_if_the_first_attempt_was_not_observed() -> None:
    recorder, twin = a_recorder()
    recorder.observe(arrived("a"), [dispatch("a", attempt=2)], at(0))
    recorder.observe(completed("a", 2, tokens=7), [ended("a", Outcome.COMPLETED, a_bill(2), reserved=50)], at(1))

    assert [(row.attempt, row.reserved_nano_usd, row.tokens_out) for row in rows_of(twin)] == [(0, 0, 0), (2, 50, 7)]


def test_model_name_from_the_client_is_truncated_and_sanitized() -> None:
    recorder, twin = a_recorder()
    recorder.observe(arrived("a", model="x\0" + "y" * 999), [ended("a", Outcome.MODEL_NOT_FOUND)], at(0))

    [row] = rows_of(twin)
    assert "\0" not in row.model
    assert len(row.model) == 200


def test_token_counts_from_the_engine_are_clamped() -> None:
    recorder, twin = a_recorder()
    recorder.observe(arrived("a"), [dispatch("a")], at(0))
    claimed = Usage(10**15, -4, 0, UsageSource.ENGINE)
    recorder.observe(with_usage(completed("a"), claimed), [ended("a")], at(1))

    [row] = rows_of(twin)
    assert (row.tokens_in, row.tokens_out) == (2**31 - 1, 0)


def test_oldest_open_request_is_written_early_if_the_limit_is_exceeded() -> None:
    recorder, twin = a_recorder(requests_max=2)
    for name in ("a", "b", "c"):
        recorder.observe(arrived(name), [], at(0))
    recorder.observe(client_disconnected("a"), [ended("a", Outcome.CANCELLED)], at(1))

    assert [(row.request, row.outcome) for row in rows_of(twin)] == [("a", "")]
    assert recorder.open_requests == 2


def test_shutdown_writes_ended_requests_with_running_attempts() -> None:
    recorder, twin = a_recorder()
    recorder.observe(arrived("a"), [dispatch("a")], at(0))
    recorder.observe(client_disconnected("a"), [ended("a", Outcome.CANCELLED, a_bill(1, BillCause.SHUTDOWN))], at(1))
    recorder.observe(arrived("b"), [dispatch("b")], at(1))
    recorder.close()

    assert [(row.request, row.ending, row.duration_us) for row in rows_of(twin)] == [("a", "", 1_000_000)]


def test_repeated_dispatch_is_counted_as_one_attempt() -> None:
    recorder, twin = a_recorder()
    order: Dispatch = dispatch("a")
    recorder.observe(arrived("a"), [order], at(0))
    recorder.observe(progressed(), [order], at(1))
    recorder.observe(completed("a", tokens=1), [ended("a")], at(2))
    recorder.observe(completed("a", tokens=1), [ended("a")], at(3))

    assert [row.attempt for row in rows_of(twin)] == [1]
    assert RequestId("a") not in recorder._open


def a_copy() -> RequestArrived:
    return RequestArrived(replace(arrived("a-mirror", "_mirror").ticket, mirror_route="stable"))


def test_row_of_a_copy_says_that_it_is_one() -> None:
    recorder, twin = a_recorder()
    recorder.observe(a_copy(), [replace(dispatch("a-mirror"), service_class=ClassName("mirror"))], at(0))
    bill = a_bill(1, BillCause.MIRROR)
    recorder.observe(completed("a-mirror"), [ended("a-mirror", Outcome.COMPLETED, bill)], at(1))

    [row] = rows_of(twin)
    assert (row.request, row.tenant, row.service_class) == ("a-mirror", "_mirror", "mirror")
    assert (row.cause, row.payer) == ("mirror", "platform")


def test_copy_that_was_not_sent_has_no_row() -> None:
    recorder, twin = a_recorder()
    recorder.observe(a_copy(), [ended("a-mirror", Outcome.SHED)], at(0))

    assert rows_of(twin) == []
    assert recorder.open_requests == 0
