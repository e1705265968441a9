"""Does a fleet that is found by its name follow what the name stands for, and stand by its endpoints in an outage?"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from headgate.fleets.dns.fleet import ENDPOINTS_MAX, FAILURES_TOLD, DnsFleet, Membership, StartingAddresses
from headgate.fleets.dns.name_server import by_server
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.dns.resolve import Found, Resolve, Unanswered, by_system
from headgate.model.units import MILLISECOND, MINUTE, Duration, PoolName
from testing.name_server import AAAA, SRV, A, NameServer
from testing.ports import free_port
from tests.fleets.builders import Notes

NAME = "engines.test"
TRY_S_MAX = 20.0
SILENT_S_MAX = 0.1
"""Time for a try that gets no valid answer."""
EVERY = Duration(20 * MILLISECOND)
ONE, TWO, THREE = ("10.0.0.1", 8000), ("10.0.0.2", 8000), ("10.0.0.3", 8000)


def members(*, misses_max: int = 3, empty_s_max: float = 60, endpoints_max: int = 100) -> Membership:
    return Membership(misses_max=misses_max, empty_s_max=empty_s_max, endpoints_max=endpoints_max)


# Who is there


def test_an_address_joins_at_once_and_leaves_when_several_answers_in_a_row_lack_it() -> None:
    known = members()
    known.answered([ONE, TWO], 0)
    known.answered([TWO, THREE], 5)
    assert known.found == (ONE, TWO, THREE)
    known.answered([TWO, THREE], 10)
    assert known.found == (ONE, TWO, THREE)
    known.answered([TWO, THREE], 15)
    assert known.found == (TWO, THREE)


def test_a_server_that_gives_some_of_many_addresses_in_turns_loses_nobody() -> None:
    known = members()
    for turn in range(20):
        known.answered([(ONE, TWO, THREE)[turn % 3]], turn)
    assert set(known.found) == {ONE, TWO, THREE}


def test_an_empty_answer_empties_the_fleet_only_after_a_good_while_of_nothing_else() -> None:
    known = members()
    known.answered([ONE, TWO], 0)
    for now in range(5, 65, 5):
        known.answered([], now)
        assert known.found == (ONE, TWO)
    known.answered([], 65)
    assert known.found == ()


@pytest.mark.parametrize("between", ["an answer", "a failure"])
def test_what_comes_between_empty_answers_begins_the_while_anew(between: str) -> None:
    known = members()
    known.answered([ONE], 0)
    known.answered([], 5)
    if between == "an answer":
        known.answered([ONE], 60)
    else:
        known.failed()
    known.answered([], 66)
    assert known.found == (ONE,)


def test_answers_that_fail_change_nothing_however_often() -> None:
    known = members()
    known.answered([ONE, TWO], 0)
    known.answered([TWO], 5)
    for _ in range(1000):
        known.failed()
    assert known.found == (ONE, TWO)
    known.answered([TWO], 5000)
    known.answered([TWO], 5005)
    assert known.found == (TWO,), "what was heard before the outage still counts"


def test_addresses_beyond_the_bound_are_left_out_and_counted() -> None:
    known = members(endpoints_max=2)
    known.answered([ONE, TWO, THREE], 0)
    assert (known.found, known.left_out) == ((ONE, TWO), 1)


# What a real server says


@asynccontextmanager
async def a_server(*, error: int | None = None, **records: list) -> AsyncIterator[NameServer]:
    kinds = {"a": A, "aaaa": AAAA, "srv": SRV}
    server = NameServer({(NAME, kinds[kind]): values for kind, values in records.items()}, error=error)
    async with server.serving():
        yield server


def resolver(server: NameServer, port: int | None = 8000, name: str = NAME, *, try_s_max: float = TRY_S_MAX) -> Resolve:
    return by_server(name, port, ("127.0.0.1", server.port), try_s_max=try_s_max)


async def test_addresses_of_both_families_are_found() -> None:
    async with a_server(a=["10.0.0.2", "10.0.0.1"], aaaa=["fd00::1"]) as server:
        assert await resolver(server)() == [ONE, TWO, ("fd00::1", 8000)]


async def test_a_name_that_does_not_exist_stands_for_nothing() -> None:
    async with a_server(a=["10.0.0.1"]) as server:
        assert await resolver(server, name="other.test")() == []


async def test_services_bring_their_ports_and_only_the_first_priority_counts() -> None:
    services = [(1, 8001, "one.test"), (1, 8002, "two.test"), (2, 8003, "spare.test")]
    async with a_server(srv=services) as server:
        server.beside = {"one.test": ["10.0.0.1"]}
        server.records[("two.test", A)] = ["10.0.0.2"]
        assert await resolver(server, None)() == [("10.0.0.1", 8001), ("10.0.0.2", 8002)]
        assert ("one.test", A, "udp") not in server.asked, "its address came with the answer"


async def test_a_service_at_the_root_is_none() -> None:
    async with a_server(srv=[(0, 0, "")]) as server:
        assert await resolver(server, None)() == []


async def test_service_with_a_target_that_is_too_long_fails_the_lookup() -> None:
    too_long = ".".join(["x" * 63] * 4)
    async with a_server(srv=[(1, 8001, too_long)]) as server:
        with pytest.raises(Unanswered, match=r"no valid answer within 0\.1 s"):
            await resolver(server, None, try_s_max=SILENT_S_MAX)()


async def test_an_answer_too_long_for_a_packet_is_asked_for_over_tcp() -> None:
    many = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(400)]
    async with a_server(a=many) as server:
        assert len(await resolver(server)()) == 400
        assert (NAME, A, "tcp") in server.asked


@pytest.mark.parametrize(
    ("fault", "try_s_max", "said"),
    [
        ({"error": 2}, TRY_S_MAX, "the server answers SERVFAIL"),
        ({"error": 5}, TRY_S_MAX, "the server answers REFUSED"),
        ({"silent": True}, SILENT_S_MAX, "no valid answer within 0.1 s"),
        ({"garbles": True}, SILENT_S_MAX, "no valid answer within 0.1 s"),
    ],
    ids=["servfail", "refused", "silent", "garbled"],
)
async def test_failed_lookup_is_not_taken_for_a_name_without_addresses(
    fault: dict, try_s_max: float, said: str
) -> None:
    async with a_server(a=["10.0.0.1"]) as server:
        for name, value in fault.items():
            setattr(server, name, value)
        with pytest.raises(Unanswered, match=said):
            await resolver(server, try_s_max=try_s_max)()


async def test_answer_truncated_over_tcp_too_fails_the_lookup() -> None:
    many = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(400)]
    async with a_server(a=many) as server:
        server.truncates = True
        with pytest.raises(Unanswered, match="the answer is truncated over TCP too"):
            await resolver(server)()


async def test_server_named_by_host_name_is_asked() -> None:
    async with a_server(a=["10.0.0.1"]) as server:
        assert await by_server(NAME, 8000, ("localhost", server.port))() == [ONE]


def test_lookup_runs_on_the_event_loop_of_the_gateway() -> None:
    async def look_up() -> list[Found]:
        many = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(400)]
        async with a_server(a=many, aaaa=["fd00::1"]) as server:
            return await resolver(server)()

    assert len(uvloop.run(look_up())) == 401


async def test_closed_port_of_a_name_server_is_reported_at_once() -> None:
    port = free_port()
    with pytest.raises(Unanswered, match=f"name server 127.0.0.1 port {port} .* {NAME} A: connection refused"):
        await by_server(NAME, 8000, ("127.0.0.1", port))()


async def test_the_system_is_asked_where_no_server_is_named() -> None:
    assert ("127.0.0.1", 8000) in await by_system("localhost", 8000)()
    assert await by_system("127.0.0.9", 8000)() == [("127.0.0.9", 8000)]


# Addresses that are not ready yet


def test_listed_address_is_starting_until_it_has_been_ready() -> None:
    starting = StartingAddresses()
    starting.answered([ONE, TWO], (ONE,))
    assert starting.found == (TWO,)
    starting.answered([ONE, TWO], (ONE, TWO))
    assert starting.found == ()


def test_address_that_is_no_longer_ready_is_terminating_and_may_start_again_later() -> None:
    starting = StartingAddresses()
    starting.answered([ONE], (ONE,))
    starting.answered([ONE], ())
    assert starting.found == ()
    starting.answered([], ())
    starting.answered([ONE], ())
    assert starting.found == (ONE,), "another pod has got the address"


# The fleet


@asynccontextmanager
async def a_fleet(
    server: NameServer,
    *,
    empty_ns_max: int = MINUTE,
    endpoints_max: int = ENDPOINTS_MAX,
    resolve_starting: Resolve | None = None,
) -> AsyncIterator[tuple[DnsFleet, Notes, asyncio.Event]]:
    notes, changed = Notes(), asyncio.Event()
    options = DnsOptions(name=NAME, in_flight_max=4, every_ns=EVERY, empty_ns_max=Duration(empty_ns_max))
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


async def test_the_fleet_follows_the_name() -> None:
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


async def test_endpoint_is_starting_until_the_first_name_has_its_address() -> None:
    listed: list[Found] | None = [ONE, TWO]

    async def resolve_starting() -> list[Found]:
        if listed is None:
            raise Unanswered("no answer")
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
        fleet.change(DnsOptions(name=NAME, in_flight_max=4, every_ns=EVERY), resolver(server), None)
        assert set(started(fleet)) == {"p/10.0.0.1:8000", "p/10.0.0.2:8000"}


async def test_an_outage_of_the_name_server_is_told_once_and_empties_nothing() -> None:
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
        assert "the 1 endpoints that are known stay; look at the name server" in problem
        server.error = None
        await until(lambda: notes.recoveries)
    assert notes.recoveries == [NAME]


async def test_failing_name_server_is_a_problem_until_it_answers_again() -> None:
    async with a_server(a=["10.0.0.1"]) as server, a_fleet(server) as (fleet, _, changed):
        await changed.wait()
        assert fleet.problem is None
        server.error = 2
        await until(lambda: fleet.problem)
        problem = fleet.problem
        server.error = None
        await until(lambda: fleet.problem is None)

    assert problem is not None
    assert f"gave no answer for {NAME}" in problem
    assert "the server answers SERVFAIL, and the known endpoints stay in use" in problem


async def test_name_server_that_fails_from_the_start_is_a_problem() -> None:
    async with a_server(error=2) as server, a_fleet(server) as (fleet, _, _):
        await until(lambda: fleet.problem)

        assert str(fleet.problem).endswith("and no endpoint is known")


async def test_name_without_addresses_is_no_problem_of_the_name_server() -> None:
    async with a_server(a=["10.0.0.1"]) as server, a_fleet(server) as (fleet, _, changed):
        await changed.wait()
        server.records.clear()
        asked = len(server.asked)
        await until(lambda: len(server.asked) > asked + 3 * FAILURES_TOLD)

        assert fleet.problem is None


async def test_a_name_that_stands_for_nobody_any_more_empties_the_fleet_in_the_end() -> None:
    async with (
        a_server(a=["10.0.0.1"]) as server,
        a_fleet(server, empty_ns_max=200 * MILLISECOND) as (fleet, _, changed),
    ):
        await changed.wait()
        assert urls(fleet) == ["http://10.0.0.1:8000"]
        server.records.clear()
        await until(lambda: urls(fleet) == [])


async def test_other_terms_keep_who_is_known() -> None:
    async with a_server(a=["10.0.0.1"]) as server, a_fleet(server) as (fleet, _, changed):
        await changed.wait()
        found: list[Found] = [("10.0.0.1", 9000)]

        async def resolve() -> list[Found]:
            return found

        fleet.change(DnsOptions(name=NAME, in_flight_max=9, every_ns=EVERY, misses_max=2), resolve, None)
        assert [(each.url, each.in_flight_max) for each in fleet.endpoints()] == [("http://10.0.0.1:8000", 9)]
        await until(lambda: urls(fleet) == ["http://10.0.0.1:9000"])


async def test_too_many_addresses_are_told() -> None:
    many = [f"10.0.0.{number}" for number in range(1, 20)]
    async with a_server(a=many) as server, a_fleet(server, endpoints_max=5) as (fleet, notes, changed):
        await changed.wait()
        assert len(fleet.endpoints()) == 5
        await asyncio.sleep(0.1)
        assert [what for what, _ in notes.troubles] == [NAME]
