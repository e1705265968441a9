"""Tests specific to Redis: passwords, TLS, Sentinel, slow responses and problem messages."""

import asyncio
import contextlib
import shutil
import ssl
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import hiredis
import pytest
import uvloop

from headgate.hosts.cell.protocol.messages import Epoch, SnapshotId
from headgate.hosts.cell.protocol.store import StoreBatch
from headgate.hosts.cell.redis.connection import RedisConnection
from headgate.hosts.cell.redis.connector import Connector
from headgate.hosts.cell.redis.location import StoreLocation, parse_store_url
from headgate.hosts.cell.redis.store import RedisStore
from headgate.hosts.cell.redis.store_check import StoreInfo, check_store
from headgate.hosts.cell.redis.store_errors import STORE_ERRORS, describe_error
from headgate.hosts.cell.redis.stream_reader import TRIM_ENTRIES, StreamReader
from headgate.ports.tls import ClientTlsOptions
from testing.certificates import PAST, Authority
from testing.ports import free_port
from testing.processes import MissingProgram
from testing.stalls import rerun_if_stalled
from testing.stores import Certificates, Server, make_certificates, redis
from tests.hosts.cell.protocol.test_store import a_claim
from tests.hosts.cell.store_places import Member, Recorder, StorePlace, absent, be_patient, sentinel_set, until

SECRET = "pa55-%2F-w0rd"
"""`PLAIN` in URL encoding."""
PLAIN = "pa55-/-w0rd"


@contextlib.contextmanager
def a_redis(**how: Any) -> Generator[Server]:
    try:
        with redis(**how) as server:
            yield server
    except MissingProgram as missing:
        absent(missing)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@asynccontextmanager
async def a_store(url: str) -> AsyncGenerator[Member]:
    async with StorePlace("redis", None).member("a", url) as member:
        yield member


async def problem_at(url: str, part: str) -> str:
    """Waits for a problem that contains `part` and returns it, after checking that the receiver got it too."""
    async with a_store(url) as a:
        await until(lambda: part in (a.store.problem or ""), f"a problem with {part!r}, not {a.store.problem!r}")
        problem = a.store.problem
        assert problem is not None
        assert (a.store.up, a.store.is_idle) == (False, False)
        assert (False, problem) in a.told.changes
        _hides_the_password(a)
        return problem


def _hides_the_password(a: Member) -> None:
    shown = f"{a.told.changes} {a.store.problem} {vars(a.store)} {a.store!r}"
    assert PLAIN not in shown
    assert SECRET not in shown


# Store URLs


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://cache", StoreLocation((("cache", 6379),))),
        ("redis://cache:7000/3", StoreLocation((("cache", 7000),), database=3)),
        ("redis://:secret@cache", StoreLocation((("cache", 6379),), password="secret")),
        (f"redis://me:{SECRET}@[::1]:1", StoreLocation((("::1", 1),), user="me", password=PLAIN)),
        ("redis://[fe80::1]/0", StoreLocation((("fe80::1", 6379),))),
        (
            "rediss://cache:1/2?ca=/etc/my%20ca.pem",
            StoreLocation((("cache", 1),), database=2, tls=True, tls_files=ClientTlsOptions("/etc/my ca.pem")),
        ),
        ("redis+sentinel://a,b:2/main", StoreLocation((("a", 26379), ("b", 2)), master="main")),
        (
            "rediss+sentinel://me:x@a:1,[::1]:2/main/4?ca=f",
            StoreLocation(
                (("a", 1), ("::1", 2)),
                master="main",
                user="me",
                password="x",
                database=4,
                tls=True,
                tls_files=ClientTlsOptions("f"),
            ),
        ),
        (
            "rediss://cache?ca=a&certificate=c%20d&key=k",
            StoreLocation((("cache", 6379),), tls=True, tls_files=ClientTlsOptions("a", "c d", "k")),
        ),
    ],
)
def test_store_url_is_parsed(url: str, place: StoreLocation) -> None:
    assert parse_store_url(url) == place


@pytest.mark.parametrize("url", ["http://:secret@cache", "redis+cluster://:secret@cache", "redis+sentinel://:secret@a"])
def test_error_for_an_invalid_url_does_not_contain_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="URL must") as wrong:
        parse_store_url(url)
    assert "secret" not in str(wrong.value)


def test_problem_text_hides_the_password_even_if_the_store_repeats_it() -> None:
    place = parse_store_url(f"redis://:{SECRET}@cache")
    repeated = hiredis.ReplyError(f"ERR something about {PLAIN} is strange, with args beginning with: '{PLAIN}'")

    assert (
        describe_error(repeated, place, ("cache", 1))
        == "the store at cache:1 rejects the command: ERR something about *** is strange"
    )
    assert PLAIN not in repr(place)


# Permanent problems


@pytest.mark.process
async def test_wrong_password_is_reported_but_not_shown() -> None:
    with a_redis(password="right") as server:
        problem = await problem_at(f"redis://:{SECRET}@127.0.0.1:{server.port}", "password")
        assert (
            problem == f"the store at 127.0.0.1:{server.port} rejects the user or password; correct them in cell.store"
        )
        assert "add it to cell.store" in await problem_at(f"redis://127.0.0.1:{server.port}", "requires a password")
        assert "rejects the user" in await problem_at(f"redis://who:{SECRET}@127.0.0.1:{server.port}", "user")


@pytest.mark.process
async def test_unnecessary_password_and_unknown_database_are_reported() -> None:
    with a_redis() as server:
        assert "remove it" in await problem_at(f"redis://:{SECRET}@127.0.0.1:{server.port}", "has no password")
        assert "correct the number" in await problem_at(f"redis://127.0.0.1:{server.port}/999", "no such database")


@pytest.mark.process
async def test_store_reconnects_after_its_password_is_corrected() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        client.config_set("requirepass", PLAIN)
        async with a_store(f"redis://127.0.0.1:{server.port}") as a:
            await until(lambda: "requires a password" in (a.store.problem or ""), "the problem is reported")
            client.config_set("requirepass", "")
            await until(lambda: a.store.is_idle, "the store is connected")
            assert a.store.problem is None


@pytest.mark.process
async def test_replica_missing_permission_and_full_store_are_reported() -> None:
    with a_redis() as server, a_redis(replica_of=server.port) as replica:
        assert "sentinels" in await problem_at(f"redis://127.0.0.1:{replica.port}", "read-only replica")
        with contextlib.closing(server.client()) as client:
            client.execute_command("ACL", "SETUSER", "reader", "on", f">{PLAIN}", "~*", "+@read", "+auth", "+ping")
            assert "allow the user" in await problem_at(
                f"redis://reader:{SECRET}@127.0.0.1:{server.port}", "denies its user"
            )
            client.config_set("maxmemory", "1")
            assert "raise its maxmemory" in await problem_at(f"redis://127.0.0.1:{server.port}", "out of memory")


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_full_store_and_foreign_key_are_reported_while_in_use() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        place = StorePlace("redis", server)
        async with place.member("a") as a:
            await a.send(StoreBatch(inbox=[b"1"]))
            client.config_set("maxmemory", "1")
            a.store.send(StoreBatch(inbox=[b"2"]))
            await until(lambda: "out of memory" in (a.store.problem or ""), "the problem is reported")
            client.config_set("maxmemory", "0")
            await a.send(StoreBatch(inbox=[b"3"]))

            client.set(place.key("inbox"), "not a stream")
            await until(lambda: a.store.is_idle, "the store is connected")
            a.store.send(StoreBatch(inbox=[b"4"]))
            await until(lambda: "another cell name" in (a.store.problem or ""), "the problem is reported")
            client.delete(place.key("inbox"))
            await a.send(StoreBatch(inbox=[b"5"]))
            assert [fields[b"e"] for _, fields in client.xrange(place.key("inbox"))] == [b"5"]


async def test_unreachable_or_foreign_server_is_reported() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "correct host and port" in await problem_at(f"redis://127.0.0.1:{port}", "Redis protocol")
    assert "start it" in await problem_at(f"redis://127.0.0.1:{free_port()}", "no process is listening")
    assert "DNS" in await problem_at("redis://no-such-host.invalid:1", "cannot be resolved")


# TLS


@pytest.mark.process
async def test_tls_mismatch_is_reported(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    other = make_certificates(theirs).authority
    with a_redis(certificates=make_certificates(ours)) as server, a_redis() as plain:
        at = f"127.0.0.1:{server.port}"
        assert "?ca=FILE" in await problem_at(f"rediss://{at}", "not trusted")
        assert "?ca=FILE" in await problem_at(f"rediss://{at}?ca={other}", "not trusted")
        assert "correct the file" in await problem_at(f"rediss://{at}?ca={tmp_path}/none", "cannot be read")
        assert "redis with rediss" in await problem_at(f"redis://{at}", "closed the connection")
        assert "TLS" in await problem_at(f"rediss://127.0.0.1:{plain.port}", "TLS")


def issued(authority: Authority, name: str, **validity: timedelta) -> Certificates:
    return Certificates(Path(authority.file), *map(Path, authority.issue(name, **validity)))


@pytest.mark.process
async def test_store_that_requires_a_client_certificate_accepts_only_a_trusted_one(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    client = issued(ours, "client")
    with a_redis(certificates=issued(ours, "server"), client_certificates=client) as server:
        at = f"rediss://127.0.0.1:{server.port}?ca={ours.file}"
        found = await check_store(f"{at}&certificate={client.certificate}&key={client.key}", "c")
        without = await check_store(at, "c")
        foreign = issued(other, "client")
        untrusted = await check_store(f"{at}&certificate={foreign.certificate}&key={foreign.key}", "c")
        mismatched = await check_store(f"{at}&certificate={client.certificate}&key={foreign.key}", "c")

    assert isinstance(found, StoreInfo)
    assert "certificate=FILE and key=FILE" in str(without)
    assert "client certificate" in str(without)
    assert "certificate" in str(untrusted)
    assert "does not belong to the certificate" in str(mismatched)


@pytest.mark.process
async def test_expired_certificate_of_a_store_is_reported(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    client = issued(ours, "client")
    server = issued(ours, "server")
    with a_redis(certificates=server, client_certificates=client) as store:
        # The store reads its files when it starts, so the test's own client must be able to connect first.
        expired = issued(ours, "expired", **PAST)
        with contextlib.closing(store.client()) as link:
            link.config_set("tls-cert-file", str(expired.certificate), "tls-key-file", str(expired.key))
        url = f"rediss://127.0.0.1:{store.port}?ca={ours.file}&certificate={client.certificate}&key={client.key}"
        assert "not trusted (certificate has expired); renew it" in str(await check_store(url, "c"))


async def test_previous_files_stay_in_use_while_the_new_ones_are_incomplete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = Authority(tmp_path)
    client = issued(ours, "client")
    key = client.key.read_text()
    files = f"ca={ours.file}&certificate={client.certificate}&key={client.key}"
    connector = Connector(parse_store_url(f"rediss://cache?{files}"))

    async def context() -> ssl.SSLContext | None:
        await connector._refresh_tls()
        return connector._tls

    before, unchanged = await context(), await context()
    client.key.write_text("")
    incomplete = [await context() for _ in range(2)]
    client.key.write_text(key)
    after = await context()

    assert before is not None
    assert [unchanged, *incomplete] == [before] * 3
    assert after is not before
    [line] = [each.getMessage() for each in caplog.records]
    assert line.startswith(f"TLS for the cell's store: {client.key} contains no usable private key")


@pytest.mark.process
async def test_new_client_certificate_is_used_for_the_next_connection(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    client, foreign = issued(ours, "client"), issued(other, "client")
    used = Certificates(Path(ours.file), tmp_path / "used.pem", tmp_path / "used.key")
    with a_redis(certificates=issued(ours, "server"), client_certificates=client) as server:
        connector = Connector(
            parse_store_url(
                f"rediss://127.0.0.1:{server.port}?ca={ours.file}&certificate={used.certificate}&key={used.key}"
            )
        )
        for source, accepted in ((foreign, False), (client, True)):
            shutil.copy(source.certificate, used.certificate)
            shutil.copy(source.key, used.key)
            try:
                link = await connector.connect(await connector.address(), lambda _: None)
            except STORE_ERRORS:
                assert not accepted
            else:
                link.close()
                assert accepted


# Slow responses


class Delay:
    """Proxy that delays the store's replies."""

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
        await until(lambda: delay.open == 0, "all connections are closed")


@pytest.mark.process
@pytest.mark.timing
@rerun_if_stalled
async def test_store_is_not_used_after_two_slow_replies_until_it_is_fast_again() -> None:
    with a_redis() as server:
        async with a_delay(server.port) as (delay, url), a_store(url) as a:
            await until(lambda: a.store.is_idle, "the store is connected")
            delay.seconds = 0.3
            a.store.send(StoreBatch(inbox=[b"1"]))
            await until(lambda: a.told.freed == 2, "the store is idle after one slow reply")
            assert a.store.round_trip_ns > 250_000_000
            a.store.send(StoreBatch(inbox=[b"2"]))
            await until(lambda: not a.store.up, "the store is not used after two slow replies")
            assert "too slowly" in (a.store.problem or "")
            assert a.told.freed == 2

            sent, lost = delay.bytes, a.store.timeouts
            await until(lambda: a.store.timeouts > lost, "a reconnect has timed out")
            assert not a.store.up
            assert delay.bytes - sent < 20_000
            delay.seconds = 0.0
            took = await until(lambda: a.store.is_idle, "the store is idle again")
            print(f"reconnected {took * 1000:.0f} ms after the delay ended")
            assert a.store.problem is None


@pytest.mark.process
async def test_paused_store_receives_few_connections() -> None:
    with a_redis() as server:
        async with a_store(server.url) as a:
            await until(lambda: a.store.is_idle, "the store is connected")
            server.pause()
            a.store.send(StoreBatch(inbox=[b"x" * 1000]))
            await until(lambda: a.store.timeouts >= 4, "several reconnects have timed out")
            server.resume()
            await until(lambda: a.store.is_idle, "the store is connected again")
            with contextlib.closing(server.client()) as client:
                made = int(client.info("stats")["total_connections_received"])
                open_ = len(client.client_list())
            assert made < 20
            assert open_ <= 3


@pytest.mark.process
async def test_pause_in_this_process_is_not_treated_as_a_store_timeout() -> None:
    with a_redis() as server:
        async with a_store(server.url) as a:
            await until(lambda: a.store.is_idle, "the store is connected")
            a.store.send(StoreBatch(outboxes=[("a", b"1")]))
            time.sleep(0.9)  # noqa: ASYNC251  Blocking the event loop is the fault under test.
            await until(lambda: a.told.outbox == [b"1"] and a.store.is_idle, "the entry has arrived")
            assert (a.told.changes, a.store.timeouts) == ([(True, None)], 0)


async def test_hanging_dns_lookup_is_not_started_twice() -> None:
    begun: list[object] = []

    async def hangs(*arguments: object, **more: object) -> list[Any]:
        begun.append(arguments)
        return await asyncio.Future()

    connector = Connector(parse_store_url("redis://cache"), resolve=hangs)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await connector.connect(("cache", 1), lambda cause: None)
    assert len(begun) == 1


# Scripts


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_scripts_are_resent_to_a_store_that_lost_them() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        place = StorePlace("redis", server)
        async with place.member("a") as a:
            await a.send(StoreBatch(claim=a_claim(1, "a")))
            client.script_flush()
            everything = StoreBatch(
                inbox=[b"1"], claim=a_claim(1, "a"), snapshot=(SnapshotId(1, 1), b"counters"), release=Epoch(1, "a")
            )
            await a.send(everything)
            assert [lease.epoch for _, lease in a.told.leases] == [Epoch(1, "a")] * 2
            assert a.told.kept == [SnapshotId(1, 1)]
            assert client.xlen(place.key("inbox")) == 1
            assert a.store.reconnects == 0
            await a.send(StoreBatch(claim=a_claim(2, "b")))
            assert a.told.leases[-1][1].epoch == Epoch(2, "b")


# Sentinel


@pytest.mark.process
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "replaced"])
async def test_store_follows_a_sentinel_failover(kill: bool) -> None:
    with sentinel_set(password=PLAIN) as these:
        url = these.url.replace(PLAIN, SECRET)
        place = StorePlace("sentinel", these)
        async with place.member("a", url) as a, place.member("b", url) as b:
            await until(lambda: a.store.is_idle and b.store.is_idle, "both stores are connected")
            began = time.monotonic()
            was = await asyncio.to_thread(these.failover, kill=kill)
            await until(lambda: not a.store.up, "the store is unreachable")
            took = await until(lambda: a.store.is_idle and b.store.is_idle, "the store is connected again")
            print(f"failover, kill={kill}: reconnected after {time.monotonic() - began:.2f} s, downtime {took:.2f} s")
            await asyncio.to_thread(these.wait_until_failed_over, was)
            await a.send(StoreBatch(outboxes=[("b", b"after")]))
            await until(lambda: b.told.outbox[-1:] == [b"after"], "the entry has arrived")
            _hides_the_password(a)


@pytest.mark.process
async def test_unknown_master_and_unreachable_sentinels_are_reported() -> None:
    with sentinel_set(down_after_s=60.0) as these:
        known = ",".join(f"127.0.0.1:{port}" for port in these.ports)
        assert "correct the name" in await problem_at(f"redis+sentinel://{known}/other", "'other'")
        # One reachable sentinel is enough.
        async with a_store(f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{these.ports[0]}/headgate") as a:
            await until(lambda: a.store.is_idle, "the store is connected")
    assert "check the sentinels" in await problem_at(
        f"redis+sentinel://127.0.0.1:{free_port()}/main", "no sentinel is responding"
    )


# uvloop


@pytest.mark.process
def test_store_works_on_uvloop(tmp_path: Path) -> None:
    with a_redis(certificates=make_certificates(tmp_path), password=PLAIN) as server:
        url = server.url.replace(PLAIN, SECRET)
        uvloop.run(_story(server, url))


async def _story(server: Server, url: str) -> None:
    told = Recorder()
    store = RedisStore(url, cell="on-uvloop", member="a")
    store.start(told)
    a = Member("a", store, told)
    await until(lambda: store.is_idle, "the store is connected")
    store.set_leading(True)
    await a.send(StoreBatch(inbox=[b"1"], outboxes=[("a", b"1")], claim=a_claim(1, "a"), read_snapshot=True))
    await until(lambda: told.inbox == told.outbox == [b"1"], "the entry has arrived")
    await asyncio.to_thread(server.restart)
    await until(lambda: len(told.changes) >= 3 and store.is_idle, "the store is connected again")
    await a.send(StoreBatch(inbox=[b"2"], outboxes=[("a", b"2")], claim=a_claim(1, "b")))
    await until(lambda: told.inbox == told.outbox == [b"1", b"2"], "the entry has arrived")
    store.send(StoreBatch(inbox=[b"3"]))
    time.sleep(0.9)  # noqa: ASYNC251  A stall of this process must not count as a store timeout.
    await until(lambda: store.is_idle, "the store is idle again")
    assert store.timeouts == 0
    server.pause()
    store.send(StoreBatch(inbox=[b"4"]))
    await until(lambda: not store.up, "the store is unreachable")
    server.resume()
    await until(lambda: store.is_idle, "the store is connected again")
    await store.stop()
    assert [lease.epoch.id for _, lease in told.leases] == ["a", "b"]


# Foreign values and internal errors


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_entry_with_a_wrong_checksum_is_dropped() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await until(lambda: a.store.is_idle, "the store is connected")
            a.store.set_leading(True)
            await a.send(StoreBatch(inbox=[b"first"]))
            await until(lambda: a.told.inbox == [b"first"], "the inbox was read")
            client.xadd(inbox_of(client), {"e": b"damaged", "c": crc32(b"whole")})
            client.xadd(inbox_of(client), {"e": b"of an earlier version"})
            await a.send(StoreBatch(inbox=[b"last"]))

            await until(lambda: b"last" in a.told.inbox, "the remaining entries were read")
            assert a.told.inbox == [b"first", b"of an earlier version", b"last"]


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_former_scheduler_can_still_send_after_reading_many_entries() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await until(lambda: a.store.is_idle, "the store is connected")
            a.store.set_leading(True)
            await a.send(StoreBatch(inbox=[b"first"]))
            await until(lambda: a.told.inbox == [b"first"], "the inbox was read")
            for _ in range(TRIM_ENTRIES + 1):
                client.xadd(inbox_of(client), {"e": b"more"})
            await until(lambda: len(a.told.inbox) > TRIM_ENTRIES, "all entries were read")
            a.store.set_leading(False)
            await a.send(StoreBatch(inbox=[b"last"]))

            # Entries that no scheduler has read yet are not trimmed.
            assert client.xlen(inbox_of(client)) == TRIM_ENTRIES + 3


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_inbox_is_not_read_if_the_process_steps_down_while_opening_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = StreamReader.begin

    given_up = asyncio.Event()

    async def give_up_meanwhile(self: StreamReader, wire: RedisConnection) -> None:
        await begin(self, wire)
        if self.key.endswith(b":inbox"):
            a.store.set_leading(False)
            given_up.set()

    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await until(lambda: a.store.is_idle, "the store is connected")
            # Only a patch can intervene between opening and reading the inbox.
            monkeypatch.setattr(StreamReader, "begin", give_up_meanwhile)
            a.store.set_leading(True)
            await a.send(StoreBatch(inbox=[b"first"]))
            async with asyncio.timeout(60):
                await given_up.wait()
            client.xadd(inbox_of(client), {"e": b"for another"})
            # The outbox has been read since then, so the inbox would have been read too.
            await a.send(StoreBatch(outboxes=[("a", b"after")]))
            await until(lambda: a.told.outbox == [b"after"], "the entry has arrived")

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
async def test_foreign_lease_value_is_reported(lease: dict[str, str | bytes]) -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await a.send(StoreBatch(inbox=[b"first"]))
            client.hset(inbox_of(client).replace(b"inbox", b"lease"), mapping=lease)
            await until(lambda: a.store.is_idle, "the store is connected")
            a.store.send(StoreBatch(claim=a_claim(3, "me")))
            await until(
                lambda: any("no gateway wrote" in (why or "") for _, why in a.told.changes), "the problem is reported"
            )
            await until(lambda: a.store.is_idle, "the store is idle again")
            assert a.told.leases == []


@pytest.mark.process
@pytest.mark.usefixtures("patience")
async def test_foreign_snapshot_value_is_overwritten() -> None:
    with a_redis() as server, contextlib.closing(server.client()) as client:
        async with a_store(server.url) as a:
            await a.send(StoreBatch(inbox=[b"first"]))
            client.hset(inbox_of(client).replace(b"inbox", b"snapshot"), mapping={"epoch": "none"})
            await a.send(StoreBatch(snapshot=(SnapshotId(1, 1), b"ours"), read_snapshot=True))

            assert (a.told.kept, a.told.read) == ([SnapshotId(1, 1)], [b"ours"])


async def test_invalid_host_name_is_reported() -> None:
    assert "correct the host" in await problem_at(f"redis://{'a' * 70}:1", "invalid host name")


@pytest.mark.process
async def test_internal_error_while_connecting_is_logged_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def wrong(_: Connector) -> tuple[str, int]:
        raise ZeroDivisionError("simulated bug")

    with a_redis() as server:
        async with a_store(server.url) as a:
            await until(lambda: a.store.is_idle, "the store is connected")
            with monkeypatch.context() as patched:
                patched.setattr(Connector, "address", wrong)
                server.restart()
                await until(lambda: "simulated bug" in (a.store.problem or ""), "the problem is reported")
            await until(lambda: a.store.is_idle, "the store is connected again")
    assert [record.exc_info is not None for record in caplog.records if "internal error" in record.message] == [True]


def inbox_of(client: Any) -> bytes:
    [key] = client.keys("*inbox")
    return key
