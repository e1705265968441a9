"""Tests for the policy experiments: scheduler variants, measurements and reports."""

import inspect

import pytest

from bench.policy import __main__ as command
from bench.policy import variations
from bench.policy.experiment import Threshold, means, table, thresholds_table
from bench.policy.fairness_observer import FairnessObserver
from bench.policy.long_prompts import SHORT, compared, synthetic
from bench.policy.long_streams import run_burst as burst_of_streams
from headgate.core.attempts import Attempts
from headgate.core.events import TimerFired
from headgate.core.prediction import Predictions
from headgate.core.queues.queue import Queue
from headgate.core.routing.speed_estimator import SpeedEstimator
from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from headgate.model.policy import Policy
from headgate.model.units import RequestId, TenantId
from testing.builders import (
    a_policy,
    arrived,
    at,
    commands_for,
    completed,
    dispatch,
    first_token,
    joined,
    policy_changed,
    progressed,
    readied,
)

# Scheduler variants


def test_variation_overrides_only_existing_scheduler_methods() -> None:
    varied = [
        (kind, base)
        for _, kind in inspect.getmembers(variations, inspect.isclass)
        for base in (Scheduler, Attempts, Queue, Predictions, SpeedEstimator)
        if issubclass(kind, base) and kind is not base
    ]

    assert len(varied) >= 8
    missing = [
        f"{kind.__name__}.{name}"
        for kind, base in varied
        for name, each in vars(kind).items()
        if inspect.isfunction(each) and not hasattr(base, name)
    ]
    assert missing == []


def test_variation_changes_policy_or_scheduler() -> None:
    whole = Policy()

    for name, each in variations.WITHOUT.items():
        changed = each.policy(whole) != whole or each.scheduler is not Scheduler
        # An empty policy has no classes with a priority band or a minimum share.
        assert changed or name in {"priority bands", "batch minimum share"}, name


@pytest.mark.parametrize("name", variations.WITHOUT)
def test_variation_dispatches_requests(name: str) -> None:
    varied = variations.WITHOUT[name]
    scheduler = varied.scheduler()
    commands_for(scheduler, at(0), policy_changed(varied.policy(a_policy())), joined("e1"), readied("e1"))

    commands_for(scheduler, at(1), arrived("a"), first_token("a"), progressed("a"), completed("a"), arrived("b"))

    assert [each.in_flight for each in scheduler.summary().endpoints] == [1]


# Measurements


def watched(*turns: str) -> FairnessObserver:
    """Watch two tenants with five queued requests each, dispatched in this order. Each request costs one second."""
    costs = {RequestId(f"{tenant}{number}"): 10**9 for tenant in "ab" for number in range(5)}
    watch = FairnessObserver(costs, {TenantId("a"): 100, TenantId("b"): 100}, turns_min=2)
    for request in costs:
        watch.observe(arrived(request, request[0]), [], at(0))
    for request in turns:
        watch.observe(TimerFired(), [dispatch(request)], at(1))
        watch.observe(completed(request), [], at(2))
    watch.finish()
    return watch


def test_fairness_watch_ratio_stays_low_if_tenants_alternate() -> None:
    assert watched("a0", "b0", "a1", "b1", "a2", "b2").worst.ratio < 0.5


def test_fairness_watch_reaches_bound_if_one_tenant_gets_all_turns() -> None:
    worst = watched("a0", "a1", "a2", "a3").worst

    assert worst.grew_s == 4.0
    assert worst.allowed_s == 4.0


def test_long_lane_protects_short_requests_from_long_prompts() -> None:
    figures = compared(synthetic(seed=2, length_s=12), 2, RTXPRO6000_LLAMA_8B, quick=True)

    assert figures["runs"]["headgate"][SHORT]["attainment"] > 0.99
    assert figures["short_p99_over_without"]["headgate"] < 1.6


def test_burst_of_long_streams_leaves_no_occupied_slots() -> None:
    figures = burst_of_streams(3, span_s=100, stream_tokens=2_000, burst_at_s=32, burst_s=20)

    assert figures["in_flight_most"] <= figures["in_flight_max"]
    assert figures["in_flight_in_the_end"] == 0
    assert figures["engines_hold_less_by"] == 0
    assert figures["recovery_over_burst"] <= 2


# Reports


def test_threshold_reports_whether_target_is_met() -> None:
    assert str(Threshold("goodput", 1.2, least=1.08)) == "met: goodput is 1.2 (target: at least 1.08)"
    assert str(Threshold("attempts", 1.3, most=1.2)) == "MISSED: attempts is 1.3 (target: at most 1.2)"
    assert thresholds_table([Threshold("attempts", 1.3, most=1.2)]).splitlines()[-1] == (
        "| attempts | 1.3    | at most 1.2 | **no** |"
    )


def test_means_averages_figures_over_seeds() -> None:
    one, other = {"a": 1.0, "b": {"c": 2, "d": "x"}}, {"a": 2.0, "b": {"c": 4, "d": "x", "e": None}}

    assert means([one, other]) == {"a": 1.5, "b": {"c": 3.0, "d": "x", "e": None}}


def test_table_aligns_markdown_columns() -> None:
    assert table(("a", "long"), [("wide", 1)]) == "| a    | long |\n|------|------|\n| wide | 1    |"


def test_experiments_are_registered_by_name() -> None:
    assert len(command.EXPERIMENTS) >= 7
    assert all(name == each.name for name, each in command.EXPERIMENTS.items())


def test_unknown_experiment_error_lists_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["overlaod"])

    assert "unknown experiment 'overlaod'; choose from overload, " in capsys.readouterr().err
