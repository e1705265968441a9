"""One simulated process that runs a node of the cell.

It wraps the same node as a live process and does the work of a live host: it encodes entries, wakes the node at its
timers, batches outgoing entries, sends attempts to engines and reports their results. Each process has its own clock,
and pauses, dies or restarts as the faults dictate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    EndpointJoined,
    EndpointMetricsReported,
    EndpointReady,
    Event,
    FirstToken,
    PolicyChanged,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.commands import MemberCommand, ModeChanged, PolicyAgreed
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.codec import (
    InvalidMemberEntry,
    InvalidSchedulerEntry,
    UnreadableEntry,
    decode_member_entry,
    decode_scheduler_entry,
    decode_snapshot,
    encode_entry,
    try_encode_snapshot,
)
from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import VERSION, MemberEntry, SchedulerEntry, Share, SnapshotId
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.hosts.cell.timing import CellBounds
from headgate.model.ticket import Ticket
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, RequestId
from headgate.model.usage import Usage, UsageSource
from testing.cell_world.cell_config import OUTPUT_TOKENS, CellConfig
from testing.cell_world.checks import RequestTrace
from testing.cell_world.engines import Running
from testing.cell_world.entry_faults import EntryFaults
from testing.cell_world.faults import Fault
from testing.cell_world.member_names import NameHolder
from testing.cell_world.store import StoreLink

if TYPE_CHECKING:
    from testing.cell_world.world import World

_BOUNDS = CellBounds(adoption_steps_max=4)
"""A new scheduler adopts a few requests at a time, so that messages and faults occur in between."""
_FLUSH_NS = Duration(500_000)
"""Interval during which written entries are batched before they are sent."""
_FIRST_VERSION_PERCENT = 75
"""Percentage of processes that start with the version that is being replaced."""
_SCRAPE_NS = SECOND
_SWEEP_NS = Duration(250 * MILLISECOND)
_GRACE_NS = Duration(500 * MILLISECOND)
"""Grace period for requests on a process that has lost its name."""


class Process:
    def __init__(self, name: str, world: World, site: CellConfig, *, gateway: bool, key: str | None = None) -> None:
        """Without a `key`, the process is in the cell from the beginning. With a `key`, `start` adds it later."""
        self.name = name
        self.key = key or name
        """Unique key of the process. Other processes may share its name."""
        self.world = world
        self.site = site
        self.gateway = gateway
        self.random = Random(f"{world.seed} process {self.key}")
        self._offset = self.random.randrange(1_000, 2_000) * SECOND
        self._rate_ppm = self.random.choice((0, 0, -4_000, 4_000, self.random.randrange(-4_000, 4_000)))
        self.way = StoreLink(self.key, world.timeline, lambda: world.now, Random(f"{world.seed} way {self.key}"))
        self.speech = EntryFaults(self.way, Random(f"{world.seed} hostile {self.key}"))
        self.wall_ns = 5_000 * SECOND
        """Offset of the wall clock from the monotonic clock, in nanoseconds."""
        self.lives = 0
        self.began_at = Instant(0)
        """True time of the latest start."""
        self.up = False
        self.paused = False
        self._waiting: list[Callable[[], None]] = []
        self.node: Node
        self.attempts: dict[tuple[RequestId, int], Attempt] = {}
        self.open: dict[RequestId, Ticket] = {}
        self.highest = 0
        """Highest epoch followed since the latest start."""
        self._flush_set = False
        self._woken_at: Instant | None = None
        self._led: Leader | None = None
        self._islands = 0
        self.decider = ""
        """Decider whose commands are currently being carried out."""
        self.draining = False
        self._leaving = self._starts_again = False
        """Whether the node has announced that it is leaving, and whether the process starts again afterwards."""
        self.read_at: Instant | None = None
        """Time on the process's clock at which it read the new policy."""
        self.file_changed = False
        """Whether the new policy is in the file. A paused process reads it later or at its next start."""
        self.troubles: list[Fault] = []
        """Faults that have affected this process so far."""
        self.retired = False
        """Whether the process must not start again."""
        self.names = NameHolder(self) if world.has_names else None
        if key is None:
            self.begin()
            if self.names is not None:
                self.names.hold_from_start()

    # Clock and lifecycle

    def clock(self) -> Instant:
        true = self.world.now
        return Instant(self._offset + true + true * self._rate_ppm // 1_000_000)

    def true_time(self, moment: Instant) -> Instant:
        passed = moment - self._offset
        return Instant(max(self.world.now, passed - passed * self._rate_ppm // (1_000_000 + self._rate_ppm)))

    @property
    def life(self) -> tuple[str, int]:
        return self.key, self.lives

    def start(self) -> None:
        """Claim the name, then start."""
        if self.retired or self.up:
            return
        if self.names is None:
            self.begin()
        elif not self.names.claiming:
            self.names.claim()

    def begin(self) -> None:
        self.lives += 1
        self.version = self._draw_version()
        self.began_at = self.world.now
        self.up, self.highest, self._woken_at, self._flush_set = True, 0, None, False
        world, site, names = self.world, self.site, Random(f"{self.world.seed} ids {self.key} {self.lives}")
        rank = site.gateways.index(self.name) if self.name in site.gateways else 0
        self.node = Node(
            self.name,
            int(self.clock()) + self.wall_ns,
            self.clock(),
            lambda: f"{names.getrandbits(32):08x}",
            timing=world.timing,
            bounds=_BOUNDS,
            serves=self.gateway,
            candidate=self.name in site.candidates,
            share=Share(rank, max(1, len(site.gateways))),
            version=self.version,
        )
        self.draining = self._leaving = self._starts_again = False
        for engine in site.engines.values():
            self.node.handle(EndpointJoined(engine.endpoint), self.clock())
        if self.file_changed and self.read_at is None:
            self.read_at = self.clock()
        self.policy = site.policy if self.read_at is None else site.next_policy
        self.node.handle(PolicyChanged(self.policy, site.hash_of(self.policy)), self.clock())
        world.trace(self.key, f"starts, life {self.lives}")
        world.on_joined(self)
        self.run_due()
        world.after(_SWEEP_NS, self._guarded(self._sweep))

    def _draw_version(self) -> int:
        """The protocol version of this start of the process. An upgrade or a rollback happens when it is restarted."""
        if not self.world.mixed:
            return VERSION
        before, after = (VERSION - 1, VERSION) if self.world.seed % 2 else (VERSION, VERSION - 1)
        drawn = Random(f"{self.world.seed} version {self.key}")
        return before if self.lives == 1 and drawn.randrange(100) < _FIRST_VERSION_PERCENT else after

    def crash(self) -> None:
        """Die and lose all state. The engines notice after a delay."""
        world = self.world
        world.trace(self.key, f"dies with {len(self.open)} open requests")
        self._end_life()
        for request_id in self.open:
            world.findings.traces[request_id].lost = True
        for story in world.findings.traces.values():
            story.orphaned = story.orphaned or story.member == self.key
        for (request_id, number), attempt in self.attempts.items():
            engine = world.engines[attempt.order.endpoint_id]
            engine.running[self.life, request_id, number].orphaned = True
            notices = Duration(self.random.randrange(1, 500) * MILLISECOND)
            world.after(notices, lambda e=engine, life=self.life, r=request_id, n=number: e.stop(life, r, n))
        self.attempts, self.open, self._waiting = {}, {}, []

    def retire(self) -> None:
        """Kill the process permanently."""
        self.retired = True
        if self.up:
            self.crash()
        elif self.names is not None:
            self.names.stop()

    def _end_life(self) -> None:
        self.up, self._led = False, None
        if self.names is not None:
            self.names.stop()

    def drain(self) -> None:
        """Shut down gracefully: accept no more requests and step down as scheduler."""

        def drain() -> None:
            self.world.trace(self.key, f"starts draining with {len(self.open)} open requests")
            self.draining = True
            self.node.step_down(self.clock())
            self.run_due()

        if self.up and not self.draining:
            self._guarded(drain)()

    def lose_name(self) -> None:
        """Finish the open requests and exit with an error, because another process has the name."""
        self.world.on_name_lost(self)
        self.draining = True
        self.node.lose_name(self.clock())
        self.run_due()
        self.world.after(_GRACE_NS, self._guarded(self._withdraw_all))

    def end_grace(self) -> None:
        """End the grace period: withdraw the open requests, or start the process if it is down."""
        if not self.up:
            self.start()
            return

        # This also applies to a paused process, which leaves as soon as it resumes.
        self._starts_again = True

        self._guarded(self._withdraw_all)()

    def _withdraw_all(self) -> None:
        for request_id in tuple(self.open) if self.draining else ():
            self.submit(RequestWithdrawn(request_id, WithdrawalCause.SHUTDOWN))
        self.run_due()

    def _continue_drain(self) -> None:
        if self.open or self.attempts or self.node.member.held:
            return
        if not self._leaving:
            self._leaving = True
            self.node.leave(self.clock())
        if self.node.has_left:
            self.world.trace(self.key, "has left")
            self.world.on_left(self)
            if self.names is not None:
                self.names.release()
            self._end_life()
            self._waiting = []
            if self._starts_again:
                self.start()
            elif self.node.member.lost_name:
                self.world.doubles.exited(self)

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """Wrap an action so that it runs only until the process ends. A paused process runs it when it resumes."""
        life = self.lives

        def act() -> None:
            if self.up and self.lives == life:
                if self.paused:
                    self._waiting.append(act)
                else:
                    action()

        return act

    def when_resumed(self, action: Callable[[], None]) -> None:
        self._waiting.append(action)

    def resume(self) -> None:
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()
        if self.up:
            self.run_due()

    # Node

    def run_due(self) -> None:
        """Let the node do all due work, then set its next timer or schedule a flush."""
        now = self.clock()
        self.decider = self._island_name()
        self.perform(self.node.tick(now))
        self._note_leader()
        if self.draining:
            self._continue_drain()
        if self.up:
            self._set_timer()

    def _flush(self) -> None:
        self._flush_set = False
        now = self.clock()
        self.decider = self._island_name()
        self.perform(self.node.tick(now))
        going = self.node.outgoing(now)
        for entry in going.inbox:
            for written in encode_entry(entry):
                self.world.to_inbox(self, self.speech.as_sent(written))
        for name, entry in going.outboxes:
            self.world.check_grants(entry)
            for written in encode_entry(entry):
                self.world.to_outbox(self, name, self.speech.as_written(written))
        if going.claim is not None:
            self.world.claim(self, going.claim)
        written = None if going.snapshot is None else try_encode_snapshot(going.snapshot)
        if going.snapshot is not None and written is not None:
            self.world.write(self, self.speech.as_written(written), going.snapshot.at)
        if going.read_snapshot:
            self.world.read(self)
        if going.release is not None:
            self.world.release(self, going.release)
        self._note_leader()
        self.run_due()

    def _set_timer(self) -> None:
        if self._flush_set:
            return
        now = self.clock()
        due = self.node.next_wakeup(now)
        if due <= now:
            self._flush_set = True
            self.world.after(_FLUSH_NS, self._guarded(self._flush))
            return
        wakeup = max(self.world.now, self.true_time(due)) + 1
        if self._woken_at is None or wakeup < self._woken_at or self._woken_at <= self.world.now:
            self._woken_at = Instant(wakeup)
            self.world.timeline.schedule(Instant(wakeup), self._wake, (self.lives, wakeup))

    def _wake(self, which: tuple[int, int]) -> None:
        if which == (self.lives, self._woken_at):
            self._woken_at = None
            self._guarded(self.run_due)()

    def _note_leader(self) -> None:
        leader = self.node.leader
        if leader is self._led:
            return
        self._led = leader
        if leader is None:
            self.world.trace(self.key, "is no longer the scheduler")
            return
        self.world.on_leader_started(self, leader)
        watcher = GrantChecker(self, leader)
        leader.add_observer(watcher)
        if not leader.gathering:
            watcher.observe(TimerFired(), (), self.clock())
        self.world.after(Duration(20 * MILLISECOND), self._guarded(self._probe))
        self.world.after(_SCRAPE_NS, self._guarded(lambda: self._scrape(leader)))

    # Incoming messages, as from a socket

    def receive(self, written: bytes, check: int, *, from_member: bool) -> None:
        # As in the store's reader, a damaged entry is dropped. Its sender resends it.
        if crc32(written) == check and self.speech.can_read(written):
            self._guarded(lambda: self._decode_and_handle(written, from_member=from_member))()

    def _decode_and_handle(self, written: bytes, *, from_member: bool) -> None:
        now = self.clock()
        if self.node.member.lost_name:
            return
        try:
            decode = decode_member_entry if from_member else decode_scheduler_entry
            entry: MemberEntry | SchedulerEntry = decode(written, version=self.version)
        except InvalidMemberEntry as untrusted:
            self._note_invalid(untrusted)
            self.node.reject_member_entry(untrusted.head, str(untrusted), now)
        except InvalidSchedulerEntry as untrusted:
            self._note_invalid(untrusted)
            self.node.reject_scheduler_entry(untrusted.head, now)
        except UnreadableEntry:
            return
        else:
            self._handle_entry(entry, now)
        self.run_due()

    def _note_invalid(self, untrusted: UnreadableEntry) -> None:
        if self.world.mixed:
            self.world.violated(f"{self.key} of version {self.version} cannot read an entry: {untrusted}")

    def _handle_entry(self, entry: MemberEntry | SchedulerEntry, now: Instant) -> None:
        if isinstance(entry, MemberEntry):
            self.node.from_member(entry, now)
        else:
            self.decider = f"epoch {entry.head.epoch.number} {entry.head.epoch.id}"
            orders = self.node.from_scheduler(entry, now)
            bound = self.node.member.followed_epoch
            assert bound is not None
            if bound.number < self.highest:
                self.world.violated(f"{self.key} went back from epoch {self.highest} to {bound.number}")
            self.highest = max(self.highest, bound.number)
            if any(isinstance(order, Dispatch) for order in orders) and entry.head.epoch != bound:
                self.world.violated(f"{self.key} follows {bound} but starts an attempt for {entry.head.epoch}")
            self.perform(orders)

    def on_lease_answer(self, claim: Claim, lease: object) -> None:
        def answer() -> None:
            self.node.handle_lease(claim, lease, self.clock())  # type: ignore[arg-type]
            self.run_due()

        self._guarded(answer)()

    def on_snapshot_written(self, at: SnapshotId, kept: SnapshotId) -> None:
        def tell() -> None:
            self.node.handle_stored_snapshot(at, kept, self.clock())
            self.run_due()

        self._guarded(tell)()

    def on_snapshot_read(self, written: bytes | None) -> None:
        def tell() -> None:
            snapshot = None
            with suppress(UnreadableEntry):
                if written is not None and self.speech.can_read(written):
                    snapshot = decode_snapshot(written, version=self.version)
            self.node.handle_read_snapshot(snapshot, self.clock())
            self.run_due()

        self._guarded(tell)()

    # Requests

    def arrive(self, ticket: Ticket, patience_ns: Duration | None) -> None:
        """Receive a request, unless the process is down or draining."""
        if not self.up:
            return

        def take() -> None:
            if self.draining:
                return
            world = self.world
            world.findings.opened(ticket.request_id, RequestTrace(self.key, ticket.tenant, world.now))
            self.open[ticket.request_id] = ticket
            world.trace(self.key, f"receives {ticket.request_id}")
            self.decider = self._island_name()
            self.perform(self.node.open(ticket, self.clock()))
            self.run_due()
            if patience_ns is not None:
                world.after(patience_ns, self._guarded(lambda: self._client_disconnects(ticket.request_id)))

        self._guarded(take)()

    def _client_disconnects(self, request_id: RequestId) -> None:
        if request_id in self.open:
            self.submit(RequestWithdrawn(request_id, WithdrawalCause.CLIENT_DISCONNECTED))

    def submit(self, event: FirstToken | AttemptsProgressed | AttemptEnded | RequestWithdrawn | PolicyChanged) -> None:
        self.decider = self._island_name()
        self.perform(self.node.handle(event, self.clock()))
        self.run_due()

    def read_policy(self) -> None:
        """Read the new policy. A process that is down reads it when it starts."""

        def read() -> None:
            self.read_at = self.clock()
            self.world.trace(self.key, "has read the new policy")
            self.perform(self.node.stage(self.site.hash_of(self.site.next_policy), self.clock()))
            self.run_due()

        self.file_changed = True
        if self.up and self.read_at is None:
            self._guarded(read)()
        elif not self.up:
            self.read_at = self.clock()

    def _apply_policy(self, policy_hash: str) -> None:
        self.world.on_policy_applied(self, policy_hash)
        self.policy, decider = self.site.next_policy, self.decider
        self.submit(PolicyChanged(self.policy, policy_hash))
        self.decider = decider

    def _island_name(self) -> str:
        return f"island {self.key} {self.lives} {self._islands}"

    def perform(self, orders: list[MemberCommand]) -> None:
        for order in orders:
            match order:
                case Dispatch():
                    self._begin(order)
                case Abort():
                    self._abort(order)
                case End():
                    self.world.trace(self.key, f"ends {order.request_id}: {order.outcome.value} ({order.reason})")
                    self.world.findings.ended(order.request_id, order.outcome.value, self.world.now)
                    self.open.pop(order.request_id, None)
                case ModeChanged():
                    self.world.trace(self.key, f"{order.mode.value}: {order.reason}")
                    if order.mode is MemberMode.ISLAND:
                        self._islands += 1
                        self.decider = self._island_name()
                        self.world.on_island_started(self, self.node.member.island_share)
                        wait = Duration(self.random.randrange(5, 60) * MILLISECOND)
                        self.world.after(wait, self._guarded(self._probe))
                case PolicyAgreed(policy_hash):
                    self._apply_policy(policy_hash)

    def _begin(self, order: Dispatch) -> None:
        world, random = self.world, self.random
        key = (order.request_id, order.attempt)
        if key in self.attempts:
            world.violated(f"{key} was started twice")
            return
        attempt = self.attempts[key] = Attempt(order)
        ticket = self.open.get(order.request_id)
        tokens = 0 if ticket is None else ticket.prompt_bytes // 4 + OUTPUT_TOKENS
        running = Running(self.life, self.name, order.request_id, order.attempt, self.decider, tokens, world.now)
        world.on_attempt_started(self, order, running)
        first = Duration(random.randrange(20, 200) * MILLISECOND)
        lasts = Duration(first + random.choice((100, 300, 800, 1_500, 3_000)) * MILLISECOND)
        if random.random() < 0.03:
            world.after(first, self._guarded(lambda: self._finish(key, attempt, AttemptEnding.FAILED)))
            return
        world.after(first, self._guarded(lambda: self._send_first_token(key, attempt)))
        world.after(lasts, self._guarded(lambda: self._finish(key, attempt, AttemptEnding.COMPLETED)))

    def _send_first_token(self, key: tuple[RequestId, int], attempt: Attempt) -> None:
        if self.attempts.get(key) is attempt:
            attempt.spoken = True
            self.submit(FirstToken(*key))

    def _finish(self, key: tuple[RequestId, int], attempt: Attempt, ending: AttemptEnding) -> None:
        if self.attempts.get(key) is not attempt:
            return
        del self.attempts[key]
        self.world.engines[attempt.order.endpoint_id].stop(self.life, *key)
        self.world.trace(self.key, f"{key[0]} attempt {key[1]} {ending.value}")
        usage = None
        if ending is AttemptEnding.COMPLETED:
            prompt_tokens = self.world.tickets[key[0]].prompt_bytes // 4
            usage = Usage(prompt_tokens, OUTPUT_TOKENS, 0, UsageSource.ENGINE)
        self.submit(AttemptEnded(*key, ending, "as simulated", usage))

    def _abort(self, order: Abort) -> None:
        key = (order.request_id, order.attempt)
        attempt = self.attempts.get(key)
        if attempt is not None:
            soon = Duration(self.random.randrange(1, 20) * MILLISECOND)
            self.world.after(soon, self._guarded(lambda: self._finish(key, attempt, AttemptEnding.ABORTED)))

    def _sweep(self) -> None:
        """Report the progress of streams."""
        progress = [AttemptProgress(*key, 8) for key, attempt in self.attempts.items() if attempt.spoken]
        if progress:
            self.submit(AttemptsProgressed(tuple(progress)))
        self.world.after(_SWEEP_NS, self._guarded(self._sweep))

    # Probes and scrapes of the engines

    def _probe(self) -> None:
        for endpoint_id in self.site.engines:
            self._submit_endpoint_event(EndpointReady(endpoint_id))
        self.run_due()

    def _scrape(self, leader: Leader) -> None:
        if self.node.leader is leader:
            for endpoint_id, engine in self.site.engines.items():
                kv_percent = 100 * engine.kv_held // engine.kv_tokens
                self._submit_endpoint_event(EndpointMetricsReported(endpoint_id, len(engine.running), 0, kv_percent))
            self.run_due()
            self.world.after(_SCRAPE_NS, self._guarded(lambda: self._scrape(leader)))

    def _submit_endpoint_event(self, event: EndpointReady | EndpointMetricsReported) -> None:
        self.decider = self._island_name()
        self.perform(self.node.handle(event, self.clock()))


class GrantChecker:
    """Checks every grant at the moment it is decided."""

    def __init__(self, process: Process, leader: Leader) -> None:
        self._process = process
        self._leader = leader
        self._began_at = process.clock()
        self._begun = False

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if not self._begun:
            self._begun = True
            self._process.world.check_takeover(self._leader, Duration(now - self._began_at))
        for command in commands:
            if isinstance(command, Dispatch):
                self._process.world.places.check_assignments(self._leader, command.endpoint_id)


class Attempt:
    __slots__ = ("order", "spoken")

    def __init__(self, order: Dispatch) -> None:
        self.order = order
        self.spoken = False
