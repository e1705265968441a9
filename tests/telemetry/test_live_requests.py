"""Are the requests shown that somebody would want to look at, and only so many?"""

from headgate.model.outcome import Outcome
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, ClassName, Duration
from headgate.ports.records import RequestRecord
from headgate.telemetry.live.requests import KEPT_MAX, LAST_OF_CLASS, STAGES_LOOKED_AT_MAX, WAITING_MAX, LiveRequests
from testing.records import a_record, an_attempt

QUEUE_1_MS = {ClassName("interactive"): {Stage.QUEUE: Duration(1 * MILLISECOND)}}


def shown(requests: LiveRequests, *records: RequestRecord) -> list[str]:
    for record in records:
        requests.take(record)
    requests.look()
    return [str(each["request_id"]) for each in requests.shown()]


def answered(name: str, ended_ms: float = 100) -> RequestRecord:
    return a_record(an_attempt(), request_id=name, ended_ms=ended_ms)


def test_what_failed_is_shown_with_its_stages() -> None:
    requests = LiveRequests({})
    requests.take(a_record(request_id="r1"))
    requests.look()

    (one,) = requests.shown()
    assert one["request_id"] == "r1"
    assert (one["tenant"], one["class"], one["outcome"]) == ("acme", "interactive", "queue_full")
    assert one["at"] == "2026-01-01T00:00:00Z"
    assert one["total_ms"] == 100.0
    stages = one["stages"]
    assert isinstance(stages, list)
    assert sum(each["ms"] for each in stages) == 100.0


def test_what_is_over_the_budget_of_a_stage_is_shown_with_it() -> None:
    requests = LiveRequests(QUEUE_1_MS)
    assert shown(requests, answered("r1")) == ["r1"]

    stages = {each["stage"]: each["budget_ms"] for each in requests.shown()[0]["stages"]}  # type: ignore[attr-defined]
    assert stages["queue"] == 1.0
    assert stages["decode"] is None


def test_without_a_budget_nothing_is_slow_before_the_usual_is_known() -> None:
    assert shown(LiveRequests({}), *(answered(f"r{n}", 100 + n) for n in range(40))) == []


def test_the_slowest_of_late_of_a_class_is_shown() -> None:
    requests = LiveRequests({})
    assert shown(requests, *(answered(f"r{n}", 100 + n / 10) for n in range(LAST_OF_CLASS))) == []

    assert shown(requests, answered("slow", 900), answered("usual", 105)) == ["slow"]


def test_classes_that_are_gone_leave_their_place_to_new_ones() -> None:
    requests = LiveRequests({})
    for number in range(100):
        requests.take(a_record(an_attempt(), class_name=f"old{number}"))
    requests.look()
    usual = [answered(f"r{n}", 100 + n / 10) for n in range(LAST_OF_CLASS)]
    assert shown(requests, *usual) == []

    assert shown(requests, answered("slow", 900), answered("usual", 105)) == ["slow"]


def test_a_flood_of_failures_does_not_hide_what_was_slow() -> None:
    requests = LiveRequests(QUEUE_1_MS)
    found = shown(requests, answered("slow"), *(a_record(request_id=f"f{n}") for n in range(4 * KEPT_MAX)))

    assert "slow" in found
    assert len(found) == KEPT_MAX + 1


def test_no_more_wait_or_are_looked_into_than_may() -> None:
    requests = LiveRequests(QUEUE_1_MS)
    for number in range(2 * WAITING_MAX):
        requests.take(answered(f"r{number}"))
    assert len(requests._waiting) == WAITING_MAX
    requests.look()

    newest_looked_at = 2 * WAITING_MAX - WAITING_MAX + STAGES_LOOKED_AT_MAX - 1
    assert requests.shown()[0]["request_id"] == f"r{newest_looked_at - KEPT_MAX + 1}"


def test_what_was_turned_away_without_a_class_is_not_shown() -> None:
    assert shown(LiveRequests({}), a_record(class_name=None, outcome=Outcome.UNAUTHORIZED)) == []
