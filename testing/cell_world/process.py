"""How does one simulated process run a node of the cell?

Around the very node that a live process runs, it does what a live host does: it carries entries as bytes, wakes the
node when it wants to be, gathers for a moment what goes out together, sends attempts to engines and tells what becomes
of them. It has a clock of its own, and stands still, dies or is restarted as the faults say.
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
    EndpointJoined,
    EndpointMeasured,
    EndpointReadied,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.orders import ModeChanged, Order, PolicyAgreed
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.codec import (
    Unintelligible,
    UntrustedMember,
    UntrustedScheduler,
    decoded_snapshot,
    encoded,
    member_entry,
    scheduler_entry,
    writable_snapshot,
)
from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import MemberEntry, SchedulerEntry, Share, Snapshots
from headgate.hosts.cell.protocol.views import Mode
from headgate.model.ticket import Ticket
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, RequestId
from headgate.model.usage import Usage, UsageSource
from testing.cell_world.checks import Story
from testing.cell_world.engines import Running
from testing.cell_world.faults import Fault
from testing.cell_world.names import NameHolder
from testing.cell_world.site import OUTPUT_TOKENS, Site
from testing.cell_world.speech import Speech
from testing.cell_world.store import Way

if TYPE_CHECKING:
    from testing.cell_world.world import World

_FLUSH_NS = Duration(500_000)
"""What happens within this goes out together."""
_SCRAPE_NS = SECOND
_SWEEP_NS = Duration(250 * MILLISECOND)
_GRACE_NS = Duration(500 * MILLISECOND)
"""Grace period for the requests of a process that loses its name."""


class Process:
    def __init__(self, name: str, world: World, site: Site, *, gateway: bool, key: str | None = None) -> None:
        """Without a `key`, the process is in the cell from the beginning; with a `key`, `start` starts it later."""
        self.name = name
        self.key = key or name
        """Unique key of the process; other processes may have its name."""
        self.world = world
        self.site = site
        self.gateway = gateway
        self.random = Random(f"{world.seed} process {self.key}")
        self._offset = self.random.randrange(1_000, 2_000) * SECOND
        self._rate_ppm = self.random.choice((0, 0, -4_000, 4_000, self.random.randrange(-4_000, 4_000)))
        self.way = Way(self.key, world.timeline, lambda: world.now, Random(f"{world.seed} way {self.key}"))
        self.speech = Speech(self.way, Random(f"{world.seed} hostile {self.key}"))
        self.wall_ns = 5_000 * SECOND
        """Offset of its wall clock from its monotonic clock."""
        self.lives = 0
        self.began_at = Instant(0)
        """True time at which its latest life began."""
        self.up = False
        self.paused = False
        self._waiting: list[Callable[[], None]] = []
        self.node: Node
        self.attempts: dict[tuple[RequestId, int], Attempt] = {}
        self.open: dict[RequestId, Ticket] = {}
        self.highest = 0
        """The highest epoch that this life has followed."""
        self._flush_set = False
        self._woken_at: Instant | None = None
        self._led: Leader | None = None
        self._islands = 0
        self.decider = ""
        """Who gives the orders that are carried out at the moment."""
        self.draining = False
        self._leaving = self._starts_again = False
        """Whether it has said that it goes, and is to start as soon as it has left."""
        self.read_at: Instant | None = None
        """When it has read the new rules, by its own clock."""
        self.file_changed = False
        """Whether the new rules are in its file; a process that is paused reads them later, or at its next start."""
        self.troubles: list[Fault] = []
        """What has befallen it so far."""
        self.retired = False
        """Whether it must not start again."""
        self.names = NameHolder(self) if world.has_names else None
        if key is None:
            self.begin()
            if self.names is not None:
                self.names.keep_from_the_start()

    # Its clock, and its life

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
        """Start as soon as it has its name."""
        if self.retired or self.up:
            return
        if self.names is None:
            self.begin()
        elif not self.names.claiming:
            self.names.claim()

    def begin(self) -> None:
        self.lives += 1
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
            serves=self.gateway,
            candidate=self.name in site.candidates,
            share=Share(rank, max(1, len(site.gateways))),
        )
        self.draining = self._leaving = self._starts_again = False
        for engine in site.engines.values():
            self.node.tell(EndpointJoined(engine.endpoint), self.clock())
        if self.file_changed and self.read_at is None:
            self.read_at = self.clock()
        self.policy = site.policy if self.read_at is None else site.next_policy
        self.node.tell(PolicyChanged(self.policy, site.hash_of(self.policy)), self.clock())
        world.trace(self.key, f"starts, life {self.lives}")
        world.began(self)
        self.awake()
        world.after(_SWEEP_NS, self._guarded(self._sweep))

    def crash(self) -> None:
        """Dies with all that it holds. The engines notice after a while."""
        world = self.world
        world.trace(self.key, f"dies with {len(self.open)} requests")
        self._end_life()
        for request_id in self.open:
            world.findings.stories[request_id].lost = True
        for story in world.findings.stories.values():
            story.orphaned = story.orphaned or story.member == self.key
        for (request_id, number), attempt in self.attempts.items():
            engine = world.engines[attempt.order.endpoint_id]
            engine.running[self.life, request_id, number].orphaned = True
            notices = Duration(self.random.randrange(1, 500) * MILLISECOND)
            world.after(notices, lambda e=engine, life=self.life, r=request_id, n=number: e.stop(life, r, n))
        self.attempts, self.open, self._waiting = {}, {}, []

    def retire(self) -> None:
        """Kill it for good."""
        self.retired = True
        if self.up:
            self.crash()
        elif self.names is not None:
            self.names.stop()

    def _end_life(self) -> None:
        self.up, self._led = False, None
        if self.names is not None:
            self.names.stop()

    def restart(self) -> None:
        """Is to leave in peace: it takes no more requests, and is the scheduler no more."""

        def drain() -> None:
            self.world.trace(self.key, f"is to leave, with {len(self.open)} requests")
            self.draining = True
            self.node.resign(self.clock())
            self.awake()

        if self.up and not self.draining:
            self._guarded(drain)()

    def lose_name(self) -> None:
        """Another process has its name: finish the open requests and exit with an error."""
        self.world.lost_name(self)
        self.draining = True
        self.node.lose_name(self.clock())
        self.awake()
        self.world.after(_GRACE_NS, self._guarded(self._withdraw_all))

    def end_grace(self) -> None:
        """It has had long enough to leave."""
        if not self.up:
            self.start()
            return

        # Also where it stands still at the moment, and leaves as soon as it goes on.
        self._starts_again = True

        self._guarded(self._withdraw_all)()

    def _withdraw_all(self) -> None:
        for request_id in tuple(self.open) if self.draining else ():
            self.tell(RequestWithdrawn(request_id, WithdrawalCause.GRACE_OVER))
        self.awake()

    def _go_on_leaving(self) -> None:
        if self.open or self.attempts or self.node.member.held:
            return
        if not self._leaving:
            self._leaving = True
            self.node.leave(self.clock())
        if self.node.left:
            self.world.trace(self.key, "has left")
            self.world.left(self)
            if self.names is not None:
                self.names.give_back()
            self._end_life()
            self._waiting = []
            if self._starts_again:
                self.start()
            elif self.node.member.nameless:
                self.world.doubles.exited(self)

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """The action, if this life still lasts then; later, if it is paused."""
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
            self.awake()

    # The node

    def awake(self) -> None:
        """Lets the node do what is due, and sees to it that it is woken and what it says is sent."""
        now = self.clock()
        self.decider = self._island_name()
        self.obey(self.node.tick(now))
        self._note_leader()
        if self.draining:
            self._go_on_leaving()
        if self.up:
            self._set_timer()

    def _flush(self) -> None:
        self._flush_set = False
        now = self.clock()
        self.decider = self._island_name()
        self.obey(self.node.tick(now))
        going = self.node.outgoing(now)
        for entry in going.inbox:
            for written in encoded(entry):
                self.world.to_inbox(self, self.speech.as_said(written))
        for name, entry in going.outboxes:
            self.world.granted(entry)
            for written in encoded(entry):
                self.world.to_outbox(self, name, self.speech.as_written(written))
        if going.claim is not None:
            self.world.claim(self, going.claim)
        written = None if going.write is None else writable_snapshot(going.write)
        if going.write is not None and written is not None:
            self.world.write(self, self.speech.as_written(written), going.write.at)
        if going.read:
            self.world.read(self)
        if going.release is not None:
            self.world.release(self, going.release)
        self._note_leader()
        self.awake()

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
            self.world.timeline.at(Instant(wakeup), self._wake, (self.lives, wakeup))

    def _wake(self, which: tuple[int, int]) -> None:
        if which == (self.lives, self._woken_at):
            self._woken_at = None
            self._guarded(self.awake)()

    def _note_leader(self) -> None:
        leader = self.node.leader
        if leader is self._led:
            return
        self._led = leader
        if leader is None:
            self.world.trace(self.key, "is the scheduler no more")
            return
        self.world.began_to_lead(self, leader)
        watcher = Watcher(self, leader)
        leader.observe(watcher)
        if not leader.gathering:
            watcher.saw(TimerFired(), (), self.clock())
        self.world.after(Duration(20 * MILLISECOND), self._guarded(self._probe))
        self.world.after(_SCRAPE_NS, self._guarded(lambda: self._scrape(leader)))

    # What comes from others; each as it would from a socket

    def receive(self, written: bytes, check: int, *, from_member: bool) -> None:
        # As in the store's reader, a damaged entry is dropped; its sender sends it again.
        if crc32(written) == check and self.speech.reads(written):
            self._guarded(lambda: self._take(written, from_member=from_member))()

    def _take(self, written: bytes, *, from_member: bool) -> None:
        now = self.clock()
        if self.node.member.nameless:
            return
        try:
            entry = member_entry(written) if from_member else scheduler_entry(written)
        except UntrustedMember as untrusted:
            self.node.refuse_member(untrusted.head, str(untrusted), now)
        except UntrustedScheduler as untrusted:
            self.node.refuse_scheduler(untrusted.head, now)
        except Unintelligible:
            return
        else:
            self._take_entry(entry, now)
        self.awake()

    def _take_entry(self, entry: MemberEntry | SchedulerEntry, now: Instant) -> None:
        if isinstance(entry, MemberEntry):
            self.node.from_member(entry, now)
        else:
            self.decider = f"epoch {entry.head.epoch.number} {entry.head.epoch.id}"
            orders = self.node.from_scheduler(entry, now)
            bound = self.node.member.bound
            assert bound is not None
            if bound.number < self.highest:
                self.world.violated(f"{self.key} went back from epoch {self.highest} to {bound.number}")
            self.highest = max(self.highest, bound.number)
            if any(isinstance(order, Dispatch) for order in orders) and entry.head.epoch != bound:
                self.world.violated(f"{self.key} follows {bound} and begins what {entry.head.epoch} ordered")
            self.obey(orders)

    def answered(self, claim: Claim, lease: object) -> None:
        def answer() -> None:
            self.node.lease_answered(claim, lease, self.clock())  # type: ignore[arg-type]
            self.awake()

        self._guarded(answer)()

    def was_kept(self, at: Snapshots, kept: Snapshots) -> None:
        def tell() -> None:
            self.node.snapshot_kept(at, kept, self.clock())
            self.awake()

        self._guarded(tell)()

    def was_read(self, written: bytes | None) -> None:
        def tell() -> None:
            snapshot = None
            with suppress(Unintelligible):
                snapshot = decoded_snapshot(written) if written is not None and self.speech.reads(written) else None
            self.node.snapshot_read(snapshot, self.clock())
            self.awake()

        self._guarded(tell)()

    # What a gateway does

    def arrive(self, ticket: Ticket, patience_ns: Duration | None) -> None:
        """A request comes in, if anybody is there to take it."""
        if not self.up:
            return

        def take() -> None:
            if self.draining:
                return
            world = self.world
            world.findings.opened(ticket.request_id, Story(self.key, ticket.tenant, world.now))
            self.open[ticket.request_id] = ticket
            world.trace(self.key, f"takes {ticket.request_id}")
            self.decider = self._island_name()
            self.obey(self.node.open(ticket, self.clock()))
            self.awake()
            if patience_ns is not None:
                world.after(patience_ns, self._guarded(lambda: self._client_leaves(ticket.request_id)))

        self._guarded(take)()

    def _client_leaves(self, request_id: RequestId) -> None:
        if request_id in self.open:
            self.tell(RequestWithdrawn(request_id, WithdrawalCause.CLIENT_LEFT))

    def tell(self, event: FirstToken | Progressed | AttemptEnded | RequestWithdrawn | PolicyChanged) -> None:
        self.decider = self._island_name()
        self.obey(self.node.tell(event, self.clock()))
        self.awake()

    def read_policy(self) -> None:
        """Reads the new rules. One that is down reads them when it starts."""

        def read() -> None:
            self.read_at = self.clock()
            self.world.trace(self.key, "has read new rules")
            self.obey(self.node.stage(self.site.hash_of(self.site.next_policy), self.clock()))
            self.awake()

        self.file_changed = True
        if self.up and self.read_at is None:
            self._guarded(read)()
        elif not self.up:
            self.read_at = self.clock()

    def _go_by(self, policy_hash: str) -> None:
        self.world.goes_by(self, policy_hash)
        self.policy, decider = self.site.next_policy, self.decider
        self.tell(PolicyChanged(self.policy, policy_hash))
        self.decider = decider

    def _island_name(self) -> str:
        return f"island {self.key} {self.lives} {self._islands}"

    def obey(self, orders: list[Order]) -> None:
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
                    if order.mode is Mode.ISLAND:
                        self._islands += 1
                        self.decider = self._island_name()
                        self.world.began_island(self, self.node.member.island_share)
                        wait = Duration(self.random.randrange(5, 60) * MILLISECOND)
                        self.world.after(wait, self._guarded(self._probe))
                case PolicyAgreed(policy_hash):
                    self._go_by(policy_hash)

    def _begin(self, order: Dispatch) -> None:
        world, random = self.world, self.random
        key = (order.request_id, order.attempt)
        if key in self.attempts:
            world.violated(f"{key} was begun twice")
            return
        attempt = self.attempts[key] = Attempt(order)
        ticket = self.open.get(order.request_id)
        tokens = 0 if ticket is None else ticket.prompt_bytes // 4 + OUTPUT_TOKENS
        running = Running(self.life, self.name, order.request_id, order.attempt, self.decider, tokens, world.now)
        world.begins(self, order, running)
        first = Duration(random.randrange(20, 200) * MILLISECOND)
        lasts = Duration(first + random.choice((100, 300, 800, 1_500, 3_000)) * MILLISECOND)
        if random.random() < 0.03:
            world.after(first, self._guarded(lambda: self._finish(key, attempt, AttemptEnding.FAILED)))
            return
        world.after(first, self._guarded(lambda: self._speak(key, attempt)))
        world.after(lasts, self._guarded(lambda: self._finish(key, attempt, AttemptEnding.COMPLETED)))

    def _speak(self, key: tuple[RequestId, int], attempt: Attempt) -> None:
        if self.attempts.get(key) is attempt:
            attempt.spoken = True
            self.tell(FirstToken(*key))

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
        self.tell(AttemptEnded(*key, ending, "as simulated", usage))

    def _abort(self, order: Abort) -> None:
        key = (order.request_id, order.attempt)
        attempt = self.attempts.get(key)
        if attempt is not None:
            soon = Duration(self.random.randrange(1, 20) * MILLISECOND)
            self.world.after(soon, self._guarded(lambda: self._finish(key, attempt, AttemptEnding.ABORTED)))

    def _sweep(self) -> None:
        """Reports what streams have produced."""
        progress = [AttemptProgress(*key, 8) for key, attempt in self.attempts.items() if attempt.spoken]
        if progress:
            self.tell(Progressed(tuple(progress)))
        self.world.after(_SWEEP_NS, self._guarded(self._sweep))

    # What it sees of the engines

    def _probe(self) -> None:
        for endpoint_id in self.site.engines:
            self._see(EndpointReadied(endpoint_id))
        self.awake()

    def _scrape(self, leader: Leader) -> None:
        if self.node.leader is leader:
            for endpoint_id, engine in self.site.engines.items():
                kv_percent = 100 * engine.kv_held // engine.kv_tokens
                self._see(EndpointMeasured(endpoint_id, len(engine.running), 0, kv_percent))
            self.awake()
            self.world.after(_SCRAPE_NS, self._guarded(lambda: self._scrape(leader)))

    def _see(self, event: EndpointReadied | EndpointMeasured) -> None:
        self.decider = self._island_name()
        self.obey(self.node.tell(event, self.clock()))


class Watcher:
    """Looks at every grant in the moment at which it is decided."""

    def __init__(self, process: Process, leader: Leader) -> None:
        self._process = process
        self._leader = leader
        self._began_at = process.clock()
        self._begun = False

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if not self._begun:
            self._begun = True
            self._process.world.check_beginning(self._leader, Duration(now - self._began_at))
        for command in commands:
            if isinstance(command, Dispatch):
                self._process.world.places.check_books(self._leader, command.endpoint_id)


class Attempt:
    __slots__ = ("order", "spoken")

    def __init__(self, order: Dispatch) -> None:
        self.order = order
        self.spoken = False
