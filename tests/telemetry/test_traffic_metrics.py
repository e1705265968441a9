"""Goodput, tenant, cost and objective metrics."""

from dataclasses import replace
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, Event, FirstToken, PolicyChanged, RequestArrived
from headgate.core.summary import Summary
from headgate.model.caps import Caps
from headgate.model.money import Bill, BillCause
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import MILLISECOND, SECOND
from headgate.model.usage import Usage, UsageSource
from headgate.telemetry.cost_observer import CostObserver
from headgate.telemetry.histogram import LATENCY_BOUNDS_S, Histogram
from headgate.telemetry.meter_types import UNAVAILABLE_OUTCOMES, PromptSize, prompt_size
from headgate.telemetry.meters import TENANTS_MAX, Meters
from headgate.telemetry.options import Objectives
from headgate.telemetry.prometheus import render

CHAT = ServiceClass("chat", 0, ttft_ns=SECOND, tpot_ns=100 * MILLISECOND)
BATCH = ServiceClass("batch", 1)
POLICY = Policy(
    classes=(CHAT, BATCH), pools=(Pool("p"),), tenants=(Tenant("acme"), Tenant("acme/search"), Tenant("bolt"))
)
NOTHING = Summary(policy_hash="", queued={}, requests=0, endpoints=())


class Told:
    """Meters that observe events at times in milliseconds."""

    def __init__(self, policy: Policy = POLICY, promised: dict[str, Objectives] | None = None, **limits: int) -> None:
        self.meters = Meters()
        self.costs = CostObserver(self.meters, **limits)
        self.meters.set_objectives(promised or {})
        self.at(0, PolicyChanged(policy, "h"))

    def at(self, ms: int, event: Event, *commands: Command) -> None:
        for observer in (self.meters, self.costs):
            observer.observe(event, commands, now=ms * MILLISECOND)

    def stream(
        self, name: str = "r", *, first_ms: int = 500, end_ms: int = 1_000, tokens: int = 11, tenant: str = "acme"
    ) -> None:
        """Observe a completed stream in class `chat`."""
        self.at(0, arrived(name, tenant), dispatch(name))
        self.at(first_ms, FirstToken(name, 1))
        self.at(end_ms, ended(name, tokens), end(name))

    def told(self, *names: str, summary: Summary = NOTHING) -> dict[str, float]:
        """Non-zero samples of these metrics, keyed by their label values."""
        page, _ = render(self.meters, Histogram(), summary, {})
        return {
            " ".join(sample.labels.values()): sample.value
            for family in text_string_to_metric_families(page.decode())
            for sample in family.samples
            if sample.name in names and sample.value
        }


def arrived(name: str = "r", tenant: str = "acme", *, stream: bool = True, prompt_bytes: int = 1) -> RequestArrived:
    return RequestArrived(Ticket(name, Api.CHAT, "m", tenant, stream=stream, prompt_bytes=prompt_bytes))


def dispatch(name: str = "r", attempt: int = 1, service_class: str = "chat") -> Dispatch:
    return Dispatch(name, attempt, "p/a", "p", service_class, 0, 1, 1, 1, Caps(), "")


def ended(
    name: str = "r", tokens: int = 1, *, attempt: int = 1, how: AttemptEnding = AttemptEnding.COMPLETED
) -> AttemptEnded:
    return AttemptEnded(name, attempt, how, usage=Usage(100, tokens, 0, UsageSource.ENGINE))


def end(
    name: str = "r",
    outcome: Outcome = Outcome.COMPLETED,
    service_class: str = "chat",
    *,
    attempts: int = 1,
    waited: int = 0,
) -> End:
    return End(name, outcome, service_class, attempts, waited, None, "")


def bill(cause: BillCause, nano_usd: int, attempt: int = 1) -> Bill:
    return Bill(attempt, cause, 0, 0, 0, nano_usd, 0, 0)


GOOD = "headgate_goodput_requests_total"


def test_stream_within_both_targets_is_counted_as_goodput() -> None:
    told = Told()

    told.stream(first_ms=1_000, end_ms=2_000, tokens=11)

    assert told.told(GOOD) == {"chat": 1}


@pytest.mark.parametrize(
    ("first_ms", "end_ms", "tokens"), [(1_001, 1_100, 11), (500, 1_501, 11), (500, 1_500, 10)], ids=str
)
def test_stream_missing_a_target_is_not_counted_as_goodput(first_ms: int, end_ms: int, tokens: int) -> None:
    told = Told()

    told.stream(first_ms=first_ms, end_ms=end_ms, tokens=tokens)

    assert told.told(GOOD) == {}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("end_ms", "good"), [(300, {"ranking": 1}), (301, {})])
def test_response_later_than_the_e2e_target_is_not_counted_as_goodput(
    end_ms: int, good: dict[str, float], *, stream: bool
) -> None:
    told = Told(replace(POLICY, classes=(ServiceClass("ranking", 0, e2e_ns=300 * MILLISECOND),)))

    told.at(0, arrived(stream=stream), dispatch(service_class="ranking"))
    told.at(end_ms, ended(), end(service_class="ranking"))

    assert told.told(GOOD) == good


def test_stream_without_a_first_token_is_not_counted_as_goodput() -> None:
    told = Told()

    told.at(0, arrived(), dispatch())
    told.at(1, ended(), end())

    assert told.told(GOOD) == {}


def test_completed_request_without_a_target_is_counted_as_goodput() -> None:
    told = Told()

    told.at(0, arrived("b"), dispatch("b", service_class="batch"))
    told.at(90_000, ended("b"), end("b", service_class="batch"))
    told.at(0, arrived("c", stream=False), dispatch("c"))
    told.at(90_000, ended("c"), end("c"))
    told.at(0, arrived("d", stream=False), dispatch("d"))
    told.at(90_000, ended("d"), end("d", Outcome.CANCELLED))

    assert told.told(GOOD) == {"batch": 1, "chat": 1}


def test_tokens_from_failed_attempts_and_cancelled_requests_are_not_useful() -> None:
    told = Told()

    told.at(0, arrived(), dispatch())
    told.at(1, ended(tokens=7, how=AttemptEnding.FAILED), dispatch(attempt=2))
    told.at(2, ended(tokens=20, attempt=2), end(attempts=2))
    told.at(0, arrived("s"), dispatch("s"))
    told.at(2, ended("s", 5, how=AttemptEnding.ABORTED), end("s", Outcome.CANCELLED))

    assert told.told("headgate_goodput_tokens_total") == {"chat prompt": 100, "chat output": 20}
    assert told.told("headgate_tokens_total") == {"chat prompt": 300, "chat output": 32}


def test_only_sent_and_queued_requests_are_counted_as_admitted() -> None:
    told = Told()

    told.stream()
    told.at(0, arrived("a"), end("a", Outcome.QUEUE_FULL, attempts=0))
    told.at(0, arrived("b"))
    told.at(9, arrived("c"), end("b", Outcome.QUEUE_TIMEOUT, "batch", attempts=0, waited=9))

    assert told.told("headgate_requests_admitted_total") == {"chat": 1, "batch": 1}


def test_latencies_are_recorded_by_prompt_size() -> None:
    told = Told()

    for name, prompt_bytes in (("s", 3_999), ("m", 4_000), ("l", 32_000)):
        told.at(0, arrived(name, prompt_bytes=prompt_bytes), dispatch(name))
        told.at(100, FirstToken(name, 1))
        told.at(200, ended(name), end(name))

    each = {"chat small": 1, "chat medium": 1, "chat large": 1}
    assert told.told("headgate_time_to_first_token_seconds_count") == each
    assert told.told("headgate_request_duration_seconds_count") == each
    assert [prompt_size(tokens * 4) for tokens in (999, 1_000, 7_999, 8_000)] == [
        PromptSize.SMALL,
        PromptSize.MEDIUM,
        PromptSize.MEDIUM,
        PromptSize.LARGE,
    ]


def test_adjacent_latency_buckets_differ_by_at_most_25_percent() -> None:
    dense = [bound for bound in LATENCY_BOUNDS_S if 0.01 <= bound <= 60]

    assert (dense[0], dense[-1]) == (0.01, 60)
    assert max(after / before for before, after in pairwise(dense)) <= 1.25 + 1e-9
    assert list(LATENCY_BOUNDS_S) == sorted(set(LATENCY_BOUNDS_S))


# Tenants


def test_requests_and_tokens_are_counted_for_the_nearest_tenant_with_its_own_series() -> None:
    told = Told()

    told.stream("a", tenant="acme")
    told.stream("b", tenant="acme/search/nightly")
    told.stream("c", tenant="acme/mail")
    told.stream("d", tenant="stranger/x")
    told.at(0, arrived("e", "bolt"), end("e", Outcome.SHED, attempts=0))
    told.at(0, arrived("f", "bolt"), end("f", Outcome.NO_ENDPOINTS, attempts=0))
    told.at(0, arrived("g", "bolt"), end("g", Outcome.CANCELLED, attempts=0))

    assert told.told("headgate_tenant_requests_total") == {
        "acme completed": 2,
        "acme/search completed": 1,
        "other completed": 1,
        "bolt rejected": 1,
        "bolt failed": 1,
        "bolt cancelled": 1,
    }
    assert told.told("headgate_tenant_tokens_total")["acme output"] == 22


def test_only_tenants_with_the_highest_weights_have_their_own_series() -> None:
    told = Told()
    for generation in range(20):
        tenants = [Tenant(f"t{generation}/{number}", weight=100 + number % 2) for number in range(2 * TENANTS_MAX)]
        told.at(0, PolicyChanged(replace(POLICY, tenants=tuple(tenants)), str(generation)))

    assert len(told.meters.tenants) == TENANTS_MAX + 1
    assert all(name == "other" or int(name.partition("/")[2]) % 2 for name in told.meters.tenants)


def test_queue_depth_is_reported_by_tenant_or_as_other() -> None:
    queued = {("chat", "acme"): 3, ("batch", "acme"): 1, ("chat", "acme/nightly"): 2, ("chat", "stranger"): 2}
    summary = Summary("h", queued={"chat": 7, "batch": 1}, requests=8, endpoints=(), queued_tenants=queued)

    assert Told().told("headgate_tenant_queue_depth", summary=summary) == {"acme": 6, "other": 2}


def test_queue_depth_is_exact_for_every_tenant_with_its_own_series() -> None:
    told = Told()
    names = [f"t{number}" for number in range(TENANTS_MAX)]
    told.at(0, PolicyChanged(replace(POLICY, tenants=tuple(map(Tenant, names))), "h"))
    queued = {("chat", name): 3 for name in names}
    summary = Summary("h", queued={"chat": 300}, requests=300, endpoints=(), queued_tenants=queued)

    assert told.told("headgate_tenant_queue_depth", summary=summary) == dict.fromkeys(names, 3)


# Arrivals


def test_request_counts_for_its_class_on_arrival_whether_it_is_sent_or_queued() -> None:
    told = Told()

    told.at(0, arrived("sent"), dispatch("sent", service_class="batch"))
    told.at(0, arrived("queued"), dispatch("other", service_class="batch"))
    told.at(0, arrived("held back"))

    assert {name: meter.arrived for name, meter in told.meters.classes.items() if meter.arrived} == {
        "batch": 1,
        "chat": 2,
    }


# Cost


def test_class_cost_includes_platform_costs_but_tenant_cost_does_not() -> None:
    told = Told()
    bills = (bill(BillCause.RETRY, 500_000_000), bill(BillCause.ANSWER, 250_000_000, 2))

    told.at(0, arrived("r", "bolt"), dispatch())
    told.at(1, ended(), replace(end(attempts=2), bills=bills))

    assert told.told("headgate_cost_usd_total") == {"chat": 0.75}
    assert told.told("headgate_tenant_cost_usd_total") == {"bolt": 0.25}
    assert not told.costs.open_requests


def test_meters_count_the_bills_of_requests_if_no_other_observer_does() -> None:
    bills = (bill(BillCause.RETRY, 500_000_000), bill(BillCause.ANSWER, 250_000_000, 2))
    meters = Meters(counts_bills=True)
    meters.observe(PolicyChanged(POLICY, "h"), (), now=0)

    meters.observe(arrived("r", "bolt"), (dispatch(),), now=0)
    meters.observe(ended(), (replace(end(attempts=2), bills=bills),), now=1)
    meters.observe(ended("unknown"), (replace(end("unknown"), bills=bills[1:]),), now=2)

    assert meters.classes["chat"].nano_usd == 1_000_000_000
    assert {name: meter.nano_usd for name, meter in meters.tenants.items() if meter.nano_usd} == {
        "bolt": 250_000_000,
        "other": 250_000_000,
    }


def test_number_of_open_requests_with_a_known_tenant_is_bounded() -> None:
    told = Told(requests_max=1)

    told.at(0, arrived("a", "bolt"))
    told.at(0, arrived("b", "bolt"))
    told.at(0, ended("b"), replace(end("b"), bills=(bill(BillCause.ANSWER, 1_000_000_000),)))

    assert told.costs.open_requests == 1
    assert told.told("headgate_tenant_cost_usd_total") == {"other": 1}


# Objectives

PROMISED = {"chat": Objectives(990_000, 2 * SECOND, 950_000, 999_000, 20_000_000)}


def kept(told: Told) -> dict[str, tuple[float, float]]:
    asked = told.told("headgate_objective_requests_total")
    good = told.told("headgate_objective_good_requests_total")
    return {name: (good.get(name, 0), count) for name, count in asked.items()}


def test_requests_are_counted_against_each_objective() -> None:
    told = Told(promised=PROMISED)

    told.stream("a", first_ms=1_000, end_ms=2_000)
    told.stream("b", first_ms=1_001, end_ms=2_001)
    told.at(0, arrived("c"), end("c", Outcome.SHED, attempts=0))
    told.at(0, arrived("d"), end("d", Outcome.RATE_LIMITED, attempts=0))
    told.at(0, arrived("e", stream=False), end("e", Outcome.QUEUE_FULL, attempts=0))

    assert kept(told) == {"chat ttft": (1, 3), "chat duration": (1, 2), "chat availability": (2, 4)}


def test_first_token_in_a_failed_stream_is_counted_once() -> None:
    told = Told(promised=PROMISED)

    told.at(0, arrived(), dispatch())
    told.at(10, FirstToken("r", 1))
    told.at(11, FirstToken("r", 2))
    told.at(20, ended(how=AttemptEnding.FAILED), end(outcome=Outcome.ENGINE_ERROR))

    assert kept(told) == {"chat ttft": (1, 1), "chat availability": (0, 1)}


def test_configured_objectives_are_reported() -> None:
    told = Told(promised=PROMISED)

    assert told.told("headgate_objective_target_ratio") == {
        "chat ttft": 0.99,
        "chat duration": 0.95,
        "chat availability": 0.999,
    }
    assert told.told("headgate_cost_objective_usd_per_1k_tokens") == {"chat": 0.02}


def test_new_policy_and_objectives_apply_to_later_requests() -> None:
    told = Told(promised=PROMISED)
    told.at(0, PolicyChanged(replace(POLICY, classes=(replace(CHAT, ttft_ns=None), BATCH)), "h2"))
    told.stream("a", first_ms=9_000, end_ms=9_001)
    assert kept(told) == {"chat duration": (0, 1), "chat availability": (1, 1)}

    told.meters.set_objectives({})
    told.stream("b")

    assert kept(told) == {}


def test_only_the_class_target_is_counted_without_objectives() -> None:
    told = Told()

    told.stream()

    assert kept(told) == {"chat ttft": (1, 1)}


def test_every_outcome_is_completed_unserved_or_caused_by_the_client() -> None:
    callers = {
        *(
            Outcome.INVALID_REQUEST,
            Outcome.MODEL_NOT_FOUND,
            Outcome.REQUEST_TOO_LARGE,
            Outcome.UNAUTHORIZED,
            Outcome.FORBIDDEN,
        ),
        *(
            Outcome.DUPLICATE_REQUEST,
            Outcome.RATE_LIMITED,
            Outcome.BUDGET_EXCEEDED,
            Outcome.RETRY_BUDGET_EXHAUSTED,
            Outcome.CANCELLED,
        ),
        *(Outcome.ENGINE_REJECTED, Outcome.QUARANTINED),
    }

    assert callers | UNAVAILABLE_OUTCOMES | {Outcome.COMPLETED} == set(Outcome)
    assert not callers & UNAVAILABLE_OUTCOMES
