"""Are the experiments on the policy sound: what they vary, what they measure, and what they say of it?"""

import inspect

import pytest

from bench.policy import __main__ as command
from bench.policy import variations
from bench.policy.experiment import Bar, means, table
from bench.policy.fairness_watch import FairnessWatch
from bench.policy.long_prompts import SHORT, compared, synthetic
from bench.policy.long_streams import played as burst_of_streams
from headgate.core.attempts import Attempts
from headgate.core.events import TimerFired
from headgate.core.prediction import Predictions
from headgate.core.queues.queue import Queue
from headgate.core.routing.learning import Learned
from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from headgate.model.policy import Policy
from headgate.model.units import RequestId, TenantId
from testing.builders import (
    a_policy,
    arrived,
    at,
    completed,
    dispatch,
    first_token,
    joined,
    policy_changed,
    progressed,
    readied,
    told,
)

# What is varied


def test_what_a_variation_leaves_out_is_something_that_the_scheduler_has() -> None:
    varied = [
        (kind, base)
        for _, kind in inspect.getmembers(variations, inspect.isclass)
        for base in (Scheduler, Attempts, Queue, Predictions, Learned)
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


def test_each_variation_differs_from_the_whole_in_its_policy_or_its_scheduler() -> None:
    whole = Policy()

    for name, each in variations.WITHOUT.items():
        changed = each.policy(whole) != whole or each.scheduler is not Scheduler
        # An empty policy has no classes whose band or floor could be taken away.
        assert changed or name in {"bands", "floor of batch"}, name


@pytest.mark.parametrize("name", variations.WITHOUT)
def test_each_variation_serves(name: str) -> None:
    varied = variations.WITHOUT[name]
    scheduler = varied.scheduler()
    told(scheduler, at(0), policy_changed(varied.policy(a_policy())), joined("e1"), readied("e1"))

    told(scheduler, at(1), arrived("a"), first_token("a"), progressed("a"), completed("a"), arrived("b"))

    assert [each.in_flight for each in scheduler.summary().endpoints] == [1]


# What is measured


def watched(*turns: str) -> FairnessWatch:
    """Two tenants with five requests each wait; turns are given in this order. All cost a second."""
    costs = {RequestId(f"{tenant}{number}"): 10**9 for tenant in "ab" for number in range(5)}
    watch = FairnessWatch(costs, {TenantId("a"): 100, TenantId("b"): 100}, turns_min=2)
    for request in costs:
        watch.saw(arrived(request, request[0]), [], at(0))
    for request in turns:
        watch.saw(TimerFired(), [dispatch(request)], at(1))
        watch.saw(completed(request), [], at(2))
    watch.finish()
    return watch


def test_tenants_by_turns_stay_well_within_the_bound() -> None:
    assert watched("a0", "b0", "a1", "b1", "a2", "b2").worst.ratio < 0.5


def test_a_tenant_that_gets_all_turns_breaks_it() -> None:
    worst = watched("a0", "a1", "a2", "a3").worst

    assert worst.grew_s == 4.0
    assert worst.allowed_s == 4.0


def test_long_prompts_hurt_short_ones_less_with_the_lane() -> None:
    figures = compared(synthetic(seed=2, length_s=12), 2, RTXPRO6000_LLAMA_8B, quick=True)

    assert figures["runs"]["headgate"][SHORT]["attainment"] > 0.99
    assert figures["short_p99_over_without"]["headgate"] < 1.6


def test_a_burst_of_long_streams_leaves_nothing_behind() -> None:
    figures = burst_of_streams(3, span_s=100, stream_tokens=2_000, burst_at_s=32, burst_s=20)

    assert figures["in_flight_most"] <= figures["in_flight_max"]
    assert figures["in_flight_in_the_end"] == 0
    assert figures["engines_hold_less_by"] == 0
    assert figures["recovery_over_burst"] <= 2


# What is said


def test_a_bar_says_whether_it_is_met() -> None:
    assert str(Bar("goodput", 1.2, least=1.08)) == "met: goodput is 1.2, at least 1.08 is asked for"
    assert str(Bar("attempts", 1.3, most=1.2)) == "MISSED: attempts is 1.3, at most 1.2 is asked for"


def test_figures_of_several_seeds_are_told_by_their_means() -> None:
    one, other = {"a": 1.0, "b": {"c": 2, "d": "x"}}, {"a": 2.0, "b": {"c": 4, "d": "x", "e": None}}

    assert means([one, other]) == {"a": 1.5, "b": {"c": 3.0, "d": "x", "e": None}}


def test_a_table_is_markdown_with_columns_that_line_up() -> None:
    assert table(("a", "long"), [("wide", 1)]) == "| a    | long |\n|------|------|\n| wide | 1    |"


def test_every_experiment_has_a_name_and_a_page_of_its_own() -> None:
    assert len(command.EXPERIMENTS) >= 7
    assert all(name == each.name for name, each in command.EXPERIMENTS.items())


def test_an_unknown_experiment_is_told_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["overlaod"])

    assert "there is no experiment 'overlaod'; there are: overload, " in capsys.readouterr().err
