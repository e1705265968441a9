"""SLO report: whether each class met its objectives, and its latency, quality and cost."""

from inline_snapshot import snapshot

from headgate.slo.measurements import ClassMeasurements, MetricSample, aggregate, quantile
from headgate.slo.objectives import ClassObjectives
from headgate.slo.report import ClassReport, ObjectiveResult, report

CHAT = ClassObjectives(
    "chat", "latency", ttft_s=1.0, ttft_ppm=990_000, availability_ppm=999_000, cost_usd_per_1k_tokens=0.002
)


def counted(name: str = "chat", *, good: float = 995, degraded: float = 30) -> list[MetricSample]:
    def told(series: str, value: float, **labels: str) -> MetricSample:
        return MetricSample(series, {"class": name, **labels}, value)

    return [
        told("headgate_requests_total", 900, outcome="completed"),
        told("headgate_requests_total", 100, outcome="shed"),
        told("headgate_requests_admitted_total", 1_000),
        told("headgate_requests_degraded_total", degraded),
        told("headgate_objective_requests_total", 1_000, objective="ttft"),
        told("headgate_objective_good_requests_total", good, objective="ttft"),
        told("headgate_tokens_total", 600_000, direction="prompt"),
        told("headgate_tokens_total", 400_000, direction="output"),
        told("headgate_cost_usd_total", 2.1),
        told("headgate_time_to_first_token_seconds_bucket", 900, le="0.5", prompt_size="small"),
        told("headgate_time_to_first_token_seconds_bucket", 1_000, le="1.0", prompt_size="small"),
        told("headgate_time_to_first_token_seconds_bucket", 1_000, le="+Inf", prompt_size="small"),
        told("headgate_something_else_total", 5),
        MetricSample("headgate_tracked_objects", {"kind": "tasks"}, 1),
    ]


def of(promises: ClassObjectives, samples: list[MetricSample]) -> ClassReport:
    [only] = report([promises], aggregate(samples))
    return only


def test_report_for_a_latency_class_lists_quality_and_cost_as_consequences() -> None:
    assert of(CHAT, counted()) == snapshot(
        ClassReport(
            name="chat",
            optimize_for="latency",
            met=True,
            requests=1000,
            results=(
                ObjectiveResult(
                    objective="ttft",
                    target="first token within 1 s for 99 %",
                    measured="99.50%",
                    requests=1000,
                    met=True,
                ),
                ObjectiveResult(
                    objective="availability",
                    target="successful response for 99.9 %",
                    measured="n/a",
                    requests=0,
                    met=None,
                ),
            ),
            tradeoffs=(("quality", "3.00% degraded"), ("cost", "$0.0021 per 1k tokens, $2.10 in total")),
        )
    )


def test_class_fails_if_one_objective_is_missed() -> None:
    assert of(CHAT, counted(good=980)).met is False


def test_quality_class_passes_only_without_degraded_requests() -> None:
    promises = ClassObjectives("chat", "quality")

    assert of(promises, counted()).met is False
    assert of(promises, counted(degraded=0)).met is True
    assert of(promises, counted()).tradeoffs == snapshot(
        (("latency", "first token within 0.75 s for 95 %"), ("cost", "$0.0021 per 1k tokens, $2.10 in total"))
    )


def test_cost_class_is_evaluated_by_its_cost_per_thousand_tokens() -> None:
    assert of(ClassObjectives("chat", "cost", cost_usd_per_1k_tokens=0.003), counted()).met is True
    assert of(ClassObjectives("chat", "cost", cost_usd_per_1k_tokens=0.002), counted()).met is False


def test_class_without_targets_is_not_evaluated() -> None:
    found = of(ClassObjectives("chat", "cost"), counted())

    assert (found.met, found.results) == (None, ())


def test_class_without_requests_and_targets_is_omitted() -> None:
    assert report([ClassObjectives("idle", "cost")], aggregate(counted())) == []
    assert report([CHAT], {})[0].met is None


def test_missing_price_is_not_reported_as_zero_cost() -> None:
    assert (
        dict(report([CHAT], {"chat": ClassMeasurements(requests=1, tokens=5)})[0].tradeoffs)["cost"]
        == "no price configured"
    )


def test_quantile_matches_prometheus() -> None:
    within = {0.5: 90.0, 1.0: 100.0, float("inf"): 110.0}

    assert [quantile(within, share) for share in (0.5, 0.9, 0.99)] == [
        0.5 * 55 / 90,
        0.5 + 0.5 * 9 / 10,
        1.0,
    ]
    assert quantile({}, 0.5) is None
    assert quantile({1.0: 0.0, float("inf"): 0.0}, 0.5) is None
