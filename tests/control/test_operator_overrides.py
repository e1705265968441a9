"""Operator overrides without a database take effect immediately and stay in the gateway's memory until they expire."""

import pytest

from headgate.control.operator_overrides import OVERRIDES_MAX, MemoryOverrides, overrides_status
from headgate.control.rollouts.plan import Rollout
from headgate.model.limits import Limits
from headgate.model.overrides import (
    DrainEndpoint,
    HoldClass,
    MinimumEndpoints,
    PinDegradation,
    SetRouteWeights,
    Throttle,
)
from headgate.model.policy import Policy
from headgate.model.units import SECOND, ClassName, EndpointId, Instant, ModelName, PoolName, TenantId
from headgate.ports.directory import Actor, ChangeRejected, NotFound

ALICE = Actor("alice", "192.0.2.7")


class Kept:
    """A `MemoryOverrides` with a manual clock and a count of policy updates."""

    def __init__(self, *, in_cell: bool = False, audit_max: int = 1_000) -> None:
        self.now = Instant(1_000 * SECOND)
        self.changes = 0
        self.book = MemoryOverrides(self._changed, lambda: self.now, in_cell=in_cell, audit_max=audit_max)

    def _changed(self) -> None:
        self.changes += 1

    async def place(self, verb: str, target: str, lasts_s: int = 60, **terms: int) -> str:
        row = await self.book.create_override(verb, target, terms, ALICE, reason="why", duration_s=lasts_s)
        return row.id


async def test_overrides_are_merged_into_the_policy() -> None:
    kept = Kept()
    await kept.place("throttle", "acme", requests_per_minute=6)
    await kept.place("hold", "batch")
    await kept.place("drain", "small/1")
    await kept.place("pin", "small", level=2)
    await kept.place("drain", "small/2", interrupt=1)
    await kept.place("scale", "small", endpoints=3)
    await kept.place("rollout", "chat", **Rollout(ModelName("chat"), "old", "new", 1, percent=5).terms())

    until = Instant(1_060 * SECOND)
    assert kept.book.apply(Policy()).overrides == (
        Throttle(TenantId("acme"), Limits(requests_per_minute=6), until),
        HoldClass(ClassName("batch"), until),
        DrainEndpoint(EndpointId("small/1"), until),
        PinDegradation(PoolName("small"), 2, until),
        DrainEndpoint(EndpointId("small/2"), until, interrupt=True),
        MinimumEndpoints(PoolName("small"), 3, until),
        SetRouteWeights(ModelName("chat"), (("old", 95), ("new", 5)), until),
    )
    assert kept.changes == 7
    shown = overrides_status(kept.book.apply(Policy()).overrides, kept.now)
    assert [(each["verb"], each["target"], each["remaining_s"]) for each in shown] == [
        ("throttle", "acme", 60),
        ("hold", "batch", 60),
        ("drain", "small/1", 60),
        ("pin", "small", 60),
        ("drain", "small/2", 60),
        ("scale", "small", 60),
        ("rollout", "chat", 60),
    ]
    assert overrides_status(kept.book.apply(Policy()).overrides, until) == []


async def test_override_ends_when_it_expires_or_an_operator_ends_it() -> None:
    kept = Kept()
    short, long = await kept.place("hold", "batch", 10), await kept.place("drain", "small/1", 100)

    kept.now = Instant(1_010 * SECOND)
    assert [row.id for row in await kept.book.overrides(limit=10)] == [long]
    with pytest.raises(NotFound, match="headgate operate list"):
        await kept.book.end_override(short, ALICE)

    ended = await kept.book.end_override(long, ALICE)
    assert ended.ended_at == kept.now
    assert kept.book.apply(Policy()) == Policy()
    assert kept.changes == 3


async def test_every_change_gives_the_override_set_a_new_name() -> None:
    kept = Kept()
    assert kept.book.name == ""
    order = await kept.place("hold", "batch")
    placed = kept.book.name
    await kept.book.end_override(order, ALICE)

    assert placed
    assert kept.book.name != placed


async def test_audit_log_lists_the_newest_changes_first() -> None:
    kept = Kept(audit_max=2)
    order = await kept.place("hold", "batch")
    await kept.place("drain", "small/1")
    await kept.book.end_override(order, ALICE)

    rows = await kept.book.audit(before=None, limit=10)
    assert [(row.number, row.actor, row.origin, row.action, row.target) for row in rows] == [
        (3, "alice", "192.0.2.7", "override.end", order),
        (2, "alice", "192.0.2.7", "override.drain", "small/1"),
    ]
    assert [row.number for row in await kept.book.audit(before=3, limit=1)] == [2]


async def test_audit_entry_of_another_action_changes_no_override() -> None:
    kept = Kept(in_cell=True)
    await kept.book.add_audit_entry(ALICE, "cell.hand_over", "gw-1", after={"reason": "drill"})

    [row] = await kept.book.audit(before=None, limit=10)
    assert (row.actor, row.action, row.target, row.after) == ("alice", "cell.hand_over", "gw-1", {"reason": "drill"})
    assert (kept.changes, kept.book.name) == (0, "")


async def test_overrides_in_a_cell_are_rejected_with_the_next_step() -> None:
    kept = Kept(in_cell=True)

    with pytest.raises(ChangeRejected, match=r"belongs to a cell.*add database\.url"):
        await kept.place("hold", "batch")
    assert (kept.changes, await kept.book.overrides(limit=10)) == (0, [])


async def test_number_of_overrides_is_bounded() -> None:
    kept = Kept()
    for _ in range(OVERRIDES_MAX):
        await kept.place("hold", "batch", 10)

    with pytest.raises(ChangeRejected, match="end one first"):
        await kept.place("hold", "batch")
    kept.now = Instant(1_010 * SECOND)
    assert await kept.place("hold", "batch")
