"""Member names in the simulated cell, following the same rules as in a live cell (`protocol/member_names.py`).

A process claims its name before it starts, renews it while it is running, and leaves the cell if another process has
taken it. The simulated store also records when each entry expires in true time, regardless of the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.hosts.cell.protocol.member_names import (
    NAME_ANSWER_NS_MAX,
    NAME_LEASE_NS,
    NAME_POLL_NS,
    NAME_RENEW_NS,
    NameAnswer,
    NameClaim,
    NameEntry,
    claim_name,
)
from headgate.model.units import Duration, Instant, after

if TYPE_CHECKING:
    from testing.cell_world.process import Process

WAIT_NS_MAX = Duration(NAME_LEASE_NS + NAME_ANSWER_NS_MAX + NAME_POLL_NS + NAME_ANSWER_NS_MAX)
"""Longest wait for a name after the last extension of its entry.

The entry expires after one lease. The last response before that may be late, and the next check then gets a response or
times out.
"""


class NameStore:
    """Name entries in the store."""

    def __init__(self, now: Callable[[], Instant], true_time: Callable[[], Instant]) -> None:
        self._now, self._true_time = now, true_time
        self.entries: dict[str, NameEntry] = {}
        self._lasts: dict[str, tuple[str, Instant]] = {}
        """For each name, the incarnation that renewed it last and the true time at which its entry expires."""
        self._extended: dict[str, dict[str, Instant]] = {}
        """For each name and incarnation, the true time at which the entry was last set to one lease."""
        self._steps_back = 0
        """Number of times that the store's clock was set back."""
        self._corrected: dict[str, int] = {}
        """For each name, how many times the clock had been set back when its entry was last shortened to one lease."""
        self.ends: dict[str, Instant] = {}
        """True time at which each incarnation stopped renewing its name."""

    def claim(self, name: str, incarnation: str) -> tuple[NameAnswer, bool]:
        """The response, and whether the name was taken from an incarnation whose entry has not expired."""
        self.entries[name], answer = claim_name(self.entries.get(name), incarnation, NAME_LEASE_NS, self._now())
        extended = self._extended.setdefault(name, {})
        if answer.holder:
            if answer.expires_in_ns < 0 and self._corrected.get(name, 0) < self._steps_back:
                self._corrected[name] = self._steps_back
                extended[answer.holder] = self._true_time()
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
        """True time at which the name was last granted for one lease to an incarnation other than these.

        Either another process acquired or renewed the name, possibly with a claim that arrived after the process died,
        or the store's clock was set back and the store shortened the entry to one lease. An entry is shortened once for
        each clock step.
        """
        others = self._extended.get(name, {}).items()
        return max((at for other, at in others if other not in incarnations), default=Instant(0))

    def clock_set_back(self) -> None:
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
    """Claims and renews one process's name."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._view = NameClaim()
        self.incarnation = ""
        self._question = 0
        """Number of the latest query to the store, whether or not it has been answered."""
        self._claiming_since: Instant | None = None
        """Time at which the process began to wait for its name. None if it has started."""
        self._claimed_at = Instant(0)
        """Time at which the process first claimed the name since its latest start."""
        self._was_paused = False

    @property
    def claiming(self) -> bool:
        return self._claiming_since is not None

    def claim(self) -> None:
        """Claim the name for the next start of the process."""
        self._claiming_since = self._claimed_at = self._process.world.now
        self._was_paused = False
        self._view = NameClaim()
        self.incarnation = f"{self._process.key} {self._process.lives + 1}"
        self._process.world.store.names.ends.pop(self.incarnation, None)
        self._check()

    def hold_from_start(self) -> None:
        """Renew a name that the process has had since before the simulation began."""
        self.incarnation = f"{self._process.key} {self._process.lives}"
        self._process.world.store.names.claim(self._process.name, self.incarnation)
        self._check_after(NAME_RENEW_NS)

    def stop(self) -> None:
        """Stop claiming and renewing because the process is gone."""
        if self.incarnation:
            self._process.world.store.names.ends.setdefault(self.incarnation, self._process.world.now)
        self._question += 1
        self._claiming_since = None

    def release(self) -> None:
        """Release the name because the process is leaving."""
        process, incarnation = self._process, self.incarnation
        store = process.world.store
        if self._view.is_held:
            process.way.deliver(
                lambda: store.receive(lambda: store.names.release(process.name, incarnation)), outward=True
            )
        self.stop()

    def _check_after(self, wait: Duration) -> None:
        self._question += 1
        self._process.world.after(wait, self._if_open(self._question, self._check))

    def _check(self) -> None:
        self._question += 1
        number, process, incarnation = self._question, self._process, self.incarnation
        world = process.world

        def arrived() -> None:
            answer, stolen = world.store.names.claim(process.name, incarnation)
            if stolen:
                world.violated(f"{process.key} got the name {process.name}, which another process renews")
            process.way.deliver(self._if_open(number, lambda: self._answered(answer)), outward=False)

        process.way.deliver(lambda: world.store.receive(arrived), outward=True)
        world.after(NAME_ANSWER_NS_MAX, self._if_open(number, self._unanswered))

    def _if_open(self, number: int, action: Callable[[], None]) -> Callable[[], None]:
        """Run the action only if the query is still pending. A paused process runs it when it resumes."""

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
        has_it = self._view.apply_answer(answer)
        if self._view.is_taken:
            self._lose(answer.holder)
        elif self.claiming and not has_it:
            self._check_after(NAME_POLL_NS)
        else:
            self._begin_if_waiting()
            self._check_after(NAME_RENEW_NS if has_it else NAME_POLL_NS)

    def _unanswered(self) -> None:
        """Continue without the name check because the store is unreachable."""
        self._begin_if_waiting()
        self._check_after(NAME_RENEW_NS)

    def _begin_if_waiting(self) -> None:
        since, self._claiming_since = self._claiming_since, None
        if since is None:
            return
        world, process = self._process.world, self._process
        extended = world.store.names.extended_for_others(process.name, self.incarnation)
        if world.now - max(since, extended) > WAIT_NS_MAX and not self._was_paused:
            world.violated(f"{process.key} waited for its name for {world.now - since} ns")
        process.begin()

    def _lose(self, rival: str) -> None:
        since = self._claiming_since
        self.stop()
        process, entries = self._process, self._process.world.store.names
        # A starting process is denied its name only if a renewal reaches the store while it waits.
        renewed = entries.renewed_lately(process.name) if since is None else entries.renewed_since(process.name, since)
        ended = entries.ends.get(rival)
        if not renewed or (ended is not None and ended < self._claimed_at):
            process.world.violated(f"{process.key} is denied the name {process.name}, which no other process renews")
        if since is not None:
            process.world.trace(process.key, f"does not start: another process has the name {process.name}")
            process.world.doubles.exited(process)
        else:
            process.lose_name()
