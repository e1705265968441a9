"""The metrics parser follows the Prometheus text format and bounds the work done per scrape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from headgate.engines.metrics_page import (
    LABELS_MAX,
    ROW_BYTES_MAX,
    SERIES_MAX,
    SLICE_BYTES,
    Metric,
    label_steps,
    label_values,
    metrics_steps,
    read_metrics,
    read_series,
    run_in_turns,
)
from testing.executed_lines import count_executed_lines


@pytest.mark.parametrize(
    ("page", "metric"),
    [
        (b"m 3\n", Metric(3.0, 1)),
        (b"m 3", Metric(3.0, 1)),
        (b"m\t3.5e1 1794708766000\n", Metric(35.0, 1)),
        (b'm{a="x"} 1\nm{a="y"} 2\n', Metric(3.0, 2)),
        (b'm{} 4 # {trace_id="}"} 0.67\n', Metric(4.0, 1)),
        (b'm{a="quote \\" brace } space",b="\\\\"} 5\n', Metric(5.0, 1)),
        (b"# HELP m 3\n# TYPE m gauge\n", None),
        (b"m_total 3\nmm 4\nn 5\n", None),
        (b"m NaN\nm +Inf\nm oops\nm\n", None),
        (b'm{a="never closed 3\nother 1\n', None),
        (b"", None),
        (b"\xff\xfe\n", None),
    ],
)
def test_parser_reads_valid_lines_and_skips_others(page: bytes, metric: Metric | None) -> None:
    assert read_metrics(page, ["m"]).get("m") == metric


def test_mean_is_computed_over_the_series() -> None:
    assert read_metrics(b'm{engine="0"} 0.2\nm{engine="1"} 0.6\n', ["m"])["m"].mean == pytest.approx(0.4)


@given(
    series=st.dictionaries(
        st.text(alphabet='ab"\\{} \n,=é', max_size=6), st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=5
    )
)
def test_parser_reads_prometheus_client_output(series: dict[str, float]) -> None:
    registry = CollectorRegistry()
    wanted = Gauge("a:wanted", "The one.", ["label"], registry=registry)
    other = Gauge("a:wanted_too", "Not this.", ["label"], registry=registry)
    for label, value in series.items():
        wanted.labels(label).set(value)
        other.labels(label).set(1.0)

    found = read_metrics(generate_latest(registry), ["a:wanted", "absent"])

    assert found.keys() == {"a:wanted"}
    assert found["a:wanted"].series == len(series)
    assert found["a:wanted"].total == pytest.approx(sum(series.values()), abs=1e-3)
    assert {labels["label"]: value for labels, value in read_series(generate_latest(registry), "a:wanted")} == series


def rows(count: int, name: str = "m") -> bytes:
    return b"".join(b'%b{engine="%d",model="a"} 1\n' % (name.encode(), number) for number in range(count))


async def test_long_page_is_parsed_in_slices_with_the_same_result() -> None:
    page = b"# HELP other\n" * 20_000 + rows(3000) + rows(7, "n") + b"other 5\n" * 9000 + b"m 4"
    turns = list(metrics_steps(page, ["m", "n"]))

    assert len(turns) == len(page) // SLICE_BYTES
    assert await run_in_turns(metrics_steps(page, ["m", "n", "absent"])) == read_metrics(page, ["m", "n"])
    assert read_metrics(page, ["m", "n"]) == {"m": Metric(3004.0, 3001), "n": Metric(7.0, 7)}
    assert await run_in_turns(label_steps(page, "m", "engine")) == label_values(page, "m", "engine")
    assert len(label_values(page, "m", "engine")) == 3000


async def test_rows_at_slice_boundaries_are_counted_exactly_once() -> None:
    for padding in range(40):
        page = b"#" * (SLICE_BYTES - padding) + b"\n" + rows(3)
        assert read_metrics(page, ["m"]) == {"m": Metric(3.0, 3)}


def test_single_slice_page_is_parsed_in_one_turn() -> None:
    assert list(metrics_steps(rows(1000), ["m"])) == []


def test_each_turn_parses_a_bounded_number_of_rows() -> None:
    steps = metrics_steps(b"m 1\n" * 100_000, ["m"])

    assert count_executed_lines(lambda: next(steps), "headgate.engines.metrics_page") < 15 * SLICE_BYTES // len("m 1\n")


def test_metric_with_too_many_series_is_omitted() -> None:
    assert read_metrics(rows(SERIES_MAX), ["m"]) == {"m": Metric(SERIES_MAX, SERIES_MAX)}
    assert read_metrics(rows(SERIES_MAX + 1) + rows(2, "n"), ["m", "n"]) == {"n": Metric(2.0, 2)}


def test_row_with_too_many_labels_is_skipped() -> None:
    def row(labels: int) -> bytes:
        return b"m{" + b",".join(b'l%d="="' % number for number in range(labels)) + b"} 1\n"

    assert read_metrics(row(LABELS_MAX // 2), ["m"]) == {"m": Metric(1.0, 1)}
    assert read_metrics(row(LABELS_MAX + 1) + b"m 2\n", ["m"]) == {"m": Metric(2.0, 1)}


def test_overlong_row_is_skipped_and_its_value_is_never_truncated() -> None:
    for length in range(ROW_BYTES_MAX - 20, ROW_BYTES_MAX + 20):
        row = b'm{a="%b"} 123456789' % (b"x" * (length - 16))
        found = read_metrics(row + b"\nm 2\n", ["m"])["m"]
        assert found in (Metric(123456791.0, 2), Metric(2.0, 1))
        assert (found.series == 1) == (length > ROW_BYTES_MAX)


def test_name_that_begins_another_name_selects_only_its_own_rows() -> None:
    page = b'm_total{a="1"} 2\nm{a="1"} 1\nmm 5\nm_total 3\n'

    assert read_metrics(page, ["m", "m_total"]) == {"m": Metric(1.0, 1), "m_total": Metric(5.0, 2)}
    assert read_metrics(page, ['m{a="1"}', "m_total", 'm_total{a="1"}']) == {
        'm{a="1"}': Metric(1.0, 1),
        "m_total": Metric(5.0, 2),
        'm_total{a="1"}': Metric(2.0, 1),
    }
