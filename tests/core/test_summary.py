"""Summary of the scheduler's state."""

from headgate.core.cost import cost_ns
from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary, PoolDegradation, Summary, WaitingWork
from headgate.model.endpoint import EndpointState
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName, EndpointId, PoolName
from testing.builders import a_policy, a_scheduler, arrived, at, commands_for, completed, joined, leaving


def test_summary_of_new_scheduler_is_empty() -> None:
    assert Scheduler().summary() == Summary(policy_hash="", queued={}, requests=0, endpoints=())


def test_summary_counts_queued_requests_by_class_and_running_ones_by_endpoint() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(
        scheduler, at(0), *[arrived(name) for name in "abc"], arrived("d", service_class="batch"), joined("e2")
    )
    commands_for(scheduler, at(0), leaving("e1"))

    assert scheduler.summary() == Summary(
        policy_hash="h1",
        queued={ClassName("interactive"): 1, ClassName("batch"): 1},
        requests=4,
        endpoints=(
            EndpointSummary(EndpointId("e1"), PoolName("p"), EndpointState.READY, True, 2, 2, kv_tokens=50),
            EndpointSummary(EndpointId("e2"), PoolName("p"), EndpointState.WARMING, False, 0, 1),
        ),
        degradation=(PoolDegradation(PoolName("p"), level=0, shed_ppm=0),),
        waiting_work=(
            WaitingWork((PoolName("p"),), band=0, work_ns=cost_ns(EngineSpeed(), 25, 150)),
            WaitingWork((PoolName("p"),), band=1, work_ns=cost_ns(EngineSpeed(), 25, 150)),
        ),
        queued_tenants={("interactive", "acme"): 1, ("batch", "acme"): 1},
    )


def test_summary_counts_every_tenants_queued_requests() -> None:
    scheduler = a_scheduler(policy=a_policy(tenants=tuple(f"t{number}" for number in range(30))))
    commands_for(scheduler, at(0), arrived("first", tenant="t0"))
    for number in range(30):
        commands_for(
            scheduler, at(0), *[arrived(f"{number}/{each}", tenant=f"t{number}") for each in range(1 + number % 3)]
        )

    shown = scheduler.summary().queued_tenants

    assert shown == {("interactive", f"t{number}"): 1 + number % 3 for number in range(30)}


def test_summary_includes_classes_without_queued_requests() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), completed("r"))

    assert scheduler.summary().queued == {"interactive": 0, "batch": 0}


def test_queued_long_prompts_are_counted_in_their_band() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), arrived("s"), arrived("l", prompt_bytes=40_000))
    together = cost_ns(EngineSpeed(), 25, 150) + cost_ns(EngineSpeed(), 10_000, 150)

    assert scheduler.summary().waiting_work == (WaitingWork((PoolName("p"),), band=0, work_ns=together),)
