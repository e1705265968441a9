"""What is there about Redis beside the contract: passwords, TLS, Sentinel, slowness, and what people are told?"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import hiredis
import pytest
import uvloop

from headgate.hosts.cell.protocol.messages import Epoch, Snapshots
from headgate.hosts.cell.protocol.store import Parcel
from headgate.hosts.cell.redis.connect import Connector
from headgate.hosts.cell.redis.intake import TRIM_ENTRIES, Intake
from headgate.hosts.cell.redis.place import Place, place_of
from headgate.hosts.cell.redis.problem import problem_of
from headgate.hosts.cell.redis.store import RedisStore
from headgate.hosts.cell.redis.wire import Wire
from testing.ports import free_port
from testing.processes import MissingPart
from testing.stalls import again_if_stalled
from testing.stores import Server, made_certificates, redis
from tests.hosts.cell.protocol.test_store import a_claim
from tests.hosts.cell.store_places import Member, Recorder, StorePlace, absent, be_patient, sentinel_set, until

SECRET = "pa55-%2F-w0rd"
"""As it stands in an address; `pa55-/-w0rd` as it is sent."""
PLAIN = "pa55-/-w0rd"


@contextlib.contextmanager
def a_redis(**how: Any) -> Generator[Server]:
    try:
        with redis(**how) as server:
            yield server
    except MissingPart as missing:
        absent(missing)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@asynccontextmanager
async def a_store(url: str) -> AsyncGenerator[Member]:
    async with StorePlace("redis", None).member("a", url) as member:
        yield member


async def problem_at(url: str, part: str) -> str:
    """What is told of a store that cannot be used; the same is shown by the store itself."""
    async with a_store(url) as a:
        await until(lambda: part in (a.store.problem or ""), f"a problem with {part!r}, not {a.store.problem!r}")
        problem = a.store.problem
        assert problem is not None
        assert (a.store.up, a.store.free) == (False, False)
        assert (False, problem) in a.told.changes
        _hides_the_password(a)
        return problem


def _hides_the_password(a: Member) -> None:
    shown = f"{a.told.changes} {a.store.problem} {vars(a.store)} {a.store!r}"
    assert PLAIN not in shown
    assert SECRET not in shown


# Where it is


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://cache", Place((("cache", 6379),))),
        ("redis://cache:7000/3", Place((("cache", 7000),), database=3)),
        ("redis://:secret@cache", Place((("cache", 6379),), password="secret")),
        (f"redis://me:{SECRET}@[::1]:1", Place((("::1", 1),), user="me", password=PLAIN)),
        ("redis://[fe80::1]/0", Place((("fe80::1", 6379),))),
        ("rediss://cache:1/2?ca=/etc/my%20ca.pem", Place((("cache", 1),), database=2, tls=True, ca="/etc/my ca.pem")),
        ("redis+sentinel://a,b:2/main", Place((("a", 26379), ("b", 2)), master="main")),
        (
            "rediss+sentinel://me:x@a:1,[::1]:2/main/4?ca=f",
            Place((("a", 1), ("::1", 2)), master="main", user="me", password="x", database=4, tls=True, ca="f"),
        ),
    ],
)
def test_an_address_says_where_the_store_is(url: str, place: Place) -> None:
    assert place_of(url) == place


@pytest.mark.parametrize("url", ["http://:secret@cache", "redis+cluster://:secret@cache", "redis+sentinel://:secret@a"])
def test_what_is_wrong_with_an_address_is_said_without_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="the address of") as wrong:
        place_of(url)
    assert "secret" not in str(wrong.value)


def test_no_text_holds_a_password_even_if_the_store_repeats_it() -> None:
    place = place_of(f"redis://:{SECRET}@cache")
    repeated = hiredis.ReplyError(f"ERR something about {PLAIN} is strange, with args beginning with: '{PLAIN}'")

    assert (
        problem_of(repeated, place, ("cache", 1)) == "the store at cache:1 refuses: ERR something about *** is strange"
    )
    assert PLAIN not in repr(place)


# What does not mend by itself


@pytest.mark.process
async def test_a_wrong_password_is_told_and_not_shown() -> None:
    with a_redis(password="right") as server:
        problem = await problem_at(f"redis://:{SECRET}@127.0.0.1:{server.port}", "password")
        assert (
            problem == f"the store at 127.0.0.1:{server.port} refuses the user or password; correct them in cell.store"
        )
        assert "write it in cell.store" in await problem_at(f"redis://127.0.0.1:{server.port}", "asks for a password")
        assert "refuses the user" in await problem_at(f"redis://who:{SECRET}@127.0.0.1:{server.port}", "user")


@pytest.mark.process
async def test_a_password_that_nobody_asks_for_is_told() -> None:
    with a_redis() as server:
        assert "take it out" in await problem_at(f"redis://:{SECRET}@127.0.0.1:{server.port}", "has no password")
        assert "correct the number" in await problem_at(f"redis://127.0.0.1:{server.port}/999", "no such database")


@pytest.mark.process
async def test_a_password_that_is_mended_in_the_store_is_noticed() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        client.config_set("requirepass", PLAIN)
        async with a_store(f"redis://127.0.0.1:{server.port}") as a:
            await until(lambda: "asks for a password" in (a.store.problem or ""), "it says why")
            client.config_set("requirepass", "")
            await until(lambda: a.store.free, "it is there")
            assert a.store.problem is None


@pytest.mark.process
async def test_a_replica_a_full_store_and_one_without_permission_are_told() -> None:
    with a_redis() as server, a_redis(replica_of=server.port) as replica:
        assert "sentinels" in await problem_at(f"redis://127.0.0.1:{replica.port}", "is a replica")
        with contextlib.closing(server.client()) as client:
            client.execute_command("ACL", "SETUSER", "reader", "on", f">{PLAIN}", "~*", "+@read", "+auth", "+ping")
            assert "allow it" in await problem_at(f"redis://reader:{SECRET}@127.0.0.1:{server.port}", "does not allow")
            client.config_set("maxmemory", "1")
            assert "raise its maxmemory" in await problem_at(f"redis://127.0.0.1:{server.port}", "out of memory")


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_a_store_that_fills_up_or_loses_a_key_to_others_while_in_use_is_told() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        place = StorePlace("redis", server)
        async with place.member("a") as a:
            await a.send(Parcel(inbox=[b"1"]))
            client.config_set("maxmemory", "1")
            a.store.send(Parcel(inbox=[b"2"]))
            await until(lambda: "out of memory" in (a.store.problem or ""), "it says why")
            client.config_set("maxmemory", "0")
            await a.send(Parcel(inbox=[b"3"]))

            client.set(place.key("inbox"), "not a stream")
            await until(lambda: a.store.free, "it is there")
            a.store.send(Parcel(inbox=[b"4"]))
            await until(lambda: "another name" in (a.store.problem or ""), "it says why")
            client.delete(place.key("inbox"))
            await a.send(Parcel(inbox=[b"5"]))
            assert [fields[b"e"] for _, fields in client.xrange(place.key("inbox"))] == [b"5"]


async def test_what_is_no_store_is_told() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "correct host and port" in await problem_at(f"redis://127.0.0.1:{port}", "protocol of Redis")
    assert "start it" in await problem_at(f"redis://127.0.0.1:{free_port()}", "nothing listens")
    assert "DNS" in await problem_at("redis://no-such-host.invalid:1", "not to be found")


# TLS


@pytest.mark.process
async def test_tls_that_does_not_fit_is_told(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    other = made_certificates(theirs).authority
    with a_redis(certificates=made_certificates(ours)) as server, a_redis() as plain:
        at = f"127.0.0.1:{server.port}"
        assert "?ca=FILE" in await problem_at(f"rediss://{at}", "not trusted")
        assert "?ca=FILE" in await problem_at(f"rediss://{at}?ca={other}", "not trusted")
        assert "correct the file" in await problem_at(f"rediss://{at}?ca={tmp_path}/none", "cannot be read")
        assert "write rediss" in await problem_at(f"redis://{at}", "closed the connection")
        assert "TLS" in await problem_at(f"rediss://127.0.0.1:{plain.port}", "TLS")


# Slowness


class Delay:
    """A way to the store on which answers take their time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.seconds = 0.0
        self.bytes = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        ways = [
            asyncio.ensure_future(self._carry(reader, inner_writer, slow=False)),
            asyncio.ensure_future(self._carry(inner_reader, writer, slow=True)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for each in (writer, inner_writer):
            each.close()
            with contextlib.suppress(OSError):
                await each.wait_closed()
        self.open -= 1

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if slow:
                    await asyncio.sleep(self.seconds)
                else:
                    self.bytes += len(data)
                writer.write(data)


@asynccontextmanager
async def a_delay(port: int) -> AsyncGenerator[tuple[Delay, str]]:
    delay = Delay(port)
    async with await asyncio.start_server(delay.serve, "127.0.0.1", 0) as server:
        yield delay, f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await until(lambda: delay.open == 0, "all have hung up")


@pytest.mark.process
@pytest.mark.timing
@again_if_stalled
async def test_a_store_that_answers_slowly_twice_is_left_alone_until_it_is_quick() -> None:
    with a_redis() as server:
        async with a_delay(server.port) as (delay, url), a_store(url) as a:
            await until(lambda: a.store.free, "it is there")
            delay.seconds = 0.3
            a.store.send(Parcel(inbox=[b"1"]))
            await until(lambda: a.told.freed == 2, "slow once is nothing")
            assert a.store.round_trip_ns > 250_000_000
            a.store.send(Parcel(inbox=[b"2"]))
            await until(lambda: not a.store.up, "twice is too much")
            assert "too slowly" in (a.store.problem or "")
            assert a.told.freed == 2

            sent, lost = delay.bytes, a.store.timeouts
            await until(lambda: a.store.timeouts > lost, "it was tried again in vain")
            assert not a.store.up
            assert delay.bytes - sent < 20_000
            delay.seconds = 0.0
            took = await until(lambda: a.store.free, "it is quick again")
            print(f"back {took * 1000:.0f} ms after it is quick")
            assert a.store.problem is None


@pytest.mark.process
async def test_a_paused_store_gets_little_and_few_connections() -> None:
    with a_redis() as server:
        async with a_store(server.url) as a:
            await until(lambda: a.store.free, "it is there")
            server.pause()
            a.store.send(Parcel(inbox=[b"x" * 1000]))
            await until(lambda: a.store.timeouts >= 4, "it was tried again and again in vain")
            server.resume()
            await until(lambda: a.store.free, "it is back")
            with contextlib.closing(server.client()) as client:
                made = int(client.info("stats")["total_connections_received"])
                open_ = len(client.client_list())
            assert made < 20
            assert open_ <= 3


@pytest.mark.process
async def test_a_process_that_stood_still_itself_does_not_take_the_store_for_lost() -> None:
    with a_redis() as server:
        async with a_store(server.url) as a:
            await until(lambda: a.store.free, "it is there")
            a.store.send(Parcel(outboxes=[("a", b"1")]))
            time.sleep(0.9)  # noqa: ASYNC251  That is the fault.
            await until(lambda: a.told.outbox == [b"1"] and a.store.free, "it arrives")
            assert (a.told.changes, a.store.timeouts) == ([(True, None)], 0)


async def test_a_lookup_that_hangs_is_not_begun_a_second_time() -> None:
    begun: list[object] = []

    async def hangs(*arguments: object, **more: object) -> list[Any]:
        begun.append(arguments)
        return await asyncio.Future()

    connector = Connector(place_of("redis://cache"), look_up=hangs)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await connector.connected(("cache", 1), lambda cause: None)
    assert len(begun) == 1


# Scripts


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_a_store_that_has_forgotten_the_scripts_is_sent_them() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        place = StorePlace("redis", server)
        async with place.member("a") as a:
            await a.send(Parcel(claim=a_claim(1, "a")))
            client.script_flush()
            everything = Parcel(
                inbox=[b"1"], claim=a_claim(1, "a"), write=(Snapshots(1, 1), b"counters"), release=Epoch(1, "a")
            )
            await a.send(everything)
            assert [lease.epoch for _, lease in a.told.leases] == [Epoch(1, "a")] * 2
            assert a.told.kept == [Snapshots(1, 1)]
            assert client.xlen(place.key("inbox")) == 1
            assert a.store.reconnects == 0
            await a.send(Parcel(claim=a_claim(2, "b")))
            assert a.told.leases[-1][1].epoch == Epoch(2, "b")


# Sentinel


@pytest.mark.process
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "replaced"])
async def test_a_failover_is_followed(kill: bool) -> None:
    with sentinel_set(password=PLAIN) as these:
        url = these.url.replace(PLAIN, SECRET)
        place = StorePlace("sentinel", these)
        async with place.member("a", url) as a, place.member("b", url) as b:
            await until(lambda: a.store.free and b.store.free, "both are there")
            began = time.monotonic()
            was = await asyncio.to_thread(these.failover, kill=kill)
            await until(lambda: not a.store.up, "it is away")
            took = await until(lambda: a.store.free and b.store.free, "it is back")
            print(f"failover, kill={kill}: back {time.monotonic() - began:.2f} s after it began, away {took:.2f} s")
            await asyncio.to_thread(these.wait_until_failed_over, was)
            await a.send(Parcel(outboxes=[("b", b"after")]))
            await until(lambda: b.told.outbox[-1:] == [b"after"], "it arrives")
            _hides_the_password(a)


@pytest.mark.process
async def test_sentinels_that_know_no_such_master_or_are_away_are_told() -> None:
    with sentinel_set(down_after_s=60.0) as these:
        known = ",".join(f"127.0.0.1:{port}" for port in these.ports)
        assert "correct that name" in await problem_at(f"redis+sentinel://{known}/other", "'other'")
        # One that is there is enough.
        async with a_store(f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{these.ports[0]}/headgate") as a:
            await until(lambda: a.store.free, "it is there")
    assert "see to them" in await problem_at(f"redis+sentinel://127.0.0.1:{free_port()}/main", "no sentinel answers")


# On the event loop that the gateway runs on


@pytest.mark.process
def test_all_this_goes_on_uvloop_too(tmp_path: Path) -> None:
    with a_redis(certificates=made_certificates(tmp_path), password=PLAIN) as server:
        url = server.url.replace(PLAIN, SECRET)
        uvloop.run(_story(server, url))


async def _story(server: Server, url: str) -> None:
    told = Recorder()
    store = RedisStore(url, cell="on-uvloop", member="a")
    store.start(told)
    a = Member("a", store, told)
    await until(lambda: store.free, "it is there")
    store.lead(True)
    await a.send(Parcel(inbox=[b"1"], outboxes=[("a", b"1")], claim=a_claim(1, "a"), read=True))
    await until(lambda: told.inbox == told.outbox == [b"1"], "it arrives")
    await asyncio.to_thread(server.restart)
    await until(lambda: len(told.changes) >= 3 and store.free, "it is back")
    await a.send(Parcel(inbox=[b"2"], outboxes=[("a", b"2")], claim=a_claim(1, "b")))
    await until(lambda: told.inbox == told.outbox == [b"1", b"2"], "it arrives")
    store.send(Parcel(inbox=[b"3"]))
    time.sleep(0.9)  # noqa: ASYNC251  A process that stands still itself does not take the store for lost.
    await until(lambda: store.free, "it is free again")
    assert store.timeouts == 0
    server.pause()
    store.send(Parcel(inbox=[b"4"]))
    await until(lambda: not store.up, "it is away")
    server.resume()
    await until(lambda: store.free, "it is back")
    await store.stop()
    assert [lease.epoch.id for _, lease in told.leases] == ["a", "b"]


# What others have done to the keys, or to us


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_entry_with_a_wrong_checksum_is_dropped() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await until(lambda: a.store.free, "it is there")
            a.store.lead(True)
            await a.send(Parcel(inbox=[b"first"]))
            await until(lambda: a.told.inbox == [b"first"], "the inbox is read")
            client.xadd(inbox_of(client), {"e": b"damaged", "c": crc32(b"whole")})
            client.xadd(inbox_of(client), {"e": b"of an earlier version"})
            await a.send(Parcel(inbox=[b"last"]))

            await until(lambda: b"last" in a.told.inbox, "the rest is read")
            assert a.told.inbox == [b"first", b"of an earlier version", b"last"]


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_who_leads_no_more_can_still_send_after_reading_much() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await until(lambda: a.store.free, "it is there")
            a.store.lead(True)
            await a.send(Parcel(inbox=[b"first"]))
            await until(lambda: a.told.inbox == [b"first"], "the inbox is read")
            for _ in range(TRIM_ENTRIES + 1):
                client.xadd(inbox_of(client), {"e": b"more"})
            await until(lambda: len(a.told.inbox) > TRIM_ENTRIES, "all of it was read")
            a.store.lead(False)
            await a.send(Parcel(inbox=[b"last"]))

            # What nobody who leads has read is not trimmed either.
            assert client.xlen(inbox_of(client)) == TRIM_ENTRIES + 3


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_an_inbox_that_is_opened_when_it_was_given_up_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Intake.begin

    given_up = asyncio.Event()

    async def give_up_meanwhile(self: Intake, wire: Wire) -> None:
        await begin(self, wire)
        if self.key.endswith(b":inbox"):
            a.store.lead(False)
            given_up.set()

    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await until(lambda: a.store.free, "it is there")
            # The moment between opening and reading can be met only from inside.
            monkeypatch.setattr(Intake, "begin", give_up_meanwhile)
            a.store.lead(True)
            await a.send(Parcel(inbox=[b"first"]))
            async with asyncio.timeout(60):
                await given_up.wait()
            client.xadd(inbox_of(client), {"e": b"for another"})
            # A reader of the outbox has been answered since, so one of the inbox would have been as well.
            await a.send(Parcel(outboxes=[("a", b"after")]))
            await until(lambda: a.told.outbox == [b"after"], "it arrives")

            assert b"for another" not in a.told.inbox
            assert a.store.up


@pytest.mark.process
@pytest.mark.parametrize(
    "lease",
    [
        {"number": "none", "id": "x", "expires_ms": "0"},
        {"number": "1"},
        {"number": "7", "id": b"\xff", "expires_ms": "99999999999999"},
        {"number": "99999999999999999999", "id": "x", "expires_ms": "99999999999999"},
    ],
)
async def test_a_lease_that_no_gateway_has_written_is_told(lease: dict[str, str | bytes]) -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await a.send(Parcel(inbox=[b"first"]))
            client.hset(inbox_of(client).replace(b"inbox", b"lease"), mapping=lease)
            await until(lambda: a.store.free, "it is there")
            a.store.send(Parcel(claim=a_claim(3, "me")))
            await until(lambda: any("no gateway has written" in (why or "") for _, why in a.told.changes), "it is told")
            await until(lambda: a.store.free, "it is tried again")
            assert a.told.leases == []


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_a_snapshot_that_no_gateway_has_written_is_written_over() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await a.send(Parcel(inbox=[b"first"]))
            client.hset(inbox_of(client).replace(b"inbox", b"snapshot"), mapping={"epoch": "none"})
            await a.send(Parcel(write=(Snapshots(1, 1), b"ours"), read=True))

            assert (a.told.kept, a.told.read) == ([Snapshots(1, 1)], [b"ours"])


async def test_a_name_that_no_host_can_have_is_told_and_tried_again() -> None:
    assert "correct the host" in await problem_at(f"redis://{'a' * 70}:1", "no host can have")


@pytest.mark.process
async def test_a_mistake_of_ours_while_connecting_is_told_and_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def wrong(_: Connector) -> tuple[str, int]:
        raise ZeroDivisionError("a mistake")

    with a_redis() as server:
        async with a_store(server.url) as a:
            await until(lambda: a.store.free, "it is there")
            with monkeypatch.context() as patched:
                patched.setattr(Connector, "address", wrong)
                server.restart()
                await until(lambda: "a mistake" in (a.store.problem or ""), "it is told")
            await until(lambda: a.store.free, "it is back")
    assert [record.exc_info is not None for record in caplog.records if "mistake of ours" in record.message] == [True]


def inbox_of(client: Any) -> bytes:
    [key] = client.keys("*inbox")
    return key
