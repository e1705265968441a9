"""Tests for load test schedules: arrivals depend only on the seed or the trace."""

import pytest

from headgate.loadtest.problem import WorkloadError
from headgate.loadtest.schedule import Schedule, from_trace, poisson
from headgate.loadtest.senders import SenderTable, TokenRange
from headgate.simulation.workload.trace_row import TraceRow
from tests.loadtest.builders import a_sender


def columns(schedule: Schedule) -> list[list[int]]:
    return [list(each) for each in (schedule.at_ns, schedule.prompt_tokens, schedule.output_tokens, schedule.sender)]


def a_mix() -> SenderTable:
    wide = {"prompt": TokenRange(10, 1000), "output": TokenRange(5, 50)}
    return SenderTable([a_sender(tenant="a", share=3.0, **wide), a_sender(tenant="b", share=1.0, **wide)])


def test_same_seed_produces_the_same_arrivals() -> None:
    first, again = (poisson(a_mix(), rate=50, duration_s=10, seed=7) for _ in range(2))

    assert columns(first) == columns(again)


def test_different_seed_produces_different_arrivals() -> None:
    first, other = (poisson(a_mix(), rate=50, duration_s=10, seed=seed) for seed in (7, 8))

    assert list(first.at_ns) != list(other.at_ns)


def test_mix_does_not_change_arrival_times() -> None:
    alone = poisson(SenderTable([a_sender()]), rate=50, duration_s=10, seed=7)

    assert alone.at_ns == poisson(a_mix(), rate=50, duration_s=10, seed=7).at_ns


def test_arrivals_match_the_rate_and_variance_of_a_poisson_process() -> None:
    schedule = poisson(a_mix(), rate=100, duration_s=100, seed=1)
    gaps = [(later - earlier) / 1e9 for earlier, later in zip(schedule.at_ns, schedule.at_ns[1:], strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5

    # With 10,000 arrivals, both values are within 5% for all but one seed in a million. This seed is fixed.
    assert 9_500 < len(schedule) < 10_500
    assert 0.95 < deviation / mean < 1.05
    assert list(schedule.at_ns) == sorted(schedule.at_ns)
    assert schedule.at_ns[-1] < 100e9


def test_senders_get_their_shares_and_sizes() -> None:
    schedule = poisson(a_mix(), rate=100, duration_s=100, seed=1)

    assert 0.72 < list(schedule.sender).count(0) / len(schedule) < 0.78
    assert (min(schedule.prompt_tokens), max(schedule.prompt_tokens)) == (10, 1000)
    assert (min(schedule.output_tokens), max(schedule.output_tokens)) == (5, 50)


def test_limit_shortens_the_schedule() -> None:
    schedule = poisson(a_mix(), rate=100, duration_s=100, seed=1, limit=50)

    assert len(schedule) == 50
    assert schedule.at_ns[-1] < schedule.length_ns < 2e9


def test_trace_times_are_relative_to_the_first_row() -> None:
    rows = [TraceRow(7_000_000_000, 30, 3), TraceRow(5_000_000_000, 10, 1), TraceRow(6_000_000_000, 20, 2)]

    schedule = from_trace(rows, SenderTable([a_sender()]), seed=0)

    assert columns(schedule) == [[0, 1_000_000_000, 2_000_000_000], [10, 20, 30], [1, 2, 3], [0, 0, 0]]
    assert schedule.length_ns == 2_000_000_000


def test_trace_can_be_sped_up_and_shortened() -> None:
    rows = [TraceRow(second * 1_000_000_000, 10, 1) for second in range(10)]
    roster = SenderTable([a_sender()])

    assert list(from_trace(rows, roster, seed=0, speed_up=10, limit=3).at_ns) == [0, 100_000_000, 200_000_000]
    assert len(from_trace(rows, roster, seed=0, duration_s=5)) == 5


def test_jitter_spreads_times_on_a_coarse_grid() -> None:
    rows = [TraceRow(at * 3_000_000_000, 1, 1) for at in range(100) for _ in range(10)]

    schedule = from_trace(rows, SenderTable([a_sender()]), seed=0, jitter_s=3.0)

    assert len(set(schedule.at_ns)) == 1000
    assert list(schedule.at_ns) == sorted(schedule.at_ns)
    assert 296e9 < schedule.at_ns[-1] < 300e9


def test_rows_without_tokens_request_one_token() -> None:
    schedule = from_trace([TraceRow(0, 0, 0)], SenderTable([a_sender()]), seed=0)

    assert (schedule.prompt_tokens[0], schedule.output_tokens[0]) == (1, 1)


def test_rows_without_a_tenant_are_distributed_by_share() -> None:
    schedule = from_trace([TraceRow(number, 1, 1) for number in range(1000)], a_mix(), seed=0)

    assert 700 < list(schedule.sender).count(0) < 800


def test_rows_with_a_tenant_use_its_key() -> None:
    roster = SenderTable([a_sender(tenant="a", key="key-a"), a_sender(tenant="b", key="key-b")])

    schedule = from_trace([TraceRow(0, 1, 1, "batch", "b"), TraceRow(1, 1, 1, tenant="a")], roster, seed=0)

    assert [
        (sender.service_class, sender.tenant, sender.key) for sender in (roster.senders[at] for at in schedule.sender)
    ] == [
        ("batch", "b", "key-b"),
        (None, "a", "key-a"),
    ]


def test_schedule_rejects_more_than_arrivals_max_requests() -> None:
    schedule = Schedule(arrivals_max=1)
    schedule.add(0, prompt_tokens=1, output_tokens=1, sender=0)

    with pytest.raises(WorkloadError, match="more than 1 requests; use --limit"):
        schedule.add(1, prompt_tokens=1, output_tokens=1, sender=0)


def test_tenants_beyond_named_max_are_grouped_as_other() -> None:
    roster = SenderTable([a_sender()], named_max=3)

    schedule = from_trace([TraceRow(number, 1, 1, tenant=f"t{number}") for number in range(9)], roster, seed=0)

    assert [roster.senders[at].tenant for at in schedule.sender] == ["t0", "t1", "t2", *["other"] * 6]


def test_trace_rows_have_senders_by_model_and_streaming() -> None:
    roster = SenderTable([a_sender(tenant="a", key="k"), a_sender(tenant="b")])
    rows = [
        TraceRow(0, 1, 1, tenant="a", model="m", stream=False),
        TraceRow(1, 1, 1, tenant="a", model="m", stream=False, prefix=(1, 2)),
        TraceRow(2, 1, 1, tenant="a", model="n", stream=True),
        TraceRow(3, 1, 1, model="n"),
    ]
    schedule = from_trace(rows, roster, seed=0)
    senders = [roster.senders[number] for number in schedule.sender]

    assert [(each.tenant, each.key, each.model, each.stream) for each in senders[:3]] == [
        ("a", "k", "m", False),
        ("a", "k", "m", False),
        ("a", "k", "n", True),
    ]
    assert schedule.sender[0] == schedule.sender[1]
    assert (senders[3].tenant in ("a", "b"), senders[3].model) == (True, "n")
    assert schedule.prefixes == {1: (1, 2)}


def test_too_many_kinds_of_trace_rows_share_one_sender() -> None:
    roster = SenderTable([a_sender()], named_max=2)
    schedule = from_trace([TraceRow(n, 1, 1, tenant="a", model=f"m{n}") for n in range(9)], roster, seed=0)

    assert len(set(schedule.sender)) == 3
    assert roster.senders[schedule.sender[8]].tenant == "other"
