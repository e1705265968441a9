"""What may a cell rely on, whichever store carries its entries?

One suite for the fake and the real ones: Redis 7, Valkey 8, Redis behind TLS and Redis behind Sentinel. Those that are
hurt are the fake, Redis and Valkey; what only Sentinel, TLS and passwords bring along is in redis/test_store.py.
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

from headgate.hosts.cell.protocol.lease import Claim, claimed, released
from headgate.hosts.cell.protocol.messages import Epoch, Lease, Snapshots
from headgate.hosts.cell.protocol.store import Parcel
from headgate.hosts.cell.redis.entries import INBOX_ENTRIES_MAX, OUTBOX_ENTRIES_MAX, OUTBOX_EXPIRES_S
from headgate.hosts.cell.redis.intake import TRIM_ENTRIES
from headgate.hosts.cell.redis.store import PAUSE_S_MAX
from headgate.model.units import SECOND, Duration, Instant
from tests.hosts.cell.store_places import Member, StorePlace, be_patient, sentinel_set, store_place, until

SHARED = [pytest.param(kind, marks=pytest.mark.process) for kind in ("redis", "valkey", "tls", "sentinel")]
OWN = [pytest.param(f"own {kind}", id=kind, marks=pytest.mark.process) for kind in ("redis", "valkey")]
HOUR = Duration(3_600 * SECOND)
NODE_ENTRIES = 100
"""Streams are trimmed by whole nodes, which hold so many entries."""

every = pytest.mark.parametrize("place", ["fake", *SHARED], indirect=True)
hurt = pytest.mark.parametrize("place", ["fake", *OWN], indirect=True)
real = pytest.mark.parametrize("place", OWN, indirect=True)


@pytest.fixture
def impatient() -> None:
    """For a test in which a store is to be given up for its silence, after the usual time."""


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all other tests a slow store does not count as lost: the machine may have stopped it for seconds."""
    if "impatient" not in request.fixturenames:
        be_patient(monkeypatch)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], Any]]:
    """The servers of each kind, started once; every test has a cell of its own in them."""
    with contextlib.ExitStack() as stack:

        @cache
        def of(kind: str) -> Any:
            if kind == "sentinel":
                return stack.enter_context(sentinel_set(password="open-sesame", down_after_s=60.0))
            return stack.enter_context(store_place(kind, tmp_path_factory.mktemp(kind))).server

        yield of


@pytest.fixture
def place(request: pytest.FixtureRequest, shared: Callable[[str], Any], tmp_path: Path) -> Generator[StorePlace]:
    """A store of the test's own may be hurt, and its keys counted."""
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
async def test_entries_arrive_whole_and_in_order(place: StorePlace) -> None:
    entries = [bytes(range(256)), b"", b"\r\n$5\r\n*3\r\n", b"\x00" * 3, random.Random(1).randbytes(1 << 20), b"end"]
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.free and b.store.free, "both are there")
        a.store.lead(True)
        await a.send(Parcel(outboxes=[("b", entry) for entry in entries]))
        await b.send(Parcel(inbox=entries))
        await until(lambda: len(a.told.inbox) == len(b.told.outbox) == len(entries), "all is there")

        assert (a.told.inbox, b.told.outbox) == (entries, entries)
        assert a.told.outbox == b.told.inbox == []
        assert (a.store.entries_sent, b.store.entries_read) == (len(entries), len(entries))
        assert a.store.bytes_sent >= b.store.bytes_read == sum(map(len, entries))


@every
async def test_many_entries_go_at_once_and_are_told_in_batches(place: StorePlace) -> None:
    outbox = [f"to b {number}".encode() for number in range(OUTBOX_ENTRIES_MAX)]
    inbox = [f"from b {number}".encode() for number in range(INBOX_ENTRIES_MAX // 2)]
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.free and b.store.free, "both are there")
        a.store.lead(True)
        await a.send(Parcel(outboxes=[("b", entry) for entry in outbox]))
        await b.send(Parcel(inbox=inbox))
        await until(lambda: a.told.inbox == inbox and b.told.outbox == outbox, "all is there")

        assert max(a.told.batches) > 10


@every
async def test_the_inbox_is_read_only_by_the_scheduler_and_from_its_beginning_as_one(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await b.send(Parcel(inbox=[b"before"]))
        await until(lambda: a.store.free, "it is there")
        a.store.lead(True)
        await a.send(Parcel(outboxes=[("b", b"whom do you follow?")], inbox=[b"own"]))
        await b.send(Parcel(inbox=[b"you"]))
        await until(lambda: b"you" in a.told.inbox, "it was read")
        assert a.told.inbox == [b"own", b"you"]

        a.store.lead(False)
        await b.send(Parcel(inbox=[b"between"]))
        a.store.lead(True)
        await a.send(Parcel(inbox=[b"again"]))
        await until(lambda: b"again" in a.told.inbox, "it was read")
        assert a.told.inbox == [b"own", b"you", b"again"]
        assert b.told.inbox == []


@every
async def test_a_member_reads_nothing_that_was_said_before_it_came(place: StorePlace) -> None:
    async with place.member("a") as a:
        await a.send(Parcel(outboxes=[("b", b"to the one before")]))
        async with place.member("b") as b:
            await until(lambda: b.store.free, "it is there")
            await a.send(Parcel(outboxes=[("b", b"to you")]))
            await until(lambda: bool(b.told.outbox), "something came")

            assert b.told.outbox == [b"to you"]


@every
async def test_one_parcel_is_under_way_at_a_time(place: StorePlace) -> None:
    async with place.member("a") as a:
        await until(lambda: a.store.free, "it is there")
        assert (a.told.changes, a.told.freed) == ([(True, None)], 1)

        a.store.send(Parcel(inbox=[b"x"]))
        assert not a.store.free
        await until(lambda: a.store.free, "it is free again")
        assert a.told.freed == 2
        assert place.kind == "fake" or 0 < a.store.round_trip_ns < 10 * SECOND


@every
async def test_what_is_under_way_when_a_store_is_stopped_arrives(place: StorePlace) -> None:
    async with place.member("b") as b:
        await until(lambda: b.store.free, "it is there")
        async with place.member("a") as a:
            await until(lambda: a.store.free, "it is there")
            a.store.send(Parcel(outboxes=[("b", b"goodbye")]))
        await until(lambda: b.told.outbox == [b"goodbye"], "it arrives")


# Lease


@every
async def test_claims_are_answered_as_the_pure_function_says(place: StorePlace) -> None:
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
            model = released(model, epoch, now)
            await a.send(Parcel(release=epoch))
            continue
        instead_of = chance.choice([None, *epochs])
        claim = Claim(chance.choice(epochs), chance.choice([Duration(0), HOUR]), now, instead_of)
        model = claimed(model, claim, now)
        before = len(a.told.leases)
        await a.send(Parcel(claim=claim))
        asked, lease = a.told.leases[before]
        assert asked is claim
        assert lease.epoch == model.epoch, f"{what}, step {step}: {claim}"


@every
async def test_a_lease_lasts_by_the_stores_own_clock(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.free and b.store.free, "both are there")
        began = time.monotonic()
        await a.send(Parcel(claim=a_claim(1, "a", Duration(SECOND // 2))))
        await b.send(Parcel(claim=a_claim(2, "b")))
        while b.told.leases[-1][1].epoch.id != "b":
            await asyncio.sleep(0.01)
            await b.send(Parcel(claim=a_claim(2, "b")))
            assert time.monotonic() - began < 60

        assert time.monotonic() - began > 0.4


@every
async def test_a_lease_that_was_given_up_keeps_its_number(place: StorePlace) -> None:
    async with place.member("a") as a:
        await a.send(Parcel(claim=a_claim(3, "a")))
        await a.send(Parcel(release=Epoch(3, "a")))
        await a.send(Parcel(claim=a_claim(3, "b")))
        assert a.told.leases[-1][1].epoch == Epoch(3, "a")
        await a.send(Parcel(claim=a_claim(4, "b")))
        assert a.told.leases[-1][1].epoch == Epoch(4, "b")


@every
async def test_of_many_who_claim_at_once_one_has_it(place: StorePlace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(place.member(f"m{number}")) for number in range(5)]
        await asyncio.gather(*(each.send(Parcel(claim=a_claim(1, each.name))) for each in members))

        assert len({each.told.leases[0][1].epoch.id for each in members}) == 1


# Snapshot


@every
async def test_the_newer_snapshot_stays(place: StorePlace) -> None:
    async with place.member("a") as a:
        await a.send(Parcel(read=True))
        for epoch, number, written in (
            (2, 1, b"\x00one"),
            (2, 3, b"three"),
            (2, 2, b"two"),
            (1, 9, b"old"),
            (3, 0, b"new"),
        ):
            await a.send(Parcel(write=(Snapshots(epoch, number), written), read=True))
        await a.send(Parcel(write=(Snapshots(3, 0), b"new"), read=True))

        assert a.told.read == [None, b"\x00one", b"three", b"three", b"three", b"new", b"new"]
        kept = [Snapshots(2, 1), *[Snapshots(2, 3)] * 3, *[Snapshots(3, 0)] * 2]
        assert a.told.kept == kept


@every
async def test_who_gives_up_in_a_parcel_has_written_its_snapshot_before(place: StorePlace) -> None:
    async with place.member("a") as a:
        await a.send(Parcel(claim=a_claim(1, "a")))
        await a.send(Parcel(claim=a_claim(1, "a"), write=(Snapshots(1, 1), b"last"), release=Epoch(1, "a"), read=True))
        assert a.told.leases[-1][1].epoch == Epoch(1, "a")
        await a.send(Parcel(claim=a_claim(2, "b")))

        assert (a.told.read, a.told.leases[-1][1].epoch) == ([b"last"], Epoch(2, "b"))


# What stays in the store


@real
async def test_what_was_read_is_trimmed_away(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.free and b.store.free, "both are there")
        a.store.lead(True)
        for number in range(12):
            await a.send(Parcel(outboxes=[("b", b"x" * 200)] * TRIM_ENTRIES))
            await b.send(Parcel(inbox=[b"y" * 200] * TRIM_ENTRIES))
            await until(
                lambda n=number: len(b.told.outbox) == (n + 1) * TRIM_ENTRIES == len(a.told.inbox), "all was read"
            )
        await a.send(Parcel(read=True))
        await b.send(Parcel(read=True))

        with contextlib.closing(place.server.client()) as client:
            lengths = [client.xlen(place.key(name)) for name in ("inbox", "outbox:b")]
        assert max(lengths) <= NODE_ENTRIES + TRIM_ENTRIES, lengths


@real
async def test_what_nobody_reads_is_bounded_and_outboxes_expire(place: StorePlace) -> None:
    async with place.member("a") as a:
        for _ in range(4):
            await a.send(
                Parcel(
                    inbox=[b"beat"] * (INBOX_ENTRIES_MAX // 2),
                    outboxes=[("gone", b"hello?")] * OUTBOX_ENTRIES_MAX,
                    claim=a_claim(1, "a"),
                    write=(Snapshots(1, 1), b"counters"),
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
async def test_a_store_that_comes_back_empty_is_used_from_its_beginning(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.free and b.store.free, "both are there")
        a.store.lead(True)
        await a.send(
            Parcel(outboxes=[("b", b"1")], inbox=[b"1"], claim=a_claim(1, "a"), write=(Snapshots(1, 1), b"counters"))
        )
        await until(lambda: a.told.inbox == [b"1"] and b.told.outbox == [b"1"], "it arrived")

        await place.befall("restart", empty=True)
        await until(lambda: len(a.told.changes) >= 3 and len(b.told.changes) >= 3, "both have seen it")
        await a.send(Parcel(outboxes=[("b", b"2")], inbox=[b"2"], claim=a_claim(1, "b"), read=True))
        await until(lambda: a.told.inbox == [b"1", b"2"] and b.told.outbox == [b"1", b"2"], "it arrived")

        assert a.told.leases[-1][1].epoch == Epoch(1, "b")
        assert a.told.read == [None]
        assert a.store.reconnects == 1


@hurt
async def test_a_store_that_comes_back_with_an_old_copy_goes_on_with_it(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: b.store.free, "it is there")
        await a.send(Parcel(outboxes=[("b", b"1")], claim=a_claim(1, "a"), write=(Snapshots(1, 1), b"old")))
        await place.befall("keep")
        await a.send(Parcel(outboxes=[("b", b"2")], write=(Snapshots(1, 2), b"new")))
        await until(lambda: b.told.outbox == [b"1", b"2"], "it arrived")

        await place.befall("restart", empty=False)
        await until(lambda: len(a.told.changes) >= 3 and len(b.told.changes) >= 3, "both have seen it")
        await a.send(Parcel(outboxes=[("b", b"3")], claim=a_claim(2, "b"), read=True))
        await until(lambda: b.told.outbox[-1] == b"3", "it arrived")

        # What the copy has may be told once more; nothing is left out.
        assert [each for each in b.told.outbox if each != b"1"] == [b"2", b"3"]
        assert (a.told.leases[-1][1].epoch, a.told.read) == (Epoch(1, "a"), [b"old"])


@hurt
async def test_a_killed_store_is_noticed_at_once_and_taken_up_again(place: StorePlace) -> None:
    async with place.member("a") as a:
        await until(lambda: a.store.free, "it is there")
        await place.befall("kill")
        await until(lambda: not a.store.up, "it is away")
        assert not a.store.free
        await until(lambda: a.store.problem is not None and "start it" in a.store.problem, "it says why")
        assert a.told.changes[-1] == (False, a.store.problem)

        await place.befall("restart")
        took = await until(lambda: a.store.free, "it is back")
        print(f"{place.kind}: back {took * 1000:.0f} ms after it answers")
        assert (a.told.changes[-1], a.store.problem) == ((True, None), None)
        await a.send(Parcel(outboxes=[("a", b"to myself")]))
        await until(lambda: a.told.outbox == [b"to myself"], "it arrives")


@hurt
@pytest.mark.usefixtures("impatient")
async def test_a_paused_store_is_left_alone_and_its_return_noticed(place: StorePlace) -> None:
    async with place.member("a") as a, place.member("b") as b:
        await until(lambda: a.store.free and b.store.free, "both are there")
        await place.befall("pause")
        began = time.monotonic()
        a.store.send(Parcel(outboxes=[("b", b"held up")]))
        await until(lambda: not a.store.up, "it is away")
        assert time.monotonic() - began > 0.4
        assert a.store.timeouts >= 1
        assert a.store.problem is not None
        assert "paused" in a.store.problem
        await until(lambda: a.store.timeouts >= (1 if place.kind == "fake" else 2), "it was tried again in vain")
        assert not a.store.free

        await place.befall("resume")
        took = await until(lambda: a.store.free and b.store.free, "it is back")
        print(f"{place.kind}: back {took * 1000:.0f} ms after it goes on")
        await a.send(Parcel(outboxes=[("b", b"after")]))
        await until(lambda: b.told.outbox[-1:] == [b"after"], "it arrives")
        assert b.told.outbox in ([b"after"], [b"held up", b"after"])


@hurt
async def test_nothing_grows_while_the_store_is_away(place: StorePlace) -> None:
    async with place.member("a") as a:
        await until(lambda: a.store.free, "it is there")
        await place.befall("kill")
        await until(lambda: not a.store.up, "it is away")
        await until(lambda: "start it" in (a.store.problem or ""), "it says why")
        tasks, changes = len(asyncio.all_tasks()), len(a.told.changes)
        # After some attempts to connect the pause between them grows no more; the fake makes none.
        await until(lambda: getattr(a.store, "_pause_s", PAUSE_S_MAX) == PAUSE_S_MAX, "it was tried some times")

        assert len(asyncio.all_tasks()) <= tasks + 4
        assert len(a.told.changes) == changes
        assert a.told.freed == 1


@hurt
async def test_a_store_may_be_stopped_while_it_is_away(place: StorePlace) -> None:
    async with place.member("a") as a:
        await until(lambda: a.store.free, "it is there")
        await place.befall("kill")
        await until(lambda: not a.store.up, "it is away")
        began = time.monotonic()
    assert time.monotonic() - began < 30
    assert not a.store.free
