"""What does the scheduler tell those who look?"""

from headgate.core.cost import cost_ns
from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary, GivenUp, Summary, Waiting
from headgate.model.endpoint import EndpointState
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName, EndpointId, PoolName
from testing.builders import a_policy, a_scheduler, arrived, at, completed, joined, leaving, told


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
            EndpointSummary(EndpointId("e1"), PoolName("p"), EndpointState.READY, True, 2, 2, kv_tokens=50),
            EndpointSummary(EndpointId("e2"), PoolName("p"), EndpointState.WARMING, False, 0, 1),
        ),
        given_up=(GivenUp(PoolName("p"), level=0, shed_ppm=0),),
        waiting=(
            Waiting((PoolName("p"),), band=0, work_ns=cost_ns(EngineSpeed(), 25, 150)),
            Waiting((PoolName("p"),), band=1, work_ns=cost_ns(EngineSpeed(), 25, 150)),
        ),
        queued_tenants={("interactive", "acme"): 1, ("batch", "acme"): 1},
    )


def test_what_each_tenant_has_waiting_is_told_of_all_who_wait() -> None:
    scheduler = a_scheduler(policy=a_policy(tenants=tuple(f"t{number}" for number in range(30))))
    told(scheduler, at(0), arrived("first", tenant="t0"))
    for number in range(30):
        told(scheduler, at(0), *[arrived(f"{number}/{each}", tenant=f"t{number}") for each in range(1 + number % 3)])

    shown = scheduler.summary().queued_tenants

    assert shown == {("interactive", f"t{number}"): 1 + number % 3 for number in range(30)}


def test_classes_in_which_nobody_waits_are_there_with_zero() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), completed("r"))

    assert scheduler.summary().queued == {"interactive": 0, "batch": 0}


def test_long_prompts_wait_in_a_line_of_their_own_and_count_with_their_band() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), arrived("s"), arrived("l", prompt_bytes=40_000))
    together = cost_ns(EngineSpeed(), 25, 150) + cost_ns(EngineSpeed(), 10_000, 150)

    assert scheduler.summary().waiting == (Waiting((PoolName("p"),), band=0, work_ns=together),)
