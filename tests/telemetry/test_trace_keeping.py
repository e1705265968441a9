"""Tail sampling: which requests are kept as traces."""

from collections.abc import Callable

import pytest

from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, ClassName
from headgate.ports.records import RequestRecord
from headgate.telemetry.traces.stats import KeepReason
from headgate.telemetry.traces.tail_sampling import CLASSES_MAX, SAMPLES_MAX, SAMPLES_MIN, SLOW_BURST_MAX, TailSampler
from testing.records import BEGAN, a_record, an_attempt


def a_keeping(*, slowest_ppm: int = 10_000, per_second_max: int = 100) -> TailSampler:
    return TailSampler(slowest_ppm=slowest_ppm, per_second_max=per_second_max)


def ended(outcome: Outcome | None = Outcome.COMPLETED, *, took_ms: float = 100, name: str = "batch") -> RequestRecord:
    record = a_record(an_attempt(), outcome=outcome, class_name=ClassName(name), trace_id=b"\x01" * 16, span_seed=1)
    record.ended_at = BEGAN + round(took_ms * MILLISECOND)
    return record


@pytest.mark.parametrize("outcome", [None, *Outcome])
def test_only_rejected_and_failed_requests_are_kept_without_sampling(outcome: Outcome | None) -> None:
    failed = outcome in (None, Outcome.ENGINE_ERROR, Outcome.ENGINE_TIMEOUT, Outcome.INTERNAL_ERROR)
    ordinary = outcome in (Outcome.COMPLETED, Outcome.CANCELLED)

    assert a_keeping().keep_reason(ended(outcome)) is (
        KeepReason.FAILED if failed else None if ordinary else KeepReason.REJECTED
    )


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.CANCELLED])
def test_sampled_request_is_kept(outcome: Outcome) -> None:
    record = ended(outcome)
    record.trace_sampled = True

    assert a_keeping().keep_reason(record) is KeepReason.SAMPLED


@pytest.mark.parametrize("trace_id", [b"", b"\x01" * 16])
def test_request_that_started_before_tracing_is_not_kept(trace_id: bytes) -> None:
    record = ended(Outcome.ENGINE_ERROR)
    record.trace_id, record.span_seed = trace_id, 0

    assert a_keeping().keep_reason(record) is None


def test_slowest_requests_in_a_class_are_kept() -> None:
    keeping = a_keeping()
    found = [keeping.keep_reason(ended(took_ms=100 + number % 100)) for number in range(SAMPLES_MAX * 4)]

    slow = [number for number, why in enumerate(found) if why is KeepReason.SLOW]
    assert slow[0] > SAMPLES_MIN, "a request counted as slow before enough requests were seen"
    assert all(number % 100 == 99 for number in slow)
    assert 0.5 < len(slow) / (len(found) / 100) <= 1


def test_no_request_is_slow_if_all_take_equally_long() -> None:
    keeping = a_keeping()

    assert not any(keeping.keep_reason(ended()) for _ in range(3 * SAMPLES_MIN))


def test_slowness_is_relative_to_the_class() -> None:
    keeping = a_keeping()
    for _ in range(2 * SAMPLES_MIN):
        keeping.keep_reason(ended(took_ms=10, name="interactive"))
        keeping.keep_reason(ended(took_ms=1_000, name="batch"))

    assert keeping.keep_reason(ended(took_ms=500, name="interactive")) is KeepReason.SLOW
    assert keeping.keep_reason(ended(took_ms=500, name="batch")) is None


def test_slow_threshold_adapts_when_all_requests_become_slower() -> None:
    keeping = a_keeping()
    for _ in range(2 * SAMPLES_MIN):
        keeping.keep_reason(ended(took_ms=10))
    found = [keeping.keep_reason(ended(took_ms=100)) for _ in range(SAMPLES_MAX)]

    assert found[0] is KeepReason.SLOW
    assert found[-1] is None


@pytest.mark.parametrize(
    "length_ms",
    [
        pytest.param(lambda number: 1_000 + number, id="growing queue"),
        pytest.param(lambda number: 1_000 + min(number % 4_000, 4_000 - number % 4_000), id="fluctuating load"),
    ],
)
def test_fraction_of_slow_traces_is_bounded_under_changing_load(
    length_ms: Callable[[int], int],
) -> None:
    keeping = a_keeping(slowest_ppm=10_000)
    found = [keeping.keep_reason(ended(took_ms=length_ms(number))) for number in range(8_000)]

    assert 40 < found.count(KeepReason.SLOW) <= 80


def test_burst_of_slow_requests_is_kept_up_to_the_credit() -> None:
    keeping = a_keeping(slowest_ppm=10_000)
    for _ in range(2_000):
        keeping.keep_reason(ended(took_ms=10))

    assert [keeping.keep_reason(ended(took_ms=500)) for _ in range(20)].count(KeepReason.SLOW) == SLOW_BURST_MAX


def test_least_recently_used_class_makes_room_for_a_new_one() -> None:
    keeping = a_keeping()
    for number in range(CLASSES_MAX):
        keeping.keep_reason(ended(name=f"class {number}"))
    keeping.keep_reason(ended(name="class 0"))
    for _ in range(2 * SAMPLES_MIN):
        keeping.keep_reason(ended(took_ms=10, name="a new one"))

    assert keeping.keep_reason(ended(took_ms=500, name="a new one")) is KeepReason.SLOW
    assert len(keeping._latencies) == CLASSES_MAX
    assert "class 0" in keeping._latencies
    assert "class 1" not in keeping._latencies


def test_no_request_is_slow_if_slow_traces_are_disabled() -> None:
    keeping = a_keeping(slowest_ppm=0)
    for _ in range(2 * SAMPLES_MIN):
        keeping.keep_reason(ended(took_ms=10))

    assert keeping.keep_reason(ended(took_ms=500)) is None


def test_number_of_traces_per_second_is_limited() -> None:
    keeping = a_keeping(per_second_max=100)

    assert sum(keeping.try_acquire(KeepReason.FAILED, 5 * SECOND) for _ in range(1_000)) == 100
    assert sum(keeping.try_acquire(KeepReason.FAILED, 5 * SECOND + SECOND // 2) for _ in range(1_000)) == 50
    assert sum(keeping.try_acquire(KeepReason.FAILED, 60 * SECOND) for _ in range(1_000)) == 100
    assert not keeping.try_acquire(KeepReason.FAILED, 59 * SECOND), (
        "a record with an earlier time must not refill the limit"
    )


def test_half_of_the_limit_is_reserved_for_failed_and_slow_requests() -> None:
    keeping = a_keeping(per_second_max=100)

    assert sum(keeping.try_acquire(KeepReason.SAMPLED, SECOND) for _ in range(1_000)) == 50
    assert not any(keeping.try_acquire(KeepReason.REJECTED, SECOND) for _ in range(1_000))
    assert sum(keeping.try_acquire(KeepReason.FAILED, SECOND) for _ in range(1_000)) == 50


def test_rejections_use_at_most_a_quarter_of_the_limit() -> None:
    keeping = a_keeping(per_second_max=100)

    assert sum(keeping.try_acquire(KeepReason.REJECTED, SECOND) for _ in range(1_000)) == 25
    assert sum(keeping.try_acquire(KeepReason.SAMPLED, SECOND) for _ in range(1_000)) == 25
    assert sum(keeping.try_acquire(KeepReason.SLOW, SECOND) for _ in range(1_000)) == 50
