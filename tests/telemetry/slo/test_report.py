"""Does a report say whether a promise was kept, and what the other two were?"""

from inline_snapshot import snapshot

from headgate.slo.measured import Measured, Sample, measured, quantile
from headgate.slo.promises import ClassPromises
from headgate.slo.report import ClassReport, Finding, report

CHAT = ClassPromises("chat", "latency", ttft_s=1.0, ttft_ppm=990_000, served_ppm=999_000, cost_usd_per_1k_tokens=0.002)


def counted(name: str = "chat", *, good: float = 995, degraded: float = 30) -> list[Sample]:
    def told(series: str, value: float, **labels: str) -> Sample:
        return Sample(series, {"class": name, **labels}, value)

    return [
        told("headgate_requests_total", 900, outcome="completed"),
        told("headgate_requests_total", 100, outcome="shed"),
        told("headgate_requests_admitted_total", 1_000),
        told("headgate_requests_degraded_total", degraded),
        told("headgate_objective_requests_total", 1_000, objective="ttft"),
        told("headgate_objective_good_total", good, objective="ttft"),
        told("headgate_tokens_total", 600_000, direction="prompt"),
        told("headgate_tokens_total", 400_000, direction="output"),
        told("headgate_cost_usd_total", 2.1),
        told("headgate_time_to_first_token_seconds_bucket", 900, le="0.5", size="small"),
        told("headgate_time_to_first_token_seconds_bucket", 1_000, le="1.0", size="small"),
        told("headgate_time_to_first_token_seconds_bucket", 1_000, le="+Inf", size="small"),
        told("headgate_something_else_total", 5),
        Sample("headgate_held", {"what": "tasks"}, 1),
    ]


def of(promises: ClassPromises, samples: list[Sample]) -> ClassReport:
    [only] = report([promises], measured(samples))
    return only


def test_latency_that_is_promised_and_kept_has_quality_and_cost_as_consequences() -> None:
    assert of(CHAT, counted()) == snapshot(
        ClassReport(
            name="chat",
            promise="latency",
            kept=True,
            requests=1000,
            findings=(
                Finding(
                    objective="ttft",
                    promised="first token within 1 s for 99 %",
                    measured="99.50%",
                    requests=1000,
                    kept=True,
                ),
                Finding(
                    objective="served", promised="successful response for 99.9 %", measured="n/a", requests=0, kept=None
                ),
            ),
            consequences=(("quality", "3.00% degraded"), ("cost", "$0.0021 per 1k tokens, $2.10 in total")),
        )
    )


def test_one_objective_that_is_missed_breaks_the_promise() -> None:
    assert of(CHAT, counted(good=980)).kept is False


def test_quality_is_kept_only_where_nothing_was_degraded() -> None:
    promises = ClassPromises("chat", "quality")

    assert of(promises, counted()).kept is False
    assert of(promises, counted(degraded=0)).kept is True
    assert of(promises, counted()).consequences == snapshot(
        (("latency", "first token within 0.75 s for 95 %"), ("cost", "$0.0021 per 1k tokens, $2.10 in total"))
    )


def test_cost_is_judged_by_what_a_thousand_tokens_may_cost() -> None:
    assert of(ClassPromises("chat", "cost", cost_usd_per_1k_tokens=0.003), counted()).kept is True
    assert of(ClassPromises("chat", "cost", cost_usd_per_1k_tokens=0.002), counted()).kept is False


def test_where_nothing_is_promised_in_figures_nothing_is_judged() -> None:
    found = of(ClassPromises("chat", "cost"), counted())

    assert (found.kept, found.findings) == (None, ())


def test_a_class_that_nobody_asked_and_that_promises_nothing_is_left_out() -> None:
    assert report([ClassPromises("idle", "cost")], measured(counted())) == []
    assert report([CHAT], {})[0].kept is None


def test_no_price_is_not_told_as_free() -> None:
    assert (
        dict(report([CHAT], {"chat": Measured(requests=1, tokens=5)})[0].consequences)["cost"] == "no price configured"
    )


def test_a_quantile_is_what_prometheus_would_say() -> None:
    within = {0.5: 90.0, 1.0: 100.0, float("inf"): 110.0}

    assert [quantile(within, share) for share in (0.5, 0.9, 0.99)] == [
        0.5 * 55 / 90,
        0.5 + 0.5 * 9 / 10,
        1.0,
    ]
    assert quantile({}, 0.5) is None
    assert quantile({1.0: 0.0, float("inf"): 0.0}, 0.5) is None
