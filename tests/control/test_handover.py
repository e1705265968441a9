"""An operator's hand-over of the scheduler role: who may take over, and what the audit log contains."""

from types import MappingProxyType
from typing import Any, cast

import pytest

from headgate.control.handover import HandoverService
from headgate.control.operator_overrides import MemoryOverrides
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.protocol.messages import Epoch, Share
from headgate.hosts.cell.protocol.views import CellView, MemberMode, MemberPresence, MemberView
from headgate.model.units import SECOND, Instant
from headgate.ports.directory import Actor, ChangeRejected

ALICE = Actor("alice", "192.0.2.7")


def member(presence: MemberPresence = MemberPresence.PRESENT, *, serves: bool = True) -> MemberView:
    return MemberView(presence, "h", "", serves=serves)


class FakeHost:
    name = "g1"

    def __init__(self, *, is_leader: bool = True, is_gathering: bool = False, **members: MemberView) -> None:
        self.is_leader, self.is_gathering = is_leader, is_gathering
        self.members = {"g1": member(), **members}
        self.decides = True
        self.paused: list[int] = []

    def view(self) -> CellView:
        return CellView(
            mode=MemberMode.FOLLOWING,
            epoch=Epoch(4, "g1/ab" if self.is_leader else "g2/cd"),
            is_leader=self.is_leader,
            is_gathering=self.is_gathering,
            share=Share(0, 2),
            unacknowledged=0,
            held_requests=0,
            unsettled_requests=0,
            staged_hash="",
            lowest_version=1,
            members=MappingProxyType(self.members),
        )

    def step_down(self, pause_ns: int) -> bool:
        self.paused.append(pause_ns)
        return self.decides


def a_service(host: FakeHost, *, gateways_are_candidates: bool = True) -> tuple[HandoverService, MemoryOverrides]:
    store = MemoryOverrides(lambda: None, lambda: Instant(0), in_cell=True)
    return HandoverService(cast("CellHost", host), store, gateways_are_candidates=gateways_are_candidates), store


async def handed_over(service: HandoverService) -> dict[str, Any]:
    return dict(await service.hand_over(ALICE, pause_s=5, reason="drill"))


async def test_scheduler_hands_over_and_the_audit_log_names_the_operator() -> None:
    host = FakeHost(g2=member())
    service, store = a_service(host)

    assert await handed_over(service) == {"member": "g1", "epoch": 4, "pause_s": 5}
    assert host.paused == [5 * SECOND]
    [row] = await store.audit(before=None, limit=10)
    assert (row.actor, row.action, row.target) == ("alice", "cell.hand_over", "g1")
    assert row.after == {"epoch": 4, "pause_s": 5, "reason": "drill"}


@pytest.mark.parametrize(
    ("host", "why"),
    [
        (FakeHost(is_leader=False, g2=member()), "not the cell's scheduler; it is g2"),
        (FakeHost(is_gathering=True, g2=member()), "still taking over"),
        (FakeHost(), "no other candidate"),
        (FakeHost(g2=member(MemberPresence.ABSENT)), "no other candidate"),
    ],
)
async def test_hand_over_is_rejected_and_changes_nothing(host: FakeHost, why: str) -> None:
    service, store = a_service(host)

    with pytest.raises(ChangeRejected, match=why):
        await handed_over(service)
    assert (host.paused, await store.audit(before=None, limit=10)) == ([], [])


async def test_gateways_that_are_no_candidates_cannot_take_over() -> None:
    service, _ = a_service(FakeHost(g2=member()), gateways_are_candidates=False)
    with pytest.raises(ChangeRejected, match="no other candidate"):
        await handed_over(service)

    service, _ = a_service(FakeHost(g2=member(serves=False)), gateways_are_candidates=False)
    assert await handed_over(service)


async def test_scheduler_that_changed_while_the_audit_entry_was_written_is_reported() -> None:
    host = FakeHost(g2=member())
    host.decides = False
    service, store = a_service(host)

    with pytest.raises(ChangeRejected, match="stopped being the cell's scheduler"):
        await handed_over(service)
    assert [(row.action, row.target) for row in await store.audit(before=None, limit=10)] == [
        ("cell.hand_over_failed", "g1"),
        ("cell.hand_over", "g1"),
    ]
