"""Contract tests for the store, for the fake store, Redis 7, Valkey 8, Redis with TLS and Redis with Sentinel.

Faults are tested with the fake store, Redis and Valkey. Tests that are specific to Sentinel, TLS and passwords are in
redis/test_store.py.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headgate.hosts.cell.protocol.lease import Claim, claim_lease, release_lease
from headgate.hosts.cell.protocol.messages import Epoch, Lease, SnapshotId
from headgate.hosts.cell.protocol.store import StoreBatch
from headgate.hosts.cell.redis.entry_commands import INBOX_ENTRIES_MAX, OUTBOX_ENTRIES_MAX, OUTBOX_EXPIRES_S
from headgate.hosts.cell.redis.store import PAUSE_S_MAX
from headgate.hosts.cell.redis.stream_reader import TRIM_ENTRIES
from headgate.model.units import SECOND, Duration, Instant
from tests.hosts.cell.store_places import Member, StorePlace, be_patient, sentinel_set, store_place, until

SHARED = [pytest.param(kind, marks=pytest.mark.process) for kind in ("redis", "valkey", "tls", "sentinel")]
OWN = [pytest.param(f"own {kind}", id=kind, marks=pytest.mark.process) for kind in ("redis", "valkey")]
HOUR = Duration(3_600 * SECOND)
NODE_ENTRIES = 100
"""Number of entries in a stream node. Streams are trimmed one complete node at a time."""

every = pytest.mark.parametrize("place", ["fake", *SHARED], indirect=True)
hurt = pytest.mark.parametrize("place", ["fake", *OWN], indirect=True)
real = pytest.mark.parametrize("place", OWN, indirect=True)


@pytest.fixture
def impatient() -> None:
    """Marks a test that needs the default store timeouts."""


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the timeouts in all other tests, because the machine may stall a store for seconds."""
    if "impatient" not in request.fixturenames:
        be_patient(monkeypatch)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], Any]]:
    """Yields a function that starts each kind of server once. Every test uses its own cell."""
    with contextlib.ExitStack() as stack:

        @cache
        def of(kind: str) -> Any:
            if kind == "sentinel":
                return stack.enter_context(sentinel_set(password="open-sesame", down_after_s=60.0))
            return stack.enter_context(store_place(kind, tmp_path_factory.mktemp(kind))).server

        yield of


@pytest.fixture
def place(request: pytest.FixtureRequest, shared: Callable[[str], Any], tmp_path: Path) -> Generator[StorePlace]:
    """Yields a store. A test that injects faults or counts keys gets its own server."""
    kind = request.param.removeprefix("own ")
    if kind == "fake" or kind != request.param:
        with store_place(kind, tmp_path) as made:
            yield made
    else:
        yield StorePlace(kind, shared(kind))


def a_claim(number: int, epoch_id: str, lasts_ns: int = HOUR, instead_of: Epoch | None = None) -> Claim:
    return Claim(Epoch(number, epoch_id), Duration(lasts_ns), Instant(5), instead_of)


# Entries


@every
async def test_entries_arrive_unchanged_and_in_order(place: StorePlace) -> None:
    entries = [bytes(range(256)), b"", b"\r\n$5\r\n*3\r\n", b"\x00" * 3, random.Random(1).randbytes(1 << 20), b"end"]
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.is_idle and b.store.is_idle, "both stores are connected")
        a.store.set_leading(True)
        await a.send(StoreBatch(outboxes=[("b", entry) for entry in entries]))
        await b.send(StoreBatch(inbox=entries))
        await until(lambda: len(a.told.inbox) == len(b.told.outbox) == len(entries), "all entries have arrived")

        assert (a.told.inbox, b.told.outbox) == (entries, entries)
        assert a.told.outbox == b.told.inbox == []
        assert (a.store.entries_sent, b.store.entries_read) == (len(entries), len(entries))
        assert a.store.bytes_sent >= b.store.bytes_read == sum(map(len, entries))


@every
async def test_many_entries_are_delivered_in_batches(place: StorePlace) -> None:
    outbox = [f"to b {number}".encode() for number in range(OUTBOX_ENTRIES_MAX)]
    inbox = [f"from b {number}".encode() for number in range(INBOX_ENTRIES_MAX // 2)]
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.is_idle and b.store.is_idle, "both stores are connected")
        a.store.set_leading(True)
        await a.send(StoreBatch(outboxes=[("b", entry) for entry in outbox]))
        await b.send(StoreBatch(inbox=inbox))
        await until(lambda: a.told.inbox == inbox and b.told.outbox == outbox, "all entries have arrived")

        assert max(a.told.batches) > 10


@every
async def test_scheduler_reads_only_inbox_entries_from_its_own_term(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await b.send(StoreBatch(inbox=[b"before"]))
        await until(lambda: a.store.is_idle, "the store is connected")
        a.store.set_leading(True)
        await a.send(StoreBatch(outboxes=[("b", b"whom do you follow?")], inbox=[b"own"]))
        await b.send(StoreBatch(inbox=[b"you"]))
        await until(lambda: b"you" in a.told.inbox, "the entry was read")
        assert a.told.inbox == [b"own", b"you"]

        a.store.set_leading(False)
        await b.send(StoreBatch(inbox=[b"between"]))
        a.store.set_leading(True)
        await a.send(StoreBatch(inbox=[b"again"]))
        await until(lambda: b"again" in a.told.inbox, "the entry was read")
        assert a.told.inbox == [b"own", b"you", b"again"]
        assert b.told.inbox == []


@every
async def test_member_does_not_read_entries_from_before_it_started(place: StorePlace) -> None:
    async with place.member("a") as a:
        await a.send(StoreBatch(outboxes=[("b", b"to the one before")]))
        async with place.member("b") as b:
            await until(lambda: b.store.is_idle, "the store is connected")
            await a.send(StoreBatch(outboxes=[("b", b"to you")]))
            await until(lambda: bool(b.told.outbox), "an entry has arrived")

            assert b.told.outbox == [b"to you"]


@every
async def test_store_has_one_batch_in_flight(place: StorePlace) -> None:
    async with place.member("a") as a:
        await until(lambda: a.store.is_idle, "the store is connected")
        assert (a.told.changes, a.told.freed) == ([(True, None)], 1)

        a.store.send(StoreBatch(inbox=[b"x"]))
        assert not a.store.is_idle
        await until(lambda: a.store.is_idle, "the store is idle again")
        assert a.told.freed == 2
        assert place.kind == "fake" or 0 < a.store.round_trip_ns < 10 * SECOND


@every
async def test_batch_in_flight_is_delivered_when_the_store_stops(place: StorePlace) -> None:
    async with place.member("b") as b:
        await until(lambda: b.store.is_idle, "the store is connected")
        async with place.member("a") as a:
            await until(lambda: a.store.is_idle, "the store is connected")
            a.store.send(StoreBatch(outboxes=[("b", b"goodbye")]))
        await until(lambda: b.told.outbox == [b"goodbye"], "the entry has arrived")


# Lease


@every
async def test_claims_match_the_reference_function(place: StorePlace) -> None:
    chance = random.Random(8)
    for sequence in range(20 if place.kind == "fake" else 6):
        chapter = StorePlace(place.kind, place.server)
        if place.kind == "fake":
            place.server.restart(empty=True)
        async with chapter.member("a") as a:
            await _claims_agree(a, chance, f"sequence {sequence}")


async def _claims_agree(a: Member, chance: random.Random, what: str) -> None:
    epochs = [Epoch(number, epoch_id) for number in (1, 2, 3) for epoch_id in ("x", "y")]
    model: Lease | None = None
    for step in range(12):
        now = Instant(step + 1)
        if model is not None and chance.random() < 0.25:
            epoch = chance.choice(epochs)
            model = release_lease(model, epoch, now)
            await a.send(StoreBatch(release=epoch))
            continue
        instead_of = chance.choice([None, *epochs])
        claim = Claim(chance.choice(epochs), chance.choice([Duration(0), HOUR]), now, instead_of)
        model = claim_lease(model, claim, now)
        before = len(a.told.leases)
        await a.send(StoreBatch(claim=claim))
        asked, lease = a.told.leases[before]
        assert asked is claim
        assert lease.epoch == model.epoch, f"{what}, step {step}: {claim}"


@every
async def test_lease_expires_by_the_store_clock(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.is_idle and b.store.is_idle, "both stores are connected")
        began = time.monotonic()
        await a.send(StoreBatch(claim=a_claim(1, "a", Duration(SECOND // 2))))
        await b.send(StoreBatch(claim=a_claim(2, "b")))
        while b.told.leases[-1][1].epoch.id != "b":
            await asyncio.sleep(0.01)
            await b.send(StoreBatch(claim=a_claim(2, "b")))
            assert time.monotonic() - began < 60

        assert time.monotonic() - began > 0.4


@every
async def test_released_lease_keeps_its_number(place: StorePlace) -> None:
    async with place.member("a") as a:
        await a.send(StoreBatch(claim=a_claim(3, "a")))
        await a.send(StoreBatch(release=Epoch(3, "a")))
        await a.send(StoreBatch(claim=a_claim(3, "b")))
        assert a.told.leases[-1][1].epoch == Epoch(3, "a")
        await a.send(StoreBatch(claim=a_claim(4, "b")))
        assert a.told.leases[-1][1].epoch == Epoch(4, "b")


@every
async def test_only_one_of_several_concurrent_claims_succeeds(place: StorePlace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(place.member(f"m{number}")) for number in range(5)]
        await asyncio.gather(*(each.send(StoreBatch(claim=a_claim(1, each.name))) for each in members))

        assert len({each.told.leases[0][1].epoch.id for each in members}) == 1


# Snapshot


@every
async def test_older_snapshot_does_not_replace_a_newer_one(place: StorePlace) -> None:
    async with place.member("a") as a:
        await a.send(StoreBatch(read_snapshot=True))
        for epoch, number, written in (
            (2, 1, b"\x00one"),
            (2, 3, b"three"),
            (2, 2, b"two"),
            (1, 9, b"old"),
            (3, 0, b"new"),
        ):
            await a.send(StoreBatch(snapshot=(SnapshotId(epoch, number), written), read_snapshot=True))
        await a.send(StoreBatch(snapshot=(SnapshotId(3, 0), b"new"), read_snapshot=True))

        assert a.told.read == [None, b"\x00one", b"three", b"three", b"three", b"new", b"new"]
        kept = [SnapshotId(2, 1), *[SnapshotId(2, 3)] * 3, *[SnapshotId(3, 0)] * 2]
        assert a.told.kept == kept


@every
async def test_snapshot_is_written_before_the_lease_is_released(place: StorePlace) -> None:
    async with place.member("a") as a:
        await a.send(StoreBatch(claim=a_claim(1, "a")))
        await a.send(
            StoreBatch(
                claim=a_claim(1, "a"), snapshot=(SnapshotId(1, 1), b"last"), release=Epoch(1, "a"), read_snapshot=True
            )
        )
        assert a.told.leases[-1][1].epoch == Epoch(1, "a")
        await a.send(StoreBatch(claim=a_claim(2, "b")))

        assert (a.told.read, a.told.leases[-1][1].epoch) == ([b"last"], Epoch(2, "b"))


# Storage limits


@real
async def test_read_entries_are_trimmed(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.is_idle and b.store.is_idle, "both stores are connected")
        a.store.set_leading(True)
        for number in range(12):
            await a.send(StoreBatch(outboxes=[("b", b"x" * 200)] * TRIM_ENTRIES))
            await b.send(StoreBatch(inbox=[b"y" * 200] * TRIM_ENTRIES))
            await until(
                lambda n=number: len(b.told.outbox) == (n + 1) * TRIM_ENTRIES == len(a.told.inbox),
                "all entries were read",
            )
        await a.send(StoreBatch(read_snapshot=True))
        await b.send(StoreBatch(read_snapshot=True))

        with contextlib.closing(place.server.client()) as client:
            lengths = [client.xlen(place.key(name)) for name in ("inbox", "outbox:b")]
        assert max(lengths) <= NODE_ENTRIES + TRIM_ENTRIES, lengths


@real
async def test_unread_entries_are_limited_and_outboxes_expire(place: StorePlace) -> None:
    async with place.member("a") as a:
        for _ in range(4):
            await a.send(
                StoreBatch(
                    inbox=[b"beat"] * (INBOX_ENTRIES_MAX // 2),
                    outboxes=[("gone", b"hello?")] * OUTBOX_ENTRIES_MAX,
                    claim=a_claim(1, "a"),
                    snapshot=(SnapshotId(1, 1), b"counters"),
                )
            )
        with contextlib.closing(place.server.client()) as client:
            lengths = [client.xlen(place.key(name)) for name in ("inbox", "outbox:gone")]
            lasts = [client.ttl(place.key(name)) for name in ("outbox:gone", "snapshot", "lease")]
            keys = {key.decode() for key in client.keys("*")}
        assert lengths[0] <= INBOX_ENTRIES_MAX + NODE_ENTRIES
        assert lengths[1] <= OUTBOX_ENTRIES_MAX + NODE_ENTRIES
        assert 0 < lasts[0] <= OUTBOX_EXPIRES_S
        assert lasts[1:] == [-1, -1]
        assert keys == {place.key(name) for name in ("inbox", "outbox:gone", "snapshot", "lease")}


# Faults


@hurt
async def test_empty_store_is_read_from_the_beginning_after_a_restart(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.is_idle and b.store.is_idle, "both stores are connected")
        a.store.set_leading(True)
        await a.send(
            StoreBatch(
                outboxes=[("b", b"1")], inbox=[b"1"], claim=a_claim(1, "a"), snapshot=(SnapshotId(1, 1), b"counters")
            )
        )
        await until(lambda: a.told.inbox == [b"1"] and b.told.outbox == [b"1"], "the entry has arrived")

        await place.befall("restart", empty=True)
        await until(lambda: len(a.told.changes) >= 3 and len(b.told.changes) >= 3, "both members have reconnected")
        await a.send(StoreBatch(outboxes=[("b", b"2")], inbox=[b"2"], claim=a_claim(1, "b"), read_snapshot=True))
        await until(lambda: a.told.inbox == [b"1", b"2"] and b.told.outbox == [b"1", b"2"], "the entry has arrived")

        assert a.told.leases[-1][1].epoch == Epoch(1, "b")
        assert a.told.read == [None]
        assert a.store.reconnects == 1


@hurt
async def test_store_restored_from_an_old_copy_loses_no_new_entries(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: b.store.is_idle, "the store is connected")
        await a.send(StoreBatch(outboxes=[("b", b"1")], claim=a_claim(1, "a"), snapshot=(SnapshotId(1, 1), b"old")))
        await place.befall("save_snapshot")
        await a.send(StoreBatch(outboxes=[("b", b"2")], snapshot=(SnapshotId(1, 2), b"new")))
        await until(lambda: b.told.outbox == [b"1", b"2"], "the entry has arrived")

        await place.befall("restart", empty=False)
        await until(lambda: len(a.told.changes) >= 3 and len(b.told.changes) >= 3, "both members have reconnected")
        await a.send(StoreBatch(outboxes=[("b", b"3")], claim=a_claim(2, "b"), read_snapshot=True))
        await until(lambda: b.told.outbox[-1] == b"3", "the entry has arrived")

        # Entries in the copy may be delivered again, but none is missing.
        assert [each for each in b.told.outbox if each != b"1"] == [b"2", b"3"]
        assert (a.told.leases[-1][1].epoch, a.told.read) == (Epoch(1, "a"), [b"old"])


@hurt
async def test_killed_store_is_reported_and_reconnected(place: StorePlace) -> None:
    async with place.member("a") as a:
        await until(lambda: a.store.is_idle, "the store is connected")
        await place.befall("kill")
        await until(lambda: not a.store.up, "the store is unreachable")
        assert not a.store.is_idle
        await until(lambda: a.store.problem is not None and "start it" in a.store.problem, "the problem is reported")
        assert a.told.changes[-1] == (False, a.store.problem)

        await place.befall("restart")
        took = await until(lambda: a.store.is_idle, "the store is connected again")
        print(f"{place.kind}: reconnected {took * 1000:.0f} ms after the restart")
        assert (a.told.changes[-1], a.store.problem) == ((True, None), None)
        await a.send(StoreBatch(outboxes=[("a", b"to myself")]))
        await until(lambda: a.told.outbox == [b"to myself"], "the entry has arrived")


@hurt
@pytest.mark.usefixtures("impatient")
async def test_paused_store_is_abandoned_and_reconnected(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.is_idle and b.store.is_idle, "both stores are connected")
        await place.befall("pause")
        began = time.monotonic()
        a.store.send(StoreBatch(outboxes=[("b", b"held up")]))
        await until(lambda: not a.store.up, "the store is unreachable")
        assert time.monotonic() - began > 0.4
        assert a.store.timeouts >= 1
        assert a.store.problem is not None
        assert "paused" in a.store.problem
        await until(lambda: a.store.timeouts >= (1 if place.kind == "fake" else 2), "a reconnect has timed out")
        assert not a.store.is_idle

        await place.befall("resume")
        took = await until(lambda: a.store.is_idle and b.store.is_idle, "the store is connected again")
        print(f"{place.kind}: reconnected {took * 1000:.0f} ms after the resume")
        await a.send(StoreBatch(outboxes=[("b", b"after")]))
        await until(lambda: b.told.outbox[-1:] == [b"after"], "the entry has arrived")
        assert b.told.outbox in ([b"after"], [b"held up", b"after"])


@hurt
async def test_task_and_notification_counts_do_not_grow_while_the_store_is_unreachable(place: StorePlace) -> None:
    async with place.member("a") as a:
        await until(lambda: a.store.is_idle, "the store is connected")
        await place.befall("kill")
        await until(lambda: not a.store.up, "the store is unreachable")
        await until(lambda: "start it" in (a.store.problem or ""), "the problem is reported")
        tasks, changes = len(asyncio.all_tasks()), len(a.told.changes)
        # After a few connection attempts, the backoff reaches its maximum. The fake store has no backoff.
        await until(
            lambda: getattr(a.store, "_pause_s", PAUSE_S_MAX) == PAUSE_S_MAX, "the backoff has reached its maximum"
        )

        assert len(asyncio.all_tasks()) <= tasks + 4
        assert len(a.told.changes) == changes
        assert a.told.freed == 1


@hurt
async def test_store_can_be_stopped_while_unreachable(place: StorePlace) -> None:
    async with place.member("a") as a:
        await until(lambda: a.store.is_idle, "the store is connected")
        await place.befall("kill")
        await until(lambda: not a.store.up, "the store is unreachable")
        began = time.monotonic()
    assert time.monotonic() - began < 30
    assert not a.store.is_idle
