"""What happens in a whole cell, in one process, when time is only a number?

Gateways and candidates are the very nodes that a live cell runs; store, ways, engines and callers are simulated, and
what goes wrong is drawn from the seed. The same seed gives the same run to the last byte.
"""

import traceback
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Final
from zlib import crc32

from headgate.core.commands import Dispatch
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Epoch, Granted, SchedulerEntry, Share, Snapshots
from headgate.hosts.cell.protocol.views import Mode, Standing
from headgate.hosts.cell.timing import Timing
from headgate.model.ticket import Ticket
from headgate.model.units import (
    MILLISECOND,
    MINUTE,
    SECOND,
    Duration,
    Instant,
    RequestId,
    after,
)
from headgate.simulation.virtual.timeline import Timeline
from testing.cell_world.checks import Findings
from testing.cell_world.doubles import Doubles
from testing.cell_world.engines import Running
from testing.cell_world.faults import (
    CALM_AT,
    DOUBLES,
    STORE,
    Fault,
    Kind,
    drawn,
    drawn_doubles,
    drawn_hostile,
)
from testing.cell_world.place_checks import PlaceChecks
from testing.cell_world.process import Process
from testing.cell_world.site import LIMIT, LIMITED, QUEUE_WAIT_NS, drawn_patience, drawn_site, drawn_ticket
from testing.cell_world.store import HOUR_NS, Store, concerns

ARRIVALS_END: Final = Instant(12 * SECOND)
FOLLOWED_BY: Final = Instant(CALM_AT + 3 * SECOND)
"""From here on all follow one scheduler, and it answers at once."""
ANSWERED_NS: Final = Duration(400 * MILLISECOND)
OVER_AT: Final = Instant(60 * SECOND)


class World:
    def __init__(
        self,
        seed: int,
        *,
        hostile: bool = False,
        doubles: bool = False,
        faults: list[Fault] | None = None,
        told: Callable[[str], None] | None = None,
    ) -> None:
        """`hostile` adds faults of misbehaving processes and of clocks.

        With `doubles`, processes claim their names, and some are started by mistake under names that are in use.
        `faults` replace those that the seed would draw.
        """
        self.seed = seed
        self.now = Instant(0)
        self.timeline = Timeline()
        self.findings = Findings()
        self._told = told
        random = Random(f"{seed} world")
        lost_ns = Duration(random.choice((2, 4, 10)) * SECOND)
        self.timing = Timing(lost_ns=lost_ns, stage_ns_max=Duration(random.choice((1, 30)) * SECOND))
        self.site = drawn_site(random)
        self.gateways = self.site.gateways
        names = self.site.names
        self.engines = dict(self.site.engines)
        self.has_names = doubles
        self.doubles = Doubles(self)
        self.places = PlaceChecks(self)
        self.store = Store(self.timeline, lambda: self.now, Random(f"{seed} store"))
        self.tickets: dict[RequestId, Ticket] = {}
        self.leaders: dict[str, tuple[Process, Leader]] = {}
        self.grants: dict[tuple[str, RequestId, int], Instant] = {}
        self.island_shares: dict[str, Share] = {}
        self.faults = self._drawn(names, hostile=hostile, doubles=doubles) if faults is None else faults
        self.liars = {fault.target: None for fault in self.faults if fault.kind is Kind.LIES}
        """Names of members with a false view or two processes; others do not know their attempts at the engines."""
        self.has_second_cell = any(fault.kind is Kind.SECOND_CELL for fault in self.faults)
        self.doubled: dict[str, None] = {}
        """Names that two processes had in the cell at the same time."""
        self.processes: dict[str, Process] = {}
        for name in names:
            Process(name, self, self.site, gateway=name in self.gateways)
        self._befallen: dict[int, list[str]] = {}
        for fault in self.faults:
            self.timeline.at(fault.at, self._befall, fault)
            self.timeline.at(fault.over, self._recover, fault)
        self._plan_arrivals(Random(f"{seed} arrivals"))

    def _drawn(self, names: list[str], *, hostile: bool, doubles: bool) -> list[Fault]:
        faults = drawn(self.seed, names)
        faults += drawn_hostile(self.seed, names) if hostile else []
        faults += drawn_doubles(self.seed, names) if doubles else []
        return sorted(faults, key=lambda fault: fault.at)

    # Time

    def after(self, wait: Duration, action: Callable[[], object]) -> None:
        self.timeline.at(after(self.now, wait), _do, action)

    def run(self) -> Findings:
        self.timeline.at(FOLLOWED_BY, _do, self._check_following)
        while (moment := self.timeline.next()) is not None and moment < OVER_AT:
            self.now = moment
            try:
                self.timeline.do_next()
            except Exception:  # noqa: BLE001 - a mistake of ours is a finding like any other, and belongs to its seed.
                self.violated(traceback.format_exc())
            if self.findings.violations or (moment > FOLLOWED_BY and self._is_over()):
                break
        self._check_end()
        return self.findings

    def _is_over(self) -> bool:
        """Whether nothing is open, and nobody remembers anything that was."""
        for process in self.processes.values():
            if process.open or process.attempts or process.node.member.unsettled:
                return False
            if process.node.leader is not None and process.node.leader.booked():
                return False
        return True

    def trace(self, who: str, what: str) -> None:
        if self._told is not None:
            self._told(f"{self.now / 1e9:11.6f} {who:10} {what}")

    def violated(self, what: str) -> None:
        self.trace("VIOLATION", what)
        self.findings.violated(self.now, what)

    # What is asked for

    def _plan_arrivals(self, random: Random) -> None:
        places = sum(each.endpoint.in_flight_max for each in self.engines.values())
        rate = places * random.choice((0.3, 0.6, 0.9, 1.3)) / 1.25
        moment, number = 0.1, 0
        while moment * SECOND < ARRIVALS_END:
            number += 1
            request_id = RequestId(f"r{number}")
            ticket = self.tickets[request_id] = drawn_ticket(request_id, self.site, random)
            patience = drawn_patience(random)
            at = random.choice(self.gateways)
            self.timeline.at(Instant(int(moment * SECOND)), self._arrive, (at, ticket, patience))
            moment += random.expovariate(rate)

    def _arrive(self, what: tuple[str, Ticket, Duration | None]) -> None:
        name, ticket, patience = what
        self.processes[name].arrive(ticket, patience)

    def named(self, name: str) -> list[Process]:
        """All processes with this name, including those started by mistake."""
        return [process for process in self.processes.values() if process.name == name]

    # The store's streams

    def to_inbox(self, sender: Process, written: bytes) -> None:
        def arrived() -> None:
            for process in self.processes.values():
                if process.up and process.node.leads:
                    process.way.carry(lambda p=process: p.receive(carried, check, from_member=True), outward=False)

        carried, check = sender.speech.carried(written), crc32(written)
        sender.way.carry(lambda: self.store.reach(arrived), outward=True)

    def to_outbox(self, sender: Process, name: str, written: bytes) -> None:
        def arrived() -> None:
            for process in self.named(name):
                process.way.carry(lambda p=process: p.receive(carried, check, from_member=False), outward=False)

        carried, check = sender.speech.carried(written), crc32(written)
        sender.way.carry(lambda: self.store.reach(arrived), outward=True)

    def claim(self, sender: Process, claim: Claim) -> None:
        def arrived() -> None:
            lease = self.store.claim(claim)
            sender.way.carry(lambda: sender.answered(claim, lease), outward=False)

        sender.way.carry(lambda: self.store.reach(arrived), outward=True)

    def release(self, sender: Process, epoch: Epoch) -> None:
        # From here on it grants nothing, whenever the store hears of it.
        self.store.granted[epoch.number, epoch.id] = min(self.now, self.store.granted[epoch.number, epoch.id])
        sender.way.carry(lambda: self.store.reach(lambda: self.store.release(epoch)), outward=True)

    def write(self, sender: Process, written: bytes, at: Snapshots) -> None:
        def arrived() -> None:
            kept = self.store.write(written, at)
            sender.way.carry(lambda: sender.was_kept(at, kept), outward=False)

        sender.way.carry(lambda: self.store.reach(arrived), outward=True)

    def read(self, sender: Process) -> None:
        def arrived() -> None:
            written = self.store.snapshot
            sender.way.carry(lambda: sender.was_read(written), outward=False)

        sender.way.carry(lambda: self.store.reach(arrived), outward=True)

    # Faults

    def scheduler(self) -> str | None:
        leading = [each for each in self.processes.values() if each.up and each.node.leader is not None]
        best = max(leading, key=lambda each: each.node.leader.epoch.number if each.node.leader else 0, default=None)
        return None if best is None else best.key

    def _befall(self, fault: Fault) -> None:
        self.trace("fault", f"{fault.kind.value} at {fault.target} for {fault.lasts_ns / 1e9:.3f} s ({fault.degree})")
        if fault.target == STORE:
            self.store.befall(fault)
            return
        if fault.kind in DOUBLES:
            self.doubles.start(fault)
            return
        scheduler = self.scheduler()
        struck = [name for name in self.processes if concerns(fault, name, scheduler)]
        self._befallen[self.faults.index(fault)] = struck
        for name in struck:
            process = self.processes[name]
            process.troubles.append(fault)
            match fault.kind:
                case Kind.PAUSE:
                    process.paused = True
                case Kind.CRASH:
                    if process.up:
                        process.crash()
                case Kind.CLOCK_STEP:
                    process.wall_ns += fault.degree * HOUR_NS
                    if process.up:
                        process.crash()
                case Kind.RESTART:
                    process.restart()
                case Kind.POLICY if process.site is self.site:
                    wait = Duration(process.random.randrange(fault.lasts_ns))
                    self.after(wait, process.read_policy)
                case _:
                    process.way.faults.append(fault)

    def _recover(self, fault: Fault) -> None:
        self.trace("fault", f"{fault.kind.value} at {fault.target} is over")
        if fault.target == STORE:
            self.store.recover(fault)
            return
        if fault.kind in DOUBLES:
            self.doubles.end(fault)
            return
        for name in self._befallen[self.faults.index(fault)]:
            process = self.processes.get(name)
            if process is None:
                continue
            if fault.kind is Kind.PAUSE:
                process.resume()
            elif fault.kind in (Kind.CRASH, Kind.CLOCK_STEP):
                if not process.up:
                    process.start()
            elif fault.kind is Kind.LIES:
                process.way.faults.remove(fault)
                if process.up:
                    process.crash()
                process.start()
            elif fault.kind is Kind.RESTART:
                process.end_grace()
            elif fault in process.way.faults:
                process.way.faults.remove(fault)

    # What is looked at

    def began(self, process: Process) -> None:
        """A process has joined the cell."""
        if any(
            other.up and not other.node.member.nameless for other in self.named(process.name) if other is not process
        ):
            self.trace(process.key, f"is the second process called {process.name}")
            self.findings.twins += 1
            self.liars[process.name] = self.doubled[process.name] = None
        new = self.processes.setdefault(process.key, process)
        if new.site is not self.site or new.key != new.name:
            self.doubles.began(process)

    def lost_name(self, process: Process) -> None:
        self.trace(process.key, f"leaves: another process is called {process.name}")
        if process.name not in self.liars:
            self.violated(f"{process.key} leaves because of another process with its name, and there is none")

    def began_to_lead(self, process: Process, leader: Leader) -> None:
        epoch = leader.epoch
        self.trace(process.key, f"is the scheduler of epoch {epoch.number} {epoch.id}")
        self.findings.epochs += 1
        self.findings.blank_epochs += (leader.blank and bool(self.leaders)) or not process.site.has_limit
        self.leaders[f"epoch {epoch.number} {epoch.id}"] = (process, leader)

    def began_island(self, process: Process, share: Share | None) -> None:
        assert share is not None
        self.findings.islands += 1
        self.island_shares[process.decider] = share

    def left(self, process: Process) -> None:
        for request_id in process.node.member.unsettled_ids():
            # Nobody can tell of it any more, should the scheduler die before it has written a snapshot.
            self.findings.stories[request_id].orphaned = True
        if (held := process.node.member.held) or process.open:
            self.violated(f"{process.key} has left with {held} requests")

    def goes_by(self, process: Process, policy_hash: str) -> None:
        """A process is told that it is to go by new rules."""
        self.trace(process.key, f"goes by the {policy_hash} rules")
        member, leader = process.node.member, process.node.leader
        assert process.read_at is not None
        if member.island_share is not None:
            return
        if leader is None:
            epoch = member.bound
            followed = None if epoch is None else self.leaders[f"epoch {epoch.number} {epoch.id}"][1]
            if followed is None or followed.policy_hash != policy_hash:
                self.violated(f"{process.name} goes by the {policy_hash} rules before the scheduler that it follows")
        elif process.clock() - process.read_at < self.timing.stage_ns_max:
            for name, standing in leader.standings().items():
                if standing is not Standing.PRESENT or name in self.liars:
                    continue
                others = [each for each in self.named(name) if each.up and each.gateway and each.read_at is None]
                if any(each.node.member.bound == leader.epoch for each in others):
                    self.violated(f"{process.name} goes by the {policy_hash} rules, and {name} has not read them")

    def begins(self, process: Process, order: Dispatch, running: Running) -> None:
        engine = self.engines[order.endpoint_id]
        engine.start(running)
        self.findings.sent(order.request_id, self.now)
        there = len(engine.running)
        self.trace(
            process.key,
            f"{order.request_id} attempt {order.attempt} begins at {order.endpoint_id} by {running.decider}:"
            f" {there} of {engine.endpoint.in_flight_max}",
        )
        self.places.check_grant(process, order, running)
        self.places.check_decider(engine, running)
        self.places.check_sum(engine)

    def granted(self, entry: SchedulerEntry) -> None:
        """A scheduler sends an entry: what it grants in it must have been granted while the lease was its own."""
        key = (entry.head.epoch.number, entry.head.epoch.id)
        for age_ns, said in entry.messages:
            if isinstance(said, Granted):
                made = Instant(self.now - age_ns)
                self.grants[f"epoch {key[0]} {key[1]}", said.order.request_id, said.order.attempt] = made
                if made > self.store.granted[key] + MILLISECOND:
                    self.violated(f"epoch {key} granted {said.order.request_id} after its lease was over")

    def check_beginning(self, leader: Leader, passed_ns: Duration) -> None:
        """A new scheduler begins when all whom it knows of have reported, or it has waited for long enough."""
        if passed_ns < self.timing.gather_ns_max:
            for name, standing in leader.standings().items():
                # The report of a member with a false view may have been rejected; its share stays reserved.
                if standing is Standing.ABSENT and name not in self.liars:
                    self.violated(f"epoch {leader.epoch.number} begins after {passed_ns} ns, without {name}'s report")

    def _check_limit(self) -> None:
        """What was let in of the limited tenant, by the formula of the docs."""
        sent = [each for each in self.findings.stories.values() if each.tenant == LIMITED and each.sent]
        minutes = Fraction(max((each.decided or 0 for each in sent), default=0), MINUTE)
        allowed = LIMIT * (1 + minutes) * (1 + self.findings.blank_epochs)
        for share in self.island_shares.values():
            allowed += max(1, LIMIT // share.of) * (1 + minutes)
        allowed += len([each for each in sent if each.orphaned])
        if len(sent) > allowed:
            self.violated(f"{len(sent)} requests of a limited tenant were sent, and {float(allowed):.1f} are allowed")

    def _check_following(self) -> None:
        leading = [each for each in self.processes.values() if each.node.leader is not None]
        if len(leading) != 1:
            self.violated(
                f"{[each.name for each in leading]} are schedulers {FOLLOWED_BY - CALM_AT} ns after the faults"
            )
            return
        leader = leading[0].node.leader
        assert leader is not None
        for process in self.processes.values():
            member = process.node.member
            if member.mode is not Mode.FOLLOWING or member.bound != leader.epoch:
                self.violated(f"{process.name} is {member.mode.value} and follows {member.bound}, not {leader.epoch}")
            if any(each.kind is Kind.POLICY for each in self.faults) and process.policy is not self.site.next_policy:
                self.violated(f"{process.name} does not go by the new rules")
            if (waits := member.unacknowledged_ns(process.clock())) > ANSWERED_NS:
                self.violated(f"{process.name} has had no answer for {waits} ns")

    def _check_end(self) -> None:
        if self.findings.violations:
            return
        if not self.liars:
            self._check_limit()
        for request_id, story in self.findings.stories.items():
            if story.ended is None and not story.lost:
                self.violated(f"{request_id} of {story.member} has not ended")
            longest = QUEUE_WAIT_NS[self.tickets[request_id].class_named or ""] + ANSWERED_NS
            if story.opened > FOLLOWED_BY and (story.decided or self.now) - story.opened > longest:
                self.violated(f"{request_id} of {story.member} waited for longer than {longest} ns")
        for process in self.processes.values():
            member, leader = process.node.member, process.node.leader
            if member.held or member.unsettled:
                self.violated(f"{process.name} still holds {member.held} requests, {member.unsettled} unsettled")
            if leader is not None and (leader.booked() or leader.summary().requests):
                self.violated(f"{process.name} still has in its book {leader.booked()} of {leader.summary().requests}")


def _do(action: Callable[[], object]) -> None:
    action()
