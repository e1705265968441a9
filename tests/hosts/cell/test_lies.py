"""A process that sends invalid messages affects only itself."""

from random import Random

import pytest

from headgate.edge.options import EdgeLimits
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.protocol.codec import (
    InvalidMemberEntry,
    InvalidSchedulerEntry,
    UnreadableEntry,
    decode_member_entry,
    decode_scheduler_entry,
    encode_entry,
)
from headgate.hosts.cell.protocol.messages import SchedulerEntry, Share
from headgate.model.outcome import Outcome
from testing.builders import at, completed, first_token, progressed
from testing.cell_world.corruption import with_damaged_bytes, with_false_content
from tests.hosts.cell.builders import Cell, a_cell, a_leader, a_member, a_ticket

SEEDS = 20
LIAR = "g3"


def shares_in(entry: SchedulerEntry) -> set[Share]:
    return {message for _, message in entry.messages if isinstance(message, Share)}


class LyingCell(Cell):
    """Cell in which all messages to and from one member may be altered in transit."""

    def __init__(self, seed: int, leader: Leader, *members: Member) -> None:
        super().__init__(leader, *members)
        self.random = Random(seed)
        self.lies = 0

    def said_by(self, name: str, written: bytes, now: float) -> None:
        try:
            self.leader.receive(decode_member_entry(self._changed(name, written)), at(now))
        except InvalidMemberEntry as untrusted:
            self.leader.reject_entry(untrusted.head, str(untrusted), at(now))
        except UnreadableEntry:
            pass

    def told_to(self, name: str, written: bytes, now: float) -> None:
        member = self.members[name]
        try:
            entry = decode_scheduler_entry(self._changed(name, written))
            if shares_in(entry) != shares_in(decode_scheduler_entry(written)):
                # A member reports the share it received, and the scheduler reserves that share while the member is
                # absent. A false share therefore affects others, just as an altered head does.
                entry = decode_scheduler_entry(written)
            self.orders[name] += member.receive(entry, at(now))
        except InvalidSchedulerEntry as untrusted:
            member.reject_entry(untrusted.head, at(now))
        except UnreadableEntry:
            pass

    def _changed(self, name: str, written: bytes) -> bytes:
        if name != LIAR or self.random.random() < 0.5:
            return written
        self.lies += 1
        # The head identifies the sender and its scheduler. With an altered head, the message would belong to another
        # process.
        change = with_damaged_bytes if self.random.random() < 0.1 else with_false_content
        return (
            change(written, self.random)
            if change is with_damaged_bytes
            else with_false_content(written, self.random, head=False)
        )

    def exchange(self, now: float) -> None:
        for name, member in self.members.items():
            self.orders[name] += member.tick(at(now))
            for entry in member.outgoing(at(now)):
                for written in encode_entry(entry):
                    self.said_by(name, written, now)
        self.leader.tick(at(now))
        for name, entry in self.leader.outgoing(at(now)):
            if name in self.members:
                for written in encode_entry(entry):
                    self.told_to(name, written, now)

    def work(self, now: float) -> None:
        """Sends random events for each member's last three requests."""
        for name, member in self.members.items():
            for order in self.begun(name)[-3:]:
                if self.random.random() < 0.5:
                    continue
                event = self.random.choice((first_token, progressed, completed))(order.request_id)
                self.orders[name] += member.handle(event, at(now))


def test_request_with_a_long_model_name_is_rejected_and_its_gateway_keeps_serving() -> None:
    cell = a_cell("g1", "g2")
    cell.open("g1", a_ticket("long", model="m" * EdgeLimits().field_bytes_max), at(1))
    cell.talk(at(1))
    cell.open("g1", a_ticket("next"), at(1.1))
    cell.talk(at(1.1))

    assert [(end.request_id, end.outcome) for end in cell.ended("g1")] == [("long", Outcome.MODEL_NOT_FOUND)]
    assert [order.request_id for order in cell.begun("g1")] == ["next"]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_altered_messages_from_one_member_do_not_affect_other_members(seed: int) -> None:
    cell = LyingCell(seed, a_leader(places=12), a_member("g1"), a_member("g2"), a_member(LIAR))
    for step in range(240):
        now = step / 20
        if step % 8 == 0 and step < 160:
            for name in cell.members:
                cell.open(name, a_ticket(f"{name}-{step}"), at(now))
        cell.exchange(now)
        cell.work(now)
    for step in range(240, 480):
        now = step / 20
        cell.exchange(now)
        for name in ("g1", "g2"):
            for order in cell.begun(name):
                cell.orders[name] += cell.members[name].handle(completed(order.request_id, order.attempt), at(now))

    assert cell.lies > 20
    for name in ("g1", "g2"):
        ended = {end.request_id: end.outcome for end in cell.ended(name)}
        assert len(ended) == 20
        assert set(ended.values()) == {Outcome.COMPLETED}
