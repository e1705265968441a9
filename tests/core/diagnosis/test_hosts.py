"""Tests for the checks on gateway processes, the store and the database."""

from dataclasses import replace

from headgate.core.diagnosis.baseline import LearnedBaseline
from headgate.core.diagnosis.host_monitor import PROCESSES_MAX, HostMonitor
from headgate.model.units import Duration
from headgate.model.verdict import HostReport, Incident, Shortage
from testing.builders import at, duration
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
    way = () if transport is None else ((POOL, duration(transport)),)
    store_ns = None if store is None else duration(store)
    shortages = () if short is None else (Shortage(short, "Raise the limit."),)
    return HostReport(
        process, duration(lag), cpu, 5, way, store_ns, store_up=store_up, database_up=database_up, shortages=shortages
    )


def hosts(*reports: HostReport, usual: int = 20) -> HostMonitor:
    """Returns the state after `usual` healthy reports, followed by `reports`."""
    seen = HostMonitor()
    for _ in range(usual):
        seen.record(report(transport=0.001), at(0))
        seen.learn()
        seen.learn_transport(POOL)
    for each in reports:
        seen.record(each, at(1))
    return seen


def told(*reports: HostReport, usual: int = 20) -> Incident | None:
    one = hosts(*reports, usual=usual).find_incident(at(1))
    return None if one is None else one.incident


def test_unresolved_names_are_reported_last() -> None:
    unresolved = replace(
        report(), shortages=(Shortage("no answer for a.test", "Check the name server.", partial=True),)
    )
    one = hosts(*[unresolved] * 5).find_incident(at(1))

    assert one is not None
    assert one.partial
    assert one.sentence == "Process g1 cannot resolve names: no answer for a.test."
    assert told(*[replace(unresolved, loop_lag_ns=duration(0.4))] * 5) is Incident.SCHEDULER_BEHIND


def test_repeated_loop_lag_is_reported_as_scheduler_behind() -> None:
    late = report(lag=0.4)

    assert told(late, late, late) is None
    assert told(late, late, late, late) is Incident.SCHEDULER_BEHIND
    assert told(late, late, late, late, usual=0) is Incident.SCHEDULER_BEHIND


def test_lag_in_a_process_with_low_cpu_usage_is_reported_only_if_it_is_long() -> None:
    starved, long = report(lag=0.4, cpu=20), report(lag=1.5, cpu=20)

    assert told(*[starved] * 5) is None
    assert told(*[long] * 5) is Incident.SCHEDULER_BEHIND


def test_time_waiting_for_a_cpu_is_counted_as_cpu_usage() -> None:
    starved = replace(report(lag=0.3, cpu=30), cpu_wait_percent=45)

    assert told(*[starved] * 5) is Incident.SCHEDULER_BEHIND
    assert told(*[replace(starved, cpu_wait_percent=30)] * 5) is None


def test_saturated_process_is_reported_at_a_shorter_lag() -> None:
    full = report(lag=0.12, cpu=96)

    assert told(full, full, full) is None
    assert told(full, full, full, full) is Incident.SCHEDULER_BEHIND
    assert told(*[report(lag=0.12, cpu=80)] * 5) is None
    assert told(*[report(lag=0.05, cpu=96)] * 5) is None


def test_slow_or_unreachable_store_is_reported() -> None:
    slow, away = report(store=0.1), report(store=None, store_up=False)

    assert told(slow, slow) is None
    assert told(slow, slow, slow) is Incident.STORE_SLOW
    assert told(away, away, away) is Incident.STORE_SLOW


def test_round_trips_from_a_lagging_process_do_not_make_the_store_look_slow() -> None:
    late = report(store=0.11, lag=0.1, cpu=50)
    late_before = report(store=0.11, lag=0.001)

    assert told(*[late] * 5) is None
    assert told(late, late_before, late, late_before, late) is None
    assert told(late, late_before, late_before, late_before, late) is None
    assert told(late, *[late_before] * 4) is Incident.STORE_SLOW


def test_store_with_constant_high_latency_is_not_reported_as_slow() -> None:
    far, seen = report(store=0.025), HostMonitor()
    for second in range(60):
        seen.record(far, at(second))
        assert seen.find_incident(at(second)) is None
        seen.learn()
    for _ in range(3):
        seen.record(report(store=0.11), at(61))
    assert seen.find_incident(at(61)) is None
    assert told(*[report(store=0.25)] * 3, usual=0) is Incident.STORE_SLOW


def test_resource_shortage_is_reported_with_its_remedy() -> None:
    short = report(short="no file descriptors are left")

    assert told(short, short) is None
    one = hosts(short, short, short, report()).find_incident(at(1))

    assert one is not None
    assert one.incident is Incident.GATEWAY_RESOURCES
    assert one.sentence == "Process g1 lacks a resource: no file descriptors are left."
    assert one.evidence == ("no file descriptors are left",)
    assert one.action == "Raise the limit."


def test_unreachable_database_is_reported_after_several_reports() -> None:
    gone = report(database_up=False)

    assert told(gone, gone, gone, gone) is None
    assert told(gone, gone, gone, gone, gone) is Incident.STORE_SLOW


def test_reports_from_a_stopped_process_expire() -> None:
    seen = hosts(*[report(lag=1)] * 5)

    assert seen.find_incident(at(10)) is not None
    assert seen.find_incident(at(100)) is None


def test_stopped_processes_make_room_for_new_ones_at_the_limit() -> None:
    seen = HostMonitor()
    for number in range(PROCESSES_MAX + 1):
        seen.record(report(f"g{number}"), at(0))
    for _ in range(5):
        seen.record(report("late", lag=1), at(0))
    assert seen.find_incident(at(1)) is None
    for _ in range(5):
        seen.record(report("late", lag=1), at(50))
    assert seen.find_incident(at(50)) is not None


def test_pool_connection_time_is_taken_from_the_slowest_process() -> None:
    seen = hosts(*[report("g2", transport=0.2)] * 3, report("g3", transport=0.1), report("g4"))

    assert seen.transport_ns(POOL) == duration(0.199)
    assert seen.transport_usual_ns(POOL) == 0


def test_event_loop_lag_is_not_counted_as_connection_time() -> None:
    late = report("g2", transport=0.06, lag=0.05)

    assert hosts(*[late] * 5).transport_ns(POOL) == duration(0.01)


def test_temporarily_slow_connections_do_not_become_the_normal_value() -> None:
    seen = hosts()
    for _ in range(30):
        seen.record(report(transport=1.03), at(1))
        seen.learn_transport(POOL)
    usual = seen.transport_usual_ns(POOL)

    assert usual is not None
    assert usual < duration(0.005)


def test_connection_time_is_unknown_without_reports() -> None:
    seen = hosts(report(store=None), usual=0)
    seen.learn()
    seen.learn_transport(POOL)

    assert seen.transport_ns(POOL) is None
    assert seen.transport_usual_ns(POOL) is None


def test_normal_value_adapts_slowly() -> None:
    usual = LearnedBaseline()
    for _ in range(400):
        usual.add(100)
    for _ in range(300):
        usual.add(200)

    assert usual.value is not None
    assert Duration(150) < usual.value < Duration(190)
