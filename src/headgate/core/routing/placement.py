"""Where does each endpoint stand after a change: at which device, in which pool, and with how much headroom?

`Placement` holds the records of all endpoints and pools. It puts an endpoint in order after any change, together with
those that share its device, and notes the pools with headroom in which anything changed.
"""

from collections.abc import ValuesView

from headgate.core.engine_time import LeftTimes
from headgate.core.routing.devices import DeviceRecord, Devices, Held
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.pools import PoolRecord
from headgate.model.units import EndpointId, PoolName


class Placement:
    __slots__ = ("changed", "devices", "endpoints", "left", "lost", "pools")

    def __init__(self) -> None:
        self.endpoints: dict[EndpointId, EndpointRecord] = {}
        self.pools: dict[PoolName, PoolRecord] = {}
        self.changed: dict[PoolName, None] = {}
        """Pools where someone may have become dispatchable: an ordered set."""
        self.lost: dict[PoolName, None] = {}
        """Pools that have lost an endpoint that took work: an ordered set."""
        self.devices = Devices()
        self.left = LeftTimes()
        """The engine time of endpoints that are gone and whose time has not been collected yet."""

    def siblings(self, endpoint: EndpointRecord) -> ValuesView[EndpointRecord]:
        """All endpoints of its pool, itself included."""
        return self.pools[endpoint.pool].endpoints.values()

    def forget_prefixes(self, endpoint: EndpointRecord) -> None:
        """Who starts anew has lost what it had computed, and who takes no work need not be looked for."""
        self.pools[endpoint.pool].prefixes.forget(endpoint.slot)

    def move_to_device(self, endpoint: EndpointRecord, device: str) -> None:
        """Notes which device it is on from here on."""
        if endpoint.device != device:
            self.devices.leave(endpoint.device, endpoint.id)
            self.place_sharers(endpoint.shared)
            endpoint.device = device
            endpoint.shared = self.devices.join(device, endpoint.id, endpoint)

    def place(self, endpoint: EndpointRecord) -> None:
        """Puts the endpoint where it belongs after any change of it, and with it those that share its device."""
        if endpoint.device:
            self.place_sharers(endpoint.shared)
        else:
            self._place_one(endpoint)

    def place_unless_full(self, endpoint: EndpointRecord) -> None:
        """The same, after a change that makes no difference to an endpoint without a free place."""
        if endpoint.in_flight < endpoint.in_flight_max or endpoint.counted_long or endpoint.device:
            self.place(endpoint)

    def place_sharers(self, shared: Held) -> None:
        if isinstance(shared, DeviceRecord):
            shared.sum_up()
            for endpoint_id in shared.members:
                self._place_one(self.endpoints[endpoint_id])

    def _place_one(self, endpoint: EndpointRecord) -> None:
        was_live, pool = endpoint.live, self.pools[endpoint.pool]
        pool.place(endpoint)
        if pool.places:
            self.changed[endpoint.pool] = None
        if was_live and not endpoint.live:
            self.lost[endpoint.pool] = None
            # Whoever avoids what may now be its last endpoint, in whichever pool, no longer does so.
            self.look_everywhere()

    def look_everywhere(self) -> None:
        """Makes every pool look for places for waiting requests again."""
        self.changed.update(dict.fromkeys(self.pools))

    def remove(self, endpoint: EndpointRecord) -> None:
        """Forgets an endpoint that has left, and its pool with the last one in it."""
        del self.endpoints[endpoint.id]
        self.left.keep(endpoint.time)
        self.devices.leave(endpoint.device, endpoint.id)
        # What its engine said it had counts no more for those that share its device.
        self.place_sharers(endpoint.shared)
        pool = self.pools[endpoint.pool]
        pool.remove(endpoint)
        if not pool.endpoints:
            del self.pools[endpoint.pool]
