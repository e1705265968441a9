"""What does the scheduler tell those who look?"""

from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary, GivenUp, Summary
from headgate.model.endpoint import EndpointState
from headgate.model.units import ClassName, EndpointId, PoolName
from tests.support.builders import a_scheduler, arrived, at, completed, joined, leaving, told


def test_a_new_scheduler_is_empty() -> None:
    assert Scheduler().summary() == Summary(policy_hash="", queued={}, requests=0, endpoints=())


def test_the_summary_counts_what_waits_by_class_and_what_runs_by_endpoint() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), *[arrived(name) for name in "abc"], arrived("d", service_class="batch"), joined("e2"))
    told(scheduler, at(0), leaving("e1"))

    assert scheduler.summary() == Summary(
        policy_hash="h1",
        queued={ClassName("interactive"): 1, ClassName("batch"): 1},
        requests=4,
        endpoints=(
            EndpointSummary(EndpointId("e1"), PoolName("p"), EndpointState.READY, True, 2, 2),
            EndpointSummary(EndpointId("e2"), PoolName("p"), EndpointState.WARMING, False, 0, 1),
        ),
        given_up=(GivenUp(PoolName("p"), level=0, shed_ppm=0),),
    )


def test_classes_in_which_nobody_waits_are_there_with_zero() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), completed("r"))

    assert scheduler.summary().queued == {"interactive": 0, "batch": 0}
