"""Is a metrics page read as Prometheus would?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from headgate.engines.metrics_page import Metric, read_metrics, read_series


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
def test_a_line_is_understood_or_passed_over(page: bytes, metric: Metric | None) -> None:
    assert read_metrics(page, ["m"]).get("m") == metric


def test_a_mean_is_over_the_series() -> None:
    assert read_metrics(b'm{engine="0"} 0.2\nm{engine="1"} 0.6\n', ["m"])["m"].mean == pytest.approx(0.4)


@given(
    series=st.dictionaries(
        st.text(alphabet='ab"\\{} \n,=é', max_size=6), st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=5
    )
)
def test_what_prometheus_writes_is_read_back(series: dict[str, float]) -> None:
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
