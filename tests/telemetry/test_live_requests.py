"""Slow and failed requests shown in the console, and their limits."""

from headgate.model.outcome import Outcome
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, ClassName, Duration
from headgate.ports.records import RequestRecord
from headgate.telemetry.live.live_requests import (
    CLASS_SAMPLES_MAX,
    KEPT_MAX,
    STAGES_CHECKED_MAX,
    WAITING_MAX,
    LiveRequests,
)
from testing.records import a_record, an_attempt

QUEUE_1_MS = {ClassName("interactive"): {Stage.QUEUE: Duration(1 * MILLISECOND)}}


def shown(requests: LiveRequests, *records: RequestRecord) -> list[str]:
    for record in records:
        requests.add(record)
    requests.classify_waiting()
    return [str(each["request_id"]) for each in requests.rows()]


def answered(name: str, ended_ms: float = 100) -> RequestRecord:
    return a_record(an_attempt(), request_id=name, ended_ms=ended_ms)


def test_failed_request_is_shown_with_its_stages() -> None:
    requests = LiveRequests({})
    requests.add(a_record(request_id="r1"))
    requests.classify_waiting()

    (one,) = requests.rows()
    assert one["request_id"] == "r1"
    assert (one["tenant"], one["class"], one["outcome"]) == ("acme", "interactive", "queue_full")
    assert one["at"] == "2026-01-01T00:00:00Z"
    assert one["total_ms"] == 100.0
    stages = one["stages"]
    assert isinstance(stages, list)
    assert sum(each["ms"] for each in stages) == 100.0


def test_request_over_a_stage_budget_is_shown_with_the_budget() -> None:
    requests = LiveRequests(QUEUE_1_MS)
    assert shown(requests, answered("r1")) == ["r1"]

    stages = {each["stage"]: each["budget_ms"] for each in requests.rows()[0]["stages"]}  # type: ignore[attr-defined]
    assert stages["queue"] == 1.0
    assert stages["decode"] is None


def test_no_request_is_slow_without_a_budget_or_enough_samples() -> None:
    assert shown(LiveRequests({}), *(answered(f"r{n}", 100 + n) for n in range(40))) == []


def test_slowest_recent_request_in_a_class_is_shown() -> None:
    requests = LiveRequests({})
    assert shown(requests, *(answered(f"r{n}", 100 + n / 10) for n in range(CLASS_SAMPLES_MAX))) == []

    assert shown(requests, answered("slow", 900), answered("usual", 105)) == ["slow"]


def test_removed_classes_make_room_for_new_ones() -> None:
    requests = LiveRequests({})
    for number in range(100):
        requests.add(a_record(an_attempt(), class_name=f"old{number}"))
    requests.classify_waiting()
    usual = [answered(f"r{n}", 100 + n / 10) for n in range(CLASS_SAMPLES_MAX)]
    assert shown(requests, *usual) == []

    assert shown(requests, answered("slow", 900), answered("usual", 105)) == ["slow"]


def test_flood_of_failures_does_not_hide_slow_requests() -> None:
    requests = LiveRequests(QUEUE_1_MS)
    found = shown(requests, answered("slow"), *(a_record(request_id=f"f{n}") for n in range(4 * KEPT_MAX)))

    assert "slow" in found
    assert len(found) == KEPT_MAX + 1


def test_queued_and_examined_records_are_bounded() -> None:
    requests = LiveRequests(QUEUE_1_MS)
    for number in range(2 * WAITING_MAX):
        requests.add(answered(f"r{number}"))
    assert len(requests._waiting) == WAITING_MAX
    requests.classify_waiting()

    newest_looked_at = 2 * WAITING_MAX - WAITING_MAX + STAGES_CHECKED_MAX - 1
    assert requests.rows()[0]["request_id"] == f"r{newest_looked_at - KEPT_MAX + 1}"


def test_request_rejected_without_a_class_is_not_shown() -> None:
    assert shown(LiveRequests({}), a_record(class_name=None, outcome=Outcome.UNAUTHORIZED)) == []
