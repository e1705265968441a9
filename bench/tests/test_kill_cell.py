"""Tests for kill-cell results."""

from collections.abc import Iterator

import pytest

from bench.kill_cell.__main__ import Run, figures_of, missed_thresholds, settings_of
from bench.kill_cell.figures import Kill, impacts_of, mixed_config_records, readmit_s, summary_of
from bench.kill_cell.record import Ending, Record

AT_S = 100.0


def call(
    sent_s: float, *, gateway: int = 0, ending: Ending = Ending.WHOLE, lasts_s: float = 0.2, outcome: str = ""
) -> Record:
    answered = ending is not Ending.UNANSWERED
    status = None if not answered else 200 if ending in (Ending.WHOLE, Ending.SEVERED) else 429
    return Record(
        number=0,
        gateway=gateway,
        streamed=True,
        tokens=5,
        sent_s=sent_s,
        first_s=sent_s + 0.05 if answered else None,
        end_s=sent_s + lasts_s,
        ending=ending,
        status=status,
        outcome=outcome,
    )


def steady(gateway: int, *, gap: tuple[float, float] | None = None) -> Iterator[Record]:
    """Yield one call every tenth of a second around the kill, except in the gap."""
    for number in range(300):
        at_s = AT_S - 10 + number / 10
        if gap is None or not gap[0] < at_s < gap[1]:
            yield call(at_s, gateway=gateway)


def a_kill(**how: object) -> Kill:
    return Kill(kind="scheduler", at_s=AT_S, settled_s=AT_S + 4, until_s=AT_S + 6, **how)  # type: ignore[arg-type]


def test_readmit_time_is_longest_gap_above_normal() -> None:
    records = [*steady(0, gap=(AT_S, AT_S + 0.55)), *steady(1, gap=(AT_S + 1.02, AT_S + 2.45)), *steady(2)]

    assert readmit_s(a_kill(), records) == pytest.approx(1.4, abs=0.01)


def test_readmit_time_extends_to_the_end_if_gateway_starts_nothing() -> None:
    records = [*steady(0, gap=(AT_S, AT_S + 100)), *steady(1)]

    assert readmit_s(a_kill(), records) > 5.8


def test_readmit_time_ignores_killed_and_stopped_gateways() -> None:
    records = [*steady(0, gap=(AT_S, AT_S + 5)), *steady(1)]

    assert readmit_s(a_kill(victims={0: (AT_S, AT_S + 5)}), records) < 0.05
    assert readmit_s(a_kill(away={0: (AT_S, AT_S + 5)}), records) < 0.05


def test_costs_count_killed_process_calls_separately() -> None:
    kill = a_kill(victims={0: (AT_S, AT_S + 4)})
    records = [
        call(AT_S - 1, gateway=0, ending=Ending.SEVERED, lasts_s=1.01),
        call(AT_S - 0.1, gateway=0, ending=Ending.UNANSWERED, lasts_s=0.12),
        call(AT_S + 4.5, gateway=0, ending=Ending.UNANSWERED),
        call(AT_S - 1, gateway=1, ending=Ending.SEVERED, lasts_s=2),
        call(AT_S + 1, gateway=1, ending=Ending.REJECTED, outcome="no_endpoints"),
        call(AT_S + 1, gateway=1, ending=Ending.REJECTED, outcome="queue_timeout"),
        call(AT_S + 1, gateway=1, ending=Ending.REDIRECTED, outcome="draining"),
        call(AT_S - 5, gateway=1, ending=Ending.SEVERED, lasts_s=2),
    ]

    [cost] = impacts_of([kill], records)

    assert (cost.calls, cost.of_victim, len(cost.lost), len(cost.severed)) == (7, 2, 3, 1)
    assert [each.outcome for each in cost.rejected] == ["no_endpoints", "queue_timeout"]
    assert [each.outcome for each in cost.rejected_unexpectedly] == ["no_endpoints"]
    assert summary_of([cost]).rejected == {"no_endpoints": 1, "queue_timeout": 1}


def test_call_is_attributed_to_last_kill_before_it_ended() -> None:
    second = Kill(kind="store", at_s=AT_S + 10, settled_s=AT_S + 12, until_s=AT_S + 14)
    records = [call(AT_S + 5, ending=Ending.SEVERED, lasts_s=6), call(AT_S + 1, ending=Ending.UNANSWERED)]

    assert [len(cost.lost) for cost in impacts_of([a_kill(), second], records)] == [1, 1]


def test_mixed_config_records_detects_response_from_two_configurations() -> None:
    right, wrong = call(1), call(2)
    right.service_class = right.engine = wrong.service_class = "amber"
    wrong.engine = "blue"

    assert mixed_config_records([right, wrong]) == [wrong]


def test_missed_thresholds_reports_each_missed_limit() -> None:
    good, bad = [*steady(0)], [*steady(0, gap=(AT_S, AT_S + 3)), call(AT_S + 1, ending=Ending.UNANSWERED)]
    _, figures = figures_of({"redis, x": Run(impacts_of([a_kill()], good), good)})
    assert missed_thresholds(figures) == []

    by_kind, figures = figures_of({"redis, x": Run(impacts_of([a_kill()], bad), bad)})
    assert list(by_kind) == ["scheduler (redis)"]
    assert [sentence.split(";")[0] for sentence in missed_thresholds(figures)] == [
        "missed: lost is 1",
        "missed: readmit_s_worst is 2.9 s",
    ]


def test_kinds_with_different_processes_get_separate_settings() -> None:
    settings = settings_of(("redis", "valkey"), ("scheduler", "store", "dedicated", "failover"))

    assert [(each.store, each.kinds) for each in settings] == [
        ("redis", ("scheduler", "store")),
        ("redis", ("dedicated",)),
        ("valkey", ("scheduler", "store")),
        ("valkey", ("dedicated",)),
        ("sentinels", ("failover",)),
    ]
