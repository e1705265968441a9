"""Simulation of a complete cell in one process, in virtual time.

Gateways and candidates run the same nodes as a live cell. The store, its links, the engines and the clients are
simulated, and the faults are drawn from the seed. The same seed gives exactly the same run.
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
from headgate.hosts.cell.protocol.messages import Epoch, Grant, SchedulerEntry, Share, SnapshotId
from headgate.hosts.cell.protocol.views import MemberMode, MemberPresence
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
from testing.cell_world.cell_config import (
    LIMIT,
    LIMITED,
    QUEUE_WAIT_NS,
    draw_cell_config,
    draw_client_timeout,
    draw_ticket,
)
from testing.cell_world.checks import Findings
from testing.cell_world.duplicate_processes import DuplicateProcesses
from testing.cell_world.engines import Running
from testing.cell_world.faults import (
    CALM_AT,
    DUPLICATES,
    STORE,
    Fault,
    Kind,
    draw_duplicate_faults,
    draw_faults,
    draw_hostile_faults,
)
from testing.cell_world.place_checks import PlaceChecks
from testing.cell_world.process import Process
from testing.cell_world.store import HOUR_NS, Store, affects

ARRIVALS_END: Final = Instant(12 * SECOND)
FOLLOWED_BY: Final = Instant(CALM_AT + 3 * SECOND)
"""Time by which all members follow one scheduler, and that scheduler responds within `ANSWERED_NS`."""
ANSWERED_NS: Final = Duration(400 * MILLISECOND)
OVER_AT: Final = Instant(60 * SECOND)


class World:
    def __init__(
        self,
        seed: int,
        *,
        hostile: bool = False,
        doubles: bool = False,
        mixed: bool = False,
        faults: list[Fault] | None = None,
        told: Callable[[str], None] | None = None,
    ) -> None:
        """Draw a cell and its faults from the seed.

        `hostile` adds misbehaving processes and clock faults. With `doubles`, processes claim their names, and some are
        started by mistake with names that are already in use. With `mixed`, processes run two protocol versions, and
        a restart upgrades a process (odd seeds) or rolls it back (even seeds). `faults` replaces the faults that the
        seed would draw. `told` receives each trace line.
        """
        self.seed = seed
        self.mixed = mixed
        self.versions_led: set[int] = set()
        """Protocol versions of the processes that have been the scheduler."""
        self.now = Instant(0)
        self.timeline = Timeline()
        self.findings = Findings()
        self._told = told
        random = Random(f"{seed} world")
        lost_ns = Duration(random.choice((2, 4, 10)) * SECOND)
        self.timing = Timing(lost_after_ns=lost_ns, stage_ns_max=Duration(random.choice((1, 30)) * SECOND))
        self.site = draw_cell_config(random)
        self.gateways = self.site.gateways
        names = self.site.names
        self.engines = dict(self.site.engines)
        self.has_names = doubles
        self.doubles = DuplicateProcesses(self)
        self.places = PlaceChecks(self)
        self.store = Store(self.timeline, lambda: self.now, Random(f"{seed} store"))
        self.tickets: dict[RequestId, Ticket] = {}
        self.leaders: dict[str, tuple[Process, Leader]] = {}
        self.grants: dict[tuple[str, RequestId, int], Instant] = {}
        self.island_shares: dict[str, Share] = {}
        self.faults = self._drawn(names, hostile=hostile, doubles=doubles) if faults is None else faults
        self.liars = {fault.target: None for fault in self.faults if fault.kind is Kind.LIES}
        """Names of members with a false view or with two processes. Other members cannot see their attempts."""
        self.has_second_cell = any(fault.kind is Kind.SECOND_CELL for fault in self.faults)
        self.doubled: dict[str, None] = {}
        """Names that have been shared by two processes in the cell."""
        self.processes: dict[str, Process] = {}
        for name in names:
            Process(name, self, self.site, gateway=name in self.gateways)
        self._befallen: dict[int, list[str]] = {}
        for fault in self.faults:
            self.timeline.schedule(fault.at, self._inject, fault)
            self.timeline.schedule(fault.over, self._end_fault, fault)
        self._plan_arrivals(Random(f"{seed} arrivals"))

    def _drawn(self, names: list[str], *, hostile: bool, doubles: bool) -> list[Fault]:
        faults = draw_faults(self.seed, names)
        faults += draw_hostile_faults(self.seed, names) if hostile else []
        faults += draw_duplicate_faults(self.seed, names) if doubles else []
        return sorted(faults, key=lambda fault: fault.at)

    # Time

    def after(self, wait: Duration, action: Callable[[], object]) -> None:
        self.timeline.schedule(after(self.now, wait), _do, action)

    def run(self) -> Findings:
        self.timeline.schedule(FOLLOWED_BY, _do, self._check_following)
        while (moment := self.timeline.next_instant()) is not None and moment < OVER_AT:
            self.now = moment
            try:
                self.timeline.run_next()
            except Exception:  # noqa: BLE001 - report a bug as a finding of this seed.
                self.violated(traceback.format_exc())
            if self.findings.violations or (moment > FOLLOWED_BY and self._is_over()):
                break
        self._check_end()
        return self.findings

    def _is_over(self) -> bool:
        """Whether no request is open and no process still tracks one."""
        for process in self.processes.values():
            if process.open or process.attempts or process.node.member.unsettled:
                return False
            if process.node.leader is not None and process.node.leader.assigned_attempts():
                return False
        return True

    def trace(self, who: str, what: str) -> None:
        if self._told is not None:
            self._told(f"{self.now / 1e9:11.6f} {who:10} {what}")

    def violated(self, what: str) -> None:
        self.trace("VIOLATION", what)
        self.findings.violated(self.now, what)

    # Arrivals

    def _plan_arrivals(self, random: Random) -> None:
        places = sum(each.endpoint.in_flight_max for each in self.engines.values())
        rate = places * random.choice((0.3, 0.6, 0.9, 1.3)) / 1.25
        moment, number = 0.1, 0
        while moment * SECOND < ARRIVALS_END:
            number += 1
            request_id = RequestId(f"r{number}")
            ticket = self.tickets[request_id] = draw_ticket(request_id, self.site, random)
            patience = draw_client_timeout(random)
            at = random.choice(self.gateways)
            self.timeline.schedule(Instant(int(moment * SECOND)), self._arrive, (at, ticket, patience))
            moment += random.expovariate(rate)

    def _arrive(self, what: tuple[str, Ticket, Duration | None]) -> None:
        name, ticket, patience = what
        self.processes[name].arrive(ticket, patience)

    def processes_named(self, name: str) -> list[Process]:
        """All processes with this name, including those started by mistake."""
        return [process for process in self.processes.values() if process.name == name]

    # Store streams

    def to_inbox(self, sender: Process, written: bytes) -> None:
        def arrived() -> None:
            for process in self.processes.values():
                if process.up and process.node.is_leader:
                    process.way.deliver(lambda p=process: p.receive(carried, check, from_member=True), outward=False)

        carried, check = sender.speech.in_transit(written), crc32(written)
        sender.way.deliver(lambda: self.store.receive(arrived), outward=True)

    def to_outbox(self, sender: Process, name: str, written: bytes) -> None:
        def arrived() -> None:
            for process in self.processes_named(name):
                process.way.deliver(lambda p=process: p.receive(carried, check, from_member=False), outward=False)

        carried, check = sender.speech.in_transit(written), crc32(written)
        sender.way.deliver(lambda: self.store.receive(arrived), outward=True)

    def claim(self, sender: Process, claim: Claim) -> None:
        def arrived() -> None:
            lease = self.store.claim(claim)
            sender.way.deliver(lambda: sender.on_lease_answer(claim, lease), outward=False)

        sender.way.deliver(lambda: self.store.receive(arrived), outward=True)

    def release(self, sender: Process, epoch: Epoch) -> None:
        # From now on the epoch makes no grants, even before the store receives the release.
        self.store.granted[epoch.number, epoch.id] = min(self.now, self.store.granted[epoch.number, epoch.id])
        sender.way.deliver(lambda: self.store.receive(lambda: self.store.release(epoch)), outward=True)

    def write(self, sender: Process, written: bytes, at: SnapshotId) -> None:
        def arrived() -> None:
            kept = self.store.write(written, at)
            sender.way.deliver(lambda: sender.on_snapshot_written(at, kept), outward=False)

        sender.way.deliver(lambda: self.store.receive(arrived), outward=True)

    def read(self, sender: Process) -> None:
        def arrived() -> None:
            written = self.store.snapshot
            sender.way.deliver(lambda: sender.on_snapshot_read(written), outward=False)

        sender.way.deliver(lambda: self.store.receive(arrived), outward=True)

    # Faults

    def scheduler(self) -> str | None:
        leading = [each for each in self.processes.values() if each.up and each.node.leader is not None]
        best = max(leading, key=lambda each: each.node.leader.epoch.number if each.node.leader else 0, default=None)
        return None if best is None else best.key

    def _inject(self, fault: Fault) -> None:
        self.trace("fault", f"{fault.kind.value} at {fault.target} for {fault.lasts_ns / 1e9:.3f} s ({fault.degree})")
        if fault.target == STORE:
            self.store.inject(fault)
            return
        if fault.kind in DUPLICATES:
            self.doubles.start(fault)
            return
        scheduler = self.scheduler()
        struck = [name for name in self.processes if affects(fault, name, scheduler)]
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
                    process.drain()
                case Kind.POLICY if process.site is self.site:
                    wait = Duration(process.random.randrange(fault.lasts_ns))
                    self.after(wait, process.read_policy)
                case _:
                    process.way.faults.append(fault)

    def _end_fault(self, fault: Fault) -> None:
        self.trace("fault", f"{fault.kind.value} at {fault.target} is over")
        if fault.target == STORE:
            self.store.end_fault(fault)
            return
        if fault.kind in DUPLICATES:
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

    # Checks

    def on_joined(self, process: Process) -> None:
        """Record that a process has joined the cell."""
        if any(
            other.up and not other.node.member.lost_name
            for other in self.processes_named(process.name)
            if other is not process
        ):
            self.trace(process.key, f"is the second process with the name {process.name}")
            self.findings.duplicates += 1
            self.liars[process.name] = self.doubled[process.name] = None
        new = self.processes.setdefault(process.key, process)
        if new.site is not self.site or new.key != new.name:
            self.doubles.began(process)

    def on_name_lost(self, process: Process) -> None:
        self.trace(process.key, f"leaves: another process has the name {process.name}")
        if process.name not in self.liars:
            self.violated(f"{process.key} leaves because another process has its name, but there is no such process")

    def on_leader_started(self, process: Process, leader: Leader) -> None:
        epoch = leader.epoch
        self.trace(process.key, f"is the scheduler of epoch {epoch.number} {epoch.id}")
        self.findings.epochs += 1
        self.versions_led.add(process.version)
        self.findings.blank_epochs += (
            leader.started_without_snapshot and bool(self.leaders)
        ) or not process.site.has_limit
        self.leaders[f"epoch {epoch.number} {epoch.id}"] = (process, leader)

    def on_island_started(self, process: Process, share: Share | None) -> None:
        assert share is not None
        self.findings.islands += 1
        self.island_shares[process.decider] = share

    def on_left(self, process: Process) -> None:
        for request_id in process.node.member.unsettled_ids():
            # If the scheduler dies before it writes a snapshot, no process can report on this request.
            self.findings.traces[request_id].orphaned = True
        if (held := process.node.member.held) or process.open:
            self.violated(f"{process.key} has left with {held} open requests")

    def on_policy_applied(self, process: Process, policy_hash: str) -> None:
        """Check that a process may apply the new policy."""
        self.trace(process.key, f"applies the {policy_hash} policy")
        member, leader = process.node.member, process.node.leader
        assert process.read_at is not None
        if member.island_share is not None:
            return
        if leader is None:
            epoch = member.followed_epoch
            followed = None if epoch is None else self.leaders[f"epoch {epoch.number} {epoch.id}"][1]
            if followed is None or followed.policy_hash != policy_hash:
                self.violated(f"{process.name} applies the {policy_hash} policy before its scheduler does")
        elif process.clock() - process.read_at < self.timing.stage_ns_max:
            for name, standing in leader.presences().items():
                if standing is not MemberPresence.PRESENT or name in self.liars:
                    continue
                others = [
                    each for each in self.processes_named(name) if each.up and each.gateway and each.read_at is None
                ]
                if any(each.node.member.followed_epoch == leader.epoch for each in others):
                    self.violated(f"{process.name} applies the {policy_hash} policy, but {name} has not read it")

    def on_attempt_started(self, process: Process, order: Dispatch, running: Running) -> None:
        engine = self.engines[order.endpoint_id]
        engine.start(running)
        self.findings.sent(order.request_id, self.now)
        there = len(engine.running)
        self.trace(
            process.key,
            f"{order.request_id} attempt {order.attempt} starts at {order.endpoint_id} by {running.decider}:"
            f" {there} of {engine.endpoint.in_flight_max}",
        )
        self.places.check_grant(process, order, running)
        self.places.check_decider(engine, running)
        self.places.check_sum(engine)

    def check_grants(self, entry: SchedulerEntry) -> None:
        """Check that the scheduler made the grants in this entry while it had the lease."""
        key = (entry.head.epoch.number, entry.head.epoch.id)
        for age_ns, said in entry.messages:
            if isinstance(said, Grant):
                made = Instant(self.now - age_ns)
                self.grants[f"epoch {key[0]} {key[1]}", said.dispatch.request_id, said.dispatch.attempt] = made
                if made > self.store.granted[key] + MILLISECOND:
                    self.violated(f"epoch {key} granted {said.dispatch.request_id} after its lease had expired")

    def check_takeover(self, leader: Leader, passed_ns: Duration) -> None:
        """Check that a new scheduler starts only after all members it knows have reported or the maximum wait has
        passed.
        """
        if passed_ns < self.timing.gather_ns_max:
            for name, standing in leader.presences().items():
                # The report from a member with a false view may have been rejected. Its share stays reserved.
                if standing is MemberPresence.ABSENT and name not in self.liars:
                    self.violated(f"epoch {leader.epoch.number} starts after {passed_ns} ns without {name}'s report")

    def _check_limit(self) -> None:
        """Check the number of requests admitted for the rate-limited tenant against the documented formula."""
        sent = [each for each in self.findings.traces.values() if each.tenant == LIMITED and each.sent]
        minutes = Fraction(max((each.decided or 0 for each in sent), default=0), MINUTE)
        allowed = LIMIT * (1 + minutes) * (1 + self.findings.blank_epochs)
        for share in self.island_shares.values():
            allowed += max(1, LIMIT // share.total) * (1 + minutes)
        allowed += len([each for each in sent if each.orphaned])
        if len(sent) > allowed:
            self.violated(
                f"{len(sent)} requests of the rate-limited tenant were sent; the limit is {float(allowed):.1f}"
            )

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
            if member.mode is not MemberMode.FOLLOWING or member.followed_epoch != leader.epoch:
                self.violated(
                    f"{process.name} is {member.mode.value} and follows {member.followed_epoch}, not {leader.epoch}"
                )
            if any(each.kind is Kind.POLICY for each in self.faults) and process.policy is not self.site.next_policy:
                self.violated(f"{process.name} does not apply the new policy")
            if (waits := member.unacknowledged_ns(process.clock())) > ANSWERED_NS:
                self.violated(f"{process.name} has received no response for {waits} ns")

    def _check_end(self) -> None:
        if self.findings.violations:
            return
        if not self.liars:
            self._check_limit()
        for request_id, story in self.findings.traces.items():
            if story.ended is None and not story.lost:
                self.violated(f"{request_id} of {story.member} has not ended")
            longest = QUEUE_WAIT_NS[self.tickets[request_id].requested_class or ""] + ANSWERED_NS
            if story.opened > FOLLOWED_BY and (story.decided or self.now) - story.opened > longest:
                self.violated(f"{request_id} of {story.member} waited longer than {longest} ns")
        for process in self.processes.values():
            member, leader = process.node.member, process.node.leader
            if member.held or member.unsettled:
                self.violated(f"{process.name} still holds {member.held} requests, {member.unsettled} unsettled")
            if leader is not None and (leader.assigned_attempts() or leader.summary().requests):
                self.violated(
                    f"{process.name} still has {leader.assigned_attempts()} in its assignment table"
                    f" and {leader.summary().requests} requests"
                )


def _do(action: Callable[[], object]) -> None:
    action()
