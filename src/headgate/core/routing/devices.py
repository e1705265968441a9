"""Load on devices that several endpoints share.

Two engines on one GPU have two addresses but one capacity: requests to one of them slow down the other. The headroom of
endpoints on the same device is therefore computed from their total load, with the settings of each endpoint's own pool.
An endpoint without a configured device is its own device.

The totals are recomputed whenever an endpoint changes, so they cannot drift.
"""

from headgate.model.units import ClassName, EndpointId


class InFlightLoad:
    """Load on an endpoint or a device."""

    __slots__ = (
        "foreign",
        "in_flight",
        "in_flight_by_class",
        "itl_ns",
        "kv_foreign",
        "kv_reserved",
        "kv_used",
        "pending_tokens",
    )

    def __init__(self) -> None:
        self.foreign = self.kv_foreign = 0
        """Sequences and KV cache tokens that the engine reports but that do not come from this gateway."""
        self.in_flight = 0
        self.in_flight_by_class: dict[ClassName, int] = {}
        """Requests in flight by class."""
        self.pending_tokens = 0
        """Uncached prompt tokens of requests without a first token."""
        self.kv_used = 0
        """Prompt tokens and reported output tokens of requests in flight."""
        self.kv_reserved = 0
        """KV cache tokens that are reserved for requests in flight."""
        self.itl_ns = 0
        """Latest measured inter-token latency. 0 while nothing is streaming."""

    def count(self, name: ClassName, change: int) -> None:
        """Adds `change`, which may be negative, to the number of requests in flight of this class."""
        count = self.in_flight_by_class.get(name, 0) + change
        if count:
            self.in_flight_by_class[name] = count
        else:
            del self.in_flight_by_class[name]


class DeviceRecord(InFlightLoad):
    """A configured device, with the total load on its endpoints."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[EndpointId, InFlightLoad] = {}

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
            # The slowest streams on a device determine the inter-token latency of all its endpoints.
            itl_ns = max(itl_ns, each.itl_ns)
            for name, count in each.in_flight_by_class.items():
                in_flight_of[name] = in_flight_of.get(name, 0) + count
        self.in_flight, self.in_flight_by_class = in_flight, in_flight_of
        self.pending_tokens, self.kv_used, self.kv_reserved = pending_tokens, kv_used, kv_reserved
        self.foreign, self.kv_foreign, self.itl_ns = foreign, kv_foreign, itl_ns


class Devices:
    """All configured devices of the fleet."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, DeviceRecord] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def join(self, name: str, endpoint_id: EndpointId, load: InFlightLoad) -> InFlightLoad:
        """Adds an endpoint to a device and returns the load that determines its headroom.

        Without a device name, that is the endpoint's own load.
        """
        if not name:
            return load
        if (device := self._by_name.get(name)) is None:
            device = self._by_name[name] = DeviceRecord()
        device.members[endpoint_id] = load
        return device

    def leave(self, name: str, endpoint_id: EndpointId) -> None:
        """Removes an endpoint from its device, and the device if it has no other endpoints."""
        if not name:
            return
        device = self._by_name[name]
        del device.members[endpoint_id]
        if not device.members:
            del self._by_name[name]
