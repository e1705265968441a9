"""Stage durations, exceeded stage budgets and the stage that made a request late."""

import pytest

from headgate.model.outcome import Outcome
from headgate.model.stage import STAGES_TO_FIRST_TOKEN, Stage
from headgate.model.units import MILLISECOND, Duration
from headgate.telemetry.stages.stage_budget import ClassStageBudget, LatencyTarget, StageInterval, stage_breakdown
from headgate.telemetry.stages.stage_meters import StageMeters, stage_metrics
from headgate.telemetry.stages.stage_times import stage_times
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


def spent(budget: ClassStageBudget, *, stream: bool = True, outcome: str = Outcome.COMPLETED) -> tuple[object, object]:
    found = stage_breakdown(TIMES, budget, stream=stream, outcome=outcome)
    return found.over_budget, found.missed_targets


def test_budget_for_a_repeated_stage_applies_to_its_total_time() -> None:
    assert spent(ClassStageBudget({Stage.QUEUE: Duration(7), Stage.PREFILL: Duration(4)})) == ((Stage.PREFILL,), {})
    assert spent(ClassStageBudget({Stage.QUEUE: Duration(6)})) == ((Stage.QUEUE,), {})


def test_late_first_token_is_attributed_to_the_longest_stage_before_it() -> None:
    assert spent(ClassStageBudget(ttft_ns=Duration(11))) == ((), {LatencyTarget.TTFT: Stage.QUEUE})
    assert spent(ClassStageBudget(ttft_ns=Duration(12))) == ((), {})
    assert spent(ClassStageBudget(ttft_ns=Duration(11)), stream=False) == ((), {})
    assert spent(ClassStageBudget(ttft_ns=Duration(11)), outcome=Outcome.CANCELLED) == (
        (),
        {LatencyTarget.TTFT: Stage.QUEUE},
    )


def test_time_to_receive_the_body_does_not_make_a_request_late() -> None:
    times = [
        (Stage.INGRESS, None, 0, 60),
        (Stage.QUEUE, 1, 60, 61),
        (Stage.PREFILL, 1, 61, 63),
        (Stage.DECODE, 1, 63, 64),
    ]
    budget = ClassStageBudget(ttft_ns=Duration(3), duration_ns=Duration(4))

    assert not stage_breakdown(times, budget, stream=True, outcome=Outcome.COMPLETED).missed_targets


def test_stream_without_a_decode_stage_can_miss_its_first_token_target() -> None:
    times = [(Stage.ROUTE, 1, 0, 1), (Stage.PREFILL, 1, 1, 9), (Stage.SETTLE, None, 9, 10)]
    late = stage_breakdown(
        times, ClassStageBudget(ttft_ns=Duration(8)), stream=True, outcome=Outcome.COMPLETED
    ).missed_targets

    assert late == {LatencyTarget.TTFT: Stage.PREFILL}


@pytest.mark.parametrize(
    ("outcome", "times", "stage"),
    [
        (Outcome.SHED, [(Stage.CLASSIFY, None, 0, 1), (Stage.ROUTE, None, 1, 2)], Stage.ROUTE),
        (Outcome.QUEUE_TIMEOUT, [(Stage.QUEUE, None, 0, 9), (Stage.ROUTE, None, 9, 11)], Stage.QUEUE),
        (
            Outcome.ENGINE_ERROR,
            [(Stage.QUEUE, 1, 0, 9), (Stage.PREFILL, 1, 9, 11), (Stage.ROUTE, None, 11, 15)],
            Stage.PREFILL,
        ),
        (Outcome.CANCELLED, [(Stage.QUEUE, None, 0, 9)], None),
        (Outcome.DRAINING, [(Stage.INGRESS, None, 0, 9), (Stage.SETTLE, None, 9, 10)], None),
    ],
)
def test_late_unserved_stream_is_attributed_to_the_stage_it_failed_in(
    outcome: Outcome, times: list[StageInterval], stage: Stage | None
) -> None:
    late = stage_breakdown(
        times, ClassStageBudget(ttft_ns=Duration(1_000)), stream=True, outcome=outcome
    ).missed_targets

    assert late.get(LatencyTarget.TTFT) is stage


def test_late_completion_is_attributed_to_the_longest_stage() -> None:
    assert spent(ClassStageBudget(duration_ns=Duration(32))) == ((), {LatencyTarget.DURATION: Stage.DECODE})
    assert spent(ClassStageBudget(duration_ns=Duration(33))) == ((), {})
    assert spent(ClassStageBudget(duration_ns=Duration(32)), outcome=Outcome.CANCELLED) == ((), {})


def test_request_without_stages_is_not_late() -> None:
    budget = ClassStageBudget(ttft_ns=Duration(1), duration_ns=Duration(1))
    nothing = stage_breakdown([], budget, stream=True, outcome=Outcome.COMPLETED)

    assert (nothing.durations, nothing.over_budget, nothing.missed_targets) == ({}, (), {})


def test_budgets_are_converted_to_the_unit_used_by_stages() -> None:
    budget = ClassStageBudget({Stage.QUEUE: Duration(6_999)}, duration_ns=Duration(34_000))

    assert stage_breakdown(TIMES, budget, stream=True, outcome=Outcome.COMPLETED, unit=1_000).over_budget == (
        Stage.QUEUE,
    )


def counted(meters: StageMeters) -> dict[str, float]:
    lines = [line for each in stage_metrics(meters) for line in each.text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def meters_with(**budget: object) -> StageMeters:
    meters = StageMeters()
    meters.set_classes(["interactive"], {"interactive": ClassStageBudget(**budget)})
    return meters


def test_request_is_counted_once_in_each_of_its_stages() -> None:
    meters = meters_with(stages={Stage.PREFILL: Duration(14 * MILLISECOND), Stage.QUEUE: Duration(1 * MILLISECOND)})
    record = a_record(an_attempt())
    meters.add(record, stage_times(record))
    told = counted(meters)

    assert told['headgate_stage_duration_seconds_count{class="interactive",stage="prefill"}'] == 1
    assert told['headgate_stage_duration_seconds_sum{class="interactive",stage="prefill"}'] == 0.014
    assert told['headgate_stage_over_budget_total{class="interactive",stage="prefill"}'] == 0
    assert told['headgate_stage_over_budget_total{class="interactive",stage="queue"}'] == 1
    assert told['headgate_stage_budget_seconds{class="interactive",stage="queue"}'] == 0.001


def test_stage_histogram_has_only_a_few_buckets() -> None:
    buckets = [name for name in counted(meters_with()) if name.startswith("headgate_stage_duration_seconds_bucket")]

    assert len(buckets) <= 13 * len(Stage) * 3


def test_unknown_classes_are_counted_as_other() -> None:
    meters = meters_with()
    for name in ("gone", None, "interactive", "made-up"):
        record = a_record(an_attempt(), class_name=name)
        meters.add(record, stage_times(record))
    told = counted(meters)

    counts = {
        name: told[f'headgate_stage_duration_seconds_count{{class="{name}",stage="decode"}}'] for name in meters.classes
    }
    assert counts == {"none": 1, "other": 2, "interactive": 1}


def test_late_requests_are_counted_only_for_class_targets() -> None:
    meters = meters_with(ttft_ns=Duration(15 * MILLISECOND))
    record = a_record(an_attempt())
    meters.add(record, stage_times(record))
    late = {name: value for name, value in counted(meters).items() if name.startswith("headgate_requests_late")}

    assert len(late) == len(STAGES_TO_FIRST_TOKEN)
    assert [name for name, value in late.items() if value] == [
        'headgate_requests_late_total{class="interactive",target="ttft",stage="prefill"}'
    ]


def test_reload_keeps_counters_for_remaining_classes() -> None:
    meters = meters_with()
    record = a_record(an_attempt(), outcome=Outcome.COMPLETED)
    meters.add(record, stage_times(record))
    meters.set_classes(["interactive", "batch"], {"batch": ClassStageBudget({Stage.QUEUE: Duration(1)})})

    assert counted(meters)['headgate_stage_duration_seconds_count{class="interactive",stage="decode"}'] == 1
    meters.set_classes(["batch"], {})
    assert set(meters.classes) == {"none", "other", "batch"}
