"""Does every authority decide about a member's requests alike, at once or by messages?"""

from abc import ABC, abstractmethod

import pytest

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import EndpointJoined, EndpointReadied, PolicyChanged
from headgate.hosts.cell.member.authority import Authority, Decision, RequestNews, SettingNews
from headgate.hosts.cell.member.conversation import Conversation
from headgate.hosts.cell.member.held import HeldRequest, Holdings
from headgate.hosts.cell.member.island import IslandAuthority
from headgate.hosts.cell.member.remote import RemoteAuthority
from headgate.hosts.cell.member.rules import MemberRules
from headgate.hosts.cell.protocol.endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Declined, Ended, Granted, MemberEntry, MemberHead, Share
from headgate.hosts.cell.timing import Bounds, Timing
from headgate.model.outcome import Outcome
from headgate.model.units import EndpointId, Instant, RequestId
from testing.builders import aborted, an_endpoint, at, client_left, completed, first_token
from tests.hosts.cell.builders import FIRST, POLICY, a_leader, a_ticket, as_heard, as_sent

SHARE = Share(0, 1)
START = at(1)
"""From here on the authority decides."""
REMOTE, ISLAND = "remote", "island"


class Case(ABC):
    """One authority over one endpoint with one place, and what it has decided."""

    def __init__(self) -> None:
        self.timing, self.bounds = Timing(), Bounds(window=8)
        self.holdings = Holdings(unsettled_max=self.bounds.unsettled)
        self.rules, self.endpoints = MemberRules(at(0)), KnownEndpoints()
        self.rules.change(PolicyChanged(POLICY, "first"))
        self.endpoints.note(EndpointJoined(an_endpoint(places=1)))
        self.endpoints.note(EndpointReadied(EndpointId("e1")))

    @property
    @abstractmethod
    def authority(self) -> Authority: ...

    def open(self, name: str, now: Instant) -> list[Decision]:
        request = self.holdings.requests[RequestId(name)] = HeldRequest(a_ticket(name), now)
        return self._start(self.authority.open(request, now) + self.settle(now), now)

    def handle(self, news: RequestNews, now: Instant) -> list[Decision]:
        return self._start(self.authority.handle(news, now) + self.settle(now), now)

    def tell(self, news: SettingNews, now: Instant) -> list[Decision]:
        return self._start(self.authority.tell(news, now) + self.settle(now), now)

    def decline(self, name: str, now: Instant) -> list[Decision]:
        self.holdings.requests[RequestId(name)].running.clear()
        declined = Declined(RequestId(name), 1, over=True, reason="the request has ended")
        return self._start(self.authority.decline(declined, now) + self.settle(now), now)

    def tick(self, now: Instant) -> list[Decision]:
        return self._start(self.authority.tick(now) + self.settle(now), now)

    def _start(self, decisions: list[Decision], now: Instant) -> list[Decision]:
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self.holdings.requests[decision.request_id].begin(decision, None, now)
        return decisions

    def ends(self, name: str, now: Instant) -> list[Decision]:
        """The attempt of a request is completed."""
        request = self.holdings.requests.pop(RequestId(name))
        request.over = True
        return self.handle(Ended(completed(name), over=True), now)

    @abstractmethod
    def settle(self, now: Instant) -> list[Decision]:
        """What is decided elsewhere by now."""


class IslandCase(Case):
    def __init__(self) -> None:
        super().__init__()
        self._island = IslandAuthority(SHARE, START)
        self._island.begin(self.rules, self.endpoints, self.holdings.requests.values(), START)

    @property
    def authority(self) -> Authority:
        return self._island

    def settle(self, now: Instant) -> list[Decision]:
        return []


class RemoteCase(Case):
    """A session with a real scheduler, whose entries arrive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.conversation = Conversation(at(0), timing=self.timing, bounds=self.bounds)
        self._remote = RemoteAuthority(self.conversation, self.holdings, self.rules, self.endpoints, share=SHARE)
        self.leader = a_leader(places=1)
        self.conversation.follow(FIRST)
        self._remote.restart(at(0))
        self.settle(at(0.5))
        self.settle(START)

    @property
    def authority(self) -> Authority:
        return self._remote

    def settle(self, now: Instant) -> list[Decision]:
        decisions: list[Decision] = []
        for _ in range(3):
            for first, messages in self.conversation.take(now):
                self.leader.receive(as_sent(MemberEntry(self._head(first, now), messages)), now)
            self.leader.tick(now)
            for _, entry in self.leader.outgoing(now):
                decisions += self._receive(as_heard(entry), now)
        return decisions

    def _receive(self, entry, now: Instant) -> list[Decision]:
        if entry.head.echo is not None:
            self.conversation.is_answer(entry.head, entry.head.echo, now)
        heard = [said for _, said in self._remote.receive(entry, now)] if entry.head.echo is not None else []
        decisions = [said.order if isinstance(said, Granted) else said for said in heard]
        return [each for each in decisions if isinstance(each, Dispatch | Abort | End)]

    def _head(self, first: int, now: Instant) -> MemberHead:
        talk, remote = self.conversation, self._remote
        serials = (talk.outbound.base, talk.outbound.first, first, talk.inbound.taken)
        return MemberHead("g1", 1, talk.bound, remote.alone, talk.session, *serials, now, talk.echo(now), remote.share)


@pytest.fixture(params=[REMOTE, ISLAND])
def case(request: pytest.FixtureRequest) -> Case:
    return RemoteCase() if request.param == REMOTE else IslandCase()


def dispatched(decisions: list[Decision]) -> list[str]:
    return [each.request_id for each in decisions if isinstance(each, Dispatch)]


# Requests


def test_authority_dispatches_a_request_to_a_free_place(case: Case) -> None:
    assert dispatched(case.open("r1", at(1))) == ["r1"]


def test_authority_lets_a_request_wait_until_a_place_is_free(case: Case) -> None:
    case.open("r1", at(1))

    assert dispatched(case.open("r2", at(1.1))) == []
    assert dispatched(case.ends("r1", at(1.2))) == ["r2"]


def test_authority_keeps_a_request_that_has_started_to_answer(case: Case) -> None:
    case.open("r1", at(1))

    assert case.handle(first_token("r1"), at(1.1)) == []


def test_authority_does_not_dispatch_a_withdrawn_request(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))
    case.handle(client_left("r2"), at(1.2))

    assert dispatched(case.ends("r1", at(1.3))) == []


def test_authority_gives_the_place_of_a_declined_dispatch_to_the_next_request(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))
    case.handle(client_left("r1"), at(1.2))

    assert dispatched(case.decline("r1", at(1.3))) == ["r2"]


def test_authority_retries_a_request_whose_attempt_was_stopped(case: Case) -> None:
    case.open("r1", at(1))
    case.holdings.requests[RequestId("r1")].running.clear()
    decisions = case.handle(Ended(aborted("r1"), over=False), at(1.1))

    assert dispatched(decisions) == ["r1"]


def test_authority_ends_a_request_that_has_waited_too_long(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))
    moment, decided = 1.2, list[Decision]()
    while not decided and moment < 600:
        moment += 0.4
        decided = case.tick(at(moment))

    assert [each.outcome for each in decided if isinstance(each, End)] == [Outcome.EXPIRED]


def test_authority_counts_the_requests_it_decides_about(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))

    summary = case.authority.summary()
    assert summary.requests == 2
    assert sum(summary.queued.values()) == 1
    assert [each.in_flight for each in summary.endpoints] == [1]


def test_authority_has_room_at_first(case: Case) -> None:
    assert case.authority.full() is None


def test_authority_takes_a_change_of_policy_without_a_decision(case: Case) -> None:
    case.open("r1", at(1))

    assert case.tell(PolicyChanged(POLICY, "second"), at(1.1)) == []


# The scheduler of the cell


def test_authority_holds_its_share(case: Case) -> None:
    assert case.authority.share == SHARE


def test_authority_knows_of_leaving_in_the_end(case: Case) -> None:
    case.authority.leave(at(1))
    case.settle(at(1))

    assert case.authority.knows_of_leaving


def test_authority_survives_a_restart_with_all_that_it_knows(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))
    case.authority.restart(at(1.2))
    case.settle(at(1.2))

    assert dispatched(case.ends("r1", at(1.3))) == ["r2"]


# Where the two differ


def test_only_the_remote_authority_tells_a_scheduler() -> None:
    remote, island = RemoteCase(), IslandCase()
    before = remote.authority.serial
    remote.open("r1", at(1))
    island.open("r1", at(1))

    assert remote.authority.serial > before
    assert island.authority.serial == 0
    assert (remote.authority.alone, island.authority.alone) == (False, True)


def test_only_the_remote_authority_can_be_lost() -> None:
    remote, island = RemoteCase(), IslandCase()
    silence = at(3)

    assert not remote.authority.is_lost(START)
    assert remote.authority.is_lost(silence)
    assert remote.authority.next_wakeup() == START + remote.timing.island_after_ns
    assert not island.authority.is_lost(silence)


def test_an_island_yields_only_to_a_scheduler_that_has_heard_of_it() -> None:
    remote, island = RemoteCase(), IslandCase()

    assert remote.authority.yields_to(at(0.9))
    assert not island.authority.yields_to(at(0.9))
    assert island.authority.yields_to(START)


def test_an_island_does_not_listen_to_messages() -> None:
    remote, island = RemoteCase(), IslandCase()
    request = HeldRequest(a_ticket("r1"), at(1))
    remote.holdings.requests[request.id] = request
    remote.authority.open(request, at(1))
    [taken] = remote.conversation.take(at(1))
    remote.leader.receive(as_sent(MemberEntry(remote._head(taken[0], at(1)), taken[1])), at(1))
    [(_, entry)] = remote.leader.outgoing(at(1))

    assert island.authority.receive(entry, at(1)) == []
    assert [type(said) for _, said in remote.authority.receive(entry, at(1))] == [Granted]


def test_remote_authority_is_full_when_too_much_is_unacknowledged() -> None:
    remote = RemoteCase()
    for number in range(8):
        request = HeldRequest(a_ticket(f"r{number}"), at(1))
        remote.authority.open(request, at(1))

    assert remote.authority.full() == "the scheduler has yet to answer 8 of 8 messages"
