"""A DNS fleet tracks the addresses behind its name and keeps its endpoints while the name server is failing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from headgate.fleets.dns.fleet import ENDPOINTS_MAX, FAILURES_REPORTED, DnsFleet, Membership, StartingAddresses
from headgate.fleets.dns.name_server import name_server_resolver
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.dns.resolve import HostPort, LookupFailed, Resolve, system_resolver
from headgate.model.units import MILLISECOND, MINUTE, Duration, PoolName
from testing.dns_server import AAAA, SRV, A, DnsServer
from testing.ports import free_port
from tests.fleets.builders import Notes

NAME = "engines.test"
TRY_S_MAX = 20.0
SILENT_S_MAX = 0.1
"""Timeout for a query that gets no valid response, in seconds."""
EVERY = Duration(20 * MILLISECOND)
ONE, TWO, THREE = ("10.0.0.1", 8000), ("10.0.0.2", 8000), ("10.0.0.3", 8000)


def members(*, misses_max: int = 3, empty_s_max: float = 60, endpoints_max: int = 100) -> Membership:
    return Membership(misses_max=misses_max, empty_s_max=empty_s_max, endpoints_max=endpoints_max)


# Membership


def test_address_joins_immediately_and_leaves_after_several_misses() -> None:
    known = members()
    known.record_answer([ONE, TWO], 0)
    known.record_answer([TWO, THREE], 5)
    assert known.found == (ONE, TWO, THREE)
    known.record_answer([TWO, THREE], 10)
    assert known.found == (ONE, TWO, THREE)
    known.record_answer([TWO, THREE], 15)
    assert known.found == (TWO, THREE)


def test_rotating_name_server_does_not_remove_any_address() -> None:
    known = members()
    for turn in range(20):
        known.record_answer([(ONE, TWO, THREE)[turn % 3]], turn)
    assert set(known.found) == {ONE, TWO, THREE}


def test_empty_responses_empty_the_fleet_only_after_the_timeout() -> None:
    known = members()
    known.record_answer([ONE, TWO], 0)
    for now in range(5, 65, 5):
        known.record_answer([], now)
        assert known.found == (ONE, TWO)
    known.record_answer([], 65)
    assert known.found == ()


@pytest.mark.parametrize("between", ["an answer", "a failure"])
def test_response_or_failure_restarts_the_timeout_for_empty_responses(between: str) -> None:
    known = members()
    known.record_answer([ONE], 0)
    known.record_answer([], 5)
    if between == "an answer":
        known.record_answer([ONE], 60)
    else:
        known.record_failure()
    known.record_answer([], 66)
    assert known.found == (ONE,)


def test_failed_lookups_do_not_change_the_fleet() -> None:
    known = members()
    known.record_answer([ONE, TWO], 0)
    known.record_answer([TWO], 5)
    for _ in range(1000):
        known.record_failure()
    assert known.found == (ONE, TWO)
    known.record_answer([TWO], 5000)
    known.record_answer([TWO], 5005)
    assert known.found == (TWO,), "misses from before the outage still count"


def test_addresses_beyond_the_limit_are_omitted_and_counted() -> None:
    known = members(endpoints_max=2)
    known.record_answer([ONE, TWO, THREE], 0)
    assert (known.found, known.dropped) == ((ONE, TWO), 1)


# Lookups against a real name server


@asynccontextmanager
async def a_server(*, error: int | None = None, **records: list) -> AsyncIterator[DnsServer]:
    kinds = {"a": A, "aaaa": AAAA, "srv": SRV}
    server = DnsServer({(NAME, kinds[kind]): values for kind, values in records.items()}, error=error)
    async with server.serving():
        yield server


def resolver(server: DnsServer, port: int | None = 8000, name: str = NAME, *, try_s_max: float = TRY_S_MAX) -> Resolve:
    return name_server_resolver(name, port, ("127.0.0.1", server.port), try_s_max=try_s_max)


async def test_lookup_returns_addresses_of_both_families() -> None:
    async with a_server(a=["10.0.0.2", "10.0.0.1"], aaaa=["fd00::1"]) as server:
        assert await resolver(server)() == [ONE, TWO, ("fd00::1", 8000)]


async def test_unknown_name_has_no_addresses() -> None:
    async with a_server(a=["10.0.0.1"]) as server:
        assert await resolver(server, name="other.test")() == []


async def test_srv_lookup_uses_ports_and_only_the_first_priority() -> None:
    services = [(1, 8001, "one.test"), (1, 8002, "two.test"), (2, 8003, "spare.test")]
    async with a_server(srv=services) as server:
        server.beside = {"one.test": ["10.0.0.1"]}
        server.records[("two.test", A)] = ["10.0.0.2"]
        assert await resolver(server, None)() == [("10.0.0.1", 8001), ("10.0.0.2", 8002)]
        assert ("one.test", A, "udp") not in server.asked, "the response already contained its address"


async def test_srv_target_at_the_root_means_no_service() -> None:
    async with a_server(srv=[(0, 0, "")]) as server:
        assert await resolver(server, None)() == []


async def test_overlong_service_target_fails_the_lookup() -> None:
    too_long = ".".join(["x" * 63] * 4)
    async with a_server(srv=[(1, 8001, too_long)]) as server:
        with pytest.raises(LookupFailed, match=r"no valid response within 0\.1 s"):
            await resolver(server, None, try_s_max=SILENT_S_MAX)()


async def test_truncated_response_is_queried_again_over_tcp() -> None:
    many = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(400)]
    async with a_server(a=many) as server:
        assert len(await resolver(server)()) == 400
        assert (NAME, A, "tcp") in server.asked


@pytest.mark.parametrize(
    ("fault", "try_s_max", "said"),
    [
        ({"error": 2}, TRY_S_MAX, "the server returned SERVFAIL"),
        ({"error": 5}, TRY_S_MAX, "the server returned REFUSED"),
        ({"silent": True}, SILENT_S_MAX, "no valid response within 0.1 s"),
        ({"garbles": True}, SILENT_S_MAX, "no valid response within 0.1 s"),
    ],
    ids=["servfail", "refused", "silent", "garbled"],
)
async def test_failed_lookup_is_not_treated_as_a_name_without_addresses(
    fault: dict, try_s_max: float, said: str
) -> None:
    async with a_server(a=["10.0.0.1"]) as server:
        for name, value in fault.items():
            setattr(server, name, value)
        with pytest.raises(LookupFailed, match=said):
            await resolver(server, try_s_max=try_s_max)()


async def test_answer_also_truncated_over_tcp_fails_the_lookup() -> None:
    many = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(400)]
    async with a_server(a=many) as server:
        server.truncates = True
        with pytest.raises(LookupFailed, match="the response is truncated over TCP too"):
            await resolver(server)()


async def test_name_server_may_be_given_by_host_name() -> None:
    async with a_server(a=["10.0.0.1"]) as server:
        assert await name_server_resolver(NAME, 8000, ("localhost", server.port))() == [ONE]


def test_lookup_runs_on_the_gateways_event_loop() -> None:
    async def look_up() -> list[HostPort]:
        many = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(400)]
        async with a_server(a=many, aaaa=["fd00::1"]) as server:
            return await resolver(server)()

    assert len(uvloop.run(look_up())) == 401


async def test_closed_name_server_port_is_reported_immediately() -> None:
    port = free_port()
    with pytest.raises(LookupFailed, match=f"{NAME} A to name server 127.0.0.1 port {port} failed: connection refused"):
        await name_server_resolver(NAME, 8000, ("127.0.0.1", port))()


async def test_system_resolver_is_used_without_a_name_server() -> None:
    assert ("127.0.0.1", 8000) in await system_resolver("localhost", 8000)()
    assert await system_resolver("127.0.0.9", 8000)() == [("127.0.0.9", 8000)]


# Addresses that are not ready yet


def test_listed_address_is_starting_until_it_has_been_ready() -> None:
    starting = StartingAddresses()
    starting.record_answer([ONE, TWO], (ONE,))
    assert starting.found == (TWO,)
    starting.record_answer([ONE, TWO], (ONE, TWO))
    assert starting.found == ()


def test_address_is_terminating_once_unready_and_may_start_again_later() -> None:
    starting = StartingAddresses()
    starting.record_answer([ONE], (ONE,))
    starting.record_answer([ONE], ())
    assert starting.found == ()
    starting.record_answer([], ())
    starting.record_answer([ONE], ())
    assert starting.found == (ONE,), "another pod has the address now"


# The fleet


@asynccontextmanager
async def a_fleet(
    server: DnsServer,
    *,
    empty_ns_max: int = MINUTE,
    endpoints_max: int = ENDPOINTS_MAX,
    resolve_starting: Resolve | None = None,
) -> AsyncIterator[tuple[DnsFleet, Notes, asyncio.Event]]:
    notes, changed = Notes(), asyncio.Event()
    options = DnsOptions(name=NAME, in_flight_max=4, resolve_interval_ns=EVERY, empty_after_ns=Duration(empty_ns_max))
    fleet = DnsFleet(
        PoolName("p"),
        options,
        resolver(server),
        notes,
        resolve_starting=resolve_starting,
        endpoints_max=endpoints_max,
    )
    await fleet.start(changed.set)
    try:
        async with asyncio.timeout(30):
            yield fleet, notes, changed
    finally:
        await fleet.stop()


def urls(fleet: DnsFleet) -> list[str]:
    return [each.url for each in fleet.endpoints()]


async def until(reached: Callable[[], object]) -> None:
    while not reached():
        await asyncio.sleep(0.01)


async def test_fleet_follows_the_addresses_for_its_name() -> None:
    async with a_server(a=["10.0.0.1"], aaaa=["fd00::1"]) as server, a_fleet(server) as (fleet, _, changed):
        await changed.wait()
        first, second = fleet.endpoints()
        assert (first.id, first.url, first.in_flight_max, first.started) == (
            "p/10.0.0.1:8000",
            "http://10.0.0.1:8000",
            4,
            True,
        )
        assert second.url == "http://[fd00::1]:8000"
        server.records[(NAME, A)] = ["10.0.0.2"]
        await until(lambda: urls(fleet) == ["http://[fd00::1]:8000", "http://10.0.0.2:8000"])


async def test_endpoint_is_starting_until_the_first_name_resolves() -> None:
    listed: list[HostPort] | None = [ONE, TWO]

    async def resolve_starting() -> list[HostPort]:
        if listed is None:
            raise LookupFailed("no answer")
        return listed

    def started(fleet: DnsFleet) -> dict[str, bool]:
        return {each.id: each.started for each in fleet.endpoints()}

    async with (
        a_server(a=["10.0.0.1"]) as server,
        a_fleet(server, resolve_starting=resolve_starting) as (fleet, _, changed),
    ):
        await until(lambda: started(fleet) == {"p/10.0.0.1:8000": True, "p/10.0.0.2:8000": False})
        listed = None
        changed.clear()
        server.records[(NAME, A)] = ["10.0.0.1", "10.0.0.2"]
        await until(lambda: started(fleet) == {"p/10.0.0.1:8000": True, "p/10.0.0.2:8000": True})
        assert changed.is_set()
        listed = [ONE, TWO, THREE]
        await until(lambda: "p/10.0.0.3:8000" in started(fleet))
        fleet.reconfigure(DnsOptions(name=NAME, in_flight_max=4, resolve_interval_ns=EVERY), resolver(server), None)
        assert set(started(fleet)) == {"p/10.0.0.1:8000", "p/10.0.0.2:8000"}


async def test_name_server_outage_is_reported_once_and_keeps_the_endpoints() -> None:
    async with (
        a_server(a=["10.0.0.1"]) as server,
        a_fleet(server, empty_ns_max=50 * MILLISECOND) as (fleet, notes, changed),
    ):
        await changed.wait()
        server.error = 2
        await until(lambda: notes.troubles)
        asked = len(server.asked)
        await until(lambda: len(server.asked) > asked + 20)
        assert urls(fleet) == ["http://10.0.0.1:8000"]
        [(what, problem)] = notes.troubles
        assert what == NAME
        assert "known endpoints stay in use (1); check the name server" in problem
        server.error = None
        await until(lambda: notes.recoveries)
    assert notes.recoveries == [NAME]


async def test_failing_name_server_is_reported_as_a_problem_until_it_answers_again() -> None:
    async with a_server(a=["10.0.0.1"]) as server, a_fleet(server) as (fleet, _, changed):
        await changed.wait()
        assert fleet.problem is None
        server.error = 2
        await until(lambda: fleet.problem)
        problem = fleet.problem
        server.error = None
        await until(lambda: fleet.problem is None)

    assert problem is not None
    assert f"query for {NAME}" in problem
    assert "the server returned SERVFAIL, and the known endpoints stay in use" in problem


async def test_name_server_failing_from_the_start_is_reported_as_a_problem() -> None:
    async with a_server(error=2) as server, a_fleet(server) as (fleet, _, _):
        await until(lambda: fleet.problem)

        assert str(fleet.problem).endswith("and no endpoint is known")


async def test_name_without_addresses_is_not_reported_as_a_name_server_problem() -> None:
    async with a_server(a=["10.0.0.1"]) as server, a_fleet(server) as (fleet, _, changed):
        await changed.wait()
        server.records.clear()
        asked = len(server.asked)
        await until(lambda: len(server.asked) > asked + 3 * FAILURES_REPORTED)

        assert fleet.problem is None


async def test_name_without_addresses_eventually_empties_the_fleet() -> None:
    async with (
        a_server(a=["10.0.0.1"]) as server,
        a_fleet(server, empty_ns_max=200 * MILLISECOND) as (fleet, _, changed),
    ):
        await changed.wait()
        assert urls(fleet) == ["http://10.0.0.1:8000"]
        server.records.clear()
        await until(lambda: urls(fleet) == [])


async def test_changed_options_keep_known_endpoints() -> None:
    async with a_server(a=["10.0.0.1"]) as server, a_fleet(server) as (fleet, _, changed):
        await changed.wait()
        found: list[HostPort] = [("10.0.0.1", 9000)]

        async def resolve() -> list[HostPort]:
            return found

        fleet.reconfigure(
            DnsOptions(name=NAME, in_flight_max=9, resolve_interval_ns=EVERY, misses_max=2), resolve, None
        )
        assert [(each.url, each.in_flight_max) for each in fleet.endpoints()] == [("http://10.0.0.1:8000", 9)]
        await until(lambda: urls(fleet) == ["http://10.0.0.1:9000"])


async def test_too_many_addresses_are_reported() -> None:
    many = [f"10.0.0.{number}" for number in range(1, 20)]
    async with a_server(a=many) as server, a_fleet(server, endpoints_max=5) as (fleet, notes, changed):
        await changed.wait()
        assert len(fleet.endpoints()) == 5
        await asyncio.sleep(0.1)
        assert [what for what, _ in notes.troubles] == [NAME]
