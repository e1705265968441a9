"""Is it seen that a process falls behind, or that what it depends on does?"""

from dataclasses import replace

from headgate.core.diagnosis.hosts_seen import PROCESSES_MAX, HostsSeen
from headgate.core.diagnosis.usual import Usual
from headgate.model.units import Duration
from headgate.model.verdict import HostReport, Incident, Shortage
from testing.builders import at, lasting
from tests.core.diagnosis.pictures import POOL


def report(
    process: str = "g1",
    *,
    lag: float = 0.001,
    cpu: int = 90,
    store: float | None = 0.001,
    transport: float | None = None,
    store_up: bool = True,
    database_up: bool | None = None,
    short: str | None = None,
) -> HostReport:
    way = () if transport is None else ((POOL, lasting(transport)),)
    store_ns = None if store is None else lasting(store)
    shortages = () if short is None else (Shortage(short, "Get more of it."),)
    return HostReport(
        process, lasting(lag), cpu, 5, way, store_ns, store_up=store_up, database_up=database_up, shortages=shortages
    )


def hosts(*reports: HostReport, usual: int = 20) -> HostsSeen:
    """After so many reports in which all was well."""
    seen = HostsSeen()
    for _ in range(usual):
        seen.reported(report(transport=0.001), at(0))
        seen.learn()
        seen.learn_transport(POOL)
    for each in reports:
        seen.reported(each, at(1))
    return seen


def told(*reports: HostReport, usual: int = 20) -> Incident | None:
    one = hosts(*reports, usual=usual).found(at(1))
    return None if one is None else one.incident


def test_names_that_do_not_resolve_are_reported_after_all_else() -> None:
    unresolved = replace(report(), shortages=(Shortage("no answer for a.test", "Check it.", partial=True),))
    one = hosts(*[unresolved] * 5).found(at(1))

    assert one is not None
    assert one.partial
    assert one.sentence == "Process g1 cannot resolve names: no answer for a.test."
    assert told(*[replace(unresolved, loop_lag_ns=lasting(0.4))] * 5) is Incident.SCHEDULER_BEHIND


def test_a_loop_that_is_late_again_and_again_falls_behind() -> None:
    late = report(lag=0.4)

    assert told(late, late, late) is None
    assert told(late, late, late, late) is Incident.SCHEDULER_BEHIND
    assert told(late, late, late, late, usual=0) is Incident.SCHEDULER_BEHIND


def test_a_process_that_others_keep_from_running_is_told_when_that_is_long() -> None:
    starved, long = report(lag=0.4, cpu=20), report(lag=1.5, cpu=20)

    assert told(*[starved] * 5) is None
    assert told(*[long] * 5) is Incident.SCHEDULER_BEHIND


def test_process_that_waits_for_a_processor_is_as_busy_as_one_that_uses_it() -> None:
    starved = replace(report(lag=0.3, cpu=30), wait_percent=45)

    assert told(*[starved] * 5) is Incident.SCHEDULER_BEHIND
    assert told(*[replace(starved, wait_percent=30)] * 5) is None


def test_saturated_process_falls_behind_at_a_shorter_lag() -> None:
    full = report(lag=0.12, cpu=96)

    assert told(full, full, full) is None
    assert told(full, full, full, full) is Incident.SCHEDULER_BEHIND
    assert told(*[report(lag=0.12, cpu=80)] * 5) is None
    assert told(*[report(lag=0.05, cpu=96)] * 5) is None


def test_a_store_that_is_slow_or_away_is_told() -> None:
    slow, away = report(store=0.1), report(store=None, store_up=False)

    assert told(slow, slow) is None
    assert told(slow, slow, slow) is Incident.STORE_SLOW
    assert told(away, away, away) is Incident.STORE_SLOW


def test_round_trips_of_a_process_that_reads_late_do_not_make_the_store_slow() -> None:
    late = report(store=0.11, lag=0.1, cpu=50)
    late_before = report(store=0.11, lag=0.001)

    assert told(*[late] * 5) is None
    assert told(late, late_before, late, late_before, late) is None
    assert told(late, late_before, late_before, late_before, late) is None
    assert told(late, *[late_before] * 4) is Incident.STORE_SLOW


def test_a_store_that_has_always_been_far_away_is_not_slow() -> None:
    far, seen = report(store=0.025), HostsSeen()
    for second in range(60):
        seen.reported(far, at(second))
        assert seen.found(at(second)) is None
        seen.learn()
    for _ in range(3):
        seen.reported(report(store=0.11), at(61))
    assert seen.found(at(61)) is None
    assert told(*[report(store=0.25)] * 3, usual=0) is Incident.STORE_SLOW


def test_a_process_that_lacks_a_resource_names_it_and_the_remedy() -> None:
    short = report(short="no file descriptors are left")

    assert told(short, short) is None
    one = hosts(short, short, short, report()).found(at(1))

    assert one is not None
    assert one.incident is Incident.GATEWAY_RESOURCES
    assert one.sentence == "Process g1 lacks a resource: no file descriptors are left."
    assert one.evidence == ("no file descriptors are left",)
    assert one.action == "Get more of it."


def test_a_database_that_does_not_answer_for_long_is_told() -> None:
    gone = report(database_up=False)

    assert told(gone, gone, gone, gone) is None
    assert told(gone, gone, gone, gone, gone) is Incident.STORE_SLOW


def test_who_has_gone_is_forgotten() -> None:
    seen = hosts(*[report(lag=1)] * 5)

    assert seen.found(at(10)) is not None
    assert seen.found(at(100)) is None


def test_of_too_many_processes_those_that_have_gone_make_room() -> None:
    seen = HostsSeen()
    for number in range(PROCESSES_MAX + 1):
        seen.reported(report(f"g{number}"), at(0))
    for _ in range(5):
        seen.reported(report("late", lag=1), at(0))
    assert seen.found(at(1)) is None
    for _ in range(5):
        seen.reported(report("late", lag=1), at(50))
    assert seen.found(at(50)) is not None


def test_the_way_to_a_pool_is_that_of_the_worst_process() -> None:
    seen = hosts(*[report("g2", transport=0.2)] * 3, report("g3", transport=0.1), report("g4"))

    assert seen.transport_ns(POOL) == lasting(0.199)
    assert seen.transport_usual_ns(POOL) == 0


def test_connections_are_not_slow_because_the_event_loop_is_late() -> None:
    late = report("g2", transport=0.06, lag=0.05)

    assert hosts(*[late] * 5).transport_ns(POOL) == lasting(0.01)


def test_connections_that_were_slow_for_a_moment_do_not_become_usual() -> None:
    seen = hosts()
    for _ in range(30):
        seen.reported(report(transport=1.03), at(1))
        seen.learn_transport(POOL)
    usual = seen.transport_usual_ns(POOL)

    assert usual is not None
    assert usual < lasting(0.005)


def test_of_a_pool_without_news_nothing_is_known() -> None:
    seen = hosts(report(store=None), usual=0)
    seen.learn()
    seen.learn_transport(POOL)

    assert seen.transport_ns(POOL) is None
    assert seen.transport_usual_ns(POOL) is None


def test_what_is_usual_follows_slowly() -> None:
    usual = Usual()
    for _ in range(400):
        usual.add(100)
    for _ in range(300):
        usual.add(200)

    assert usual.value is not None
    assert Duration(150) < usual.value < Duration(190)
