"""LoRA adapters on one endpoint: held, in use and active.

An engine computes a limited number of distinct adapters at the same time (vLLM: `--max-loras`). Requests of further
adapters would wait inside the engine until one of them is no longer in use. The scheduler therefore gives each adapter
with requests in flight one of these slots, and sends no request whose adapter has none. Requests without an adapter
need no slot.

An adapter stays active, which means loaded, after its last request has ended, until the engine needs its slot for
another one. The engine replaces the least recently used adapter first.

Endpoints of several pools on one engine (`shared_engines`) share its slots. Which adapters an endpoint holds, and the
limit that it observes, belong to the endpoint.
"""

from typing import Final

from headgate.model.units import Duration, Instant

SLOTS_ASSUMED: Final = 1
"""Number of slots while neither the configuration nor the engine gives it. This is also vLLM's default."""


class _Use:
    """Requests in flight of one adapter."""

    __slots__ = ("count", "last_sent_at", "since")

    def __init__(self, now: Instant) -> None:
        self.count = 0
        self.since = self.last_sent_at = now


class AdapterSlots:
    """Adapter slots of one engine."""

    __slots__ = ("active", "draining", "in_use", "reserved_for")

    def __init__(self) -> None:
        self.in_use: dict[str, _Use] = {}
        """Adapters with requests in flight."""
        self.active: dict[str, None] = {}
        """Adapters that are probably loaded, the least recently used first. At most one for each slot."""
        self.draining = ""
        """Adapter that gets no new requests, because another one needs its slot. Empty if none."""
        self.reserved_for = ""
        """Adapter that gets the slot of the draining one."""

    def begin(self, adapter: str, limit: int, now: Instant) -> None:
        """Counts a request that is sent."""
        if (use := self.in_use.get(adapter)) is None:
            use = self.in_use[adapter] = _Use(now)
        use.count += 1
        use.last_sent_at = now
        self.active.pop(adapter, None)
        self.active[adapter] = None
        while len(self.active) > max(limit, len(self.in_use)):
            del self.active[next(each for each in self.active if each not in self.in_use)]

    def end(self, adapter: str, count: int = 1) -> None:
        """Counts requests that have ended."""
        use = self.in_use[adapter]
        use.count -= count
        if not use.count:
            del self.in_use[adapter]

    def add(self, adapter: str, count: int, like: _Use) -> None:
        """Counts requests that have been sent at the times of `like`."""
        if (use := self.in_use.get(adapter)) is None:
            use = self.in_use[adapter] = _Use(like.since)
        use.count += count
        use.last_sent_at = max(use.last_sent_at, like.last_sent_at)

    def least_recent(self, turn_ns: Duration, now: Instant) -> str | None:
        """Returns the adapter in use whose last request was sent first, among those that have had their turn."""
        done = [(use.last_sent_at, name) for name, use in self.in_use.items() if now - use.since >= turn_ns]
        return min(done)[1] if done else None

    def requests(self, adapter: str) -> int:
        """Returns the number of requests in flight of an adapter in use."""
        return self.in_use[adapter].count

    def drain(self, adapter: str, reserved_for: str) -> None:
        self.draining, self.reserved_for = adapter, reserved_for

    def end_drain(self) -> None:
        self.draining = self.reserved_for = ""

    def forget_active(self) -> None:
        """Drops the loaded adapters of an engine that restarts."""
        self.active.clear()


class HeldAdapters:
    """Adapters of one endpoint, and the slots of its engine."""

    __slots__ = ("_counts", "_held", "_reported_max", "configured_max", "held", "slots")

    def __init__(self) -> None:
        self.held: tuple[str, ...] | None = None
        """Adapters that the engine holds. None if unknown."""
        self._held: frozenset[str] = frozenset()
        self._reported_max: int | None = None
        self.configured_max: int | None = None
        self.slots = AdapterSlots()
        """Slots of the engine, shared with its other endpoints."""
        self._counts: dict[str, int] = {}
        """Number of this endpoint's requests in flight by adapter."""

    def change(self, held: tuple[str, ...] | None, reported_max: int | None) -> None:
        """Applies what the engine reports. None if unknown."""
        self.held, self._held = held, frozenset(held or ())
        self._reported_max = reported_max

    @property
    def limit(self) -> int:
        """Number of slots. The configured number takes precedence over the engine's."""
        return self.configured_max or self._reported_max or SLOTS_ASSUMED

    def holds(self, adapter: str) -> bool:
        """Returns whether the engine holds the adapter. True if unknown."""
        return self.held is None or adapter in self._held

    def accepts(self, adapter: str) -> bool:
        """Returns whether the engine holds the adapter and it has a slot or can get one."""
        slots = self.slots
        if not self.holds(adapter) or (slots.draining and adapter == slots.draining):
            return False
        if adapter in slots.in_use:
            return True
        return self.has_free_slot() and (not slots.draining or adapter == slots.reserved_for)

    def has_free_slot(self) -> bool:
        return len(self.slots.in_use) < self.limit

    def begin(self, adapter: str, now: Instant) -> None:
        """Counts a request that is sent."""
        self._counts[adapter] = self._counts.get(adapter, 0) + 1
        self.slots.begin(adapter, self.limit, now)

    def end(self, adapter: str) -> None:
        """Counts a request that has ended."""
        left = self._counts[adapter] - 1
        if left:
            self._counts[adapter] = left
        else:
            del self._counts[adapter]
        self.slots.end(adapter)

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Returns the number of this endpoint's requests in flight for each adapter that has any."""
        return tuple(self._counts.items())

    def move_to(self, slots: AdapterSlots) -> None:
        """Moves the endpoint's requests in flight to the slots of another engine. A drain on the old engine ends."""
        before, self.slots = self.slots, slots
        for adapter, count in self._counts.items():
            slots.add(adapter, count, before.in_use[adapter])
            before.end(adapter, count)
        before.end_drain()
