"""What has been promised at one place, and which endpoints share it?

Two engines on one GPU are two addresses and one capacity: what is in flight at the one slows the other. Endpoints that
name the same device are therefore judged by what all of them hold together, each by the terms of its own pool. An
endpoint that names none is a device by itself, and costs nothing more for it.

The sums are made anew from the endpoints whenever one of them changes, so that they cannot drift from what they sum.
"""

from headgate.model.units import ClassName, EndpointId


class Held:
    """What is under way, at an endpoint or at a device."""

    __slots__ = (
        "foreign",
        "in_flight",
        "in_flight_of",
        "itl_ns",
        "kv_foreign",
        "kv_reserved",
        "kv_used",
        "pending_tokens",
    )

    def __init__(self) -> None:
        self.foreign = self.kv_foreign = 0
        """Sequences and tokens of KV cache that the engine says it has and that were not sent from here."""
        self.in_flight = 0
        self.in_flight_of: dict[ClassName, int] = {}
        """By class."""
        self.pending_tokens = 0
        """Of prompts whose first token has not come."""
        self.kv_used = 0
        """Tokens of prompts and of what was produced, as far as was told."""
        self.kv_reserved = 0
        """Tokens that were promised."""
        self.itl_ns = 0
        """The time between two tokens as last measured; 0 while nobody streams."""

    def count(self, name: ClassName, change: int) -> None:
        """Records that `change` requests of this class came or, if it is negative, went."""
        count = self.in_flight_of.get(name, 0) + change
        if count:
            self.in_flight_of[name] = count
        else:
            del self.in_flight_of[name]


class DeviceRecord(Held):
    """A device that endpoints have named, and the sums of what they hold."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[EndpointId, Held] = {}

    def sum_up(self) -> None:
        in_flight = pending_tokens = kv_used = kv_reserved = itl_ns = foreign = kv_foreign = 0
        in_flight_of: dict[ClassName, int] = {}
        for each in self.members.values():
            in_flight += each.in_flight
            pending_tokens += each.pending_tokens
            kv_used += each.kv_used
            kv_reserved += each.kv_reserved
            foreign += each.foreign
            kv_foreign += each.kv_foreign
            # What is slow for the streams of one is slow for those of the others.
            itl_ns = max(itl_ns, each.itl_ns)
            for name, count in each.in_flight_of.items():
                in_flight_of[name] = in_flight_of.get(name, 0) + count
        self.in_flight, self.in_flight_of = in_flight, in_flight_of
        self.pending_tokens, self.kv_used, self.kv_reserved = pending_tokens, kv_used, kv_reserved
        self.foreign, self.kv_foreign, self.itl_ns = foreign, kv_foreign, itl_ns


class Devices:
    """Every device that an endpoint of the fleet names."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, DeviceRecord] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def join(self, name: str, endpoint_id: EndpointId, held: Held) -> Held:
        """What an endpoint that names this device is judged by; itself, where it names none."""
        if not name:
            return held
        if (device := self._by_name.get(name)) is None:
            device = self._by_name[name] = DeviceRecord()
        device.members[endpoint_id] = held
        return device

    def leave(self, name: str, endpoint_id: EndpointId) -> None:
        """Forgets the endpoint, and its device with the last one on it."""
        if not name:
            return
        device = self._by_name[name]
        del device.members[endpoint_id]
        if not device.members:
            del self._by_name[name]
