"""Member names in the simulated cell, by the rules of a live one (`protocol/names.py`).

A process claims its name before it starts, renews it while it runs, and leaves the cell when another process has it.
The simulated store also records when each entry expires by true time, regardless of the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.hosts.cell.protocol.names import (
    NAME_ANSWER_NS_MAX,
    NAME_LEASE_NS,
    NAME_LOOK_NS,
    NAME_RENEW_NS,
    NameAnswer,
    NameEntry,
    NameView,
    claimed_name,
)
from headgate.model.units import Duration, Instant, after

if TYPE_CHECKING:
    from testing.cell_world.process import Process

WAIT_NS_MAX = Duration(NAME_LEASE_NS + NAME_ANSWER_NS_MAX + NAME_LOOK_NS + NAME_ANSWER_NS_MAX)
"""Longest wait for a name after its entry was last extended.

The entry expires after one lease. The last answer before that may be late, and the next look follows it and is answered
or counts as unanswered.
"""


class NameStore:
    """Name entries in the store."""

    def __init__(self, now: Callable[[], Instant], true_time: Callable[[], Instant]) -> None:
        self._now, self._true_time = now, true_time
        self.entries: dict[str, NameEntry] = {}
        self._lasts: dict[str, tuple[str, Instant]] = {}
        """For each name, the incarnation that renewed it last and the true time at which its entry expires."""
        self._extended: dict[str, dict[str, Instant]] = {}
        """For each name and incarnation, the true time at which its entry was last set to one lease."""
        self._steps_back = 0
        """How often the store's clock was set back."""
        self._corrected: dict[str, int] = {}
        """For each name, the number of steps back when its entry was last shortened to one lease."""
        self.ends: dict[str, Instant] = {}
        """True time at which each incarnation stopped renewing its name."""

    def claim(self, name: str, incarnation: str) -> tuple[NameAnswer, bool]:
        """The answer, and whether the name was taken from an incarnation whose entry has not expired."""
        self.entries[name], answer = claimed_name(self.entries.get(name), incarnation, NAME_LEASE_NS, self._now())
        extended = self._extended.setdefault(name, {})
        if answer.held:
            if answer.left_ns < 0 and self._corrected.get(name, 0) < self._steps_back:
                self._corrected[name] = self._steps_back
                extended[answer.held] = self._true_time()
            return answer, False
        extended[incarnation] = self._true_time()
        holder, until = self._lasts.get(name, (incarnation, Instant(0)))
        self._lasts[name] = (incarnation, after(self._true_time(), NAME_LEASE_NS))
        return answer, holder != incarnation and self._true_time() < until

    def release(self, name: str, incarnation: str) -> None:
        entry = self.entries.get(name)
        if entry is not None and entry.incarnation == incarnation:
            del self.entries[name]
            self._lasts.pop(name, None)

    def extended_for_others(self, name: str, *incarnations: str) -> Instant:
        """True time at which the name was last given for one lease to an incarnation other than these.

        Another process got or renewed the name, if only by a claim that arrived after its death; or the store's clock
        was set back, and the store shortened the entry to one lease. An entry is shortened once for each step.
        """
        others = self._extended.get(name, {}).items()
        return max((at for other, at in others if other not in incarnations), default=Instant(0))

    def set_back(self) -> None:
        """Record that the store's clock was set back."""
        self._steps_back += 1

    def renewed_lately(self, name: str) -> bool:
        _, until = self._lasts.get(name, ("", Instant(0)))
        return self._true_time() < until + NAME_ANSWER_NS_MAX

    def renewed_since(self, name: str, moment: Instant) -> bool:
        _, until = self._lasts.get(name, ("", Instant(0)))
        return until >= after(moment, NAME_LEASE_NS)

    def lose(self, entries: dict[str, NameEntry]) -> None:
        """Replace the entries. Names whose entries are lost may be given to other processes."""
        self.entries = dict(entries)
        self._lasts.clear()
        self._corrected.clear()


class NameHolder:
    """Claims and renewals of the name of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._view = NameView()
        self.incarnation = ""
        self._question = 0
        """Number of the open question to the store, or of the last one."""
        self._claiming_since: Instant | None = None
        """Time at which the process began to wait for its name, if it has not started yet."""
        self._claimed_at = Instant(0)
        """Time at which the process first claimed the name in this life."""
        self._was_paused = False

    @property
    def claiming(self) -> bool:
        return self._claiming_since is not None

    def claim(self) -> None:
        """Claim the name for the next life of the process."""
        self._claiming_since = self._claimed_at = self._process.world.now
        self._was_paused = False
        self._view = NameView()
        self.incarnation = f"{self._process.key} {self._process.lives + 1}"
        self._process.world.store.names.ends.pop(self.incarnation, None)
        self._look()

    def keep_from_the_start(self) -> None:
        """Renew a name that the process has had since before the simulation began."""
        self.incarnation = f"{self._process.key} {self._process.lives}"
        self._process.world.store.names.claim(self._process.name, self.incarnation)
        self._look_after(NAME_RENEW_NS)

    def stop(self) -> None:
        """Stop claiming and renewing: the process is gone."""
        if self.incarnation:
            self._process.world.store.names.ends.setdefault(self.incarnation, self._process.world.now)
        self._question += 1
        self._claiming_since = None

    def give_back(self) -> None:
        """Release the name: the process leaves."""
        process, incarnation = self._process, self.incarnation
        store = process.world.store
        if self._view.has:
            process.way.carry(lambda: store.reach(lambda: store.names.release(process.name, incarnation)), outward=True)
        self.stop()

    def _look_after(self, wait: Duration) -> None:
        self._question += 1
        self._process.world.after(wait, self._if_open(self._question, self._look))

    def _look(self) -> None:
        self._question += 1
        number, process, incarnation = self._question, self._process, self.incarnation
        world = process.world

        def arrived() -> None:
            answer, stolen = world.store.names.claim(process.name, incarnation)
            if stolen:
                world.violated(f"{process.key} got the name {process.name}, which another process renews")
            process.way.carry(self._if_open(number, lambda: self._answered(answer)), outward=False)

        process.way.carry(lambda: world.store.reach(arrived), outward=True)
        world.after(NAME_ANSWER_NS_MAX, self._if_open(number, self._unanswered))

    def _if_open(self, number: int, action: Callable[[], None]) -> Callable[[], None]:
        """Runs the action only if the question is still open, and not before a paused process resumes."""

        def act() -> None:
            if number != self._question:
                return
            if self._process.paused:
                self._was_paused = True
                self._process.when_resumed(act)
            else:
                action()

        return act

    def _answered(self, answer: NameAnswer) -> None:
        has_it = self._view.answered(answer)
        if self._view.taken:
            self._lose(answer.held)
        elif self.claiming and not has_it:
            self._look_after(NAME_LOOK_NS)
        else:
            self._begin_if_waiting()
            self._look_after(NAME_RENEW_NS if has_it else NAME_LOOK_NS)

    def _unanswered(self) -> None:
        """The store is unreachable; names are not checked until it answers."""
        self._begin_if_waiting()
        self._look_after(NAME_RENEW_NS)

    def _begin_if_waiting(self) -> None:
        since, self._claiming_since = self._claiming_since, None
        if since is None:
            return
        world, process = self._process.world, self._process
        extended = world.store.names.extended_for_others(process.name, self.incarnation)
        if world.now - max(since, extended) > WAIT_NS_MAX and not self._was_paused:
            world.violated(f"{process.key} has waited for its name for {world.now - since} ns")
        process.begin()

    def _lose(self, rival: str) -> None:
        since = self._claiming_since
        self.stop()
        process, entries = self._process, self._process.world.store.names
        # A starting process is denied its name only by a renewal that reaches the store while it waits for the name.
        renewed = entries.renewed_lately(process.name) if since is None else entries.renewed_since(process.name, since)
        ended = entries.ends.get(rival)
        if not renewed or (ended is not None and ended < self._claimed_at):
            process.world.violated(f"{process.key} is denied the name {process.name}, which no other process renews")
        if since is not None:
            process.world.trace(process.key, f"does not start: another process is called {process.name}")
            process.world.doubles.exited(process)
        else:
            process.lose_name()
