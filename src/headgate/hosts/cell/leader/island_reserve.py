"""Capacity reserved for members that may be islands.

An island uses its share without asking. While any member is absent, the scheduler's core therefore gets fewer slots on
each endpoint and lower limits. All other members are assigned their shares.
"""

from collections.abc import Iterable
from dataclasses import replace

from headgate.core.events import EndpointJoined, PolicyChanged, SharesAssigned
from headgate.hosts.cell.leader.assignment_table import AssignmentTable
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.roster import AbsentUsage, MemberRoster
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.protocol.shares import remaining_adapters, remaining_policy
from headgate.model.units import EndpointId, Instant


class IslandReserve:
    def __init__(
        self,
        book: AssignmentTable,
        roster: MemberRoster,
        endpoints: KnownEndpoints,
        rules: PolicyChanged,
        shares: SharesAssigned | None = None,
    ) -> None:
        self._book, self._roster, self._endpoints = book, roster, endpoints
        self.rules = rules
        self.shares = shares
        """Shares of limits at the start. None if there is only one cell."""
        self._reserved_shares = 0
        """Number of shares excluded from the core's current policy."""
        self._places: dict[EndpointId, int] = {}
        """Number of slots that the core has on each endpoint."""
        self._frozen: dict[EndpointId, None] = {}

    def begin(self, now: Instant) -> None:
        self._reserved_shares = self._roster.reserved_shares
        self.apply_policy(now)
        if self.shares is not None:
            # Before the counters are restored, because a share that applies later would reduce what fits.
            self._book.handle(self.shares, now)

    def apply_policy(self, now: Instant) -> None:
        members = max(1, self._roster.share_count)
        rest = remaining_policy(self.rules.policy, taken=self._reserved_shares, of=members)
        name = (
            f"{self.rules.hash} less {self._reserved_shares} of {members}" if self._reserved_shares else self.rules.hash
        )
        self._book.handle(PolicyChanged(rest, name), now)

    def update(self, now: Instant) -> None:
        """Updates the capacity reserved for absent members and assigns shares to all others."""
        absent = self._roster.absent_usage()
        for endpoint_id in tuple(self._places):
            self._update_endpoint(endpoint_id, absent, now)
        if (taken := self._roster.reserved_shares) != self._reserved_shares:
            self._reserved_shares = taken
            self.apply_policy(now)
        for peer, share in tuple(self._roster.assign_shares()):
            peer.unsent_share = None if share == peer.sent_share() else share
            self._roster.has_unsaved_shares = True

    def update_endpoint(self, endpoint_id: EndpointId, now: Instant, *, force: bool = False) -> None:
        """Updates the slots that the core has on an endpoint, excluding the reserved ones."""
        absent = self._roster.absent_usage()
        self._update_endpoint(endpoint_id, absent, now, force=force)
        for each in self._endpoints.sharing(endpoint_id):
            if each != endpoint_id and each in self._places:
                self._update_endpoint(each, absent, now)

    def _update_endpoint(
        self, endpoint_id: EndpointId, absent: AbsentUsage, now: Instant, *, force: bool = False
    ) -> None:
        endpoint = self._endpoints.by_id.get(endpoint_id)
        if endpoint is None:
            self._places.pop(endpoint_id, None)
            return
        sharing = self._endpoints.sharing(endpoint_id)
        places = 0 if endpoint_id in self._frozen else self._roster.places_left(endpoint, absent, sharing)
        if force or self._places.get(endpoint_id) != places:
            self._places[endpoint_id] = places
            members = max(1, self._roster.share_count)
            max_lora = remaining_adapters(endpoint.max_lora, taken=self._roster.reserved_shares, of=members)
            self._book.handle(EndpointJoined(replace(endpoint, in_flight_max=places, max_lora=max_lora)), now)

    def freeze(self, endpoint_ids: Iterable[EndpointId], now: Instant) -> None:
        """Stops dispatching to these endpoints, and resumes it for all others."""
        thawed, self._frozen = self._frozen, dict.fromkeys(endpoint_ids)
        absent = self._roster.absent_usage()
        for endpoint_id in {**thawed, **self._frozen}:
            if endpoint_id in self._places:
                self._update_endpoint(endpoint_id, absent, now)

    def resend_share(self, peer: Peer, now: Instant) -> None:
        """Resends the current share to a member that is back. A new share is sent after the next snapshot."""
        share = peer.sent_share()
        if share is not None and peer.rank is not None:
            self.send_share(peer, share, now)
        self._roster.has_unsaved_shares = self._roster.has_unsaved_shares or peer.unsent_share is not None

    def send_share(self, peer: Peer, share: Share, now: Instant) -> None:
        if peer.is_connected:
            peer.unsent_share = None if peer.unsent_share == share else peer.unsent_share
            peer.shares.append((peer.outbound.next_serial, share))
            self._book.send(peer, share, now)
