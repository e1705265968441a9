"""Who waits, for how long at most, and who is held until an endpoint has started?

The order of those who wait is decided elsewhere (`bands`, `fair`). Here a request is put among them and taken out, and
its time is kept: as long as its class allows over all attempts together, less where its answer could no longer begin in
time. One that is held for the first endpoint of a pool (`holds`) waits by another bound, which is over when an endpoint
of any of its pools takes work; from then on it waits as everybody does.
"""

from collections.abc import Iterable

from headgate.core.admission.gate import no_hold, startable
from headgate.core.alarms import Agenda, Alarms
from headgate.core.commands import Command, Hold
from headgate.core.overload import Overload
from headgate.core.queues.bands import Backlog
from headgate.core.queues.floors import Floors
from headgate.core.queues.holds import Holds
from headgate.core.routing.fleet import Fleet
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.model.units import Duration, Instant, PoolName, RequestId, after, seconds


class Queue:
    __slots__ = ("_fleet", "_overload", "_rules", "backlog", "expiries", "floors", "holds")

    def __init__(self, rules: Rules, fleet: Fleet, overload: Overload, agenda: Agenda) -> None:
        self._rules, self._fleet, self._overload = rules, fleet, overload
        self.floors = Floors()
        self.backlog = Backlog(self.floors)
        self.expiries: Alarms[RequestId] = Alarms(agenda)
        self.holds = Holds()

    def change_rules(self, rules: Rules) -> None:
        """Empties the lines: those who wait are put into them anew."""
        self._rules = rules
        self.holds.change_rules(rules)
        self.floors.change_rules(rules.floors)
        self.backlog = Backlog(self.floors)

    def enter(self, request: Request, now: Instant, out: list[Command]) -> None:
        request.queued_since = now
        hold = request.hold
        wait_ns = self.patience(request, now) if hold is None else self._hold(request, hold, out)
        self._set_expiry(request, wait_ns, now)
        self.push(request)

    def _set_expiry(self, request: Request, wait_ns: Duration, now: Instant) -> None:
        expires, deadline = after(now, wait_ns), request.deadline
        if deadline is None or expires < deadline.at:
            self.expiries.set(request.ticket.request_id, expires)

    def push(self, request: Request) -> None:
        gateway = request.ticket.gateway
        request.member_line = gateway if gateway in self._fleet.health.reach.away else ""
        self.backlog.push(request)
        self._overload.queued(request)
        self._fleet.waited_for(request.pools)

    def set_apart(self, member: str, requests: Iterable[Request]) -> None:
        """Moves waiting requests of this member into separate lines, since the member may use fewer endpoints."""
        for request in requests:
            if request.ticket.gateway == member and request.member_line != member:
                request.member_line = member
                self.backlog.realign(request)

    def remove(self, request: Request, now: Instant) -> None:
        """It is over, or wanted no more, before its turn has come."""
        self.backlog.remove(request)
        self.leave(request, now)

    def leave(self, request: Request, now: Instant) -> None:
        """It waits no longer, and is in no line any more."""
        # Whoever stood behind it in its line is the next one, and may fit where this one did not.
        self._fleet.waited_for(request.pools)
        self.expiries.clear(request.ticket.request_id)
        self._overload.left(request)
        if request.hold is not None and self.holds.remove(request):
            request.held_ns = Duration(request.held_ns + now - request.queued_since)
        request.waited_ns = Duration(request.waited_ns + now - request.queued_since)

    # Held until an endpoint has started

    def _hold(self, request: Request, pool: PoolName, out: list[Command]) -> Duration:
        """Holds it; for how long, by its class."""
        self.holds.add(request, self._fleet)
        names = ", ".join(request.pools)
        reason = f"no endpoint of pool {names} takes work; held for the first endpoint of pool {pool} to start"
        out.append(Hold(request.ticket.request_id, pool, request.service_class.name, reason))
        return Duration(max(0, (request.service_class.start_wait_ns or 0) - request.held_ns))

    def release(self, now: Instant) -> None:
        """Lets those wait as all others do for whom an endpoint takes work."""
        for request in self.holds.over(self._fleet, now):
            _note_held(request, now)
            self.expiries.clear(request.ticket.request_id)
            self._set_expiry(request, self.patience(request, now), now)

    def hold_again(self, request: Request, now: Instant) -> PoolName | None:
        """For which pool's first endpoint it may be held after an attempt, if nobody is left to try and there is room.

        Where there is no room it waits as all others do.
        """
        if self._fleet.live(request.pools):
            return None
        pool = startable(request.service_class, request.pools, self._fleet, self._rules)
        if pool is None or no_hold(request, pool, self.backlog, self._fleet, self._rules, holds=self.holds, now=now):
            return None
        return pool

    def hold_anew(self, request: Request, now: Instant, *, held: bool) -> None:
        """Counts it where it belongs by a new policy; `held` says whether it was held until here."""
        request.hold = startable(request.service_class, request.pools, self._fleet, self._rules)
        if held and request.hold is None:
            _note_held(request, now)
        elif held:
            self.holds.add(request, self._fleet)

    def patience(self, request: Request, now: Instant) -> Duration:
        """How long it may wait from here on, by its class, if it is to be worth sending."""
        # One patience for all attempts together: what it has waited before is spent, but for what it was held.
        wait_ns = request.service_class.queue_wait_ns_max - request.waited_ns + request.held_ns
        if request.target is not None and not request.beyond_target:
            # Once its answer cannot begin in time even where least is ahead of it, computing it would be for nothing.
            wait_ns = min(wait_ns, request.target - request.soonest_ns - now)
        return Duration(max(0, wait_ns))


def why_expired(request: Request) -> str:
    """What is said of one that has waited for as long as its class allows, or is worth."""
    service_class, held = request.service_class, ""
    if request.held_ns:
        held = f", {seconds(request.held_ns)} of them until an endpoint had started"
    if request.waited_ns - request.held_ns < service_class.queue_wait_ns_max and service_class.ttft_ns is not None:
        promised = f'{seconds(service_class.ttft_ns)} that class "{service_class.name}" promises'
        why = f"and its answer could no longer begin within the {promised}"
    else:
        why = f'as long as class "{service_class.name}" may wait'
    return f"waited {seconds(request.waited_ns)}{held}, {why}"


def _note_held(request: Request, now: Instant) -> None:
    """It is held no longer: what its class promises, and how long it may wait, counts from here on."""
    held_ns = now - request.queued_since
    request.waited_ns, request.held_ns = Duration(request.waited_ns + held_ns), Duration(request.held_ns + held_ns)
    request.queued_since = now
    if request.target is not None:
        ttft_ns = request.service_class.ttft_ns
        request.target = None if ttft_ns is None else after(now, ttft_ns)
