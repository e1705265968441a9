"""A pool's engine processes in a Ray cluster.

The fleet works like the one for local processes (`processes/fleet.py`), including starts, drains and crashes. Only the
location of the processes differs. For each process, Ray selects a node with enough capacity, waiting for one if
necessary, and assigns its GPUs. An endpoint's address is therefore known only once it is placed, and its start includes
the wait for placement.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from headgate.fleets.processes.fleet import ProcessFleet
from headgate.fleets.processes.slot import Slot, SlotContext
from headgate.fleets.processes.spec import ProcessSpec, fill_placeholders
from headgate.fleets.ray.cluster import RayChild, RayCluster
from headgate.fleets.ray.options import RayOptions
from headgate.ports.fleet import EndpointLookup, FleetObserver, Phase, ProbeEngine, WarmUp

UNPLACED_URL: Final = "http://0.0.0.0:0"
"""Address of an endpoint that has not been placed yet. It receives no requests, because it has not started."""
_POLL_S: Final = 0.5


class RayFleet(ProcessFleet):
    """Fleet of processes in Ray. Must be created inside an event loop; its owner starts and stops it."""

    def __init__(
        self,
        terms: ProcessSpec,
        ray: RayOptions,
        *,
        endpoints: int,
        endpoints_min: int,
        endpoints_max: int,
        look: ProbeEngine,
        warm_up: WarmUp,
        lookup: EndpointLookup,
        observer: FleetObserver,
        other_ports: Callable[[], Collection[int]],
    ) -> None:
        super().__init__(
            terms,
            endpoints=endpoints,
            endpoints_min=endpoints_min,
            endpoints_max=endpoints_max,
            look=look,
            warm_up=warm_up,
            lookup=lookup,
            observer=observer,
            other_ports=other_ports,
        )
        self.ray = ray
        self._cluster = RayCluster(ray, log=terms.log_directory / f"{terms.pool}-ray.log")

    @property
    def driver_pid(self) -> int | None:
        """Process ID of the Ray driver, while there is one."""
        return self._cluster.pid

    async def stop(self, *, drain: bool = False) -> None:
        await super().stop(drain=drain)
        await self._cluster.stop()

    def _new_slot(self, number: int) -> "RaySlot":
        return RaySlot(number, self._spec, self._slot_context, self._cluster)

    def _allocate_port(self) -> int:
        """Returns 0, because the node that runs the process chooses the port."""
        return 0


class RaySlot(Slot):
    """Slot for one process at a time, on any node with enough capacity."""

    def __init__(self, number: int, terms: ProcessSpec, ways: SlotContext, cluster: RayCluster) -> None:
        super().__init__(number, terms, ways)
        self._cluster = cluster

    @property
    def url(self) -> str:
        if not isinstance(self._child, RayChild) or not self._child.address:
            return UNPLACED_URL
        return f"{self._spec.options.scheme}://{self._child.address}"

    async def _run_process(self) -> None:
        """Runs one process until it exits or the slot is no longer needed."""
        ordering = asyncio.create_task(self._request_process())
        try:
            while self.desired and not ordering.done():
                await self._wait_any(ordering, within_s=None)
        finally:
            ordering.cancel()
        child = self._child
        if not isinstance(child, RayChild):
            return
        exit_status = asyncio.create_task(child.wait())
        problem: str | None = None
        try:
            await self._wait_until_placed(child, exit_status)
            if exit_status.done():
                problem = "exited before it was ready"
            elif self.desired:
                self._start_timer.begin(Phase.PROCESS)
                # Announce the endpoint again with its address.
                self._publish_unless_crash_loop()
                problem = await self._wait_until_ready(exit_status)
            if problem is None and self.desired:
                problem = await self._serve(exit_status)
        finally:
            exit_status.cancel()
        if problem is not None:
            self._record_failure(problem)

    async def _request_process(self) -> None:
        """Requests a process as soon as the cluster is reachable, which can take minutes."""
        terms = self._spec
        # The node is not known yet, so the driver fills in the port.
        values = terms.values(slot=self.number, port=0) | {"port": "{port}"}
        try:
            self._child = await self._cluster.run(
                [fill_placeholders(word, values) for word in terms.options.command],
                {name: fill_placeholders(value, values) for name, value in terms.options.environment.items()},
            )
        except OSError as error:
            self._record_failure(str(error))

    async def _wait_until_placed(self, child: RayChild, exit_status: asyncio.Task[int]) -> None:
        """Waits until the process is running on a node, has failed, or is no longer needed."""
        told = False
        while self.desired and not child.address and not exit_status.done():
            await self._wait_any(exit_status, within_s=_POLL_S)
            if child.pending_reason and not told and not child.address:
                self._context.observer.problem_found(
                    self.id, f"{child.pending_reason}; add nodes or lower scaling.endpoints_max"
                )
                told = True
        if told:
            self._context.observer.problem_cleared(self.id)

    def _log_tail(self) -> str:
        """Returns why the process ended, according to Ray, and how to read its output."""
        child = self._child
        if not isinstance(child, RayChild):
            return ""
        return (f"; {child.problem}" if child.problem else "") + child.hint
