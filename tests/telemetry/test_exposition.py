"""The metrics page equals the output of the official Prometheus client."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from headgate.model.units import MILLISECOND
from headgate.telemetry.catalogue import BY_NAME
from headgate.telemetry.exposition import MetricFamily, exposition_text, family, unlabelled
from headgate.telemetry.histogram import LATENCY_BUCKETS, Histogram


class Once(Collector):
    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def collect(self) -> list[Metric]:
        return [self.metric]


def theirs(metric: Metric) -> list[tuple[object, ...]]:
    registry = CollectorRegistry()
    registry.register(Once(metric))
    return read(generate_latest(registry))


def read(text: bytes) -> list[tuple[object, ...]]:
    return [
        (family.name, family.type, family.documentation, sample.name, sample.labels, float(sample.value))
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    ]


def ours(made: MetricFamily) -> list[tuple[object, ...]]:
    return read(exposition_text([made]))


@given(st.text(), st.text(), st.floats(allow_nan=False))
def test_gauge_matches_the_official_client_for_any_label_and_value(first: str, second: str, value: float) -> None:
    name = "headgate_hold_depth"
    same = GaugeMetricFamily(name, BY_NAME[name].help, labels=["class", "pool"])
    same.add_metric([first, second], value)
    made = family(name)
    made.add((first, second), value)

    assert ours(made) == theirs(same)


def test_counter_matches_the_official_client() -> None:
    same = CounterMetricFamily("headgate_retries", BY_NAME["headgate_retries_total"].help, labels=["pool"])
    same.add_metric(["p"], 3)
    made = family("headgate_retries_total")
    made.add(("p",), 3)

    assert ours(made) == theirs(same)


@given(st.lists(st.integers(0, 10**12), max_size=20), st.none() | st.text())
def test_histogram_matches_the_official_client(values: list[int], label: str | None) -> None:
    name = "headgate_queue_wait_seconds" if label is not None else "headgate_event_loop_lag_seconds"
    labels = [] if label is None else [label]
    histogram = Histogram(LATENCY_BUCKETS)
    for value in values:
        histogram.add(value)
    same = HistogramMetricFamily(name, BY_NAME[name].help, labels=[] if label is None else ["class"])
    totals = [sum(histogram.counts[: place + 1]) for place in range(len(histogram.counts))]
    same.add_metric(labels, list(zip(histogram.bucket_labels, totals, strict=True)), histogram.total / histogram.unit)
    made = family(name)
    made.add_histogram(labels, histogram)

    assert sorted(map(repr, ours(made))) == sorted(map(repr, theirs(same)))


def test_histogram_can_be_rendered_again_with_different_labels() -> None:
    histogram, made = Histogram(LATENCY_BUCKETS), family("headgate_queue_wait_seconds")
    made.add_histogram(("100 %",), histogram)
    made.add_histogram(("chat",), histogram)

    assert [labels for *_, name, labels, _ in ours(made) if name.endswith("_sum")] == [
        {"class": "100 %"},
        {"class": "chat"},
    ]


def test_value_on_a_bucket_bound_is_counted_in_that_bucket() -> None:
    histogram = Histogram(LATENCY_BUCKETS)
    histogram.add(10 * MILLISECOND)
    made = family("headgate_event_loop_lag_seconds")
    made.add_histogram((), histogram)

    buckets = {labels["le"]: value for *_, labels, value in ours(made) if "le" in labels}
    assert (buckets["0.0075"], buckets["0.01"]) == (0, 1)


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.1, 1e300, 2**60])
def test_value_is_rendered_with_full_precision(value: float) -> None:
    [(*_, told)] = ours(unlabelled("headgate_directory_age_seconds", value))

    assert told == value


@pytest.mark.parametrize(("value", "shown"), [(10**400, math.inf), (-(10**400), -math.inf)])
def test_integer_too_large_for_a_float_is_rendered_as_infinity(value: int, shown: float) -> None:
    [(*_, told)] = ours(unlabelled("headgate_directory_age_seconds", value))
    histogram = Histogram()
    histogram.add(value)
    made = family("headgate_event_loop_lag_seconds")
    made.add_histogram((), histogram)

    assert told == shown
    assert [value for *_, name, _, value in ours(made) if name.endswith("_sum")] == [shown]


def test_metric_outside_the_catalogue_is_rejected() -> None:
    with pytest.raises(KeyError):
        family("headgate_made_up")


def test_sample_with_wrong_labels_or_metric_type_is_rejected() -> None:
    with pytest.raises(AssertionError, match="labels"):
        family("headgate_retries_total").add((), 1)
    with pytest.raises(AssertionError):
        family("headgate_queue_wait_seconds").add(("chat",), 1)
    with pytest.raises(AssertionError):
        family("headgate_retries_total").add_histogram(("p",), Histogram())
