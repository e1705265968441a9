"""Does a recorded trace become the requests that are meant?"""

from pathlib import Path
from typing import Any

import pytest

from headgate.model.units import MILLISECOND, SECOND, Duration
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.traffic import Problem, TraceTraffic, arrivals, span_ns

CLASSES = (("interactive", 0.7), ("batch", 0.3))
TENANTS = (("acme", 3.0), ("zeta", 1.0))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two thousand rows, ten a second, from the hundredth second on."""
    rows = (f"{100 + number / 10},{number + 1},{number % 50 + 1}" for number in range(2_000))
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["at_s,prompt_tokens,output_tokens", *rows]))
    return path


def made(path: Path, seed: int = 1, **options: Any) -> list[Arrival]:
    traffic = TraceTraffic(path=path, **{"classes": CLASSES, "tenants": TENANTS, **options})
    return list(arrivals([traffic], seed=seed))


def sizes(requests: list[Arrival]) -> list[int]:
    return [each.prompt_tokens for each in requests]


def test_time_0_is_the_earliest_row(trace: Path) -> None:
    requests = made(trace)

    assert len(requests) == 2_000
    assert requests[0].at == 0
    assert requests[-1].at == 199_900 * MILLISECOND
    assert sizes(requests) == list(range(1, 2_001))


def test_shift_comes_before_the_division(trace: Path) -> None:
    requests = made(trace, shift_ns=8 * SECOND, speed_up=8.0)

    assert requests[0].at == SECOND
    assert requests[80].at == 2 * SECOND


def test_jitter_comes_before_the_division_and_stays_below_its_width(trace: Path) -> None:
    plain, moved = made(trace, speed_up=2.0), made(trace, speed_up=2.0, jitter_ns=4 * SECOND)
    at = {each.prompt_tokens: each.at for each in plain}
    late = [each.at - at[each.prompt_tokens] for each in moved]

    assert 0 <= min(late) < 0.1 * SECOND
    assert 1.9 * SECOND < max(late) < 2 * SECOND
    assert [each.at for each in moved] == sorted(each.at for each in moved)


def test_a_window_is_a_part_of_the_whole_and_begins_at_0(trace: Path) -> None:
    start, length = 50 * SECOND, 25 * SECOND
    whole = [each for each in made(trace) if start <= each.at < start + length]
    part = made(trace, start_ns=start, length_ns=length)

    assert len(part) == 250
    assert [each.at + start for each in part] == [each.at for each in whole]
    assert [(each.tenant, each.service_class) for each in part] == [(each.tenant, each.service_class) for each in whole]


def test_a_kept_share_is_a_part_of_the_whole(trace: Path) -> None:
    whole, part = made(trace), made(trace, keep=0.25)

    assert 430 < len(part) < 570
    assert set(part) < set(whole)


def test_labels_come_as_often_as_their_shares(trace: Path) -> None:
    requests = made(trace)

    assert sum(each.service_class == "batch" for each in requests) / 2_000 == pytest.approx(0.3, abs=0.04)
    assert sum(each.tenant == "zeta" for each in requests) / 2_000 == pytest.approx(0.25, abs=0.04)
    assert sum(each.tenant == "zeta" and each.service_class == "batch" for each in requests) == pytest.approx(
        150, abs=40
    )


def test_another_mix_of_classes_moves_nothing_else(trace: Path) -> None:
    one, other = (made(trace, classes=classes, keep=0.5, jitter_ns=SECOND) for classes in (CLASSES, (("code", 1.0),)))

    assert [(each.at, each.tenant) for each in one] == [(each.at, each.tenant) for each in other]


def test_another_seed_draws_other_labels_at_the_same_times(trace: Path) -> None:
    one, other = made(trace, seed=1), made(trace, seed=2)

    assert [each.at for each in one] == [each.at for each in other]
    assert [each.tenant for each in one] != [each.tenant for each in other]
    assert one == made(trace, seed=1)


def test_where_no_shares_are_given_the_trace_names_class_and_tenant(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "at_s,prompt_tokens,output_tokens,class,tenant\n2,0,3,batch,acme\n1,2,0,code,zeta\n"
    )

    assert made(tmp_path / "t.csv", classes=None, tenants=None) == [
        Arrival(0, 2, 1, "code", "zeta"),
        Arrival(SECOND, 1, 3, "batch", "acme"),
    ]


def test_a_trace_that_names_no_tenant_needs_shares(trace: Path) -> None:
    with pytest.raises(Problem, match=r"own\.csv names no tenant for every row; add tenants: NAME"):
        made(trace, tenants=None)


def test_a_trace_without_rows_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at_s,prompt_tokens,output_tokens\n")

    with pytest.raises(Problem, match=r"t\.csv holds no requests"):
        made(tmp_path / "t.csv")


def test_a_shift_to_before_the_run_is_a_problem(trace: Path) -> None:
    with pytest.raises(Problem, match="shift by less"):
        made(trace, shift_ns=Duration(-1))


def test_shares_that_name_nobody_are_a_problem(trace: Path) -> None:
    for shares in ((), (("acme", 0.0),), (("acme", 2.0), ("zeta", -1.0))):
        with pytest.raises(Problem, match="name nobody"):
            made(trace, tenants=shares)


def test_the_span_goes_from_time_0_to_the_last_row(trace: Path) -> None:
    def span(**options: Any) -> int:
        return span_ns([TraceTraffic(path=trace, classes=CLASSES, **options)])

    assert span() == 199_900 * MILLISECOND
    assert span(shift_ns=100 * MILLISECOND, speed_up=8.0) == 25 * SECOND
    assert span(start_ns=50 * SECOND, length_ns=10 * SECOND) == 9_900 * MILLISECOND
    assert span(start_ns=500 * SECOND) == 0
