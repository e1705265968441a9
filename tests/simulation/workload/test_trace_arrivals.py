"""Tests for traffic from a recorded trace."""

from pathlib import Path
from typing import Any

import pytest

from headgate.model.units import MILLISECOND, SECOND, Duration
from headgate.simulation.options import TraceTraffic
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.traffic import arrivals, span_ns

CLASSES = (("interactive", 0.7), ("batch", 0.3))
TENANTS = (("acme", 3.0), ("zeta", 1.0))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Trace of 2,000 rows at ten per second, starting at 100 s."""
    rows = (f"{100 + number / 10},{number + 1},{number % 50 + 1}" for number in range(2_000))
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["at_s,prompt_tokens,output_tokens", *rows]))
    return path


def made(path: Path, seed: int = 1, **options: Any) -> list[Arrival]:
    traffic = TraceTraffic(path=path, **{"classes": CLASSES, "tenants": TENANTS, **options})
    return list(arrivals([traffic], seed=seed))


def sizes(requests: list[Arrival]) -> list[int]:
    return [each.prompt_tokens for each in requests]


def test_earliest_row_is_at_time_zero(trace: Path) -> None:
    requests = made(trace)

    assert len(requests) == 2_000
    assert requests[0].at == 0
    assert requests[-1].at == 199_900 * MILLISECOND
    assert sizes(requests) == list(range(1, 2_001))


def test_shift_is_applied_before_speed_up(trace: Path) -> None:
    requests = made(trace, shift_ns=8 * SECOND, speed_up=8.0)

    assert requests[0].at == SECOND
    assert requests[80].at == 2 * SECOND


def test_jitter_is_applied_before_speed_up_and_stays_below_its_width(trace: Path) -> None:
    plain, moved = made(trace, speed_up=2.0), made(trace, speed_up=2.0, jitter_ns=4 * SECOND)
    at = {each.prompt_tokens: each.at for each in plain}
    late = [each.at - at[each.prompt_tokens] for each in moved]

    assert 0 <= min(late) < 0.1 * SECOND
    assert 1.9 * SECOND < max(late) < 2 * SECOND
    assert [each.at for each in moved] == sorted(each.at for each in moved)


def test_window_covers_part_of_the_trace_and_starts_at_zero(trace: Path) -> None:
    start, length = 50 * SECOND, 25 * SECOND
    whole = [each for each in made(trace) if start <= each.at < start + length]
    part = made(trace, start_ns=start, duration_ns=length)

    assert len(part) == 250
    assert [each.at + start for each in part] == [each.at for each in whole]
    assert [(each.tenant, each.service_class) for each in part] == [(each.tenant, each.service_class) for each in whole]


def test_kept_requests_are_a_subset_of_the_trace(trace: Path) -> None:
    whole, part = made(trace), made(trace, keep=0.25)

    assert 430 < len(part) < 570
    assert set(part) < set(whole)


def test_labels_occur_in_proportion_to_their_weights(trace: Path) -> None:
    requests = made(trace)

    assert sum(each.service_class == "batch" for each in requests) / 2_000 == pytest.approx(0.3, abs=0.04)
    assert sum(each.tenant == "zeta" for each in requests) / 2_000 == pytest.approx(0.25, abs=0.04)
    assert sum(each.tenant == "zeta" and each.service_class == "batch" for each in requests) == pytest.approx(
        150, abs=40
    )


def test_class_mix_does_not_change_times_or_tenants(trace: Path) -> None:
    one, other = (made(trace, classes=classes, keep=0.5, jitter_ns=SECOND) for classes in (CLASSES, (("code", 1.0),)))

    assert [(each.at, each.tenant) for each in one] == [(each.at, each.tenant) for each in other]


def test_seed_changes_labels_but_not_times(trace: Path) -> None:
    one, other = made(trace, seed=1), made(trace, seed=2)

    assert [each.at for each in one] == [each.at for each in other]
    assert [each.tenant for each in one] != [each.tenant for each in other]
    assert one == made(trace, seed=1)


def test_class_and_tenant_come_from_the_trace_without_weights(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "at_s,prompt_tokens,output_tokens,class,tenant\n2,0,3,batch,acme\n1,2,0,code,zeta\n"
    )

    assert made(tmp_path / "t.csv", classes=None, tenants=None) == [
        Arrival(0, 2, 1, "code", "zeta"),
        Arrival(SECOND, 1, 3, "batch", "acme"),
    ]


def test_trace_without_tenants_requires_tenant_weights(trace: Path) -> None:
    with pytest.raises(WorkloadError, match=r"own\.csv has rows without a tenant; add tenants: NAME"):
        made(trace, tenants=None)


def test_trace_without_rows_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at_s,prompt_tokens,output_tokens\n")

    with pytest.raises(WorkloadError, match=r"t\.csv contains no requests"):
        made(tmp_path / "t.csv")


def test_shift_to_a_negative_time_is_rejected(trace: Path) -> None:
    with pytest.raises(WorkloadError, match="reduce the shift"):
        made(trace, shift_ns=Duration(-1))


def test_invalid_weights_are_rejected(trace: Path) -> None:
    for shares in ((), (("acme", 0.0),), (("acme", 2.0), ("zeta", -1.0))):
        with pytest.raises(WorkloadError, match="invalid weights"):
            made(trace, tenants=shares)


def test_span_is_the_time_of_the_last_row(trace: Path) -> None:
    def span(**options: Any) -> int:
        return span_ns([TraceTraffic(path=trace, classes=CLASSES, **options)])

    assert span() == 199_900 * MILLISECOND
    assert span(shift_ns=100 * MILLISECOND, speed_up=8.0) == 25 * SECOND
    assert span(start_ns=50 * SECOND, duration_ns=10 * SECOND) == 9_900 * MILLISECOND
    assert span(start_ns=500 * SECOND) == 0
