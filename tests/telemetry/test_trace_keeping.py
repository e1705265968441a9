"""Which requests become traces?"""

from collections.abc import Callable

import pytest

from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, ClassName
from headgate.ports.records import RequestRecord
from headgate.telemetry.traces.figures import Kept
from headgate.telemetry.traces.keeping import CLASSES_MAX, LATEST_MAX, SEEN_MIN, SLOW_AT_ONCE_MAX, Keeping
from testing.records import BEGAN, a_record, an_attempt


def a_keeping(*, slowest_ppm: int = 10_000, per_second_max: int = 100) -> Keeping:
    return Keeping(slowest_ppm=slowest_ppm, per_second_max=per_second_max)


def ended(outcome: Outcome | None = Outcome.COMPLETED, *, took_ms: float = 100, name: str = "batch") -> RequestRecord:
    record = a_record(an_attempt(), outcome=outcome, class_name=ClassName(name), trace_id=b"\x01" * 16, span=1)
    record.ended_at = BEGAN + round(took_ms * MILLISECOND)
    return record


@pytest.mark.parametrize("outcome", [None, *Outcome])
def test_all_that_did_not_end_well_is_kept_and_nothing_else_at_a_rate_of_zero(outcome: Outcome | None) -> None:
    failed = outcome in (None, Outcome.ENGINE_FAILED, Outcome.ENGINE_SILENT, Outcome.GATEWAY_FAILED)
    ordinary = outcome in (Outcome.COMPLETED, Outcome.CANCELLED)

    assert a_keeping().why(ended(outcome)) is (Kept.FAILED if failed else None if ordinary else Kept.REFUSED)


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.CANCELLED])
def test_the_rest_is_kept_by_rate(outcome: Outcome) -> None:
    record = ended(outcome)
    record.trace_sampled = True

    assert a_keeping().why(record) is Kept.SAMPLED


@pytest.mark.parametrize("trace_id", [b"", b"\x01" * 16])
def test_what_began_before_traces_were_sent_has_none_though_its_caller_has(trace_id: bytes) -> None:
    record = ended(Outcome.ENGINE_FAILED)
    record.trace_id, record.span = trace_id, 0

    assert a_keeping().why(record) is None


def test_the_slowest_of_a_class_are_kept() -> None:
    keeping = a_keeping()
    found = [keeping.why(ended(took_ms=100 + number % 100)) for number in range(LATEST_MAX * 4)]

    slow = [number for number, why in enumerate(found) if why is Kept.SLOW]
    assert slow[0] > SEEN_MIN, "before there are some nobody knows what is slow"
    assert all(number % 100 == 99 for number in slow)
    assert 0.5 < len(slow) / (len(found) / 100) <= 1


def test_of_what_is_all_alike_nothing_is_slow() -> None:
    keeping = a_keeping()

    assert not any(keeping.why(ended()) for _ in range(3 * SEEN_MIN))


def test_what_is_slow_in_one_class_may_be_usual_in_another() -> None:
    keeping = a_keeping()
    for _ in range(2 * SEEN_MIN):
        keeping.why(ended(took_ms=10, name="interactive"))
        keeping.why(ended(took_ms=1_000, name="batch"))

    assert keeping.why(ended(took_ms=500, name="interactive")) is Kept.SLOW
    assert keeping.why(ended(took_ms=500, name="batch")) is None


def test_when_all_have_become_slower_it_is_usual() -> None:
    keeping = a_keeping()
    for _ in range(2 * SEEN_MIN):
        keeping.why(ended(took_ms=10))
    found = [keeping.why(ended(took_ms=100)) for _ in range(LATEST_MAX)]

    assert found[0] is Kept.SLOW
    assert found[-1] is None


@pytest.mark.parametrize(
    "length_ms",
    [
        pytest.param(lambda number: 1_000 + number, id="a queue that grows"),
        pytest.param(lambda number: 1_000 + min(number % 4_000, 4_000 - number % 4_000), id="load comes and goes"),
    ],
)
def test_when_all_become_slower_and_slower_still_no_more_are_kept_than_asked_for(
    length_ms: Callable[[int], int],
) -> None:
    keeping = a_keeping(slowest_ppm=10_000)
    found = [keeping.why(ended(took_ms=length_ms(number))) for number in range(8_000)]

    assert 40 < found.count(Kept.SLOW) <= 80


def test_after_a_quiet_time_a_few_slow_ones_are_kept_at_once() -> None:
    keeping = a_keeping(slowest_ppm=10_000)
    for _ in range(2_000):
        keeping.why(ended(took_ms=10))

    assert [keeping.why(ended(took_ms=500)) for _ in range(20)].count(Kept.SLOW) == SLOW_AT_ONCE_MAX


def test_a_class_that_is_gone_makes_room_for_a_new_one() -> None:
    keeping = a_keeping()
    for number in range(CLASSES_MAX):
        keeping.why(ended(name=f"class {number}"))
    keeping.why(ended(name="class 0"))
    for _ in range(2 * SEEN_MIN):
        keeping.why(ended(took_ms=10, name="a new one"))

    assert keeping.why(ended(took_ms=500, name="a new one")) is Kept.SLOW
    assert len(keeping._latest) == CLASSES_MAX
    assert "class 0" in keeping._latest
    assert "class 1" not in keeping._latest


def test_nothing_is_slow_where_nobody_asks_for_it() -> None:
    keeping = a_keeping(slowest_ppm=0)
    for _ in range(2 * SEEN_MIN):
        keeping.why(ended(took_ms=10))

    assert keeping.why(ended(took_ms=500)) is None


def test_only_so_many_a_second_are_kept() -> None:
    keeping = a_keeping(per_second_max=100)

    assert sum(keeping.allows(Kept.FAILED, 5 * SECOND) for _ in range(1_000)) == 100
    assert sum(keeping.allows(Kept.FAILED, 5 * SECOND + SECOND // 2) for _ in range(1_000)) == 50
    assert sum(keeping.allows(Kept.FAILED, 60 * SECOND) for _ in range(1_000)) == 100
    assert not keeping.allows(Kept.FAILED, 59 * SECOND), "records may come out of order"


def test_whatever_callers_do_half_of_that_is_left_to_what_failed_or_was_slow() -> None:
    keeping = a_keeping(per_second_max=100)

    assert sum(keeping.allows(Kept.SAMPLED, SECOND) for _ in range(1_000)) == 50
    assert not any(keeping.allows(Kept.REFUSED, SECOND) for _ in range(1_000))
    assert sum(keeping.allows(Kept.FAILED, SECOND) for _ in range(1_000)) == 50


def test_a_flood_of_refusals_leaves_some_to_what_is_sampled() -> None:
    keeping = a_keeping(per_second_max=100)

    assert sum(keeping.allows(Kept.REFUSED, SECOND) for _ in range(1_000)) == 25
    assert sum(keeping.allows(Kept.SAMPLED, SECOND) for _ in range(1_000)) == 25
    assert sum(keeping.allows(Kept.SLOW, SECOND) for _ in range(1_000)) == 50
