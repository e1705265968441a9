"""Contract tests for the authorities that make decisions for a member's requests."""

from abc import ABC, abstractmethod

import pytest

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import EndpointJoined, EndpointReady, PolicyChanged
from headgate.hosts.cell.member.authority import Authority, Decision, RequestUpdate, SettingsUpdate
from headgate.hosts.cell.member.held_requests import HeldRequest, HeldRequests
from headgate.hosts.cell.member.island import IslandAuthority
from headgate.hosts.cell.member.remote_authority import RemoteAuthority
from headgate.hosts.cell.member.rules import MemberRules
from headgate.hosts.cell.member.scheduler_connection import SchedulerConnection
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import (
    VERSION,
    FinishedAttempt,
    Grant,
    GrantDeclined,
    MemberEntry,
    MemberHead,
    Share,
)
from headgate.hosts.cell.timing import CellBounds, Timing
from headgate.model.outcome import Outcome
from headgate.model.units import EndpointId, Instant, RequestId
from testing.builders import aborted, an_endpoint, at, client_disconnected, completed, first_token
from tests.hosts.cell.builders import FIRST, POLICY, a_leader, a_ticket, as_heard, as_sent

SHARE = Share(0, 1)
START = at(1)
"""Time from which the authority makes decisions."""
REMOTE, ISLAND = "remote", "island"


class Case(ABC):
    """Authority over one endpoint with one slot."""

    def __init__(self) -> None:
        self.timing, self.bounds = Timing(), CellBounds(unacknowledged_max=8)
        self.holdings = HeldRequests(unsettled_max=self.bounds.unsettled_max)
        self.rules, self.endpoints = MemberRules(at(0)), KnownEndpoints()
        self.rules.change(PolicyChanged(POLICY, "first"))
        self.endpoints.apply_event(EndpointJoined(an_endpoint(places=1)))
        self.endpoints.apply_event(EndpointReady(EndpointId("e1")))

    @property
    @abstractmethod
    def authority(self) -> Authority: ...

    def open(self, name: str, now: Instant) -> list[Decision]:
        request = self.holdings.requests[RequestId(name)] = HeldRequest(a_ticket(name), now)
        return self._start(self.authority.open(request, now) + self.settle(now), now)

    def handle(self, update: RequestUpdate, now: Instant) -> list[Decision]:
        return self._start(self.authority.handle(update, now) + self.settle(now), now)

    def update_settings(self, update: SettingsUpdate, now: Instant) -> list[Decision]:
        return self._start(self.authority.update_settings(update, now) + self.settle(now), now)

    def decline(self, name: str, now: Instant) -> list[Decision]:
        self.holdings.requests[RequestId(name)].running.clear()
        declined = GrantDeclined(RequestId(name), 1, request_over=True, reason="the request has ended")
        return self._start(self.authority.decline(declined, now) + self.settle(now), now)

    def tick(self, now: Instant) -> list[Decision]:
        return self._start(self.authority.tick(now) + self.settle(now), now)

    def _start(self, decisions: list[Decision], now: Instant) -> list[Decision]:
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self.holdings.requests[decision.request_id].start_attempt(decision, None, now)
        return decisions

    def ends(self, name: str, now: Instant) -> list[Decision]:
        """Completes a request's attempt."""
        request = self.holdings.requests.pop(RequestId(name))
        request.over = True
        return self.handle(FinishedAttempt(completed(name), request_over=True), now)

    @abstractmethod
    def settle(self, now: Instant) -> list[Decision]:
        """Returns the decisions that another process has made by now."""


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
    """Session with a real scheduler whose entries arrive immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.conversation = SchedulerConnection(self.holdings, at(0), timing=self.timing, bounds=self.bounds)
        self._remote = RemoteAuthority(self.conversation, self.holdings, self.rules, self.endpoints, share=SHARE)
        self.leader = a_leader(places=1)
        self.conversation.follow(FIRST, VERSION)
        self._remote.restart_session(at(0))
        self.settle(at(0.5))
        self.settle(START)

    @property
    def authority(self) -> Authority:
        return self._remote

    def settle(self, now: Instant) -> list[Decision]:
        decisions: list[Decision] = []
        for _ in range(3):
            if (taken := self.conversation.pop_entry(now)) is not None:
                first, messages = taken
                self.leader.receive(as_sent(MemberEntry(self._head(first, now), messages)), now)
            self.leader.tick(now)
            for _, entry in self.leader.outgoing(now):
                decisions += self._receive(as_heard(entry), now)
        return decisions

    def _receive(self, entry, now: Instant) -> list[Decision]:
        if entry.head.echo is not None:
            self.conversation.record_answer(entry.head, entry.head.echo, now)
        heard = [said for _, said in self._remote.receive(entry, now)] if entry.head.echo is not None else []
        decisions = [said.dispatch if isinstance(said, Grant) else said for said in heard]
        return [each for each in decisions if isinstance(each, Dispatch | Abort | End)]

    def _head(self, first: int, now: Instant) -> MemberHead:
        talk, remote = self.conversation, self._remote
        serials = (talk.outbound.base, talk.outbound.first, first, talk.inbound.last_received)
        return MemberHead(
            "g1", 1, talk.followed_epoch, remote.is_island, talk.session, *serials, now, talk.echo(now), remote.share
        )


@pytest.fixture(params=[REMOTE, ISLAND])
def case(request: pytest.FixtureRequest) -> Case:
    return RemoteCase() if request.param == REMOTE else IslandCase()


def dispatched(decisions: list[Decision]) -> list[str]:
    return [each.request_id for each in decisions if isinstance(each, Dispatch)]


# Requests


def test_authority_dispatches_a_request_to_a_free_slot(case: Case) -> None:
    assert dispatched(case.open("r1", at(1))) == ["r1"]


def test_authority_queues_a_request_until_a_slot_is_free(case: Case) -> None:
    case.open("r1", at(1))

    assert dispatched(case.open("r2", at(1.1))) == []
    assert dispatched(case.ends("r1", at(1.2))) == ["r2"]


def test_authority_makes_no_decision_on_a_first_token(case: Case) -> None:
    case.open("r1", at(1))

    assert case.handle(first_token("r1"), at(1.1)) == []


def test_authority_does_not_dispatch_a_withdrawn_request(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))
    case.handle(client_disconnected("r2"), at(1.2))

    assert dispatched(case.ends("r1", at(1.3))) == []


def test_authority_gives_a_declined_dispatchs_slot_to_the_next_request(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))
    case.handle(client_disconnected("r1"), at(1.2))

    assert dispatched(case.decline("r1", at(1.3))) == ["r2"]


def test_authority_retries_a_request_after_an_aborted_attempt(case: Case) -> None:
    case.open("r1", at(1))
    case.holdings.requests[RequestId("r1")].running.clear()
    decisions = case.handle(FinishedAttempt(aborted("r1"), request_over=False), at(1.1))

    assert dispatched(decisions) == ["r1"]


def test_authority_expires_a_request_after_it_has_waited_too_long(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))
    moment, decided = 1.2, list[Decision]()
    while not decided and moment < 600:
        moment += 0.4
        decided = case.tick(at(moment))

    assert [each.outcome for each in decided if isinstance(each, End)] == [Outcome.QUEUE_TIMEOUT]


def test_authority_summary_counts_its_requests(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))

    summary = case.authority.summary()
    assert summary.requests == 2
    assert sum(summary.queued.values()) == 1
    assert [each.in_flight for each in summary.endpoints] == [1]


def test_authority_accepts_requests_initially(case: Case) -> None:
    assert case.authority.open_rejection() is None


def test_authority_accepts_a_policy_change_without_a_decision(case: Case) -> None:
    case.open("r1", at(1))

    assert case.update_settings(PolicyChanged(POLICY, "second"), at(1.1)) == []


# Cell scheduler


def test_authority_reports_its_share(case: Case) -> None:
    assert case.authority.share == SHARE


def test_authority_acknowledges_a_departure(case: Case) -> None:
    case.authority.leave(at(1))
    case.settle(at(1))

    assert case.authority.leave_acknowledged


def test_authority_keeps_its_requests_across_a_restart(case: Case) -> None:
    case.open("r1", at(1))
    case.open("r2", at(1.1))
    case.authority.restart_session(at(1.2))
    case.settle(at(1.2))

    assert dispatched(case.ends("r1", at(1.3))) == ["r2"]


# Differences between the two


def test_only_the_remote_authority_sends_messages() -> None:
    remote, island = RemoteCase(), IslandCase()
    before = remote.authority.serial
    remote.open("r1", at(1))
    island.open("r1", at(1))

    assert remote.authority.serial > before
    assert island.authority.serial == 0
    assert (remote.authority.is_island, island.authority.is_island) == (False, True)


def test_only_the_remote_authority_can_be_lost() -> None:
    remote, island = RemoteCase(), IslandCase()
    silence = at(3)

    assert not remote.authority.is_lost(START)
    assert remote.authority.is_lost(silence)
    assert remote.authority.next_wakeup() == START + remote.timing.island_after_ns
    assert not island.authority.is_lost(silence)


def test_island_yields_only_to_a_scheduler_that_received_its_entry() -> None:
    remote, island = RemoteCase(), IslandCase()

    assert remote.authority.yields_to(at(0.9))
    assert not island.authority.yields_to(at(0.9))
    assert island.authority.yields_to(START)


def test_island_ignores_scheduler_messages() -> None:
    remote, island = RemoteCase(), IslandCase()
    request = HeldRequest(a_ticket("r1"), at(1))
    remote.holdings.requests[request.id] = request
    remote.authority.open(request, at(1))
    taken = remote.conversation.pop_entry(at(1))
    assert taken is not None
    remote.leader.receive(as_sent(MemberEntry(remote._head(taken[0], at(1)), taken[1])), at(1))
    [(_, entry)] = remote.leader.outgoing(at(1))

    assert island.authority.receive(entry, at(1)) == []
    assert [type(said) for _, said in remote.authority.receive(entry, at(1))] == [Grant]


def test_remote_authority_is_full_when_its_window_is_unacknowledged() -> None:
    remote = RemoteCase()
    for number in range(8):
        request = HeldRequest(a_ticket(f"r{number}"), at(1))
        remote.authority.open(request, at(1))

    assert remote.authority.open_rejection() == "the scheduler has not acknowledged 8 messages (limit 8)"
