"""Index of all endpoints by device, engine, pool and headroom.

`Placement` holds the records of all endpoints and pools. Whenever an endpoint changes, it updates the index for that
endpoint and for those that share its device, and records the changed pools that have headroom.

Endpoints of several pools that are on the same engine (`shared_engines`) are also on the same device.
"""

from collections.abc import ValuesView

from headgate.core.engine_time import DepartedTimes
from headgate.core.routing.devices import DeviceRecord, Devices
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.pools import PoolRecord
from headgate.core.routing.shared_engines import SharedEngines, engine_device
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, Instant, PoolName


class Placement:
    __slots__ = ("departed_times", "devices", "dispatchable", "endpoints", "engines", "pools", "pools_with_losses")

    def __init__(self) -> None:
        self.endpoints: dict[EndpointId, EndpointRecord] = {}
        self.pools: dict[PoolName, PoolRecord] = {}
        self.dispatchable: dict[PoolName, None] = {}
        """Pools in which a queued request may have become dispatchable, as an ordered set."""
        self.pools_with_losses: dict[PoolName, None] = {}
        """Pools that have lost a live endpoint, as an ordered set."""
        self.devices = Devices()
        self.engines = SharedEngines()
        self.departed_times = DepartedTimes()
        """Engine time of removed endpoints that has not been collected yet."""

    def siblings(self, endpoint: EndpointRecord) -> ValuesView[EndpointRecord]:
        """Returns all endpoints of the same pool, including this one."""
        return self.pools[endpoint.pool].endpoints.values()

    def forget_prefixes(self, endpoint: EndpointRecord) -> None:
        """Drops what is cached on an endpoint that restarts or no longer accepts requests.

        The loaded adapters belong to the engine, which may continue to serve another pool.
        """
        if not any(each.serving for each in endpoint.company):
            endpoint.adapters.slots.forget_active()
        pool = self.pools[endpoint.pool]
        pool.prefixes.forget(endpoint.slot)
        pool.sessions.forget(endpoint.id)

    def move(self, endpoint: EndpointRecord, to: Endpoint, now: Instant) -> None:
        """Moves the endpoint to the device and the engine of `to`."""
        own_device = engine_device(to.engine)
        device = to.device or own_device
        if endpoint.engine == to.engine and endpoint.device == device:
            return
        self._leave_device(endpoint)
        if endpoint.engine != to.engine:
            if endpoint.engine:
                endpoint.engine_time.advance(now)
                self._leave_engine(endpoint)
            if to.engine and (unused := self.engines.join(endpoint, to.engine, now)) is not None:
                self.departed_times.retire(unused, now)
        endpoint.device = device
        endpoint.device_load = endpoint.engine_load = self.devices.join(device, endpoint.id, endpoint)
        if own_device != device and own_device:
            endpoint.engine_load = self.devices.join(own_device, endpoint.id, endpoint)
        elif not own_device:
            endpoint.engine_load = endpoint

    def _leave_device(self, endpoint: EndpointRecord) -> None:
        """Removes the endpoint from its device. Its load no longer counts toward other endpoints there."""
        self.devices.leave(endpoint.device, endpoint.id)
        if (own_device := engine_device(endpoint.engine)) != endpoint.device:
            self.devices.leave(own_device, endpoint.id)
        self.place_sharers(endpoint)

    def _leave_engine(self, endpoint: EndpointRecord) -> None:
        if endpoint.company and self.engines.counts_time(endpoint):
            # From now on, the engine's time is reported under another endpoint.
            self.departed_times.add(endpoint.engine_time)
        self.engines.leave(endpoint)

    def place(self, endpoint: EndpointRecord) -> None:
        """Updates the index for a changed endpoint and for the endpoints on the same device."""
        if endpoint.device:
            self.place_sharers(endpoint)
        else:
            self._place_one(endpoint)

    def place_load(self, endpoint: EndpointRecord) -> None:
        """Like `place`, for a change that affects only the endpoint's load. Every attempt causes two of them."""
        if endpoint.device:
            self.place_sharers(endpoint)
            return
        name = endpoint.pool
        pool = self.pools[name]
        pool.place_load(endpoint)
        if pool.headroom_count:
            self.dispatchable[name] = None

    def place_load_unless_full(self, endpoint: EndpointRecord) -> None:
        """Like `place_load`, but for changes that have no effect on an endpoint without a free slot."""
        if endpoint.in_flight < endpoint.in_flight_max or endpoint.counted_long or endpoint.device:
            self.place_load(endpoint)

    def place_sharers(self, endpoint: EndpointRecord) -> None:
        shared, of_engine = endpoint.device_load, endpoint.engine_load
        if of_engine is not shared and isinstance(of_engine, DeviceRecord):
            of_engine.sum_up()
        if isinstance(shared, DeviceRecord):
            shared.sum_up()
            for endpoint_id in shared.members:
                self._place_one(self.endpoints[endpoint_id])

    def _place_one(self, endpoint: EndpointRecord) -> None:
        name = endpoint.pool
        was_live, pool = endpoint.live, self.pools[name]
        pool.place(endpoint)
        if pool.headroom_count:
            self.dispatchable[name] = None
        if was_live and not endpoint.live:
            self.pools_with_losses[endpoint.pool] = None
            # A request that was kept off an endpoint may use it again if that endpoint is now the last one, in any
            # pool.
            self.recheck_all_pools()

    def recheck_all_pools(self) -> None:
        """Marks every pool as changed, so that all queued requests are considered again."""
        self.dispatchable.update(dict.fromkeys(self.pools))

    def remove(self, endpoint: EndpointRecord) -> None:
        """Removes an endpoint, and its pool if it has no other endpoints."""
        del self.endpoints[endpoint.id]
        self._leave_device(endpoint)
        if not endpoint.company:
            self.departed_times.add(endpoint.engine_time)
        if endpoint.engine:
            self._leave_engine(endpoint)
        pool = self.pools[endpoint.pool]
        pool.remove(endpoint)
        if not pool.endpoints:
            del self.pools[endpoint.pool]
