"""Is it counted right how long stages took, which were too long, and which one made a request late?"""

import pytest

from headgate.model.outcome import Outcome
from headgate.model.stage import TO_FIRST_TOKEN, Stage
from headgate.model.units import MILLISECOND, Duration
from headgate.telemetry.stages.budget import ClassBudget, Goal, Piece, spending
from headgate.telemetry.stages.meters import StageMeters, stage_metrics
from headgate.telemetry.stages.times import stage_times
from testing.records import a_record, an_attempt

TIMES = [
    (Stage.INGRESS, None, 0, 1),
    (Stage.QUEUE, 1, 1, 6),
    (Stage.PREFILL, 1, 6, 8),
    (Stage.QUEUE, 2, 8, 10),
    (Stage.PREFILL, 2, 10, 13),
    (Stage.DECODE, 2, 13, 33),
    (Stage.SETTLE, None, 33, 34),
]


def spent(budget: ClassBudget, *, stream: bool = True, outcome: str = Outcome.COMPLETED) -> tuple[object, object]:
    found = spending(TIMES, budget, stream=stream, outcome=outcome)
    return found.over, found.late


def test_a_stage_that_was_gone_through_twice_is_looked_at_by_its_sum() -> None:
    assert spent(ClassBudget({Stage.QUEUE: Duration(7), Stage.PREFILL: Duration(4)})) == ((Stage.PREFILL,), {})
    assert spent(ClassBudget({Stage.QUEUE: Duration(6)})) == ((Stage.QUEUE,), {})


def test_a_late_first_token_is_put_down_to_what_took_the_most_before_it() -> None:
    assert spent(ClassBudget(ttft_ns=Duration(11))) == ((), {Goal.TTFT: Stage.QUEUE})
    assert spent(ClassBudget(ttft_ns=Duration(12))) == ((), {})
    assert spent(ClassBudget(ttft_ns=Duration(11)), stream=False) == ((), {})
    assert spent(ClassBudget(ttft_ns=Duration(11)), outcome=Outcome.CANCELLED) == ((), {Goal.TTFT: Stage.QUEUE})


def test_what_a_caller_took_to_send_its_body_makes_nothing_late() -> None:
    times = [
        (Stage.INGRESS, None, 0, 60),
        (Stage.QUEUE, 1, 60, 61),
        (Stage.PREFILL, 1, 61, 63),
        (Stage.DECODE, 1, 63, 64),
    ]
    budget = ClassBudget(ttft_ns=Duration(3), duration_ns=Duration(4))

    assert not spending(times, budget, stream=True, outcome=Outcome.COMPLETED).late


def test_an_answer_that_came_all_at_once_can_be_late_for_its_first_token() -> None:
    times = [(Stage.ROUTE, 1, 0, 1), (Stage.PREFILL, 1, 1, 9), (Stage.SETTLE, None, 9, 10)]
    late = spending(times, ClassBudget(ttft_ns=Duration(8)), stream=True, outcome=Outcome.COMPLETED).late

    assert late == {Goal.TTFT: Stage.PREFILL}


@pytest.mark.parametrize(
    ("outcome", "times", "stage"),
    [
        (Outcome.SHED, [(Stage.CLASSIFY, None, 0, 1), (Stage.ROUTE, None, 1, 2)], Stage.ROUTE),
        (Outcome.EXPIRED, [(Stage.QUEUE, None, 0, 9), (Stage.ROUTE, None, 9, 11)], Stage.QUEUE),
        (
            Outcome.ENGINE_FAILED,
            [(Stage.QUEUE, 1, 0, 9), (Stage.PREFILL, 1, 9, 11), (Stage.ROUTE, None, 11, 15)],
            Stage.PREFILL,
        ),
        (Outcome.CANCELLED, [(Stage.QUEUE, None, 0, 9)], None),
        (Outcome.DRAINING, [(Stage.INGRESS, None, 0, 9), (Stage.SETTLE, None, 9, 10)], None),
    ],
)
def test_a_stream_that_was_not_served_is_late_by_the_stage_in_which_it_ended(
    outcome: Outcome, times: list[Piece], stage: Stage | None
) -> None:
    late = spending(times, ClassBudget(ttft_ns=Duration(1_000)), stream=True, outcome=outcome).late

    assert late.get(Goal.TTFT) is stage


def test_a_late_end_is_put_down_to_what_took_the_most_of_all() -> None:
    assert spent(ClassBudget(duration_ns=Duration(32))) == ((), {Goal.DURATION: Stage.DECODE})
    assert spent(ClassBudget(duration_ns=Duration(33))) == ((), {})
    assert spent(ClassBudget(duration_ns=Duration(32)), outcome=Outcome.CANCELLED) == ((), {})


def test_what_never_began_is_not_late() -> None:
    budget = ClassBudget(ttft_ns=Duration(1), duration_ns=Duration(1))
    nothing = spending([], budget, stream=True, outcome=Outcome.COMPLETED)

    assert (nothing.lengths, nothing.over, nothing.late) == ({}, (), {})


def test_other_units_are_compared_as_what_they_are() -> None:
    budget = ClassBudget({Stage.QUEUE: Duration(6_999)}, duration_ns=Duration(34_000))

    assert spending(TIMES, budget, stream=True, outcome=Outcome.COMPLETED, unit=1_000).over == (Stage.QUEUE,)


def counted(meters: StageMeters) -> dict[str, float]:
    lines = [line for each in stage_metrics(meters) for line in each.text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def meters_with(**budget: object) -> StageMeters:
    meters = StageMeters()
    meters.change(["interactive"], {"interactive": ClassBudget(**budget)})
    return meters


def test_each_request_counts_once_for_each_of_its_stages() -> None:
    meters = meters_with(stages={Stage.PREFILL: Duration(14 * MILLISECOND), Stage.QUEUE: Duration(1 * MILLISECOND)})
    record = a_record(an_attempt())
    meters.add(record, stage_times(record))
    told = counted(meters)

    assert told['headgate_stage_seconds_count{class="interactive",stage="prefill"}'] == 1
    assert told['headgate_stage_seconds_sum{class="interactive",stage="prefill"}'] == 0.014
    assert told['headgate_stage_over_budget_total{class="interactive",stage="prefill"}'] == 0
    assert told['headgate_stage_over_budget_total{class="interactive",stage="queue"}'] == 1
    assert told['headgate_stage_budget_seconds{class="interactive",stage="queue"}'] == 0.001


def test_a_stage_has_few_buckets_since_every_class_has_every_stage() -> None:
    buckets = [name for name in counted(meters_with()) if name.startswith("headgate_stage_seconds_bucket")]

    assert len(buckets) <= 13 * len(Stage) * 3


def test_classes_are_a_closed_set() -> None:
    meters = meters_with()
    for name in ("gone", None, "interactive", "made-up"):
        record = a_record(an_attempt(), class_name=name)
        meters.add(record, stage_times(record))
    told = counted(meters)

    counts = {name: told[f'headgate_stage_seconds_count{{class="{name}",stage="decode"}}'] for name in meters.classes}
    assert counts == {"none": 1, "other": 2, "interactive": 1}


def test_late_requests_are_told_by_goal_where_the_class_has_one() -> None:
    meters = meters_with(ttft_ns=Duration(15 * MILLISECOND))
    record = a_record(an_attempt())
    meters.add(record, stage_times(record))
    late = {name: value for name, value in counted(meters).items() if name.startswith("headgate_late")}

    assert len(late) == len(TO_FIRST_TOKEN)
    assert [name for name, value in late.items() if value] == [
        'headgate_late_requests_total{class="interactive",goal="ttft",stage="prefill"}'
    ]


def test_a_reload_keeps_what_was_counted_of_classes_that_stay() -> None:
    meters = meters_with()
    record = a_record(an_attempt(), outcome=Outcome.COMPLETED)
    meters.add(record, stage_times(record))
    meters.change(["interactive", "batch"], {"batch": ClassBudget({Stage.QUEUE: Duration(1)})})

    assert counted(meters)['headgate_stage_seconds_count{class="interactive",stage="decode"}'] == 1
    meters.change(["batch"], {})
    assert set(meters.classes) == {"none", "other", "batch"}
